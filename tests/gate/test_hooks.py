"""Doors put in front of functions of every shape, without torch."""

import functools
import inspect
import sys
import textwrap
import types

import pytest

from precomp import CompileViolation, strict_no_compile
from precomp.doors import Door, Trip, hooks

SOURCE = """
import contextlib
import functools

def plain(a, b=2, *rest, c, d=4, **more):
    "doc"
    return a, b, rest, c, d, more

def positional(a, b=3, /, c=5):
    return a, b, c

def none():
    return "none"

def make_closure(base):
    def add(n, *, scale=1):
        return (base + n) * scale
    return add

closure = make_closure(10)

def decorate(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return ("wrapped", function(*args, **kwargs))
    return wrapper

@decorate
@decorate
def decorated(a, b=1):
    return a + b

@contextlib.contextmanager
def context(value):
    yield value * 2

@functools.cache
def cached(n):
    return [n]

class Base:
    def method(self, n):
        return n + 1

    @classmethod
    def of_class(cls, n):
        return cls.__name__, n

    @staticmethod
    def static(n, m=2):
        return n * m

class Child(Base):
    def method(self, n):
        return super().method(n) * 10

    def inherits(self):
        return "here"
"""

CASES = {
    "plain": [((1,), {"c": 3}), ((1, 2, 3, 4), {"c": 5, "e": 6})],
    "positional": [((1,), {}), ((1, 2), {"c": 3})],
    "none": [((), {})],
    "closure": [((1,), {}), ((1,), {"scale": 3})],
    "decorated": [((1,), {}), ((1,), {"b": 5})],
    "cached": [((3,), {})],
}


@pytest.fixture
def module():
    module = types.ModuleType("hooked_module")
    exec(compile(textwrap.dedent(SOURCE), "hooked.py", "exec"), vars(module))
    return module


def describe(args):
    return Trip("thing", ", ".join(f"{key}={value}" for key, value in args.items()), "stop")


def door(path, **options):
    return Door(path, "load", f"hooked_module:{path}", options.pop("describe", describe), **options)


@pytest.mark.parametrize("path", CASES)
def test_function_works_as_before_and_is_stopped(module, path):
    function = getattr(module, path)
    alias = functools.partial(function)
    expected = [function(*args, **kwargs) for args, kwargs in CASES[path]]
    signature = inspect.signature(function)
    if hasattr(function, "cache_clear"):
        function.cache_clear()
    hooks.put(door(path), module)
    assert getattr(module, path) is function
    assert inspect.signature(function) == signature
    for (args, kwargs), value in zip(CASES[path], expected, strict=True):
        with pytest.raises(CompileViolation) as caught, strict_no_compile():
            alias(*args, **kwargs)
        assert caught.value.what == "thing" and "no details" not in caught.value.why
        assert function(*args, **kwargs) == value
        with strict_no_compile(allow=("load",)):
            assert alias(*args, **kwargs) == value


def test_arguments_are_described_by_name(module):
    hooks.put(door("plain"), module)
    with pytest.raises(CompileViolation) as caught, strict_no_compile():
        module.plain(1, 2, 3, c=4, e=5)
    assert caught.value.why == "a=1, b=2, rest=(3,), c=4, d=4, more={'e': 5}"


def test_methods_of_all_kinds(module):
    base, child = module.Base(), module.Child()
    bound = child.method
    for path in ("Child.method", "Base.of_class", "Base.static"):
        hooks.put(door(path), module)
    assert bound(1) == child.method(1) == 20 and base.method(1) == 2
    assert module.Child.of_class(3) == ("Child", 3)
    assert module.Base.static(3) == child.static(3, 2) == 6
    for call in (
        lambda: bound(1),
        lambda: module.Child.method(child, 1),
        lambda: child.of_class(1),
        lambda: module.Base.static(2),
    ):
        with pytest.raises(CompileViolation), strict_no_compile():
            call()


def test_context_manager_is_stopped_when_it_is_entered(module):
    hooks.put(door("context"), module)
    assert inspect.isgeneratorfunction(inspect.unwrap(module.context))
    with module.context(2) as value:
        assert value == 4
    with pytest.raises(ValueError, match="inside"), module.context(2):
        raise ValueError("inside")
    with pytest.raises(CompileViolation), strict_no_compile(), module.context(2):
        pass


def test_callable_of_c_is_replaced_where_it_is_an_attribute(module):
    module.native = len
    hooks.put(door("native"), module)
    assert module.native([1, 2]) == 2 and module.native.__name__ == "len"
    with pytest.raises(CompileViolation), strict_no_compile():
        module.native([])


def test_cached_result_passes(module):
    hooks.put(door("cached"), module)
    first = module.cached(1)
    with strict_no_compile():
        assert module.cached(1) is first
        assert module.cached.cache_info().hits == 1


def test_description_that_fails_still_stops(module):
    def broken(args):
        raise LookupError("changed")

    hooks.put(door("none", describe=broken), module)
    with pytest.raises(CompileViolation) as caught, strict_no_compile():
        module.none()
    assert caught.value.why == "no details: LookupError: changed"


def test_call_that_compiles_nothing_passes(module):
    hooks.put(door("positional", describe=lambda args: None), module)
    with strict_no_compile() as gate:
        assert module.positional(1) == (1, 3, 5)
    assert gate.violations == ()


def test_another_kind_must_be_named_by_the_door(module):
    def tuning(args):
        return Trip("thing", kind="tune")

    hooks.put(door("none", describe=tuning, also=("tune",)), module)
    with pytest.raises(CompileViolation) as caught, strict_no_compile(allow=("load",)):
        module.none()
    assert caught.value.kind == "tune"


@pytest.mark.parametrize("path", ["absent", "Base.absent", "Absent.method"])
def test_absent_target_is_told(module, path):
    with pytest.raises(AttributeError):
        hooks.put(door(path), module)


def test_value_that_is_not_callable_is_refused(module):
    module.number = 3
    with pytest.raises(AttributeError, match="not callable"):
        hooks.put(door("number"), module)


def test_module_is_hooked_when_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "late_hooked.py").write_text("def work(n):\n    return n + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    late = Door("late", "load", "late_hooked:work", describe)
    with strict_no_compile():
        pass
    hooks._waiting["late_hooked"] = [late]
    with pytest.raises(CompileViolation) as caught, strict_no_compile():
        from late_hooked import work

        work(1)
    assert caught.value.why == "n=1"
    module = sys.modules["late_hooked"]
    assert module.__loader__ is module.__spec__.loader
    assert "exec_module" not in vars(module.__loader__)
    assert inspect.getsource(module).startswith("def work")
    assert module.work(1) == 2
    assert "late_hooked" not in hooks._waiting


def test_import_that_fails_is_hooked_at_the_next_try(tmp_path, monkeypatch):
    file = tmp_path / "broken_hooked.py"
    file.write_text("raise OSError('not yet')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    hooks._waiting["broken_hooked"] = [Door("late", "load", "broken_hooked:work", describe)]
    with strict_no_compile(), pytest.raises(OSError, match="not yet"):
        import broken_hooked  # noqa: F401
    file.write_text("def work(n):\n    return n + 1\n")
    with pytest.raises(CompileViolation), strict_no_compile():
        import broken_hooked as module

        module.work(1)
