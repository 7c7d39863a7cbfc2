"""A change of what was compiled is refused with the reason; a change of paths is not a change."""

from __future__ import annotations

import shutil

import pytest
from processes import Place

MODULES = {
    "shop/__init__.py": "",
    "shop/constants.py": "RATE = 3.0\n",
    "shop/helpers.py": """
        import functools

        from shop.constants import RATE

        OFFSET = 0.25
        def traced(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs) + 0.0625
            return wrapper

        def halve(t, by=0.5):
            return t * by + OFFSET

        def total(t):
            return sum([part.sin() * 2 for part in t.chunk(2)])

        @traced
        def decorated(t):
            return t.cos() * 7

        def make(factor):
            def inner(t):
                return t * factor + 11
            return inner

        scaled = make(13.0)

        def rated(t):
            return t * RATE
    """,
    "shop/table.py": """
        # No name leads to this function: its file stands for it.
        TABLE = {"relu": lambda t: t.relu() + 0.125}
    """,
    "shop/model.py": """
        import torch
        from torch import nn

        from shop import helpers
        from shop.table import TABLE

        SCALE = 1.5

        class Base(nn.Module):
            factor = 17.0

            def inherited(self, t):
                return t + 19

        class Model(Base):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            @property
            def gain(self):
                return self.linear.in_features * 0.5

            @staticmethod
            def shift(t):
                return t + 23

            @classmethod
            def stretch(cls, t):
                return t * cls.factor

            def method(self, t):
                return t - 29

            def forward(self, x):
                h = self.linear(x) * SCALE * self.gain
                h = helpers.halve(h) + helpers.total(torch.cat([h, h]))
                h = TABLE["relu"](h) + helpers.decorated(h) + helpers.scaled(h)
                h = self.method(self.shift(self.stretch(self.inherited(h))))
                return helpers.rated(h) + 31
    """,
}

SCRIPT = """
    import torch
    torch.set_num_threads(1)
    import precomp

    def run():
        from shop.model import Model
        torch.manual_seed(0)
        model = torch.compile(Model())
        with torch.no_grad():
            return model(torch.ones(3, 4)).tolist()

    side, artifact = sys.argv[1:3]
    if side == "capture":
        with precomp.capture(artifact):
            done(result=run())
    else:
        try:
            precomp.prepare(artifact)
            with precomp.strict_no_compile():
                done(result=run())
        except precomp.CompileViolation as v:
            done(kind=v.kind, what=v.what, why=v.why)
        except precomp.EnvironmentMismatchError as e:
            done(differences=[list(d) for d in e.differences], text=str(e))
"""

# name: (file, old text, new text, texts the reason has to hold)
EDITS = {
    "line of forward": ("model.py", "rated(h) + 31", "rated(h) + 32", ("forward",)),
    "method": ("model.py", "t - 29", "t - 28", ("method",)),
    "inherited method": ("model.py", "t + 19", "t + 18", ("inherited",)),
    "static method": ("model.py", "t + 23", "t + 22", ("shift",)),
    "class method": ("model.py", "t * cls.factor", "cls.factor - t", ("stretch",)),
    "property": ("model.py", "in_features * 0.5", "in_features * 0.75", ("gain",)),
    "function of another module": ("helpers.py", "t * by +", "t / by +", ("halve",)),
    "comprehension": ("helpers.py", "sin() * 2 for", "sin() * 3 for", ("total",)),
    "function in a table": ("table.py", "relu() + 0.125", "relu() + 0.25", ("shop.table",)),
    "decorated function": ("helpers.py", "cos() * 7", "cos() * 8", ("decorated",)),
    "wrapper of a decorator": ("helpers.py", "+ 0.0625", "+ 0.03", ("wrapper",)),
    "closure": ("helpers.py", "factor + 11", "factor + 12", ("inner",)),
    "captured variable": ("helpers.py", "make(13.0)", "make(14.0)", ("13", "14")),
    "default argument": ("helpers.py", "by=0.5", "by=0.25", ("0.5", "0.25")),
    "global constant": ("model.py", "SCALE = 1.5", "SCALE = 2.5", ("SCALE", "1.5", "2.5")),
    "constant of a helper": ("helpers.py", "OFFSET = 0.25", "OFFSET = 4.5", ("OFFSET", "4.5")),
    "imported constant": ("constants.py", "RATE = 3.0", "RATE = 5.0", ("RATE", "3.0", "5.0")),
    "class attribute": ("model.py", "factor = 17.0", "factor = 18.0", ("17", "18")),
}


def lay_out(place: Place) -> None:
    for name, code in MODULES.items():
        place.write(name, code)


@pytest.fixture(scope="module")
def shop(tmp_path_factory, inductor_cache):
    """The captured program: (place, artifact, result)."""
    place = Place(tmp_path_factory.mktemp("shop"), cache=inductor_cache)
    lay_out(place)
    artifact = place.root / "shop.precomp"
    return place, artifact, place.script(SCRIPT, "capture", artifact).facts["result"]


@pytest.mark.parametrize("edit", EDITS)
def test_edit_is_refused_with_the_reason(shop, bare, edit):
    _, artifact, _ = shop
    file, old, new, texts = EDITS[edit]
    lay_out(bare)
    source = (bare.work / "shop" / file).read_text()
    assert source.count(old) == 1
    (bare.work / "shop" / file).write_text(source.replace(old, new))
    facts = bare.script(SCRIPT, "serve", artifact).facts
    assert "result" not in facts, "a stale entry was served"
    assert facts["kind"] == "trace"
    for text in texts:
        assert text in facts["what"] + " " + facts["why"]


def test_served_from_another_place(shop, bare):
    """Other path, HOME, TMPDIR, working directory; no compiler."""
    _, artifact, result = shop
    lay_out(bare)
    assert bare.script(SCRIPT, "serve", artifact).facts == {"result": result}


def test_served_when_lines_move_and_comments_change(shop, bare):
    _, artifact, result = shop
    lay_out(bare)
    for path in (bare.work / "shop").glob("*.py"):
        lines = [line and line + "  # seen" for line in path.read_text().splitlines()]
        path.write_text("\n".join(["# moved", "", "", *lines]))
    assert bare.script(SCRIPT, "serve", artifact).facts == {"result": result}


def test_served_when_artifact_and_script_are_renamed(shop, bare):
    _, artifact, result = shop
    lay_out(bare)
    moved = bare.root / "other name.bin"
    shutil.copy(artifact, moved)
    finished = bare.script(
        SCRIPT, "serve", moved, name="deep/down/other.py", env={"PYTHONPATH": python_path(bare)}
    )
    assert finished.facts == {"result": result}


def python_path(place: Place) -> str:
    return f"{place.work}:{place.environment().get('PYTHONPATH', '')}"


def test_irrelevant_environment_variables_do_not_matter(shop, bare):
    _, artifact, result = shop
    lay_out(bare)
    env = {
        "CUDA_VISIBLE_DEVICES": "",
        "LOCAL_RANK": "3",
        "USER": "somebody",
        "HOSTNAME": "other",
        "RAY_PLACEMENT": "7",
        "PYTHONHASHSEED": "123",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
    }
    assert bare.script(SCRIPT, "serve", artifact, env=env).facts == {"result": result}


def test_another_instruction_set_is_refused(shop, bare):
    _, artifact, _ = shop
    lay_out(bare)
    facts = bare.script(SCRIPT, "serve", artifact, env={"ATEN_CPU_CAPABILITY": "default"}).facts
    ((field, expected, found),) = facts["differences"]
    assert expected != found
    assert "default" in found.lower()
    for text in (field, expected, found):
        assert text in facts["text"]


def test_another_torch_build_is_refused(shop, bare):
    _, artifact, _ = shop
    lay_out(bare)
    rewrite = """
        from precomp import _core
        old = _core.Artifact(sys.argv[1])
        environment = dict(old.environment)
        entries = [(kind, name, old.read(digest)) for kind, name, digest, *_ in old.entries]
        keys = [k for k, v in environment.items() if v.startswith("2.") and "torch" in k]
        environment[keys[0]] += ".other"
        _core.write_artifact(sys.argv[2], environment, entries, 3)
        done(keys=keys)
    """
    other = bare.root / "other.precomp"
    keys = bare.script(rewrite, artifact, other, name="rewrite.py").facts["keys"]
    facts = bare.script(SCRIPT, "serve", other).facts
    ((field, expected, found),) = facts["differences"]
    assert field == keys[0]
    assert expected == found + ".other"


def test_all_differences_are_named_at_once(shop, bare):
    _, artifact, _ = shop
    lay_out(bare)
    rewrite = """
        from precomp import _core
        old = _core.Artifact(sys.argv[1])
        environment = {key: value + ".other" for key, value in old.environment.items()}
        entries = [(kind, name, old.read(digest)) for kind, name, digest, *_ in old.entries]
        _core.write_artifact(sys.argv[2], environment, entries, 3)
        done(keys=sorted(environment))
    """
    other = bare.root / "other.precomp"
    keys = bare.script(rewrite, artifact, other, name="rewrite.py").facts["keys"]
    facts = bare.script(SCRIPT, "serve", other).facts
    # The number of threads may still be set before the first step: a warning, and a guard.
    assert sorted(d[0] for d in facts["differences"]) == sorted({*keys} - {"threads"})


def test_a_program_in_one_script_is_served_under_another_name(here, bare):
    code = """
        import torch
        torch.set_num_threads(1)
        import precomp
        side, artifact = sys.argv[1:3]
        if side == "serve":
            precomp.prepare(artifact)

        FACTOR = 3.0

        def helper(t):
            return t * FACTOR

        class Model(torch.nn.Module):
            def forward(self, x):
                return helper(x) + 1

        def run():
            with torch.no_grad():
                return torch.compile(Model())(torch.ones(5)).tolist()

        if side == "capture":
            with precomp.capture(artifact):
                done(result=run())
        else:
            try:
                with precomp.strict_no_compile():
                    done(result=run())
            except precomp.CompileViolation as v:
                done(why=v.why)
    """
    artifact = here.root / "main.precomp"
    assert here.script(code, "capture", artifact).facts == {"result": [4.0] * 5}
    assert bare.script(code, "serve", artifact, name="x/y.py").facts == {"result": [4.0] * 5}
    edited = code.replace("return t * FACTOR", "return t - FACTOR")
    assert "helper" in bare.script(edited, "serve", artifact).facts["why"]
