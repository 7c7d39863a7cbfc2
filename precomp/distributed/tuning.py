"""Ranks that are captured use the same tuned configuration of a kernel.

Each rank times the configurations of a kernel for itself, and the fastest one differs from run to
run, hence from rank to rank: other code, sums in another order, an entry for each rank. While
capturing, the ranks of the default process group take the choice of the rank that was first with
that kernel. Nobody waits for another rank: a choice is left in the store of the group if it has
none yet.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

from precomp import torch_api
from precomp.distributed.exchange import default_group, second_store

_lock = threading.Lock()  # kernels of a backward are tuned on threads of autograd


def agree(group: Any, kernel: str, mine: str) -> str:
    """The choice of all ranks of *group* for *kernel*: *mine*, if this rank is the first."""
    key = "precomp/tuned/" + hashlib.sha256(kernel.encode()).hexdigest()
    with _lock:
        return bytes(second_store(group).compare_set(key, "", mine)).decode()


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Patch Inductor's tuning for as long as the capture is active."""
    tuner = torch_api.capture().CachingAutotuner
    timings_of = tuner.benchmark_all_configs

    @functools.wraps(timings_of)
    def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
        timings = timings_of(self, *args, **kwargs)
        group = default_group()
        if group is None or group.size() < 2 or not timings:
            return timings
        launchers = {str(launcher.config): launcher for launcher in timings}
        mine = str(min(timings, key=timings.get).config)
        chosen = launchers[agree(group, _candidates(self, launchers), mine)]
        # One that does not run here, as it runs elsewhere, is not taken.
        return timings if timings[chosen] == float("inf") else {chosen: timings[chosen]}

    patch(tuner, "benchmark_all_configs", benchmark_all_configs)


def _candidates(tuner: Any, configs: Iterable[str]) -> str:
    """What the ranks choose from: a kernel and its configurations, whichever GPU they are for.

    Triton's own digests will not do: they may differ between a kernel that this process compiled
    and the same one from a worker process, which is a matter of time.
    """
    device = tuner.device_props
    compiled = [tuner.triton_meta.get(part) for part in ("signature", "constants", "configs")]
    return repr((device.type, device.cc, tuner.fn.src, compiled, sorted(configs)))
