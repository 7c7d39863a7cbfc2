from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from processes import Place

from precomp import _core
from precomp.freeze import codepath

SOURCE = """
import collections
import functools

def plain():
    return lambda: [x for x in ()]

def decorator(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

def wrapping(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

@decorator
def hidden():
    return 1

@wrapping
def wrapped():
    return 2

@functools.lru_cache
def cached():
    return 3

part = functools.partial(lambda a: a, 1)

class Thing:
    def method(self):
        def inner():
            return 4
        return inner
    @staticmethod
    def static():
        return 5
    @classmethod
    def klass(cls):
        return 6
    @property
    def prop(self):
        return 7
    @prop.setter
    def prop(self, value):
        pass
    @functools.cached_property
    def lazy(self):
        return 8
    partial = functools.partialmethod(lambda self, a: a, 1)
    @wrapping
    def decorated(self):
        return 9
    class Nested:
        def deep(self):
            return 10

class Pair(collections.namedtuple("Pair", "a b")):
    pass

bound = Thing.klass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "steps_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("steps_module")
    del sys.modules["steps_module"]


def codes(module: ModuleType) -> dict[str, object]:
    thing = vars(module.Thing)
    return {
        "function": module.plain.__code__,
        "lambda in a function": module.plain().__code__,
        "closure": module.hidden.__closure__[0].cell_contents.__code__,
        "wrapper": module.hidden.__code__,
        "wrapped": module.wrapped.__wrapped__.__code__,
        "lru_cache": module.cached.__wrapped__.__code__,
        "partial": module.part.func.__code__,
        "method": thing["method"].__code__,
        "inner": thing["method"](None).__code__,
        "static": thing["static"].__func__.__code__,
        "class method": thing["klass"].__func__.__code__,
        "getter": thing["prop"].fget.__code__,
        "setter": thing["prop"].fset.__code__,
        "cached property": thing["lazy"].func.__code__,
        "partial method": thing["partial"].func.__code__,
        "decorated method": thing["decorated"].__wrapped__.__code__,
        "nested class": module.Thing.Nested.deep.__code__,
    }


def test_leads_to_the_very_object(module: ModuleType) -> None:
    for name, code in codes(module).items():
        found = codepath.find(code)
        assert found is not None, name
        assert found[0] == "steps_module" and _core.code_at(*found) is code, name


def test_a_base_that_its_class_hides_is_found(module: ModuleType) -> None:
    code = module.Pair.__new__.__code__
    assert codepath.find(code) is None  # its file name tells nothing
    name, steps = codepath.find(code, None, module.__name__)
    assert _core.code_at(name, steps) is code
    assert _core.object_at(name, steps[:-1]) is module.Pair.__new__


def test_steps_are_short_and_plain(module: ModuleType) -> None:
    assert codepath.find(module.plain.__code__) == (
        "steps_module",
        (("a", "plain"), ("f", "__code__")),
    )
    assert codepath.find(vars(module.Thing)["prop"].fget.__code__) == (
        "steps_module",
        (("a", "Thing"), ("a", "prop"), ("f", "fget"), ("f", "__code__")),
    )


def test_steps_lead_through_the_wrappers_that_dynamo_puts_around_a_class(tmp_path) -> None:
    done = Place(tmp_path, compiler=False).script("""
        import torch
        from precomp import _core
        from precomp.freeze import codepath
        Module = torch.nn.Module
        names = ("__init__", "__setstate__")
        plain = {name: vars(Module)[name].__code__ for name in names}
        before = {name: codepath.find(plain[name]) for name in names}
        from torch._dynamo.mutation_guard import install_generation_tagging_init
        install_generation_tagging_init()
        for name in names:
            assert vars(Module)[name].__code__ is not plain[name]
            assert codepath.find(plain[name]) == before[name] is not None
            assert _core.code_at(*before[name]) is plain[name]
        done()
    """)
    assert done.returncode == 0, done


def test_code_that_no_module_holds_is_not_found(module: ModuleType) -> None:
    code = compile("lambda: 1", module.__file__, "eval").co_consts[0]
    assert codepath.find(code) is None
    assert codepath.find(compile("1", "<string>", "eval")) is None


def test_hint_names_the_module_of_generated_code(module: ModuleType) -> None:
    scope: dict = {}
    exec(compile("def made(): pass", "<string>", "exec"), scope)
    module.made = scope["made"]
    assert codepath.find(scope["made"].__code__) is None
    assert codepath.find(scope["made"].__code__, "steps_module") == (
        "steps_module",
        (("a", "made"), ("f", "__code__")),
    )


def test_what_is_added_later_is_found(module: ModuleType) -> None:
    code = compile("def late(): return 1", module.__file__, "exec").co_consts[0]
    assert codepath.find(code) is None
    module.Thing.late = type(module.plain)(code, vars(module))
    assert codepath.find(code) is not None


def test_changed_modules_are_stale(module: ModuleType) -> None:
    name, steps = codepath.find(vars(module.Thing)["method"].__code__)
    del module.Thing.method
    with pytest.raises(_core.Stale, match="steps_module: nothing at"):
        _core.code_at(name, steps)
    module.Thing.method = 3
    with pytest.raises(_core.Stale):
        _core.code_at(name, steps)


def test_frozen_modules_are_found() -> None:
    import os

    assert codepath.find(os.path.join.__code__)[1] == (("a", "join"), ("f", "__code__"))
    import _collections_abc

    code = _collections_abc.Mapping.get.__code__
    assert _core.code_at(*codepath.find(code)) is code


@pytest.mark.parametrize(
    "steps",
    [(3,), (("a",),), (("z", "x"),), (("a", 1),), (("k", "x"),), (("a", "plain", 1),)],
)
def test_malformed_steps_are_refused(module: ModuleType, steps: tuple) -> None:
    with pytest.raises(ValueError, match="not an encoded value"):
        _core.code_at("steps_module", steps)


def test_no_descriptor_is_run(module: ModuleType) -> None:
    class Trap:
        def __get__(self, instance, owner):
            raise AssertionError("descriptor was run")

    module.Thing.trap = Trap()
    with pytest.raises(_core.Stale):
        _core.code_at("steps_module", (("a", "Thing"), ("a", "trap"), ("f", "__code__")))


def test_negative_and_large_indices_are_stale(module: ModuleType) -> None:
    for index in (-1, 99, 2**70):
        with pytest.raises((_core.Stale, OverflowError)):
            _core.code_at("steps_module", (("a", "hidden"), ("c", index)))
