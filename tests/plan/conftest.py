"""torch is the oracle: the same compiled graph runs under torch's wrappers and under our plan.

A ``Twin`` compiles a function with ``torch.compile`` while a PlanRecorder is installed and puts a
switch where Dynamo installs the compiled graph: to one side torch's own compiled function, to the
other the plan built from the frozen record over the same Inductor callables.
"""

from __future__ import annotations

import gc
import hashlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

with warnings.catch_warnings():  # torch deprecates what its own compiler imports
    warnings.simplefilter("ignore")
    import torch._dynamo
    from torch._dynamo.utils import CleanupHook
    from torch._inductor.compile_fx import compile_fx

from precomp import data, torch_api
from precomp.freeze.plan import freeze_plan
from precomp.freeze.plan_recorder import PlanRecorder
from precomp.freeze.plan_source import GraphSource
from precomp.freeze.store import Unsupported
from precomp.serve import plan as serve_plan


class Switch:
    """What the transformed bytecode calls: torch's function or ours."""

    def __init__(self, twin: Twin, name: str, value: Any) -> None:
        self.twin, self.torch_call, self.plan, self.source = twin, value, None, None
        try:
            self.source = twin.recorder.claim(name)
        except Unsupported as error:
            twin.errors.append(error)

    def build(self) -> Any:
        if self.plan is None:
            graphs: dict[str, Any] = {}

            def digest(graph: Any) -> str:
                graphs[f"{len(graphs):064d}"] = graph
                return f"{len(graphs) - 1:064d}"

            record = freeze_plan(self.source, digest)
            self.record = data.loads(data.dumps(record))
            assert set(serve_plan.digests(self.record)) == set(graphs)
            self.plan = serve_plan.load(self.record, lambda d: graphs[d].current_callable)
        return self.plan

    def entry(self) -> Any:
        @torch._dynamo.disable
        def compiled_graph(*args: Any) -> Any:
            self.twin.calls += 1
            if self.twin.ours:
                return self.build()(*args)
            return self.torch_call(*args)

        return compiled_graph


class Twin:
    """A function compiled once; ``ours`` chooses who runs its graphs."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.recorder = PlanRecorder()
        self.ours = False
        self.calls = 0
        self.switches: list[Switch] = []
        self.errors: list[Unsupported] = []
        self._undo: list[tuple[Any, str, Any]] = []
        self.recorder.install(self._patch)
        create = CleanupHook.create

        def hooked(scope: Any, name: str, value: Any) -> Any:
            if name.startswith("__compiled_fn"):
                self.switches.append(Switch(self, name, value))
                value = self.switches[-1].entry()
            return create(scope, name, value)

        self._patch(CleanupHook, "create", staticmethod(hooked))
        self.compiled = torch.compile(fn, **options)

    def _patch(self, owner: Any, name: str, new: Any) -> None:
        self._undo.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, new)

    def close(self) -> None:
        for owner, name, old in reversed(self._undo):
            setattr(owner, name, old)
        self._undo.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)

    def freeze(self) -> list[dict[str, Any]]:
        """Records of all graphs; raises Unsupported."""
        return [freeze_plan(s.source, lambda graph: "0" * 64) for s in self.switches]

    @property
    def records(self) -> list[dict[str, Any]]:
        return [switch.build() and switch.record for switch in self.switches]

    def compare(self, scenario: Callable[[Any], Any]) -> Any:
        """Run ``scenario(call)`` under torch (once to compile, once to compare) and under us.

        The scenario makes its own inputs and returns what can be observed: tensors, containers,
        plain values. Returns our observation.
        """
        seen = []
        for ours in (False, False, True, True):
            self.ours = ours
            torch.manual_seed(7)
            calls = self.calls
            with warnings.catch_warnings():
                if not ours:  # compiling warns
                    warnings.simplefilter("ignore")
                result = scenario(self)
            assert self.calls > calls, "no compiled graph ran"
            seen.append((observe(result), torch.get_rng_state().tolist()))
        self.ours = False
        # The first round compiles; the others must agree in everything.
        assert seen[1] == seen[2] == seen[3]
        return seen[3][0]


def bits(tensor: torch.Tensor) -> Any:
    """The elements of *tensor*, or a digest of their bits when there are many."""
    if tensor.numel() < 64 and tensor.dtype is not torch.bfloat16:
        return repr(tensor.tolist())
    raw = tensor.contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def observe(result: Any) -> Any:
    """Everything visible of *result*, as plain data that compares by bits."""
    tensors: list[torch.Tensor] = []
    storages: list[int] = []

    def identity(tensor: torch.Tensor) -> int:
        for i, known in enumerate(tensors):
            if known is tensor:
                return i
        tensors.append(tensor)
        return len(tensors) - 1

    def storage(tensor: torch.Tensor) -> int:
        pointer = tensor.untyped_storage()._cdata
        if pointer not in storages:
            storages.append(pointer)
        return storages.index(pointer)

    def look(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            plain = value.detach()
            content = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
            base = value._base
            return (
                "tensor",
                identity(value),
                type(value).__name__,
                str(value.dtype),
                tuple(value.shape),
                value.stride(),
                value.storage_offset(),
                value.requires_grad,
                value.is_leaf,
                value.retains_grad,
                None if value.grad_fn is None else value.grad_fn.name(),
                None if value.is_inference() else value._version,
                None if base is None else (identity(base), tuple(base.shape)),
                storage(value),
                sorted(getattr(value, torch_api.tables().DYNAMIC_DIMS, ())),
                bits(content),
            )
        if isinstance(value, (tuple, list)):
            return [look(item) for item in value]
        if isinstance(value, dict):
            return {key: look(item) for key, item in value.items()}
        assert value is None or isinstance(value, (bool, int, float, str)), value
        return value

    return look(result)


@pytest.fixture
def twin() -> Iterator[Callable[..., Twin]]:
    """``twin(fn, **options_of_torch_compile) -> Twin``."""
    made: list[Twin] = []

    def make(fn: Callable[..., Any], **options: Any) -> Twin:
        torch._dynamo.reset()
        made.append(Twin(fn, **options))
        return made[-1]

    yield make
    for item in reversed(made):  # they patch the same
        item.close()
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def ignore_warnings() -> Iterator[None]:
    """For tests that compile: torch's compiler warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def direct() -> Callable[..., dict[str, Any]]:
    """``direct(fn, scenario) -> record``: as ``Twin.compare``, past Dynamo.

    Dynamo breaks the graph at some mutations of inputs; torch.fx does not. *fn* returns a tuple and
    is compiled once, for the inputs of the first call in *scenario*.
    """

    def run(fn: Callable[..., Any], scenario: Callable[[Any], Any]) -> dict[str, Any]:
        torch._dynamo.reset()
        twin = Twin(fn)
        source = GraphSource("inductor", [])
        calls: dict[str, Any] = {}
        graphs: dict[str, Any] = {}

        def digest(graph: Any) -> str:
            graphs[str(id(graph))] = graph
            return str(id(graph))

        def compile_first(*args: Any) -> Any:
            if "torch" not in calls:
                graph = torch.fx.symbolic_trace(fn)
                copies = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
                with twin.recorder._collecting(source):
                    calls["torch"] = compile_fx(graph, copies)
            return calls["torch"](*args)

        try:
            seen = []
            for ours in (False, False, True, True):
                if ours and "ours" not in calls:
                    record = freeze_plan(source, digest)
                    calls["ours"] = serve_plan.load(record, lambda d: graphs[d].current_callable)
                torch.manual_seed(7)
                with warnings.catch_warnings():
                    if not ours:
                        warnings.simplefilter("ignore")
                    seen.append(observe(scenario(calls["ours"] if ours else compile_first)))
            assert seen[1] == seen[2] == seen[3]
            return record
        finally:
            twin.close()

    return run
