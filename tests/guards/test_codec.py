from __future__ import annotations

import collections
import enum
import functools
import importlib
import math
import operator
import random
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torches import OLD

from precomp import _core, data, torch_api
from precomp.freeze.store import Unsupported
from precomp.freeze.values import Unencodable, encode, encode_code


def named(value: Any) -> str:
    """A test id that two processes agree on: the text without addresses, sets in order."""
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


torch_api.serve()
torch_api.capture()


class Color(enum.Enum):
    RED = 1


Point = collections.namedtuple("Point", "row column")


class Flag(enum.Flag):
    A = 1
    B = 2


def through(value: Any) -> Any:
    """Encoded, written, read, decoded."""
    return _core.decode(data.loads(data.dumps(encode(value))))


EQUAL = [
    None,
    True,
    3,
    -(10**40),
    2.5,
    float("inf"),
    1 + 2j,
    "text \udc80",
    b"bytes",
    (1, ("a", [2])),
    [1, [2]],
    {1, "a", (2, 3)},
    frozenset({1, 2}),
    {"b": 1, "a": (2,), 3: None},
    slice(1, None, 2),
    range(1, 9, 2),
    torch.Size([1, 2]),
    torch.device("cpu"),
    torch.device("cuda", 1),
    numpy.float32(2.5),
    numpy.int64(-7),
    numpy.bool_(True),
    Point(1, (2, "a")),
]


@pytest.mark.parametrize("value", EQUAL, ids=named)
def test_values_come_back_equal(value: Any) -> None:
    back = through(value)
    assert back == value and type(back) is type(value)


SAME = [
    ...,
    NotImplemented,
    torch.float32,
    torch._C.DispatchKey.CPU,
    torch.strided,
    torch.channels_last,
    math,
    torch.nn.functional,
    int,
    collections.OrderedDict,
    torch.nn.Linear,
    torch.Tensor,
    torch.nn.Parameter,
    torch.Size,
    len,
    math.sqrt,
    operator.add,
    torch.relu,
    torch.nn.functional.gelu,
    torch.nn.functional.dropout,
    torch.Tensor.add,
    torch.Tensor.size,
    dict.get,
    torch.ops.aten,
    torch.ops.aten.add,
    torch.ops.aten.add.Tensor,
    type(iter(())),
    type({}.keys()),
    types.FunctionType,
    types.CodeType,
    types.ModuleType,
    type(None),
    collections.abc.Mapping,
    functools.lru_cache,
]


@pytest.mark.parametrize("value", SAME, ids=named)
def test_identities_come_back_the_same(value: Any) -> None:
    assert through(value) is value


def test_kinds_of_torch_come_back() -> None:
    keys = torch._C._dispatch_keys(torch.ones(1))
    assert through(keys).raw_repr() == keys.raw_repr()
    mode = torch._C._functionalization.InverseReturnMode.AlwaysView
    assert through(mode) == mode
    state = torch._C._dynamo.guards.GlobalStateGuard()
    assert through(state).check()
    with torch.no_grad():
        assert not _core.decode(encode(state)).check()


def test_views_of_dicts_come_back() -> None:
    assert list(through({"b": 1, "a": 2}.keys())) == ["b", "a"]
    proxy = through(types.MappingProxyType({"a": [1]}))
    assert type(proxy) is types.MappingProxyType and dict(proxy) == {"a": [1]}
    part = through(functools.partial(torch.add, 1, alpha=2))
    assert (part.func, part.args, part.keywords) == (torch.add, (1,), {"alpha": 2})


def test_equal_sets_have_equal_encodings() -> None:
    for make in (set, frozenset):
        one, two = make(["a", "b", 1, 2.5, (3,)]), make([(3,), 2.5, "b", 1, "a"])
        assert encode(one) == encode(two)


def test_encodings_are_plain_data() -> None:
    for value in [*EQUAL, *SAME]:
        data.dumps(encode(value))


REFUSED = {
    "an object": (object(), "builtins.object"),
    "a module instance": (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
    "a tensor": (torch.ones(1), "torch.Tensor"),
    "a generator": (torch.Generator(), "torch._C.Generator"),
    "a lambda": (lambda: 1, "function .*<lambda>"),
    "a bound method": ([].append, "function list.append"),
    "a composite flag": (Flag.A | Flag.B, "Flag"),
    "a module that is not loaded": (types.ModuleType("nowhere"), "module nowhere"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    value, words = REFUSED[name]
    with pytest.raises(Unencodable, match=words) as caught:
        encode(value)
    assert isinstance(caught.value, Unsupported) and "0x" not in str(caught.value)


def test_a_local_class_is_refused() -> None:
    class Local:
        pass

    with pytest.raises(Unencodable, match="a class must be found again by its name"):
        encode(Local)
    with pytest.raises(Unencodable):
        encode((1, [Local]))


# ------------------------------------------------------------------ what changes


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    (tmp_path / "codec_module.py").write_text(
        "import enum, math\n"
        "def f(a):\n    return a + 1\n"
        "class C:\n    def m(self):\n        return 1\n"
        "class E(enum.Enum):\n    A = 1\n    B = 2\n"
        "root = math.sqrt\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("codec_module")
    sys.modules.pop("codec_module", None)


def test_functions_and_code_carry_a_digest(module: types.ModuleType) -> None:
    encoded = [encode(module.f), encode(module.f.__code__), encode(module.C.m.__code__)]
    assert [e[0] for e in encoded] == ["PF", "C", "C"]
    assert _core.decode(encoded[0]) is module.f
    assert _core.decode(encoded[2]) is module.C.m.__code__
    module.f.__code__ = (lambda a: a + 2).__code__
    for e, name in zip(encoded[:2], ("f", "f"), strict=True):
        with pytest.raises(_core.Stale, match=rf"source of codec_module\.{name} has changed"):
            _core.decode(e)
    assert _core.decode(encoded[2]) is module.C.m.__code__


def test_names_that_are_gone_or_rebound_are_stale(module: types.ModuleType) -> None:
    kinds = encode(module.C), encode(module.E.B), encode(module.f)
    module.C, saved = module.E, module.C
    with pytest.raises(_core.Stale, match=r"codec_module\.C was type codec_module\.C, is EnumType"):
        _core.decode(kinds[0])
    module.C = saved
    assert _core.decode(kinds[0]) is saved
    module.E = enum.Enum("E", "A", module="codec_module")
    with pytest.raises(_core.Stale, match="has no member B any more"):
        _core.decode(kinds[1])
    module.f = 3
    with pytest.raises(_core.Stale, match="is no function any more"):
        _core.decode(kinds[2])
    del module.f
    with pytest.raises(_core.Stale, match="codec_module has no f any more"):
        _core.decode(kinds[2])


def test_a_replaced_builtin_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode(math.sqrt)
    monkeypatch.setattr(math, "sqrt", lambda v: 0.0)
    with pytest.raises(_core.Stale, match=r"math\.sqrt was builtin_function_or_method"):
        _core.decode(encoded)


def test_a_missing_module_is_stale(module: types.ModuleType) -> None:
    encoded = encode(module), encode(module.C)
    del sys.modules["codec_module"]
    path = sys.path.pop(0)
    try:
        importlib.invalidate_caches()
        for e in encoded:
            with pytest.raises(_core.Stale, match="module codec_module cannot be imported"):
                _core.decode(e)
    finally:
        sys.path.insert(0, path)


def test_modules_of_the_compiler_are_never_imported(script: Any) -> None:
    program = """
import sys
from precomp import _core
for name in ("torch._dynamo", "torch._inductor.config", "sympy", "triton"):
    for encoded in (("M", name), ("P", name, "x", "")):
        try:
            _core.decode(encoded)
        except _core.Stale as error:
            assert "belongs to torch's compiler" in str(error)
        else:
            raise AssertionError(name)
    assert name not in sys.modules
"""
    script("-c", program)


def test_twins_stand_for_modules_that_are_not_loaded(script: Any) -> None:
    program = """
import sys, types
from precomp import _core
def graph_break(): pass
def other(): pass
stand = types.ModuleType("torch._dynamo")
stand.other = other
twins = {("torch._dynamo.decorators", "graph_break"): graph_break, ("torch._dynamo", ""): stand}
assert _core.decode(("M", "torch._dynamo"), twins) is stand
named = ("torch._dynamo.decorators", "graph_break")
assert _core.decode(("P", *named, "anything"), twins) is graph_break
assert _core.decode(("PF", *named, "digest"), twins) is graph_break
assert _core.decode(("P", "torch._dynamo", "other", "anything"), twins) is other
steps = (("a", "graph_break"), ("f", "__code__"))
assert _core.decode(("C", "torch._dynamo.decorators", steps, "d"), twins) is graph_break.__code__
steps = (("a", "other"), ("f", "__code__"))
assert _core.decode(("C", "torch._dynamo", steps, "d"), twins) is other.__code__
assert _core.code_at("torch._dynamo", steps, twins) is other.__code__
try:
    _core.decode(("P", *named, ""), {})
except _core.Stale:
    pass
else:
    raise AssertionError
assert "torch._dynamo" not in sys.modules
"""
    script("-c", program)


def test_a_sharded_class_is_found_through_its_original(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch.distributed.fsdp._fully_shard._fully_shard")
    Sharded = type("FSDPLinear", (torch.nn.Linear,), {"__module__": "somewhere"})
    module.cls_to_fsdp_cls = {torch.nn.Linear: Sharded}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    encoded = encode(Sharded)
    assert encoded == ("FS", encode(torch.nn.Linear))
    assert _core.decode(encoded) is Sharded
    module.cls_to_fsdp_cls.clear()
    with pytest.raises(_core.Stale, match=r"not wrapped by fully_shard yet: .*Linear"):
        _core.decode(encoded)
    monkeypatch.delitem(sys.modules, module.__name__)
    with pytest.raises(_core.Stale, match="not wrapped by fully_shard yet"):
        _core.decode(encoded)


def test_an_enum_member_has_to_have_its_value() -> None:
    kind, name, value = encode(Color.RED)[1:]
    assert _core.decode(("en", kind, name, None)) is Color.RED
    for other in (2, True, 1.0):
        with pytest.raises(_core.Stale, match=rf"Color.RED: 1.* had the value {other!r}"):
            _core.decode(("en", kind, name, ("k", other)))
    assert value == ("k", 1)


# ------------------------------------------------------------------ malformed encodings


@pytest.mark.parametrize(
    "encoded",
    [
        3,
        "k",
        (),
        ("k",),
        ("k", []),
        ("k", 1, 2),
        ("zz", 1),
        ("toolong", 1),
        (3, 4),
        ("t", [1]),
        ("t", (3,)),
        ("d", ((("k", 1),),)),
        ("sl", ("k", 1)),
        ("r", 1, 2, "3"),
        ("P", "math", "sqrt"),
        ("P", 1, "sqrt", ""),
        ("C", "math", ["x"], ""),
        ("en", ("k", 1)),
        ("en", ("k", 1), "A"),
        ("np", "f4", "x"),
        ("pt", ("k", 1), ("k", 2), ("k", 3)),
        ("nw", ("k", 1), ("k", 2), ("k", 3)),
        ("dk", "x"),
    ],
    ids=named,
)
def test_malformed_encodings_are_refused(encoded: Any) -> None:
    with pytest.raises(ValueError, match="not an encoded value"):
        _core.decode(encoded)


def test_random_damage_never_does_worse_than_an_exception() -> None:
    numbers = random.Random(5)
    seeds = [encode(value) for value in [*EQUAL, *SAME]] + [encode_code(through.__code__)]

    def damaged(value: Any) -> Any:
        if type(value) is tuple and value and numbers.random() < 0.8:
            at = numbers.randrange(len(value))
            choice = numbers.random()
            if choice < 0.1:
                return value[:at] + value[at + 1 :]
            return (*value[:at], damaged(value[at]), *value[at + 1 :])
        return numbers.choice([None, 7, "t", "k", (), ("t",), b"x", 2**80, -1, ("k", ())])

    for _ in range(4000):
        encoded = damaged(numbers.choice(seeds))
        try:
            _core.decode(encoded)
        except (ValueError, TypeError, OverflowError, RuntimeError, _core.Stale):
            pass


def test_deep_encodings_do_not_overflow_the_stack() -> None:
    encoded: Any = ("k", 1)
    for _ in range(50_000):
        encoded = ("t", (encoded,))
    with pytest.raises(RecursionError):
        _core.decode(encoded)


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="twins: expected a dict or None"):
        _core.decode(("k", 1), 3)
    with pytest.raises(TypeError):
        _core.decode()
    with pytest.raises(TypeError):
        _core.decode_code(("k",), 3, 1)


def test_decoding_leaves_nothing_behind(script: Any) -> None:
    assert script("codec_memory.py").endswith("OK\n")


# ------------------------------------------------------------------ whole code objects

SOURCE = """

def outer(a, *, b=torch.float32):
    def inner(c):
        return (c, a, torch.float32, [x for x in c])
    return inner
"""


def outer_code(lines: int = 0) -> types.CodeType:
    scope: dict[str, Any] = {"torch": torch}
    exec(compile("\n" * lines + SOURCE, "/somewhere/file.py", "exec"), scope)
    return scope["outer"].__code__


def test_code_comes_back_with_another_place() -> None:
    code = outer_code(10)
    back = _core.decode_code(encode_code(code), "new.py", 100)
    assert _core.code_digest(back) == _core.code_digest(code)
    assert (back.co_filename, back.co_firstlineno) == ("new.py", 100)
    nested = next(c for c in back.co_consts if isinstance(c, types.CodeType))
    assert (nested.co_filename, nested.co_firstlineno) == ("new.py", 101)
    assert [line for _, _, line in back.co_lines()] == [
        None if line is None else line - code.co_firstlineno + 100 for _, _, line in code.co_lines()
    ]
    assert types.FunctionType(back, {"torch": torch})(1, b=2)((5,)) == (
        (5,),
        1,
        torch.float32,
        [5],
    )


def test_the_place_of_code_is_not_in_its_encoding() -> None:
    assert encode_code(outer_code()) == encode_code(outer_code(25))
    assert data.dumps(encode_code(outer_code())) == data.dumps(encode_code(outer_code(25)))


def test_constants_that_marshal_refuses_are_carried() -> None:
    code = outer_code()
    constants = (*code.co_consts, torch.float32, torch.Size([1]), Color.RED, int)
    code = code.replace(co_consts=constants)
    back = _core.decode_code(data.loads(data.dumps(encode_code(code))), "f.py", 1)
    assert back.co_consts[-4:] == constants[-4:]


def test_lines_can_be_relative_to_another_base() -> None:
    code = outer_code(10)
    encoded = encode_code(code, base=code.co_firstlineno - 4)
    assert _core.decode_code(encoded, "f.py", 50).co_firstlineno == 54
    encoded = encode_code(code, base=code.co_firstlineno + 4)
    assert _core.decode_code(encoded, "f.py", 50).co_firstlineno == 46
    assert _core.decode_code(encoded, "f.py", 2).co_firstlineno == 1


@pytest.mark.skipif(OLD, reason="DTensors are refused there")
def test_values_of_distributed_tensors_come_back_equal() -> None:
    from torch.distributed import _mesh_layout as mesh
    from torch.distributed.tensor import placement_types as placements

    axis = mesh._FlatLayout((2, 4), (4, 1))
    values = [
        placements.Shard(1),
        placements.Replicate(),
        placements.Partial("avg"),
        placements._StridedShard(0, split_factor=3),
        axis,
        mesh._MeshLayout((axis,)),
    ]
    for value in values:
        back = through(value)
        assert back == value and type(back) is type(value)


class Weighted(tuple):
    _fields = ("a",)


def test_a_tuple_with_attributes_of_its_own_is_refused() -> None:
    with pytest.raises(Unencodable, match="Weighted cannot be written as data"):
        encode(Weighted((1,)))
