"""A second reading of the guard tape, in plain Python: test oracle only.

It evaluates a record directly, without torch's guard classes, so that a misreading of the format in
the replayer shows as a disagreement.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

from precomp import _core, torch_api
from precomp.guard_functions import decode_function

decode = _core.decode


class Node:
    def __init__(self) -> None:
        self.leaves: list[Callable[[Any], bool]] = []
        self.children: list[tuple[Callable[[Any], Any], Node]] = []


def _iterator_item(iterator: Any, index: int) -> Any:
    reduced = iterator.__reduce__()
    return reduced[1][0][index + (reduced[2] if len(reduced) > 2 else 0)]


ACCESS: dict[str, Callable[[Any, Any], Any]] = {
    "framelocals_manager": lambda v, k: v[k[0]],
    "dict_getitem_manager": lambda v, k: dict.__getitem__(v, k) if isinstance(v, dict) else v[k],
    "list_getitem_manager": lambda v, k: v[k],
    "tuple_getitem_manager": lambda v, k: v[k],
    "getitem_manager": lambda v, k: v[k],
    "indexed_manager": lambda v, k: (k, v),
    "set_getitem_manager": lambda v, k: list(v)[k],
    "getattr_manager": getattr,
    "generic_getattr_manager": object.__getattribute__,
    "get_generic_dict_manager": lambda v, k: object.__getattribute__(v, "__dict__"),
    "func_defaults_manager": lambda v, k: v.__defaults__,
    "func_kwdefaults_manager": lambda v, k: v.__kwdefaults__,
    "code_manager": lambda v, k: (v.__func__ if type(v) is types.MethodType else v).__code__,
    "closure_manager": lambda v, k: v.__closure__,
    "type_manager": lambda v, k: type(v),
    "type_dict_manager": lambda v, k: type.__dict__["__dict__"].__get__(v),
    "type_mro_manager": lambda v, k: v.__mro__,
    "grad_manager": lambda v, k: v.grad,
    "get_key_manager": lambda v, k: list(dict.keys(v))[k],
    "get_value_manager": lambda v, k: list(dict.values(v))[k],
    "tensor_property_size_manager": lambda v, k: v.size(k),
    "tensor_property_stride_manager": lambda v, k: v.stride(k),
    "tensor_property_storage_offset_manager": lambda v, k: v.storage_offset(),
    "weakref_call_manager": lambda v, k: v(),
    "global_weakref_manager": lambda v, k: v[k](),
    "call_function_no_args_manager": lambda v, k: v(),
    "tuple_iterator_getitem_manager": _iterator_item,
}


def _range_rest(iterator: Any) -> range:
    reduced = iterator.__reduce__()
    return reduced[1][0][reduced[2] or 0 :]


def _same_range(iterator: Any, start: int, stop: int, step: int) -> bool:
    rest = _range_rest(iterator)
    return (rest.start, rest.stop, rest.step) == (start, stop, step)


def _modes_are(expected: list[type]) -> bool:
    at = torch._C._get_function_stack_at
    return torch._C._len_torch_function_stack() == len(expected) and all(
        type(at(i)) is kind for i, kind in enumerate(expected)
    )


def _contains(container: Any, key: Any) -> bool:
    return dict.__contains__(container, key) if isinstance(container, dict) else key in container


def _equal(value: Any, expected: Any) -> bool:
    return type(value) is type(expected) and bool(value == expected)


LEAF: dict[str, Callable[..., bool]] = {
    "add_type_match_guard": lambda v, kind: type(v) is kind,
    "add_id_match_guard": lambda v, other: v is other,
    "add_equals_match_guard": _equal,
    "add_length_check_guard": lambda v, n: len(v) == n,
    "add_dict_length_check_guard": lambda v, n: isinstance(v, dict) and len(v) == n,
    "add_tuple_iterator_length_guard": lambda v, n, kind: (
        type(v) is kind and v.__length_hint__() == n
    ),
    "add_range_iterator_match_guard": lambda v, a, b, c, kind: (
        type(v) is kind and _same_range(v, a, b, c)
    ),
    "add_none_match_guard": lambda v: v is None,
    "add_true_match_guard": lambda v: v is True,
    "add_false_match_guard": lambda v: v is False,
    "add_dynamic_indices_guard": lambda v, dims: (
        v.__dict__.get("_dynamo_dynamic_indices", set()) <= dims
    ),
    "add_not_none_guard": lambda v: v is not None,
    "add_float_is_nan_guard": lambda v: type(v) is float and v != v,
    "add_complex_is_nan_guard": lambda v: type(v) is complex and v != v,
    "add_no_hasattr_guard": lambda v, name: not hasattr(v, name),
    "add_fake_script_type_match_guard": lambda v, fake, kind: (
        type(v.real_obj if isinstance(v, fake) else v) is kind
    ),
    "add_dict_contains_guard": lambda v, has, key: _contains(v, key) is has,
    "add_set_contains_guard": lambda v, has, key: (key in v) is has,
    "add_mapping_keys_guard": lambda v, other: list(v) == list(other),
    "add_global_state_guard": lambda v, state: state.check(),
    "add_dual_level_match_guard": lambda v, n: torch.autograd.forward_ad._current_level == n,
    "add_dispatch_key_set_guard": lambda v, keys: v.raw_repr() == keys.raw_repr(),
}


def _flattened(encoded: Any) -> Callable[[Any], bool]:
    metadata = decode(encoded[1])
    if encoded[2] is None:
        return lambda v: v.__tensor_flatten__()[1] == metadata
    cls = decode(encoded[2])
    return lambda v: cls.__metadata_guard__(metadata, v.__tensor_flatten__()[1])


def _spec_is(encoded: Any) -> Callable[[Any], bool]:
    placements, order, dtype, ranks, layout, device, names, thread = decode(encoded[2])

    def check(spec: Any) -> bool:
        mesh = spec.mesh
        return (
            (spec.placements, spec.shard_order) == (placements, order)
            and spec.tensor_meta.dtype == dtype
            and mesh.mesh.flatten().tolist() == list(ranks)
            and mesh._layout == layout
            and (mesh.device_type, mesh.mesh_dim_names) == (device, names)
            and mesh._thread_id == thread
        )

    return check


def _opaque_values(encoded: Any) -> Callable[[Any], bool]:
    from torch._library.opaque_object import get_opaque_obj_info

    def check(v: Any) -> bool:
        function = get_opaque_obj_info(type(v)).guard_fn
        return _core.code_digest(function.__code__) == encoded[2] and (
            function(v) == decode(encoded[1])
        )

    return check


# Functions inside guards that are read here a second time; others by guard_functions.
FUNCTIONS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "cow": lambda encoded: lambda v: torch._C._is_cow_tensor(v) is encoded[1],
    "subclass": _flattened,
    "spec": _spec_is,
    "opaque": _opaque_values,
    "count": lambda encoded: lambda v: repr(v) in _counts(decode(encoded[1]), decode(encoded[2])),
    "subclass_value": lambda encoded: lambda v: decode(encoded[1])(v) == decode(encoded[2]),
    "dataclass_fields": lambda encoded: (
        lambda v: tuple(field for field in type(v).__dataclass_fields__.values())
    ),
    "stream": lambda encoded: lambda v: torch.accelerator.current_stream(decode(encoded[1])),
    "mode_at": lambda encoded: lambda v: torch._C._get_function_stack_at(encoded[1]),
    "module": lambda encoded: lambda v: decode(encoded[1]),
}


def _counts(start: Any, step: Any) -> tuple[str, str]:
    return f"count({start!r})" if step == 1 else "", f"count({start!r}, {step!r})"


def _function(encoded: Any, f_globals: dict[str, Any]) -> Callable[[Any], Any]:
    own = FUNCTIONS.get(encoded[0])
    return own(encoded) if own is not None else decode_function(encoded, f_globals)


def _markings(expected: dict[str, set[int]], absent: list[str], conditional: Any) -> Any:
    def check(tensor: Any) -> bool:
        own = tensor.__dict__
        if any(name in own for name in absent):
            return False
        return all(own[name] <= dims for name, dims in expected.items() if name in own)

    return check


def _tensor(args: Any, tls: Any) -> Callable[[Any], bool]:
    device, dtype, requires_grad, _ = args[0]
    sizes, strides, kind, keys = (decode(args[i]) for i in (1, 2, 5, 6))
    from_raw = torch_api.serve().DispatchKeySet.from_raw_repr
    include, exclude = map(from_raw, tls)
    expected = ((keys | include) - exclude).raw_repr()

    def check(tensor: Any) -> bool:
        if type(tensor) is not kind or str(tensor.device) != device:
            return False
        if tensor.dtype != getattr(torch, dtype) or tensor.requires_grad != requires_grad:
            return False
        found = (
            torch._C._dispatch_keys(tensor) | torch._C._dispatch_tls_local_include_set()
        ) - torch._C._dispatch_tls_local_exclude_set()
        if found.raw_repr() != expected or tensor.dim() != len(sizes):
            return False
        return all(a is None or a == b for a, b in zip(sizes, tensor.size(), strict=True)) and all(
            a is None or a == b for a, b in zip(strides, tensor.stride(), strict=True)
        )

    return check


def build(
    record: dict[str, Any], f_globals: dict[str, Any], live: tuple[Any, ...] = ()
) -> Callable[[Any], bool]:
    """The decision of *record* as one function of the frame's locals; *live* are its objects."""
    nodes = [Node() for _ in range(record["nodes"])]
    epilogue: list[Callable[[Any], bool]] = []
    relations: list[Callable[[dict[int, Any]], bool]] = []
    watched: set[int] = set()
    for op in record["ops"]:
        name = op[0]
        if name.endswith("_manager"):
            _, parent, node, key, _, category = op
            nodes[parent].children.append((_accessor(name, key, f_globals), nodes[node]))
            if isinstance(category, tuple):
                nodes[node].leaves.append(_dict_manager(decode(category[1]), category[2]))
            continue
        if name.startswith("install_"):
            _relation(name, op[2], nodes, relations, watched)
            continue
        args = op[2]
        if name == "add_epilogue_lambda_guard":
            epilogue.append(_function(args[0], f_globals))
        elif name == "add_lambda_guard":
            nodes[op[1]].leaves.append(_function(args[0], f_globals))
        else:
            nodes[op[1]].leaves.append(_leaf(name, args, record, live))
    order = {id(node): number for number, node in enumerate(nodes)}

    def check(f_locals: Any) -> bool:
        values: dict[int, Any] = {}
        if not _run(nodes[0], f_locals, values, order, watched):
            return False
        try:
            return all(r(values) for r in relations) and all(f(f_locals) for f in epilogue)
        except (LookupError, AttributeError, TypeError):
            return False

    return check


def _dict_manager(kind: type, length: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind and dict.__len__(value) == length


def _accessor(name: str, key: Any, f_globals: dict[str, Any]) -> Callable[[Any], Any]:
    if name == "globals_dict_manager":
        return lambda v: f_globals
    if name == "lambda_manager":
        return _function(key, f_globals)
    access = ACCESS[name]
    decoded = None if key is None else decode(key)
    return lambda v: access(v, decoded)


def _leaf(
    name: str, args: Any, record: dict[str, Any], live: tuple[Any, ...]
) -> Callable[[Any], bool]:
    if name == "add_tensor_match_guard":
        return _tensor(args, record["tls"])
    if name == "add_dimension_marking_guard":
        return _markings(*(decode(arg) for arg in args[:3]))
    if name == "add_torch_function_mode_stack_guard":
        expected = [decode(kind) for kind in args[0]]
        return lambda v: _modes_are(expected)
    if name == "add_default_device_guard":
        device = decode(record["device"])
        return lambda v: torch.utils._device.CURRENT_DEVICE == device
    decoded = [live[arg[1]] if arg[0] == "live" else decode(arg) for arg in args[:-1]]
    return lambda v: LEAF[name](v, *decoded)


def _relation(name: str, args: Any, nodes: Any, relations: Any, watched: set[int]) -> None:
    if name == "install_no_tensor_aliasing_guard":
        watched.update(args[0])
        relations.append(
            lambda values, n=args[0]: (
                len({id(values[i]) for i in n if i in values}) == len([i for i in n if i in values])
            )
        )
    elif name == "install_object_aliasing_guard":
        watched.update(args[:2])
        relations.append(lambda values, a=args[0], b=args[1]: values[a] is values[b])
    else:
        watched.update((*args[0], *args[1]))

        def overlapping(values: Any, yes: Any = args[0], no: Any = args[1]) -> bool:
            tensors = [values[i] for i in (*yes, *no)]
            compute = torch._C._dynamo.guards.compute_overlapping_tensors
            return set(compute(tensors, symbolic=False)) == set(range(len(yes)))

        relations.append(overlapping)


def _run(node: Node, value: Any, values: dict[int, Any], order: Any, watched: set[int]) -> bool:
    if order[id(node)] in watched:
        values[order[id(node)]] = value
    if not all(leaf(value) for leaf in node.leaves):
        return False
    for access, child in node.children:
        try:
            inner = access(value)
        except (LookupError, AttributeError, TypeError):
            return False
        if not _run(child, inner, values, order, watched):
            return False
    return True
