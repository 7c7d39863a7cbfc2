"""What the programs of these tests are made of: the type, the registry, changes of state."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


@dataclasses.dataclass
class Program:
    function: Callable[..., Any]
    # a tuple, or what makes one for each call
    arguments: Any
    # name -> arguments or a context manager
    variations: dict[str, Callable[[], Any]]
    around: Callable[[], Any] = contextlib.nullcontext
    dynamic: bool | None = None
    # a name, or a function that makes it (it may import torch's compiler)
    backend: str | Callable[[], Any] = "eager"
    # torch._dynamo.config while it is recorded
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    # rebuilding it imports modules of torch that bring the compiler, or sympy
    loads_compiler: bool = False


def planted(*guards: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    """A backend that adds guards to the frame it compiles, for sources that torch makes for
    optimizers, devices or libraries only: each is called with ``torch._dynamo.source`` and
    ``GuardBuilder``, and torch's own builder makes the tree."""

    def make() -> Any:
        from torch._dynamo import source
        from torch._dynamo.guards import GuardBuilder, install_guard

        def backend(graph: Any, inputs: Any) -> Any:
            for guard in guards:
                install_guard(guard(source, GuardBuilder))
            return graph.forward

        return backend

    return make


PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


@contextlib.contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = (
        name.startswith("__")
        or not hasattr(owner, "__dict__")
        or any(
            name in getattr(owner, place, {})
            for place in ("__dict__", "_modules", "_parameters", "_buffers")
        )
    )
    before = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def item(owner: Any, key: Any, value: Any) -> Iterator[None]:
    before = owner[key]
    owner[key] = value
    try:
        yield
    finally:
        owner[key] = before


@contextlib.contextmanager
def call(do: Callable[[], Any], undo: Callable[[], Any]) -> Iterator[None]:
    do()
    try:
        yield
    finally:
        undo()


def training(module: nn.Module, mode: bool) -> Any:
    return call(lambda: module.train(mode), lambda: module.train(not mode))


@contextlib.contextmanager
def restrided(parameter: nn.Parameter) -> Iterator[None]:
    before = parameter.data
    parameter.data = before.t().contiguous().t()
    try:
        yield
    finally:
        parameter.data = before


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


AMBIENT: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "default_dtype": lambda: default_dtype(torch.float64),
    "default_device": lambda: torch.device("meta"),
    "num_threads": lambda: threads(2),
    "deterministic": lambda: call(
        # The public function imports torch._inductor.
        lambda: torch._C._set_deterministic_algorithms(True, warn_only=False),
        lambda: torch._C._set_deterministic_algorithms(False, warn_only=False),
    ),
    "function_mode": lambda: torch.overrides.BaseTorchFunctionMode(),
}


def x(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)
