"""Click logs in the layout of Criteo's data: a generator and a reader.

One line for each impression, its fields separated by tabs: the label (0 or 1), 13 integers, 26
categories of 8 hexadecimal digits. Integers and categories may be empty. Real files of that layout
(the Criteo Display Advertising Challenge, one day of the Criteo 1TB logs) can be read as they are.

    python clicks.py clicks.tsv --rows 100000       # a synthetic file, the same for a seed
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import torch

INTEGERS = 13
CATEGORIES = 26


def generate(path: str | Path, rows: int, seed: int = 0) -> None:
    """Write a synthetic log in which the label depends on some of the fields.

    Each category column has its own number of values, used with Zipf-like frequencies; a value
    carries a hidden weight. The click rate is around 25 %.
    """
    numbers = random.Random(seed)
    sizes = [numbers.choice((4, 20, 100, 1000, 10_000)) for _ in range(CATEGORIES)]
    names = [[f"{numbers.getrandbits(32):08x}" for _ in range(size)] for size in sizes]
    weights = [[numbers.gauss(0, 0.7) for _ in range(size)] for size in sizes]
    slopes = [numbers.gauss(0, 0.2) for _ in range(INTEGERS)]
    with open(path, "w") as stream:
        for _ in range(rows):
            score = -1.3
            integers = []
            for slope in slopes:
                value = int(numbers.expovariate(0.1))
                score += slope * (value / 10 - 1)
                integers.append("" if numbers.random() < 0.1 else str(value))
            categories = []
            for column, size in enumerate(sizes):
                index = min(size - 1, int(size * numbers.random() ** 3))
                score += weights[column][index] * (0.6 if column < 8 else 0.0)
                categories.append("" if numbers.random() < 0.03 else names[column][index])
            click = numbers.random() < 1 / (1 + 2.718281828**-score)
            stream.write("\t".join([str(int(click)), *integers, *categories]) + "\n")


def parse(line: str, rows: int) -> tuple[float, list[float], list[int]]:
    """Label, ``log(1 + x)``-ready integers (missing: 0) and table indices below *rows*."""
    fields = line.rstrip("\n").split("\t")
    if len(fields) != 1 + INTEGERS + CATEGORIES:
        raise ValueError(
            f"expected {1 + INTEGERS + CATEGORIES} tab-separated fields, found {len(fields)}: "
            f"{line[:60]!r}"
        )
    integers = [max(0.0, float(field or 0)) for field in fields[1 : 1 + INTEGERS]]
    categories = [int(field or "0", 16) % rows for field in fields[1 + INTEGERS :]]
    return float(fields[0]), integers, categories


def batches(
    path: str | Path, size: int, rows: int, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Batches of one rank, without end: the file is read again and again.

    Lines are dealt out in turn. Yields ``(dense, sparse, labels)``: float of shape (size, 13),
    int64 of shape (size, 26) with indices below *rows*, and float of shape (size,).
    """
    if Path(path).stat().st_size == 0:
        raise ValueError(f"{path}: expected click logs, found an empty file")
    lines = itertools.chain.from_iterable(open(path) for _ in itertools.count())
    own = itertools.islice(lines, rank, None, ranks)
    while True:
        labels, integers, categories = zip(
            *(parse(line, rows) for line in itertools.islice(own, size)), strict=True
        )
        dense = torch.tensor(integers).log1p()
        yield dense, torch.tensor(categories), torch.tensor(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generate(options.path, options.rows, options.seed)


if __name__ == "__main__":
    main()
