"""Plain data: equal records give equal bytes, and what is not plain is named by its path."""

import os
import subprocess
import sys

import pytest

from precomp import data


def test_records_come_back_with_lists_as_tuples():
    record = {"b": [1, 2.5, None, True], "a": {"x": b"\x00", "y": ("s", ...)}, "c": 1 + 2j}
    again = data.loads(data.dumps(record))
    assert again == {"a": {"x": b"\x00", "y": ("s", ...)}, "b": (1, 2.5, None, True), "c": 1 + 2j}


def test_bytes_do_not_depend_on_key_order_sharing_or_interning():
    shared = "shared text with spaces"
    one = {"k": (shared, shared), "a": 1}
    apart = "".join(["shared text", " with spaces"])
    other = {"a": 1, "k": (apart, "".join(list(apart)))}
    assert data.dumps(one) == data.dumps(other)


def test_bytes_do_not_depend_on_the_hash_seed():
    code = (
        "import sys; from precomp import data; "
        "sys.stdout.buffer.write(data.dumps({'b': 1, 'a': ('x',)}))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"a": [1, {2}]}, r"\$\.a\[1\]: expected plain data, found builtins\.set"),
        ({1: 2}, r"\$: expected a str key, found int 1"),
        ((object(),), r"\$\[0\]: expected plain data, found builtins\.object"),
        (type("Text", (str,), {})("x"), r"\$: expected plain data, found .*Text"),
    ],
)
def test_what_is_not_plain_is_named_by_its_path(record, message):
    with pytest.raises(TypeError, match=message):
        data.dumps(record)
