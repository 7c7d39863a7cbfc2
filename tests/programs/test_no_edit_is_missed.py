"""Each inlined function, edited: what depends on it is refused by name, all else is served."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from processes import Place

STALE = Path(__file__).with_name("stale")
GOODS = (STALE / "goods.py").read_text()
MARK = re.compile(r"([\d.]+)(?=\D*  # (\w+): (.+)$)")

# name: (run, old text, new text, text of the reason)
STRUCTURE = {
    "a method is overridden": (
        "model",
        "    @property\n    def gain",
        "    def inherited(self, t):\n        return t\n\n    @property\n    def gain",
        "inherited",
    ),
    "another base": (
        "model",
        "class Model(Base, Mixin)",
        "class Model(Mixin, Base)",
        "goods.Mixin",
    ),
    "a base between": (
        "model",
        "class Model(Base, Mixin)",
        "class Between(Base):\n    def mixed(self, t):\n        return t\n\n\n"
        "class Model(Between, Mixin)",
        "goods.Between",
    ),
    "__bool__ is added": (
        "shapes",
        "class Truth:\n    pass",
        "class Truth:\n    def __bool__(self):\n        return False",
        "__bool__",
    ),
    "__len__ is added": (
        "shapes",
        "class Truth:\n    pass",
        "class Truth:\n    def __len__(self):\n        return 0",
        "__len__",
    ),
    "__getattribute__ is added": (
        "shapes",
        "class Value:\n",
        "class Value:\n    def __getattribute__(self, name):\n        return 3.0\n\n",
        "__getattribute__",
    ),
    "__setattr__ is added": (
        "shapes",
        "class Value:\n",
        "class Value:\n    def __setattr__(self, name, value):\n"
        "        object.__setattr__(self, name, value + 1)\n\n",
        "__setattr__",
    ),
    "an attribute becomes a property": (
        "shapes",
        "class Value:\n",
        "class Value:\n    v = property(lambda self: 3.0, lambda self, value: None)\n\n",
        "v since",
    ),
    "__post_init__ is added": (
        "data",
        "    def unpack(self)",
        "    def __post_init__(self):\n        self.scale = 9.0\n\n    def unpack(self)",
        "__init__",
    ),
    "fields change places": (
        "data",
        "    t: torch.Tensor\n    scale: float = 1.46",
        "    scale: float\n    t: float = 1.46",
        "__init__",
    ),
    "a method that nothing uses": (
        None,
        "class Plain(",
        "def unused():\n    pass\n\n\nclass Plain(",
        "",
    ),
    "a method that nobody calls": (
        None,
        "    def __contains__",
        "    def unused(self):\n        return 1\n\n    def __contains__",
        "",
    ),
}
# run and text of the reason, for each patch of trial.py
PATCHES = {
    "static method": ("model", "static"),
    "method": ("model", "replaced"),
    "forward of torch": ("library", "forward"),
    "call of modules": ("library", "_call_impl"),
    "function of torch": ("library", "linear"),
}


def marks() -> dict[str, tuple[str, str]]:
    """``{name: (run, edited text)}``, one number changed in each."""
    found = {}
    lines = GOODS.splitlines(keepends=True)
    for i, line in enumerate(lines):
        mark = MARK.search(line.rstrip("\n"))
        if mark:
            number, run, what = mark.groups()
            changed = str(type(float(number))(number) + 0.5) if "." in number else f"{number}1"
            edited = line[: mark.start()] + changed + line[mark.end(1) :]
            found[f"{run}: {what}"] = run, "".join([*lines[:i], edited, *lines[i + 1 :]])
    return found


MARKS = marks()


@pytest.fixture(scope="module")
def refusals(tmp_path_factory, inductor_cache):
    root = tmp_path_factory.mktemp("stale")
    captured = Place(root / "here", cache=inductor_cache).run(STALE / "trial.py", "capture", root)
    assert captured.returncode == 0, captured
    edits = {name: text for name, (_, text) in MARKS.items()}
    for name, (_, old, new, _) in STRUCTURE.items():
        assert GOODS.count(old) == 1, name
        edits[name] = GOODS.replace(old, new)
    edits["nothing"] = GOODS
    bare = Place(root / "bare", compiler=False)
    (bare.work / "edits.json").write_text(json.dumps(edits))
    return bare.run(STALE / "trial.py", "serve", root, "edits.json").facts


def test_unedited_source_is_served(refusals):
    assert refusals["nothing"] == {}


@pytest.mark.parametrize("name", MARKS)
def test_what_depends_on_the_edit_is_refused_and_nothing_else(refusals, name):
    run, _ = MARKS[name]
    assert list(refusals[name]) == [run], refusals[name]


@pytest.mark.parametrize("name", STRUCTURE)
def test_a_class_that_changed_is_refused_by_name(refusals, name):
    run, _, _, text = STRUCTURE[name]
    assert list(refusals[name]) == ([run] if run else []), refusals[name]
    if run:
        assert text in refusals[name][run]


@pytest.mark.parametrize("name", PATCHES)
def test_what_was_replaced_before_the_first_call_is_refused(refusals, name):
    run, text = PATCHES[name]
    assert text in refusals[name][run]


@pytest.mark.parametrize("name", PATCHES)
def test_what_was_replaced_while_capturing_only_is_refused(refusals, name):
    run, _ = PATCHES[name]
    assert run in refusals[f"captured {name}"]
