from __future__ import annotations

import gc
import types
import weakref

import pytest

from precomp import _core


def double(value, *, plus=0):
    """Doubles."""
    return value * 2 + plus


def collect(into):
    return lambda args, kwargs, result: into.append((args, kwargs, result))


def test_sink_sees_arguments_and_result() -> None:
    seen: list = []
    tap = _core.Tap(double, collect(seen))
    assert tap(3) == 6 and tap(3, plus=1) == 7 and tap(value=4) == 8
    assert seen == [((3,), None, 6), ((3,), {"plus": 1}, 7), ((), {"value": 4}, 8)]


def test_in_a_class_it_binds() -> None:
    seen: list = []

    class Thing:
        def method(self, value):
            return (self, value)

    Thing.method = _core.Tap(Thing.method, collect(seen))
    thing = Thing()
    assert thing.method(1) == (thing, 1)
    bound = thing.method
    assert isinstance(bound, types.MethodType) and bound(value=2) == (thing, 2)
    assert Thing.method(thing, 3) == (thing, 3)
    assert [args for args, _, _ in seen] == [(thing, 1), (thing,), (thing, 3)]


def test_in_a_subclass_and_through_super() -> None:
    seen: list = []

    class Base:
        def method(self):
            return "base"

    class Derived(Base):
        def method(self):
            return "derived " + super().method()

    Base.method = _core.Tap(Base.method, collect(seen))
    assert Derived().method() == "derived base" and len(seen) == 1


def test_wraps_a_method_of_a_pybind_class() -> None:
    import torch

    guards = torch._C._dynamo.guards
    seen: list = []
    original = vars(guards.GuardManager)["fail_count"]
    guards.GuardManager.fail_count = _core.Tap(original, collect(seen))
    try:
        root = guards.RootGuardManager()
        assert root.fail_count() == 0
    finally:
        guards.GuardManager.fail_count = original
    assert seen == [((root,), None, 0)]
    assert root.fail_count() == 0 and len(seen) == 1


def test_sink_is_not_called_when_the_original_raises() -> None:
    seen: list = []
    with pytest.raises(TypeError):
        _core.Tap(double, collect(seen))()
    assert seen == []


def test_error_of_the_sink_propagates() -> None:
    def sink(args, kwargs, result):
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        _core.Tap(double, sink)(1)


def test_answers_for_its_original() -> None:
    tap = _core.Tap(double, collect([]))
    assert tap.__wrapped__ is double and tap.__name__ == "double" and tap.__doc__
    assert tap.__code__ is double.__code__
    with pytest.raises(AttributeError):
        _ = tap.nothing


@pytest.mark.parametrize("arguments", [(1, double), (double, 1), (double,)])
def test_needs_two_callables(arguments: tuple) -> None:
    with pytest.raises(TypeError):
        _core.Tap(*arguments)


def test_a_cycle_through_the_sink_is_collected() -> None:
    class Sink:
        def __call__(self, args, kwargs, result):
            pass

    sink = Sink()
    sink.tap = _core.Tap(double, sink)
    alive = weakref.ref(sink)
    del sink
    gc.collect()
    assert alive() is None


def test_calls_leave_nothing_behind(leaves) -> None:
    tap = _core.Tap(double, lambda args, kwargs, result: None)
    failing = _core.Tap(double, lambda args, kwargs, result: 1 / 0)

    def work() -> None:
        for _ in range(200):
            tap(1, plus=2)
            try:
                failing(1)
            except ZeroDivisionError:
                pass
            try:
                tap()
            except TypeError:
                pass

    assert leaves(work) < 20
