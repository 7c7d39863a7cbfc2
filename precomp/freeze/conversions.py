"""Conversions: what Dynamo does while a capture is active, as it does it.

``FrameRecorder`` listens to Dynamo and notes each frame that it converted or skipped, the code it
inlined and the globals it put into modules. ``precomp.freeze.frame`` makes entries of it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

from precomp import backends
from precomp.freeze import devices, process_groups
from precomp.freeze.guards import GuardRecorder
from precomp.freeze.plan_recorder import PlanRecorder
from precomp.freeze.store import Unsupported
from precomp.freeze.traced import RESUME, Calls, Traced, calls_users
from precomp.process_groups import Layout, layout
from precomp.torch_api import capture as capture_api
from precomp.torch_api import objects

Patch = Callable[[Any, str, Any], None]

COMPILED = "__compiled_fn"
BUILTINS = "__builtins_dict__"
RANDOM = "__gen_rand_values"
RANDOM_REASON = (
    "random numbers that Dynamo draws for a graph (random.randint, random.uniform, random.Random)"
)
UNNAMED = "___unnamed_scope"  # globals that no module holds


@dataclasses.dataclass
class Converted:
    """One frame that Dynamo converted."""

    original: types.CodeType
    transformed: types.CodeType
    guard_manager: Any
    f_globals: dict[str, Any]
    backend: dict[str, Any]
    traced: Traced
    problems: list[str]
    ranks: Layout | None  # where the rank was, if that matters


@dataclasses.dataclass
class Skipped:
    """One frame that Dynamo decided to run as it is."""

    code: types.CodeType
    f_globals: dict[str, Any]
    current: int
    recursive: int
    apply_to_code: bool


@dataclasses.dataclass
class Installed:
    """A global that Dynamo put into a module for its bytecode or guards."""

    kind: str  # plan, builtins, resume, resume_closure, mod, weak, val, refused
    value: Any


def backend_record(callback: Any) -> dict[str, Any]:
    """What torch compares to decide whether a cache entry belongs to a torch.compile call."""
    backend = objects.innermost_backend(callback)
    wrapper = capture_api().InductorWrapper
    if type(backend) is not wrapper:
        name = getattr(backend, "compiler_name", None) or getattr(
            backend, "__name__", type(backend).__name__
        )
        return {"backend": str(name), "config": {}, "dynamic": None, "name": None}
    return backends.record(backend)


class FrameRecorder:
    """Records conversions, skips, inlined code and installed globals of one capture."""

    def __init__(self, guards: GuardRecorder, plans: PlanRecorder) -> None:
        self.guards = guards
        self.plans = plans
        self.converted: list[Converted] = []
        self.skipped: list[Skipped] = []
        # (id of the module dict, name) -> what was installed there
        self.installed: dict[tuple[int, str], Installed] = {}
        self.scopes: dict[int, dict[str, Any]] = {}
        self._traced: list[Traced] = []  # one for each conversion that is going on
        guards.trace.note_code = self._note_inlined

    def _note_inlined(self, function: types.FunctionType) -> None:
        """*function* decides what a frame compiles to, though Dynamo calls it as it is."""
        if self._traced:
            code = function.__code__
            self._traced[-1].inlined[id(code)] = (code, function.__module__, function)

    def _note_number(self, reason: str) -> None:
        if self._traced:
            self._traced[-1].numbers.append(reason)

    def _note_ranks(self) -> None:
        if self._traced:
            self._traced[-1].ranks = True

    def _note_graph(self, graph: Any) -> None:
        if self._traced:
            uses = devices.uses_of_graph(graph)
            self._traced[-1].ranks |= process_groups.in_graph(graph)
            self._traced[-1].current |= uses.current
            self._traced[-1].numbers += uses.numbers

    def install(self, patch: Patch) -> None:
        """Start listening; *patch(owner, name, new)* replaces an attribute while capturing."""
        api = capture_api()
        recorder = self
        convert = api.CatchErrorsWrapper.__call__

        @functools.wraps(convert)
        def call(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            recorder._traced.append(Traced())
            try:
                result = convert(wrapper, frame, cache_entry, frame_state)
            except BaseException:
                recorder.plans.discard_pending()
                raise
            finally:
                traced = recorder._traced.pop()
            recorder._record(wrapper, frame, result, traced)
            return result

        patch(api.CatchErrorsWrapper, "__call__", call)

        inline = api.InliningInstructionTranslator.__init__

        @functools.wraps(inline)
        def inline_init(translator: Any, *args: Any, **kwargs: Any) -> None:
            inline(translator, *args, **kwargs)
            if recorder._traced:
                recorder._traced[-1].inline(translator)

        patch(api.InliningInstructionTranslator, "__init__", inline_init)
        self._watch_calls(patch)
        devices.watch(patch, self._note_number, self._note_graph)
        process_groups.watch(patch, self._note_ranks)

        create = api.CleanupHook.create

        def create_hook(scope: dict[str, Any], name: str, value: Any) -> Any:
            recorder._record_global(scope, name, value)
            return create(scope, name, value)

        patch(api.CleanupHook, "create", staticmethod(create_hook))

        import_source = api.InstructionTranslatorBase.import_source

        @functools.wraps(import_source)
        def importing(translator: Any, module_name: str) -> Any:
            source = import_source(translator, module_name)
            scope = translator.output.global_scope
            recorder.scopes[id(scope)] = scope
            recorder.installed[id(scope), source.global_name] = Installed("mod", module_name)
            return source

        patch(api.InstructionTranslatorBase, "import_source", importing)

    def _watch_calls(self, patch: Patch) -> None:
        """Note what runs in functions that Dynamo does not look into."""
        api = capture_api()
        recorder = self
        compile_graph = api.OutputGraph.call_user_compiler

        @functools.wraps(compile_graph)
        def compiling(output: Any, graph: Any, example_inputs: Any) -> Any:
            targets = (node.target for node in graph.graph.nodes if node.op == "call_function")
            if recorder._traced and calls_users(targets):
                with Calls(recorder._traced[-1]):
                    return compile_graph(output, graph, example_inputs)
            return compile_graph(output, graph, example_inputs)

        patch(api.OutputGraph, "call_user_compiler", compiling)
        for module in (api.function_variables, api.module_variables):
            call = module.invoke_and_store_as_constant

            @functools.wraps(call)
            def storing(*args: Any, _call: Any = call, **kwargs: Any) -> Any:
                if not recorder._traced:
                    return _call(*args, **kwargs)
                with Calls(recorder._traced[-1]):
                    return _call(*args, **kwargs)

            patch(module, "invoke_and_store_as_constant", storing)
        initialize = api.module_variables.initialize_lazy_module

        @functools.wraps(initialize)
        def initializing(tx: Any, module: Any, args: Any, kwargs: Any) -> Any:
            if recorder._traced and objects.is_lazy(module):
                recorder._traced[-1].problems.append(
                    f"a lazy module, {type(module).__name__}, is initialized while Dynamo traces; "
                    "call the model once before it is compiled"
                )
            return initialize(tx, module, args, kwargs)

        patch(api.module_variables, "initialize_lazy_module", initializing)

    def _record_global(self, scope: dict[str, Any], name: str, value: Any) -> None:
        if name.startswith(COMPILED):
            try:
                entry = Installed("plan", self.plans.claim(name))
            except Unsupported as refusal:
                entry = Installed("refused", refusal)
        elif name.startswith(BUILTINS):
            entry = Installed("builtins", None)
        elif isinstance(value, types.FunctionType) and RESUME in value.__code__.co_name:
            entry = Installed("resume", value.__code__)
        elif isinstance(value, types.FunctionType) and value.__name__ == objects.RESUME_CLOSURE:
            entry = Installed("resume_closure", inspect.getclosurevars(value).nonlocals["code"])
        elif name.startswith(RANDOM):
            entry = Installed("refused", Unsupported(RANDOM_REASON))
        elif name.startswith(UNNAMED) and not _is_namedtuple_scope(value):
            entry = Installed("refused", Unsupported("an inlined function of no module"))
        elif isinstance(value, weakref.ReferenceType):
            entry = Installed("weak", value)
        else:
            entry = Installed("val", value)
        self.scopes[id(scope)] = scope
        self.installed[id(scope), name] = entry

    def _record(
        self, wrapper: Any, frame: Any, result: Any, traced: Traced
    ) -> None:
        if result.guarded_code is None:
            strategy = result.frame_exec_strategy
            self.skipped.append(
                Skipped(
                    frame.f_code,
                    frame.f_globals,
                    int(strategy.cur_action.value),
                    int(strategy.recursive_action.value),
                    bool(result.apply_to_code),
                )
            )
            return
        guarded = result.guarded_code
        problems = list(traced.problems)
        try:
            self.guards.prove(guarded.guard_manager, frame.f_locals, frame.f_globals)
        except Unsupported as refusal:
            problems.append(str(refusal))
        ranks = traced.ranks or self.guards.groups(guarded.guard_manager) is not None
        self.converted.append(
            Converted(
                frame.f_code,
                guarded.code,
                guarded.guard_manager,
                frame.f_globals,
                backend_record(wrapper),
                traced,
                problems,
                layout() if ranks else None,
            )
        )


def _is_namedtuple_scope(scope: dict[str, Any]) -> bool:
    """The globals that collections.namedtuple gives to ``__new__``: always the same."""
    return str(scope.get("__name__")).startswith("namedtuple_")
