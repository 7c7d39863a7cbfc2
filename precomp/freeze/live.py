"""Live objects at capture: the record of ``precomp.live_objects``, made from guards and tracing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precomp import live_objects, torch_api
from precomp.freeze.store import Unsupported
from precomp.freeze.values import Encoded, Unencodable, describe, encode
from precomp.torch_api import objects

WEAK = "__pc_weak_"  # begin of the names of weak references to live objects

Patch = Callable[[Any, str, Any], None]


class Held:
    """The object of an id guard that only the running program has."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.seen = Seen.of(value)


@dataclasses.dataclass(frozen=True)
class Seen:
    """What an object was when the guards were built. Does not keep it alive."""

    id: int
    kind: Encoded
    facts: tuple[Any, ...] | None
    storage: int | None

    @staticmethod
    def of(value: Any) -> Seen:
        """Raises Unencodable for a tensor that facts do not describe."""
        if not isinstance(value, torch.Tensor):
            return Seen(id(value), encode(type(value)), None, None)
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise Unencodable(f"identity of {describe(value)}, a tensor subclass")
        if value.layout != torch.strided or value.device.type not in ("cpu", "cuda"):
            raise Unencodable(f"identity of a {value.layout} tensor on {value.device.type}")
        facts = live_objects.tensor_facts(value)
        return Seen(id(value), encode(type(value)), facts, objects.storage_number(value))


def is_live(value: Any) -> bool:
    """Whether an id guard on *value* is bound to the object of the serving program.

    Not where torch does not tell of calls of id(): compiled code could depend on the number.
    """
    tells = hasattr(torch_api.capture().VariableTracker, "get_id")
    return tells and isinstance(value, (torch.Tensor, torch.optim.Optimizer))


def is_type_list(example: Any) -> bool:
    """Whether *example* is one of torch's lists of types with foreach kernels: importing
    ``torch.distributed.tensor``, as the compiler does, appends to them."""
    api = torch_api.capture()
    return example is api.optim_foreach_types or example is api.utils_foreach_types


def unchecked(method: str, example: Any) -> Seen | None:
    """For a gradient, of which torch may guard only that it is there."""
    if method == "grad_manager" and isinstance(example, torch.Tensor):
        return Seen.of(example)
    return None


class Table:
    """The live objects of one guard tree, numbered."""

    def __init__(self, tree: Any) -> None:
        self.ops: list[tuple[Any, ...]] = []
        self._steps = tree.notes.steps if tree.notes else []
        self._numbered = tree.notes.ids if tree.notes else set()
        self._weak: list[tuple[int, str, int]] = []  # node, name of the global, id of the object
        self._rows: dict[int, int] = {}
        self._seen: list[tuple[Seen, list[int], bool]] = []
        matched = {op[1] for op in tree.ops if op[0] == "add_tensor_match_guard"}
        for op in tree.ops:
            if op[0] == "global_weakref_manager" and op[3]:
                self._weak.append((op[2], op[3][1], tree.weak[op[2]]))
            if len(op) == 3 and op[2] and isinstance(op[2][0], Held):
                row = self._add(op[2][0].seen, op[1], True)
                op = (op[0], op[1], (("live", row), *op[2][1:]))
            self.ops.append(op)
        for node, seen in tree.gradients.items():
            if node not in matched:
                self._add(seen, node, False)

    def _add(self, seen: Seen, node: int, held: bool) -> int:
        row = self._rows.setdefault(seen.id, len(self._seen))
        if row == len(self._seen):
            self._seen.append((seen, [node], held))
        elif node not in self._seen[row][1]:
            self._seen[row][1].append(node)
        return row

    def row(self, number: int) -> int | None:
        """The row of the object with that id."""
        return self._rows.get(number)

    def weak(self) -> dict[str, int]:
        """The rows of the objects behind weak references, by the names of these globals."""
        found = {name: self.row(number) for _, name, number in self._weak}
        return {name: row for name, row in found.items() if row is not None}

    def record(self, numbers: dict[int, int]) -> dict[str, Any] | None:
        """The ``live`` record, None without such objects. *numbers*: nodes as the tape has them."""
        if len(self.weak()) < len(self._weak):
            raise Unsupported("weak reference to a global object that guards reach in no other way")
        if not self._seen and not self._steps:
            return None
        storages: dict[int | None, int | None] = {None: None}
        rows = []
        for seen, nodes, held in self._seen:
            if seen.id in self._numbered:
                kind = seen.kind[2] if seen.kind[0] == "P" else "object"
                raise Unsupported(f"id() of a {kind}, which is another one in each process")
            storage = storages.setdefault(seen.storage, len(storages))
            places = tuple(numbers[node] for node in nodes)
            rows.append((places, seen.kind, seen.facts, storage, held))
        steps = tuple(tuple(self._step(step)) for step in self._steps)
        return {"objects": tuple(rows), "steps": steps}

    def _step(self, step: Step) -> Iterator[Any]:
        row = self.row(step.optimizer)
        if row is None:
            raise Unsupported("an optimizer whose identity no guard holds")
        yield row
        yield tuple(map(self._argument, step.args))
        yield tuple((name, self._argument(value)) for name, value in step.kwargs)
        yield encode(step.result)

    def _argument(self, argument: tuple[str, Any]) -> tuple[Any, ...]:
        tag, value = argument
        if tag == "v":
            return (tag, encode(value))
        return (tag, tuple(map(self._item, value)) if tag == "l" else value)

    def _item(self, item: tuple[str, Any]) -> tuple[Any, ...]:
        tag, value = item
        if tag == "v":
            return (tag, encode(value))
        row = self.row(value)
        if row is None:
            raise Unsupported("a tensor of an optimizer that no guard reaches")
        return (tag, row)


# ------------------------------------------------------------------ seen while tracing


@dataclasses.dataclass
class Step:
    """One call of ``_init_group`` that Dynamo made. Does not keep tensors alive."""

    optimizer: int
    args: list[tuple[str, Any]]
    kwargs: list[tuple[str, Any]]
    result: Any


class Notes:
    """What was seen while Dynamo traced one frame."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.ids: set[int] = set()  # what id() gave

    @staticmethod
    def of(output: Any) -> Notes:
        """The notes of an OutputGraph: they live as long as it does."""
        notes: Notes = vars(output).setdefault("_precomp_notes", Notes())
        return notes


class TraceRecorder:
    """Notes what Dynamo does with live objects while it traces."""

    def __init__(self) -> None:
        self.note_code: Callable[[Any], None] = lambda function: None
        self._filled: tuple[Any, Any] | None = None

    def install(self, patch: Patch, attach: Callable[[Any, Notes], None]) -> None:
        """*attach(guard manager, notes)* is called for each frame whose guards are built, and
        ``note_code(function)`` for each ``_init_group`` that Dynamo calls."""
        self._hook_init_group(patch)
        api = torch_api.capture()
        get_id = getattr(api.VariableTracker, "get_id", None)
        if get_id is not None:

            @functools.wraps(get_id)
            def noted_id(variable: Any, tx: Any) -> int | None:
                number: int | None = get_id(variable, tx)
                if number is not None:
                    Notes.of(tx.output).ids.add(number)
                return number

            patch(api.VariableTracker, "get_id", noted_id)
        build = api.check_function_manager.__init__

        @functools.wraps(build)
        def build_guards(checks: Any, code: Any, output: Any, *args: Any, **kwargs: Any) -> None:
            build(checks, code, output, *args, **kwargs)
            attach(checks.guard_manager, Notes.of(output))

        patch(api.check_function_manager, "__init__", build_guards)

    def _hook_init_group(self, patch: Patch) -> None:
        api = torch_api.capture()
        optimizer = api.OptimizerVariable
        call, update = optimizer.call_method, optimizer.update_list_args

        @functools.wraps(update)
        def update_list_args(
            variable: Any, tx: Any, args: Any, kwargs: Any, py_args: Any, py_kwargs: Any
        ) -> None:
            update(variable, tx, args, kwargs, py_args, py_kwargs)
            self._filled = (list(py_args), dict(py_kwargs))

        @functools.wraps(call)
        def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            self._filled = None
            result = call(variable, tx, name, args, kwargs)
            filled, self._filled = self._filled, None
            if name == objects.INIT_GROUP and filled is not None:
                step = _step(variable.value, *filled, result.as_python_constant())
                Notes.of(tx.output).steps.append(step)
                self.note_code(objects.init_group(type(variable.value)))
            return result

        patch(optimizer, "update_list_args", update_list_args)
        patch(optimizer, "call_method", call_method)


def _step(optimizer: Any, args: list[Any], kwargs: dict[str, Any], result: Any) -> Step:
    groups = {id(group): index for index, group in enumerate(optimizer.param_groups)}

    def item(value: Any) -> tuple[str, Any]:
        return ("o", id(value)) if isinstance(value, torch.Tensor) else ("v", value)

    def argument(value: Any) -> tuple[str, Any]:
        if id(value) in groups:
            return ("g", groups[id(value)])
        return ("l", [item(each) for each in value]) if type(value) is list else item(value)

    return Step(
        id(optimizer),
        [argument(value) for value in args],
        [(name, argument(value)) for name, value in kwargs.items()],
        result,
    )
