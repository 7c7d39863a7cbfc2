"""``torch.compile`` of a prepared process: the same surface, served by frame servers.

References for the behaviour: ``torch.compile``, ``_TorchDynamoContext.__call__`` and
``OptimizedModule`` of torch.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import types
import warnings
import weakref
from collections.abc import Callable, Sized
from typing import Any

import torch

from precomp import _core, torch_api
from precomp.serve import standin
from precomp.serve.frame import Runtime, runtime

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_EXTERNAL = os.path.join(_TORCH, "_dynamo", "external_utils.py")
_FX = os.path.join(_TORCH, "fx", "graph_module.py")
_ONNX = os.path.join(_TORCH, "onnx", "_internal", "fx", "dynamo_graph_extractor.py")
_ENTRY_NAMES = ("_call_impl", "_wrapped_call_impl", "_lazy_forward")
_AS_IT_IS = frozenset({_FX, _ONNX, _EXTERNAL})

# Settings of torch._dynamo.config that change what torch.compile makes, and their usual values.
_USUAL_CONFIG = (
    ("caching_precompile", False),
    ("compiled_autograd", False),
    ("debug_force_graph_break_on_leaf_return", False),
    ("debug_force_nested_calls", False),
    ("wrap_top_frame", False),
)

_api = torch_api.serve()
_InductorWrapper: Any = _api.InductorWrapper
_fx = importlib.import_module("torch.fx._symbolic_trace")
_is_jit_tracing = _api.is_jit_tracing
_tracing = _api.guards_tls
_set_count = _api.set_fullgraph_compiled_frame_count
_set_nested_error = _api.set_fullgraph_error_on_nested_compile

# What holds torch's current stance: the real torch._dynamo.eval_frame once it is there. A stance
# other than the default cannot be set before. _plain is a stance known to be the default.
_watch: Any = types.SimpleNamespace(_stance=None)
_plain: Any = None


class Settings(_InductorWrapper):  # type: ignore[misc]
    """Checks mode and options as torch does, with the modes that the artifact knows."""

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
        return {
            name: value for name, value in self.arguments.items() if value != _DEFAULTS[name]
        }

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
            _follow()
            real = torch_api.compiler()
            arguments = self.arguments
            backend = real.InductorWrapper(
                arguments["mode"], arguments["options"], arguments["dynamic"], arguments["name"]
            )
            self._context = real.optimize(
                backend=backend,
                nopython=self.fullgraph,
                dynamic=arguments["dynamic"],
                recompile_limit=arguments["recompile_limit"],
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
        result._is_torch_compile = True
        return result

    def _wrap(self, fn: Any) -> Any:
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
                cls._call_impl = self(cls._call_impl)
            return cls
        if not callable(fn):
            raise AssertionError(f"A callable function is expected, but {type(fn)} is provided.")
        return self.function(_with_frame(fn))

    def _module(self, module: torch.nn.Module) -> Any:
        kind: Any = torch_api.compiler().OptimizedModule if standin.is_real() else OptimizedModule
        result = kind(module, self)
        result._torchdynamo_orig_callable = module.forward
        result._torchdynamo_wrapper_id = id(result)
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
                    _fx._is_fx_tracing_flag
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
                    _fx._is_fx_tracing_flag
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
        wrapper._torchdynamo_inline = fn
        wrapper._torchdynamo_orig_callable = fn
        wrapper._torchdynamo_wrapper_id = id(wrapper)
        wrapper._isolate_recompiles_id = -1
        if hasattr(wrapper, "get_compiler_config"):
            raise AssertionError("compile_wrapper already has a get_compiler_config attribute")
        wrapper.get_compiler_config = self.config
        if _config().enable_aot_compile:

            def aot_compile(example_inputs: Any) -> Any:
                return self.context()(fn).aot_compile(example_inputs)

            wrapper.aot_compile = aot_compile
        standin.unobserved(wrapper)
        self._remember(fn.__code__)
        return wrapper  # type: ignore[no-any-return]

    # -- calls

    def _whole(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call with ``fullgraph=True``: an error when nothing compiled ran."""
        nested = _set_nested_error(_config().error_on_dynamo_callback_in_fullgraph_compiled_code)
        counting = _set_count(0) < 0
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
            _set_nested_error(nested)
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
            if torch.compiler.is_exporting() and not _config().force_compile_during_fx_trace:
                utils = importlib.import_module("torch._higher_order_ops.utils")
                if not utils._in_hop_compile():
                    return _call(None, fn, args, kwargs)
        if _fx.is_fx_symbolic_tracing() and not _config().force_compile_during_fx_trace:
            if _config().error_on_nested_fx_trace:
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
        callback._torchdynamo_orig_backend = self.server  # type: ignore[attr-defined]
        return callback


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
    if _config().verbose:
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
    _call,
    _shortens,
    _raise_shortened,
):
    standin.unobserved(_function, recursive=True)


@functools.cache
def _config() -> Any:
    """torch._dynamo.config; it is loaded alone, without the compiler, and stays the same module."""
    return standin.module_for("torch._dynamo.config")


def _tell_graph(graph: Any) -> None:
    """Dynamo looks for the graph module of a generated ``forward`` beside its code."""
    context = torch_api.compiler().code_context.get_context(graph.forward.__code__)
    context["orig_graphmodule"] = weakref.ref(graph)


def innermost(fn: Any) -> Any:
    """The callable below wrappers of torch.compile, torch's or ours."""
    while hasattr(fn, "_torchdynamo_orig_callable") and getattr(
        fn, "_torchdynamo_wrapper_id", None
    ) == id(fn):
        fn = fn._torchdynamo_orig_callable
        if not callable(fn):
            raise AssertionError(f"A callable function is expected, but {type(fn)} is provided.")
    return fn


def _skipped(fn: Any) -> bool:
    """Whether torch's trace rules leave the Python function *fn* alone.

    The rules for single functions of torch are not in the artifact. One of those was wrapped at
    capture unless its own code has an entry.
    """
    code = getattr(fn, "__code__", None)
    if code is None or code.co_filename in _AS_IT_IS:
        return code is None
    run = runtime()
    if run.files.skips(code.co_filename):
        return True
    return code.co_filename.startswith(_TORCH) and _core.code_digest(code) not in run.by_key


def _with_frame(fn: Callable[..., Any]) -> Callable[..., Any]:
    """*fn*, or a Python function around it where torch adds one, to have a frame to convert."""
    if getattr(fn, "__name__", "") in _ENTRY_NAMES:
        return fn
    try:
        filename = inspect.getsourcefile(fn)
    except TypeError:
        filename = None
    if filename in _AS_IT_IS:
        return fn
    if (filename is None and not inspect.isfunction(fn)) or _skipped(fn):
        return _external().wrap_inline(fn)  # type: ignore[no-any-return]
    return fn


def _external() -> Any:
    return standin.module_for(standin.EXTERNAL_UTILS)


class OptimizedModule(torch.nn.Module):
    """What ``torch.compile(module)`` returns in a prepared process.

    When torch's own class is there, wrappers made before become instances of it.
    """

    _opt_mod_attributes = {
        "_orig_mod",
        "dynamo_ctx",
        "_torchdynamo_orig_callable",
        "_torchdynamo_wrapper_id",
        "get_compiler_config",
        "forward",
        "_forward",
        "__dict__",
        "named_children_walk",
        "_super_module_initialized",
    }

    def __init__(self, mod: torch.nn.Module, dynamo_ctx: Any) -> None:
        # Attribute access of a half-built wrapper already goes to _orig_mod.
        object.__setattr__(self, "_orig_mod", mod)
        self._super_module_initialized = False
        super().__init__()
        self._super_module_initialized = True
        self._orig_mod = mod
        self.dynamo_ctx = dynamo_ctx
        self._initialize()
        self.training = self._orig_mod.training
        _modules.add(self)

    def _initialize(self) -> None:
        mod = self._orig_mod
        if isinstance(mod.forward, types.MethodType) and _skipped(mod.forward):
            self.forward = self.dynamo_ctx(_external().wrap_inline(mod))
        else:
            self.forward = self.dynamo_ctx(mod.__call__)
        if hasattr(mod, "_initialize_hook"):
            self._forward = self.forward
            self.forward = self._call_lazy_check

    def __len__(self) -> int:
        if isinstance(self._orig_mod, Sized):
            return len(self._orig_mod)
        raise TypeError(f"{type(self._orig_mod).__name__} does not support len()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.nn.modules.module._has_any_global_hook():
            warnings.warn(
                "Using `torch.compile(module)` when there are global hooks on modules (e.g., from "
                "`register_module_forward_hook`); this will cause the hooks to fire an extra time "
                "for the `OptimizedModule` created by `torch.compile(module)`. If this causes "
                "undesired behavior, please try using `module.compile()`, or use the per-module "
                "hooks instead",
                stacklevel=2,
            )
        return super().__call__(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(torch.compile, **self.dynamo_ctx.given()), (self._orig_mod,)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("forward", None)
        state.pop("__call__", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self._initialize()

    # Ahead-of-time compilation is experimental and torch's own.

    def _aot_compile(self, inputs: Any) -> None:
        standin.materialize("OptimizedModule._aot_compile")
        self._aot_compile(inputs)

    def _save_aot_compiled_module(self, path: str | None = None) -> Any:
        standin.materialize("OptimizedModule._save_aot_compiled_module")
        return self._save_aot_compiled_module(path)

    def _load_aot_compiled_module(self, data: bytes) -> None:
        standin.materialize("OptimizedModule._load_aot_compiled_module")
        self._load_aot_compiled_module(data)

    @property
    def training(self) -> bool:
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        # super().__init__() sets its default; the wrapped module's own value counts.
        if self._super_module_initialized:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in OptimizedModule._opt_mod_attributes:
            return super().__setattr__(name, value)
        return setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if hasattr(type(self), name) or name in OptimizedModule._opt_mod_attributes:
            return super().__delattr__(name)
        return delattr(self._orig_mod, name)

    def _call_lazy_check(self, *args: Any, **kwargs: Any) -> Any:
        # A lazy module initialises itself in a hook and then is lazy no longer.
        mod = self._orig_mod
        infer: Any = getattr(mod, "_infer_parameters", None)
        if hasattr(mod, "_initialize_hook") and callable(infer):
            infer(mod, args, kwargs)
        return self.__dict__["_forward"](*args, **kwargs)

    def __dir__(self) -> list[str]:
        inner = self._orig_mod.__dir__()
        return [*inner, *(name for name in super().__dir__() if name not in inner)]


OptimizedModule.__module__ = "torch._dynamo.eval_frame"
standin.add_module_class(OptimizedModule)
_modules: weakref.WeakSet[OptimizedModule] = weakref.WeakSet()

_DEFAULTS: dict[str, Any] = {
    "fullgraph": False,
    "dynamic": None,
    "mode": None,
    "options": None,
    "name": None,
    "recompile_limit": None,
}
_compilers: dict[Any, Compiler] = {}


def default_backend() -> Any:
    """torch's default backend; only its compiler can have been told another one."""
    if standin.is_real():
        return torch_api.compiler().default_backend()
    return "inductor"


def _key(value: Any) -> Any:
    """A key for an argument: its value if it is plain, else the object."""
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in sorted(value.items()))
    if value is None or isinstance(value, (bool, int, float, str)):
        return (type(value).__name__, value)
    return ("object", id(value))  # kept alive by the arguments of its Compiler


def _compiler(arguments: dict[str, Any]) -> Compiler:
    settings = Settings(
        arguments["mode"], arguments["options"], arguments["dynamic"], arguments["name"]
    )
    options = arguments["options"]
    arguments = {**arguments, "options": dict(options.items()) if options else None}
    key = _key({**arguments, "config": settings.config})
    compiler = _compilers.get(key)
    if compiler is None:
        backend = {
            "backend": "inductor",
            "config": dict(sorted(settings.config.items())),
            "dynamic": arguments["dynamic"],
            "name": arguments["name"],
        }
        compiler = _compilers[key] = Compiler(runtime(), backend, arguments)
    return compiler


def _ignored() -> bool:
    """Whether torch.compile compiles nothing in this process."""
    if os.environ.get("TORCHDYNAMO_DISABLE", "") == "1":
        return True
    return not _api.justknobs_check("pytorch/compiler:enable_dynamo")


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
) -> Any:
    """``torch.compile`` of a prepared process; same arguments, same results, same errors.

    Calls that precomp cannot serve (another backend, ``isolate_recompiles``, ``shapes_spec``, guard
    filters, an active export, scripted modules, unusual settings of torch._dynamo.config) go to
    torch's own function.
    """
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "mode": mode,
        "options": options,
        "name": name,
        "recompile_limit": recompile_limit,
    }
    if backend is None:
        backend = default_backend()
    others: dict[str, Any] = {
        "backend": backend,
        "disable": disable,
        "isolate_recompiles": isolate_recompiles,
        "shapes_spec": shapes_spec,
    }
    if model is None:

        def fn(model: Callable[..., Any]) -> Any:
            if model is None:
                raise RuntimeError("Model can't be None")
            return torch.compile(model, **arguments, **others)

        return fn
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    config = _config()
    bisector = standin.module_for("torch._inductor.compiler_bisector").CompilerBisector
    if (
        backend != "inductor"
        or isolate_recompiles
        or shapes_spec is not None
        or (isinstance(options, dict) and {"guard_filter_fn", "use_aoti"} & options.keys())
        or torch.compiler.is_exporting()
        or isinstance(model, torch.jit.ScriptModule)
        or bisector.get_backend()
        or (config.suppress_errors and config.fail_on_recompile_limit_hit)
        or any(getattr(config, setting) != usual for setting, usual in _USUAL_CONFIG)
    ):
        return _original(model, **arguments, **others)
    compiler = _compiler(arguments)
    if disable or _ignored():
        if not callable(model):
            raise AssertionError(
                f"A callable function is expected, but {type(model)} is provided."
            )
        return model
    return compiler(model)


# -- putting it in place of torch.compile

_saved_code: types.CodeType | None = None
_undo: list[Callable[[], None]] = []


def _original(*args: Any, **kwargs: Any) -> Any:
    """torch's own torch.compile, whether or not ours is in place."""
    if _saved_code is None:
        return torch.compile(*args, **kwargs)
    function = types.FunctionType(
        _saved_code, torch.compile.__globals__, "compile", torch.compile.__defaults__
    )
    function.__kwdefaults__ = torch.compile.__kwdefaults__
    return function(*args, **kwargs)


def _entry(
    model=None,  # type: ignore[no-untyped-def]
    *,
    fullgraph=False,
    dynamic=None,
    backend="inductor",
    mode=None,
    options=None,
    name=None,
    disable=False,
    recompile_limit=None,
    isolate_recompiles=False,
    shapes_spec=None,
):
    from precomp.serve.compile import compile as served

    return served(
        model,
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=backend,
        mode=mode,
        options=options,
        name=name,
        disable=disable,
        recompile_limit=recompile_limit,
        isolate_recompiles=isolate_recompiles,
        shapes_spec=shapes_spec,
    )


def install() -> None:
    """Make ``torch.compile``, under every name it was imported as, ours.

    The function object stays; its code is exchanged, so ``from torch import compile`` done before
    is covered too.
    """
    global _saved_code
    if _saved_code is not None:
        return
    _saved_code = torch.compile.__code__
    torch.compile.__code__ = _entry.__code__
    if standin.is_real():
        _serve_real_compiler()
    else:
        _undo.append(standin.on_materialize(_serve_real_compiler))


def uninstall() -> None:
    """Give ``torch.compile`` its own code back."""
    global _saved_code
    if _saved_code is not None:
        torch.compile.__code__ = _saved_code
        _saved_code = None
        for undo in _undo:
            undo()
        _undo.clear()
        _compilers.clear()


def _serve_real_compiler() -> None:
    """Let functions that torch's own compiler wrapped ask the artifacts first."""
    _follow()
    run = runtime()
    real = torch_api.compiler()
    convert = real.CatchErrorsWrapper.__call__
    servers: dict[str, Any] = {}

    @functools.wraps(convert)
    def call(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        backend = backend_of(wrapper)
        if backend is not None:
            whole = bool(getattr(wrapper._torchdynamo_orig_backend, "_one_graph", False))
            key = repr((backend, whole))
            if key not in servers:
                servers[key] = run.server(backend, lambda: None, whole=whole)
            answer = servers[key].accept(frame)
            if isinstance(answer, _core.FrameReturn) and answer.guarded_code is not None:
                return answer
        return convert(wrapper, frame, cache_entry, frame_state)

    def undo() -> None:
        if real.CatchErrorsWrapper.__call__ is call:
            real.CatchErrorsWrapper.__call__ = convert

    real.CatchErrorsWrapper.__call__ = call
    _undo.append(undo)


def _follow() -> None:
    """torch's compiler is there: its stance counts, and our module wrappers become its own.

    Not undone: functions and modules that were compiled here outlive ``uninstall``.
    """
    global _watch
    real = torch_api.compiler()
    _watch = real.eval_frame
    for module in tuple(_modules):
        object.__setattr__(module, "__class__", real.OptimizedModule)
    _modules.clear()


def backend_of(callback: Any) -> dict[str, Any] | None:
    """The backend record of one of torch's own callbacks; None unless it is Inductor's."""
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    if type(callback) is not torch_api.compiler().InductorWrapper:
        return None
    return {
        "backend": "inductor",
        "config": dict(sorted(callback.config.items())),
        "dynamic": callback.dynamic,
        "name": callback.name,
    }
