from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import precomp
from precomp import _core


def code(source: str, filename: str = "a.py", line: int = 0):
    module = compile("\n" * line + source, filename, "exec")
    return next(c for c in module.co_consts if hasattr(c, "co_code"))


BASE = "def f(a, b=2, *, c=3):\n    return [a + b, 'x', (1, 2.5), a in {1, 2}]\n"


def test_is_a_sha256_in_hex() -> None:
    digest = _core.code_digest(code(BASE))
    assert len(digest) == 64 and int(digest, 16) >= 0


def test_file_and_lines_do_not_matter() -> None:
    assert _core.code_digest(code(BASE)) == _core.code_digest(code(BASE, "/other/b.py", 40))


@pytest.mark.parametrize(
    "other",
    [
        BASE.replace("'x'", "'y'"),
        BASE.replace("def f", "def g"),
        BASE.replace("a + b", "a - b"),
        BASE.replace("(1, 2.5)", "(True, 2.5)"),
        BASE.replace("(1, 2.5)", "(1.0, 2.5)"),
        BASE.replace("(1, 2.5)", "(1, -2.5)"),
        BASE.replace("{1, 2}", "{1, 3}"),
        BASE.replace("{1, 2}", "(1, 2)"),
        BASE.replace("*, c", "c"),
        BASE.replace("c=3", "d=3"),
        BASE.replace("[a + b", "[a + b, lambda: 1"),
    ],
)
def test_content_matters(other: str) -> None:
    assert _core.code_digest(code(BASE)) != _core.code_digest(code(other))


def test_nested_code_matters() -> None:
    one = code("def f():\n    return lambda: 1\n")
    two = code("def f():\n    return lambda: 2\n")
    assert _core.code_digest(one) != _core.code_digest(two)


def test_zero_and_minus_zero_differ() -> None:
    digests = {_core.code_digest(code(f"def f():\n    return {z}\n")) for z in ("0.0", "-0.0")}
    assert len(digests) == 2


def test_order_of_a_frozenset_does_not_matter() -> None:
    c = code(BASE)
    digests = {
        _core.code_digest(c.replace(co_consts=(*c.co_consts, frozenset(items))))
        for items in (["a", "b", "c"], ["c", "b", "a"])
    }
    assert len(digests) == 1


def test_running_the_code_does_not_matter() -> None:
    scope: dict = {}
    exec(BASE, scope)
    before = _core.code_digest(scope["f"].__code__)
    for _ in range(1000):
        scope["f"](1)
    assert _core.code_digest(scope["f"].__code__) == before


def test_hashing_of_the_process_does_not_matter() -> None:
    program = (
        "from precomp import _core\n"
        'c = compile(\'x in {"a", "b", "c", "d", "e"}\', \'\', \'eval\')\n'
        "print(_core.code_digest(c))"
    )
    digests = set()
    for seed in ("1", "2", "3"):
        env = os.environ | {"PYTHONHASHSEED": seed}
        env["PYTHONPATH"] = str(Path(precomp.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_constants_with_a_stable_text_are_taken() -> None:
    c = code(BASE)
    digests = {_core.code_digest(c.replace(co_consts=(*c.co_consts, k))) for k in (int, str)}
    assert len(digests) == 2


def test_constant_with_an_address_is_refused() -> None:
    c = code(BASE)
    with pytest.raises(TypeError, match="no stable text"):
        _core.code_digest(c.replace(co_consts=(*c.co_consts, object())))


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a code object, got int"):
        _core.code_digest(3)


def test_deep_constants_do_not_overflow_the_stack() -> None:
    value: tuple = ()
    for _ in range(5_000):
        value = (value,)
    c = code(BASE)
    with pytest.raises(RecursionError):
        _core.code_digest(c.replace(co_consts=(value,)))
