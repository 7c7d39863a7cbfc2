"""Kernels of triton.jit that the program launches itself: captured with a stand-in for Triton's
driver, served through a stand-in for libcuda."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import Place

from precomp import Artifact
from precomp import triton_kernels as kernels
from precomp.freeze.cuda import parameters_of
from precomp.freeze.store import Store, Unsupported
from precomp.freeze.triton import launch_record

HERE = Path(__file__).parent
SAMPLES = HERE / "triton_samples.py"


@dataclass
class Captured:
    folder: Path
    driver: Path
    facts: dict

    def serve(self, scene: str, place: Path, **env: str) -> dict:
        """What a scene of triton_serve finds, in a process without a compiler."""
        found = Place(place, compiler=False, extra={"TRITON_CACHE_DIR": str(place / "triton")})
        script = HERE / "triton_serve.py"
        return found.run(script, scene, self.driver, self.folder, env=env).facts


def capture(folder: Path, driver: Path, cache: Path, **env: str) -> Captured:
    """All samples, in a process of their own."""
    place = Place(folder / "capture", extra={"TRITON_CACHE_DIR": str(cache), **env})
    facts = place.run(HERE / "triton_capture.py", folder).facts
    (folder / "capture.json").write_text(json.dumps(facts))
    return Captured(folder, driver, facts)


@pytest.fixture(scope="session")
def captured(tmp_path_factory, driver):
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("triton")
    return capture(folder, driver, folder / "cache")


@pytest.fixture(scope="session")
def everything(captured, tmp_path_factory):
    return captured.serve("everything", tmp_path_factory.mktemp("everything"))


# ------------------------------------------------------------------ hits


def test_each_launch_sends_the_driver_what_triton_sends(captured, everything):
    for name, launch in captured.facts["launches"].items():
        assert everything["found"][name] == launch, name
    assert everything["again"]


def test_a_hit_leaves_triton_alone(everything):
    assert everything["untouched"] == {
        "driver": True, "cache": True, "compiler": False, "inductor": False
    }  # fmt: skip
    assert not everything["imported by prepare"]
    first, last = everything["loads"]
    assert first == last  # each image goes to the driver once


def test_coverage_knows_the_launches(captured, everything):
    assert captured.facts["problems"] == []
    assert not everything["rest"] and not everything["missing"]
    assert sorted(set(everything["served"])) == captured.facts["kernels"]


def test_uninstall_gives_triton_its_methods_back(everything):
    assert everything["undone"] == {
        "run": "triton.runtime.jit",
        "tune": "triton.runtime.autotuner",
        "kernel": False,
        "choices": 0,
    }


# ------------------------------------------------------------------ misses

WHY = {
    "alignment": "y: captured as *fp32, divisible by 16, found *fp32",
    "dtype": "out: captured as *fp32, divisible by 16, found *fp64, divisible by 16",
    "width": "n: captured as constexpr 1, found i64, divisible by 16",
    "constant": "BLOCK: captured as constexpr 128, found constexpr 64",
    "type of a constant": "BLOCK: captured as constexpr 128, found constexpr 128.0",
    "option": "option num_warps: captured as 8, found 16",
    "none": "out: captured as *fp32, divisible by 16, found constexpr None",
    "tuple": "pointers: captured as (*fp32:D,*fp32:,), found (*fp32:D,*fp32:D,*fp32:D,); "
    "sizes: captured as Pair(i32:D,=i1,), found (i32:D,i32:D,)",
    "no form": "x: captured as *fp32, divisible by 16, "
    "found an argument of type misses.<locals>.Descriptor, which has no frozen form",
    "kernel": "not captured: the artifact has no entry for this kernel",
}


@pytest.fixture(scope="session")
def misses(captured, tmp_path_factory):
    return captured.serve("misses", tmp_path_factory.mktemp("misses"))


@pytest.mark.parametrize("name", WHY)
def test_a_violation_says_which_argument_changed(misses, name):
    kind, what, why, where = misses[name]
    assert (kind, why) == ("load", WHY[name])
    assert what.startswith("Triton kernel ") and where.startswith("triton_serve.py:")


def test_a_violation_names_another_function_argument(misses):
    assert misses["function"][2].startswith("FUNCTION: captured as constexpr o73:function ")


def test_a_missing_choice_is_a_violation_of_kind_tune(misses):
    kind, what, why, _ = misses["tuning key"]
    assert (kind, what) == ("tune", "@triton.autotune of tuned")
    assert why.startswith("no best config for key (n=77); tuned so far: [(1000, 'torch.float32'")


def test_wrong_arguments_raise_what_they_raise_without_precomp(misses):
    assert misses["does not fit"] == "missing a required argument: 'out'"
    assert misses["cpu"].endswith("argument 0: expected a tensor on a GPU, found one on cpu")


def test_under_the_gate_triton_is_not_started_to_find_out(misses):
    assert misses["untouched"] == {
        "driver": True, "cache": True, "compiler": False, "inductor": False
    }  # fmt: skip
    assert len(misses["missing"]) == len(WHY) + 1  # the tuned one did not get that far


def test_a_miss_without_a_gate_is_tritons_launch(captured, tmp_path):
    found = captured.serve("compiled_as_usual", tmp_path)
    assert found["compiled"] == found["warmup"] == found["tuned"][0] == "CompiledKernel"
    assert found["grids"] == [[3, 1, 1], [3, 1, 1]]  # the second one under a gate
    assert found["another"][:2] == ["load", "Triton kernel add"]
    assert found["another"][2] == "BLOCK: captured as constexpr 256, found constexpr 32"
    assert found["tuned"][1][0] == "tune"
    assert found["served"] is None and found["by Triton"] == 0
    assert ["Triton kernel triton_samples.add", found["another"][2]] in found["missing"]


def test_lean_never_compiles(everything):
    assert everything["lean"] == {"kind": "load", "hint": 'runtime="lean" never compiles'}


def test_what_triton_looks_at_in_each_launch_is_looked_at(misses):
    hooks = "hooks of launches are set (add_pre_run_hook or triton.knobs.runtime)"
    assert misses["changes"] == {
        "pre-run": hooks,
        "enter": hooks,
        "debug": "triton.knobs: debug changed from False to True",
        "global": "the global variable SCALE changed from constexpr[3] to constexpr[4]",
    }


# ------------------------------------------------------------------ capture

REFUSED = {
    "described": "argument source: a Mine has no frozen form",
    "constant": "argument VALUE: a complex has no frozen form",
    "optioned": "the option extern_libs",
    "hooked": "hooks of launches are set (add_pre_run_hook, triton.knobs.runtime)",
    "table": "the global variable __main__.TABLE: a constant of type constexpr",
    "by_type": "it is tuned by a value of type dtype",
}


def test_what_cannot_be_frozen_is_refused_by_name(captured, tmp_path):
    place = Place(tmp_path, extra={"TRITON_CACHE_DIR": str(captured.folder / "cache")})
    found = place.run(HERE / "triton_refused.py", tmp_path).facts
    reasons = {name: f"a launch of this Triton kernel: {why}" for name, why in REFUSED.items()}
    assert {name: why for name, why in found["problems"]} == {
        f"__main__.{name}": why for name, why in reasons.items()
    }
    assert found["kernels"] == ["__main__.by_type", "__main__.fine"]  # its launch, not its choice
    for name, why in reasons.items():
        assert f"__main__.{name}: {why}" in found["message"]
    assert not (tmp_path / "refused.precomp").exists()
    with Artifact.open(tmp_path / "rest.precomp") as rest:
        names = [entry.name for entry in rest.entries if entry.kind in ("triton", "tuned")]
    assert names == ["__main__.by_type", "__main__.fine"]


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"target": SimpleNamespace(backend="hip", arch="gfx942")}, "a kernel for hip"),
        ({"profile_scratch_size": 128}, "an instrumented kernel"),
    ],
)
def test_kernels_of_another_kind_are_refused(metadata, why):
    target = SimpleNamespace(backend="cuda", arch=90)
    compiled = SimpleNamespace(metadata=SimpleNamespace(**{"target": target} | metadata))
    with pytest.raises(Unsupported, match=why):
        launch_record(compiled, [], Store())


def compiled_with_map(**changes):
    """What Triton's compiler says of a kernel that takes one tensor descriptor."""
    row = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [32, 64]}
    row |= {"fp4_padded": False} | changes
    return SimpleNamespace(tensordesc_meta=[row])


def test_tensor_maps_are_what_tritons_compiler_says():
    pytest.importorskip("triton")
    kinds = ["i32", "tensordesc<bf16[32, 64]>"]
    rounded = 11 if kernels.map_types(10)[1] >= 0 else -1
    found = parameters_of(kinds, compiled_with_map())
    assert found == {"codes": "iT", "tensormaps": ((9, rounded, 2, (32, 64), 3, 1, 1),)}
    (row,) = parameters_of(kinds, compiled_with_map(fp4_padded=True))["tensormaps"]
    assert row[5:] == (2, 2 if kernels.passes_padded() else 1)
    flags = 2 if rounded > 0 else 1
    for metadata in (SimpleNamespace(tensordesc_meta=[]), SimpleNamespace()):
        found = parameters_of(kinds, metadata)
        assert found == {"codes": "iD", "tensormaps": ((2, flags),)}


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (compiled_with_map(is_im2col=True), "a tensor descriptor for im2col"),
        (compiled_with_map(wave=1), r"tensor descriptors of unknown \['wave'\]"),
        (None, "tensor descriptors that torch launches by itself"),
    ],
)
def test_other_descriptors_are_refused(metadata, why):
    pytest.importorskip("triton")
    assert parameters_of(["tensordesc<bf16[32, 64]>"], compiled_with_map(is_im2col=False))
    with pytest.raises(Unsupported, match=why):
        parameters_of(["tensordesc<bf16[32, 64]>"], metadata)


def test_a_capture_in_a_prepared_process_holds_what_is_missing(captured, tmp_path):
    assert captured.serve("captures_the_rest", tmp_path) == {
        "rest": ["triton_samples.add"],
        "merged": 2,  # both launches are served, from one file or from two
        "two": 2,
        "differ": [],
        "fingerprints": 2,
    }


def test_equal_captures_give_equal_bytes(captured, tmp_path):
    other = capture(tmp_path, captured.driver, captured.folder / "cache")
    assert other.facts == captured.facts
    again = (tmp_path / "all.precomp").read_bytes()
    assert again == (captured.folder / "all.precomp").read_bytes()


def test_images_keep_their_debug_data_if_that_is_asked_for(captured, everything, tmp_path):
    cache = captured.folder / "cache"
    whole = capture(tmp_path, captured.driver, cache, PRECOMP_KEEP_CUBIN_DEBUG="1")
    for folder, kept in ((captured.folder, False), (tmp_path, True)):
        with Artifact.open(folder / "all.precomp") as artifact:
            images = [artifact.read(e.digest) for e in artifact.entries if e.kind == "cubin"]
        assert images and all((b".version" in image) is kept for image in images)
    assert whole.serve("everything", tmp_path / "serve") == everything


def test_the_command_line_knows_the_entries(captured):
    path = captured.folder / "all.precomp"

    def precomp(*arguments: object) -> str:
        command = [sys.executable, "-m", "precomp", *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    text = precomp("inspect", path, "--guards")
    assert "triton_samples.add (sm_90)" in text
    assert "    x: *fp32, divisible by 16\n" in text and "    BLOCK: constexpr 128\n" in text
    assert "    option num_warps: 8\n" in text
    assert "triton_samples.tuned, tuned by n" in text
    assert "    (1000, 'torch.float32', 'torch.float32'): BLOCK=128, num_ctas=1" in text
    facts = json.loads(precomp("inspect", path, "--guards", "--json"))
    assert len(facts["launches"]) == facts["products"]["triton"]["entries"]
    assert "CUDA kernels are device code" in precomp("verify", path)


# ------------------------------------------------------------------ what is stale

SOURCE = (
    "its source, that of a function that it calls, or a constexpr that they read changed since it "
    "was captured"
)
EDITS = {
    "kernel": ("mask=i < n) + 1, mask", "mask=i < n) + 2, mask", {"tuned": SOURCE}),
    "helper": ("return x + y * SCALE", "return x - y * SCALE", {"default": SOURCE}),
    "constexpr": ("SCALE = tl.constexpr(3)", "SCALE = tl.constexpr(4)", {"default": SOURCE}),
    "function argument": (
        "return x * 2", "return x * 4", {"function argument": "FUNCTION: captured as constexpr"}
    ),
    "default of a parameter": (
        "n, BLOCK: tl.constexpr = 128", "n, BLOCK: tl.constexpr = 256",
        {"default": "its parameters changed since it was captured"},
    ),
    "decorator": (
        "@triton.jit\ndef add", '@triton.jit(do_not_specialize=["n"])\ndef add',
        {"default": "its parameters changed since it was captured"},
    ),
    "configurations": (
        "for n in (4, 2, 8)]", "for n in (4, 2, 1)]",
        {"tuned": "no best config for key (n=1000); tuned so far: nothing; "
                  "its configurations or its keys changed since it was captured"},
    ),
    "heuristic": (
        'values["n"] % values["BLOCK"] == 0', 'values["n"] > 0',
        {"heuristics": "EVEN: captured as constexpr False, found constexpr True"},
    ),
    "nothing": ("", "", {}),
}  # fmt: skip


@pytest.fixture(scope="session")
def edited(captured, tmp_path_factory):
    """Of each edit of the samples, which launches are served."""
    text = SAMPLES.read_text()
    for name, (old, new, _) in EDITS.items():
        assert old in text, name
        folder = captured.folder / "samples" / name
        folder.mkdir(parents=True)
        (folder / SAMPLES.name).write_text(text.replace(old, new, 1))
    return captured.serve("samples_now", tmp_path_factory.mktemp("edited"), EDITED="1")


@pytest.mark.parametrize("edit", EDITS)
def test_a_stale_kernel_is_refused(edited, edit):
    """Only what the edit touches is refused; the file itself may move."""
    _, _, expected = EDITS[edit]
    for name, result in edited[edit].items():
        if name in expected:
            assert expected[name] in result, name
        else:
            assert result == "served", name


def test_other_settings_of_triton_are_refused(captured, tmp_path):
    settings = {"DISABLE_PTXAS_OPT": "1", "TRITON_DEBUG": "1"}
    found = captured.serve("samples_now", tmp_path, **settings)[""]
    assert all("Triton's environment changed: captured ()" in text for text in found.values())
    assert all("Triton's debug changed: captured False, found True" in t for t in found.values())
