"""Types of the extension module precomp._core (csrc/binding)."""

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, TracebackType
from typing import Any, final

from typing_extensions import Buffer, Self, disjoint_base

from precomp.errors import CompileViolation

__version__: str

# module.c
def bind_torch(names: dict[str, Any], /) -> None: ...
def read_tensors_like(example: Any, pointer: int, /) -> bool: ...

# artifact.c
@final
class Artifact:
    def __new__(cls, path: str | bytes | os.PathLike[str]) -> Artifact: ...
    @property
    def path(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def environment(self) -> dict[str, str]: ...
    @property
    def entries(self) -> tuple[tuple[str, str, str, int, int], ...]: ...
    @property
    def closed(self) -> bool: ...
    def read(self, digest: str, /) -> bytes: ...
    def load_all(
        self, kinds: Iterable[str] | None = None, threads: int = 0
    ) -> dict[str, bytes]: ...
    def verify(self, threads: int = 0) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Artifact: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

# artifact_writer.c
def write_artifact(
    path: str | bytes | os.PathLike[str],
    environment: dict[str, str],
    entries: Iterable[tuple[str, str, bytes]],
    level: int = 9,
) -> str: ...
def strip_shared_object(image: Buffer, /) -> bytes: ...
def sha256(data: Buffer, /) -> str: ...

# frame_server.c
@final
class FrameReturn:
    def __new__(
        cls,
        guarded_code: Any,
        strategy: Any,
        apply_to_code: bool = True,
        skip_reason: str | None = None,
    ) -> FrameReturn: ...
    @property
    def guarded_code(self) -> Any: ...
    @property
    def frame_exec_strategy(self) -> Any: ...
    @property
    def skip_reason(self) -> str | None: ...
    @property
    def apply_to_code(self) -> bool: ...

@final
class FrameServer:
    def __new__(
        cls,
        find: Callable[[CodeType], FrameReturn | tuple[int, ...]],
        build: Callable[[int, CodeType, dict[str, Any]], tuple[Any, FrameReturn] | None],
        miss: Callable[[Any, Any, Any, tuple[int, ...]], Any],
    ) -> FrameServer: ...
    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any, /) -> Any: ...
    def accept(self, frame: Any, /) -> FrameReturn | tuple[int, ...]: ...
    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        /,
    ) -> Any: ...
    def forget(self) -> None: ...
    @property
    def served(self) -> dict[int, int]: ...

# capture.c
@disjoint_base
class Capture:
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = ...,
        error: BaseException | None = ...,
        traceback: TracebackType | None = ...,
        /,
    ) -> bool: ...
    def patch(self, owner: Any, name: str, new: Any, /) -> None: ...
    @property
    def state(self) -> str: ...
    def _begin(self) -> None: ...
    def _end(self) -> None: ...
    def _abandon(self) -> None: ...

# codec.c, code_digest.c
class Stale(Exception): ...

def decode(encoded: tuple[Any, ...], twins: dict[tuple[str, str], Any] | None = None) -> Any: ...
def decode_code(
    encoded: tuple[Any, ...],
    filename: str,
    firstlineno: int,
    twins: dict[tuple[str, str], Any] | None = None,
) -> CodeType: ...
def code_digest(code: CodeType, /) -> str: ...
def code_at(
    module: str,
    steps: tuple[tuple[str, Any], ...],
    twins: dict[tuple[str, str], Any] | None = None,
) -> CodeType: ...
def object_at(
    module: str,
    steps: tuple[tuple[str, Any], ...],
    twins: dict[tuple[str, str], Any] | None = None,
) -> Any: ...
def kind_of(value: Any, /) -> str: ...
def unwrapped(value: Any, /) -> Any: ...

# guard_tape.c
@final
class GuardTape:
    def __new__(cls, record: dict[str, Any]) -> GuardTape: ...
    @property
    def ops(self) -> int: ...
    @property
    def binds(self) -> bool: ...
    def replay(
        self,
        f_globals: dict[str, Any],
        enum_type: Any,
        twins: dict[tuple[str, str], Any] | None,
        decode_function: Callable[..., Any],
        live: tuple[Any, ...] = (),
        /,
    ) -> tuple[Any, list[Any]]: ...

# bound_call.c
@final
class BoundCall:
    def __new__(cls, function: Callable[..., Any], first: tuple[Any, ...]) -> BoundCall: ...
    def __call__(self, *args: Any) -> Any: ...
    @property
    def function(self) -> Callable[..., Any]: ...
    @property
    def first(self) -> tuple[weakref.ref[Any], ...]: ...

# tap.c
@final
class Tap:
    def __new__(
        cls,
        original: Callable[..., Any],
        sink: Callable[[tuple[Any, ...], dict[str, Any] | None, Any], Any],
    ) -> Tap: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None, /) -> Any: ...
    @property
    def sink(self) -> Callable[..., Any]: ...

# gate.c, door.c
@disjoint_base
class Gate:
    def __new__(cls, allow: Iterable[str] = ...) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None = ...,
        exc: BaseException | None = ...,
        traceback: TracebackType | None = ...,
        /,
    ) -> bool: ...
    @property
    def violations(self) -> tuple[CompileViolation, ...]: ...
    @property
    def allow(self) -> frozenset[str]: ...
    @property
    def active(self) -> bool: ...

@final
class gate_exempt:
    def __enter__(self) -> Self: ...
    def __exit__(self, /, *args: object) -> bool: ...

@final
class Door:
    def __new__(
        cls,
        original: Callable[..., Any],
        describe: Callable[
            [tuple[Any, ...], dict[str, Any]], tuple[str, str, str, str | None, str] | None
        ],
        kinds: tuple[str, ...],
    ) -> Self: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    @property
    def original(self) -> Callable[..., Any]: ...

def gate_trip(
    kind: str,
    what: str,
    why: str | None = ...,
    where: str | None = ...,
    hint: str | None = ...,
) -> None: ...
def gate_active(kind: str | None = ..., /) -> bool: ...
def gate_record(violation: CompileViolation, /) -> int: ...
def gate_listen(listener: Callable[[CompileViolation], object] | None, /) -> None: ...
def gate_where() -> str: ...
def gate_watch_nvrtc() -> str | None: ...

# kernel.c
def check_kernel(data: Buffer, /) -> None: ...
def load_kernel(
    data: bytes | bytearray | memoryview, name: str = "kernel", label: str | None = None, /
) -> Callable[..., None]: ...
def load_kernels(
    kernels: Sequence[tuple[str, bytes]], threads: int = 0, /
) -> list[Callable[..., None]]: ...

# cuda_library.c, cuda_launcher.c
@final
class CudaLibrary:
    label: str
    arch: int
    toolkit: int
    symbols: tuple[str, ...]
    loaded: bool
    def __new__(cls, image: bytes, label: str) -> CudaLibrary: ...

@final
class CudaLauncher:
    library: CudaLibrary
    label: str
    run: CudaLauncher
    def __new__(cls, library: CudaLibrary, record: dict[str, Any]) -> CudaLauncher: ...
    def __call__(self, *args: Any, stream: int) -> None: ...

# triton_dispatch.c, triton_key.c
@final
class TritonDispatch:
    miss: Callable[..., Any]
    def __new__(
        cls,
        parameters: tuple[tuple[Any, ...], ...],
        elements: dict[Any, str],
        element: Callable[[Any], str],
        constant: Callable[[Any, bool], str | None],
        miss: Callable[..., Any],
        load: Callable[[Any], CudaLauncher],
        device: Callable[[], int],
        stream: Callable[[int], int],
        archs: tuple[int, ...],
        watched: tuple[tuple[Any, str, Any], ...],
        empty: tuple[list[Any], ...],
        globals: tuple[tuple[dict[str, Any], str, Any, bool], ...],
    ) -> TritonDispatch: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def add(self, arch: int, words: tuple[str, ...], value: Any, /) -> None: ...
    def describe(self, *args: Any, **kwargs: Any) -> tuple[str | None, ...]: ...

def cuda_devices() -> tuple[tuple[int, int], ...]: ...
def cuda_driver(path: str | bytes, /) -> None: ...
def strip_cubin(image: Buffer, /) -> bytes: ...

# plan.c
@final
class Plan:
    """Runs a compiled graph as AOTAutograd's runtime wrappers do."""

    kind: str
    inputs: int
    outputs: int
    forward_call: Callable[[list[Any]], Any]
    backward_call: Callable[[list[Any]], Any] | None
    @property
    def apply_boxed(self) -> Any: ...
    def __new__(
        cls,
        record: dict[str, Any],
        forward_call: Callable[[list[Any]], Any],
        backward_call: Callable[[list[Any]], Any] | None = None,
    ) -> Plan: ...
    def __call__(self, *args: Any) -> list[Any] | tuple[Any, ...]: ...
    def bind(
        self,
        function_class: type,
        apply: Callable[..., Any],
        double_backward: Callable[..., Any],
        coerce_subclass: Callable[[Any], Any],
        /,
    ) -> None: ...
    def forward_autograd(self, ctx: Any, /, *args: Any) -> tuple[Any, ...]: ...
    def backward_autograd(self, ctx: Any, /, *grads: Any) -> tuple[Any, ...]: ...

@final
class SplitPlan:
    """Calls several plans as one graph."""

    inputs: int
    plans: tuple[Callable[..., Any], ...]
    def __new__(
        cls, program: tuple[tuple[Any, ...], ...], plans: tuple[Callable[..., Any], ...]
    ) -> SplitPlan: ...
    def __call__(self, *args: Any) -> Any: ...
