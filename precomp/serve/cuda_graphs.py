"""CUDA graphs around what torch's compiled program would replay (docs/cuda_graphs.md).

A ``Graphed`` stands before the call of a module or of one partition of it. The first call with some
sizes runs directly, a later one is recorded, the others copy their inputs to where the recording
reads them and replay it. A recording whose outputs are still in use is not replayed: another one is
made, up to a limit, and beyond it the call runs directly. All of these give the same bits.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import torch

from precomp import torch_api
from precomp.torch_api.objects import storage_number

Call = Callable[[list[Any]], Sequence[Any]]
Copied = dict[int, tuple[int, ...]]  # argument -> its dimensions of which one element is copied

SIZES = 16  # different sizes for which one call is recorded
KEPT_AT_ONCE = 4  # recordings for one of them
RECORDED = 16  # recordings made in all for one of them
COPIED_OUT = 1 << 20  # bytes of outputs that are copied out when they are kept
FEW = 2  # how many of them

MOVES = 2  # how often a static argument may move before it counts as not static
FIRST = "before it was recorded"

# Graphs whose recording failed: torch's allocator may still ask them.
_failed: list[Any] = []
_address = torch.Tensor.data_ptr

# Two recordings at the same time would disturb each other.
_recording = threading.RLock()
# All graphs of a GPU read the offset of their random numbers in one place, set for each replay.
_replaying = threading.RLock()
_streams: dict[torch.device, Any] = {}  # of the last replay
# Storages in the memory of recorded graphs: that of an output is the same after each replay.
_owners: weakref.WeakValueDictionary[int, Recording] = weakref.WeakValueDictionary()


class Gpu:
    """What a recording needs of one GPU."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._side: Any = None

    def capturing(self) -> bool:
        """Whether somebody records what this thread does now."""
        return torch.cuda.is_current_stream_capturing()

    def follow(self, stream: Any) -> Any:
        """Let the current stream wait for what was given before to *stream*, and to that of the
        last replay on this GPU; returns the current one."""
        current = torch.cuda.current_stream(self.device)
        for before in (stream, _streams.get(self.device)):
            if before is not None and current != before:
                current.wait_stream(before)
        _streams[self.device] = current
        return current

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def record(self, call: Call, args: list[Any]) -> tuple[Sequence[Any], Callable[[], None]]:
        """What *call* returns while its kernels are recorded, and what runs these."""
        names = torch_api.cuda_graphs()
        with torch.cuda.device(self.device):
            if self._side is None:
                self._side = torch.cuda.Stream()
            torch.cuda.current_blas_handle()  # made outside, if this thread has none yet
            before = torch.cuda.current_stream()
            graph = torch.cuda.CUDAGraph()
            pool = torch.cuda.graph_pool_handle()
            # cuBLAS keeps a workspace: that of the graph is its own.
            names.clear_cublas_workspaces()
            try:
                with torch.cuda.graph(
                    graph, pool=pool, stream=self._side, capture_error_mode="thread_local"
                ):
                    outputs = call(args)
            except BaseException:
                torch.cuda.set_stream(before)  # torch leaves its own current if the end fails
                _failed.append(graph)
                raise
            finally:
                names.clear_cublas_workspaces()
            # torch has set the offset of the graph's random numbers on the stream that records,
            # and sets it on the current one for each replay: that must come later.
            before.wait_stream(self._side)
        return outputs, graph.replay


def _squeezed(tensor: Any, dims: tuple[int, ...]) -> Any:
    """*tensor* with one of the equal elements along *dims*."""
    for dim in dims:
        tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _repeated(tensor: Any) -> tuple[int, ...] | None:
    """The dimensions along which all elements are one; None: elements overlap otherwise."""
    steps = sorted(
        (step, size)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        if step != 0 and size > 1
    )
    reach = 0
    for step, size in steps:
        if step <= reach:
            return None
        reach += step * (size - 1)
    return tuple(
        dim
        for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if step == 0 and size > 1
    )


def _own(tensor: Any) -> Any:
    """A copy of *tensor* with the same strides."""
    copy = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _may_be_seed(value: Any) -> bool:
    """Whether *value* may be a random state that a recorded graph left on the GPU."""
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.dtype is torch.int64


class Recording:
    """One recorded graph: its static inputs and outputs, and what runs it.

    An output is ``("new", tensor, size, strides, 0)``, a tensor in the memory of the graph;
    ``("input", i)``, the argument i itself; ``("view", i, size, strides, offset)``, a view of its
    storage; ``("output", i)``, the output i again; or ``("value", value)``.
    """

    def __init__(self, gpu: Any, call: Call, args: list[Any], copied: Copied) -> None:
        names = torch_api.serve()
        self._reinterpret = names.reinterpret_tensor
        self._uses = names.storage_use_count
        self._copy = names.foreach_copy_
        self._gpu = gpu
        self._stream: Any = None
        self.copied = copied
        inputs = list(args)
        for i in copied:
            arg = args[i]
            inputs[i] = torch.empty_strided(
                arg.size(), arg.stride(), dtype=arg.dtype, device=arg.device
            )
        self._inputs = [inputs[i] for i in copied]
        self._buffers = [_squeezed(inputs[i], dims) for i, dims in copied.items()]
        self._fixed = [
            i for i, arg in enumerate(args) if i not in copied and isinstance(arg, torch.Tensor)
        ]
        self._addresses = [_address(args[i]) for i in self._fixed]
        outputs, self._replay = gpu.record(call, list(inputs))
        self.outputs = [self._described(i, outputs, inputs) for i in range(len(outputs))]
        del outputs
        # The storages in the graph's own memory, and how many hold them here: tensors, and Python.
        tensors = {id(item[1]): item[1] for item in self.outputs if item[0] == "new"}
        numbers = collections.Counter(map(storage_number, tensors.values()))
        mine = collections.Counter(map(storage_number, [*self._inputs, *self._squeezed_inputs()]))
        storages = {storage_number(x): x.untyped_storage() for x in tensors.values()}
        # torch counts a storage that Python has seen once more.
        self._storages = [
            [storage, n, min(numbers[n] + mine[n] + 1, self._uses(n)), 0]
            for n, storage in storages.items()
        ]
        del tensors, storages
        for row in self._storages:
            row[3] = [getrefcount(storage) for storage, *_ in [row]][0]
        self._alone = {
            i: storage_number(item[1])
            for i, item in enumerate(self.outputs)
            if item[0] == "new"
            and numbers[storage_number(item[1])] == 1
            and _repeated(item[1]) == ()
            and not _may_be_seed(item[1])
        }
        for _, number, *_ in self._storages:
            _owners[number] = self

    def _squeezed_inputs(self) -> list[Any]:
        """Views of static inputs, which count as tensors of their own."""
        pairs = zip(self._buffers, self._inputs, strict=True)
        return [view for view, whole in pairs if view is not whole]

    def _described(self, at: int, outputs: Sequence[Any], inputs: list[Any]) -> tuple[Any, ...]:
        """How the output *at* is made."""
        out = outputs[at]
        if not isinstance(out, torch.Tensor):
            if out is not None and type(out) not in (int, float, bool):
                raise TypeError(f"CUDA graph: an output is a {type(out).__qualname__}")
            return ("value", out)
        for i in range(at):
            if out is outputs[i]:
                return ("output", i)
        number = storage_number(out)
        for i in self._fixed:
            if out is inputs[i]:
                return ("input", i)
        size, strides = tuple(out.size()), tuple(out.stride())
        for i in self._fixed:
            if storage_number(inputs[i]) == number:
                offset = out.storage_offset() - inputs[i].storage_offset()
                return ("view", i, size, strides, offset)
        return ("new", self._reinterpret(out, size, strides, 0), size, strides, 0)

    def fits(self, args: list[Any]) -> bool:
        """Whether the arguments that are not copied are where the graph reads them."""
        return [_address(args[i]) for i in self._fixed] == self._addresses

    def in_use(self) -> set[int]:
        """The storages of outputs that somebody holds."""
        uses = self._uses
        return {
            number
            for storage, number, held, seen in self._storages
            if uses(number) > held or getrefcount(storage) > seen
        }

    def small(self, kept: set[int]) -> set[int]:
        """The outputs in the storages *kept* if they are few, small and whole."""
        few = {i for i, number in self._alone.items() if number in kept}
        if len(few) < len(kept) or len(few) > FEW:
            return set()
        return few if sum(self.outputs[i][1].nbytes for i in few) <= COPIED_OUT else set()

    def run(self, args: list[Any], out: set[int]) -> list[Any]:
        """The outputs for *args*, which it empties; those in *out* in memory of their own."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._run(args, out)
        return self._run(args, out)

    def _run(self, args: list[Any], out: set[int]) -> list[Any]:
        with _replaying:
            self._stream = self._gpu.follow(self._stream)
            if self.copied:
                sources = [_squeezed(args[i], dims) for i, dims in self.copied.items()]
                self._copy(self._buffers, sources)
                del sources
            self._replay()
        reinterpret = self._reinterpret
        made: list[Any] = []
        for i, (kind, value, *view) in enumerate(self.outputs):
            if kind == "new":
                made.append(_own(value) if i in out else reinterpret(value, *view))
            elif kind == "view":
                made.append(reinterpret(args[value], *view))
            elif kind == "output":
                made.append(made[value])
            else:
                made.append(args[value] if kind == "input" else value)
        args.clear()
        return made


class Sizes:
    """What is known of the calls with certain sizes."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []  # the last used first
        self.recorded = 0
        self.seen: dict[int, int] = {}  # static argument -> its address in the last direct call
        self.moved: collections.Counter[int] = collections.Counter()
        self.out: set[int] = set()  # outputs that are copied out


class Graphed:
    """The call of a module or partition, with CUDA graphs.

    *static*: arguments that torch expects at the same address in each call; *mutated*: those that
    the call changes. ``counts``: how often it was "recorded", "replayed", and run directly, by
    reason.
    """

    def __init__(self, call: Call, gpu: Any, static: Sequence[int], mutated: Sequence[int]) -> None:
        self._call = call
        self._gpu = gpu
        self._static = frozenset(static)
        self._mutated = frozenset(mutated)
        self._sizes: dict[Any, Sizes] = {}
        self._numbers: list[int] | None = None  # arguments that are no tensors
        self._lock = threading.Lock()
        self.counts: collections.Counter[str] = collections.Counter()

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._gpu.capturing():
            self.counts["inside another CUDA graph"] += 1
            return self._call(args)
        if not self._lock.acquire(blocking=False):
            return self._direct(args, "while another thread was in it")
        try:
            return self._run(args)
        finally:
            self._lock.release()

    def _run(self, args: list[Any]) -> Sequence[Any]:
        if self._numbers is None:
            self._numbers = [i for i, arg in enumerate(args) if not isinstance(arg, torch.Tensor)]
        values = tuple([args[i] for i in self._numbers])
        if any(type(value) is not int for value in values):
            return self._direct(args, "an argument is neither a tensor nor an integer")
        key = (torch.is_inference_mode_enabled(), values)
        sizes = self._sizes.get(key)
        if sizes is None:
            if len(self._sizes) == SIZES:
                return self._direct(args, f"more than {SIZES} different sizes")
            self._sizes[key] = sizes = Sizes()
            return self._noted(sizes, args, FIRST)
        for recording in sizes.recordings:
            if not recording.fits(args):
                continue
            kept = recording.in_use()
            if not kept:
                if recording is not sizes.recordings[0]:
                    sizes.recordings.remove(recording)
                    sizes.recordings.insert(0, recording)
                self.counts["replayed"] += 1
                return recording.run(args, sizes.out)
            small = recording.small(kept)
            if small - sizes.out:
                sizes.out |= small
                shapes = ", ".join(str(tuple(recording.outputs[i][1].shape)) for i in sorted(small))
                return self._noted(sizes, args, f"output {shapes} was in use, copied from now on")
            if small:  # in use since the first run
                self._drop(sizes, recording)
                break
        return self._record(sizes, args)

    def _record(self, sizes: Sizes, args: list[Any]) -> Sequence[Any]:
        """Make one more recording, unless something is against it."""
        copied = self._to_copy(sizes, args)
        if isinstance(copied, str):
            return self._noted(sizes, args, copied)
        if sizes.recorded == RECORDED:
            return self._noted(sizes, args, f"recorded {RECORDED} times already")
        if len(sizes.recordings) == KEPT_AT_ONCE:
            unused = [recording for recording in sizes.recordings if not recording.in_use()]
            if not unused:
                return self._noted(sizes, args, "all outputs were in use")
            self._drop(sizes, unused[-1])
        recording = self._new(args, copied)
        sizes.recordings.insert(0, recording)
        sizes.recorded += 1
        return recording.run(args, sizes.out)

    def _drop(self, sizes: Sizes, recording: Recording) -> None:
        """Forget *recording*: its memory is given back, but for outputs in use."""
        with _recording:
            self._gpu.synchronize()
        sizes.recordings.remove(recording)

    def _new(self, args: list[Any], copied: Copied) -> Recording:
        with _recording:
            recording = Recording(self._gpu, self._call, args, copied)
        self.counts["recorded"] += 1
        return recording

    def _to_copy(self, sizes: Sizes, args: list[Any]) -> Copied | str:
        """The arguments to copy before each replay, or why this call is not recorded.

        An argument is read where it is if it is the output of a recording, or if torch calls it
        static and it was there in the call before.
        """
        copied: Copied = {}
        anywhere = len(sizes.recordings) == KEPT_AT_ONCE - 1  # the last one fits all addresses
        for i, arg in enumerate(args):
            if not isinstance(arg, torch.Tensor):
                continue
            if arg.device != self._gpu.device:
                return f"an argument is on {arg.device}"
            if not anywhere and storage_number(arg) in _owners:
                continue
            if i in self._static and sizes.moved[i] < MOVES:
                if sizes.seen.get(i) != _address(arg):
                    return "a static argument has moved"
                continue
            if i in self._mutated:
                return "an argument that it changes is not static"
            repeated = _repeated(arg)
            if repeated is None:
                return "elements of an argument overlap"
            copied[i] = repeated
        return copied

    def _noted(self, sizes: Sizes, args: list[Any], reason: str) -> Sequence[Any]:
        """Run directly, and note where the static arguments are."""
        for i in self._static.difference(self._numbers or ()):
            address = _address(args[i])
            if sizes.seen.setdefault(i, address) != address:
                sizes.seen[i] = address
                sizes.moved[i] += 1
        return self._direct(args, reason)

    def _direct(self, args: list[Any], reason: str) -> Sequence[Any]:
        self.counts[reason] += 1
        if not any(_may_be_seed(arg) and storage_number(arg) in _owners for arg in args):
            return self._call(args)
        # Attention with dropout leaves its random state on the GPU when it is recorded, and its
        # backward reads it there only when it is recorded, too: recorded for this call alone.
        recording = self._new(args, {})
        outputs = recording.run(args, set())
        with _recording:
            self._gpu.synchronize()
        return outputs


def used(graphs: Sequence[Graphed]) -> dict[str, int] | None:
    """The counts of *graphs* together; None if there are none."""
    total: collections.Counter[str] = collections.Counter()
    for graph in graphs:
        total.update(graph.counts)
    return dict(total) if graphs else None
