"""Objects that only the running program has: an optimizer, its parameters, its state.

A compiled optimizer step holds the identity of these objects, and its graph the tensors. An
artifact says instead how guards reach each of them from the frame, and what it was when the frame
was compiled; a serving process finds them in its own frame and checks them (docs/guards.md).
``precomp.freeze.live`` writes the record, ``precomp.serve.live`` reads it.

The record, at ``"live"`` of a tape; node numbers are those of the tape:

``objects``
    One row ``(nodes, encoded type, facts, storage, held)`` per object. *nodes*: all nodes of the
    tape that are this object. *facts* (``tensor_facts``) and *storage* for tensors, else None;
    objects with equal *storage* share one. *held*: guards hold its identity; the others are
    tensors that torch checks only when it compiles.
``steps``
    One row ``(object, arguments, keyword arguments, result)`` per call of an optimizer's
    ``_init_group``, which Dynamo makes while it compiles: it creates missing state. An argument is
    ``("v", encoded value)``, ``("g", index of a parameter group)`` or ``("l", items)``: an empty
    list that the call fills, each item ``("o", object)`` or ``("v", encoded value)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from precomp import _core, guard_functions
from precomp.torch_api import objects

Twins = dict[tuple[str, str], Any] | None

# What tensor_facts tells, in order.
FACTS = (
    "device",
    "dtype",
    "layout",
    "shape",
    "stride",
    "storage offset",
    "requires_grad",
    "is_leaf",
    "is_inference",
    "is_conj",
    "is_neg",
)


class Unfit(Exception):
    """The objects of a frame are not like the captured ones; the message says which and why."""


def tensor_facts(tensor: Any) -> tuple[Any, ...]:
    """What compiled code may rely on of a tensor that is strided, as plain data (see FACTS)."""
    return (
        str(tensor.device),
        str(tensor.dtype),
        str(tensor.layout),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_inference(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


class Reader:
    """Reads the values behind the nodes of a tape from a frame."""

    def __init__(
        self, tape: dict[str, Any], f_locals: Any, f_globals: dict[str, Any], twins: Twins
    ) -> None:
        self._made = {op[2]: op for op in tape["ops"] if len(op) == 6}
        self._values: dict[int, Any] = {0: f_locals}
        self._lists: dict[tuple[int, str], list[Any]] = {}
        self._f_globals = f_globals
        self._twins = twins

    def source(self, node: int) -> str:
        """The text of the source of *node*."""
        return str(self._made[node][4])

    def forget(self) -> None:
        """Forget all values that were read: the program may have changed them."""
        self._values = {0: self._values[0]}
        self._lists.clear()

    def value(self, node: int) -> Any:
        """The value of *node*. Raises Unfit when the frame has none."""
        if node not in self._values:
            method, parent, _, key, source, _ = self._made[node]
            above = self.value(parent)
            try:
                self._values[node] = self._read(method, parent, above, key)
            except (AttributeError, LookupError, TypeError) as error:
                raise Unfit(f"{source}: not there ({type(error).__name__}: {error})") from error
        return self._values[node]

    def _read(self, method: str, parent: int, above: Any, key: Any) -> Any:
        if method == "globals_dict_manager":
            return self._f_globals
        if method == "lambda_manager":
            key = guard_functions.decode_function(key, self._f_globals, self._twins)
        elif key is not None:
            key = _core.decode(key, self._twins)
        if method in ("get_key_manager", "get_value_manager"):
            # Not anew for each item: an optimizer's state has thousands.
            read = dict.keys if method == "get_key_manager" else dict.values
            if (parent, method) not in self._lists:
                self._lists[parent, method] = list(read(above))
            return self._lists[parent, method][key]
        return guard_functions.ACCESSORS[method](above, key)


def find(record: dict[str, Any], reader: Reader, twins: Twins) -> tuple[Any, ...]:
    """The objects of a ``live`` record in the frame of *reader*, in the order of its rows.

    Raises Unfit when one is missing or other than the captured one was: type, facts, which are
    the same object, which share a storage.
    """
    found: list[Any] = []
    rows_by_id: dict[int, int] = {}
    storages: dict[int, int] = {}
    for row, (nodes, kind, facts, storage, _) in enumerate(record["objects"]):
        value = reader.value(nodes[0])
        source = reader.source(nodes[0])
        for node in nodes[1:]:
            if reader.value(node) is not value:
                raise Unfit(f"{source} is not {reader.source(node)}")
        expected = _core.decode(kind, twins)
        if type(value) is not expected:
            raise Unfit(f"{source}: expected {expected.__name__}, found {type(value).__name__}")
        other = rows_by_id.setdefault(id(value), row)
        if other != row:
            raise Unfit(f"{source} is {reader.source(record['objects'][other][0][0])}")
        if facts is not None:
            _compare(source, facts, value)
            known = storages.setdefault(objects.storage_number(value), storage)
            if known != storage:
                raise Unfit(f"{source}: shares its storage with another tensor")
        found.append(value)
    if len(set(storages.values())) != len(storages):
        raise Unfit("tensors that shared a storage do not")
    return tuple(found)


def _compare(source: str, facts: tuple[Any, ...], tensor: Any) -> None:
    if str(tensor.layout) != "torch.strided":
        raise Unfit(f"{source}: layout expected {facts[2]}, found {tensor.layout}")
    now = tensor_facts(tensor)
    for name, expected, value in zip(FACTS, facts, now, strict=True):
        if expected != value:
            raise Unfit(f"{source}: {name} expected {expected}, found {value}")


class Steps:
    """Makes the calls of ``_init_group`` that Dynamo made when it compiled the frame."""

    def __init__(self, record: dict[str, Any], twins: Twins) -> None:
        self._record = record
        self._twins = twins
        self._filled: list[tuple[Any, list[tuple[Any, list[Any]]]]] = []

    def run(self, reader: Reader) -> None:
        """Create the state that is missing. Raises Unfit when an optimizer is of another type or
        its ``_init_group`` raises."""
        for row, arguments, keywords, _ in self._record["steps"]:
            nodes, kind, _, _, _ = self._record["objects"][row]
            optimizer = reader.value(nodes[0])
            source = reader.source(nodes[0])
            expected = _core.decode(kind, self._twins)
            if type(optimizer) is not expected:
                found = type(optimizer).__name__
                raise Unfit(f"{source}: expected {expected.__name__}, found {found}")
            lists: list[tuple[Any, list[Any]]] = []
            try:
                _ready(optimizer)
                args = [self._argument(optimizer, item, lists) for item in arguments]
                kwargs = {name: self._argument(optimizer, item, lists) for name, item in keywords}
                self._filled.append((objects.init_group(optimizer)(*args, **kwargs), lists))
            except Exception as error:
                reason = f"{source}._init_group: {type(error).__name__}: {error}"
                raise Unfit(reason) from error
        reader.forget()

    def _argument(
        self, optimizer: Any, item: tuple[Any, ...], lists: list[tuple[Any, list[Any]]]
    ) -> Any:
        tag, value = item
        if tag == "v":
            return _core.decode(value, self._twins)
        if tag == "g":
            return optimizer.param_groups[value]
        filled: list[Any] = []
        lists.append((value, filled))
        return filled

    def check(self, found: tuple[Any, ...]) -> None:
        """The calls gave what they gave when the frame was compiled. Raises Unfit."""
        for (row, _, _, expected), (result, lists) in zip(
            self._record["steps"], self._filled, strict=True
        ):
            name = type(found[row]).__name__
            if not self._same(result, ("v", expected), found):
                raise Unfit(f"{name}._init_group returned {result!r}")
            for items, filled in lists:
                if len(items) != len(filled) or not all(
                    self._same(value, item, found)
                    for value, item in zip(filled, items, strict=True)
                ):
                    raise Unfit(f"{name}._init_group gave other tensors or values")

    def _same(self, value: Any, item: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
        tag, content = item
        if tag == "o":
            return value is found[content]
        expected = _core.decode(content, self._twins)
        return type(value) is type(expected) and bool(value == expected)


def _ready(optimizer: Any) -> None:
    """Does to an optimizer what Dynamo does before it compiles a step of it: one on a GPU without
    state is made capturable, and counters of steps go to the device of their parameter."""
    for group in optimizer.param_groups:
        params = group.get("params", [])
        fresh = all(param not in optimizer.state for param in params)
        if fresh and "capturable" in group and all(param.is_cuda for param in params):
            group["capturable"] = True
    for param, state in optimizer.state.items():
        if "step" in state and state["step"].is_cpu:
            state["step"] = state["step"].to(param.device)


def held(record: dict[str, Any], found: Iterable[Any]) -> list[Any]:
    """Those of *found* whose identity the guards hold."""
    return [value for value, row in zip(found, record["objects"], strict=True) if row[4]]
