"""Grids of Inductor's launchers, translated, beside torch's own evaluation of their text."""

from __future__ import annotations

import json
import random

from precomp import torch_api
from precomp.freeze.grid import compile_grid
from precomp.freeze.store import Unsupported

BINARY = {
    "unless0": lambda d, e: e if d else 0,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "max": max,
    "min": min,
}
COMBO = {
    "num_kernels": 2, "min_blocks": 3, "default_config": {"YBLOCK": 8}, "xnumel_0": None,
    "no_x_dim_0": False, "xnumel_1": 77, "no_x_dim_1": True,
}  # fmt: skip
FLAT = {**COMBO, "ynumel_0": None, "default_config": {"XBLOCK_0": 16, "YBLOCK_0": 4}}
SIZES = ("xnumel", "ynumel", "znumel", "r0_numel", "xnumel_0", "ynumel_0")
CASES = [
    ({"grid_type": "Grid1D"}, {"XBLOCK": 128}),
    ({"grid_type": "Grid1D"}, {"XBLOCK": 1}),
    ({"grid_type": "Grid2D"}, {"XBLOCK": 32, "YBLOCK": 16}),
    ({"grid_type": "Grid3D"}, {"XBLOCK": 32, "YBLOCK": 16, "ZBLOCK": 4}),
    ({"grid_type": "BatchMatmulGrid3D"}, {"XBLOCK": 32, "YBLOCK": 16, "ZBLOCK": 4}),
    ({"grid_type": "Grid2DWithYZOverflow"}, {"XBLOCK": 32, "YBLOCK": 1}),
    ({"grid_type": "MixOrderReductionGrid"}, {"RSPLIT_SIZE": 64, "XBLOCK": 2}),
    ({"grid_type": "CooperativeReductionGrid"}, {"RSPLIT": 8, "XBLOCK": 2}),
    ({"grid_type": "SplitScanGrid"}, {"XBLOCK": 1, "R0_BLOCK": 512}),
    ({"grid_type": "FixedGrid", "fixed_grid": ["xnumel", "ynumel", 3]}, {}),
    ({"grid_type": "FixedGrid", "fixed_grid": ["min(xnumel, 132) - 1 % 5", 1, 1]}, {}),
    ({"grid_type": "PrecomputedGrid", "precomputed_grids": [
        {"config": {"BLOCK": 64}, "python": ["xnumel", 1, 1]},
        {"config": {"BLOCK": 32}, "python": ["((31 + xnumel) // 32)", "max(1, ynumel)", 7]},
    ]}, {"BLOCK": 32}),
    ({"grid_type": "SequentialComboKernelGrid", "combo_grid_meta": COMBO}, {"XBLOCK": 64}),
    ({"grid_type": "SequentialFlattenComboKernelGrid", "combo_grid_meta": FLAT}, {}),
    ({"grid_type": "RoundRobinComboKernelGrid", "combo_grid_meta": COMBO}, {"XBLOCK": 64}),
]  # fmt: skip
REFUSED = [
    ([], ["xnumel / 2"]),
    ([], ["xnumel if xnumel else 1"]),
    ([], ["0 if xnumel > 5 else 1"]),
    ([], ["1 if xnumel == 0 else 2"]),
    ([], ["abs(xnumel)"]),
    ([], ["other"]),
    ([], ["1.5"]),
    ([], ["True"]),
    ([], ["max(xnumel)"]),
    (["import os"], ["xnumel"]),
    ([], [" + ".join(["xnumel"] * 200)]),
]


def subclasses(owner: type) -> set[str]:
    """The names of the grids that kernels have: of classes that have no subclass."""
    below = owner.__subclasses__()
    return set().union(*map(subclasses, below)) if below else {owner.__name__}


def evaluate(program: tuple, values: list[int]) -> int:
    stack: list[int] = []
    for item in program:
        if isinstance(item, tuple):
            stack.append(values[item[1]])
        elif isinstance(item, int):
            stack.append(item)
        elif item == "neg":
            stack.append(-stack.pop())
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(BINARY[item](left, right))
    (result,) = stack
    return result


def main() -> None:
    grid_expr = torch_api.capture().GridExpr
    numbers = random.Random(5)
    checked, wrong = 0, []
    for meta, config in CASES:
        grid = grid_expr.from_meta(meta, config)
        programs = compile_grid(grid.prefix, (grid.x_grid, grid.y_grid, grid.z_grid), SIZES)
        for _ in range(50):
            large = (0, 1, 65535, 65536, numbers.randrange(1, 2**33))
            values = [numbers.choice(large) for _ in SIZES]
            try:
                expected = grid.eval_slow(dict(zip(SIZES, values, strict=True)))
            except ZeroDivisionError:
                continue
            found = tuple(evaluate(program, values) for program in programs)
            checked += 1
            if found != tuple(expected):
                wrong.append((meta["grid_type"], values, expected, found))
    refused, accepted = [], []
    for prefix, texts in REFUSED:
        try:
            compile_grid(prefix, texts, SIZES)
        except Unsupported as error:
            refused.append(str(error))
        else:
            accepted.append(texts[0])
    facts = {
        "not covered": sorted(subclasses(grid_expr) - {meta["grid_type"] for meta, _ in CASES})
    }
    facts |= {"cases": len(CASES), "checked": checked, "wrong": wrong}
    print(json.dumps({**facts, "refused": refused, "accepted": accepted}))


if __name__ == "__main__":
    main()
