"""Hooks in torch's compiler that note, for each graph, what ``precomp.freeze.plan`` records."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from precomp import torch_api
from precomp.freeze import cuda_graphs
from precomp.freeze.plan_source import GraphSource, PassGraph, PlanSource
from precomp.freeze.plan_split import split_program
from precomp.freeze.store import Unsupported
from precomp.torch_api import objects

Patch = Callable[[Any, str, Any], None]


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
        cuda_graphs.watch(patch)

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

        @functools.wraps(autograd)  # two recorders at once: the signature is torch's
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
            if plan.subclass:
                plan.gradients = spec.maybe_subclass_meta.grad_input_metas
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
        else:
            below = objects.backend_below(compiler)
            if below is None:
                below = objects.callable_below(compiler)
            if below is None:
                break
            compiler = below
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
        if not config.triton.cudagraph_trees:
            reasons.append("torch._inductor.config.triton.cudagraph_trees is off")
        if config.triton.cudagraph_capture_sizes is not None:
            reasons.append("torch._inductor.config.triton.cudagraph_capture_sizes is set")
    if config.graph_partition and api.partition_wrapper.wrapper:
        reasons.append("a customized partition wrapper")
    if getattr(config, "cudagraph_policy", None) is not None:
        reasons.append("torch._inductor.config.cudagraph_policy is set")
    if config.freezing or graph.frozen_param_names:
        reasons.append("torch._inductor.config.freezing is on")
    if config.cpp_wrapper or graph.fx_kwargs.get("cpp_wrapper"):
        reasons.append("torch._inductor.config.cpp_wrapper is on")
    if objects.wraps_compiled_regions(graph):
        reasons.append("torch._inductor.config.wrap_inductor_compiled_regions is on")
    return reasons
