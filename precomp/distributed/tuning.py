"""Ranks that are captured use the same tuned kernels.

Each rank times for itself what is chosen between, and the fastest one differs from run to run,
hence from rank to rank: other code, sums in another order, an entry for each rank. While
capturing, the ranks of the default process group go by the times of the rank that was first with a
kernel, and so choose alike. Nobody waits for another rank: times are left in the store of the
group if it has none yet.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from precomp import torch_api
from precomp.distributed.exchange import default_group, second_store

T = TypeVar("T")

_lock = threading.Lock()  # kernels of a backward are tuned on threads of autograd


def first(what: object, mine: T) -> T:
    """What the first rank found out about *what*: *mine*, if it is this one, or the only one.

    *what* is told from other things by its repr. *mine* is True, False, a number of seconds or
    several of them; where one is not a finite float, *mine* is right here alone.
    """
    numbers: Any = mine if isinstance(mine, list | tuple) else [mine]
    group = default_group()
    if (
        group is None
        or group.size() < 2
        or not all(isinstance(n, bool | float) and math.isfinite(n) for n in numbers)
    ):
        return mine
    key = "precomp/tuned/" + hashlib.sha256(repr(what).encode()).hexdigest()
    with _lock:
        found = second_store(group).compare_set(key, "", json.dumps(mine))
    theirs: T = json.loads(bytes(found))
    return theirs


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Patch what Inductor chooses by for as long as the capture is active."""
    names = torch_api.capture()
    for holder, name, shared in (
        (names.CachingAutotuner, "bench", _configuration),
        (names.MultiKernelCall, "benchmark_sub_kernels", _kernels),
        (names.PersistentCache, "lookup", _templates),
        (names.pad_mm, "is_padded_faster", _padding),
        (names.pad_mm, "get_cached_should_pad", _padding),
    ):
        patch(holder, name, shared(getattr(holder, name)))


def _kernel(tuner: Any) -> tuple[Any, ...]:
    """A Triton kernel of Inductor's, whichever GPU it is for.

    Triton's own digests will not do: they may differ between a kernel that this process compiled
    and the same one from a worker process, which is a matter of time.
    """
    device = tuner.device_props
    compiled = [tuner.triton_meta.get(part) for part in ("signature", "constants", "configs")]
    return (device.type, device.cc, tuner.fn.src, compiled, tuner.size_hints)


def _configuration(time: Callable[..., float]) -> Callable[..., float]:
    """One configuration of a kernel is timed."""

    @functools.wraps(time)
    def bench(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> float:
        mine = time(self, launcher, *args, **kwargs)
        return first((_kernel(self), str(launcher.config)), mine)

    return bench


def _kernels(time: Callable[..., list[float]]) -> Callable[..., list[float]]:
    """Several kernels that do the same are timed."""

    @functools.wraps(time)
    def benchmark_sub_kernels(self: Any, *args: Any, **kwargs: Any) -> list[float]:
        mine = time(self, *args, **kwargs)
        return first([_kernel(tuner) for tuner in self.kernels], mine)

    return benchmark_sub_kernels


def _templates(times: Callable[..., Any]) -> Callable[..., Any]:
    """Templates and library calls for one operation are timed: max-autotune."""

    @functools.wraps(times)
    def lookup(self: Any, choices: Any, *args: Any, **kwargs: Any) -> dict[Any, float]:
        mine = times(self, choices, *args, **kwargs)
        op, inputs, *_ = args
        return {
            choice: first((op, inputs, choice.hash_key()), time) for choice, time in mine.items()
        }

    return lookup


def _padding(decide: Callable[..., bool | None]) -> Callable[..., bool | None]:
    """It is decided whether a matrix product is padded; None if that is not known."""

    @functools.wraps(decide)
    def decided(key: str, *times: float) -> bool | None:
        return first(("padding", key), decide(key, *times))

    return decided
