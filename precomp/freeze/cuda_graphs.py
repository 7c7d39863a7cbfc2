"""What torch puts CUDA graphs around, noted while it does.

Inductor decides for each graph, or for each partition of one, whether its call goes through
``cudagraphify``, and what it knows of the arguments. Nothing of that is decided again here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from precomp import torch_api

Patch = Callable[[Any, str, Any], None]


class Wrapped(NamedTuple):
    """A call that torch put CUDA graphs around.

    ``static``: arguments that it expects at the same address each time; ``mutated``: those that the
    call changes; ``empty``: it runs no kernel, so that torch records nothing.
    """

    call: Callable[..., Any]
    device: int
    static: tuple[int, ...]
    mutated: tuple[int, ...]
    empty: bool


_wrapped: weakref.WeakKeyDictionary[Any, Wrapped] = weakref.WeakKeyDictionary()


def watch(patch: Patch) -> None:
    """Note every call that torch wraps from now on; *patch(owner, name, new)* hooks it."""
    module = torch_api.capture().compile_fx_module
    original = module.cudagraphify

    def cudagraphify(
        model: Any,
        static_input_idxs: Any = (),
        *,
        device_index: int,
        mutated_input_idxs: Any = (),
        **kwargs: Any,
    ) -> Any:
        result = original(
            model,
            static_input_idxs,
            device_index=device_index,
            mutated_input_idxs=mutated_input_idxs,
            **kwargs,
        )
        static, mutated = (
            tuple(sorted(map(int, indices))) for indices in (static_input_idxs, mutated_input_idxs)
        )
        empty = bool(kwargs.get("kernel_free_cudagraph"))  # torch 2.14
        _wrapped[result] = Wrapped(model, device_index, static, mutated, empty)
        return result

    patch(module, "cudagraphify", cudagraphify)


def unwrapped(call: Any) -> Wrapped | None:
    """What is inside *call* if torch put CUDA graphs around it while that was noted."""
    try:
        return _wrapped.get(call)
    except TypeError:  # no weak references to it
        return None
