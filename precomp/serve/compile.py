"""``torch.compile`` of a prepared process: the same surface, served by frame servers."""

from __future__ import annotations

import builtins
import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from precomp import _core, backends, torch_api
from precomp.serve import standin
from precomp.serve.compiler import DEFAULTS, Compiler, Settings, dynamo_config, follow
from precomp.serve.frame import SKIPPED, runtime
from precomp.torch_api import modules, objects

# Settings of torch._dynamo.config that change what torch.compile makes, and their usual values.
_USUAL_CONFIG = (
    ("caching_precompile", False),
    ("compiled_autograd", False),
    ("debug_force_graph_break_on_leaf_return", False),
    ("debug_force_nested_calls", False),
    ("wrap_top_frame", False),
)

_compilers: dict[Any, Compiler] = {}


def default_backend() -> Any:
    """torch's default backend; only its compiler can have been told another one."""
    asked = torch_api.compiler().default_backend if standin.is_real() else None
    return "inductor" if asked is None else asked()


def _key(value: Any) -> Any:
    """A key for an argument: its value if it is plain, else the object."""
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in sorted(value.items()))
    if value is None or isinstance(value, (bool, int, float, str)):
        return (type(value).__name__, value)
    return ("object", id(value))  # kept alive by the arguments of its Compiler


def _compiler(arguments: dict[str, Any]) -> Compiler:
    settings = Settings(
        arguments["mode"], arguments["options"], arguments["dynamic"], arguments.get("name")
    )
    options = arguments["options"]
    arguments = {**arguments, "options": dict(options.items()) if options else None}
    key = _key({**arguments, "config": settings.config})
    compiler = _compilers.get(key)
    if compiler is None:
        compiler = _compilers[key] = Compiler(runtime(), backends.record(settings), arguments)
    return compiler


def _bisecting() -> bool:
    """Whether torch's bisection of the compiler may choose the backend.

    torch asks for a status file, too, and makes the directory of its caches for that.
    """
    loaded: Any = sys.modules.get(modules.BISECTOR)
    return bool(os.environ.get("TORCH_BISECT_BACKEND")) or (
        loaded is not None and bool(loaded.CompilerBisector.bisection_enabled)
    )


def _has_spec(model: Any) -> bool:
    """Whether dynamic shapes are declared on the function, or on the module's ``forward``."""
    attribute = torch_api.tables().SHAPES_ATTRIBUTE
    if isinstance(model, torch.nn.Module):
        model = model.forward
    return attribute is not None and getattr(model, attribute, None) is not None


def _ignored() -> bool:
    """Whether torch.compile compiles nothing in this process."""
    if os.environ.get("TORCHDYNAMO_DISABLE", "") == "1":
        return True
    return not torch_api.serve().justknobs_check("pytorch/compiler:enable_dynamo")


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
    **others: Any,
) -> Any:
    """``torch.compile`` of a prepared process; same arguments, same results, same errors.

    Calls that precomp cannot serve (another backend, arguments beyond those here, guard filters, an
    active export, scripted modules, unusual settings of torch._dynamo.config) go to torch's own
    function.
    """
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "mode": mode,
        "options": options,
        "name": name,
        "recompile_limit": recompile_limit,
    }
    arguments = {argument: arguments[argument] for argument in DEFAULTS}
    if backend is None:
        backend = default_backend()
    if model is None:

        def fn(model: Callable[..., Any]) -> Any:
            if model is None:
                raise RuntimeError("Model can't be None")
            return torch.compile(model, backend=backend, disable=disable, **arguments, **others)

        return fn
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    config = dynamo_config()
    if (
        backend != "inductor"
        or any(value is not None and value is not False for value in others.values())
        or _has_spec(model)
        or (isinstance(options, dict) and {"guard_filter_fn", "use_aoti"} & options.keys())
        or torch.compiler.is_exporting()
        or isinstance(model, torch.jit.ScriptModule)
        or _bisecting()
        or (config.suppress_errors and config.fail_on_recompile_limit_hit)
        or any(getattr(config, setting) != usual for setting, usual in _USUAL_CONFIG)
    ):
        return _original(model, backend=backend, disable=disable, **arguments, **others)
    compiler = _compiler(arguments)
    if disable or _ignored():
        if not callable(model):
            raise AssertionError(f"A callable function is expected, but {type(model)} is provided.")
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


def _entry() -> types.CodeType:
    """Code with the arguments of the running torch's ``torch.compile`` that calls ours."""
    code = torch.compile.__code__
    names = code.co_varnames[1 : 1 + code.co_kwonlyargcount]
    text = (
        f"def compile(model=None, *, {', '.join(names)}):\n"
        "    from precomp.serve.compile import compile as served\n"
        f"    return served(model, {', '.join(f'{name}={name}' for name in names)})\n"
    )
    scope: dict[str, Any] = {}
    exec(builtins.compile(text, __file__, "exec"), scope)
    return scope["compile"].__code__  # type: ignore[no-any-return]


def _mark_step_begin() -> None:
    """``torch.compiler.cudagraph_mark_step_begin`` without an import of the compiler: if torch has
    recorded no CUDA graph, there is nothing to mark. Its globals are those of torch.compiler."""
    import sys

    from precomp.torch_api import modules

    trees = sys.modules.get(modules.CUDAGRAPH_TREES)
    if trees is not None:
        trees.mark_step_begin()


def install() -> None:
    """Make ``torch.compile``, under every name it was imported as, ours.

    The function object stays; its code is exchanged, so ``from torch import compile`` done before
    is covered too.
    """
    global _saved_code
    if _saved_code is not None:
        return
    _saved_code = torch.compile.__code__
    torch.compile.__code__ = _entry()
    mark = torch.compiler.cudagraph_mark_step_begin
    _undo.append(functools.partial(setattr, mark, "__code__", mark.__code__))
    mark.__code__ = _mark_step_begin.__code__
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
    follow()
    run = runtime()
    real = torch_api.compiler()
    convert = real.CatchErrorsWrapper.__call__
    servers: dict[str, Any] = {}

    @functools.wraps(convert)
    def call(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        backend = backend_of(wrapper)
        if backend is not None:
            whole = objects.wants_one_graph(wrapper)
            key = repr((backend, whole))
            if key not in servers:
                servers[key] = run.server(backend, lambda: None, whole=whole)
            answer = servers[key].accept(frame)
            if isinstance(answer, tuple):
                answer = run.rebind(frame, answer)
            if isinstance(answer, _core.FrameReturn) and (
                answer.guarded_code is not None or answer.skip_reason == SKIPPED
            ):
                return answer
        return convert(wrapper, frame, cache_entry, frame_state)

    def undo() -> None:
        if real.CatchErrorsWrapper.__call__ is call:
            real.CatchErrorsWrapper.__call__ = convert

    real.CatchErrorsWrapper.__call__ = call
    _undo.append(undo)


def backend_of(callback: Any) -> dict[str, Any] | None:
    """The backend record of one of torch's own callbacks; None unless it is Inductor's."""
    callback = objects.innermost_backend(callback)
    if type(callback) is not torch_api.compiler().InductorWrapper:
        return None
    return backends.record(callback)
