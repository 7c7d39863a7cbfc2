"""Plans: what AOTAutograd does around a compiled graph, recorded and turned into plain data.

The specification is ``torch/_functorch/_aot_autograd/runtime_wrappers.py``: its generated wrappers
have readable reference methods next to them. ``precomp.serve.plan`` and ``csrc/binding/plan*.c``
do at run time what is recorded here.

The record (all values plain data, see docs/internals.md section 2):

``kind``
    ``"inference"``, ``"training"`` or ``"split"``.
``fw``, ``bw``
    Digests of the modules of the forward and backward graph; ``bw`` is None for inference and for
    a training graph whose backward was not run while capturing. A graph
    without operations has no module: it is a tuple with one ``("i", argument)`` or ``("c",
    constant)`` per output.
``inputs``
    Number of arguments.
``unwrap``
    Arguments that are DTensors: the graph takes their local tensor and their mesh instead.
``disable_autocast``
    Graphs were compiled under autocast and run with autocast disabled.
``forward_aligned``
    ``(argument, write back)`` of arguments of the forward graph that are cloned when their address
    is not a multiple of 16; a clone is copied back if the graph writes to it.
``version_bumps``
    Arguments that the graph itself changes and whose version counter autograd has to see move.
``mutated``
    One ``(input, data, metadata, storage, leaf)`` per argument that is written back after the
    graph, in the order of the graph's first outputs. ``data``: values change; ``metadata``: sizes,
    strides or offset change; ``storage``: it was the target of ``set_()``; ``leaf``: it was a leaf,
    so that a write-back is hidden from autograd when it requires grad.
``outputs``
    One ``(kind, base, dims, requires_grad, views)`` per output. ``kind`` is the name of torch's
    OutputType; ``base`` the argument, intermediate base or output that it aliases, else None;
    ``dims`` its dynamic dimensions if they are noted on the tensor, else None; ``views`` the
    ``(type name, encoded state)`` of the ViewMeta to replay on the base, or None.
``bases``
    Number of intermediate bases that the graph returns after its outputs.
``grad_mode``
    Grad mode that the graph leaves behind, or None.

Training only:

``detach``
    Arguments that never need gradients and are detached before the autograd function.
``non_differentiable``
    Positions, among the write-backs and outputs, of those that do not require grad.
``saved_unchecked``, ``saved_opaque``, ``saved_symints``
    The forward graph returns write-backs, outputs, bases, saved tensors, then this many saved
    tensors without version check, this many objects that are no tensors, this many SymInts.
``gradients``
    One ``(index, None | (encoded metadata, sizes, strides))`` per argument: its gradient among what
    the backward graph returns; with metadata the local tensor of a DTensor, before its mesh. Empty
    when no argument is a DTensor.
``dynamic_saved``
    ``(index, dims)``: dynamic dimensions noted on saved tensors.
``tangents``
    ``(position, format)`` per gradient that the backward graph takes: its position among the
    gradients of write-backs, outputs and bases, and the memory format it must have: a name such as
    ``"contiguous_format"``, ``(sizes, strides)``, or None.
``inputs_require_grad``
    Some argument required grad: with create_graph the backward is always connected.
``mutates_in_backward``
    The backward graph changes arguments that require grad; refused with create_graph.
``deterministic``
    Deterministic mode when the forward was compiled; False refuses a deterministic backward.
``donated``
    The backward graph reuses memory of saved tensors; refused with retain_graph.
``backward_aligned``
    As ``forward_aligned``, for the arguments of the backward graph.

Split only (DDPOptimizer cuts one Dynamo graph into several):

``plans``
    The records of the parts.
``program``
    Operations, each giving the next value: ``("in",)`` an argument; ``("call", part, expressions,
    unwrap, free)`` a part, with ``unwrap`` its only output; ``("get", expression, index, free)`` an
    item; last ``("out", expression)``. An expression is ``("n", value number)``, ``("c",
    constant)`` or ``("t", expressions)`` for a tuple. ``free`` lists the values not used any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from precomp import torch_api
from precomp.freeze.plan_source import GraphSource, PassGraph, PlanSource
from precomp.freeze.store import Unsupported
from precomp.freeze.values import Unencodable, encode
from precomp.sources import class_text
from precomp.torch_api import objects

_DIFFERENTIABLE = ("non_alias", "unsafe_view_alias", "custom_function_view")


def freeze_plan(source: GraphSource, module_digest: Callable[[Any], str]) -> dict[str, Any]:
    """The plain record of *source*.

    ``module_digest(graph)`` freezes a CompiledFxGraph and returns its digest; it may raise
    Unsupported. Raises Unsupported that lists all reasons.
    """
    reasons = list(source.reasons)
    if not source.plans:
        reasons.append(f"backend {source.backend!r} does not compile with Inductor")
    elif len(source.plans) > 1 and source.split is None and not reasons:
        reasons.append(f"one graph was compiled as {len(source.plans)}")
    if source.split is not None:
        calls = sum(op[0] == "call" for op in source.split)
        if calls != len(source.plans):
            reasons.append(f"split graph: {calls} parts, {len(source.plans)} compiled")
    for plan in source.plans:
        reasons += plan_reasons(plan, source.backend)
        if plan.num_params != (0 if source.split else len(source.attributes)):
            reasons.append("tensors that are attributes of the graph")
    if reasons:
        raise Unsupported("; ".join(dict.fromkeys(reasons)))
    records = []
    for plan in source.plans:
        try:
            record = plan_record(plan)
            record["fw"] = _module(plan.fw, module_digest)
            record["bw"] = None if plan.bw is None else _module(plan.bw, module_digest)
            records.append(record)
        except Unsupported as error:
            reasons.append(str(error))
    if reasons:
        raise Unsupported("; ".join(dict.fromkeys(reasons)))
    if source.split is None:
        return records[0]
    return {"kind": "split", "program": source.split, "plans": tuple(records)}


def _module(graph: Any, module_digest: Callable[[Any], str]) -> Any:
    if not isinstance(graph, PassGraph):
        return module_digest(graph)
    if graph.outputs is None:
        raise Unsupported("a graph without operations that returns a tensor constant")
    return graph.outputs


def _aligned(graph: Any) -> tuple[tuple[int, bool], ...]:
    """Arguments of *graph* that its code does not align itself, and whether it writes to them."""
    if isinstance(graph, PassGraph):
        return ()
    mutated = graph.mutated_input_idxs
    return tuple(
        (int(i), i in mutated)
        for i in graph.inputs_to_check
        if not objects.aligns_its_inputs(graph) or i in mutated
    )


def plan_reasons(plan: PlanSource, backend: str) -> list[str]:
    """Why *plan* cannot be frozen."""
    md = plan.metadata
    reasons = list(plan.reasons)
    reasons += _subclass_reasons(plan)
    tables = torch_api.tables()
    for fields, values in (
        (tables.METADATA_REFUSED, [md]),
        (tables.INPUT_REFUSED, md.input_info),
    ):
        for field, reason in fields.items():
            if any(_is_set(getattr(value, field)) for value in values):
                reasons.append(reason)
    if plan.backward_state:
        reasons.append("BackwardState (backward hooks in the graph)")
    if plan.fw is None:
        reasons.append(f"backend {backend!r}: the forward graph is not Inductor's")
    return reasons


def _subclass_reasons(plan: PlanSource) -> list[str]:
    """Of tensor subclasses only DTensor is known, and only as an argument."""
    md = plan.metadata
    reasons = []
    metas = [*md.subclass_inp_meta, *(plan.gradients or ())]
    refused = [meta for meta in metas if not _is_dtensor(meta)]
    refused += [*md.subclass_fw_graph_out_meta, *md.subclass_tangent_meta]
    names = sorted({cls.__qualname__ for cls in map(_subclass, refused) if cls is not None})
    if names or (plan.subclass and not _dtensors(md)):
        reasons.append(f"tensor subclass inputs or outputs ({', '.join(names) or 'unknown'})")
    if any(
        md.input_info[i].mutates_data or md.input_info[i].mutates_metadata for i in _dtensors(md)
    ):
        reasons.append("DTensor inputs that are mutated")
    return reasons


def _is_dtensor(meta: Any) -> bool:
    """Whether *meta* is of a DTensor of fixed sizes."""
    cls = _subclass(meta)
    return (
        cls is not None
        and class_text(cls) == objects.DTENSOR
        and tuple(meta.attrs) == objects.DTENSOR_PARTS
        and all(type(size) is int for size in (*meta.outer_size, *meta.outer_stride))
    )


def _dtensors(md: Any) -> tuple[int, ...]:
    return tuple(i for i, meta in enumerate(md.subclass_inp_meta) if _is_dtensor(meta))


def _gradients(plan: PlanSource) -> tuple[Any, ...]:
    """The key ``gradients``."""
    found, index = [], 0
    for meta in plan.gradients or ():
        wrap = None
        if _is_dtensor(meta):
            try:
                wrap = encode(meta.meta), tuple(meta.outer_size), tuple(meta.outer_stride)
            except Unencodable as error:
                raise Unsupported(f"gradients that are DTensors: {error}") from None
        found.append((index, wrap))
        index += 1 if wrap is None else len(objects.DTENSOR_PARTS)
    return tuple(found)


def _subclass(meta: Any) -> type | None:
    """The tensor subclass that *meta* describes; None for a plain tensor."""
    if not isinstance(meta, torch_api.capture().SubclassCreationMeta):
        return None
    return meta.original_subclass_type or type(meta.original_subclass)


def _is_set(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(item is not None for item in value)
    return bool(value)


def plan_record(plan: PlanSource) -> dict[str, Any]:
    """The record of *plan* without ``fw`` and ``bw``. Raises Unsupported."""
    md = plan.metadata
    bumped = md.mutated_graph_handled_indices_seen_by_autograd if plan.keep_mutations else ()
    record: dict[str, Any] = {
        "kind": plan.kind,
        "inputs": len(md.input_info),
        "unwrap": _dtensors(md),
        "disable_autocast": plan.disable_autocast,
        "forward_aligned": _aligned(plan.fw),
        "version_bumps": tuple(bumped),
        "mutated": tuple(
            (
                i,
                bool(md.input_info[i].mutates_data),
                bool(md.input_info[i].mutates_metadata),
                bool(md.input_info[i].mutates_storage_metadata),
                bool(md.input_info[i].is_leaf),
            )
            for i in md.mutated_inp_runtime_indices
        ),
        "outputs": tuple(_output(info, plan) for info in md.output_info),
        "bases": md.num_intermediate_bases,
        "grad_mode": md.grad_enabled_mutation,
    }
    if plan.kind == "training":
        record.update(_training(plan))
    return record


def _output(info: Any, plan: PlanSource) -> tuple[Any, ...]:
    kind = info.output_type.name
    aliases = kind not in _DIFFERENTIABLE
    views = None
    if aliases and kind != "is_input" and plan.replay_views:
        sequence = info.view_meta_sequence
        if sequence is not None and not any(v.has_symbolic_inputs for v in sequence.sequence):
            views = tuple((type(v).__name__, _encode(v.as_tuple())) for v in sequence.sequence)
    dims = None
    if plan.metadata.dynamic_outputs and info.dynamic_dims is not None:
        dims = tuple(sorted(info.dynamic_dims))
    base = info.base_idx if aliases else None
    return (kind, base, dims, bool(info.requires_grad), views)


def _training(plan: PlanSource) -> dict[str, Any]:
    md = plan.metadata
    out_of_graph = torch_api.capture().MutationType.MUTATED_OUT_GRAPH
    n_mutated = len(md.mutated_inp_runtime_indices)
    n_outputs = len(md.output_info)
    returned = [i for i in md.input_info if i.mutation_type == out_of_graph] + md.output_info
    tangents = [
        k
        for k, i in enumerate(md.mutated_inp_runtime_indices)
        if md.input_info[i].mutates_data and md.input_info[i].requires_grad
    ]
    tangents += [
        n_mutated + k
        for k, info in enumerate(md.output_info)
        if info.output_type.name in _DIFFERENTIABLE
        and issubclass(info.raw_type, torch.Tensor)
        and getattr(info, torch_api.tables().TANGENT_FIELD)
    ]
    tangents += range(n_mutated + n_outputs, n_mutated + n_outputs + md.num_intermediate_bases)
    if len(tangents) != len(md.subclass_tangent_meta):
        raise Unsupported("tangents that do not match the outputs")
    return {
        "detach": plan.detach,
        "non_differentiable": tuple(
            k
            for k, info in enumerate(returned)
            if k < n_mutated + n_outputs and not info.requires_grad
        ),
        "saved_unchecked": int(md.num_tensors_saved_with_no_vc_check or 0),
        "saved_opaque": int(md.num_opaque_objects_saved_for_bw or 0),
        "gradients": _gradients(plan),
        "saved_symints": int(md.num_symints_saved_for_bw or 0),
        "dynamic_saved": tuple(
            (index, tuple(sorted(dims))) for index, dims in md.dynamic_saved_tensors_idxs.items()
        ),
        "tangents": tuple(
            (position, _memory_format(meta))
            for position, meta in zip(tangents, md.subclass_tangent_meta, strict=True)
        ),
        "inputs_require_grad": "grads_of_grads" in torch_api.tables().BEHAVIOUR
        and any(info.requires_grad for info in md.input_info),
        "mutates_in_backward": bool(md.indices_of_inputs_that_requires_grad_with_mutations_in_bw),
        "deterministic": md.deterministic,
        "donated": plan.donated_buffer and plan.bw is not None and md.bw_donated_idxs != [],
        "backward_aligned": () if plan.bw is None else _aligned(plan.bw),
    }


def _memory_format(meta: Any) -> Any:
    wanted = meta.memory_format
    if wanted is None:
        return None
    if wanted.memory_format is not None:
        return str(wanted.memory_format).removeprefix("torch.")
    if any(type(x) is not int for x in (*wanted.size, *wanted.stride)):
        raise Unsupported("tangents with symbolic sizes")
    return (tuple(wanted.size), tuple(wanted.stride))


def _encode(value: Any) -> tuple[Any, ...]:
    """State of a ViewMeta in the encoding of docs/internals.md section 2."""
    if value is None or type(value) in (bool, int, float, str):
        return ("k", value)
    if type(value) is tuple:
        return ("t", tuple(_encode(item) for item in value))
    if type(value) is list:
        return ("l", tuple(_encode(item) for item in value))
    if isinstance(value, torch.dtype):
        return ("dt", str(value).removeprefix("torch."))
    if type(value) is torch_api.serve().InverseReturnMode:
        return ("irm", value.name)
    raise Unsupported(f"a view with a {type(value).__name__} argument")
