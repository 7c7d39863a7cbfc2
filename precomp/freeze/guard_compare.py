"""Compares a rebuilt guard tree with the original it was recorded from."""

from __future__ import annotations

from collections import Counter
from typing import Any

from precomp import torch_api
from precomp.freeze.guard_tree import (
    ADDRESS,
    MANAGERS,
    PROBE_TEXT,
    RELATIONS_TEXT,
    ROOT,
    Identity,
    Tree,
)
from precomp.freeze.store import Disproved

Leaf = tuple[str, tuple[str, ...]]


def _named(leaves: list[Any]) -> list[Leaf]:
    """Kind and text of each guard, without the probes that precomp itself put there."""
    named = [(type(leaf).__name__, tuple(leaf.verbose_code_parts())) for leaf in leaves]
    return [leaf for leaf in named if leaf[1] != (PROBE_TEXT,)]


def _leaves(manager: Any) -> list[Leaf]:
    return _named(manager.get_leaf_guards())


def _children(manager: Any) -> list[tuple[str, Any]]:
    if isinstance(manager, torch_api.serve().DictGuardManager):
        found = [
            (f"{index}{role}", child)
            for index, pair in sorted(manager.get_key_value_managers().items())
            for role, child in zip("kv", pair, strict=True)
            if child is not None
        ]
    else:
        found = []
    found += [
        (ADDRESS.sub("0x", accessor.repr()), child)
        for accessor, child in zip(
            manager.get_accessors(), manager.get_child_managers(), strict=True
        )
    ]
    # C++ reorders children by how often they failed.
    return sorted(found, key=lambda pair: (pair[1].get_source(), pair[0]))


def compare_trees(tree: Tree, original: Any, rebuilt: Any) -> None:
    """Both trees node by node; Disproved names the first difference."""
    replaced, moved = _replaced_leaves(tree)
    todo = [(original, rebuilt)]
    while todo:
        a, b = todo.pop()
        node = tree.numbers.get(id(a), -1)
        where = "the frame" if node == ROOT else str(a.get_source())
        if node < 0:
            raise Disproved(f"{where}: a guard that was not recorded")
        registry = node in tree.registries
        if (type(a) is not type(b) and not registry) or (
            node != ROOT and a.is_guarded_value_immutable() != b.is_guarded_value_immutable()
        ):
            raise Disproved(f"{where}: the rebuilt guard manager is of another kind")
        theirs_here = _leaves(b)
        if registry:  # torch's dict manager checks the type without a leaf
            theirs_here = [leaf for leaf in theirs_here if leaf[0] != "TYPE_MATCH"]
        _compare_leaves(where, _leaves(a), theirs_here, replaced.get(node, Counter()))
        mine = [(k, c) for k, c in _children(a) if tree.numbers.get(id(c)) not in tree.constant]
        theirs = _children(b)
        if [("" if registry else k, c.get_source()) for k, c in mine] != [
            ("" if registry else k, c.get_source()) for k, c in theirs
        ]:
            raise Disproved(f"{where}: the rebuilt guard manager has other accessors")
        todo += [(x, y) for (_, x), (_, y) in zip(mine, theirs, strict=True)]
    before = [text for _, text in _named(original.get_epilogue_lambda_guards())]
    after = [text for _, text in _named(rebuilt.get_epilogue_lambda_guards())]
    if after != before + moved:
        raise Disproved("the rebuilt guards have another epilogue")


def _gone(text: tuple[str, ...]) -> tuple[str, ...]:
    """Stands in a Counter for a guard that another one at the end of the root replaces."""
    return ("gone", *text)


def _replaced_leaves(
    tree: Tree,
) -> tuple[dict[int, Counter[tuple[str, ...]]], list[tuple[str, ...]]]:
    """Per node the texts of leaves that another kind of guard stands for (first item "gone": at
    the end of the root), and the text of the guard there."""
    replaced: dict[int, Counter[tuple[str, ...]]] = {}
    relations = False
    for op in tree.ops:
        if op[0] in MANAGERS or not op[2]:
            continue
        first, here = op[2][0], replaced.setdefault(op[1], Counter())
        if isinstance(first, Identity):
            here[_gone(op[2][1])] += 1
            relations = True
        elif type(first) is tuple and first[:1] in (("late",), ("nodes",), ("types",)):
            here[op[2][1]] += 1
    return replaced, [(RELATIONS_TEXT,)] if relations else []


def _compare_leaves(
    where: str,
    mine: list[Leaf],
    theirs: list[Leaf],
    replaced: Counter[tuple[str, ...]],
) -> None:
    expected = []
    left = Counter(replaced)
    for name, parts in mine:
        if name in ("ID_MATCH", "DICT_VERSION", "LENGTH_CHECK"):
            if left[_gone(parts)] > 0:
                left[_gone(parts)] -= 1
                continue
            if left[parts] > 0:
                left[parts] -= 1
                name = "LAMBDA_GUARD"
        expected.append((name, parts))
    if sorted(expected) != sorted(theirs):
        raise Disproved(f"{where}: the rebuilt guard manager has other guards")
