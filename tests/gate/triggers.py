"""One program per door of the strict gate, and a server that runs each in a process of its own.

``python triggers.py`` reads requests ``{"name", "mode", "tmp"}`` from standard input, one JSON
object a line, and answers each with one line. Modes: ``bare`` (no gate: it must compile), ``gated``
(it must raise; then the same call without the gate must work) and ``warm`` (called twice, then
three times under the gate: it must not raise). Torch is imported once, each request runs in a fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
    "PYTHONWARNINGS": "default",
}
"""Of a process that runs programs."""

KINDS = ("trace", "lower", "build", "load", "tune", "record", "fallback", "spawn", "driver_jit")


@dataclass
class Trigger:
    setup: Any
    kind: str
    what: str
    why: str = ""
    door: str = ""
    allow: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("bare", "gated", "warm")
    warm_raises: bool = False
    """It compiles at every call, so that it never gets warm."""
    swallowed: bool = False
    """The cold call does not raise: the gate does, at its exit."""
    torch: bool = True
    """Torch is imported before the gate is entered."""
    gpu: bool = False
    threaded: bool = False
    """It compiles in a thread that runs none of this file."""
    shared: bool = False
    """May find its kernels built by an earlier program."""


TRIGGERS: dict[str, Trigger] = {}
TMP = Path(".")
COUNTS: dict[str, Any] = {}
SPAWNED: list[str] = []


def trigger(kind, what, why="", **options):
    def register(function):
        TRIGGERS[function.__name__] = Trigger(function, kind, what, why, **options)
        return function

    return register


def only(*kinds):
    """``allow`` that leaves *kinds* forbidden."""
    return tuple(kind for kind in KINDS if kind not in kinds)


def count(name):
    COUNTS[name] = COUNTS.get(name, 0) + 1


FRAME = "torch._dynamo.convert_frame:_compile"

# --- Dynamo --------------------------------------------------------------------------------------


def scaled(x, n=1):
    return x.sin() * n


@trigger("trace", "scaled", "not compiled before", door=FRAME)
def first_compile():
    import torch

    function = torch.compile(scaled, backend="eager")
    x = torch.ones(4)
    return lambda: (function(x), scaled(x))


@trigger("trace", "scaled", "tensor 'x' size mismatch at index 0. expected 4, found 5", door=FRAME)
def recompile_for_shape():
    import torch

    function = torch.compile(scaled, backend="eager", dynamic=False)
    function(torch.ones(4))
    y = torch.ones(5)
    return lambda: (function(y), scaled(y))


@trigger("trace", "scaled", "n == 1 (expected 1, found 2)", door=FRAME)
def recompile_for_integer():
    import torch

    function = torch.compile(scaled, backend="eager", dynamic=False)
    x = torch.ones(4)
    function(x, 1)
    return lambda: (function(x, 2), scaled(x, 2))


def measured(x, values):
    return x * len(values)


@trigger("trace", "measured", "values: expected type dict, found type list", door=FRAME)
def recompile_for_type():
    import torch

    function = torch.compile(measured, backend="eager", dynamic=False)
    x = torch.ones(4)
    function(x, {"a": 1})
    return lambda: (function(x, [1]), measured(x, [1]))


@trigger("trace", "scaled", "grad_mode (expected True, found False)", door=FRAME)
def recompile_for_grad_mode():
    import torch

    function = torch.compile(scaled, backend="eager", dynamic=False)
    x = torch.ones(4)
    function(x)

    def cold():
        with torch.no_grad():
            return function(x), scaled(x)

    return cold


@trigger("trace", "scaled", "expected requires_grad=0, found requires_grad=1", door=FRAME)
def recompile_for_requires_grad():
    import torch

    function = torch.compile(scaled, backend="eager", dynamic=False)
    function(torch.ones(4))
    x = torch.ones(4, requires_grad=True)
    return lambda: (function(x), scaled(x))


@trigger(
    "trace", "scaled", "recompile_limit reached: without the gate", door=FRAME, warm_raises=True
)
def recompile_limit():
    import torch

    torch._dynamo.config.recompile_limit = 2
    function = torch.compile(scaled, backend="eager", dynamic=False)
    function(torch.ones(4))
    function(torch.ones(5))
    y = torch.ones(6)
    return lambda: (function(y), scaled(y))


@trigger(
    "trace",
    "scaled",
    "recompile_limit reached",
    door=FRAME,
    warm_raises=True,
    modes=("gated", "warm"),
)
def run_only_frame():
    """The limit was hit before the gate: torch would not call Python for this frame again."""
    import torch

    torch._dynamo.config.recompile_limit = 2
    function = torch.compile(scaled, backend="eager", dynamic=False)
    for size in (4, 5, 6):
        function(torch.ones(size))
    y = torch.ones(7)
    return lambda: (function(y), scaled(y))


def branches(x):
    x = x + 1
    if x.sum() > 0:
        return x.sin()
    return x.cos()


@trigger("trace", "branches", "not compiled before", door=FRAME)
def resume_function():
    import torch

    function = torch.compile(branches, backend="eager")
    function(torch.ones(3))
    y = -5 * torch.ones(3)
    return lambda: (function(y), branches(y))


@trigger("trace", "cond", "not compiled before", door=FRAME)
def higher_order_operator():
    import torch

    x = torch.ones(3)
    sin, cos = (lambda x: x.sin()), (lambda x: x.cos())
    return lambda: (torch.cond(x.sum() > 0, sin, cos, (x,)), x.sin())


@trigger("trace", "scaled", "not compiled before", door=FRAME)
def stance_eager_then_compile():
    import torch

    function = torch.compile(scaled, backend="eager")
    x = torch.ones(4)
    torch.compiler.set_stance("eager_then_compile")
    function(x)
    return lambda: (function(x), scaled(x))


@trigger("trace", "compiled_optimizer", "", door=FRAME)
def compiled_optimizer():
    import torch

    parameter = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(8)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    return lambda: step()


@trigger(
    "trace",
    "scaled",
    "captures it",
    door="torch._dynamo.convert_frame:compile_frame",
    warm_raises=True,
)
def aot_compile():
    import torch

    torch._dynamo.config.enable_aot_compile = True
    function = torch.compile(scaled, backend="eager", fullgraph=True)
    x = torch.ones(4)

    def cold():
        function.aot_compile(((x,), {}))
        count("aot")

    return cold


@trigger(
    "fallback",
    "scaled",
    "suppressed",
    door="torch._dynamo.convert_frame:CatchErrorsWrapper._handle_skip",
    allow=("trace",),
)
def suppressed_error():
    import torch

    torch._dynamo.config.suppress_errors = True

    def broken(graph, inputs):
        count("backend")
        raise ValueError("no")

    function = torch.compile(scaled, backend=broken)
    x = torch.ones(4)
    return lambda: (function(x), scaled(x))


@trigger(
    "fallback",
    "eager_on_recompile",
    "would run eager",
    door="torch._dynamo.eval_frame:_set_stance",
    warm_raises=True,
)
def stance_eager_on_recompile():
    import torch

    def cold():
        with torch.compiler.set_stance("eager_on_recompile"):
            count("stance")

    return cold


@trigger(
    "record",
    "CUDA graph",
    "CUDAGRAPH_RECORDING",
    door="torch._dynamo.callback:CompilationCallbackHandler.install_callbacks",
    warm_raises=True,
)
def compile_callback():
    from torch._dynamo.callback import CallbackTrigger, callback_handler

    callback_handler.register_start_callback(lambda args: count("callback"))

    def cold():
        with callback_handler.install_callbacks(CallbackTrigger.CUDAGRAPH_RECORDING, "0/0"):
            pass

    return cold


@trigger(
    "trace",
    "compiled autograd",
    "not captured",
    door="torch._dynamo.compiled_autograd:AutogradCompilerInstance.begin_capture",
)
def compiled_autograd():
    import torch
    import torch._dynamo.compiled_autograd as autograd

    def cold():
        x = torch.ones(8, requires_grad=True)
        with autograd._enable(torch.compile(backend="eager")):
            x.sin().sum().backward()
        return x.grad, torch.ones(8).cos()

    return cold


# --- AOTAutograd ---------------------------------------------------------------------------------


@trigger("trace", "AOTAutograd graph", door="torch._functorch.aot_autograd:create_aot_state")
def aot_function():
    import torch
    from functorch.compile import aot_function as compiled
    from functorch.compile import nop

    def backend(graph, inputs):
        count("graph")
        return nop(graph, inputs)

    function = compiled(scaled, backend)
    x = torch.ones(4, requires_grad=True)
    return lambda: (function(x), scaled(x))


@trigger(
    "load",
    "AOTAutograd cache entry",
    "looked up",
    door="torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache.try_load",
    allow=("trace",),
    modes=("gated", "warm"),
    shared=True,
)
def aot_cache_lookup():
    import torch

    function = torch.compile(scaled)
    x = torch.ones(64)
    return lambda: (function(x), scaled(x))


def total(x):
    return (x.sin() * 2).sum()


@trigger(
    "lower",
    "backward graph",
    "first backward()",
    door="torch._functorch._aot_autograd.runtime_wrappers:"
    "_AutogradBackwardCompiler._prepare_lazy_backward_context",
)
def lazy_backward():
    import torch
    from torch._dynamo import callback

    callback.on_compile_start(lambda args: count("callback"))
    function = torch.compile(total, backend="aot_eager")
    x = torch.ones(64, requires_grad=True)
    first = [function(x)]

    def cold():
        (first.pop() if first else function(x)).backward()

    return cold


# --- Inductor ------------------------------------------------------------------------------------


@trigger(
    "lower",
    "Inductor graph",
    "FxGraphCache miss: key",
    door="torch._inductor.compile_fx:fx_codegen_and_compile",
    allow=("trace", "load"),
)
def inductor():
    import torch

    torch._functorch.config.enable_autograd_cache = False
    function = torch.compile(scaled)
    x = torch.ones(64)
    return lambda: (function(x), scaled(x))


@trigger(
    "load",
    "FxGraphCache entry",
    "looked up",
    door="torch._inductor.codecache:FxGraphCache.load_with_key",
    allow=("trace",),
    modes=("gated", "warm"),
    shared=True,
)
def fx_cache_lookup():
    return inductor()


@trigger(
    "load",
    "generated module",
    door="torch._inductor.codecache:PyCodeCache.load_by_key_path",
)
def generated_module():
    from torch._inductor.codecache import PyCodeCache

    (TMP / "generated").mkdir(exist_ok=True)
    path = str(TMP / "generated" / "cabc.py")
    Path(path).write_text("import os; VALUE = 7\n")

    def cold():
        module = PyCodeCache.load_by_key_path("abc", path)
        COUNTS["loaded"] = list(PyCodeCache.modules_no_attr)
        return module.VALUE

    return cold


CPP = 'extern "C" int answer() { return 42; }'


@trigger(
    "load", "C++ kernel", door="torch._inductor.codecache:CppCodeCache.load_async", warm_raises=True
)
def cpp_kernel():
    from torch._inductor.codecache import CppCodeCache

    return lambda: CppCodeCache.load(CPP).answer()


@trigger(
    "build",
    "C++ kernel",
    "does not exist",
    door="torch._inductor.codecache:_worker_compile_cpp",
    allow=only("build"),
)
def cpp_kernel_build():
    return cpp_kernel()


@trigger(
    "build",
    "C++ build: g++",
    door="torch._inductor.cpp_builder:_run_compile_cmd",
    warm_raises=True,
)
def cpp_command():
    from torch._inductor import cpp_builder

    (TMP / "one.cpp").write_text(CPP)
    line = f"g++ -c {TMP}/one.cpp -o {TMP}/one.o"
    return lambda: cpp_builder._run_compile_cmd(line, str(TMP))


@trigger(
    "build",
    "vector instruction set",
    door="torch._inductor.cpu_vec_isa:VecISA.check_build",
    modes=("gated",),  # a probe takes seconds; the gated run makes it at its end
)
def vector_isa():
    """``except Exception`` round the probe would turn vectorisation off for the process."""
    import torch
    from torch._inductor import cpu_vec_isa

    torch._inductor.config.cpp.vec_isa_ok = None
    isa = cpu_vec_isa.VecAVX2()
    sound = "avx2" in Path("/proc/cpuinfo").read_text()

    def cold():
        found = bool(isa)
        assert found == sound

    return cold


@trigger(
    "build",
    "AOTInductor",
    door="torch._inductor.codecache:AotCodeCompiler.compile",
    allow=only("build"),
    modes=("gated",),  # a bare build takes half a minute
)
def aot_inductor():
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    torch._inductor.config.cpp.enable_kernel_profile = False
    exported = torch.export.export(Model(), (torch.ones(3),))

    def cold():
        if os.environ.get("PRECOMP_RECOVER"):
            return None
        return torch._inductor.aoti_compile_and_package(exported, package_path=f"{TMP}/m.pt2")

    return cold


@trigger(
    "build",
    "compile worker",
    door="torch._inductor.compile_worker.subproc_pool:SubprocPool.submit",
    warm_raises=True,
    modes=("gated",),  # the workers take many seconds to start
)
def compile_worker():
    from torch._inductor.compile_worker.subproc_pool import SubprocPickler, SubprocPool

    pool = SubprocPool.__new__(SubprocPool)
    pool.pickler = SubprocPickler()
    return lambda: None if os.environ.get("PRECOMP_RECOVER") else pool.submit(len, ())


@trigger(
    "build",
    "compile worker",
    door="torch._inductor.compile_worker.tracked_process_pool:TrackedProcessPoolExecutor.submit",
    warm_raises=True,
)
def compile_worker_pool():
    import multiprocessing

    from torch._inductor.compile_worker.tracked_process_pool import TrackedProcessPoolExecutor

    pool = TrackedProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))

    def cold():
        COUNTS["job"] = pool.submit(os.getpid).result()
        return None

    return cold


# --- tuning --------------------------------------------------------------------------------------


@trigger(
    "tune",
    "max-autotune of",
    "choices",
    door="torch._inductor.select_algorithm:AlgorithmSelectorCache.do_autotuning",
    allow=only("tune"),
    modes=("gated",),  # a bare one builds each choice
)
def max_autotune():
    import torch
    import torch._inductor.config as config

    config.max_autotune = True
    config.max_autotune_gemm_backends = "CPP,ATEN"
    config.autotune_in_subproc = False
    config.freezing = True
    config.cpp.vec_isa_ok = True
    linear = torch.nn.Linear(64, 64).eval()
    function = torch.compile(linear)
    x = torch.randn(32, 64)

    def cold():
        if os.environ.get("PRECOMP_RECOVER"):
            return None
        with torch.no_grad():
            return function(x)

    return cold


@trigger(
    "tune",
    "benchmark",
    door="torch._inductor.runtime.benchmarking:Benchmarker.benchmark_cpu",
    warm_raises=True,
)
def inductor_benchmark():
    from torch._inductor.runtime.benchmarking import benchmarker

    return lambda: benchmarker.benchmark_cpu(lambda: count("run"))


@trigger("tune", "benchmark", door="triton.testing:do_bench", warm_raises=True)
def triton_benchmark():
    import torch
    import triton.testing
    from triton.runtime import driver

    fake_driver()

    class Timer:
        def __init__(self, enable_timing):
            pass

        def record(self):
            pass

        def elapsed_time(self, end):
            return 1.0

    class Interface:
        Event = Timer
        synchronize = staticmethod(lambda: None)

    driver.active.get_device_interface = lambda: Interface
    driver.active.get_empty_cache_for_benchmark = lambda: torch.ones(1)
    driver.active.clear_cache = lambda cache: None
    return lambda: triton.testing.do_bench(lambda: count("run"))


# --- Triton, compiled for a GPU that is not there ------------------------------------------------

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def add_one(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
"""


def kernel():
    (TMP / "add_one_kernel.py").write_text(KERNEL)
    sys.path.insert(0, str(TMP))
    import add_one_kernel

    return add_one_kernel.add_one


def fake_driver():
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Utils:
        def load_binary(self, *args):
            count("loaded")
            return 1, 1, 16, 0, 1024

        def unload_module(self, module):
            pass

        def get_device_properties(self, device):
            return {"max_shared_mem": 232448, "multiprocessor_count": 132}

    class Driver:
        utils = Utils()

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device=None):
            return 0

        def launcher_cls(self, source, metadata):
            return lambda *args: None

        def get_benchmarker(self):
            def benchmark(function, quantiles=None, **options):
                function()
                return [1.0, 1.0, 1.0]

            return benchmark

    driver.set_active(Driver())


class Pointer:
    def __init__(self):
        import torch

        self.dtype = torch.float32

    def data_ptr(self):
        return 16


@trigger(
    "load",
    "Triton kernel add_one",
    "not launched before; signature (x: *fp32",
    door="triton.runtime.jit:JITFunction._do_compile",
)
def triton_kernel():
    function = kernel()
    fake_driver()
    pointer = Pointer()

    def cold():
        function[(1,)](pointer, 10, B=16)

    return cold


@trigger(
    "load",
    "Triton kernel add_one",
    "n: compiled for i32, found i32 tt.divisibility=16",
    door="triton.runtime.jit:JITFunction._do_compile",
)
def triton_specialisation():
    function = kernel()
    fake_driver()
    pointer = Pointer()
    function[(1,)](pointer, 10, B=16)

    def cold():
        function[(1,)](pointer, 32, B=16)

    return cold


@trigger("load", "Triton kernel add_one", door="triton.compiler.compiler:compile", warm_raises=True)
def triton_compile():
    import triton
    from triton.backends.compiler import GPUTarget

    function = kernel()

    def cold():
        source = triton.compiler.ASTSource(
            function, {"x": "*fp32", "n": "i32", "B": "constexpr"}, {(2,): 16}
        )
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        count("compiled")

    return cold


@trigger(
    "build",
    "Triton kernel add_one",
    "not in Triton's cache on disk",
    door="triton.compiler.compiler:ASTSource.make_ir",
    allow=only("build"),
)
def triton_build():
    return triton_kernel()


@trigger(
    "build",
    "Triton kernel add_one",
    "not in Triton's cache on disk",
    door="triton.runtime._async_compile:AsyncCompileMode.submit",
    allow=only("build"),
)
def triton_background():
    """Compiled in another thread, whose future stands for the kernel in all later calls."""
    from concurrent.futures import ThreadPoolExecutor

    from triton.runtime._async_compile import AsyncCompileMode

    function = kernel()
    fake_driver()
    pointer = Pointer()

    def cold():
        with ThreadPoolExecutor(1) as pool, AsyncCompileMode(pool):
            function.warmup(pointer, 10, B=16, grid=(1,))
        function[(1,)](pointer, 10, B=16)

    return cold


@trigger(
    "build",
    "Triton kernel",
    "ptxas",
    door="triton.backends.nvidia.compiler:CUDABackend.make_cubin",
    modes=("gated",),
)
def triton_ptxas():
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend

    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    return lambda: (
        None if os.environ.get("PRECOMP_RECOVER") else backend.make_cubin("", {}, None, 90)
    )


@trigger(
    "tune",
    "@triton.autotune of add_one",
    "no best config for key",
    door="triton.runtime.autotuner:Autotuner._bench",
    allow=only("tune"),
)
def triton_autotune():
    import triton

    function = kernel()
    fake_driver()
    pointer = Pointer()
    configs = [triton.Config({"B": 16}), triton.Config({"B": 32})]
    tuned = triton.autotune(configs, key=["n"])(function)

    def cold():
        tuned[(1,)](pointer, 10)

    return cold


@trigger("build", "Triton C module", door="triton.runtime.build:_build")
def triton_c_module():
    from triton.runtime import build

    source = (
        "#include <Python.h>\nPyMODINIT_FUNC PyInit_stub(void) {"
        'static PyModuleDef d = {PyModuleDef_HEAD_INIT, "stub"}; return PyModule_Create(&d); }'
    )
    return lambda: build.compile_module_from_src(source, "stub").__name__


# --- export, TorchScript, extensions -------------------------------------------------------------


@trigger("trace", "torch.export of", door="torch.export._trace:_export", warm_raises=True)
def export():
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    model, x = Model(), torch.ones(3)

    def cold():
        torch.export.export(model, (x,))
        count("exported")

    return cold


@trigger(
    "trace",
    "make_fx of make_fx",
    door="torch.fx.experimental.proxy_tensor:_MakefxTracer.trace",
    warm_raises=True,
)
def make_fx():
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx as trace

    def cold():
        def wave(x):
            return x.sin()

        COUNTS["code"] = trace(wave)(torch.ones(3)).code

    return cold


def script_source():
    (TMP / "scripted.py").write_text(
        "import torch\n\ndef wave(x):\n    return x.sin()\n\n"
        "class Pair:\n    def __init__(self, a: int):\n        self.a = a\n\n"
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x.sin()\n"
    )
    sys.path.insert(0, str(TMP))
    import scripted

    return scripted


@trigger("trace", "torch.jit.script of scripted.wave", door="torch._C:_jit_script_compile")
def script_function():
    import torch

    source = script_source()

    def cold():
        function = torch.jit.script(source.wave)
        COUNTS["id"] = function.name
        return function(torch.ones(3)), torch.ones(3).sin()

    return cold


@trigger("trace", "torch.jit.script of scripted.Pair", door="torch._C:_jit_script_class_compile")
def script_class():
    import torch

    source = script_source()

    def cold():
        torch.jit.script(source.Pair)
        count("done")

    return cold


@trigger(
    "trace",
    "torch.jit.script of Net",
    door="torch.jit._recursive:create_script_module",
    warm_raises=True,
)
def script_module():
    import torch

    source = script_source()

    def cold():
        x = torch.ones(3)
        COUNTS["done"] = 1
        return torch.jit.script(source.Net())(x), x.sin()

    return cold


@trigger(
    "trace",
    "torch.jit.trace of scaled",
    door="torch._C:_create_function_from_trace",
    warm_raises=True,
)
def trace_function():
    import torch

    def cold():
        x = torch.ones(3)
        traced = torch.jit.trace(scaled, (x,))
        COUNTS["done"] = 1
        return traced(x), scaled(x)

    return cold


@trigger(
    "build",
    "C++ extension tiny",
    door="torch.utils.cpp_extension:_write_ninja_file_and_build_library",
    modes=("gated",),  # needs ninja
)
def cpp_extension():
    import torch.utils.cpp_extension as extension

    source = (
        '#include <Python.h>\nextern "C" PyMODINIT_FUNC PyInit_tiny() {'
        'static PyModuleDef d = {PyModuleDef_HEAD_INIT, "tiny"}; return PyModule_Create(&d); }'
    )

    def cold():
        if os.environ.get("PRECOMP_RECOVER"):
            return None
        return extension.load_inline("tiny", source, no_implicit_headers=True)

    return cold


@trigger(
    "build", "ninja build", door="torch.utils.cpp_extension:_run_ninja_build", modes=("gated",)
)
def ninja():
    import torch.utils.cpp_extension as extension

    def cold():
        if not os.environ.get("PRECOMP_RECOVER"):
            extension._run_ninja_build(str(TMP), False, "no")

    return cold


# --- compiler processes --------------------------------------------------------------------------


@trigger("spawn", "gcc -E -", "compiler process", torch=False, warm_raises=True)
def spawn_popen():
    run = subprocess.run
    return lambda: run(["gcc", "-E", "-"], input=b"", stdout=subprocess.DEVNULL).returncode


@trigger("spawn", "g++ -E", "compiler process", torch=False, warm_raises=True)
def spawn_shell():
    line = "cd / && CXX=1 g++ -E - </dev/null >/dev/null"
    return lambda: subprocess.run(line, shell=True).returncode


@trigger("spawn", "cc", "compiler process", torch=False, warm_raises=True)
def spawn_system():
    return lambda: os.system("cc -E - </dev/null >/dev/null")


@trigger("spawn", "gcc", "compiler process", torch=False, warm_raises=True)
def spawn_posix():
    def cold():
        pid = os.posix_spawn("/usr/bin/gcc", ["gcc", "-dM", "-E", os.devnull, "-o", os.devnull], {})
        return os.waitpid(pid, 0)[1]

    return cold


@trigger("spawn", "mycc", "compiler process", torch=False, warm_raises=True)
def spawn_named_by_cxx():
    os.environ["CXX"] = f"{TMP}/mycc -m64"
    (TMP / "mycc").write_text("#!/bin/sh\n")
    (TMP / "mycc").chmod(0o755)
    return lambda: subprocess.run([f"{TMP}/mycc", "x.c"]).returncode


@trigger("trace", "late.<locals>", "not compiled before", door=FRAME, torch=False, modes=("gated",))
def late_import():
    """The gate is entered before torch is imported."""

    def late():
        import torch

        assert COUNTS.setdefault("torch", True)
        torch._dynamo.reset()
        torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))

    return late


# --- swallowed -----------------------------------------------------------------------------------


@trigger("trace", "scaled", "not compiled before", door=FRAME)
def swallow_exception():
    """A user's ``except Exception`` does not see it."""
    first = first_compile()

    def cold():
        try:
            return first()
        except Exception:  # noqa: BLE001 - what is tested
            return None

    return cold


@trigger("trace", "scaled", "not compiled before", door=FRAME, swallowed=True)
def swallow_base_exception():
    first = first_compile()

    def cold():
        try:
            return first()
        except BaseException:  # noqa: BLE001 - what is tested
            return None

    return cold


@trigger("trace", "scaled", "not compiled before", door=FRAME, swallowed=True)
def swallow_finalizer():
    first = first_compile()
    sys.unraisablehook = lambda info: None

    class Finalized:
        def __del__(self):
            first()

    def cold():
        Finalized()

    return cold


@trigger("trace", "scaled", "not compiled before", door=FRAME, swallowed=True, threaded=True)
def swallow_thread():
    first = first_compile()
    threading.excepthook = lambda info: None

    def cold():
        thread = threading.Thread(target=first)
        thread.start()
        thread.join()

    return cold


@trigger("trace", "scaled", "not compiled before", door=FRAME, swallowed=True, threaded=True)
def swallow_future():
    from concurrent.futures import ThreadPoolExecutor

    first = first_compile()

    def cold():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(first)

    return cold


@trigger("trace", "scaled", "not compiled before", door=FRAME)
def swallow_suppress_errors():
    import torch

    torch._dynamo.config.suppress_errors = True
    return first_compile()


@trigger("lower", "Inductor graph", allow=only("lower"), modes=("gated", "warm"))
def swallow_custom_backend():
    import torch

    def backend(graph, inputs):
        from torch._inductor.compile_fx import compile_fx

        try:
            return compile_fx(graph, inputs)
        except Exception:  # noqa: BLE001 - what is tested
            count("fell back")
            return graph.forward

    function = torch.compile(scaled, backend=backend)
    x = torch.ones(8)

    def cold():
        if os.environ.get("PRECOMP_RECOVER"):
            assert "fell back" not in COUNTS
            return None
        return function(x), scaled(x)

    return cold


@trigger("build", "", allow=only("build"), modes=("gated", "warm"))
def swallow_suppressed_build():
    import torch

    torch._dynamo.config.suppress_errors = True
    return inductor()


@trigger(
    "build",
    "C++ kernel",
    "does not exist",
    door="torch._inductor.async_compile:AsyncCompile.submit",
    allow=only("build"),
    modes=("gated", "warm"),
)
def swallow_worker_pool():
    """Built in a thread of Inductor's pool, whose future is kept for all later calls."""
    import torch

    os.environ["TORCH_WARM_POOL"] = "0"  # no processes: they are for Triton
    torch._inductor.config.compile_threads = 2
    torch._inductor.config.cpp_cache_precompile_headers = False
    torch._dynamo.config.suppress_errors = True
    return inductor()


# --- on a GPU -------------------------------------------------------------------------------------


def start_triton():
    """The driver module: Triton builds it in C when it is first asked for."""
    from triton.runtime import driver

    driver.active.get_current_target()


@trigger("build", "Triton C module", gpu=True)
def gpu_triton_driver():
    return start_triton


@trigger("trace", "scaled", "not compiled before", gpu=True)
def gpu_first_compile():
    import torch

    start_triton()
    function = torch.compile(scaled)
    x = torch.ones(1024, device="cuda")
    return lambda: (function(x), scaled(x))


@trigger("lower", "Inductor graph", "FxGraphCache", gpu=True, allow=("trace", "load"))
def gpu_inductor():
    return gpu_first_compile()


@trigger("build", "Inductor Triton kernel", "not compiled before", gpu=True, allow=only("build"))
def gpu_inductor_kernel():
    return gpu_first_compile()


@trigger("lower", "backward graph", gpu=True, threaded=True)
def gpu_lazy_backward():
    """In the autograd thread of the device, where no user frame is on the stack."""
    import torch

    function = torch.compile(total)
    x = torch.ones(1024, device="cuda", requires_grad=True)
    first = [function(x)]

    def cold():
        (first.pop() if first else function(x)).backward()
        torch.cuda.synchronize()

    return cold


@trigger("tune", "Inductor Triton kernel", "configs", gpu=True, allow=only("tune"))
def gpu_pointwise_autotune():
    import torch

    torch._inductor.config.max_autotune_pointwise = True
    function = torch.compile(lambda x: x.sin().sum(-1) * 2)
    x = torch.randn(4096, 4096, device="cuda")
    return lambda: (function(x), x.sin().sum(-1) * 2)


@trigger("tune", "Inductor Triton kernel", gpu=True, allow=only("tune"))
def gpu_coordinate_descent():
    import torch

    torch._inductor.config.coordinate_descent_tuning = True
    function = torch.compile(lambda x: x.cos().sum(-1) * 2)
    x = torch.randn(4096, 1024, device="cuda")
    return lambda: (function(x), x.cos().sum(-1) * 2)


@trigger("tune", "max-autotune of", "choices", gpu=True, allow=only("tune"))
def gpu_max_autotune():
    import torch

    function = torch.compile(lambda a: a @ a, mode="max-autotune-no-cudagraphs")
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    return lambda: function(a).shape and None


@trigger("record", "CUDA graph", "not recorded", gpu=True, allow=only("record"))
def gpu_cuda_graph():
    import torch
    from torch._dynamo import callback

    callback.on_compile_start(lambda args: count("callback"))
    function = torch.compile(lambda x: x.sin() + 4, mode="reduce-overhead")
    x = torch.randn(1024, device="cuda")
    function(x)
    return lambda: (function(x).clone(), x.sin() + 4)


@trigger("build", "CUDA kernel k", "NVRTC", gpu=True, warm_raises=True)
def gpu_nvrtc():
    import torch

    source = 'extern "C" __global__ void k(float *x) { x[0] = 1; }'

    def cold():
        torch.cuda._compile_kernel(source, "k")
        count("compiled")

    return cold


PLUS_ONE = "template <typename T> T plus_one(T x) { return x + 1; }"


@trigger("build", "CUDA kernel plus_one", "NVRTC", gpu=True)
def gpu_jiterator():
    """Called from Python with the GIL."""
    import torch

    function = torch.cuda.jiterator._create_jit_fn(PLUS_ONE)
    x = torch.ones(8, device="cuda")
    return lambda: (function(x), x + 1)


@trigger("build", "CUDA kernel bessel_j0", "NVRTC", gpu=True)
def gpu_special_function():
    """Called in torch's C++ without the GIL."""
    import torch

    x = torch.rand(8)
    y = x.cuda()
    return lambda: (torch.special.bessel_j0(y).cpu(), torch.special.bessel_j0(x))


@trigger("build", "CUDA kernel zeta", "NVRTC", gpu=True)
def gpu_special_function_of_two():
    import torch

    x = torch.rand(8) + 2
    y = x.cuda()
    return lambda: (torch.special.zeta(y, y).cpu(), torch.special.zeta(x, x))


@trigger("build", "i1e", "NVRTC", gpu=True, threaded=True)
def gpu_special_function_in_backward():
    """In the autograd thread of the device, which Python may not know."""
    import torch

    y = torch.rand(8, requires_grad=True)
    x = y.detach().cuda().requires_grad_()
    total = torch.special.i0e(x).sum()  # before the gate; its gradient needs i1e
    torch.special.i0e(y).sum().backward()

    def cold():
        x.grad = None
        total.backward(retain_graph=True)
        return x.grad.cpu(), y.grad

    return cold


@trigger("load", "CUDA kernel of libtorch", "kernel cache", gpu=True, modes=("gated",))
def gpu_kernel_cache():
    """Another process has compiled it."""
    import torch

    source = "import torch; torch.special.bessel_j1(torch.ones(8, device='cuda'))"
    subprocess.run([sys.executable, "-c", source], check=True)
    SPAWNED.clear()
    x = torch.rand(8)
    y = x.cuda()
    return lambda: (torch.special.bessel_j1(y).cpu(), torch.special.bessel_j1(x))


PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
"""


@trigger("driver_jit", "CUDA kernel nothing", "PTX", gpu=True, warm_raises=True)
def gpu_ptx():
    import torch
    from torch.cuda._utils import _cuda_load_module

    torch.ones(1, device="cuda")

    def cold():
        _cuda_load_module(PTX, ["nothing"])
        count("loaded")

    return cold


@trigger("load", "Triton kernel add_one", "not launched before; signature (x: *fp32", gpu=True)
def gpu_triton_kernel():
    import torch

    start_triton()
    function = kernel()
    x = torch.zeros(10, device="cuda")

    def cold():
        x.zero_()
        function[(1,)](x, 10, B=16)
        return x, torch.ones_like(x)

    return cold


@trigger(
    "load",
    "Triton kernel add_one",
    "n: compiled for i32, found i32 tt.divisibility=16",
    gpu=True,
)
def gpu_triton_specialisation():
    import torch

    start_triton()
    function = kernel()
    x = torch.zeros(32, device="cuda")
    function[(1,)](x, 10, B=32)

    def cold():
        x.zero_()
        function[(1,)](x, 32, B=32)
        return x, torch.ones_like(x)

    return cold


@trigger("tune", "@triton.autotune of add_one", gpu=True, allow=only("tune"))
def gpu_triton_autotune():
    import torch
    import triton

    start_triton()
    configs = [triton.Config({"B": 16}), triton.Config({"B": 32})]
    tuned = triton.autotune(configs, key=["n"])(kernel())
    x = torch.zeros(10, device="cuda")

    def cold():
        tuned[(1,)](x, 10)
        torch.cuda.synchronize()

    return cold


# --- what has no program here --------------------------------------------------------------------

DIRECT: dict[str, tuple[str, str]] = {
    # Doors whose program needs a device or a toolchain: called with a bare object, gated only.
    "torch._inductor.compile_fx:_InProcessFxCompile.codegen_and_compile": ("lower", "gm"),
    "torch._inductor.compile_fx_ext:_SerializedFxCompile.codegen_and_compile": ("lower", "gm"),
    "torch._inductor.codecache:CUTLASSCodeCache.compile": ("build", ""),
    "torch._inductor.codecache:ROCmCodeCache.compile": ("build", ""),
    "torch._inductor.codecache:HalideCodeCache.generate_halide_async": ("build", ""),
    "torch._inductor.cpp_builder:run_asm_build_object": ("build", ""),
    "torch._inductor.cudagraph_trees:CUDAGraphTreeManager.record_function": ("record", ""),
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_config": ("build", ""),
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.benchmark_all_configs": (
        "tune",
        "",
    ),
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._coordinate_descent_tuning": (
        "tune",
        "",
    ),
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner._combo_sequential_autotune": (
        "tune",
        "",
    ),
    "torch._inductor.runtime.triton_heuristics:CachingAutotuner.bench": ("tune", ""),
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.benchmark_choices": ("tune", ""),
    "torch._inductor.autotune_process:TuningProcess.start": ("tune", ""),
    "torch._inductor.autotune_process:AutotuneProcessPool.submit": ("tune", ""),
    "torch._inductor.codegen.multi_kernel:MultiKernelCall.benchmark_sub_kernels": ("tune", ""),
    "torch._inductor.runtime.benchmarking:Benchmarker.benchmark": ("tune", ""),
    "torch._inductor.runtime.benchmarking:TritonBenchmarker.benchmark_gpu": ("tune", ""),
    "torch._inductor.runtime.benchmarking:InductorBenchmarker.benchmark_gpu": ("tune", ""),
    "torch._inductor.runtime.benchmarking:Benchmarker.benchmark_gpu_with_cuda_graph": ("tune", ""),
    "torch._inductor.runtime.benchmarking:TorchProfilerBenchmarker.benchmark_gpu": ("tune", ""),
    "triton.testing:do_bench_cudagraph": ("tune", ""),
    "triton.compiler.compiler:IRSource.make_ir": ("build", ""),
    "torch.export._trace:_export_for_training": ("trace", ""),
    "torch._C:_jit_script_compile_overload": ("trace", ""),
    "torch._C:_create_function_from_trace_with_dict": ("trace", ""),
    "torch.cuda._utils:_nvrtc_compile": ("build", ""),
    "torch.cuda._utils:_cuda_load_module": ("driver_jit", ""),
}


def direct(target):
    """Calls the door *target* with empty objects; the answer says which kind it raised."""
    import inspect
    from types import SimpleNamespace

    import precomp
    from precomp import _core
    from precomp.doors import hooks

    module = importlib.import_module(target.partition(":")[0])
    hooks.start()
    _, _, raw = hooks._owner_of(module, target.partition(":")[2])
    function = raw if isinstance(raw, _core.Door) else hooks.innermost(raw)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        parameters = []
    arguments = {
        p.name: SimpleNamespace(launchers=[], src="", name="k")
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    gate = precomp.strict_no_compile()
    try:
        with gate:
            function(**arguments)
    except precomp.CompileViolation as violation:
        assert gate.violations == (violation,)
        return {"violation": dump(violation)}
    return {"violation": None}


ABSENT = {
    "2.11": {
        "torch._dynamo.convert_frame:CatchErrorsWrapper._handle_skip",
        "torch._functorch._aot_autograd.runtime_wrappers:"
        "_AutogradBackwardCompiler._prepare_lazy_backward_context",
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner._combo_sequential_autotune",
        "torch._inductor.runtime.benchmarking:Benchmarker.benchmark_gpu_with_cuda_graph",
        "torch._inductor.runtime.benchmarking:TorchProfilerBenchmarker.benchmark_gpu",
    },
}
"""Doors that are not required, and that a supported version does not have."""


def lacking():
    """Doors that are not there -> reason."""
    from precomp.doors import all_doors, hooks

    found = {}
    for door in all_doors():
        try:
            hooks._owner_of(importlib.import_module(door.module), door.path)
        except (ImportError, AttributeError) as error:
            found[door.target] = f"{type(error).__name__}: {error}"
    return found


# --- what a program has to answer ----------------------------------------------------------------


def faults(name, mode, answer):
    """What is wrong with the *answer* of a program: list of str."""
    item = TRIGGERS[name]
    if "error" in answer:
        return [answer["error"]]
    if mode == "bare":
        return [] if answer["evidence"] else ["nothing shows that it compiles"]
    violation = answer["violation"]
    if mode == "warm":
        if item.warm_raises:
            return [] if violation and violation["kind"] == item.kind else ["not raised"]
        return [f"raised {violation}"] if violation else []
    if violation is None:
        return ["not raised"]
    found = []
    if answer["recorded"][0] != violation:
        found.append("another violation is recorded")
    if answer["returned"] != item.swallowed:
        found.append("not raised where it happened" if answer["returned"] else "raised early")
    if violation["kind"] != item.kind:
        found.append(f"kind is {violation['kind']}, not {item.kind}")
    for field in ("what", "why"):
        if getattr(item, field) not in violation[field]:
            found.append(f"{field} does not tell {getattr(item, field)!r}: {violation[field]}")
    if not violation["why"] or not violation["hint"] or "no details" in violation["why"]:
        found.append(f"does not explain itself: {violation}")
    file, _, line = violation["where"].rpartition(":")
    if not item.threaded and (file != __file__ or int(line) < 1):
        found.append(f"where is {violation['where']!r}")
    return found


# --- the server ----------------------------------------------------------------------------------


def dump(violation):
    return {
        "kind": violation.kind,
        "what": violation.what,
        "why": violation.why,
        "where": violation.where,
        "hint": violation.hint,
    }


def evidence():
    """What shows that something compiled, without asking the gate."""
    found = dict(COUNTS)
    found["spawned"] = len(SPAWNED)
    found["files"] = sum(len(files) for _, _, files in os.walk(TMP))
    if "torch._dynamo.convert_frame" in sys.modules:
        counter = sys.modules["torch._dynamo.convert_frame"].FRAME_COMPILE_COUNTER
        found["frames"] = sum(counter.values())
    return found


def check_value(value):
    """A cold function may return (value, what it should be)."""
    if isinstance(value, tuple):
        import torch

        got, want = value
        near = 1e-3 if got.device.type == "cuda" else 1e-8
        assert torch.allclose(got, want, atol=near), (got, want)


def run(name, mode):
    import precomp

    if mode == "direct":
        return direct(name)
    if mode == "lacking":
        return lacking()
    if mode == "scenario":
        sys.path.insert(0, str(Path(__file__).parent))
        getattr(importlib.import_module("scenarios"), name)()
        return {}
    item = TRIGGERS[name]
    cold = item.setup()
    result: dict[str, Any] = {}
    if mode == "bare":
        before = evidence()
        check_value(cold())
        after = evidence()
        result["evidence"] = {key: after[key] for key in after if after[key] != before.get(key)}
    elif mode == "gated":
        result["violation"] = None
        returned = False
        gate = precomp.strict_no_compile(allow=item.allow)
        try:
            with gate:
                cold()
                returned = True
        except precomp.CompileViolation as violation:
            result["violation"] = dump(violation)
        result["returned"] = returned
        result["recorded"] = [dump(v) for v in gate.violations]
        os.environ["PRECOMP_RECOVER"] = "1"
        check_value(cold())
    else:
        cold()
        cold()
        result["violation"] = None
        try:
            with precomp.strict_no_compile(allow=item.allow):
                for _ in range(3):
                    check_value(cold())
        except precomp.CompileViolation as violation:
            result["violation"] = dump(violation)
    return result


def child(request):
    global TMP
    TMP = Path(request["tmp"])
    TMP.mkdir(parents=True, exist_ok=True)
    item = TRIGGERS.get(request["name"])
    shared = item is not None and (item.shared or request["mode"] == "warm")
    for variable, folder in (
        ("TORCHINDUCTOR_CACHE_DIR", "../shared" if shared else "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
        ("TORCH_EXTENSIONS_DIR", "extensions"),
        ("PYTORCH_KERNEL_CACHE_PATH", "kernels"),
    ):
        os.environ[variable] = str(TMP / folder)
    (TMP / "kernels").mkdir(exist_ok=True)

    def audit(event, args):
        if event in ("subprocess.Popen", "os.posix_spawn", "os.system"):
            SPAWNED.append(event)

    sys.addaudithook(audit)
    try:
        return run(request["name"], request["mode"])
    except BaseException as error:  # noqa: BLE001 - goes into the answer
        import traceback

        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loaded = False
    for line in sys.stdin:
        request = json.loads(line)
        name = request["name"]
        if name not in TRIGGERS or TRIGGERS[name].torch:
            if not loaded:
                load()
                loaded = True
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.setsid()
            signal.alarm(150)
            with os.fdopen(writer, "w") as pipe:
                pipe.write(json.dumps(child(request)) + "\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            text = pipe.readline()
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # workers that it left behind
        answers.write(text or json.dumps({"error": f"the process died: {status}"}) + "\n")
        answers.flush()


def load():
    """What most programs need, once."""
    import torch
    import torch._dynamo.backends.debugging
    import torch._dynamo.compiled_autograd
    import torch._inductor.compile_fx
    import torch._inductor.select_algorithm
    import torch.export._trace

    torch.set_num_threads(1)


if __name__ == "__main__":
    serve()
