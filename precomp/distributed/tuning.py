"""Ranks that are captured use the same tuned kernels.

Each rank times for itself what Inductor chooses between, and the fastest one differs from run to
run, hence from rank to rank: other code, sums in another order, an entry for each rank. While
capturing, the ranks of the default process group take the choice of the rank that was first with
that kernel. Nobody waits for another rank: a choice is left in the store of the group if it has
none yet.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from precomp import torch_api
from precomp.distributed.exchange import default_group, second_store

T = TypeVar("T")

_lock = threading.Lock()  # kernels of a backward are tuned on threads of autograd


def agree(group: Any, kernel: str, mine: str) -> str:
    """The choice of all ranks of *group* for *kernel*: *mine*, if this rank is the first."""
    key = "precomp/tuned/" + hashlib.sha256(kernel.encode()).hexdigest()
    with _lock:
        return bytes(second_store(group).compare_set(key, "", mine)).decode()


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Patch what Inductor chooses by time for as long as the capture is active."""
    names = torch_api.capture()
    for holder, name, shared in (
        (names.CachingAutotuner, "benchmark_all_configs", _configurations),
        (names.PersistentCache, "lookup", _templates),
        (names.pad_mm, "is_padded_faster", _padding),
        (names.pad_mm, "get_cached_should_pad", _padding),
    ):
        patch(holder, name, shared(getattr(holder, name)))


def _ranks() -> Any:
    """The group whose ranks agree, or None if there is one rank alone."""
    group = default_group()
    return None if group is None or group.size() < 2 else group


def _first(kernel: object, timings: dict[T, float], name: Callable[[T], str]) -> dict[T, float]:
    """*timings* with the choice of all ranks in front, as fast as the fastest; one that does not
    run here, as it runs elsewhere, is left where it is."""
    group = _ranks()
    if group is None or not timings:
        return timings
    named = {name(candidate): candidate for candidate in timings}
    fastest = min(timings, key=timings.__getitem__)
    chosen = named[agree(group, repr((kernel, sorted(named))), name(fastest))]
    if timings[chosen] == float("inf"):
        return timings
    return {chosen: timings[fastest], **{c: t for c, t in timings.items() if c is not chosen}}


def _configurations(timings_of: Callable[..., Any]) -> Callable[..., Any]:
    """Of the configurations of a Triton kernel."""

    @functools.wraps(timings_of)
    def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
        timings = timings_of(self, *args, **kwargs)
        return _first(_kernel(self), timings, lambda launcher: str(launcher.config))

    return benchmark_all_configs


def _kernel(tuner: Any) -> tuple[Any, ...]:
    """A kernel, whichever GPU it is for.

    Triton's own digests will not do: they may differ between a kernel that this process compiled
    and the same one from a worker process, which is a matter of time.
    """
    device = tuner.device_props
    compiled = [tuner.triton_meta.get(part) for part in ("signature", "constants", "configs")]
    return (device.type, device.cc, tuner.fn.src, compiled)


def _templates(lookup: Callable[..., Any]) -> Callable[..., Any]:
    """Of the templates and library calls for one operation: max-autotune."""

    @functools.wraps(lookup)
    def shared(self: Any, choices: Any, op: str, inputs: str, *args: Any, **kwargs: Any) -> Any:
        timings = lookup(self, choices, op, inputs, *args, **kwargs)
        return _first((op, inputs), timings, lambda choice: str(choice.hash_key()))

    return shared


def _padding(decide: Callable[..., Any]) -> Callable[..., Any]:
    """Of whether a matrix product is padded; *decide* returns None if it does not know."""

    @functools.wraps(decide)
    def decided(key: str, *times: float) -> bool | None:
        mine: bool | None = decide(key, *times)
        group = _ranks()
        if mine is None or group is None:
            return mine
        return agree(group, f"padding {key}", str(mine)) == str(True)

    return decided
