"""How C specialises arguments, against Triton's own answer for the same call."""

from __future__ import annotations

import math
from collections import namedtuple

import pytest
import torch

triton = pytest.importorskip("triton")
pytest.importorskip("hypothesis")

import triton.language as tl  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from triton.backends.compiler import BaseBackend  # noqa: E402
from triton.runtime.jit import create_function_from_signature  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from precomp import torch_api, triton_kernels  # noqa: E402
from precomp.freeze.triton import triton_words  # noqa: E402

torch_api.serve()
Pair = namedtuple("Pair", ("left", "right"))


@triton.jit
def called(x):
    return x


@triton.jit(do_not_specialize=["loose"], do_not_specialize_on_alignment=["odd", "odd_const"])
def kernel(
    plain,
    const: tl.const,
    constant: tl.constexpr,
    loose,
    odd,
    odd_const: tl.const,
    i64: tl.int64,
    u8: tl.uint8,
    fp16: tl.float16,
    u1: tl.int1,
    pointer: tl.pointer_type(tl.float32),
    default=3,
    constant_default: tl.constexpr = "s",
):
    pass


NAMES = list(kernel.signature.parameters)
BINDER = create_function_from_signature(kernel.signature, kernel.params, BaseBackend)
never = type(None)
DISPATCH = triton_kernels.dispatcher(kernel, triton_kernels.state(kernel), *[never] * 4, ())


class Buffer:
    def __init__(self, address, dtype):
        self.address, self.dtype = address, dtype

    def data_ptr(self):
        return self.address

    def __repr__(self):
        return f"Buffer({self.address}, {self.dtype})"


EDGES = [0, 1, 2, 15, 16, 17, 32, 2**31, 2**32, 2**63, 2**64]
integers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.builds(lambda edge, sign, by: sign * edge + by, st.sampled_from(EDGES),
              st.sampled_from([1, -1]), st.integers(-16, 16)),
)  # fmt: skip
dtypes = st.sampled_from(
    [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16,
     torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
     torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, tl.float32, tl.int64]
)  # fmt: skip
tensors = st.builds(
    lambda dtype, offset, kind: kind(torch.empty(64, dtype=dtype)[offset:]),
    dtypes.filter(lambda dtype: isinstance(dtype, torch.dtype)),
    st.integers(0, 17),
    st.sampled_from([lambda x: x, lambda x: torch.nn.Parameter(x, requires_grad=False)]),
)
buffers = st.builds(Buffer, integers.filter(lambda n: 0 <= n < 2**64), dtypes)
aligned = st.builds(lambda n, dtype: Buffer(16 * n, dtype), st.integers(0, 2**40), dtypes)
bases = aligned.filter(lambda base: isinstance(base.dtype, torch.dtype)) | st.builds(
    lambda dtype: torch.empty(64, dtype=dtype),
    dtypes.filter(lambda dtype: isinstance(dtype, torch.dtype)),
)
blocks = st.lists(st.sampled_from([1, 2, 8, 16, True]), min_size=1, max_size=5)
descriptors = st.builds(
    lambda base, block, kind: TensorDescriptor(
        base, [1] * len(block), [16] * (len(block) - 1) + [1], kind(block)
    ),
    bases, blocks, st.sampled_from([list, tuple]),
)  # fmt: skip
floats = st.floats() | st.sampled_from([0.0, -0.0, 1.0, math.inf])
plain = st.one_of(integers, st.booleans(), floats, st.none(), tensors, buffers, descriptors)
constants = st.one_of(
    integers, st.booleans(), floats, st.none(), st.text(max_size=3),
    st.sampled_from([tl.float32, tl.int64, called, tl.constexpr(1), tl.constexpr(None)]),
)  # fmt: skip
odd = st.sampled_from([object(), [1], {}, 1j, b"x", tl.constexpr([1]), torch.float32])
tuples = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.builds(Pair, inner, inner)
    | st.builds(torch.Size, st.lists(st.integers(0, 40), max_size=2)),
    max_leaves=4,
)
arguments = st.one_of(tuples, constants, odd)


def launchable(args, kwargs):
    """Triton finds words for tensor descriptors in place of numbers, but cannot launch that."""
    given = dict(zip(NAMES, args, strict=False)) | kwargs
    return not any(isinstance(given.get(name), TensorDescriptor) for name in ("i64", "u8"))


def by_triton(args, kwargs):
    """Triton's words, or None where it refuses the call or the words have no form."""
    if not launchable(args, kwargs):
        return None
    try:
        values, specialization, options = BINDER(*args, **kwargs)
        return triton_words(kernel, values, specialization, options)
    except (TypeError, OverflowError, KeyError, ValueError, triton_kernels.NoForm):
        return None


def by_precomp(args, kwargs):
    try:
        words = DISPATCH.describe(*args, **kwargs)
    except (TypeError, OverflowError, KeyError, ValueError):
        return None
    return None if None in words else list(words)


BASE = dict.fromkeys(NAMES, 7) | {"pointer": Buffer(64, torch.float32)}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(argument=arguments)
def test_each_kind_of_parameter(name, argument):
    """One odd argument at a time, so that a refusal is about it."""
    call = BASE | {name: argument}
    assert by_precomp((), call) == by_triton((), call)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    args=st.lists(plain, min_size=9, max_size=13),
    named=st.dictionaries(st.sampled_from([*NAMES[9:], "num_warps", "num_stages"]), constants),
)
def test_whole_calls(args, named):
    """Positional and keyword arguments, defaults and options in any order."""
    assert by_precomp(args, named) == by_triton(args, named)


def test_equal_words_mean_equal_specialisations():
    """Where Python's equality is looser than the type of a constant, words are not."""
    seen = {}
    for value in (1, True, 1.0, "1", (1,), Pair(1, 1), (1, 1), None, "", 0, False, 0.0, -0.0):
        (word,) = (DISPATCH.describe(**(BASE | {"constant": value}))[2],)
        assert seen.setdefault(word, value) is value
    texts = ("a\n=i1", "a", "\n=i1", "é", "\0")
    words = {DISPATCH.describe(**(BASE | {"constant": text}))[2] for text in texts}
    assert len(words) == len(texts)


def test_descriptors_of_other_classes_have_no_form():
    class Mine(TensorDescriptor):
        pass

    class Other:
        pass

    Other.__name__ = Other.__qualname__ = "TensorDescriptor"
    mine = Mine(torch.empty(64), [8, 8], [8, 1], [4, 4])
    for argument in (mine, Other()):
        assert DISPATCH.describe(**(BASE | {"plain": argument}))[0] is None


def test_long_words_are_whole():
    text = "x" * 5000
    assert DISPATCH.describe(**(BASE | {"constant": text}))[2] == f"=s5000:{text}"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1,) * 14, {}), ((1,) * 11, {"plain": 1}), ((1,) * 10, {})],
)
def test_calls_that_do_not_fit(args, kwargs):
    assert by_triton(args, kwargs) is None
    with pytest.raises(TypeError, match="do not fit the parameters"):
        DISPATCH.describe(*args, **kwargs)


def test_a_variable_number_of_arguments_has_no_form():
    @triton.jit
    def variadic(*rest):
        pass

    with pytest.raises(triton_kernels.NoForm, match="a variable number of arguments"):
        triton_kernels.parameters(variadic)
