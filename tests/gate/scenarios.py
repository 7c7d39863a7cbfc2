"""Scenes of the strict gate with torch, each run in a process of its own by ``triggers.py``."""

import asyncio
import concurrent.futures
import contextlib
import importlib
import pathlib
import pickle
import sys
import tempfile
import threading

import torch

from precomp import CompileViolation, PrecompError, strict_no_compile
from precomp.doors import hooks

SIZE = [4]


def wave(x):
    return x.sin() + 1


torch._dynamo.config.recompile_limit = 1000
compiled = torch.compile(wave, backend="eager", dynamic=False)
compiled(torch.ones(4))


def fresh():
    """Compiles, each time."""
    SIZE[0] += 1
    return compiled(torch.ones(SIZE[0]))


def raises(function, *args):
    try:
        function(*args)
    except CompileViolation:
        return True
    return False


@contextlib.contextmanager
def swallowing(**options):
    """A gate whose violations are expected: its raise at exit is caught."""
    gate = strict_no_compile(**options)
    try:
        with gate:
            yield gate
    except CompileViolation as violation:
        assert violation in gate.violations
    else:
        assert not gate.violations


def nested_gates_forbid_the_union():
    with swallowing() as outer, strict_no_compile(allow=("trace",)) as inner:
        assert raises(fresh)
    assert len(outer.violations) == 1 and not inner.violations
    assert not raises(fresh)


def outer_gate_raises_what_was_caught_between():
    outer = strict_no_compile()
    try:
        with outer:
            try:
                with strict_no_compile() as inner:
                    fresh()
            except CompileViolation as violation:
                first = violation
            compiled(torch.ones(4))
    except CompileViolation as violation:
        assert violation is first
    else:
        raise AssertionError("not raised")
    assert outer.violations == inner.violations == (first,)


def gates_are_left_in_any_order():
    a, b = strict_no_compile(), strict_no_compile(allow=("trace",))
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert b.active and not a.active
    assert not raises(fresh)
    b.__exit__(None, None, None)


def gate_is_entered_again():
    gate = strict_no_compile()
    with gate:
        with gate:
            pass
        assert gate.active
        assert raises(fresh) and len(gate.violations) == 1
        with contextlib.suppress(CompileViolation), gate:
            pass
        try:
            gate.__exit__(None, None, None)
        except CompileViolation:
            pass
        else:
            raise AssertionError("not raised")
        gate.__enter__()
    with gate:  # what happened before does not count now
        pass
    assert len(gate.violations) == 1


def ordinary_exception_becomes_the_context():
    try:
        with strict_no_compile():
            assert raises(fresh)
            raise ValueError("mine")
    except CompileViolation as violation:
        assert isinstance(violation.__context__, ValueError)
    else:
        raise AssertionError("not raised")


def violation_behind_another_exception_is_raised():
    try:
        with strict_no_compile():
            try:
                fresh()
            except CompileViolation as violation:
                raise ValueError("hides it") from violation
    except CompileViolation as violation:
        assert isinstance(violation.__context__, ValueError)
        assert violation.__context__.__cause__ is violation
    else:
        raise AssertionError("not raised")


def other_threads_are_forbidden():
    with swallowing() as gate:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(raises, fresh).result()
    assert len(gate.violations) == 1


def exemption_is_of_one_thread():
    from precomp import _core

    with swallowing():
        with _core.gate_exempt():
            assert not raises(fresh)
            assert not _core.gate_active()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                assert pool.submit(raises, fresh).result()
        assert _core.gate_active() and _core.gate_active("trace")


def tasks_outside_the_block_are_forbidden():
    async def gated(entered, done):
        with swallowing():
            entered.set()
            await done.wait()

    async def outsider(entered, done):
        await entered.wait()
        assert raises(fresh)
        done.set()

    async def main():
        entered, done = asyncio.Event(), asyncio.Event()
        await asyncio.gather(gated(entered, done), outsider(entered, done))

    asyncio.run(main())


def to_thread_propagates():
    async def main():
        with strict_no_compile():
            await asyncio.to_thread(fresh)

    assert raises(asyncio.run, main())


def generator_keeps_the_gate_while_suspended():
    def steps():
        with swallowing():
            yield 1
            yield 2

    iterator = steps()
    next(iterator)
    assert raises(fresh)
    iterator.close()
    assert not raises(fresh)


def decorated_functions_keep_their_kind():
    import inspect

    @strict_no_compile()
    def function(x):
        "doc"
        return x, fresh

    @strict_no_compile()
    def generator(x):
        got = yield x
        try:
            yield got
        except KeyError:
            yield "caught"
        return "end"

    @strict_no_compile()
    async def coroutine(x):
        await asyncio.sleep(0)
        return x

    @strict_no_compile()
    async def agenerator(x):
        got = yield x
        try:
            yield got
        except KeyError:
            yield "caught"

    assert function(1)[0] == 1 and function.__doc__ == "doc"
    assert inspect.isgeneratorfunction(generator)
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isasyncgenfunction(agenerator)
    iterator = generator(1)
    assert next(iterator) == 1 and iterator.send(5) == 5
    assert iterator.throw(KeyError()) == "caught"
    try:
        next(iterator)
    except StopIteration as stop:
        assert stop.value == "end"

    async def main():
        assert await coroutine(3) == 3
        values = agenerator(1)
        assert await values.asend(None) == 1
        assert await values.asend(5) == 5
        assert await values.athrow(KeyError()) == "caught"
        assert [value async for value in values] == []
        early = agenerator(2)
        assert await early.asend(None) == 2
        await early.aclose()

    asyncio.run(main())
    assert not raises(fresh)

    for make in (
        lambda: strict_no_compile()(fresh)(),
        lambda: asyncio.run(strict_no_compile()(async_fresh)()),
        lambda: list(strict_no_compile()(generator_fresh)()),
    ):
        assert raises(make)


async def async_fresh():
    fresh()


def generator_fresh():
    yield fresh()


def classes_and_other_objects_are_not_decorated():
    for value in (dict, 3):
        try:
            strict_no_compile()(value)
        except TypeError:
            continue
        raise AssertionError(value)


def task_group_is_unpacked():
    async def main():
        with strict_no_compile():
            async with asyncio.TaskGroup() as group:
                group.create_task(async_fresh())

    if sys.version_info >= (3, 11):
        assert raises(asyncio.run, main())


def work():
    with strict_no_compile():
        fresh()


def violation_comes_back_from_a_child_process():
    import multiprocessing

    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        error = pool.submit(work).exception()
    assert isinstance(error, CompileViolation)
    assert error.kind == "trace" and "wave" in error.what and error.where and error.hint
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.what, again.why) == (error.kind, error.what, error.why)


def backward_of_a_python_function_keeps_the_type():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            fresh()
            return gradient

    x = torch.ones(3, requires_grad=True)
    with swallowing():
        assert raises(lambda: Twice.apply(x).sum().backward())


def an_aborted_compile_leaves_nothing_behind():
    from torch._C._dynamo.eval_frame import get_eval_frame_callback
    from torch._dynamo import convert_frame

    with swallowing():
        assert raises(fresh)
    assert get_eval_frame_callback() is None
    assert convert_frame.compile_lock.acquire(blocking=False)
    assert torch._guards.TracingContext.try_get() is None
    assert torch._guards.CompileContext.try_get() is None
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert torch.equal(fresh(), wave(torch.ones(SIZE[0])))


def an_aborted_lowering_leaves_nothing_behind():
    from torch._C._dynamo.eval_frame import get_eval_frame_callback
    from torch._dynamo import utils
    from torch._dynamo.callback import callback_handler

    torch._inductor.config.force_disable_caches = True
    function = torch.compile(wave)
    with swallowing(allow=("trace", "load")):
        assert raises(function, torch.ones(8))
    assert get_eval_frame_callback() is None
    assert callback_handler._CompilationCallbackHandler__pending_callbacks_counter == 0
    assert utils.get_metrics_context()._level == 0
    assert not torch.compiler.is_compiling()
    assert type(torch._inductor.virtualized.V.graph).__name__ == "NullHandler"


def what_the_user_asked_to_run_eager_passes():
    @torch.compiler.disable
    def plain(x):
        return x.sin()

    other = torch.compile(lambda x: x.cos(), backend="eager")
    with strict_no_compile():
        plain(torch.ones(3))
        with torch.compiler.set_stance("force_eager"):
            other(torch.ones(3))


def eager_training_passes():
    """The first optimizer, forward-mode autograd and transforms import much of torch's compiler."""
    with strict_no_compile():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.randn(3, 3))
        torch.func.jvp(lambda x: x.sin(), (torch.ones(3),), (torch.ones(3),))


def stance_that_hides_misses_is_refused():
    torch.compiler.set_stance("eager_on_recompile")
    try:
        with strict_no_compile():
            raise AssertionError("entered")
    except PrecompError as error:
        assert "eager_on_recompile" in str(error)
    with strict_no_compile(allow=("fallback",)):
        pass
    torch.compiler.set_stance("default")
    with strict_no_compile():
        pass


def pending_compile_jobs_are_refused():
    from torch._inductor import async_compile

    class Pool:
        pending_futures = {0: concurrent.futures.Future()}

    pool = Pool()
    async_compile._pool_set.add(pool)
    try:
        with strict_no_compile():
            raise AssertionError("entered")
    except PrecompError as error:
        assert "1 jobs" in str(error)
    pool.pending_futures[0].set_result(None)
    with strict_no_compile():
        pass


def run_only_frames_hit_and_miss_as_before_after_the_gate():
    torch._dynamo.config.recompile_limit = 1
    runs = []

    def backend(graph, inputs):
        def run(*args):
            runs.append(1)
            return graph.forward(*args)

        return run

    function = torch.compile(lambda x: x.tan(), backend=backend, dynamic=False)
    function(torch.ones(4))
    function(torch.ones(5))  # the limit: eager from now on
    with strict_no_compile():
        function(torch.ones(4))
    assert len(runs) == 2
    with swallowing():
        assert raises(function, torch.ones(6))
    function(torch.ones(6))
    function(torch.ones(4))
    assert len(runs) == 3


def values_in_a_message_are_not_computed():
    from precomp.doors import brief

    class Loud:
        def __repr__(self):
            raise AssertionError("asked for text")

    assert brief({"a": torch.ones(1000), "b": Loud()}).startswith("{'a': <torch.Tensor>, 'b': <")
    assert brief(torch.float32) == "torch.float32"
    assert brief([None, True, 1.5, "x", int]) == "[None, True, 1.5, 'x', int]"


def a_missing_required_door_keeps_the_gate_shut():
    from precomp.doors import Door, fixed

    with strict_no_compile():
        pass
    for target in ("torch.nn.functional:no_such_name", "torch.no_such_module:name"):
        door = Door("gone", "trace", target, fixed("x"))
        hooks._waiting[door.module] = [door]
        hooks._checked_roots.clear()
        try:
            with strict_no_compile():
                raise AssertionError("entered")
        except PrecompError as error:
            assert target in str(error)
        hooks._missing.clear()
        hooks._waiting.clear()
    door = Door("gone", "trace", "torch.nn.functional:no_such_name", fixed("x"), required=False)
    hooks._waiting[door.module] = [door]
    with strict_no_compile():
        pass


def a_required_door_that_is_missing_in_a_late_module_is_told():
    from precomp.doors import Door, fixed

    with strict_no_compile():
        pass
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "late_module.py").write_text("")
        sys.path.insert(0, folder)
        hooks._waiting["late_module"] = [
            Door("gone", "trace", "late_module:no_such_name", fixed("x"))
        ]
        _late_module()


def _late_module():
    gate = strict_no_compile()
    try:
        with gate:
            try:
                importlib.import_module("late_module")
            except PrecompError:
                pass
            else:
                raise AssertionError("imported")
    except PrecompError as error:
        assert "no_such_name" in str(error)
    else:
        raise AssertionError("left")
    assert not gate.active


def doors_wait_for_the_real_module_behind_a_stand_in():
    import types

    from precomp.doors import Door, Trip

    source = {"__name__": "precomp.serve.standin_test"}
    exec("def __getattr__(name):\n    raise RuntimeError('asked for ' + name)", source)
    light = types.ModuleType("light_module")
    light.__getattr__ = source["__getattr__"]
    sys.modules["light_module"] = light
    with strict_no_compile():
        pass
    door = Door("light", "load", "light_module:work", lambda args: Trip(f"work {args['n']}"))
    hooks._waiting["light_module"] = [door]
    with strict_no_compile():
        pass
    assert "light_module" in hooks._waiting
    del light.__getattr__
    exec("def work(n, /, *, scale=2):\n    return n * scale", vars(light))
    with swallowing() as gate:
        assert raises(light.work, 4)
    assert gate.violations[0].what == "work 4"
    assert light.work(4) == 8 and light.work(4, scale=3) == 12


def hooked_functions_keep_signature_and_source():
    import inspect

    from torch._inductor import cpp_builder
    from torch.export import _trace

    before = inspect.signature(cpp_builder._run_compile_cmd)
    with strict_no_compile():
        pass
    assert inspect.signature(cpp_builder._run_compile_cmd) == before
    assert "subprocess.run" in inspect.getsource(cpp_builder._run_compile_cmd)
    assert _trace._export.__name__ == "_export"


def warm_call_makes_no_audit_event():
    events = []
    on = [False]

    def audit(event, args):
        if on[0]:
            events.append(event)

    function = torch.compile(wave, backend="aot_eager")
    x = torch.ones(4, requires_grad=True)
    for _ in range(3):
        function(x).sum().backward()
    sys.addaudithook(audit)
    with strict_no_compile():
        on[0] = True
        function(x).sum().backward()
        on[0] = False
    assert events == []


def finalizer_in_another_gate_does_not_hang():
    """A trip inside a trip: the constructor of the violation runs Python code."""

    class Loud:
        def __del__(self):
            raises(fresh)

    with swallowing():
        Loud()
        assert raises(fresh)


def threads_enter_and_leave_together():
    stop = threading.Event()
    failures = []

    def loop():
        try:
            while not stop.is_set():
                with strict_no_compile():
                    compiled(torch.ones(4))
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        with strict_no_compile():
            compiled(torch.ones(4))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert not raises(fresh)


def hits_in_caches_pass_when_loads_are_allowed():
    def other(x):
        return x.sin() + 1

    x = torch.ones(64)
    first = torch.compile(other)(x)
    torch._dynamo.reset()
    again = torch.compile(other)
    with strict_no_compile(allow=("trace", "load")):
        assert torch.equal(again(x), first)
    torch._dynamo.reset()
    with swallowing(allow=("trace",)) as gate:
        assert raises(torch.compile(other), x)
    assert gate.violations[0].kind == "load"


def kernels_in_tritons_cache_pass_when_loads_are_allowed():
    import __main__ as programs

    function = programs.kernel()
    programs.fake_driver()
    pointer = programs.Pointer()
    function[(1,)](pointer, 10, B=16)
    function.device_caches.clear()
    with strict_no_compile(allow=("load",)):
        function[(1,)](pointer, 10, B=16)
    function.device_caches.clear()
    with swallowing() as gate:
        assert raises(lambda: function[(1,)](pointer, 10, B=16))
    assert gate.violations[0].kind == "load"


def triton_compiles_in_the_background_are_seen():
    from triton.runtime._async_compile import AsyncCompileMode

    import __main__ as programs

    function = programs.kernel()
    programs.fake_driver()
    pointer = programs.Pointer()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with swallowing(allow=("load",)) as gate:
            try:
                with AsyncCompileMode(pool, ignore_errors=True):
                    function.warmup(pointer, 10, B=16, grid=(1,))
            except CompileViolation:
                pass
        assert gate.violations[0].kind == "build"
        with AsyncCompileMode(pool):
            function.warmup(pointer, 10, B=16, grid=(1,))
        function.device_caches.clear()
        with strict_no_compile(allow=("load",)), AsyncCompileMode(pool):
            function.warmup(pointer, 10, B=16, grid=(1,))


def other_ways_into_dynamo_are_seen():
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.ones(4, 2)
    query = torch.randn(1, 1, 16, 8)
    optimized = torch._dynamo.optimize("eager")(lambda x: x.sin() + 2)
    mapped = torch.compile(torch.vmap(lambda x: x.sin()), backend="eager")

    class Model(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    model = Model()
    model.compile(backend="eager")
    for call in (
        lambda: optimized(x),
        lambda: mapped(x),
        lambda: model(x),
        lambda: flex_attention(query, query, query, score_mod=lambda s, b, h, i, j: s + 1),
        lambda: torch.export.export(Model(), (x,), strict=True),
    ):
        with swallowing() as gate:
            assert raises(call)
        assert gate.violations[0].kind == "trace"


def direct_use_of_inductor_is_seen():
    import torch._inductor.compile_fx
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.ones(8)
    graph = make_fx(lambda x: (x.sin(),))(x)
    for call in (
        lambda: torch._inductor.compile_fx.compile_fx(graph, [x]),
        lambda: torch._inductor.standalone_compile(graph, [x]),
    ):
        with swallowing() as gate:
            assert raises(call)
        assert gate.violations[0].kind in ("trace", "load")
        assert gate.violations[0].where.startswith(__file__)
