"""Of a generated wrapper only what runs is kept, and every name it uses is known or refused."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CALL = """
def call(args):
    x, n = args
    args.clear()
    {}
"""

REFUSED = {
    "undefined name": (CALL.format("return (missing(x),)"), "'missing' is used and not defined"),
    "import in a function": (
        CALL.format("from torch.profiler import record_function; return (record_function,)"),
        "the generated code imports torch.profiler",
    ),
    "statement": ("print('hello')\n" + CALL.format("return (x,)"), "print('hello')"),
    "condition": ("if inf:\n    y = 1\n" + CALL.format("return (x,)"), "if inf:"),
    "triton kernel": (
        "triton_poi_0 = async_compile.triton('', '')\n" + CALL.format("return triton_poi_0(x)"),
        "kernel triton_poi_0 is made by async_compile.triton",
    ),
    "compiler module": (
        CALL.format("return (torch._inductor.config.debug,)"),
        "needs torch._inductor",
    ),
    "changed kernel": (CALL.format("extern_kernels.mm = None"), "changes extern_kernels.mm"),
    "higher-order operator": (
        CALL.format("return torch.ops.higher_order.cond(x, n)"),
        "torch.ops.higher_order.cond",
    ),
    "module as a value": (CALL.format("return (torch.nn,)"), "torch.nn is used as a value"),
    "missing operator": (CALL.format("return torch.ops.aten.no_such(x)"), "no_such"),
    "decorator": (
        "import functools\n@functools.cache\ndef help():\n    return 1\n"
        + CALL.format("return (help(),)"),
        "decorator",
    ),
    "helper with state": (
        "from torch._inductor.runtime.debug_utils import tracked_empty_strided\n"
        + CALL.format("return (tracked_empty_strided((2,), (1,), dtype=torch.float32),)"),
        "helper torch._inductor.runtime.debug_utils.tracked_empty_strided",
    ),
    "helper that is a class": (
        "from torch._inductor.ir import FixedLayout\n" + CALL.format("return (FixedLayout,)"),
        "FixedLayout",
    ),
}

REFUSED_GRAPHS = {
    "device": ({"devices": ["cpu", "xpu"]}, "the module runs on xpu"),
    "torchbind": ({"torchbind": ["_torchbind_obj0"]}, "torchbind constants: _torchbind_obj0"),
    "opaque type": ({"opaque": ["Mesh"]}, "opaque types: Mesh"),
    "wrapped callable": ({"callable": "lambda args: call(args)"}, "not the function 'call'"),
    "builtin callable": ({"callable": "len"}, "builtin_function_or_method"),
    "sparse constant": ({"bad": ["sparse"]}, "constant sparse is not a strided tensor"),
    "conjugate constant": ({"bad": ["conjugate"]}, "constant conjugate is a conjugate"),
    "subclass constant": ({"bad": ["subclass"]}, "constant subclass is a tensor subclass"),
    "constant on another device": ({"bad": ["meta"]}, "constant meta is on meta"),
    "constant of another type": ({"bad": ["not_a_tensor"]}, "constant not_a_tensor is a int"),
    "cpp_wrapper": ({"prefix": "inductor_entry = None\n"}, "cpp_wrapper"),
    "wrapped partition": (
        {"prefix": "class R: partitions = [len]\nrunner = R()\n"},
        "graph partitions are wrapped",
    ),
}

RUNNER = """
def partition_0(args):
    x, = args
    args.clear()
    return (aten.sin.default(x), )
def partition_1(args):
    y, n = args
    args.clear()
    buf0 = empty_strided_cpu((2, 2), (2, 1), torch.float32)
    extern_kernels.mm(y, y.t(), out=buf0)
    return (buf0 * n, )
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions
    def recursively_apply_fns(self, fns):
        self.partitions = [fn(c) for fn, c in zip(fns, self.partitions)]
    def call(self, args):
        x, n = args
        args.clear()
        assert_size_stride(x, (2, 3), (3, 1), 'input')
        partition0_args = [x]
        (buf0,) = self.partitions[0](partition0_args)
        (buf1,) = self.partitions[1]([buf0, n])
        return (buf0, buf1)
runner = Runner(partitions=[partition_0, partition_1])
call = runner.call
recursively_apply_fns = runner.recursively_apply_fns
"""

SERVED = {
    "partitions": ({"source": RUNNER}, ["extern_kernels.mm", "aten.sin.default"]),
    "scopes": (
        {
            "source": """
base = 5
def helper(x, aten=aten.cos.default, scale=2):
    return aten(x) * scale
"""
            + CALL.format("""def inner(torch):
        return torch + base
    extern_kernels = [torch.sin(x) for math in range(2)]
    pick = lambda inf: inf[0] + math.floor(2.5)
    return (inner(x), pick(extern_kernels), helper(x), max(n, 1), nan)""")
        },
        ["aten.cos.default", "torch.sin", "base", "math.floor", "nan"],
    ),
    "helper of the compiler": (
        {
            "source": "from torch._inductor.kernel.mm import bias_addmm\n"
            + CALL.format("return (bias_addmm(x[0, :2], x, x.t()),)")
        },
        ["torch._inductor.kernel.mm:torch.addmm"],
    ),
    "values": (
        {
            "source": """
meta0 = {'a': (1, 2.5, 'text'), 'b': [None, True]}
dtype, shape = torch.float64, torch.Size([2, 3])
"""
            + CALL.format("return (meta0['a'], x.to(dtype), list(meta0['b']), shape, inf)")
        },
        ["meta0", "dtype", "shape", "inf"],
    ),
    "constants": (
        {
            "source": CALL.format(
                "return (plain, transposed, expanded, part, flags, complex, empty, "
                "zero_dimensional)"
            ),
            "constants": [
                "plain", "transposed", "expanded", "part", "flags", "complex", "zero_dimensional",
                "empty",
            ],
        },
        [],
    ),
    "unused names are dropped": (
        {
            "source": "thing = object()\nfrom torch._inductor.utils import maybe_profile\n"
            "def benchmark(args):\n    return thing, maybe_profile\n"
            + CALL.format("return (x + 1,)")
            + "if __name__ == '__main__':\n    benchmark(1)\n"
        },
        [],
    ),
}  # fmt: skip

if importlib.util.find_spec("triton") is not None:
    SERVED["tensor descriptors"] = (
        {
            "source": "import triton\nimport triton.tools.tensor_descriptor\n"
            + CALL.format("""y = torch.nn.functional.pad(x, (0, 1))
    made = triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(y, [2, 4])
    return (made.base, made.shape, made.strides, made.block_shape, made.padding)""")
        },
        ["triton.tools.tensor_descriptor.TensorDescriptor.from_tensor"],
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, python):
    cases = {f"refused {name}": {"source": source} for name, (source, _) in REFUSED.items()}
    plain = CALL.format("return (x,)")
    for name, (change, _) in REFUSED_GRAPHS.items():
        used = "".join(f"{constant}; " for constant in change.get("bad", ()))
        source = change.get("prefix", "") + (CALL.format(used + "return (x,)") if used else plain)
        cases[f"graph {name}"] = {"source": source, **change}
    cases.update({f"served {name}": case for name, (case, _) in SERVED.items()})
    return python(HERE / "linking.py", stdin=json.dumps(cases))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_frozen_is_refused_by_name(outcomes, name):
    assert REFUSED[name][1] in outcomes[f"refused {name}"].get("refused", "")


@pytest.mark.parametrize("name", REFUSED_GRAPHS)
def test_graphs_of_another_kind_are_refused_by_name(outcomes, name):
    assert REFUSED_GRAPHS[name][1] in outcomes[f"graph {name}"].get("refused", "")


@pytest.mark.parametrize("name", SERVED)
def test_the_frozen_function_does_what_the_original_does(outcomes, name):
    outcome = outcomes[f"served {name}"]
    assert outcome.get("same") is True, outcome
    assert set(SERVED[name][1]) <= set(outcome["extern"])
    assert not any(name in outcome["extern"] for name in ("thing", "maybe_profile", "torch"))
