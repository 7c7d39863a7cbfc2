"""Data between the ranks of a process group through its c10d store, where nobody waits for ever.

An ``Exchange`` is one conversation that all ranks of a group enter: they contribute data, the first
rank of the group answers, and either all ranks leave it with a result or all with the same error.
The store is used and not collectives: it needs no tensors (any backend will do), and a rank that
died is noticed and named.

Each rank that entered an exchange beats: a thread of its own counts up a key. A rank that has
not entered, or whose beat has stopped, for *timeout* seconds ends the exchange for all.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from precomp import errors
from precomp.data import dumps, loads
from precomp.distributed import DEFAULT_TIMEOUT
from precomp.errors import PrecompError

LINGER = 3.0  # seconds
CHUNK = 1 << 20  # bytes; stores limit the size of a value (8 MB in TCPStore)

# A second connection to the store of a group, for threads: (group, connection) by name of group.
_second: dict[str, tuple[int, Any]] = {}
_numbers: collections.Counter[tuple[str, str]] = collections.Counter()

# Errors that keep their class on the way to the other ranks, and the attribute they carry.
_CARRIED: dict[str, str | None] = {
    "ArtifactError": None,
    "ArtifactCorruptError": None,
    "ArtifactVersionError": None,
    "BindingError": None,
    "EnvironmentMismatchError": "differences",
    "PrecompError": None,
    "RankMismatchError": "differences",
    "UnsupportedCaptureError": "problems",
}


class GroupError(PrecompError):
    """Inside an exchange: a failure of the whole group, raised on each rank as PrecompError."""


def default_group() -> Any:
    """The default process group, or None when torch.distributed is not initialised."""
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def global_ranks(group: Any) -> list[int]:
    """The global rank of each rank of *group*: what messages name."""
    import torch.distributed as dist

    return dist.get_process_group_ranks(group)


def second_store(group: Any) -> Any:
    """A connection to the store of *group* for threads: a call that waits blocks the first one.

    One for each group, since connecting may take seconds (a name is looked up).
    """
    known = _second.get(group.group_name)
    if known is None or known[0] != id(group):
        known = _second[group.group_name] = (id(group), group.get_group_store().clone())
    return known[1]


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 1, 3``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _pack_error(error: BaseException, rank: int) -> tuple[Any, ...]:
    """An error as plain data; its text names the rank unless it speaks of all of them."""
    name = type(error).__name__
    if isinstance(error, GroupError):
        return ("PrecompError", str(error), ())
    if isinstance(error, errors.RankMismatchError):
        return (name, str(error), error.differences)
    if isinstance(error, errors.UnsupportedCaptureError):
        return (name, str(error), error.problems)
    if isinstance(error, OSError) and error.errno is not None:
        filename = error.filename
        if isinstance(filename, bytes):
            filename = filename.decode(errors="replace")
        return ("OSError", f"rank {rank}: {error.strerror}", (error.errno, filename))
    if type(error) is getattr(errors, name, None) and name in _CARRIED:
        attribute = _CARRIED[name]
        extra = () if attribute is None else getattr(error, attribute)
        return (name, f"rank {rank}: {error}", extra)
    return ("PrecompError", f"rank {rank}: {name}: {error}", ())


def _unpack_error(packed: tuple[Any, ...]) -> Exception:
    name, text, extra = packed
    if name == "OSError":
        number, filename = extra
        return OSError(number, text, *(() if filename is None else (filename,)))
    kind = getattr(errors, name)
    return kind(text) if _CARRIED[name] is None else kind(text, extra)


class Exchange:
    """One conversation of all ranks of *group* about *purpose*; a context manager.

    Every rank of the group has to enter it; the first rank of the group is the *root*. An exception
    that leaves the ``with`` block on one rank is raised on every rank, with the text
    ``rank N: ...``. Raises PrecompError, the same on every rank, when a rank does not answer for
    *timeout* seconds; *hint* tells what else to do.
    """

    def __init__(
        self, group: Any, purpose: str, timeout: float = DEFAULT_TIMEOUT, *, hint: str = ""
    ) -> None:
        self.purpose = purpose
        self.timeout = timeout
        self._hint = f"; {hint}" if hint else ""
        self.index = group.rank()
        self.size = group.size()
        self.ranks = global_ranks(group)
        self.rank = self.ranks[self.index]
        self._group = group
        self._store = group.get_group_store()
        name = group.group_name, purpose
        self._base = f"precomp/{purpose}/{_numbers[name]}"
        _numbers[name] += 1
        self._steps = 0
        self._done = threading.Event()
        self._beating: threading.Thread | None = None

    @property
    def root(self) -> bool:
        """Whether this rank is the one that answers."""
        return self.index == 0

    # -- beats

    def _beat(self, store: Any) -> None:
        interval = min(1.0, self.timeout / 8)
        while not self._done.wait(interval):
            try:
                store.add(f"{self._base}/beat/{self.index}", 1)
            except RuntimeError:  # the store is gone: the main thread sees it, too
                return

    def __enter__(self) -> Exchange:
        with self._store_errors():
            store = second_store(self._group)
        self._beating = threading.Thread(target=self._beat, args=(store,), daemon=True)
        self._beating.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is not None and not getattr(error, "_precomp_shared", False):
                packed = self._fail(error)
                if isinstance(error, Exception):
                    raise self._shared(packed) from error
        finally:
            self._done.set()
            assert self._beating is not None
            self._beating.join()
            self._leave()

    def _leave(self) -> None:
        """The root stays a moment until the others have left: its process may run the store."""
        key = f"{self._base}/left"
        with contextlib.suppress(RuntimeError):
            if not self.root:
                self._store.add(key, 1)
                return
            end = time.monotonic() + LINGER
            while self._store.add(key, 0) < self.size - 1 and time.monotonic() < end:
                time.sleep(0.005)

    # -- failures

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._shared(
                (
                    "PrecompError",
                    f"{self.purpose}: the store of the process group does not answer any more: "
                    "the process that runs it (rank 0, or torchrun's agent) has ended",
                    (),
                )
            ) from error

    def _shared(self, packed: tuple[Any, ...]) -> Exception:
        error = _unpack_error(packed)
        error._precomp_shared = True  # type: ignore[attr-defined]
        return error

    def _fail(self, error: BaseException) -> tuple[Any, ...]:
        """Make *error* the failure of all ranks. Returns the one that was first, packed."""
        mine = dumps(_pack_error(error, self.rank))
        with self._store_errors():
            first = self._store.compare_set(f"{self._base}/failed", "", mine.hex())
        return loads(bytes.fromhex(_text(first)))

    def give_up(self, error: BaseException) -> None:
        """Let the others fail with *error*, without taking part."""
        with contextlib.suppress(RuntimeError, PrecompError):  # then nobody is left to tell
            self._fail(error)
            self._store.add(f"{self._base}/left", 1)

    def _raise_failure(self) -> None:
        with self._store_errors():
            if self._store.check([f"{self._base}/failed"]):
                text = _text(self._store.get(f"{self._base}/failed"))
                raise self._shared(loads(bytes.fromhex(text)))

    # -- waiting

    def _await(self, key: Callable[[int], str], indexes: Sequence[int]) -> None:
        """Until the *key* of each of these ranks is set."""
        missing = list(indexes)
        pause = 0.001
        beats = {index: (0, time.monotonic() + self.timeout) for index in missing}
        looked = time.monotonic()
        while True:
            with self._store_errors():
                missing = [index for index in missing if not self._store.check([key(index)])]
            if not missing:
                return
            self._raise_failure()
            now = time.monotonic()
            if now - looked > min(1.0, self.timeout / 8):
                looked = now
                self._check_beats(missing, beats)
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def _check_beats(self, missing: list[int], beats: dict[int, tuple[int, float]]) -> None:
        now = time.monotonic()
        silent = []
        for index in missing:
            with self._store_errors():
                beat = self._store.add(f"{self._base}/beat/{index}", 0)
            if beat != beats[index][0]:
                beats[index] = (beat, now + self.timeout)
            elif now > beats[index][1]:
                silent.append(self.ranks[index])
        if silent:
            raise GroupError(
                f"{self.purpose}: no answer from {ranks_text(silent)} within {self.timeout:g} s: "
                "every rank of the group has to take part, and none may have ended"
                + self._hint
            )

    # -- data

    def _put(self, key: str, data: bytes) -> None:
        chunks = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
        with self._store_errors():
            for number, chunk in enumerate(chunks):
                self._store.set(f"{key}/{number}", chunk)
            self._store.set(key, str(len(chunks)))

    def _get(self, key: str) -> bytes:
        with self._store_errors():
            count = int(_text(self._store.get(key)))
            return b"".join(bytes(self._store.get(f"{key}/{n}")) for n in range(count))

    def _key(self, index: int) -> str:
        return f"{self._base}/{self._steps}/{index}"

    def gather(self, value: Any) -> list[Any] | None:
        """The plain data *value* of every rank, in their order, on the root; None elsewhere."""
        self._put(self._key(self.index), dumps(value))
        result = None
        if self.root:
            self._await(self._key, range(self.size))
            result = [loads(self._get(self._key(index))) for index in range(self.size)]
        self._steps += 1
        return result

    def answer(self, value: Any = None) -> Any:
        """The plain data *value* of the root, on every rank."""
        if self.root:
            self._put(self._key(0), dumps(value))
        else:
            self._await(self._key, (0,))
            value = loads(self._get(self._key(0)))
        self._steps += 1
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """The plain data *value* of every rank, on every rank."""
        return list(self.answer(self.gather(value)))

    def offer(self, name: str, data: bytes) -> None:
        """Leave *data* for ranks that ``take`` it."""
        self._put(f"{self._base}/offer/{name}", data)

    def take(self, name: str, index: int) -> bytes:
        """What the rank *index* of the group offers under *name*; waits for it."""
        key = f"{self._base}/offer/{name}"
        self._await(lambda _: key, (index,))
        return self._get(key)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()
