"""What a gate looks at when it is entered: settings that compile or fall back without a call.

Imports nothing: what is not loaded cannot be set.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from precomp.errors import PrecompError


def rearm() -> int:
    """Let frames that torch gave up on reach Dynamo again. Returns how many there were.

    A code object that hit the recompile limit runs eager for ever, in C++, without a call that
    could be watched. With its strategy back to the default its cache entries keep being used, and
    the next miss reaches Dynamo; outside the gate torch gives up on it again by itself.
    """
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    evaluator: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    tracker = getattr(convert_frame, "input_codes", None)
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
    """Raise PrecompError if a setting makes torch tune or fall back where nothing can see it."""
    problems: list[str] = []
    if "fallback" not in allow:
        problems += _stance()
    if problems:
        raise PrecompError("precomp: strict_no_compile cannot be entered: " + "; ".join(problems))


def _stance() -> list[str]:
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    stance = getattr(getattr(eval_frame, "_stance", None), "stance", "default")
    if stance == "eager_on_recompile":
        return [
            "torch.compiler.set_stance('eager_on_recompile') runs a frame whose guards fail in "
            "eager mode, unseen (reset the stance, or allow 'fallback')"
        ]
    return []
