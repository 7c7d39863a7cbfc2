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
``saved_unchecked``, ``saved_symints``
    The forward graph returns write-backs, outputs, bases, saved tensors, then this many saved
    tensors without version check, then this many SymInts.
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

import dataclasses
import inspect
import operator
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from precomp import torch_api
from precomp.freeze.store import Unsupported

Patch = Callable[[Any, str, Any], None]

_DIFFERENTIABLE = ("non_alias", "unsafe_view_alias", "custom_function_view")


class PlanSource:
    """What was seen of one AOT compilation: torch's metadata and Inductor's graphs, no tensors.

    ``bw`` of a training plan stays None until torch compiles the backward, at the first call of
    ``backward()``.
    """

    kind: str

    def __init__(self, kind: str, metadata: Any, aot_config: Any) -> None:
        functorch = torch_api.capture().functorch_config
        self.kind = kind
        self.metadata = metadata
        self.keep_mutations = bool(aot_config.keep_inference_input_mutations)
        self.num_params = int(aot_config.num_params_buffers)
        self.replay_views = bool(functorch.view_replay_for_aliased_outputs)
        self.donated_buffer = bool(functorch.donated_buffer)
        self.disable_autocast = False
        self.detach: tuple[int, ...] = ()
        self.subclass = False
        self.backward_state = False
        self.fw: Any = None
        self.bw: Any = None
        self.reasons: list[str] = []


class PassGraph:
    """A graph without operations: Inductor makes no module for it."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        nodes = list(gm.graph.nodes)
        arguments = [node for node in nodes if node.op == "placeholder"]
        self.outputs: tuple[tuple[str, Any], ...] | None = None
        (returned,) = nodes[-1].args
        outputs: list[tuple[str, Any]] = []
        for value in returned:
            if isinstance(value, torch.fx.Node):
                if value not in arguments:
                    return
                outputs.append(("i", arguments.index(value)))
            elif value is None or type(value) in (bool, int, float):
                outputs.append(("c", value))
            else:
                return
        self.outputs = tuple(outputs)


class GraphSource:
    """What was seen of one call of a Dynamo backend: its plans, and why they do not suffice."""

    def __init__(self, backend: str, reasons: list[str]) -> None:
        self.name = ""
        self.backend = backend
        self.reasons = reasons
        self.graphs: list[tuple[bool, Any]] = []
        self.plans: list[PlanSource] = []
        self.split: Any = None
        self.attributes: tuple[int, ...] = ()  # ids of the tensors that the graph holds

    def take(self, backward: bool) -> Any:
        """The latest Inductor graph of that direction, removed from the pending ones."""
        for i in reversed(range(len(self.graphs))):
            if self.graphs[i][0] == backward:
                return self.graphs.pop(i)[1]
        return None


class PlanRecorder:
    """Sees every plan that torch builds, compiled anew or taken from a cache.

    Works for one compiling thread at a time per thread; a compilation that fails leaves nothing
    behind.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    # -- hooks

    def install(self, patch: Patch) -> None:
        """Hook torch's compiler with ``patch(owner, name, new)``; the caller undoes it."""
        api = torch_api.capture()
        self._hook_backend(patch, api)
        self._hook_inductor(patch, api)
        self._hook_wrappers(patch, api)
        self._hook_ddp(patch, api)

    def _hook_backend(self, patch: Patch, api: Any) -> None:
        original = api.OutputGraph.call_user_compiler

        def call_user_compiler(graph: Any, gm: Any, example_inputs: Any) -> Any:
            name, reasons = _backend(graph.compiler_fn, api)
            reasons += [
                reason
                for field, reason in torch_api.tables().GRAPH_REFUSED.items()
                if getattr(graph, field)
            ]
            if graph.shape_env is not None and getattr(graph.shape_env, "specializations", None):
                reasons.append("mark_dynamic with specialize_on")
            if any(isinstance(x, (list, tuple, dict)) for x in example_inputs):
                reasons.append("inputs that are containers (compiled autograd)")
            source = GraphSource(name, reasons)
            held = dict(gm.named_parameters(remove_duplicate=False))
            held.update(gm.named_buffers(remove_duplicate=False))
            source.attributes = tuple(map(id, held.values()))
            self._local.finished = None
            with self._collecting(source):
                compiled = original(graph, gm, example_inputs)
            self._local.finished = source
            return compiled

        patch(api.OutputGraph, "call_user_compiler", call_user_compiler)

    def _hook_inductor(self, patch: Patch, api: Any) -> None:
        original = api.CompiledFxGraph.post_compile

        def post_compile(graph: Any, example_inputs: Any, constants: Any, kwargs: Any) -> Any:
            result = original(graph, example_inputs, constants, kwargs)
            source = self._current()
            if source is not None:
                source.graphs.append((bool(kwargs["is_backward"]), graph))
                source.reasons.extend(_graph_reasons(graph, kwargs, api))
            return result

        patch(api.CompiledFxGraph, "post_compile", post_compile)
        compile_inner = api.compile_fx_module._compile_fx_inner

        def _compile_fx_inner(gm: Any, *args: Any, **kwargs: Any) -> Any:
            result = compile_inner(gm, *args, **kwargs)
            source = self._current()
            if source is not None and not isinstance(result, api.OutputCode):
                if api.count_calls(gm.graph) == 0:
                    source.graphs.append((bool(kwargs.get("is_backward")), PassGraph(gm)))
            return result

        patch(api.compile_fx_module, "_compile_fx_inner", _compile_fx_inner)

    def _hook_wrappers(self, patch: Patch, api: Any) -> None:
        autograd = api.AOTDispatchAutograd.post_compile
        runtime = api.RuntimeWrapper.post_compile

        signature = inspect.signature(autograd)

        def post_compile_autograd(*args: Any, **kwargs: Any) -> Any:
            source = self._current()
            if source is None:
                return autograd(*args, **kwargs)
            # One argument, an object with fields; torch 2.11: all of them as arguments.
            bound = signature.bind(*args, **kwargs)
            one = args[0] if args else None
            spec: Any = (
                one if hasattr(one, "fw_metadata") else types.SimpleNamespace(**bound.arguments)
            )
            plan = PlanSource("training", spec.fw_metadata, spec.aot_config)
            plan.disable_autocast = bool(spec.disable_amp)
            plan.detach = tuple(spec.indices_of_inps_to_detach)
            plan.subclass = spec.maybe_subclass_meta is not None
            plan.backward_state = bool(spec.backward_state_indices)
            if api.should_disable_saved_tensors_hooks():
                plan.reasons.append("saved tensor hooks that were compiled into the graph")
            plan.fw = source.take(False)
            if spec.compiled_bw_func is not None:
                plan.bw = source.take(True)
            elif hasattr(spec, "bw_compiler"):
                if spec.bw_compiler is not None:
                    spec.bw_compiler = self._lazy_backward(plan, spec.bw_compiler, source.backend)
            elif spec.aot_config.bw_compiler is not None:
                bound.arguments["aot_config"] = dataclasses.replace(
                    spec.aot_config,
                    bw_compiler=self._lazy_backward(
                        plan, spec.aot_config.bw_compiler, source.backend
                    ),
                )
            source.graphs.clear()
            source.plans.append(plan)
            self._local.in_autograd = True
            try:
                return autograd(*bound.args, **bound.kwargs)
            finally:
                self._local.in_autograd = False

        def post_compile_runtime(
            wrapper: Any, compiled_fn: Any, aot_config: Any, *, runtime_metadata: Any
        ) -> Any:
            source = self._current()
            if source is not None and not getattr(self._local, "in_autograd", False):
                plan = PlanSource("inference", runtime_metadata, aot_config)
                plan.disable_autocast = bool(wrapper.disable_amp)
                plan.fw = source.take(False)
                source.graphs.clear()
                source.plans.append(plan)
            return runtime(wrapper, compiled_fn, aot_config, runtime_metadata=runtime_metadata)

        patch(api.AOTDispatchAutograd, "post_compile", staticmethod(post_compile_autograd))
        patch(api.RuntimeWrapper, "post_compile", post_compile_runtime)
        for cls, reason in (
            (api.AOTDedupeWrapper, "the same tensor is passed more than once and mutated (dedupe)"),
            (api.AOTSyntheticBaseWrapper, "inputs that alias each other and are mutated"),
        ):
            patch(cls, "post_compile", self._dispatch_hook(cls.post_compile, reason))

    def _dispatch_hook(self, original: Any, reason: str) -> Any:
        def post_compile(
            wrapper: Any, compiled_fn: Any, aot_config: Any, *, runtime_metadata: Any
        ) -> Any:
            source = self._current()
            if source is not None and wrapper.needs_post_compile:
                if source.plans:
                    source.plans[-1].reasons.append(reason)
                else:
                    source.reasons.append(reason)
            return original(wrapper, compiled_fn, aot_config, runtime_metadata=runtime_metadata)

        return post_compile

    def _hook_ddp(self, patch: Patch, api: Any) -> None:
        original = api.DDPOptimizer.compile_fn

        def compile_fn(optimizer: Any, gm: Any, example_inputs: Any, **configs: Any) -> Any:
            compiled = original(optimizer, gm, example_inputs, **configs)
            source = self._current()
            if source is not None and isinstance(compiled, torch.fx.GraphModule):
                if len(source.plans) > 1:
                    try:
                        source.split = split_program(compiled)
                    except Unsupported as error:
                        source.reasons.append(str(error))
            return compiled

        patch(api.DDPOptimizer, "compile_fn", compile_fn)

    def _lazy_backward(self, plan: PlanSource, compiler: Any, backend: str) -> Any:
        """*compiler*, noting in *plan* the graph that it compiles."""

        def bw_compiler(*args: Any, **kwargs: Any) -> Any:
            source = GraphSource(backend, [])
            with self._collecting(source):
                result = compiler(*args, **kwargs)
            plan.bw = source.take(True)
            plan.reasons.extend(source.reasons)
            return result

        # backward() may run inside a compiled region: Dynamo must not compile our frames.
        return torch.compiler.disable(bw_compiler)

    # -- pending sources

    def _current(self) -> GraphSource | None:
        stack = getattr(self._local, "stack", None)
        return stack[-1] if stack else None

    @contextmanager
    def _collecting(self, source: GraphSource) -> Iterator[None]:
        local = self._local
        if not hasattr(local, "stack"):
            local.stack = []
        local.stack.append(source)
        try:
            yield
        finally:
            local.stack.pop()

    def claim(self, name: str) -> GraphSource:
        """The graph that Dynamo just installed as the global *name*.

        Raises Unsupported if no graph was compiled for it while the recorder was installed.
        """
        source: GraphSource | None = getattr(self._local, "finished", None)
        self._local.finished = None
        if source is None:
            raise Unsupported(f"{name}: the compiled graph was not seen")
        source.name = name
        return source

    def discard_pending(self) -> None:
        """Forget a graph that was compiled but not installed."""
        self._local.finished = None

    # -- records

    def freeze(self, source: GraphSource, module_digest: Callable[[Any], str]) -> dict[str, Any]:
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


def _backend(compiler: Any, api: Any) -> tuple[str, list[str]]:
    """Name of a Dynamo backend and why its graphs cannot be frozen."""
    reasons = []
    config = api.dynamo_config
    for option in ("verify_correctness", "repro_after", "debug_backend_override"):
        if getattr(config, option, None):
            reasons.append(f"torch._dynamo.config.{option} is set")
    for _ in range(16):
        owner = getattr(compiler, "__self__", None)
        if isinstance(owner, api.DDPOptimizer):
            compiler = owner.backend_compile_fn
        elif hasattr(compiler, "_torchdynamo_orig_backend"):
            compiler = compiler._torchdynamo_orig_backend
        elif hasattr(compiler, "_torchdynamo_orig_callable"):
            compiler = compiler._torchdynamo_orig_callable
        else:
            break
    if isinstance(compiler, api.InductorWrapper):
        return "inductor", reasons
    if compiler is api.inductor_backend or compiler is api.compile_fx:
        return "inductor", reasons
    name = getattr(compiler, "compiler_name", None) or getattr(compiler, "__name__", None)
    name = str(name or type(compiler).__name__)
    reasons.append(f"backend {name!r} is not 'inductor'")
    return name, reasons


def _graph_reasons(graph: Any, kwargs: Any, api: Any) -> list[str]:
    """Why an Inductor graph cannot be frozen; called right after its post_compile."""
    config = api.inductor_config
    reasons = []
    if kwargs["cudagraphs"]:
        reasons.append("CUDA graphs")
    if config.graph_partition and api.partition_wrapper.wrapper:
        reasons.append("a customized partition wrapper")
    if getattr(config, "cudagraph_policy", None) is not None:
        reasons.append("torch._inductor.config.cudagraph_policy is set")
    if config.freezing or graph.frozen_param_names:
        reasons.append("torch._inductor.config.freezing is on")
    if config.cpp_wrapper or graph.fx_kwargs.get("cpp_wrapper"):
        reasons.append("torch._inductor.config.cpp_wrapper is on")
    if graph._wrap_compiled_regions:
        reasons.append("torch._inductor.config.wrap_inductor_compiled_regions is on")
    return reasons


def _aligned(graph: Any) -> tuple[tuple[int, bool], ...]:
    """Arguments of *graph* that its code does not align itself, and whether it writes to them."""
    if isinstance(graph, PassGraph):
        return ()
    mutated = graph.mutated_input_idxs
    return tuple(
        (int(i), i in mutated)
        for i in graph.inputs_to_check
        if not getattr(graph, "_defers_input_alignment", False) or i in mutated
    )


def plan_reasons(plan: PlanSource, backend: str) -> list[str]:
    """Why *plan* cannot be frozen."""
    md = plan.metadata
    subclass_meta = torch_api.capture().SubclassCreationMeta
    reasons = list(plan.reasons)
    metas = (*md.subclass_inp_meta, *md.subclass_fw_graph_out_meta, *md.subclass_tangent_meta)
    if plan.subclass or any(isinstance(meta, subclass_meta) for meta in metas):
        reasons.append("tensor subclass inputs or outputs")
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
        "saved_symints": int(md.num_symints_saved_for_bw or 0),
        "dynamic_saved": tuple(
            (index, tuple(sorted(dims))) for index, dims in md.dynamic_saved_tensors_idxs.items()
        ),
        "tangents": tuple(
            (position, _memory_format(meta))
            for position, meta in zip(tangents, md.subclass_tangent_meta, strict=True)
        ),
        "inputs_require_grad": any(info.requires_grad for info in md.input_info),
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


def split_program(gm: torch.fx.GraphModule) -> tuple[Any, ...]:
    """The outer graph that DDPOptimizer made, as the ``program`` of a split record."""
    nodes = list(gm.graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    last = {user: node for node in nodes for user in node.all_input_nodes}
    program: list[tuple[Any, ...]] = []
    part = 0

    def expression(value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.fx.Node):
            return ("n", number[value])
        if isinstance(value, (tuple, list)):
            return ("t", tuple(expression(item) for item in value))
        if value is None or type(value) in (bool, int, float, str):
            return ("c", value)
        raise Unsupported(f"split graph: argument of type {type(value).__name__}")

    for node in nodes:
        free = tuple(number[used] for used in node.all_input_nodes if last[used] is node)
        if node.op == "placeholder":
            program.append(("in",))
        elif node.op == "call_module" and not node.kwargs:
            unwrap = getattr(gm.get_submodule(node.target), "unwrap_singleton_tuple", None)
            if unwrap is None:
                raise Unsupported(f"split graph: {node.target} was not compiled")
            arguments = expression(node.args)[1]
            program.append(("call", part, arguments, bool(unwrap), free))
            part += 1
        elif node.op == "call_function" and node.target is operator.getitem:
            program.append(("get", expression(node.args[0]), node.args[1], free))
        elif node.op == "output":
            program.append(("out", expression(node.args[0])))
        else:
            raise Unsupported(f"split graph: {node.op} {node.target}")
    return tuple(program)
