"""Records of compiler functions taken at capture."""

from __future__ import annotations

from typing import Any

from precomp import data

CHECKS = """
import pytest
from precomp import torch_api
from precomp.errors import PrecompError
from precomp.freeze import helpers
from precomp.freeze.store import Unsupported
from precomp.serve.standin_build import unpack_code

def nested(x, y=2):
    \"\"\"Text.\"\"\"
    def inner(z):
        return x if z in {"a", "b", "c"} else (1.5, 2j, b"c", None, ..., ("t", frozenset({1})))
    return [inner(i) for i in y]

code = unpack_code(helpers.pack_code(nested.__code__), nested.__code__.co_filename)
assert code == nested.__code__

table = torch_api.tables().STANDIN_WRITTEN
name = "torch._dynamo.decorators:allow_in_graph"
good = table[name]
table[name] = "0" * 64
with pytest.raises(PrecompError, match="changed .*: torch._dynamo.decorators:allow"):
    helpers.collect()
table[name] = good
table["torch._dynamo.utils:no_such_function"] = good
with pytest.raises(PrecompError, match="has no torch._dynamo.utils:no_such_function"):
    helpers.collect()
del table["torch._dynamo.utils:no_such_function"]
setup = torch_api.tables().STANDIN_SETUP
setup["torch._dynamo.utils"] = ("no such line",)
with pytest.raises(PrecompError, match="lacks the statement 'no such line'"):
    helpers.collect()
del setup["torch._dynamo.utils"]

for name, reason in (
    ("no_such_name", "has no no_such_name"),
    ("counters", "is state of its module"),
):
    with pytest.raises(Unsupported, match=reason):
        helpers.collect([("torch._dynamo.utils", name)])
with pytest.raises(Unsupported, match="is decorated by"):
    helpers.collect([("torch._dynamo.polyfills.builtins", "all")])

records = {(m, n): r for m, n, r in helpers.collect([("torch._dynamo.polyfills", "index")])}
assert records["torch._dynamo.polyfills", "index"][0] == "fn"
assert not any(module == "math" for module, _, _ in helpers.collect([("math", "sin")]))
"""


def test_records_do_not_depend_on_the_process(torch_process: Any) -> None:
    first = torch_process.collect("a", PYTHONHASHSEED="1")
    second = torch_process.collect("b", PYTHONHASHSEED="2")
    assert first == second == torch_process.collect("helpers")
    assert str(torch_process.folder).encode() not in first


def test_records_are_plain_and_name_no_paths(torch_process: Any) -> None:
    records = data.loads(torch_process.collect("c"))
    kinds = {record[0] for _, _, record in records}
    assert kinds == {"fn", "stmt", "const", "setup", "import"}
    files = {record[1] for _, _, record in records if record[0] != "import"}
    assert all(file.startswith("torch/_dynamo/") for file in files)


def test_what_cannot_be_taken_is_refused(torch_process: Any) -> None:
    torch_process.python("-W", "ignore", "-c", CHECKS)


def test_a_record_of_unknown_kind_is_refused(torch_process: Any) -> None:
    text = """
import pytest
from precomp.errors import ArtifactError
from precomp.serve.standin_build import Builder, _unpack_const
builder = Builder({("torch._dynamo.utils", "x"): ("wrong", "f", (b"", ()), ())}, {},
                  owned=lambda name: True, materialize=print, observed=frozenset())
with pytest.raises(ArtifactError, match="unknown kind 'wrong'"):
    builder.get("torch._dynamo.utils", "x")
with pytest.raises(ArtifactError, match="unknown constant tag"):
    _unpack_const(("?", 1), "f")
with pytest.raises(KeyError):
    builder.get("torch._dynamo.utils", "y")
"""
    torch_process.python("-c", text)
