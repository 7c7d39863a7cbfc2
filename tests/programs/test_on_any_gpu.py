"""What was captured on one GPU is served on another, or says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import Place

from precomp import Artifact, PrecompError, prepare
from precomp.data import loads

HERE = Path(__file__).parent
# Why a function stays on the GPU that was captured.
STAY = {
    "reads_index": "device.index",
    "made_of_number": "torch.device",
    "source_names_one": "the source of source_names_one names 'cuda:0'",
    "inlines_default": "default_names_one holds names a device",
    "takes_apart": "str.split",
}
MOVE = ("returned", "named", "compared", "Holder", "Text", "documented")
ALL = (*MOVE, *STAY)
PRELUDE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    directory, here, ordinal = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.path.insert(0, here)
"""
CAPTURE = (
    PRELUDE
    + """
    import on_any_gpu
    results = {}
    for name in sys.argv[4].split(","):
        with precomp.capture(f"{directory}/{name}.{ordinal}.precomp", reset=True):
            results[name] = on_any_gpu.call(name, ordinal)
    # As if the graph asked for device="cuda", which torch without CUDA cannot trace.
    from precomp.freeze import devices
    uses_of_graph = devices.uses_of_graph
    devices.uses_of_graph = lambda graph: uses_of_graph(graph)._replace(current=True)
    with precomp.capture(f"{directory}/current.{ordinal}.precomp", reset=True):
        results["current"] = on_any_gpu.call("named", ordinal)
    devices.uses_of_graph = uses_of_graph
    with precomp.capture(f"{directory}/both.{ordinal}.precomp", reset=True):
        results["both"] = on_any_gpu.call("both", ordinal, ordinal + 1)
    done(**results)
"""
)
# What happened in each step: artifact, devices, function, ordinal, other ordinal.
SERVE = (
    PRELUDE
    + """
    import on_any_gpu
    facts = []
    for artifact, devices, name, ordinal, other in json.loads(sys.argv[4]):
        if isinstance(devices, list) and devices and isinstance(devices[0], list):
            devices = dict(map(tuple, devices))
        with precomp.prepare(f"{directory}/{artifact}.precomp", devices=devices) as prepared:
            fact = {}
            try:
                with precomp.strict_no_compile():
                    fact["result"] = on_any_gpu.call(name, ordinal, other)
            except precomp.CompileViolation as violation:
                fact["why"] = violation.why
            fact["warnings"] = prepared.report().warnings
            fact["served"] = len(prepared.coverage().served)
        facts.append(fact)
    done(facts=facts)
"""
)
FORMS = (1, "cuda:1", [[0, 1]], [["cuda:0", "cuda:1"]], [1])
STEPS = {
    **{("elsewhere", name): (f"{name}.3", None, name, 1, None) for name in ALL},
    **{("there", name): (f"{name}.3", None, name, 3, None) for name in ALL},
    **{("merged", n): ("reads_index.merged", None, "reads_index", n, None) for n in (0, 3)},
    **{("form", i): ("Holder.3", form, "Holder", 1, None) for i, form in enumerate(FORMS)},
    **{("form", i, "refused"): ("returned.3", form, "returned", 2, None)
       for i, form in enumerate(FORMS)},
    "several": ("both.0", None, "both", 0, 1),
    "several elsewhere": ("both.0", None, "both", 2, 3),
    "several moved": ("both.0", [[0, 2], [1, 0]], "both", 2, 0),
    "current": ("current.3", None, "named", 0, None),
    "not current": ("current.3", None, "named", 3, None),
    "never current": ("current.3", 1, "named", 1, None),
    "not moved": ("reads_index.0", [[0, 1]], "reads_index", 0, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def captured(tmp_path_factory, inductor_cache):
    """The directory of the artifacts, and the results by the ordinal that was captured."""
    directory = tmp_path_factory.mktemp("artifacts")
    place = Place(tmp_path_factory.mktemp("capture"), cache=inductor_cache)
    results = {n: place.script(CAPTURE, directory, HERE, n, ",".join(ALL)).facts for n in (0, 3)}
    parts = [directory / f"reads_index.{n}.precomp" for n in (0, 3)]
    Artifact.merge(parts, directory / "reads_index.merged.precomp")
    return directory, results


@pytest.fixture(scope="module")
def served(captured, tmp_path_factory):
    """What happened in each of STEPS, in one process without a compiler."""
    place = Place(tmp_path_factory.mktemp("serve"), compiler=False)
    steps = json.dumps(list(STEPS.values()))
    facts = place.script(SERVE, captured[0], HERE, 0, steps).facts["facts"]
    return dict(zip(STEPS, facts, strict=True))


def expected(result, old: int, new: int):
    """*result* of one GPU as it is on another."""
    return json.loads(json.dumps(result).replace(f"cuda:{old}", f"cuda:{new}"))


def frames(path):
    opened = Artifact.open(path)
    return [loads(opened.read(e.digest)) for e in opened.entries if e.kind == "frame"]


@pytest.mark.parametrize("name", MOVE)
def test_what_uses_one_gpu_is_served_on_another(captured, served, name):
    fact = served["elsewhere", name]
    assert fact["result"] == expected(captured[1][3][name], 3, 1)
    assert fact["served"] == len(frames(captured[0] / f"{name}.3.precomp"))


@pytest.mark.parametrize("name", MOVE)
def test_captures_on_two_gpus_are_the_same_entries(captured, name):
    one, other = (Artifact.open(captured[0] / f"{name}.{n}.precomp") for n in (0, 3))
    assert one.digest == other.digest


@pytest.mark.parametrize("name", STAY)
def test_what_depends_on_the_number_is_refused_elsewhere_by_name(served, name):
    why = served["elsewhere", name]["why"]
    assert "(served on cuda:3 only: " in why or "(served on cuda:0, cuda:3 only: " in why
    assert STAY[name] in why


@pytest.mark.parametrize("name", ALL)
def test_everything_is_served_where_it_was_captured(captured, served, name):
    assert served["there", name]["result"] == captured[1][3][name]


def test_ranks_that_depend_on_the_number_have_entries_of_their_own(captured, served):
    assert len(frames(captured[0] / "reads_index.merged.precomp")) == 2
    for ordinal in (0, 3):
        assert served["merged", ordinal]["result"] == captured[1][ordinal]["reads_index"]


def test_one_process_is_served_on_two_gpus(captured, tmp_path):
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    sys.path.insert(0, sys.argv[2])
    prepared = precomp.prepare(os.path.join(sys.argv[1], "returned.0.precomp"))
    import on_any_gpu
    compiled = torch.compile(on_any_gpu.returned)
    with precomp.strict_no_compile():
        places = [torch.device("cuda", n) for n in (2, 5, 2)]
        results = [on_any_gpu.plain(compiled(torch.arange(4.0), place)) for place in places]
    done(results=results, compiler=[m for m in ("torch._dynamo.convert_frame", "triton")
                                    if m in sys.modules])
    """
    facts = Place(tmp_path, compiler=False).script(code, captured[0], HERE).facts
    result = captured[1][0]["returned"]
    assert facts["results"] == [expected(result, 0, n) for n in (2, 5, 2)]
    assert facts["compiler"] == []


@pytest.mark.parametrize("index", range(len(FORMS)))
def test_devices_says_where_to_serve(captured, served, index):
    assert served["form", index]["result"] == expected(captured[1][3]["Holder"], 3, 1)
    why = served["form", index, "refused"]["why"]
    assert "index=1" in why and "index=2" in why


def test_what_uses_several_gpus_is_served_on_them_or_where_devices_says(captured, served):
    result = captured[1][0]["both"]
    assert served["several"]["result"] == result
    assert "found device(type='cuda', index=" in served["several elsewhere"]["why"]
    assert served["several moved"]["result"] == [result[0], "cuda:2", "cuda:0"]


def test_what_asks_for_the_current_gpu_is_served_on_that_alone(captured, served):
    """On a machine without a GPU the current one is cuda:0."""
    assert served["current"]["result"] == expected(captured[1][3]["current"], 3, 0)
    assert "found device(type='cuda', index=3)" in served["not current"]["why"]
    why = served["never current"]["why"]
    assert "the current GPU, which is cuda:0, not cuda:1 as prepare(devices=...) says" in why


def test_devices_does_not_move_what_depends_on_the_number(captured, served):
    assert served["not moved"]["result"] == captured[1][0]["reads_index"]
    (warning,) = (line for line in served["not moved"]["warnings"] if "reads_index" in line)
    assert "is served on cuda:0 only" in warning and "device.index" in warning


@pytest.mark.parametrize(
    ("devices", "error"),
    [
        ({1: 0}, "has no entries for cuda:1; it has entries for cuda:0"),
        ({0: True}, "expected the number of a GPU, 'cuda:N' or a torch.device, got True"),
        ("cpu", "expected the number of a GPU, 'cuda:N' or a torch.device, got 'cpu'"),
        ("cuda", "got 'cuda'"),
        (-1, "got -1"),
        (1.5, "got 1.5"),
    ],
)
def test_devices_that_do_not_fit_are_refused(captured, devices, error):
    with pytest.raises((TypeError, ValueError, PrecompError)) as caught:
        prepare(captured[0] / "returned.0.precomp", devices=devices)
    assert error in str(caught.value)


def test_two_gpus_cannot_become_one(captured):
    with pytest.raises(PrecompError, match="both uses cuda:0, cuda:1; they cannot become"):
        prepare(captured[0] / "both.0.precomp", devices={0: 1})
