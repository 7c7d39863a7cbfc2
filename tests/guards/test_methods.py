"""Every method of torch's guard classes is exercised by a program here or refused by name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import torch._C._dynamo.guards as native
from torches import OLD

from precomp import _core, data, guard_functions
from precomp.errors import ArtifactCorruptError
from precomp.freeze.guard_tree import LEAVES, MANAGERS, QUERIES, REFUSED, RELATIONS

# Methods that a function on the tape stands for: its tag.
STANDS_FOR = {"add_dict_version_guard": "nodes"}
# Methods that only another torch than 2.13 has, and a tag that only its guards use.
ELSEWHERE = {"add_dynamic_indices_guard": "2.11", "set_local_state": "2.14", "cow": "2.14"}
pytestmark = pytest.mark.skipif(OLD, reason="the table is that of later versions of torch")
DOCUMENT = Path(__file__).parents[2] / "docs" / "guards.md"


def methods_of_torch() -> set[str]:
    classes = (native.GuardManager, native.DictGuardManager, native.RootGuardManager)
    found = {name for cls in classes for name in vars(cls) if not name.startswith("__")}
    return found | {name for name in vars(native) if name.startswith("install_")}


def uses_of(recorded: Path) -> dict[str, set[str]]:
    """Method or tag of a function -> the programs whose tapes hold it."""
    uses: dict[str, set[str]] = defaultdict(set)
    for path in recorded.glob("*.tape"):
        for op in data.loads(path.read_bytes())["ops"]:
            uses[op[0]].add(path.stem)
            if op[0] == "lambda_manager":
                uses[op[3][0]].add(path.stem)
            elif op[0] in ("add_lambda_guard", "add_epilogue_lambda_guard"):
                uses[op[2][0][0]].add(path.stem)
    return uses


def is_refused(method: str, refusals: dict[str, str]) -> bool:
    return method in REFUSED and any(REFUSED[method] in text for text in refusals.values())


def unaccounted(methods: set[str], uses: dict[str, set[str]], refusals: dict[str, str]) -> set[str]:
    """The methods that add to a tree, that no program exercises and no test refuses."""
    return {
        name
        for name in methods - QUERIES
        if not uses.get(STANDS_FOR.get(name, name)) and not is_refused(name, refusals)
    }


def test_every_method_is_exercised_or_refused(recorded: Path, refusals: dict[str, str]) -> None:
    assert unaccounted(methods_of_torch(), uses_of(recorded), refusals) == set()


def test_a_method_that_torch_gains_is_noticed(recorded: Path, refusals: dict[str, str]) -> None:
    gained = methods_of_torch() | {"add_brand_new_guard"}
    assert unaccounted(gained, uses_of(recorded), refusals) == {"add_brand_new_guard"}


def test_nothing_is_known_that_torch_lacks() -> None:
    unknown = {*MANAGERS, *LEAVES, *RELATIONS, *REFUSED} - methods_of_torch()
    assert {
        name for name in unknown if torch.__version__.startswith(ELSEWHERE.get(name, ""))
    } == set()


def test_every_function_inside_guards_is_exercised(recorded: Path) -> None:
    uses = uses_of(recorded)
    unused = {tag for tag in guard_functions.TAGS if not uses.get(tag)}
    assert {tag for tag in unused if torch.__version__.startswith(ELSEWHERE.get(tag, ""))} == set()


@pytest.mark.parametrize("name", sorted({*MANAGERS, *LEAVES, *RELATIONS} - STANDS_FOR.keys()))
def test_the_replayer_knows_every_recorded_method(name: str) -> None:
    record = {"nodes": 1, "ops": ((name, 0, (), ()),), "tls": None, "device": ("k", None)}
    with pytest.raises(ArtifactCorruptError) as error:
        _core.GuardTape(record)
    assert "unknown method" not in str(error.value)


def documented() -> dict[str, str]:
    """The table of methods in docs/guards.md: method -> program or 'refused'."""
    rows = re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|$", DOCUMENT.read_text(), re.MULTILINE)
    return dict(rows)


def test_the_documented_table_is_true(recorded: Path, refusals: dict[str, str]) -> None:
    uses = uses_of(recorded)
    table = documented()
    here = methods_of_torch()
    assert table.keys() - ELSEWHERE.keys() == here - QUERIES - ELSEWHERE.keys()
    assert ELSEWHERE.keys() - guard_functions.TAGS <= table.keys()
    wrong = {
        name: program
        for name, program in table.items()
        if name in here
        and not (
            is_refused(name, refusals)
            if program == "refused"
            else program in uses[STANDS_FOR.get(name, name)]
        )
    }
    assert wrong == {}
