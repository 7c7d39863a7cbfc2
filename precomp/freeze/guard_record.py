"""Turns what was recorded of a guard tree into its tape (docs/internals.md, section 4.2)."""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from precomp import guard_functions
from precomp.freeze import live
from precomp.freeze.guard_arguments import is_immutable_value, is_value
from precomp.freeze.guard_tree import (
    ADDRESS,
    LEAVES,
    MANAGERS,
    RELATIONS,
    RELATIONS_TEXT,
    ROOT,
    Generated,
    Identity,
    Tree,
)
from precomp.freeze.store import Unsupported
from precomp.freeze.values import Encoded, describe, encode, encode_code

_NUMBER = re.compile(r"(?<![\w.])\d{6,}(?![\w.])|(?<=_)\d{6,}(?=_c)")
_DICT_VERSION = re.compile(r"^(___dict_version\(.+\)) == \d+$")
_COMPILE_ID = re.compile(r"(?<=_ID_c)\[?\d+/\d+(_\d+)?\]?")
_REPR = re.compile(r"^(___check_obj_id\(.+, ID\)), type=.*", re.DOTALL)  # torch 2.11; has paths


def make_record(
    tree: Tree, rename: dict[str, str], canonical: Callable[[str], str]
) -> dict[str, Any]:
    """The tape of *tree*; *canonical* takes out of a text what differs between two processes.

    Raises Unsupported with all reasons, one a line.
    """
    problems = list(tree.problems)
    texts = _Texts(rename, canonical)
    numbers = _numbering(tree)
    table = live.Table(tree)
    ops: list[tuple[Any, ...]] = []
    identities: list[tuple[int, Any]] = []
    for op in table.ops:
        if op[0] in MANAGERS:
            ops.append(_final_manager(op, tree, numbers, rename, texts))
        elif op[0] in RELATIONS:
            ops.append(_final_relation(op, numbers, texts, problems))
        elif op[2] and isinstance(op[2][0], Identity):
            identities.append((op[1], op[2][0].value))
        else:
            ops.append((op[0], numbers[op[1]], _final_arguments(op, rename, texts)))
    try:
        if identities:
            ops.append(_object_relations(tree, identities, rename))
        found = table.record(numbers)
    except Unsupported as error:
        problems.append(str(error))
    if problems:
        raise Unsupported("\n".join(dict.fromkeys(map(texts, problems))))
    return {
        "nodes": len(numbers),
        "ops": tuple(ops),
        "tls": tree.tls,
        "device": tree.device,
        "live": found,
    }


def _object_relations(
    tree: Tree, identities: list[tuple[int, Any]], rename: dict[str, str]
) -> tuple[Any, ...]:
    """One guard at the end of the root for all objects under id guards that have no name."""
    typed = {op[1] for op in tree.ops if op[0] == "add_type_match_guard"}
    groups: dict[int, int] = {}
    out = []
    for node, value in identities:
        if not is_value(value) and node not in typed:
            raise Unsupported(
                f"{tree.source(node)}: identity of {describe(value)}, which is guarded by "
                "nothing else"
            )
        equal = encode(value) if is_immutable_value(value) else None
        group = groups.setdefault(id(value), len(groups))
        out.append((_path(tree, node, rename), group, encode(type(value)), equal))
    relations = (("rel", tuple(out)), (RELATIONS_TEXT,))
    return ("add_epilogue_lambda_guard", ROOT, relations)


def names_of_globals(code: types.CodeType) -> Iterator[str]:
    """The names x in G['x'] of a generated guard function."""
    previous = None
    for instruction in dis.get_instructions(code):
        if previous == "G" and isinstance(instruction.argval, str):
            yield instruction.argval
        previous = instruction.argval if instruction.opname == "LOAD_GLOBAL" else None


def _path(tree: Tree, node: int, rename: dict[str, str]) -> Encoded:
    """How to read the value of *node* from the frame, for a guard at the end of the root."""
    made = {op[2]: op for op in tree.ops if op[0] in MANAGERS}
    path = []
    at = node
    while at != ROOT:
        name, parent, _, key, _, _ = made[at]
        if name != "globals_dict_manager" and name not in guard_functions.ACCESSORS:
            raise Unsupported(f"{tree.source(node)}: an identity that is read by {name}")
        path.append((name, _renamed_key(key, rename) if parent == tree.globals_node else key))
        at = parent
    return tuple(reversed(path))


def _renamed_key(key: Any, rename: dict[str, str]) -> Any:
    return ("k", rename.get(key[1], key[1])) if key is not None and key[0] == "k" else key


def names_a_global(op: tuple[Any, ...], tree: Tree) -> bool:
    """Whether the key of a manager is a name in the frame's globals."""
    keyed = op[0] in ("dict_getitem_manager", "global_weakref_manager")
    return keyed and op[1] == tree.globals_node


def _numbering(tree: Tree) -> dict[int, int]:
    """New numbers of the nodes that stay on the tape."""
    stay = (node for node in range(len(tree.wrappers)) if node not in tree.constant)
    return {node: number for number, node in enumerate(stay)}


def _final_manager(
    op: tuple[Any, ...],
    tree: Tree,
    numbers: dict[int, int],
    rename: dict[str, str],
    texts: _Texts,
) -> tuple[Any, ...]:
    name, parent, node, key, source, category = op
    if names_a_global(op, tree):
        key = _renamed_key(key, rename)
    return name, numbers[parent], numbers[node], key, texts(source), category


def _final_relation(
    op: tuple[Any, ...], numbers: dict[int, int], texts: _Texts, problems: list[str]
) -> tuple[Any, ...]:
    def final(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(final, value))
        if type(value) is str:
            return texts(value)
        if value not in numbers:
            problems.append("a relation with a value inside torch._dynamo")
        return numbers.get(value, 0)

    return op[0], -1, final(op[2])


def _final_arguments(op: tuple[Any, ...], rename: dict[str, str], texts: _Texts) -> Any:
    name, _, values = op
    out = []
    for letter, value in zip(LEAVES[name].replace("u", ""), values, strict=True):
        if letter == "w":
            value = tuple(map(texts, value))
        elif isinstance(value, Generated):
            value = _final_generated(value.code, rename)
        out.append(value)
    if name == "add_tensor_match_guard" and out[3] is not None:
        out[3] = ("k", texts(out[3][1]))  # the name of the tensor, for messages
    return tuple(out)


def _final_generated(code: types.CodeType, rename: dict[str, str]) -> Encoded:
    names = set(names_of_globals(code))
    if any(rename.get(name, "").startswith(live.WEAK) for name in names):
        raise Unsupported("a shape guard that reads a weak reference")
    constants = tuple(
        rename.get(item, item) if isinstance(item, str) and item in names else item
        for item in code.co_consts
    )
    return ("gfn", encode_code(code.replace(co_consts=constants)), code.co_freevars)


class _Texts:
    """Renames global names in sources and verbose parts."""

    def __init__(self, rename: dict[str, str], canonical: Callable[[str], str]) -> None:
        names = sorted(rename, key=len, reverse=True)
        self._pattern = (
            re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, names)) + r")(?!\w)")
            if names
            else None
        )
        self._rename = rename
        self._canonical = canonical
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        found = self._known.get(text)
        if found is None:
            found = self._canonical(text)
            if self._pattern is not None:
                found = self._pattern.sub(lambda match: self._rename[match[0]], found)
            self._known[text] = found
        return found


def canonical_text(text: str, tree: Tree, objects: dict[int, Any]) -> str:
    """A text without what differs between two processes: ids, addresses, order of sets, the user's
    source line."""
    text = tree.stable.get(text, text)
    text = text.partition("  # ")[0].rstrip()
    text = _DICT_VERSION.sub(r"\1 is unchanged", text)
    text = ADDRESS.sub("0x", text)
    text = _NUMBER.sub(lambda match: "ID" if int(match[0]) in objects else match[0], text)
    return _COMPILE_ID.sub("", _REPR.sub(r"\1", text))


def holds_set(value: Any) -> bool:
    if isinstance(value, (set, frozenset)):
        return True
    return isinstance(value, (tuple, list)) and any(map(holds_set, value))


def stable_text(value: Any) -> str:
    """repr() with the items of sets in order."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(stable_text, value))) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(stable_text, value)) + ")"
    return repr(value)
