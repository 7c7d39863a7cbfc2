"""Checks in a process of its own that decoding keeps nothing. Prints OK."""

import conftest
import test_codec

from precomp import _core
from precomp.freeze.values import encode, encode_code

GOOD = [encode(value) for value in [*test_codec.EQUAL, *test_codec.SAME]]
BAD = [
    ("t", (("k", 1), ("zz",))),
    ("l", (("k", 1), ("zz",))),
    ("d", ((("k", 1), ("zz",)),)),
    ("d", ((("l", ()), ("k", 1)),)),
    ("s", (("l", ()),)),
    ("pt", ("P", "builtins", "len", "x"), ("k", 1), ("k", 1)),
    ("nw", ("P", "builtins", "len", encode(len)[3]), ("t", ()), ("d", ())),
    ("P", "math", "no", ""),
    ("P", "math", "sqrt", "another kind"),
    ("C", "functools", (("a", "partial"),), "digest"),
    ("C", "functools", (("a", "wraps"), ("f", "__code__")), "digest"),
    ("PF", "functools", "wraps", "digest"),
    ("PF", "math", "sqrt", "digest"),
    ("en", encode(test_codec.Color), "BLUE", None),
    ("en", encode(test_codec.Color), "RED", ("k", 2)),
    ("FS", encode(int)),
    ("np", "no dtype", b""),
]
CODE = encode_code(test_codec.outer_code())


def good() -> None:
    for encoded in GOOD:
        _core.decode(encoded)
    _core.decode_code(CODE, "x.py", 3)


def bad() -> None:
    for encoded in BAD:
        try:
            _core.decode(encoded)
        except (ValueError, TypeError, _core.Stale):
            continue
        raise AssertionError(encoded)


for work in (good, bad):

    def many(work=work) -> None:
        for _ in range(100):
            work()

    left = conftest.blocks_left(many)
    assert left < 80, (work, left)  # a leak leaves one block a round at least
print("OK")
