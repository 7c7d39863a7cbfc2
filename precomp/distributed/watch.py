"""A violation on one rank, known to all ranks.

A rank that raises a CompileViolation stops taking part in collectives; the others would only learn
that a connection was closed, or wait. So the rank first leaves the violation in the c10d store of
the group, where a thread of each other rank looks for it, and hands it to the strict gate there: it
raises the same violation when it is left.
"""

from __future__ import annotations

import atexit
import itertools
import json
import threading
import time
from typing import Any

from precomp import _core
from precomp.errors import CompileViolation
from precomp.serve.standin_build import skip_code

INTERVAL = 0.5  # seconds between two looks, more in groups of over 500 ranks
ACKNOWLEDGE = 2.0  # seconds that the violating rank waits for the others to know
SETTLE = 2.0  # seconds after a failed collective in which its reason may arrive

_numbers = itertools.count()


class Watch:
    """What one process tells and hears about violations in one group."""

    def __init__(self, group: Any) -> None:
        from precomp.distributed.exchange import global_ranks, second_store

        ranks = global_ranks(group)
        self.rank = ranks[group.rank()]
        self.size = len(ranks)
        self.heard: CompileViolation | None = None
        self._interval = max(INTERVAL, self.size / 1000)
        self._store = second_store(group)
        # A violation ends what was watched, not what is prepared in this group after it.
        self._key = f"precomp/violation/{next(_numbers)}"
        self._lock = threading.Lock()
        self._told = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="precomp watch", daemon=True)
        self._thread.start()

    # -- this rank violates

    def tell(self, violation: CompileViolation) -> None:
        """Make *violation* known to all ranks, unless something is already."""
        with self._lock:
            if self._told or self.heard is not None or self._stopped.is_set():
                return
            self._told = True
            violation.rank = self.rank
            text = json.dumps([self.rank, *violation.args])
            try:
                if bytes(self._store.compare_set(self._key, "", text)).decode() != text:
                    self._store.add(f"{self._key}/known", 1)  # another rank was first
                    return
                end = time.monotonic() + ACKNOWLEDGE
                # The store may live in this process, which may end now.
                while self._store.add(f"{self._key}/known", 0) < self.size - 1:
                    if time.monotonic() > end:
                        break
                    time.sleep(0.01)
            except RuntimeError:  # the store is gone, and with it whoever could hear
                return

    # -- another rank violates

    def _look(self) -> bool:
        """Whether a violation of another rank is known, now or before."""
        with self._lock:
            if self._told or self.heard is not None:
                return self.heard is not None
            if not self._store.check([self._key]):
                return False
            rank, *args = json.loads(bytes(self._store.get(self._key)))
            self.heard = CompileViolation(*args)
            self.heard.rank = rank
            _core.gate_record(self.heard)
            self._store.add(f"{self._key}/known", 1)
            return True

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._interval):
                if self._look():
                    return
        except RuntimeError:  # the store is gone: the group has ended
            return

    def settle(self, gate: _core.Gate, error: BaseException | None) -> None:
        """Before *gate* is left by *error*: a failed collective may have its reason elsewhere."""
        if gate.violations:  # perhaps recorded where no Python code could run
            self.tell(gate.violations[0])
        if not isinstance(error, RuntimeError):
            return
        end = time.monotonic() + SETTLE
        try:
            while not self._look() and time.monotonic() < end and not self._told:
                time.sleep(0.02)
        except RuntimeError:  # the store is gone
            pass
        if self.heard is not None and self.heard not in gate.violations:
            _core.gate_record(self.heard)

    def stop(self) -> None:
        """Neither tell nor hear any more."""
        self._stopped.set()
        self._thread.join(timeout=1)


_watch: Watch | None = None

for _function in (Watch.tell, Watch.settle, Watch._look):
    skip_code(_function.__code__, recursive=True)


def start(group: Any) -> None:
    """Watch *group* (a process watches one, the first; further calls do nothing)."""
    global _watch
    if _watch is None and group.size() > 1:
        _watch = Watch(group)
        _core.gate_listen(_watch.tell)
        atexit.register(stop)


def settle(gate: _core.Gate, error: BaseException | None) -> None:
    """Called by every strict gate before it is left."""
    if _watch is not None:
        _watch.settle(gate, error)


def stop() -> None:
    """Undo ``start``."""
    global _watch
    if _watch is not None:
        _core.gate_listen(None)
        atexit.unregister(stop)
        _watch.stop()
        _watch = None
