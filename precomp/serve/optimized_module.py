"""What ``torch.compile(module)`` returns in a prepared process (torch's ``OptimizedModule``)."""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Sized
from typing import Any

import torch

from precomp import torch_api
from precomp.serve import standin
from precomp.serve.callables import external_utils, skipped
from precomp.torch_api import modules, objects


class OptimizedModule(torch.nn.Module):
    """What ``torch.compile(module)`` returns in a prepared process.

    When torch's own class is there, wrappers made before become instances of it.
    """

    _opt_mod_attributes = {
        "_orig_mod",
        "dynamo_ctx",
        *objects.WRAPPER_ATTRIBUTES,
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
        if isinstance(mod.forward, types.MethodType) and skipped(mod.forward):
            self.forward = self.dynamo_ctx(external_utils().wrap_inline(mod))
        else:
            self.forward = self.dynamo_ctx(mod.__call__)
        if objects.may_be_lazy(mod):
            self._forward = self.forward
            self.forward = self._call_lazy_check

    def __len__(self) -> int:
        if isinstance(self._orig_mod, Sized):
            return len(self._orig_mod)
        raise TypeError(f"{type(self._orig_mod).__name__} does not support len()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch_api.serve().has_global_hooks():
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
        objects.initialize_lazy(self._orig_mod, args, kwargs)
        return self.__dict__["_forward"](*args, **kwargs)

    def __dir__(self) -> list[str]:
        inner = self._orig_mod.__dir__()
        return [*inner, *(name for name in super().__dir__() if name not in inner)]


OptimizedModule.__module__ = modules.EVAL_FRAME
standin.add_module_class(OptimizedModule)
_modules: weakref.WeakSet[OptimizedModule] = weakref.WeakSet()


def become_instances_of(cls: type) -> None:
    """Make all wrappers that exist instances of *cls*, torch's own class."""
    for module in tuple(_modules):
        object.__setattr__(module, "__class__", cls)
    _modules.clear()
