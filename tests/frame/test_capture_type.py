"""The C base of a capture: its life, and the exact undo of what it replaced."""

import gc
import os
import subprocess
import sys
import types

import pytest

from precomp import _core


class Owner:
    @staticmethod
    def static():
        return "static"

    def method(self):
        return "method"


class Child(Owner):
    pass


def test_patches_are_undone_in_reverse_order_and_exactly():
    module = types.ModuleType("m")
    module.value = 1
    raw = vars(Owner)["static"]
    with _core.Capture() as capture:
        capture.patch(module, "value", 2)
        capture.patch(module, "value", 3)
        capture.patch(module, "fresh", 4)
        capture.patch(Owner, "static", staticmethod(lambda: "patched"))
        assert (module.value, module.fresh, Owner.static()) == (3, 4, "patched")
    assert module.value == 1
    assert not hasattr(module, "fresh")
    assert vars(Owner)["static"] is raw


def test_an_inherited_attribute_is_removed_again_not_copied():
    with _core.Capture() as capture:
        capture.patch(Child, "method", lambda self: "patched")
        assert Child().method() == "patched"
    assert "method" not in vars(Child)
    assert Child().method() == "method"


def test_patches_are_undone_after_an_exception():
    module = types.ModuleType("m")
    module.value = 1
    capture = _core.Capture()
    with pytest.raises(ZeroDivisionError), capture:
        capture.patch(module, "value", 2)
        raise ZeroDivisionError
    assert module.value == 1
    assert capture.state == "failed"


def test_a_failing_begin_leaves_nothing_behind():
    module = types.ModuleType("m")
    module.value = 1

    class Failing(_core.Capture):
        def _begin(self):
            self.patch(module, "value", 2)
            raise RuntimeError("begin")

    capture = Failing()
    with pytest.raises(RuntimeError, match="begin"):
        capture.__enter__()
    assert module.value == 1
    assert capture.state == "failed"
    with _core.Capture() as other:
        assert other.state == "active"


def test_one_broken_undo_does_not_keep_the_others():
    module = types.ModuleType("m")
    module.value = 1
    once = types.SimpleNamespace(value=1)

    class Guarded(type):
        locked = False

        def __setattr__(cls, name, value):
            if Guarded.locked:
                raise AttributeError("locked")
            super().__setattr__(name, value)

    class Locked(metaclass=Guarded):
        value = 1

    capture = _core.Capture()
    capture.__enter__()
    capture.patch(module, "value", 2)
    capture.patch(Locked, "value", 2)
    capture.patch(once, "value", 2)
    Guarded.locked = True
    with pytest.raises(AttributeError, match="locked"):
        capture.__exit__(None, None, None)
    assert module.value == 1
    assert once.value == 1
    assert capture.state == "failed"


def test_states_and_misuse_are_named():
    capture = _core.Capture()
    assert capture.state == "new"
    with pytest.raises(RuntimeError, match="is new, not active"):
        capture.patch(types.ModuleType("m"), "x", 1)
    with capture:
        assert capture.state == "active"
        with pytest.raises(RuntimeError, match="another capture is active"):
            _core.Capture().__enter__()
    assert capture.state == "done"
    with pytest.raises(RuntimeError, match="is done and cannot be entered again"):
        capture.__enter__()


def test_an_abandoned_active_capture_does_not_block_the_next():
    capture = _core.Capture()
    capture.__enter__()
    del capture
    gc.collect()
    with _core.Capture() as other:
        assert other.state == "active"


def test_an_abandoned_active_capture_leaves_no_hooks():
    module = types.ModuleType("m")
    module.value = 1
    left = []

    class Noting(_core.Capture):
        def _abandon(self):
            left.append(self.state)

    for cycle in (False, True):
        capture = Noting()
        capture.__enter__()
        capture.patch(module, "value", 2)
        if cycle:
            capture.cycle = capture
        del capture
        gc.collect()
        assert module.value == 1
    assert left == ["failed", "failed"]


def test_an_abandoned_capture_may_fail_to_abandon(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: seen.append(str(info.exc_value)))

    class Failing(_core.Capture):
        def _abandon(self):
            raise RuntimeError("abandon")

    Failing().__enter__()
    assert seen == ["abandon"]
    with _core.Capture() as other:
        assert other.state == "active"


# The collector may clear a class before the objects of it: at the exit of the interpreter, or when
# the class goes as well.
GONE_WITH_ITS_CLASS = """
import gc
from precomp import _core
made = 0
for base in [value for value in vars(_core).values() if isinstance(value, type)]:
    try:
        cls = type("Sub", (base,), {})
        for enter in (False, True):
            value = cls()
            value.me = value
            if enter and base is _core.Capture:
                value.__enter__()
            made += 1
            del value
    except TypeError:  # no base for others, or not made without arguments
        continue
    del cls, base
    gc.collect()
print(made)
"""
LEFT_AT_EXIT = """
from precomp import _capture, strict
from precomp._core import Capture
made = [_capture.Capture(), strict.strict_no_compile(), Capture()]
for value in made[:2]:
    value.me = value
made[2].__enter__()
print(len(made))
"""


@pytest.mark.parametrize(
    ("program", "made"),
    [(GONE_WITH_ITS_CLASS, 6), (LEFT_AT_EXIT, 3)],
    ids=["collected", "at exit"],
)
def test_objects_that_go_together_with_their_class(program, made):
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        env={**os.environ, "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{made}\n", "")


def test_captures_leak_nothing():
    class Named(_core.Capture):
        pass

    def cycle():
        module = types.ModuleType("m")
        with Named() as capture:
            capture.patch(module, "value", object())
        capture.cycle = capture

    for _ in range(3000):  # the allocator settles
        cycle()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        cycle()
    gc.collect()
    assert sys.getallocatedblocks() - before < 300
