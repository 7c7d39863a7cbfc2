"""Modules frozen in one process give the same bits in another that never compiled anything."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

SERVED = (
    "elementwise", "reductions", "products", "convolution", "indexing", "ordering", "randomness",
    "dynamic", "views", "constants", "fallbacks", "branches", "unbacked", "mutation", "pools",
    "threads",
)  # fmt: skip
OPERATORS = ("operators", "operator_training")
TRAINED = ("products", "convolution", "indexing", "randomness", "operator_training")


@pytest.fixture(scope="session")
def frozen(captured):
    """name -> digests of the modules that were frozen."""
    digests: dict[str, list[str]] = {}
    for name, digest, _ in captured[1]["cases"]:
        if digest is not None:
            digests.setdefault(name, []).append(digest)
    return digests


def test_every_program_is_frozen_forward_and_backward(frozen):
    assert set(frozen) == {*SERVED, *OPERATORS}
    assert {name for name, digests in frozen.items() if len(digests) == 2} == {*TRAINED}


def test_results_are_bit_identical_in_a_process_without_the_compiler(captured, frozen, bare):
    report = bare(HERE / "served.py", captured[0], *SERVED)
    assert len(report["results"]) == sum(len(frozen[name]) for name in SERVED)
    assert not any(report["results"].values()), report["results"]
    assert report["heavy"] == []
    assert report["fds"] == []
    assert report["files"] == []


def test_custom_operators_are_served_bit_identically(captured, frozen, bare):
    report = bare(HERE / "served.py", captured[0], *OPERATORS)
    assert len(report["results"]) == 3
    assert not any(report["results"].values()), report["results"]


def test_digests_depend_on_neither_process_nor_place_nor_order(captured, frozen, capture_again):
    names = ["constants", "operators"]
    environment = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"}
    _, summary = capture_again(names[::-1], **environment)
    again: dict[str, list[str]] = {}
    for name, digest, _ in summary["cases"]:
        again.setdefault(name, []).append(digest)
    assert again == {name: frozen[name] for name in names}
    assert set(summary["kernels"]) <= set(captured[1]["kernels"])


def test_a_module_from_a_warm_cache_of_torch_has_the_same_digest(captured, frozen, capture_again):
    cache = captured[0].parent / "cache"
    names = ["elementwise", "operator_training"]
    _, summary = capture_again(names, TORCHINDUCTOR_CACHE_DIR=str(cache))
    assert [digest for _, digest, _ in summary["cases"]] == [
        digest for name in names for digest in frozen[name]
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("parameters_frozen", "frozen parameters"),
        ("regions_wrapped", "wrap_inductor_compiled_regions"),
        ("marked_for_the_profiler", "imports torch.profiler"),
    ],
)
def test_unsupported_options_of_inductor_are_refused_by_name(captured, name, reason):
    reasons = [refused for case, _, refused in captured[1]["cases"] if case == name]
    assert reasons and all(reason in text for text in reasons), reasons


def test_a_kernel_is_loaded_once_per_process_whichever_thread_asks(captured, bare):
    report = bare(HERE / "behaviour.py", "threads", captured[0])
    assert report == {"failures": [], "same": True, "kernels": report["loaded"], **report}
    assert report["descriptors"] == 0


def test_two_hundred_loads_leak_neither_objects_nor_descriptors(captured, bare):
    report = bare(HERE / "behaviour.py", "leaks", captured[0])
    assert report["descriptors"] == 0
    assert report["blocks"] < 50, report
    assert report["references"] == 0


def test_a_forked_child_runs_what_its_parent_loaded_and_loads_more(captured, bare):
    assert bare(HERE / "behaviour.py", "fork", captured[0]) == {"status": 0}


def test_constants_live_as_long_as_the_function(captured, bare):
    assert bare(HERE / "behaviour.py", "constants", captured[0]) == {"differences": []}


def test_the_frame_evaluator_never_sees_a_module_or_what_it_calls(captured, bare):
    report = bare(HERE / "behaviour.py", "evaluator", captured[0])
    assert report["differences"] == []
    assert report["seen"] == ["run"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("none", ""),
        ("called", ""),
        ("absent", "operator precomp_test::scale is not registered"),
        ("schema", "precomp_test::scale: its schema was"),
        ("fake", "precomp_test::scale: changed since capture: fake"),
        ("backward", "precomp_test::scale: changed since capture: backward"),
        ("implementation", "precomp_test::scale: changed since capture: implementation"),
        ("helper", "precomp_test::scale: changed since capture: implementation"),
    ],
)
def test_a_changed_custom_operator_makes_the_module_stale(captured, bare, change, reason):
    report = bare(HERE / "behaviour.py", "stale", captured[0], change)
    assert (reason in report["reason"]) if reason else report["reason"] is None, report
