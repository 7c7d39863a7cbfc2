"""``torch.compile`` of a prepared process: the same surface, served by frame servers.

References for the behaviour: ``torch.compile``, ``_TorchDynamoContext.__call__`` and
``OptimizedModule`` of torch.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from precomp import _core, torch_api
from precomp.serve import standin
from precomp.serve.frame import Runtime, runtime

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_ENTRY_NAMES = ("_call_impl", "_wrapped_call_impl", "_lazy_forward")
_THEIRS = ("shapes_spec",)


class Compiler:
    """One configuration of torch.compile and its frame server."""

    def __init__(self, run: Runtime, backend: dict[str, Any], arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.server = run.server(backend, self._torch_callback)

    def _torch_callback(self) -> Callable[..., Any]:
        """torch's own callback, for calls that the artifact does not cover."""
        standin.materialize("a call that the artifact does not cover")
        real = torch_api.compiler()
        arguments = self.arguments
        backend = real.InductorWrapper(
            arguments["mode"], arguments["options"], arguments["dynamic"], arguments["name"]
        )
        context = real.optimize(
            backend=backend,
            nopython=arguments["fullgraph"],
            dynamic=arguments["dynamic"],
            recompile_limit=arguments["recompile_limit"],
        )

        def callback(frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            cleanups = [enter() for enter in context.enter_exit_hooks]
            try:
                return context.callback(frame, cache_entry, frame_state)
            finally:
                for cleanup in cleanups:
                    cleanup()

        return callback

    # -- wrapping

    def __call__(self, model: Any) -> Any:
        model = innermost(model)
        if isinstance(model, torch.nn.Module):
            return OptimizedModule(model, self)
        if inspect.isclass(model):
            setattr(model, "__call__", self(model.__call__))  # noqa: B010 - a class attribute
            if issubclass(model, torch.nn.Module):
                setattr(model, "_call_impl", self(model._call_impl))  # noqa: B010
            return model
        if not callable(model):
            raise AssertionError(f"A callable function is expected, but {type(model)} is provided.")
        return self.function(_with_frame(model))

    def function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """*fn* as a compiled function."""
        run = self.server.run

        @functools.wraps(fn)
        def compile_wrapper(*args: Any, **kwargs: Any) -> Any:
            return run(fn, args, kwargs)

        compile_wrapper._torchdynamo_inline = fn  # type: ignore[attr-defined]
        compile_wrapper._torchdynamo_orig_callable = fn  # type: ignore[attr-defined]
        compile_wrapper._torchdynamo_wrapper_id = id(compile_wrapper)  # type: ignore[attr-defined]
        compile_wrapper.get_compiler_config = self.config  # type: ignore[attr-defined]
        standin.unobserved(compile_wrapper)
        return compile_wrapper

    def config(self) -> Any:
        """torch's ``get_compiler_config``; needs torch's compiler."""
        standin.materialize("get_compiler_config")
        arguments = self.arguments
        return (
            torch_api.compiler()
            .InductorWrapper(
                arguments["mode"], arguments["options"], arguments["dynamic"], arguments["name"]
            )
            .get_compiler_config()
        )


def innermost(fn: Any) -> Any:
    """The callable below wrappers of torch.compile, torch's or ours."""
    while hasattr(fn, "_torchdynamo_orig_callable") and getattr(
        fn, "_torchdynamo_wrapper_id", None
    ) == id(fn):
        fn = fn._torchdynamo_orig_callable
    return fn


def _with_frame(fn: Callable[..., Any]) -> Callable[..., Any]:
    """*fn*, or a Python function around it where torch adds one, to have a frame to convert."""
    if getattr(fn, "__name__", "") in _ENTRY_NAMES:
        return fn
    target = fn.__func__ if isinstance(fn, types.MethodType) else fn
    if isinstance(target, types.FunctionType):
        if not target.__code__.co_filename.startswith(_TORCH):
            return fn
    elif hasattr(fn, "__code__"):
        return fn
    return standin.module_for(standin.EXTERNAL_UTILS).wrap_inline(fn)


class OptimizedModule(torch.nn.Module):
    """What ``torch.compile(module)`` returns in a prepared process.

    Parameters, buffers, ``state_dict`` keys, attributes, pickling and copying are those of torch's
    own wrapper; ``isinstance`` against torch's class holds once that class exists.
    """

    _opt_mod_attributes = {
        "_orig_mod",
        "_compiler",
        "_torchdynamo_orig_callable",
        "_torchdynamo_wrapper_id",
        "get_compiler_config",
        "forward",
        "_forward",
        "__dict__",
        "named_children_walk",
        "_super_module_initialized",
    }

    def __init__(self, mod: torch.nn.Module, compiler: Compiler) -> None:
        # Attribute access of a half-built wrapper already goes to _orig_mod.
        object.__setattr__(self, "_orig_mod", mod)
        self._super_module_initialized = False
        super().__init__()
        self._super_module_initialized = True
        self._orig_mod = mod
        self._compiler = compiler
        self._initialize()
        self.training = self._orig_mod.training

    def _initialize(self) -> None:
        mod, compiler = self._orig_mod, self._compiler
        method = mod.forward
        if isinstance(method, types.MethodType) and method.__func__.__code__.co_filename.startswith(
            _TORCH
        ):
            wrap = standin.module_for(standin.EXTERNAL_UTILS).wrap_inline
            self.forward = compiler.function(wrap(mod))
        else:
            self.forward = compiler.function(mod.__call__)
        if hasattr(mod, "_initialize_hook"):
            self._forward = self.forward
            self.forward = self._call_lazy_check
        self._torchdynamo_orig_callable = mod.forward
        self._torchdynamo_wrapper_id = id(self)
        self.get_compiler_config = compiler.config

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        if standin.is_real():
            return torch_api.compiler().OptimizedModule
        return OptimizedModule

    def __len__(self) -> int:
        if hasattr(type(self._orig_mod), "__len__"):
            return len(self._orig_mod)  # type: ignore[arg-type]
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
        given = {
            name: value
            for name, value in self._compiler.arguments.items()
            if value != _DEFAULTS[name]
        }
        return functools.partial(torch.compile, **given), (self._orig_mod,)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("forward", None)
        state.pop("__call__", None)
        return state

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


standin.add_module_class(OptimizedModule)

_DEFAULTS: dict[str, Any] = {
    "fullgraph": False,
    "dynamic": None,
    "mode": None,
    "options": None,
    "name": None,
    "recompile_limit": None,
}
_compilers: dict[str, Compiler] = {}


def default_backend() -> Any:
    """torch's default backend; only its compiler can have been told another one."""
    if standin.is_real():
        return torch_api.compiler().default_backend()
    return "inductor"


def _compiler(arguments: dict[str, Any]) -> Compiler:
    run = runtime()
    mode = arguments["mode"]
    config: dict[str, Any] = {}
    if mode not in (None, "default"):
        config.update(run.modes.get(mode, {"unknown mode": mode}))
    for option, value in (arguments["options"] or {}).items():
        config[option.replace("-", "_")] = value
    key = repr((sorted(config.items()), sorted((k, repr(v)) for k, v in arguments.items())))
    compiler = _compilers.get(key)
    if compiler is None:
        backend = {
            "backend": "inductor",
            "config": dict(sorted(config.items())),
            "dynamic": arguments["dynamic"],
            "name": arguments["name"],
        }
        compiler = _compilers[key] = Compiler(run, backend, dict(arguments))
    return compiler


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

    Calls that precomp cannot serve (another backend, ``disable=True``, ``isolate_recompiles``,
    ``shapes_spec``, guard filters, an active export) go to torch's own function.
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
    theirs = (
        backend != "inductor"
        or disable
        or isolate_recompiles
        or shapes_spec is not None
        or (options is not None and {"guard_filter_fn", "use_aoti"} & options.keys())
        or torch.compiler.is_exporting()
        or isinstance(model, torch.jit.ScriptModule)
    )
    if theirs:
        return _original(
            model,
            backend=backend,
            disable=disable,
            isolate_recompiles=isolate_recompiles,
            shapes_spec=shapes_spec,
            **arguments,
        )
    if model is None:

        def decorate(inner: Callable[..., Any]) -> Any:
            if inner is None:
                raise RuntimeError("Model can't be None")
            return compile(inner, **arguments)

        return decorate
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    return _compiler(arguments)(model)


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
    run = runtime()
    real = torch_api.compiler()
    convert = real.CatchErrorsWrapper.__call__
    servers: dict[str, Any] = {}

    @functools.wraps(convert)
    def call(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        backend = backend_of(wrapper)
        if backend is not None:
            key = repr(backend)
            if key not in servers:
                servers[key] = run.server(backend, lambda: None)
            answer = servers[key].accept(frame)
            if isinstance(answer, _core.FrameReturn) and answer.guarded_code is not None:
                return answer
        return convert(wrapper, frame, cache_entry, frame_state)

    def undo() -> None:
        if real.CatchErrorsWrapper.__call__ is call:
            real.CatchErrorsWrapper.__call__ = convert

    real.CatchErrorsWrapper.__call__ = call
    _undo.append(undo)


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
