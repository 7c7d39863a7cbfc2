"""A module that Inductor compiled -> one ``module`` entry (docs/internals.md, section 4.4)."""

from __future__ import annotations

import hashlib
import marshal
from types import FunctionType
from typing import Any

import torch

from precomp import data, torch_api
from precomp.freeze.cuda import freeze_launch
from precomp.freeze.cuda_graphs import Wrapped, unwrapped
from precomp.freeze.devices import DeviceNames
from precomp.freeze.kernel import freeze_kernel
from precomp.freeze.module_linker import ModuleLinker
from precomp.freeze.store import Store, Unsupported
from precomp.ordinals import Numbers, renumber
from precomp.torch_api import objects


def freeze_module(
    graph: Any, store: Store, numbers: Numbers | None = None, stays: list[str] | None = None
) -> str:
    """Store a ``CompiledFxGraph`` with its kernels and return the digest of the ``module`` entry.

    The digest depends on the content only: the same module compiled in another process, directory
    or order has the same one. *numbers*: what to write for the ordinals of GPUs; *stays* gets the
    reasons why the module cannot run on other GPUs than its own. Raises Unsupported with the
    reason when the module cannot be frozen.
    """
    devices = DeviceNames(numbers or {})
    record = module_record(graph, store, devices)
    if stays is not None:
        stays += devices.reasons
    blob = data.dumps(record)
    return store.add("module", hashlib.sha256(blob).hexdigest(), blob)


def module_record(graph: Any, store: Store, devices: DeviceNames) -> dict[str, Any]:
    """The record of a ``CompiledFxGraph``; its kernels go to *store*."""
    _refuse(graph)
    namespace, wrapped = _namespace(graph)
    linker = ModuleLinker(graph, namespace, devices)
    code = linker.link()
    kernels = tuple(
        (name, freeze_kernel(path, store)) for name, path in sorted(linker.kernels.items())
    )
    constants = tuple(_constant(name, tensor) for name, tensor in sorted(linker.constants.items()))
    extern = linker.extern | devices.values
    return {
        "code": marshal.dumps(code, data.VERSION),
        "kernels": kernels,
        "cuda": tuple(
            (name, freeze_launch(kernel, store)) for name, kernel in sorted(linker.triton.items())
        ),
        "extern": renumber(tuple(sorted(extern.items())), devices.numbers),
        "constants": renumber(constants, devices.numbers),
        "graphs": renumber(
            tuple(
                (at, f"cuda:{part.device}", part.static, part.mutated)
                for at, part in wrapped
                if not part.empty
            ),
            devices.numbers,
        ),
        "ordinals": tuple(sorted(devices.ordinals.items())),
        "ops": tuple(sorted(linker.operators.values())),
    }


def _refuse(graph: Any) -> None:
    """Raise Unsupported for kinds of compiled graphs that are not the plain Python wrapper."""
    if not isinstance(graph, torch_api.capture().CompiledFxGraph):
        raise Unsupported(
            f"compiled by {type(graph).__name__} (cpp_wrapper or AOTInductor), not by Inductor's "
            "Python wrapper"
        )
    if not getattr(graph, "source_code", None):
        raise Unsupported("Inductor kept no source of the module")
    devices = sorted(set(graph.device_types) - {"cpu", "cuda"})
    if devices:
        raise Unsupported(
            f"the module runs on {', '.join(devices)}; modules for the CPU and CUDA can be frozen"
        )
    if graph.frozen_param_names:
        raise Unsupported("frozen parameters (torch._inductor.config.freezing)")
    if graph.torchbind_constants:
        raise Unsupported(f"torchbind constants: {', '.join(sorted(graph.torchbind_constants))}")
    if graph.opaque_value_type_classes:
        raise Unsupported(f"opaque types: {', '.join(sorted(graph.opaque_value_type_classes))}")
    if objects.wraps_compiled_regions(graph):
        raise Unsupported("torch._inductor.config.wrap_inductor_compiled_regions is on")


def _inner(call: Any) -> Any:
    """What torch's check of the inputs' alignment wraps, which the plan makes, or its note that a
    backward without CUDA graphs runs; *call* itself if it is neither."""
    names = torch_api.capture()
    for wrapper, variable in (
        (names.align_inputs_from_check_idxs, "model"),
        (names.maybe_handle_backward_generation, "compiled_graph_callable"),
    ):
        if isinstance(call, FunctionType) and call.__code__ in wrapper.__code__.co_consts:
            index = call.__code__.co_freevars.index(variable)
            return (call.__closure__ or ())[index].cell_contents
    return call


def _namespace(graph: Any) -> tuple[dict[str, Any], list[tuple[int | None, Wrapped]]]:
    """Globals of the file that Inductor generated and loaded for *graph*, and which of its
    partitions (None: the whole) torch put CUDA graphs around."""
    call = graph.current_callable
    while (inner := _inner(call)) is not call:
        call = inner
    found: list[tuple[int | None, Wrapped]] = []
    wrapped = unwrapped(call)
    if wrapped is not None:
        call = wrapped.call
        found.append((None, wrapped))
    function = getattr(call, "__func__", call)
    if not isinstance(function, FunctionType):
        raise Unsupported(f"its callable is a {type(call).__qualname__}, not a Python function")
    space = function.__globals__
    if "inductor_entry" in space:
        raise Unsupported("compiled with torch._inductor.config.cpp_wrapper")
    if function.__name__ != "call" or space.get("call") != call:
        raise Unsupported(
            f"its callable is {function.__qualname__!r}, not the function 'call' of the file that "
            "Inductor generated (CUDA graphs made before the capture, or a wrapper around compiled "
            "regions?)"
        )
    for at, part in enumerate(getattr(graph.compiled_fn_runner, "partitions", None) or ()):
        wrapped = unwrapped(part)
        if wrapped is not None:
            part = wrapped.call
            found.append((at, wrapped))
        if getattr(part, "__globals__", None) is not space:
            raise Unsupported(
                "its graph partitions are wrapped (CUDA graphs made before the capture, or a "
                "custom wrapper)"
            )
    return space, found


def _constant(
    name: str, tensor: Any
) -> tuple[str, str, str, tuple[int, ...], tuple[int, ...], bytes]:
    """(name, device, dtype, shape, strides in elements, bytes from first to last element)."""
    if not isinstance(tensor, torch.Tensor):
        raise Unsupported(f"constant {name} is a {type(tensor).__qualname__}")
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor:
        raise Unsupported(f"constant {name} is a tensor subclass: {type(tensor).__qualname__}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"constant {name} is on {tensor.device}")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Unsupported(f"constant {name} is not a strided tensor: {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        raise Unsupported(f"constant {name} is a conjugate or negative view")
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset()).view(torch.uint8)
    dtype = str(tensor.dtype).removeprefix("torch.")
    content = flat.contiguous().cpu().numpy().tobytes()
    return name, str(tensor.device), dtype, shape, strides, content
