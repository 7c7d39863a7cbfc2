"""A module that is replaced between two captures or two loads leaves no stale alias behind."""

from __future__ import annotations

import pytest
from processes import Place

CODE = """
    import types
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:]
    SOURCE = "SCALE = 2.0\\ndef work(x):\\n    return x * SCALE\\n"

    def replace(scale):
        global helper
        helper = types.ModuleType("helper")
        exec(compile(SOURCE.replace("2.0", scale), "helper.py", "exec"), vars(helper))
        sys.modules["helper"] = helper

    if side == "serve":
        prepared = precomp.prepare(artifact)
    replace("2.0")

    def f(x):
        return helper.work(x) + 1

    compiled = torch.compile(f)
    x = torch.ones(3)

    def attempt():
        try:
            with precomp.strict_no_compile():
                return compiled(x).tolist()
        except precomp.CompileViolation as violation:
            return violation.why

    def again():
        global prepared
        prepared.uninstall()
        prepared = precomp.prepare(artifact)
        return attempt()

    if side == "capture":
        with precomp.capture(artifact):
            compiled(x)
        replace("5.0")
        second = precomp.capture(reset=True)
        with second:
            result = torch.compile(f)(x).tolist()
        try:
            second.finalize("second.precomp")
            done(result=result, refused=None)
        except precomp.UnsupportedCaptureError as error:
            done(result=result, refused=str(error))
    else:
        facts = {"first": attempt()}
        replace("5.0")
        facts["without a load"] = attempt()
        facts["changed"] = again()
        replace("2.0")
        facts["equal"] = again()
        done(**facts)
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory, inductor_cache):
    root = tmp_path_factory.mktemp("modules")
    here = Place(root / "here", cache=inductor_cache)
    bare = Place(root / "bare", compiler=False)
    artifact = root / "helper.precomp"
    captured = here.script(CODE, "capture", artifact).facts
    return captured, bare.script(CODE, "serve", artifact).facts


def test_each_load_finds_the_module_of_its_time(both):
    _, facts = both
    assert facts["first"] == facts["equal"] == [3.0] * 3
    assert "SCALE == 2.0, found 5.0" in facts["changed"]


def test_a_module_replaced_meanwhile_is_a_miss(both):
    _, facts = both
    assert "G['helper']" in facts["without a load"]


def test_a_capture_beside_a_replaced_module_is_refused_by_name(both):
    """torch keeps the first module of a name; what it guards on there cannot be found again."""
    captured, _ = both
    assert captured["result"] == [6.0] * 3
    assert "identity of module helper" in captured["refused"]
