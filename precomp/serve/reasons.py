"""Says why a guard tree rejects a frame: the failing guard, what it expected and what it found.

Only a miss needs this module; it is imported then.
"""

from __future__ import annotations

import ast
import json
import re
import types
from typing import Any

from precomp import guard_words, torch_api
from precomp.guard_functions import closure_variables
from precomp.value_words import of_object, of_value


class _Missing:
    def __repr__(self) -> str:
        return "nothing there"


_MISSING = _Missing()


class _Frame:
    """The frame a tree rejected: reads the source texts of guards."""

    def __init__(
        self, root: Any, f_locals: Any, f_globals: dict[str, Any], tape: dict[str, Any]
    ) -> None:
        self.root = root
        self.tape = tape
        self.scope = {**closure_variables(), "L": f_locals, "G": f_globals}

    def read(self, source: str) -> Any:
        """The value of a guard's source text; _MISSING when the frame has none."""
        try:
            return eval(source, self.scope)
        except Exception:  # noqa: BLE001 - code of the user may fail in any way
            return _MISSING

    def wanted(self, source: str) -> str:
        """The object that a guard by identity on *source* wants, in words."""
        ops = self.tape["ops"]
        nodes = {op[2] for op in ops if op[0].endswith("_manager") and op[4] == source}
        for op in ops:
            if op[0] == "add_id_match_guard" and op[1] in nodes:
                return of_object(op[2][0])
            if op[0] == "add_lambda_guard" and op[1] in nodes and op[2][0][0] == "late":
                return of_value(op[2][0])
        return ""

    def leaves(self, source: str | None) -> list[str]:
        """The texts of the guards on one source (None: on the frame as a whole)."""
        todo = [self.root]
        while todo:
            manager = todo.pop()
            if source is None or manager.get_source() == source:
                return [
                    text for leaf in manager.get_leaf_guards() for text in leaf.verbose_code_parts()
                ]
            todo += manager.get_child_managers()
            if isinstance(manager, torch_api.serve().DictGuardManager):
                pairs = manager.get_key_value_managers().values()
                todo += [child for pair in pairs for child in pair if child is not None]
        return []


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _show(value: Any) -> str:
    if isinstance(value, types.CodeType):
        place = f"{value.co_filename.rpartition('/')[2]}:{value.co_firstlineno}"
        return f"code {value.co_name} ({place})"
    if hasattr(value, "untyped_storage"):
        return f"{type(value).__name__} of shape {list(value.shape)}"
    text = _ADDRESS.sub("", repr(value))
    return text if len(text) <= 120 else text[:117] + "..."


_TENSOR = re.compile(r"^tensor '(?P<source>.+)' (?P<what>.+)$", re.DOTALL)
_CHECK_TENSOR = re.compile(
    r"^check_tensor\(.*?(?P<dtype>torch\.\w+), device=(?P<device>[^,]+), "
    r"requires_grad=(?P<requires_grad>\w+), size=(?P<size>\[.*?\]), stride=(?P<stride>\[.*\])\)$",
    re.DOTALL,
)
_NOT_TENSOR = re.compile(
    r"^expected type of '(?P<source>.+)' to be .+, '? ?but found (?P<found>.+)$",
    re.DOTALL,
)
_CONTAINS = re.compile(
    r"^(?P<no>not )?___dict_contains\((?P<key>.+?), (?P<source>[LG]\[.+)\)$", re.DOTALL
)
_MODE_STACK = "add_torch_function_mode_stack_guard"
_MODES = re.compile(r"^___check_torch_function_mode_stack\(\)$")
_DEVICE = re.compile(r"^utils_device\.CURRENT_DEVICE == (?P<expected>.+)$")
_ACCESSOR = re.compile(r"^\w+GuardAccessor: (?P<what>.+) on (?P<source>[LG]\[.+)$", re.DOTALL)
_KEY_ERROR = re.compile(r"^KeyError on (?P<source>[LG]\[.+)$", re.DOTALL)
_DUPLICATE = re.compile(r"^Duplicate tensor found where not expected!")
_RELATIONS = re.compile(r"^identity relations of objects$")
_STATE = re.compile(r"^GLOBAL_STATE changed: (?P<names>.*)$", re.DOTALL)
_TYPE = re.compile(r"^___check_type_id\((?P<source>.+), ID\), type=(?P<expected>.+)$", re.DOTALL)
_OBJECT = re.compile(
    r"^_{2,3}check_obj_id\((?P<source>.+), ID\)(?:, type=(?P<expected>.+))?$", re.DOTALL
)
_LENGTH = re.compile(
    r"^(?:(?:frozen)?set\.__)?len(?:__)?\((?P<source>.+)\) [!=]= (?P<expected>\d+)$", re.DOTALL
)
_EMPTY = re.compile(r"^not (?P<source>[LG]\[.+)$", re.DOTALL)
_NONE = re.compile(r"^(?P<source>[LG]\[.+?) is (?P<expected>None|not None)$", re.DOTALL)
_EQUALS = re.compile(r"^(?P<source>[LG]\[.*?) == (?P<expected>.+)$", re.DOTALL)


def _tensor_reason(frame: _Frame, match: re.Match[str]) -> str:
    source, tensor = match["source"], frame.read(match["source"])
    texts = [_CHECK_TENSOR.match(text) for text in frame.leaves(source)]
    expected = next((found for found in texts if found is not None), None)
    if expected is None or not hasattr(tensor, "dtype"):
        return match[0]
    # A dimension that may vary is written as None in the guard.
    facts = [
        ("dtype", expected["dtype"], str(tensor.dtype)),
        ("requires_grad", expected["requires_grad"], str(tensor.requires_grad)),
        ("shape", expected["size"].replace("None", "any"), str(list(tensor.shape))),
        ("strides", expected["stride"].replace("None", "any"), str(list(tensor.stride()))),
    ]
    order = ("dtype", "requires_grad", "rank", "size", "stride")
    kind = next((word for word in order if word in match["what"]), "")
    wanted = {"rank": "shape", "size": "shape", "stride": "strides"}.get(kind, kind)
    for name, before, now in facts:
        if name == wanted:
            return f"{source}: {name} expected {before}, found {now}"
    return match[0]


def _not_tensor_reason(frame: _Frame, match: re.Match[str]) -> str:
    prefix = f"check_tensor({match['source']}, "
    for text in frame.leaves(match["source"]):
        if text.startswith(prefix):
            expected = text.removeprefix(prefix).partition(",")[0]
            return f"type of {match['source']}: expected {expected}, found {match['found']}"
    return match[0]


def _contains_reason(frame: _Frame, match: re.Match[str]) -> str:
    value = frame.read(f"{match['source']}[{match['key']}]")
    wanted = "nothing" if match["no"] else "a value"
    return f"{match['source']}[{match['key']}]: expected {wanted}, found {_show(value)}"


def _modes_reason(frame: _Frame, match: re.Match[str]) -> str:
    names = torch_api.serve()
    modes = [names.function_mode_at(i) for i in range(names.function_mode_count())]
    found = [type(mode).__qualname__ for mode in modes]
    stack = next((op[2][0] for op in frame.tape["ops"] if op[0] == _MODE_STACK), None)
    expected = "others" if stack is None else [of_value(mode).rpartition(".")[2] for mode in stack]
    return f"torch function modes (torch.device contexts, ...): expected {expected}, found {found}"


def _device_reason(frame: _Frame, match: re.Match[str]) -> str:
    found = torch_api.serve().device_module.CURRENT_DEVICE
    return f"default device: expected {match['expected']}, found {found!r}"


def _accessor_reason(frame: _Frame, match: re.Match[str]) -> str:
    what, found = match["what"], _show(frame.read(match["source"]))
    return f"{match['source']}: {what[:1].lower()}{what[1:]}, found {found}"


def _key_reason(frame: _Frame, match: re.Match[str]) -> str:
    return f"{match['source']}: expected a value, found nothing there"


def _duplicate_reason(frame: _Frame, match: re.Match[str]) -> str:
    """Tensors that are one, where the captured frame had several."""
    for op in frame.tape["ops"]:
        if op[0] == "install_no_tensor_aliasing_guard":
            seen: dict[int, str] = {}
            for source in op[2][1]:
                other = seen.setdefault(id(frame.read(source)), source)
                if other != source:
                    return f"expected two tensors, found {other} is {source}"
    return match[0]


def _relations_reason(frame: _Frame, match: re.Match[str]) -> str:
    return "objects whose identity the program uses are others than in the first accepted call"


def _differences(name: str, before: Any, now: Any) -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        inner = (_differences(f"{name}.{key}", before[key], now.get(key)) for key in before)
        return [text for texts in inner for text in texts]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        inner = (_differences(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(pairs))
        return [text for texts in inner for text in texts]
    if name == "default_dtype":
        before, now = guard_words.dtype_name(before), guard_words.dtype_name(now)
    return [] if before == now else [f"{name} expected {before}, found {now}"]


def _state_reason(frame: _Frame, match: re.Match[str]) -> str:
    """The parts of the global state that differ, each with both values."""
    now = json.loads(torch_api.serve().GlobalStateGuard().__getstate__())
    for text in frame.leaves(None):
        before = text.partition("___check_global_state() against ")[2]
        if before:
            captured = json.loads(before)
            found = [
                text
                for name in captured
                for text in _differences(name, captured[name], now.get(name))
            ]
            return f"global state: {', '.join(found)}" if found else match[0]
    return match[0]


def _type_reason(frame: _Frame, match: re.Match[str]) -> str:
    value = frame.read(match["source"])
    found = value if value is _MISSING else type(value)
    return f"type of {match['source']}: expected {match['expected']}, found {found!r}"


def _object_reason(frame: _Frame, match: re.Match[str]) -> str:
    wanted = frame.wanted(match["source"])
    if not wanted:
        wanted = "the captured object" + (f" of {match['expected']}" if match["expected"] else "")
    return f"{match['source']}: expected {wanted}, found {_show(frame.read(match['source']))}"


def _length_reason(frame: _Frame, match: re.Match[str]) -> str:
    value = frame.read(match["source"])
    found = len(value) if hasattr(value, "__len__") else _show(value)
    expected = match.groupdict().get("expected") or 0
    return f"length of {match['source']}: expected {expected}, found {found}"


def _none_reason(frame: _Frame, match: re.Match[str]) -> str:
    found = _show(frame.read(match["source"]))
    return f"{match['source']} is {match['expected']}, found {found}"


def _equal_reason(frame: _Frame, match: re.Match[str]) -> str:
    expected = match["expected"].partition(" (HINT")[0]
    return f"{match['source']} == {expected}, found {_show(frame.read(match['source']))}"


_REASONS = (
    (_TENSOR, _tensor_reason),
    (_NOT_TENSOR, _not_tensor_reason),
    (_CONTAINS, _contains_reason),
    (_MODES, _modes_reason),
    (_DEVICE, _device_reason),
    (_ACCESSOR, _accessor_reason),
    (_KEY_ERROR, _key_reason),
    (_DUPLICATE, _duplicate_reason),
    (_RELATIONS, _relations_reason),
    (_STATE, _state_reason),
    (_TYPE, _type_reason),
    (_OBJECT, _object_reason),
    (_LENGTH, _length_reason),
    (_EMPTY, _length_reason),
    (_NONE, _none_reason),
    (_EQUALS, _equal_reason),
)


def _sources(node: ast.AST) -> list[str]:
    """The longest parts of an expression that read from L or G."""
    top = node
    while isinstance(top, (ast.Subscript, ast.Attribute, ast.Call)):
        top = top.func if isinstance(top, ast.Call) else top.value
    if isinstance(top, ast.Name) and top.id in ("L", "G") and top is not node:
        return [ast.unparse(node)]
    return [source for child in ast.iter_child_nodes(node) for source in _sources(child)]


def _expression_reason(frame: _Frame, text: str) -> str:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return text
    found = [f"{source} = {_show(frame.read(source))}" for source in dict.fromkeys(_sources(tree))]
    return f"{text}, found {', '.join(found)}" if found else text


def _reason(frame: _Frame, text: str) -> str:
    for pattern, say in _REASONS:
        match = pattern.match(text)
        if match is not None:
            return say(frame, match)
    return _expression_reason(frame, text)


def explain(
    root: Any,
    f_locals: Any,
    f_globals: dict[str, Any] | None = None,
    record: dict[str, Any] | None = None,
) -> str:
    """Why *root* rejects the frame: the failing guard with the expected and the found value.

    Empty when it accepts. *f_globals* lets values of globals be read; *record*, the frame record of
    *root*, objects and modules be named.
    """
    result = root.check_verbose(f_locals)
    if result.result:
        return ""
    record = record or {"globals": (), "tape": {"ops": (), "device": ("k", None)}}
    frame = _Frame(root, f_locals, f_globals or {}, record["tape"])
    texts = list(result.verbose_code_parts)
    if len(texts) > 1:
        # One guard with several parts: those that do not hold now, if that can be told.
        texts = [text for text in texts if frame.read(text) is False] or texts
    reasons = "; ".join(_reason(frame, text) for text in texts)
    return guard_words.tidy(reasons, guard_words.modules_of(record))
