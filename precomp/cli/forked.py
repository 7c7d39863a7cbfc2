"""``precomp run --ranks N``: the ranks of one host, forked from a parent that has imported already.

torch's elastic agent starts and watches them, as below torchrun: same variables, same end when one
fails. What differs is where a rank begins: not with an empty interpreter, but with the modules of
the parent, and with its artifact.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from precomp.errors import PrecompError

# The agent handles these, a rank does not.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def start(
    count: int, preload: Sequence[str], prepare: Callable[[], Any], rank: Callable[[Any], int]
) -> int:
    """Run *rank(prepared)* in *count* forked processes, with *prepared* as *prepare* gave it here.

    *preload*: modules to import before, after ``prepare``. Returns the exit status: 0, or that of
    the first rank that failed. Raises PrecompError when this process cannot be forked safely.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    prepared = prepare()
    for name in preload:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise PrecompError(f"--preload {name}: {error}") from error
    require_forkable()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        run_id=f"precomp-{os.getpid()}",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, _entry(rank, count, prepared))()
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        return max(1, error.get_first_failure()[1].exitcode)
    return 0


def require_forkable() -> None:
    """Raise PrecompError when a fork of this process would be broken: threads, or CUDA."""
    import torch

    if torch.cuda.is_initialized():
        raise PrecompError(
            "--preload: it initialised CUDA, which does not survive a fork; preload less"
        )
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        names = sorted(t.name for t in threading.enumerate() if t is not threading.main_thread())
        raise PrecompError(
            f"--preload: {threads - 1} thread(s) run after it "
            f"({', '.join(names) or 'not of Python'}), which would be missing in the forked ranks; "
            "preload less"
        )


def _entry(rank: Callable[[Any], int], count: int, prepared: Any) -> Callable[[], None]:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    # A rank that joins makes threads of the agent work, for its store, which take locks of the C
    # library. A rank forked meanwhile would find them taken for ever.
    forked = multiprocessing.get_context("fork").Barrier(count)

    def precomp_rank() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        forked.wait()
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed()  # else all ranks would draw the same numbers
        status: Any = None
        try:
            status = rank(prepared)
        except SystemExit as end:
            status = end.code
        finally:
            # multiprocessing ends a process without them.
            atexit._run_exitfuncs()
        if status not in (None, 0):
            raise SystemExit(status)

    return precomp_rank
