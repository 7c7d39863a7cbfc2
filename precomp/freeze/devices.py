"""GPUs in what was captured: which ordinals it names, and what keeps a frame on its own ones.

The record of a frame that uses one GPU names it ``cuda:0``, whichever it was: it can be served on
any. A frame stays on the GPUs that it was captured on when it uses several, or when what it
computes may depend on the number itself: its source names a GPU, or the number of one became an
ordinary integer or the other way round while Dynamo traced. Such numbers cannot be told from others
in compiled code.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from precomp import torch_api
from precomp.freeze import inlined
from precomp.freeze.compiler_names import code_names
from precomp.freeze.guard_tree import Generated, Identity
from precomp.freeze.live import Held
from precomp.freeze.store import Unsupported
from precomp.freeze.traced import fixed_by_version
from precomp.freeze.values import Encoded, encode
from precomp.ordinals import ANY, CURRENT, Numbers, named, renumber

Patch = Callable[[Any, str, Any], None]

NO_GUARDS: dict[str, Any] = {"ops": ()}


def ordinal(device: Any) -> int | None:
    """The number of a GPU, None for other devices and values."""
    if type(device) is torch.device and device.type == "cuda":
        return device.index
    return None


# ------------------------------------------------------------------ while Dynamo traces


def watch(
    patch: Patch, note: Callable[[str], None], note_graph: Callable[[torch.fx.GraphModule], None]
) -> None:
    """Call ``note(reason)`` whenever Dynamo, while it traces, makes an integer of the number of a
    GPU or a GPU of an integer, and ``note_graph`` with each graph that it made; *patch(owner, name,
    new)* replaces what it calls for that."""
    api = torch_api.capture()
    attribute = api.ConstantVariable.const_getattr
    method = api.ConstantVariable.call_method
    number = api.TensorVariable.method_get_device
    construct = api.UserDefinedClassVariable.call_function
    compile_graph = api.OutputGraph.call_user_compiler

    @functools.wraps(attribute)
    def const_getattr(variable: Any, tx: Any, name: str) -> Any:
        if name == "index" and ordinal(variable.value) is not None:
            note("it reads the number of a device (device.index)")
        return attribute(variable, tx, name)

    @functools.wraps(method)
    def call_method(variable: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        value = variable.value
        if type(value) is str and name not in ("startswith", "format") and named(value):
            note(f"it takes the name of a device apart (str.{name})")
        return method(variable, tx, name, args, kwargs)

    @functools.wraps(number)
    def method_get_device(variable: Any, *args: Any, **kwargs: Any) -> Any:
        if ordinal(variable.device) is not None:
            note("it reads the number of a device (Tensor.get_device)")
        return number(variable, *args, **kwargs)

    @functools.wraps(construct)
    def call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if variable.value is torch.device and any(
            type(item.as_python_constant()) is int
            for item in (*args, *kwargs.values())
            if item.is_python_constant()
        ):
            note("it makes a device from a number (torch.device)")
        return construct(variable, tx, args, kwargs)

    @functools.wraps(compile_graph)
    def call_user_compiler(output: Any, graph: Any, example_inputs: Any) -> Any:
        note_graph(graph)
        return compile_graph(output, graph, example_inputs)

    patch(api.ConstantVariable, "const_getattr", const_getattr)
    patch(api.ConstantVariable, "call_method", call_method)
    patch(api.TensorVariable, "method_get_device", method_get_device)
    patch(api.UserDefinedClassVariable, "call_function", call_function)
    patch(api.OutputGraph, "call_user_compiler", call_user_compiler)


class Uses(NamedTuple):
    """How a graph of Dynamo asks for GPUs: for the current one, and by their numbers."""

    current: bool
    numbers: list[str]


def uses_of_graph(graph: torch.fx.GraphModule) -> Uses:
    """What a graph and the graphs inside it ask for."""
    parts = (part for part in graph.modules() if isinstance(part, torch.fx.GraphModule))
    nodes = [node for part in parts for node in part.graph.nodes]
    targets = (getattr(node.target, "__name__", node.target) for node in nodes if _numbered(node))
    return Uses(
        any(map(_follows, nodes)), [f"it names a device by a number ({name})" for name in targets]
    )


def _numbered(node: torch.fx.Node) -> bool:
    """Whether a node is given a device as an integer."""
    if type(node.kwargs.get("device")) is int:
        return True
    if node.op == "call_method" and node.target in ("cuda", "to"):
        return any(type(argument) is int for argument in node.args[1:2])
    name = str(getattr(node.target, "__name__", "")).replace("_", "").lower()
    return node.op == "call_function" and name.endswith("exchangedevice")


def _follows(node: torch.fx.Node) -> bool:
    """Whether a node is given a GPU without a number: the current one."""
    if node.op == "call_method" and node.target == "cuda":
        return len(node.args) == 1 and not isinstance(node.kwargs.get("device"), int)
    moves = getattr(node.target, "__name__", node.target) == "to"
    given = [node.kwargs.get("device"), *(node.args[1:] if moves else ())]
    return any(type(item) in (str, torch.device) and str(item) == "cuda" for item in given)


# ------------------------------------------------------------------ what was recorded


def constants(code: types.CodeType) -> Iterator[Any]:
    """All constants of a code object and the code nested in it, but docstrings."""
    for index, constant in enumerate(code.co_consts):
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if isinstance(constant, types.CodeType):
            yield from constants(constant)
        elif index or not function or not isinstance(constant, str):
            yield constant


def names_in(code: types.CodeType) -> set[str]:
    """The names that a code object and the code nested in it use."""
    nested = (item for item in code.co_consts if isinstance(item, types.CodeType))
    return set(code.co_names).union(*map(names_in, nested))


def mentioned(value: Any) -> set[int]:
    """The ordinals in what was recorded: constants, code, operations of a guard tree."""
    if isinstance(value, types.CodeType):
        return set().union(*map(mentioned, constants(value)))
    if isinstance(value, (Identity, Generated)):
        return mentioned(value.value if isinstance(value, Identity) else value.code)
    if isinstance(value, Held):
        return mentioned(value.seen.facts or ())
    if isinstance(value, (tuple, list, set, frozenset)):
        return set().union(*map(mentioned, value))
    found = ordinal(value)
    return named(value) if found is None else {found}


class Numbering:
    """Which GPUs each captured frame is served on, and how its record writes them."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._ordinals: dict[int, set[int]] = {}  # id of a frame or graph -> what it names
        self._reasons: dict[int, list[str]] = {}  # the same -> why it stays on these
        for frame in recorder.converted:
            sources = self._sources(frame)
            tree = recorder.guards.operations(frame.guard_manager)
            written = set(map(repr, constants(frame.original)))
            made = [item for item in constants(frame.transformed) if repr(item) not in written]
            ordinals = mentioned(tree).union(mentioned(made), *map(_graph_ordinals, sources))
            reasons = self._find_reasons(frame, tree) if ordinals else []
            for owner in (frame, *sources):
                self._ordinals[id(owner)] = ordinals
                self._reasons[id(owner)] = reasons

    def _installed(self, frame: Any) -> Iterator[tuple[str, Any]]:
        """What Dynamo installed that the bytecode of *frame* looks up."""
        for name in sorted(code_names(frame.transformed)):
            entry = self._recorder.installed.get((id(frame.f_globals), name))
            if entry is not None:
                yield name, entry

    def _sources(self, frame: Any) -> list[Any]:
        return [entry.value for _, entry in self._installed(frame) if entry.kind == "plan"]

    def _find_reasons(self, frame: Any, tree: tuple[Any, ...]) -> list[str]:
        traced = frame.traced
        reasons = list(traced.numbers)
        if any(len(op) == 6 and "current_device" in op[4] for op in tree):
            reasons.append("it reads the number of the current device")
        for code in (frame.original, *traced.all_code()):
            if fixed_by_version(code.co_filename):
                continue
            texts = [text for text in constants(code) if mentioned(text)]
            reasons += [f"the source of {code.co_name} names {text!r}" for text in texts]
        for code, *_ in traced.called.values():
            read = {"get_device", "current_device", "current_device_index"} & names_in(code)
            reasons += [f"{code.co_name}, which it calls, uses {name}" for name in sorted(read)]
        for _, entry in self._installed(frame):
            if entry.kind in ("val", "resume", "resume_closure") and mentioned(entry.value):
                reasons.append("a global that Dynamo made for it keeps a device")
        with contextlib.suppress(Unsupported):  # the frame is refused, then
            for module, steps, value in inlined.rows(frame.original, traced, NO_GUARDS)["values"]:
                if named(value):
                    holder = ".".join([module, *(str(step) for kind, step in steps if kind == "a")])
                    reasons.append(f"a value that {holder} holds names a device")
        return list(dict.fromkeys(reasons))

    def of_graph(self, source: Any) -> Numbers:
        """Ordinal -> what to write for it in the plan and the modules of a graph."""
        return self._numbers(source)

    def _numbers(self, owner: Any) -> dict[int, int]:
        ordinals = self._ordinals.get(id(owner), ())
        if len(ordinals) != 1 or self._reasons[id(owner)]:
            return {}
        return dict.fromkeys(ordinals, 0)

    def keep(self, source: Any, reasons: Iterable[str]) -> None:
        """The graph stays on the GPUs that it was compiled for, and so does its frame."""
        if id(source) in self._reasons:
            self._reasons[id(source)] += reasons

    def settle(self, frame: Any, record: dict[str, Any]) -> dict[str, Any]:
        """The finished record of *frame*, with the GPUs it is served on."""
        ordinals = self._ordinals[id(frame)]
        numbers = self._numbers(frame)
        if not ordinals:
            return {**record, "devices": None}
        if not numbers:
            reasons = tuple(dict.fromkeys(self._reasons[id(frame)]))
            return {**record, "devices": (tuple(sorted(ordinals)), reasons)}
        devices = CURRENT if frame.traced.current else ANY
        return {**renumber(record, numbers), "devices": devices}


def _graph_ordinals(source: Any) -> set[int]:
    """The ordinals of the GPUs that the graphs of a GraphSource run on."""
    graphs = (graph for plan in source.plans for graph in (plan.fw, plan.bw))
    return set().union(
        *(graph.device_idxs for graph in graphs if "cuda" in getattr(graph, "device_types", ()))
    )


# ------------------------------------------------------------------ modules


class DeviceNames:
    """Takes the GPUs that a wrapper names out of its code: globals stand for them.

    ``ordinals`` maps such a global to an ordinal, ``values`` to an encoded device or string. Their
    names hold a blank, which no name of a program does, and are not renumbered;
    ``reasons`` says what names a GPU in a way that is not known here.
    """

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.ordinals: dict[str, int] = {}
        self.values: dict[str, Encoded] = {}
        self.reasons: list[str] = []

    def variables(self, function: ast.AST, value_of: Callable[[ast.expr], Any]) -> None:
        """Give the variables of *function* that hold a stream the number that is written for the
        one in their name: ``raw_stream1``."""
        names: dict[str, str] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                call, target = node.value, node.targets[0]
                if isinstance(target, ast.Name) and _takes_ordinal(value_of(call.func)):
                    stem = target.id.rstrip("0123456789")
                    number = target.id.removeprefix(stem)
                    if number == ", ".join(map(ast.unparse, call.args)) and number.isdigit():
                        # No identifier has a blank: none is in the way.
                        found = int(number)
                        names[target.id] = f"{stem} {self.numbers.get(found, found)}"
        for node in ast.walk(function):
            if isinstance(node, ast.Name):
                node.id = names.get(node.id, node.id)

    def call(self, node: ast.Call, callee: Any) -> ast.expr:
        """*node*, a call of *callee*, with a global for the GPU that it names."""
        if callee is torch.device:
            return self._device(node)
        if not _is_cuda(callee):
            return node
        arguments = (*node.args, *(item.value for item in node.keywords))
        numbers = [item for item in arguments if _is_int(item)]
        if not numbers:
            return node
        if _takes_ordinal(callee) and len(numbers) == len(node.args) == 1 and not node.keywords:
            node.args = [self._ordinal(numbers[0].value)]  # type: ignore[attr-defined]
        else:
            self.reasons.append(f"{ast.unparse(node)[:80]} is called by its code")
        return node

    def text(self, node: ast.Constant) -> ast.expr:
        """A constant of the code, or the global that stands for the name of a GPU."""
        if type(node.value) is not str or not named(node.value):
            return node
        text = renumber(node.value, self.numbers)
        kind, _, number = text.partition(":")
        if kind == "cuda" and number.isdigit():
            return self._global(f"cuda {number} name", ("k", text))
        self.reasons.append(f"the text {node.value[:80]!r} is in its code")
        return node

    def parts(self, node: ast.JoinedStr) -> None:
        """Notice a formatted string that names a GPU."""
        if any(named(item.value) for item in node.values if isinstance(item, ast.Constant)):
            self.reasons.append(f"the text {ast.unparse(node)[:80]} is in its code")

    def _ordinal(self, found: int) -> ast.expr:
        number = self.numbers.get(found, found)
        self.ordinals[f"cuda {number}"] = number
        return ast.Name(id=f"cuda {number}", ctx=ast.Load())

    def _device(self, node: ast.Call) -> ast.expr:
        try:
            device = torch.device(
                *map(ast.literal_eval, node.args),
                **{str(item.arg): ast.literal_eval(item.value) for item in node.keywords},
            )
        except (ValueError, TypeError, RuntimeError):
            self.reasons.append(f"{ast.unparse(node)[:80]} is called by its code")
            return node
        if ordinal(device) is None:
            return node
        encoded = renumber(encode(device), self.numbers)
        number = encoded[1].removeprefix("cuda:")
        return self._global(f"cuda {number} device", encoded)

    def _global(self, name: str, encoded: Encoded) -> ast.expr:
        self.values[name] = encoded
        return ast.Name(id=name, ctx=ast.Load())


def _is_int(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_cuda(callee: Any) -> bool:
    module, name = getattr(callee, "__module__", None), getattr(callee, "__name__", "")
    return str(module).startswith(("torch.cuda", "torch.accelerator")) or name.startswith(
        torch_api.tables().CUDA_FUNCTIONS
    )


def _takes_ordinal(callee: Any) -> bool:
    return getattr(callee, "__name__", "") in torch_api.tables().TAKES_ORDINAL
