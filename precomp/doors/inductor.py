"""Doors of Inductor: lowering, its caches, C++ builds, worker processes, CUDA graphs."""

from __future__ import annotations

import os
from typing import Any

from precomp.doors import Door, Trip, cache_dir, fixed, frame_locals, graph_text, short
from precomp.torch_api.modules import INDUCTOR
from precomp.torch_api.objects import CPP_JOB, READY_JOB

_HINT = "run it once before the gate, or capture this case"


def _lower(args: dict[str, Any]) -> Trip:
    return Trip(f"Inductor graph: {graph_text(args['gm'])}", _cache_answer(), _HINT)


def _cache_answer() -> str:
    """What FxGraphCache said about the graph that is lowered now."""
    known = frame_locals("_compile_fx_inner")
    info = known.get("cache_info")
    if not isinstance(info, dict):
        return "not compiled before; FxGraphCache is off or was not asked"
    state = info.get("cache_state", "miss")
    key = info.get("key") or (known.get("key_info") or ("?",))[0]
    if state == "bypass":
        reason = info.get("cache_bypass_reason", "unknown reason")
        return f"FxGraphCache bypassed ({reason})"
    return f"FxGraphCache {state}: key {key}, looked in {cache_dir()}"


def _fx_lookup(args: dict[str, Any]) -> Trip:
    return Trip(
        f"FxGraphCache entry {args['key']}",
        f"looked up in {cache_dir()}: not loaded in this process before",
        _HINT,
    )


def _python_module(args: dict[str, Any]) -> Trip | None:
    owner = args["cls"]
    path = args["path"]
    if args.get("attrs") is None and path in getattr(owner, "modules_no_attr", ()):
        return None
    return Trip(f"generated module {os.path.basename(path)}", f"loaded from {path}", _HINT)


def _cpp_load(args: dict[str, Any]) -> Trip:
    name = getattr(args["cls"], "__name__", "CppCodeCache")
    return Trip(f"C++ kernel ({name})", "built, or loaded from the cache on disk", _HINT)


def _worker_cpp(args: dict[str, Any]) -> Trip | None:
    targets = [builder.get_target_file_path() for builder in args["cpp_builders"]]
    absent = [target for target in targets if not os.path.exists(target)]
    if not absent:
        return None
    return Trip("C++ kernel", f"not built: {', '.join(absent)} does not exist", _HINT)


def _submitted(args: dict[str, Any]) -> Trip | None:
    """A build that goes to Inductor's threads: stopped before its future is kept for later."""
    task = args["task"]
    if getattr(getattr(task, "func", None), "__name__", "") != CPP_JOB:
        return None
    return _worker_cpp({"cpp_builders": task.args[1]})


def _command(args: dict[str, Any]) -> Trip:
    line = args["cmd_line"]
    text = line if isinstance(line, str) else " ".join(line)
    return Trip(f"C++ build: {short(text, 120)}", "Inductor starts the C++ compiler", _HINT)


def _isa(args: dict[str, Any]) -> Trip:
    return Trip(
        f"probe of the vector instruction set {args['self']}",
        "compiles a test program: not probed in this process before",
        "call torch._inductor.cpu_vec_isa.pick_vec_isa() before the gate",
    )


def _job(args: dict[str, Any]) -> Trip | None:
    function = args.get("job_fn") or args.get("fn")
    function = getattr(function, "func", function)
    name = getattr(function, "__qualname__", repr(function))
    if READY_JOB in name:
        return None  # the pool asks whether it is up
    return Trip(f"compile worker: {short(name, 120)}", "a job goes to the compile workers", _HINT)


def _record(args: dict[str, Any]) -> Trip:
    return Trip(
        f"CUDA graph of compiled function {getattr(args['function_id'], 'id', '?')}",
        "not recorded for these inputs before",
        "run it until it is recorded (two or three times) before the gate",
    )


DOORS = (
    Door("Inductor lowering", "lower", f"{INDUCTOR}.compile_fx:fx_codegen_and_compile", _lower),
    Door(
        "Inductor lowering in process",
        "lower",
        f"{INDUCTOR}.compile_fx:_InProcessFxCompile.codegen_and_compile",
        _lower,
    ),
    Door(
        "Inductor lowering elsewhere",
        "lower",
        f"{INDUCTOR}.compile_fx_ext:_SerializedFxCompile.codegen_and_compile",
        _lower,
        required=False,
    ),
    Door("FxGraphCache", "load", f"{INDUCTOR}.codecache:FxGraphCache.load_with_key", _fx_lookup),
    Door(
        "generated module",
        "load",
        f"{INDUCTOR}.codecache:PyCodeCache.load_by_key_path",
        _python_module,
    ),
    Door("C++ kernel", "load", f"{INDUCTOR}.codecache:CppCodeCache.load_async", _cpp_load),
    Door("C++ kernel build", "build", f"{INDUCTOR}.codecache:{CPP_JOB}", _worker_cpp),
    Door("C++ build thread", "build", f"{INDUCTOR}.async_compile:AsyncCompile.submit", _submitted),
    Door(
        "AOTInductor build",
        "build",
        f"{INDUCTOR}.codecache:AotCodeCompiler.compile",
        fixed("AOTInductor package", "its C++ code is built", _HINT),
    ),
    Door(
        "CUTLASS build",
        "build",
        f"{INDUCTOR}.codecache:CUTLASSCodeCache.compile",
        fixed("CUTLASS kernel", "not built before", _HINT),
        required=False,
    ),
    Door(
        "ROCm build",
        "build",
        f"{INDUCTOR}.codecache:ROCmCodeCache.compile",
        fixed("ROCm kernel", "not built before", _HINT),
        required=False,
    ),
    Door(
        "Halide build",
        "build",
        f"{INDUCTOR}.codecache:HalideCodeCache.generate_halide_async",
        fixed("Halide kernel", "not built before", _HINT),
        required=False,
    ),
    Door("C++ compiler", "build", f"{INDUCTOR}.cpp_builder:_run_compile_cmd", _command),
    Door(
        "assembler",
        "build",
        f"{INDUCTOR}.cpp_builder:run_asm_build_object",
        fixed("assembly file", "Inductor starts the assembler", _HINT),
        required=False,  # starts a process: the audit hook stands behind it
    ),
    Door("vector ISA probe", "build", f"{INDUCTOR}.cpu_vec_isa:VecISA.check_build", _isa),
    Door(
        "compile worker",
        "build",
        f"{INDUCTOR}.compile_worker.subproc_pool:SubprocPool.submit",
        _job,
    ),
    Door(
        "compile worker pool",
        "build",
        f"{INDUCTOR}.compile_worker.tracked_process_pool:TrackedProcessPoolExecutor.submit",
        _job,
        required=False,
    ),
    Door(
        "CUDA graph",
        "record",
        f"{INDUCTOR}.cudagraph_trees:CUDAGraphTreeManager.record_function",
        _record,
    ),
)
