"""What a gate looks at when it is entered: settings that compile or fall back without a call.

Imports nothing: what is not loaded cannot be set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Any

from precomp.errors import PrecompError


def _contents(name: str) -> dict[str, Any]:
    """What module *name* holds, {} if it is not imported. Never asks a stand-in for a name."""
    module = sys.modules.get(name)
    return {} if module is None else vars(module)


def rearm() -> int:
    """Let frames that torch gave up on reach Dynamo again. Returns how many codes were set.

    A code object that hit the recompile limit runs eager for ever, in C++, without a call that
    could be watched. With its strategy back to the default its cache entries keep being used, and
    the next miss reaches Dynamo; outside the gate torch gives up on it again by itself.
    """
    evaluator: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    tracker = _contents("torch._dynamo.convert_frame").get("input_codes")
    if tracker is None or evaluator is None:
        return 0
    action = evaluator._FrameAction.DEFAULT
    strategy = evaluator._FrameExecStrategy(action, action)
    count = 0
    for reference in list(tracker.seen):
        code = reference()
        if code is not None and evaluator._debug_get_cache_entry_list(code):
            evaluator.set_code_exec_strategy(code, strategy)
            count += 1
    return count


def check(allow: Collection[str]) -> None:
    """Raise PrecompError if something compiles, tunes or falls back where nothing can see it.

    The message lists all of it; *allow* takes the kind of a finding out.
    """
    findings = [
        f"{text}, or allow {kind!r}"
        for kind, look in _CHECKS
        if kind not in allow
        for text in look()
    ]
    if findings:
        raise PrecompError("precomp: strict_no_compile cannot be entered: " + "; ".join(findings))


def _stance() -> list[str]:
    current = _contents("torch._dynamo.eval_frame").get("_stance")
    stance = getattr(current, "stance", "default")
    if stance != "eager_on_recompile":
        return []
    return [
        "the stance 'eager_on_recompile' runs frames whose guards fail in eager mode, unseen: "
        "reset it with torch.compiler.set_stance('default')"
    ]


def _workers() -> list[str]:
    module = _contents("torch._inductor.async_compile")
    found = []
    ready = getattr(module.get("AsyncCompile"), "_ready_future", None)
    for pool in list(module.get("_pool_set", ())):
        pending = getattr(pool, "pending_futures", None)
        if pending is None:
            items = getattr(pool, "_pending_work_items", None) or {}
            futures = [item.future for item in list(items.values())]
        else:
            futures = list(pending.values())
        count = sum(future is not ready and not future.done() for future in futures)
        if count:
            found.append(f"{count} jobs of Inductor's compile workers are pending: wait for them")
    background = _contents("torch._inductor.compile_fx_async")
    for name in ("_AsyncFxCompile", "_ProgressiveFxCompile"):
        scheme = background.get(name)
        started = getattr(scheme, "_stat_bg_started", 0)
        if started != getattr(scheme, "_stat_bg_finished", 0):
            found.append(f"background compiles of {name} are running: wait for them")
    return found


def _cuda_torch() -> Any:
    """The module torch if it was built for CUDA and has a device, else None."""
    torch: Any = sys.modules.get("torch")
    core = _contents("torch").get("_C")
    if core is None or not hasattr(core, "_cuda_getDeviceCount"):
        return None
    return torch if core._cuda_getDeviceCount() > 0 else None


def _tuning() -> list[str]:
    core = _contents("torch").get("_C")
    found = []
    if getattr(core, "_get_cudnn_benchmark", bool)() and _cuda_torch() is not None:
        found.append("torch.backends.cudnn.benchmark times algorithms in C++: set it to False")
    enabled = getattr(core, "_cuda_tunableop_is_enabled", None)
    tuning = getattr(core, "_cuda_tunableop_tuning_is_enabled", None)
    if enabled and tuning and enabled() and tuning() and _cuda_torch() is not None:
        found.append("TunableOp tunes in C++: call torch.cuda.tunable.tuning_enable(False)")
    return found


def _driver() -> list[str]:
    value = os.environ.get("CUDA_FORCE_PTX_JIT", "0")
    if value in ("", "0") or _cuda_torch() is None:
        return []
    return [f"CUDA_FORCE_PTX_JIT={value} makes the driver compile every kernel it loads: unset it"]


_CHECKS = (
    ("fallback", _stance),
    ("build", _workers),
    ("tune", _tuning),
    ("driver_jit", _driver),
)
