"""Plans: from a record and the callables of its graphs to what transformed bytecode calls.

The work is done by ``_core.Plan`` (csrc/binding/plan*.c); here are the parts of it that must be
Python objects: the ``torch.autograd.Function`` of a training plan and its rare paths.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from precomp import _core, torch_api
from precomp.errors import CompileViolation
from precomp.torch_api import modules, objects

Graph = Callable[[list[Any]], Any]


def digests(record: dict[str, Any]) -> tuple[str, ...]:
    """Digests of all modules that *record* calls, forward before backward, no duplicates."""
    if record["kind"] == "split":
        found = [digest for part in record["plans"] for digest in digests(part)]
    else:
        found = [digest for digest in (record["fw"], record["bw"]) if isinstance(digest, str)]
    return tuple(dict.fromkeys(found))


def load(record: dict[str, Any], graph: Callable[[str], Graph]) -> Callable[..., Any]:
    """Build the plan of *record*; ``graph(digest)`` gives the callable of a module."""
    if record["kind"] == "split":
        return _core.SplitPlan(
            record["program"], tuple(load(part, graph) for part in record["plans"])
        )
    forward, backward = (
        graph(digest) if isinstance(digest, str) else None
        for digest in (record["fw"], record["bw"])
    )
    return build(record, forward, backward)


def build(
    record: dict[str, Any],
    forward_call: Graph | Sequence[Graph | None] | None,
    backward_call: Graph | Sequence[Graph | None] | None = None,
) -> Callable[..., Any]:
    """Build the plan of *record* over the callables of its graphs.

    A graph takes one list of arguments, which it empties, and returns a list or tuple. None stands
    for a graph without a module. For a split record both arguments are sequences with one callable
    or None per part. The result takes the inputs of the Dynamo graph and returns a list or tuple of
    its outputs. Raises ValueError if the record is malformed.
    """
    if record["kind"] == "split":
        assert isinstance(forward_call, Sequence)
        backwards = backward_call if isinstance(backward_call, Sequence) else ()
        backwards = backwards or [None] * len(record["plans"])
        parts = zip(record["plans"], forward_call, backwards, strict=True)
        return _core.SplitPlan(record["program"], tuple(build(*part) for part in parts))
    torch_api.serve()
    if isinstance(record["fw"], tuple):
        forward_call = _pass_graph(record["fw"])
    if isinstance(record["bw"], tuple):
        backward_call = _pass_graph(record["bw"])
    elif record["kind"] == "training" and record["bw"] is None:
        backward_call = backward_call or _no_backward
    assert callable(forward_call) and not isinstance(backward_call, Sequence)
    plan = _core.Plan(resolve(record), forward_call, backward_call)
    if record["kind"] == "training":
        _bind_function(plan)
    return plan


def _no_backward(args: list[Any]) -> Any:
    """The backward of a graph that was captured without it: always a violation.

    The graph itself is not in the artifact, so torch cannot compile its backward either.
    """
    what = "backward of a captured graph"
    why = "its backward was not run while capturing"
    hint = "run backward() inside the capture, or call the forward under torch.no_grad()"
    _core.gate_trip("lower", what, why, None, hint)
    raise CompileViolation("lower", what, why, _core.gate_where(), hint)


def resolve(record: dict[str, Any]) -> dict[str, Any]:
    """*record* with ViewMeta and memory_format objects in place of their plain form."""
    resolved = dict(record)
    resolved["outputs"] = tuple(
        (*output[:4], None if output[4] is None else [_view_meta(*view) for view in output[4]])
        for output in record["outputs"]
    )
    if record["kind"] == "training":
        resolved["tangents"] = tuple(
            (position, getattr(torch, form) if isinstance(form, str) else form)
            for position, form in record["tangents"]
        )
        resolved["gradients"] = tuple(
            (index, wrap and objects.dtensor_maker(_core.decode(wrap[0]), *wrap[1:]))
            for index, wrap in record["gradients"]
        )
    return resolved


def _pass_graph(outputs: tuple[tuple[str, Any], ...]) -> Graph:
    """A graph without operations: gives arguments and constants."""

    def call(args: list[Any]) -> tuple[Any, ...]:
        returned = tuple(args[value] if tag == "i" else value for tag, value in outputs)
        args.clear()
        return returned

    return call


def _view_meta(name: str, state: tuple[Any, ...]) -> Any:
    return getattr(torch_api.serve().functionalization, name)(_decode(state))


def _decode(encoded: tuple[Any, ...]) -> Any:
    """The subset of the encoding of docs/internals.md section 2 that ViewMeta state needs."""
    tag, value = encoded
    if tag == "k":
        return value
    if tag == "t":
        return tuple(_decode(item) for item in value)
    if tag == "l":
        return [_decode(item) for item in value]
    if tag == "dt":
        return getattr(torch, value)
    if tag == "irm":
        return getattr(torch_api.serve().InverseReturnMode, value)
    raise ValueError(f"plan record: views: unknown tag {tag!r}")


def _bind_function(plan: Any) -> None:
    """Give *plan* an autograd.Function whose forward and backward are C callables."""

    class CompiledFunction(torch.autograd.Function):
        boxed_grads_call = True
        forward = staticmethod(plan.forward_autograd)
        backward = staticmethod(plan.backward_autograd)

        @staticmethod
        def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:
            return _compiled_autograd_key(ctx)

    # The engine calls it at the node: without this, two Python frames per backward.
    entry = "apply_boxed" if torch_api.serve().boxed_grads else "apply"
    setattr(objects.backward_class(CompiledFunction), entry, plan.apply_boxed)
    base = torch_api.serve().FunctionBase.__dict__["apply"]
    plan.bind(
        CompiledFunction,
        base.__get__(None, CompiledFunction),
        _double_backward,
        _coerce_subclass,
    )


def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:
    return (objects.autograd_function_id(ctx), *getattr(ctx, "symints", ()))


def _double_backward(
    run: Callable[..., Any], args: list[Any], ctx: Any, context: Any
) -> tuple[Any, ...]:
    """Run a backward whose result must be connected to a graph that refuses to be differentiated.

    *run* runs the backward graph on *args*; *context* is the contextvars context of the engine
    thread, or None.
    """

    class CompiledFunctionBackward(torch.autograd.Function):
        @staticmethod
        def forward(double_ctx: Any, *unused_args: Any) -> Any:
            return run(double_ctx) if context is None else context.run(run, double_ctx)

        @staticmethod
        def backward(double_ctx: Any, *grads: Any) -> Any:
            raise RuntimeError(
                "torch.compile with aot_autograd does not currently support double backward"
            )

        @staticmethod
        def _compiled_autograd_key(double_ctx: Any) -> tuple[Any, ...]:
            return _compiled_autograd_key(ctx)

    inputs = args[:]
    # Saved tensors are detached. Without an input that requires grad the result would not
    # either, and create_graph=True promises that it does.
    if not any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        inputs.insert(0, torch.empty(0, requires_grad=True))
    return CompiledFunctionBackward.apply(*inputs)


def _coerce_subclass(tangent: Any) -> torch.Tensor:
    """The plain tensor that a tangent of a tensor subclass stands for, or torch's refusal."""
    fake = sys.modules.get(modules.FAKE_TENSOR)
    functional = sys.modules.get(modules.FUNCTIONAL_TENSOR)
    if fake is not None and isinstance(tangent, fake.FakeTensor):
        return tangent
    if functional is not None and isinstance(tangent, functional.FunctionalTensor):
        return tangent
    meta = None
    flatten = getattr(tangent, "__tensor_flatten__", None)
    if flatten is not None:
        meta = flatten()[1]
    coerce = getattr(tangent, "__coerce_same_metadata_as_tangent__", None)
    plain = None if coerce is None else coerce(None, torch.Tensor)
    if plain is None:
        raise RuntimeError(
            f"""
During the backward, we encountered a tensor subclass where we guessed its
metadata incorrectly.
Expected: None (type {torch.Tensor}),
got: {meta} (type {type(tangent)}), shape: {tangent.shape}.
Your tensor subclass must implement __coerce_same_metadata_as_tangent__."""
        )
    return plain
