"""What a prepared artifact holds: its frame entries, and modules, plans and kernels by digest."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from precomp.data import loads
from precomp.ordinals import Numbers
from precomp.serve import devices, live
from precomp.serve import module as modules
from precomp.serve import plan as plans
from precomp.serve.devices import Placed
from precomp.serve.kernel import KernelTable

if TYPE_CHECKING:
    from precomp.serve.cuda_graphs import Graphed
    from precomp.serve.triton import Entry as Launch

#: The environment variable that turns CUDA graphs off when it is "0" at prepare.
GRAPHS = "PRECOMP_CUDA_GRAPHS"


def graphs_enabled() -> bool:
    """Whether the process wants CUDA graphs."""
    return os.environ.get(GRAPHS) != "0"


class Loaded:
    """One prepared artifact: its records by digest, decoded when first needed.

    *numbers*: ordinals of GPUs in the artifact -> here; None: see precomp.serve.devices.
    """

    def __init__(
        self, blobs: dict[str, bytes], kinds: dict[str, list[str]], numbers: Numbers | None = None
    ) -> None:
        self.blobs = blobs
        self.numbers = numbers
        self.rules = [loads(blobs[digest]) for digest in kinds.get("rules", ())]
        # Entries of one code are tried in the order in which torch compiled them.
        order = dict.fromkeys(digest for rules in self.rules for digest in rules["order"])
        self.frames = [Entry(self, loads(blobs[digest])) for digest in order]
        self.entries = tuple(
            (kind, kind, digest) for kind in ("kernel", "cubin") for digest in kinds.get(kind, ())
        )
        self.kernel = KernelTable(self)
        self.triton: list[Launch] = []
        self.tuned: list[Launch] = []
        if kinds.keys() & {"triton", "tuned"}:
            from precomp.serve.triton import entries_of

            self.triton, self.tuned = (
                entries_of(blobs, kinds.get(kind, []), self.kernel.launcher)
                for kind in ("triton", "tuned")
            )
        #: CUDA graphs around modules and parts of them; None: they are turned off.
        self.graphs: list[Graphed] | None = [] if graphs_enabled() else None
        self._modules: dict[Any, Callable[..., Any]] = {}
        self._plans: dict[Any, Callable[..., Any]] = {}

    def load_kernels(self) -> None:
        """Load all kernels; their bytes are not needed after that."""
        self.kernel.load()
        for _, _, digest in self.entries:
            self.blobs.pop(digest, None)

    def read(self, digest: str) -> bytes:
        """The bytes of an entry."""
        return self.blobs[digest]

    def module(self, digest: str, numbers: Numbers) -> Callable[..., Any]:
        """The ``call`` function of a module entry, on GPUs renumbered by *numbers*."""
        key = (digest, *numbers.items())
        call = self._modules.get(key)
        if call is None:
            record = loads(self.blobs[digest])
            call = modules.load(record, self.kernel, numbers, self.graphs)
            self._modules[key] = call
        return call

    def plan(self, digest: str, numbers: Numbers) -> Callable[..., Any]:
        """The callable of a plan entry, on GPUs renumbered by *numbers*."""
        key = (digest, *numbers.items())
        plan = self._plans.get(key)
        if plan is None:
            record = loads(self.blobs[digest])
            plan = plans.load(record, lambda module: self.module(module, numbers))
            self._plans[key] = plan
        return plan


class Entry:
    """One frame entry of a prepared artifact."""

    _numbers = itertools.count()

    def __init__(self, loaded: Loaded, record: dict[str, Any]) -> None:
        self.loaded = loaded
        self.record = record
        self.number = next(self._numbers)
        self.stale: str | None = None
        # Whether its frame has a graph break: it goes on in another function.
        self.breaks = any(spec[0] in ("resume", "resume_closure") for _, spec in record["globals"])
        # Where it is served; None: on the GPUs of the frame.
        self.placed = devices.settled(record, loaded.numbers)
        self.binds = False  # its guard tree binds to the objects of the first accepted call
        self.live = live.needed(record)  # it is built for the live objects of a frame
        self.bound = 0  # how often that, or choosing a GPU for it, was done
        self._on: dict[int, Placed] = {}

    def on(self, ordinal: int) -> Placed:
        """It on the GPU *ordinal*."""
        placed = self._on.get(ordinal)
        if placed is None:
            placed = self._on[ordinal] = Placed(self.record, {0: ordinal})
        return placed
