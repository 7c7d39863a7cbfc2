"""What a gate looks at when it is entered: settings that compile or fall back without a call.

Imports nothing: what is not loaded cannot be set.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from precomp.errors import PrecompError
from precomp.torch_api import loaded


def rearm() -> int:
    """Let frames that torch gave up on reach Dynamo again. Returns how many codes were set.

    A code object that hit the recompile limit runs eager for ever, in C++, without a call that
    could be watched. With its strategy back to the default its cache entries keep being used, and
    the next miss reaches Dynamo; outside the gate torch gives up on it again by itself.
    """
    count = 0
    for code in loaded.converted_codes() if loaded.has_evaluator() else ():
        if loaded.cache_entries(code):
            loaded.set_strategy(code, "DEFAULT", "DEFAULT")
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
    if loaded.stance() != "eager_on_recompile":
        return []
    return [
        "the stance 'eager_on_recompile' runs frames whose guards fail in eager mode, unseen: "
        "reset it with torch.compiler.set_stance('default')"
    ]


def _workers() -> list[str]:
    found = [
        f"{count} jobs of Inductor's compile workers are pending: wait for them"
        for count in loaded.pending_jobs()
        if count
    ]
    for name in loaded.background_compiles():
        found.append(f"background compiles of {name} are running: wait for them")
    return found


def _tuning() -> list[str]:
    found = []
    if loaded.cudnn_tunes() and loaded.has_cuda():
        found.append("torch.backends.cudnn.benchmark times algorithms in C++: set it to False")
    if loaded.tunable_operators_tune() and loaded.has_cuda():
        found.append("TunableOp tunes in C++: call torch.cuda.tunable.tuning_enable(False)")
    return found


def _driver() -> list[str]:
    value = os.environ.get("CUDA_FORCE_PTX_JIT", "0")
    if value in ("", "0") or not loaded.has_cuda():
        return []
    return [f"CUDA_FORCE_PTX_JIT={value} makes the driver compile every kernel it loads: unset it"]


_CHECKS = (
    ("fallback", _stance),
    ("build", _workers),
    ("tune", _tuning),
    ("driver_jit", _driver),
)
