"""What torch and its compiler hold by now: looked at without importing anything, on any torch.

For the strict gate, which also watches versions of torch that have no table. A name that is absent
answers as one that is not set.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from precomp.torch_api import modules


def contents(name: str) -> dict[str, Any]:
    """What module *name* holds, {} if it is not imported. Never asks a stand-in for a name."""
    module = sys.modules.get(name)
    return {} if module is None else vars(module)


# ---------------------------------------------------------------- Dynamo


def has_evaluator() -> bool:
    """Whether torch's frame evaluator is there."""
    return modules.EVALUATOR in sys.modules


def set_strategy(code: CodeType, current: str, recursive: str) -> None:
    """What the evaluator does with *code* and with what it calls: ``"SKIP"`` or ``"DEFAULT"``."""
    evaluator: Any = sys.modules[modules.EVALUATOR]
    actions = evaluator._FrameAction
    strategy = evaluator._FrameExecStrategy(getattr(actions, current), getattr(actions, recursive))
    evaluator.set_code_exec_strategy(code, strategy)


def cache_entries(code: CodeType) -> list[Any]:
    """The compiled versions of *code* in the evaluator's cache."""
    evaluator: Any = sys.modules[modules.EVALUATOR]
    return list(evaluator._debug_get_cache_entry_list(code))


def converted_codes() -> Iterator[CodeType]:
    """The code objects that Dynamo was asked to convert and that still exist."""
    tracker = contents(modules.CONVERT_FRAME).get("input_codes")
    for reference in [] if tracker is None else list(tracker.seen):
        code = reference()
        if code is not None:
            yield code


def stance() -> str:
    """The stance that is set."""
    current = contents(modules.EVAL_FRAME).get("_stance")
    return str(getattr(current, "stance", "default"))


# ---------------------------------------------------------------- Inductor


def pending_jobs() -> Iterator[int]:
    """For each pool of compile workers: how many of its jobs have not ended."""
    module = contents(modules.ASYNC_COMPILE)
    ready = getattr(module.get("AsyncCompile"), "_ready_future", None)
    for pool in list(module.get("_pool_set", ())):
        pending = getattr(pool, "pending_futures", None)
        if pending is None:
            items = getattr(pool, "_pending_work_items", None) or {}
            futures = [item.future for item in list(items.values())]
        else:
            futures = list(pending.values())
        yield sum(future is not ready and not future.done() for future in futures)


def background_compiles() -> Iterator[str]:
    """The schemes of Inductor that compile in the background at the moment."""
    background = contents(modules.ASYNC_FX)
    for name in ("_AsyncFxCompile", "_ProgressiveFxCompile"):
        scheme = background.get(name)
        started = getattr(scheme, "_stat_bg_started", 0)
        if started != getattr(scheme, "_stat_bg_finished", 0):
            yield name


# ---------------------------------------------------------------- CUDA


def has_cuda() -> bool:
    """Whether torch was built for CUDA and sees a device."""
    core: Any = contents("torch").get("_C")
    return hasattr(core, "_cuda_getDeviceCount") and core._cuda_getDeviceCount() > 0


def cudnn_tunes() -> bool:
    """Whether cuDNN may time algorithms."""
    core = contents("torch").get("_C")
    return bool(getattr(core, "_get_cudnn_benchmark", bool)())


def tunable_operators_tune() -> bool:
    """Whether TunableOp is on and may tune."""
    core = contents("torch").get("_C")
    enabled = getattr(core, "_cuda_tunableop_is_enabled", None)
    tuning = getattr(core, "_cuda_tunableop_tuning_is_enabled", None)
    return bool(enabled and tuning and enabled() and tuning())
