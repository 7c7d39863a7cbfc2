"""The frame server against torch's own evaluator, with torch's compiler never imported."""

import gc
import subprocess
import sys
import textwrap

import pytest

from precomp import _core

torch = pytest.importorskip("torch")


def run(body: str) -> str:
    """Run *body* in a fresh interpreter after a prelude; returns its output."""
    prelude = """
    import gc, sys, types, weakref
    import torch
    from precomp import _core, torch_api
    api = torch_api.serve()
    SKIP = api.FrameExecStrategy(api.FrameAction.SKIP, api.FrameAction.DEFAULT)
    asked = []
    def skip(code):
        asked.append(code.co_name)
        return _core.FrameReturn(None, SKIP)
    def no_build(*args):
        raise AssertionError("build")
    def no_miss(*args):
        raise AssertionError("miss")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_skipped_frame_runs_as_it_is_and_is_asked_for_once():
    out = run("""
    server = _core.FrameServer(skip, no_build, no_miss)
    def f(x, k=1):
        return x + k
    assert server.run(f, (1,), {"k": 2}) == 3
    assert server.run(f, (1,), None) == 2
    print(asked, "torch._dynamo" in sys.modules)
    """)
    assert out == "['f'] False\n"


def test_the_evaluator_is_restored_after_success_and_after_an_error():
    run("""
    server = _core.FrameServer(skip, no_build, no_miss)
    def ok():
        return 1
    def bad():
        raise KeyError("user")
    mark = object()
    before = api.set_eval_frame(None)
    api.set_eval_frame(before)
    server.run(ok, (), None)
    assert api.set_eval_frame(before) is before
    try:
        server.run(bad, (), None)
    except KeyError as error:
        assert error.args == ("user",)
    else:
        raise AssertionError
    assert api.set_eval_frame(before) is before
    """)


def test_what_miss_raises_reaches_the_caller():
    run("""
    class Violation(BaseException):
        pass
    def miss(frame, cache_entry, frame_state, numbers):
        raise Violation(frame.f_code.co_name, numbers)
    server = _core.FrameServer(lambda code: (), no_build, miss)
    def f():
        return 1
    try:
        server.run(f, (), None)
    except Violation as error:
        assert error.args == ("f", ())
    else:
        raise AssertionError
    assert f() == 1
    """)


def test_entries_are_tried_in_order_and_stale_ones_passed_over():
    run("""
    tried = []
    def build(number, code, f_globals):
        tried.append(number)
        if number == 1:
            return None
        return (lambda f_locals: number == 3), _core.FrameReturn(None, SKIP)
    asked = []
    server = _core.FrameServer(lambda code: asked.append(1) or (1, 2, 3), build, no_miss)
    frame = types.SimpleNamespace(f_code=build.__code__, f_globals=globals(), f_locals={})
    assert type(server.accept(frame)) is _core.FrameReturn
    assert tried == [1, 2, 3] and server.served == {3: 1}
    server.accept(frame)
    assert tried == [1, 2, 3, 1], tried  # built trees are kept, a stale entry is asked again
    server.forget()
    server.accept(frame)
    assert tried == [1, 2, 3, 1, 1, 2, 3]
    assert asked == [1, 1]
    """)


def test_two_servers_do_not_share_entries_of_one_code():
    run("""
    a = _core.FrameServer(skip, no_build, no_miss)
    def f():
        return 1
    assert a is not _core.FrameServer(skip, no_build, no_miss)
    ref = weakref.ref(a)
    del a
    gc.collect()
    assert ref() is None
    """)


def test_wrong_arguments_are_named():
    server = _core.FrameServer(lambda code: (), None, None)
    with pytest.raises(TypeError, match="expected \\(frame, cache_entry, frame_state\\)"):
        server(1)
    with pytest.raises(TypeError, match="expected \\(function, tuple, dict or None\\)"):
        server.run(len, [], None)
    bad = _core.FrameServer(lambda code: (1,), lambda *args: 5, None)

    class Frame:
        f_code = (lambda: None).__code__
        f_globals: dict = {}
        f_locals: dict = {}

    with pytest.raises(TypeError, match="build must return"):
        bad.accept(Frame)


def test_lookups_leak_nothing():
    class Frame:
        f_code = (lambda: None).__code__
        f_globals: dict = {}
        f_locals: dict = {}

    answer = _core.FrameReturn(None, None)

    def cycle():
        server = _core.FrameServer(
            lambda code: (1, 2), lambda n, c, g: (lambda f_locals: n == 2, answer), None
        )
        assert server.accept(Frame) is answer
        assert server.accept(Frame) is answer

    for _ in range(3000):  # the allocator settles
        cycle()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        cycle()
    gc.collect()
    assert sys.getallocatedblocks() - before < 300
