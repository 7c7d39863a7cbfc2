"""Private attributes of torch's objects, behind functions. None of it imports torch's compiler.

``ATTRIBUTES`` in ``common.py`` lists the attributes; a test looks for them in the sources of the
installed torch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from precomp.torch_api import modules

# Methods that call a module's forward, and those that torch.compile starts with.
MODULE_CALLS = ("_call_impl", "_wrapped_call_impl")
ENTRIES = (*MODULE_CALLS, "_lazy_forward")
# What torch.compile leaves on what it returns.
WRAPPER_ATTRIBUTES = ("_torchdynamo_orig_callable", "_torchdynamo_wrapper_id")
# The method of optimizers that makes their state.
INIT_GROUP = "_init_group"
# The function around a resume function with a closure.
RESUME_CLOSURE = "_make_fn"
# Types and functions by the name they have in their module.
DIM_RANGE = "_DimRange"
MAYBE_SET_EVAL_FRAME = "_maybe_set_eval_frame"
# Jobs of Inductor's workers: one that compiles C++, one that only asks whether they are up.
CPP_JOB = "_worker_compile_cpp"
READY_JOB = "_get_ready"
# In the names of CUDA's functions for a context manager that disables Dynamo.
DISABLES_DYNAMO = "torch._disable_dynamo"


# ---------------------------------------------------------------- torch.compile


def backend_below(callback: Any) -> Any:
    """The backend that a callback of Dynamo wraps, None if it wraps none."""
    return getattr(callback, "_torchdynamo_orig_backend", None)


def set_backend_below(callback: Any, backend: Any) -> None:
    """torch's cache entries for *backend* count for *callback*."""
    callback._torchdynamo_orig_backend = backend


def innermost_backend(callback: Any) -> Any:
    """The backend below torch's wrappers around a callback of Dynamo."""
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return callback


def wants_one_graph(callback: Any) -> bool:
    """Whether the outermost wrapper of a callback is for ``fullgraph=True``."""
    return bool(getattr(callback._torchdynamo_orig_backend, "_one_graph", False))


def callable_below(compiled: Any) -> Any:
    """The callable that *compiled* says it was made of, None if it says nothing."""
    return getattr(compiled, "_torchdynamo_orig_callable", None)


def compiled_from(fn: Any) -> Any:
    """The callable that torch.compile made *fn* of, None if *fn* is not its result. Runs no
    ``__getattr__`` of the user."""
    original = _own(fn, "_torchdynamo_orig_callable")
    if original is None or _own(fn, "_torchdynamo_wrapper_id") != id(fn):
        return None
    return original


def _own(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def mark_wrapper(wrapper: Any, original: Any) -> None:
    """Say that *wrapper* is *original* compiled."""
    wrapper._torchdynamo_orig_callable = original
    wrapper._torchdynamo_wrapper_id = id(wrapper)


def mark_inline(wrapper: Any, fn: Any) -> None:
    """Say that Dynamo, where it meets the function *wrapper*, goes on with *fn*."""
    wrapper._torchdynamo_inline = fn


def mark_recompiles_shared(wrapper: Any) -> None:
    """Say that recompiles of *wrapper* are not counted apart."""
    wrapper._isolate_recompiles_id = -1


def wrap_calls(cls: Any, wrap: Any) -> None:
    """Exchange the method that calls the forward of the modules of *cls*."""
    cls._call_impl = wrap(cls._call_impl)


def mark_compiled(result: Any) -> None:
    """Say that torch.compile returned *result*."""
    result._is_torch_compile = True


def forbid_in_graph(function: Any) -> None:
    """Say that Dynamo may not trace a call of *function*."""
    function._dynamo_forbidden = True


def inside_higher_order_operator() -> bool:
    """Whether a higher order operator compiles its body at the moment."""
    return bool(importlib.import_module(modules.HIGHER_ORDER_UTILS)._in_hop_compile())


# ---------------------------------------------------------------- modules and optimizers


def may_be_lazy(module: Any) -> bool:
    """Whether the first call of *module* initialises it. Runs no ``__getattr__`` of the user."""
    return inspect.getattr_static(module, "_initialize_hook", None) is not None


def is_lazy(module: Any) -> bool:
    """Whether *module* is not initialised yet."""
    return hasattr(module, "_initialize_hook")


def initialize_lazy(module: Any, args: Any, kwargs: Any) -> None:
    """Initialise *module*, if it is lazy, for a call with these arguments."""
    infer = getattr(module, "_infer_parameters", None)
    if is_lazy(module) and callable(infer):
        infer(module, args, kwargs)


def init_group(optimizer: Any) -> Any:
    """The method of an optimizer, or of its class, that makes the state of a group."""
    return optimizer._init_group


def storage_number(tensor: Any) -> int:
    """A number that two tensors share exactly when they share their storage."""
    return int(tensor.untyped_storage()._cdata)


# ---------------------------------------------------------------- operators


def registered_functions(definition: Any) -> Iterator[tuple[str, Any]]:
    """``(role, function or None)`` of a custom operator that Python defines."""
    yield "implementation", definition._init_fn
    for device, function in definition._backend_fns.items():
        yield f"implementation for {device or 'all devices'}", function
    yield "fake", definition._abstract_fn
    yield "backward", definition._backward_fn
    yield "setup_context", definition._setup_context_fn


def simple_registration(registry: Any, name: str) -> Any:
    """What the registry of torch.library has for an operator, None if it has nothing."""
    return registry._data.get(name)


def schema(overload: Any) -> Any:
    """The schema of an OpOverload."""
    return overload._schema


def overload_name(overload: Any) -> str:
    """The name of an OpOverload among those of its operator: ``""`` for the unnamed one."""
    return str(overload._overloadname)


def operator_name(overload: Any) -> str:
    """The name of the operator of an OpOverload, without its namespace."""
    return str(overload._opname)


def packet_name(packet: Any) -> str:
    """``namespace::name`` of an OpOverloadPacket."""
    return str(packet._qualified_op_name)


# ---------------------------------------------------------------- guards


def process_groups() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name of each process group that this rank belongs to, and its ranks in their order."""
    world = importlib.import_module("torch.distributed.distributed_c10d")._world
    for group, name in world.pg_names.items():
        ranks = world.pg_group_ranks[group]
        yield str(name), tuple(sorted(ranks, key=ranks.__getitem__))


def mesh_meaning(mesh: Any) -> tuple[Any, ...]:
    """What torch compares of a DeviceMesh: ranks, layout, device type, names of dimensions."""
    return (
        tuple(mesh._flatten_rank_map),
        mesh._layout,
        mesh._device_type,
        mesh._mesh_dim_names,
        mesh._thread_id,
    )


DTENSOR = "torch.distributed.tensor.DTensor"
# The parts of a DTensor that AOTAutograd gives to graphs in its place, in their order.
DTENSOR_PARTS = ("_local_tensor", "device_mesh")


def dtensor_maker(metadata: Any, size: Any, stride: Any) -> Any:
    """A function that makes a DTensor of its parts; *metadata* is what its ``__tensor_flatten__``
    gives beside their names."""
    make = importlib.import_module("torch.distributed.tensor").DTensor.__tensor_unflatten__
    return lambda *parts: make(dict(zip(DTENSOR_PARTS, parts, strict=True)), metadata, size, stride)


def mark_of(attribute: str) -> str:
    """The mark that an attribute of a tensor notes for its dimensions, such as ``dynamic``."""
    return attribute.removeprefix("_dynamo_").removesuffix("_indices")


def mode_index(source: Any) -> int:
    """The place in the stack of torch function modes that a source of Dynamo stands for."""
    return int(source._get_index())


# ---------------------------------------------------------------- plans, modules and kernels


def backward_class(function: Any) -> Any:
    """The class of the nodes that an autograd.Function puts into the graph."""
    return function._backward_cls


def autograd_function_id(context: Any) -> Any:
    """What tells compiled autograd the nodes of one AOTAutograd function from others."""
    return context._autograd_function_id


def aligns_its_inputs(graph: Any) -> bool:
    """Whether the code of a CompiledFxGraph itself clones inputs that are not aligned."""
    return bool(getattr(graph, "_defers_input_alignment", False))


def partitions(call: Any) -> list[Any]:
    """The parts of a module that Inductor cut for CUDA graphs, which its ``call`` looks up."""
    found: list[Any] = call.__self__.partitions
    return found


def wraps_compiled_regions(graph: Any) -> bool:
    """Whether a CompiledFxGraph runs inside an operator of its own."""
    return bool(graph._wrap_compiled_regions)


def argument_lists(result: Any, names: Any, constexprs: Any) -> Any:
    """What the launcher of a compiled Triton configuration takes, passes on and leaves out."""
    return result._get_arg_lists(names, constexprs)
