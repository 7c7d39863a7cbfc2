"""Functions and code that no module leads to: content decides once, then identity."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

from precomp import _core, guard_functions, torch_api
from precomp.freeze.guard_arguments import encode_argument
from precomp.freeze.values import Unencodable

torch_api.serve()


def make(body: str = "a + b", defaults: str = "1", keyword: str = "2", cell: Any = None) -> Any:
    """A function without a place in a module."""
    inner = f"lambda a, b={defaults}, *, k={keyword}: {body}"
    scope: dict[str, Any] = {}
    exec(f"def outer(cell):\n    return {inner}", scope)
    return scope["outer"](cell)


def guard_on(function: Any) -> Callable[[Any], bool]:
    """The guard that stands for the identity of *function*, through its encoding."""
    number = id(function)
    encoded = encode_argument("add_id_match_guard", "i", number, (), {number: function})
    assert encoded[0] == "late"
    return guard_functions.decode_function(encoded, {})


def test_equal_content_is_accepted_once_and_then_only_itself() -> None:
    guard, first, second = guard_on(make()), make(), make()
    assert guard(first) and guard(first)
    assert not guard(second)
    assert guard(first)


DIFFERENT = {
    "body": lambda: make("a - b"),
    "defaults": lambda: make(defaults="3"),
    "equal default of another type": lambda: make(defaults="True"),
    "equal default of a third type": lambda: make(defaults="1.0"),
    "equal keyword of another type": lambda: make(keyword="2.0"),
    "keyword defaults": lambda: make(keyword="3"),
    "closure": lambda: make("a + b + cell", cell=1),
    "constant": lambda: make("a + b + 1"),
    "no function": lambda: make,
    "its code": lambda: make().__code__,
    "nothing": lambda: None,
}


@pytest.mark.parametrize("change", DIFFERENT)
def test_other_content_is_rejected(change: str) -> None:
    guard = guard_on(make())
    assert not guard(DIFFERENT[change]())
    assert guard(make())


def test_a_function_with_attributes_is_rejected() -> None:
    guard, function = guard_on(make()), make()
    function.mark = 1
    assert not guard(function)


@pytest.mark.parametrize("kind", ["closure", "attributes"])
def test_what_content_does_not_tell_is_refused(kind: str) -> None:
    function = make("a + cell", cell=[1]) if kind == "closure" else make()
    if kind == "attributes":
        function.mark = 1
    with pytest.raises(Unencodable, match="which no module leads to"):
        guard_on(function)


def test_code_is_told_by_its_content() -> None:
    guard, first, second = guard_on(make().__code__), make().__code__, make().__code__
    assert not guard(make("a - b").__code__) and not guard(make())
    assert guard(first) and not guard(second)


def test_a_mutable_default_is_compared_by_content() -> None:
    guard = guard_on(make(defaults="[1, {2: 3}]"))
    assert not guard(make(defaults="[1, {2: 4}]"))
    assert guard(make(defaults="[1, {2: 3}]"))


def test_the_digest_ignores_where_the_code_is() -> None:
    function = make()
    moved = function.__code__.replace(co_filename="/elsewhere.py", co_firstlineno=900)
    assert _core.code_digest(moved) == _core.code_digest(function.__code__)
    assert (
        guard_on(function)(types.FunctionType(moved, {}, "x", (1,), None)) is False
    )  # without the keyword default


@pytest.mark.parametrize(
    ("captured", "found", "same"),
    [
        ("float('nan')", "float('nan')", True),
        ("0.0", "-0.0", False),
        ("(1, [True])", "(1, [1])", False),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", False),
        ("{1, 2}", "{2, 1}", True),
        ("frozenset({1})", "frozenset({True})", False),
    ],
)
def test_defaults_are_compared_with_their_types(captured: str, found: str, same: bool) -> None:
    assert guard_on(make(defaults=captured))(make(defaults=found)) is same
