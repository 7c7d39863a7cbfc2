"""One configuration of torch.compile: its frame server, its wrappers and what a call does.

References for the behaviour: ``_TorchDynamoContext.__call__`` and ``OptimizedModule`` of torch.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from precomp import _core, torch_api
from precomp.serve import standin
from precomp.serve.callables import innermost, with_frame
from precomp.serve.frame import Runtime, runtime
from precomp.serve.optimized_module import OptimizedModule, become_instances_of
from precomp.torch_api import modules, objects

# The arguments of torch.compile that can be served, with torch's defaults.
_SERVED = ("fullgraph", "dynamic", "mode", "options", "name", "recompile_limit")
_ARGUMENTS: dict[str, Any] = torch.compile.__kwdefaults__ or {}
DEFAULTS = {name: value for name, value in _ARGUMENTS.items() if name in _SERVED}
_BEHAVIOUR = torch_api.tables().BEHAVIOUR
_api = torch_api.serve()
_InductorWrapper: Any = _api.InductorWrapper
_fx_tracing: Any = _api.fx_tracing
_FX_FLAG = torch_api.tables().FX_TRACING_FLAG
_is_jit_tracing = _api.is_jit_tracing
_tracing = _api.guards_tls
_set_count = _api.set_fullgraph_compiled_frame_count
_set_nested = _api.set_fullgraph_nested_compile

# What holds torch's current stance: the real torch._dynamo.eval_frame once it is there. A stance
# other than the default cannot be set before. _plain is a stance known to be the default.
_watch: Any = types.SimpleNamespace(_stance=None)
_plain: Any = None


class Settings(_InductorWrapper):  # type: ignore[misc]
    """Checks mode and options as torch does, with the modes that the artifact knows."""

    def __init__(
        self, mode: str | None, options: Any, dynamic: bool | None, name: str | None
    ) -> None:
        # Not torch's own: it asks its bisector, which makes the directory of torch's caches.
        self.config: dict[str, Any] = {}
        self.dynamic = dynamic
        self.name = name
        self.apply_mode(mode)
        self.apply_options(options)

    def apply_mode(self, mode: str | None) -> None:
        """The options of *mode*. Raises RuntimeError for an unknown one."""
        if not mode or mode == "default":
            return
        modes = runtime().modes
        try:
            options = modes[mode]
        except KeyError as e:
            raise RuntimeError(
                f"Unrecognized mode={mode}, should be one of: {', '.join(modes)}"
            ) from e
        self.apply_options(options)


class Compiler:
    """One configuration of torch.compile and its frame server.

    It stands where torch has its context object (``OptimizedModule.dynamo_ctx``): called with a
    function, a module or a class it compiles it; pickled it becomes the torch.compile call.
    """

    def __init__(self, run: Runtime, backend: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.fullgraph: bool = arguments["fullgraph"]
        self.server = run.server(backend, self._torch_callback, whole=self.fullgraph)
        self._context: Any = None
        self._codes: dict[int, weakref.ref[types.CodeType]] = {}
        self._graphs: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._theirs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def given(self) -> dict[str, Any]:
        """The arguments of torch.compile that differ from its defaults."""
        return {name: value for name, value in self.arguments.items() if value != DEFAULTS[name]}

    def __reduce__(self) -> Any:
        return functools.partial(torch.compile, **self.given()).__reduce__()

    def __copy__(self) -> Compiler:
        return self

    def __deepcopy__(self, memo: Any) -> Compiler:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_context", "arguments"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.context(), name)

    # -- torch's own compiler

    def context(self) -> Any:
        """torch's context object of this configuration."""
        if self._context is None:
            standin.materialize("a call that the artifact does not cover")
            follow()
            real = torch_api.compiler()
            arguments = self.arguments
            backend = real.InductorWrapper(**_some(arguments, "mode", "options", "dynamic", "name"))
            self._context = real.optimize(
                backend=backend,
                nopython=self.fullgraph,
                **_some(arguments, "dynamic", "recompile_limit"),
            )
        return self._context

    def _torch_callback(self) -> Callable[..., Any]:
        """torch's own callback, for calls that the artifact does not cover."""
        context = self.context()
        real = torch_api.compiler()
        for reference in self._codes.values():
            code = reference()
            if code is not None:
                real.always_optimize[code] = True
        for graph in self._graphs:
            _tell_graph(graph)

        def callback(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            cleanups = [enter() for enter in context.enter_exit_hooks]
            try:
                return context.callback(frame, cache_entry, frame_state)
            finally:
                for cleanup in cleanups:
                    cleanup()

        return callback

    def _remember(self, code: types.CodeType) -> None:
        """*code* is compiled wherever its file lies."""
        key = id(code)
        self._codes[key] = weakref.ref(code, lambda _: self._codes.pop(key, None))
        if standin.is_real():
            torch_api.compiler().always_optimize[code] = True

    def config(self) -> Any:
        """torch's ``get_compiler_config``; needs torch's compiler."""
        return self.context().compiler_config

    # -- wrapping

    def __call__(self, fn: Any) -> Any:
        result = self._wrap(fn)
        objects.mark_compiled(result)
        return result

    def _wrap(self, fn: Any) -> Any:
        if isinstance(fn, staticmethod) and "staticmethod" in _BEHAVIOUR:
            return staticmethod(self(fn.__func__))
        fn = innermost(fn)
        if isinstance(fn, torch.nn.Module):
            if isinstance(fn, torch.fx.GraphModule):
                self._graphs.add(fn)
                if standin.is_real():
                    _tell_graph(fn)
            return self._module(fn)
        if inspect.isclass(fn):
            cls: Any = fn
            cls.__call__ = self(cls.__call__)
            if issubclass(cls, torch.nn.Module):
                objects.wrap_calls(cls, self)
            return cls
        if not callable(fn):
            raise AssertionError(f"A callable function is expected, but {type(fn)} is provided.")
        return self.function(with_frame(fn))

    def _module(self, module: torch.nn.Module) -> Any:
        kind: Any = torch_api.compiler().OptimizedModule if standin.is_real() else OptimizedModule
        result = kind(module, self)
        objects.mark_wrapper(result, module.forward)
        if hasattr(result, "get_compiler_config"):
            raise AssertionError("new_mod already has a get_compiler_config attribute")
        result.get_compiler_config = self.config
        return result

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """*fn* as a compiled function. Raises AssertionError when it says it is one already."""
        if not hasattr(fn, "__code__"):
            # torch has a page of advice for this error.
            return self.context()(fn)  # type: ignore[no-any-return]
        run = self.server.run
        unusual = self._unusual
        wrapper: Any
        if self.fullgraph:
            whole = self._whole

            @functools.wraps(fn)
            def compile_wrapper(*args: Any, **kwargs: Any) -> Any:
                if (
                    _fx_tracing.__dict__.get(_FX_FLAG)
                    or _watch._stance is not _plain
                    or _is_jit_tracing()
                    or _tracing.__dict__.get("tracing_context") is not None
                ):
                    return unusual(fn, args, kwargs)
                return whole(fn, args, kwargs)

            wrapper = compile_wrapper
        else:

            @functools.wraps(fn)
            def compile_wrapper(*args: Any, **kwargs: Any) -> Any:
                if (
                    _fx_tracing.__dict__.get(_FX_FLAG)
                    or _watch._stance is not _plain
                    or _is_jit_tracing()
                    or _tracing.__dict__.get("tracing_context") is not None
                ):
                    return unusual(fn, args, kwargs)
                try:
                    return run(fn, args, kwargs)
                except Exception as error:
                    if _shortens(error):
                        _raise_shortened(error)
                    raise

            wrapper = compile_wrapper
        objects.mark_inline(wrapper, fn)
        objects.mark_wrapper(wrapper, fn)
        if "isolate_recompiles" in _ARGUMENTS:
            objects.mark_recompiles_shared(wrapper)
        if hasattr(wrapper, "get_compiler_config"):
            raise AssertionError("compile_wrapper already has a get_compiler_config attribute")
        wrapper.get_compiler_config = self.config
        if dynamo_config().enable_aot_compile:

            def aot_compile(example_inputs: Any) -> Any:
                return self.context()(fn).aot_compile(example_inputs)

            wrapper.aot_compile = aot_compile
        standin.unobserved(wrapper)
        self._remember(fn.__code__)
        return wrapper  # type: ignore[no-any-return]

    # -- calls

    def _whole(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call with ``fullgraph=True``: an error when nothing compiled ran."""
        raises = dynamo_config().error_on_dynamo_callback_in_fullgraph_compiled_code
        nested = _set_nested(_api.nested_compile_raises if raises else _api.nested_compile_skips)
        counting = _set_count is not None and _set_count(0) < 0
        real = _watch if standin.is_real() else None
        if counting and real is not None:
            real.reset_skip_reasons()
        try:
            try:
                result = self.server.run(fn, args, kwargs)
            except Exception as error:
                if _shortens(error):
                    _raise_shortened(error)
                raise
            if counting and _set_count(-1) == 0:
                message = "torch.compile with fullgraph=True found no compiled frames."
                reasons = real.get_skip_reasons() if real is not None else ()
                if reasons:
                    lines = "\n".join(f"  - {reason}" for reason in reasons)
                    message += f" Skipped frames:\n{lines}"
                else:
                    message += (
                        " Compilation was not attempted and no cached compiled code was found."
                    )
                raise RuntimeError(message)
            return result
        finally:
            _set_nested(nested)
            if counting:
                _set_count(-1)
                if real is not None:
                    real.dynamo_tls.skip_reasons = None

    def _unusual(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call while something traces, or with a stance that may not be the default."""
        context = _api.TracingContext.try_get()
        if context is not None:
            if context.fake_mode is not None and context.fake_mode.in_kernel_invocation:
                return _call(None, fn, args, kwargs)
            aside = torch.compiler.is_exporting() or _nested_is_eager()
            if aside and not dynamo_config().force_compile_during_fx_trace:
                if not objects.inside_higher_order_operator():
                    return _call(None, fn, args, kwargs)
        if _api.is_fx_symbolic_tracing() and not dynamo_config().force_compile_during_fx_trace:
            if dynamo_config().error_on_nested_fx_trace:
                raise RuntimeError(
                    "Detected that you are using FX to symbolically trace "
                    "a dynamo-optimized function. This is not supported at the moment."
                )
            return _call(None, fn, args, kwargs)
        if _is_jit_tracing():
            raise RuntimeError(
                "Detected that you are using FX to torch.jit.trace "
                "a dynamo-optimized function. This is not supported at the moment."
            )
        stance = _watch._stance
        if stance is None or (stance.stance == "default" and stance.backend is None):
            # skip_guard_eval_unsafe only allows to check less; served calls check all guards.
            if stance is not None and not stance.skip_guard_eval_unsafe:
                global _plain
                _plain = stance
            if self.fullgraph:
                return self._whole(fn, args, kwargs)
            return self.server.run(fn, args, kwargs)
        if stance.stance == "force_eager":
            return _call(None, fn, args, kwargs)
        if stance.stance in ("eager_on_recompile", "fail_on_recompile"):
            return _call(self._served_or(stance.stance), fn, args, kwargs)
        # torch's own wrapper asks the artifacts, too, where it would compile.
        theirs = self._theirs.get(fn)
        if theirs is None:
            theirs = self._theirs[fn] = self.context()(fn)
        return theirs(*args, **kwargs)

    def _served_or(self, stance: str) -> Callable[..., Any]:
        """The callback of a stance without compilation: what the artifact has counts as compiled,
        other frames are treated as torch treats them."""
        accept = self.server.accept
        otherwise: Any
        if stance == "eager_on_recompile":
            eager = _core.FrameReturn(None, runtime().run, False, "stance eager_on_recompile")

            def otherwise(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
                return eager
        else:
            otherwise = _watch._callback_from_stance(self.server)

        def callback(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            answer = accept(frame)
            if isinstance(answer, _core.FrameReturn):
                return answer
            return otherwise(frame, cache_entry, frame_state)

        # Compiled code in torch's cache belongs to the server.
        objects.set_backend_below(callback, self.server)
        return callback


def _nested_is_eager() -> bool:
    """Whether torch's compiler runs code of the user to learn about it."""
    asks = torch_api.compiler().is_eager_on_nested_compile if standin.is_real() else None
    return asks is not None and asks()


def _some(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}


def _call(callback: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``fn(*args, **kwargs)`` with *callback* as the frame evaluator's; None runs it as it is."""
    api = _api
    prior = api.set_eval_frame(None)
    try:
        if callback is None:
            return fn(*args, **kwargs)
        depth = api.dynamic_layer_depth()
        with api.ForceDispatchKeyGuard(api.tls_include(), api.tls_exclude()):
            api.set_eval_frame(callback)
            try:
                return fn(*args, **kwargs)
            except Exception as error:
                api.set_eval_frame(None)
                if _shortens(error):
                    _raise_shortened(error)
                raise
            finally:
                api.set_eval_frame(None)
                api.undo_dynamic_layers(depth)
    finally:
        api.set_eval_frame(prior)


def _shortens(error: BaseException) -> bool:
    """Whether torch shows *error*, one of its compiler's, without the compiler's own frames."""
    if not standin.is_real():
        return False
    real = torch_api.compiler()
    return isinstance(
        error,
        (
            real.Unsupported,
            real.UncapturedHigherOrderOpError,
            real.UserError,
            real.ShortenTraceback,
        ),
    )


def _raise_shortened(error: Any) -> None:
    real = torch_api.compiler()
    if not isinstance(error, (real.Unsupported, real.UncapturedHigherOrderOpError, real.UserError)):
        raise error.remove_dynamo_frames() from None
    if dynamo_config().verbose:
        return
    cause = error.__cause__
    while cause is not None:
        cause.with_traceback(None)
        cause = cause.__cause__
    raise error.with_traceback(None) from error.__cause__


for _function in (
    Compiler._whole,
    Compiler._unusual,
    Compiler._served_or,
    _nested_is_eager,
    _call,
    _shortens,
    _raise_shortened,
):
    standin.unobserved(_function, recursive=True)


@functools.cache
def dynamo_config() -> Any:
    """torch._dynamo.config; it is loaded alone, without the compiler, and stays the same module."""
    return standin.module_for(modules.CONFIG)


def _tell_graph(graph: Any) -> None:
    """Dynamo looks for the graph module of a generated ``forward`` beside its code."""
    context = torch_api.compiler().code_context.get_context(graph.forward.__code__)
    context["orig_graphmodule"] = weakref.ref(graph)


def follow() -> None:
    """torch's compiler is there: its stance counts, and our module wrappers become its own.

    Not undone: functions and modules that were compiled here outlive ``uninstall``.
    """
    global _watch
    real = torch_api.compiler()
    _watch = real.eval_frame
    become_instances_of(real.OptimizedModule)
