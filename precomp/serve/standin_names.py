"""The few parts of torch's compiler that the stand-in restates by hand.

Their originals need the compiler. ``STANDIN_WRITTEN`` in ``precomp.torch_api`` holds the digest of
each original; capture compares it with the installed torch (``precomp.freeze.helpers``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from precomp import torch_api
from precomp.serve.standin_build import pass_over, skip_code
from precomp.torch_api import modules, objects

Key = tuple[str, str]


class Written:
    """Hand-written names and what they remember until the real package arrives.

    *materialize* makes ``torch._dynamo`` real; *module_classes* are the classes whose instances
    count as ``OptimizedModule``.
    """

    def __init__(self, materialize: Callable[[str], None], module_classes: list[type]) -> None:
        self._module_classes = module_classes
        self._allowed: list[Any] = []
        set_eval_frame = torch_api.serve().set_eval_frame
        get_callback = torch_api.serve().get_eval_frame_callback
        allowed = self._allowed

        def allow_in_graph(fn: Any) -> Any:
            if isinstance(fn, (list, tuple)):
                return [allow_in_graph(x) for x in fn]
            if not callable(fn):
                raise AssertionError("allow_in_graph expects a callable")
            allowed.append(fn)
            return fn

        def real(module: str, name: str) -> Any:
            materialize(f"{module}.{name}")
            return getattr(importlib.import_module(module), name)

        class _TorchDynamoContext:
            """Base of DisableContext: holds the callback; used as a context manager it is real."""

            def __init__(self, callback: Any) -> None:
                self.callback = callback

            def __enter__(self) -> None:
                arguments = {k: v for k, v in vars(self).items() if k in ("msg", "wrapping")}
                self._real = real(modules.EVAL_FRAME, type(self).__name__)(**arguments)
                self._real.__enter__()

            def __exit__(self, *exc: Any) -> Any:
                return self._real.__exit__(*exc)

        def _callback_from_stance(callback: Any) -> Any:
            # Another stance than "default" cannot be set without the real package.
            return callback

        default: Any = None

        def _set_stance(stance: Any) -> Any:
            nonlocal default
            plain = stance.stance == "default" and stance.backend is None
            if not plain or stance.skip_guard_eval_unsafe:
                return real(modules.EVAL_FRAME, "_set_stance")(stance)
            callback = get_callback()
            if callback is not False and callback is not None:
                raise RuntimeError("attempted to set_stance in a torch.compile region")
            prior = stance if default is None else default
            default = stance
            return prior

        objects.forbid_in_graph(_set_stance)

        def clear_lru_cache() -> None:
            # Nothing is cached before the real package is there.
            return

        def is_compile_supported(device_type: Any) -> Any:
            kind = torch.device(device_type).type
            supported = importlib.import_module(modules.DYNAMO).is_dynamo_supported()
            if kind == "cpu":
                return supported
            if kind in ("cuda", "xpu", "mtia") and supported:
                return importlib.import_module(modules.TRITON_UTILS).has_triton()
            return False

        class OptimizedModuleType(type):
            """Lets instance checks work before there is a class, and agree with it afterwards."""

            def __call__(cls, *args: Any, **kwargs: Any) -> Any:
                return real(modules.EVAL_FRAME, "OptimizedModule")(*args, **kwargs)

            def __instancecheck__(cls, value: Any) -> bool:
                return isinstance(value, tuple(module_classes))

            def __subclasscheck__(cls, other: type) -> bool:
                return other is cls or issubclass(other, tuple(module_classes))

        class OptimizedModule(metaclass=OptimizedModuleType):
            """The class of compiled modules, before the real one is there."""

        OptimizedModule.__module__ = modules.EVAL_FRAME

        self.names: dict[Key, Any] = {
            (modules.EVAL_FRAME, "OptimizedModule"): OptimizedModule,
            (modules.DECORATORS, "allow_in_graph"): allow_in_graph,
            (modules.EVAL_FRAME, "_TorchDynamoContext"): _TorchDynamoContext,
            (modules.EVAL_FRAME, "_callback_from_stance"): _callback_from_stance,
            (modules.EVAL_FRAME, "_set_stance"): _set_stance,
            (modules.TRACE_RULES, "clear_lru_cache"): clear_lru_cache,
            (modules.DYNAMO_UTILS, "is_compile_supported"): is_compile_supported,
        }
        for module, flags in torch_api.tables().STANDIN_FLAGS.items():
            self.names.update({(module, name): False for name in flags})
        if torch_api.serve().DISABLE_JUSTKNOBS:
            self.names[modules.EVAL_FRAME, objects.MAYBE_SET_EVAL_FRAME] = set_eval_frame
        for function in (
            allow_in_graph,
            real,
            _TorchDynamoContext.__init__,
            _TorchDynamoContext.__enter__,
            _TorchDynamoContext.__exit__,
            _callback_from_stance,
            _set_stance,
            clear_lru_cache,
            is_compile_supported,
        ):
            skip_code(function.__code__, recursive=function is is_compile_supported)
        pass_over(OptimizedModuleType)

    def become_real(self) -> None:
        """Tell the real package what was remembered."""
        allow_in_graph = importlib.import_module(modules.DECORATORS).allow_in_graph
        for fn in self._allowed:
            allow_in_graph(fn)
        self._allowed.clear()
        self._module_classes.append(importlib.import_module(modules.EVAL_FRAME).OptimizedModule)
