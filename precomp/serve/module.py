"""``module`` record -> the function that runs a compiled graph (docs/internals.md, section 4.4)."""

from __future__ import annotations

import builtins
import marshal
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from precomp import _core, operators, torch_api
from precomp.ordinals import Numbers, renumber
from precomp.serve.kernel import KernelTable
from precomp.torch_api import objects

if TYPE_CHECKING:
    from precomp.serve.cuda_graphs import Graphed

#: Raised by ``load`` when an operator is missing or differs from the captured one.
StaleModule = _core.Stale

_NAME = "precomp.module"


def load(
    record: dict[str, Any],
    kernels: KernelTable,
    numbers: Numbers | None = None,
    graphs: list[Graphed] | None = None,
) -> Callable[..., Any]:
    """The ``call`` of a frozen module: takes a list of inputs, empties it, returns a sequence.

    It runs on the GPUs that the record names, renumbered by *numbers*. *graphs* gets what is put
    around parts of it to replay them as CUDA graphs; None: nothing is.

    Raises ``_core.Stale`` when an operator that the module calls is missing or has changed since
    capture, CudaError when a kernel cannot be launched on this machine. Constants are made anew and
    live as long as the function.
    """
    _check_operators(record["ops"])
    namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": _NAME}
    numbers = numbers or {}
    for name, encoded in renumber(record["extern"], numbers):
        namespace[name] = _core.decode(encoded)
    for name, ordinal in record["ordinals"]:
        namespace[name] = numbers.get(ordinal, ordinal)
    for name, digest in record["kernels"]:
        namespace[name] = kernels(digest)
    for name, launch in record["cuda"]:
        namespace[name] = kernels.launcher(launch)
    for name, *description in renumber(record["constants"], numbers):
        namespace[name] = _constant(*description)
    code = marshal.loads(record["code"])
    names = torch_api.serve()
    _skip(code, names.FrameExecStrategy(names.FrameAction.SKIP, names.FrameAction.SKIP))
    exec(code, namespace)
    call = namespace["call"]
    if graphs is None or not record["graphs"]:
        return call
    from precomp.serve.cuda_graphs import Gpu, Graphed

    for partition, device, static, mutated in renumber(record["graphs"], numbers):
        places = objects.partitions(call) if partition is not None else [call]
        graph = Graphed(places[partition or 0], Gpu(device), static, mutated)
        places[partition or 0] = graph
        graphs.append(graph)
        if partition is None:
            call = graph
    return call


def _check_operators(described: tuple[operators.Description, ...]) -> None:
    for qualname, schema, roles in described:
        operator, _, overload = qualname.partition(".")
        namespace, _, name = operator.partition("::")
        try:
            _, found, found_roles = operators.describe(namespace, name, overload)
        except LookupError:
            raise _core.Stale(
                f"operator {qualname} is not registered: import the module that defines it first"
            ) from None
        if found != schema:
            raise _core.Stale(f"operator {qualname}: its schema was {schema!r}, now {found!r}")
        if found_roles != roles:
            before, now = dict(roles), dict(found_roles)
            changed = [role for role in {**before, **now} if before.get(role) != now.get(role)]
            raise _core.Stale(f"operator {qualname}: changed since capture: {', '.join(changed)}")


def _constant(
    device: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], data: bytes
) -> Any:
    """A tensor in memory of torch's own allocator, aligned as the captured one was."""
    flat = torch.empty(len(data), dtype=torch.uint8, device=device)
    if data:
        flat.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return flat.view(getattr(torch, dtype)).as_strided(shape, strides)


def _skip(code: CodeType, strategy: Any) -> None:
    """Keep the frame evaluator off the code of a module and off all that it calls."""
    torch_api.serve().set_code_exec_strategy(code, strategy)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _skip(constant, strategy)
