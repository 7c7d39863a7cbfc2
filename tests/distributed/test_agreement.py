"""Ranks agree or fail together, with the same error and in time."""

from __future__ import annotations

import json

import pytest
import ranks

SCENARIOS = (
    "equal_files", "other_artifact", "other_artifact_found_by_agree", "other_torch",
    "other_threads", "other_threads_that_are_served", "missing_file", "missing_everywhere",
    "corrupt_file", "another_environment_everywhere", "host_without_the_file", "union",
    "union_on_two_hosts", "problem_on_one_rank", "other_environment", "other_path", "unwritable",
    "capture_left_by_an_exception", "a_violation_in_each_of_two_preparations", "slow_rank",
    "tuned_apart", "silent_rank",
)  # fmt: skip

# How rank 1 differs: the field, and words of the error that both ranks raise.
MISMATCHES = {
    "other_artifact": ("fingerprint", "prepare: "),
    "other_artifact_found_by_agree": ("fingerprint", "agree: "),
    "other_torch": ("torch", "torch: expected 2."),
    "other_threads": ("threads", "threads: expected 1, found 2"),
    "missing_file": ("artifact", "missing.1: no such file"),
    "corrupt_file": ("artifact", "ArtifactCorruptError"),
    "other_environment": ("machine", "machine: expected machine 0, found machine 1"),
}

# Errors of the whole group: class and words.
FAILURES = {
    "missing_everywhere": ("FileNotFoundError", "nowhere"),
    "another_environment_everywhere": ("EnvironmentMismatchError", "torch: expected 0.1"),
    "other_path": ("PrecompError", "pass group=False"),
    "unwritable": ("FileNotFoundError", "rank 0: No such file or directory"),
}


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """What each of two ranks found, per scenario, and where the files are."""
    root = tmp_path_factory.mktemp("talk")
    places = ranks.places(root, 2)
    return root, [r.facts for r in ranks.run(places, "talk.py", root, *SCENARIOS)]


@pytest.fixture
def outcomes(talk, request):
    return [facts[request.param] for facts in talk[1]]


@pytest.mark.parametrize(
    "outcomes",
    ["equal_files", "other_threads_that_are_served", "host_without_the_file"],
    indirect=True,
)
def test_ranks_that_agree_are_prepared(outcomes):
    assert outcomes[0] == outcomes[1]
    (fingerprint,) = outcomes[0]
    assert len(fingerprint) == 64


@pytest.mark.parametrize(("outcomes", "name"), [(n, n) for n in MISMATCHES], indirect=["outcomes"])
def test_every_rank_raises_the_same_list_of_differences(outcomes, name):
    field, words = MISMATCHES[name]
    assert outcomes[0] == outcomes[1]
    kind, text, differences = outcomes[0]
    assert kind == "RankMismatchError"
    assert words in text
    assert "rank 1:" in text
    assert {row[0] for row in differences} == {1}
    assert field in {row[1] for row in differences}


@pytest.mark.parametrize(("outcomes", "name"), [(n, n) for n in FAILURES], indirect=["outcomes"])
def test_every_rank_raises_the_same_failure(outcomes, name):
    kind, words = FAILURES[name]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == kind
    assert words in outcomes[0][1]


@pytest.mark.parametrize("outcomes", ["problem_on_one_rank"], indirect=True)
def test_what_one_rank_cannot_freeze_is_refused_on_all(outcomes):
    assert outcomes[0] == outcomes[1]
    (kind, text, _), written = outcomes[0]
    assert kind == "UnsupportedCaptureError"
    assert "f: cannot be frozen (rank 1)" in text
    assert not written


@pytest.mark.parametrize("outcomes", ["union"], indirect=True)
def test_finalize_writes_the_union_once(outcomes):
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == [["own 0", 9_000_000], ["own 1", 9_000_000], ["shared", 6_000]]


@pytest.mark.parametrize("outcomes", ["union_on_two_hosts"], indirect=True)
def test_finalize_copies_the_file_to_hosts_that_cannot_read_it(outcomes):
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("outcomes", ["capture_left_by_an_exception"], indirect=True)
def test_a_capture_that_failed_elsewhere_fails_finalize(outcomes):
    (kind, text, _), written = outcomes[0]
    assert (kind, text) == ("PrecompError", "rank 1: ValueError: a bad batch")
    assert not written


@pytest.mark.parametrize("outcomes", ["a_violation_in_each_of_two_preparations"], indirect=True)
def test_each_preparation_has_its_own_violation(outcomes):
    assert outcomes[0] == outcomes[1]
    (one, first), (two, second) = outcomes[0]
    assert one.startswith("[trace] one at ")
    assert two.startswith("[trace] two at ")
    assert "on rank 0: not captured" in one
    assert first == second == 0


@pytest.mark.parametrize("outcomes", ["slow_rank"], indirect=True)
def test_a_rank_that_works_is_waited_for(outcomes):
    assert outcomes == [[0, 1], [0, 1]]


@pytest.mark.parametrize("outcomes", ["tuned_apart"], indirect=True)
def test_ranks_that_are_captured_choose_the_same_by_time(outcomes):
    first, second = outcomes
    apart = {"other configurations", "only one runs", "other templates"}  # to choose from
    apart |= {"the program's by an object"}
    apart |= {what for what in first if "afterwards" in what}
    for what in first:
        if what in apart:
            assert [first[what], second[what]] == [0, 1], what
        else:
            assert first[what] == second[what], what
    for what, again in (
        ("one kernel", "the same again"), ("kernels", "kernels again"),
        ("templates", "templates again"), ("the program's", "the program's again"),
    ):  # fmt: skip
        assert first[again] == first[what]


@pytest.mark.parametrize("outcomes", ["silent_rank"], indirect=True)
def test_a_rank_that_does_not_come_is_named(outcomes):
    kind, text, _ = outcomes[0]
    assert kind == "PrecompError"
    assert "no answer from rank 1 within" in text


def test_no_file_is_left_beside_the_artifacts(talk):
    root, _ = talk
    assert [path.name for path in root.rglob("*") if path.suffix in (".part", ".tmp")] == []
    assert [path for path in root.rglob("tmp*.precomp")] == []


# Where ranks die in talk.py's "killed", and words of the error of those that count on them.
DEATHS = {
    "before finalize": "finalize: no answer from rank 5 within 4 s",
    "in prepare": "prepare: no answer from rank 4 within 4 s",
    "sending": "finalize: no answer from rank 3 within 20 s",
    "writing": "finalize: the store of the process group does not answer any more",
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What each of six ranks, most of which were killed one after the other, found until then."""
    root = tmp_path_factory.mktemp("killed")
    found = ranks.run(ranks.places(root, 6), "talk.py", root, "killed")
    assert [rank.returncode for rank in found] == [-9, 0, 0, -9, -9, -9]
    assert list(root.glob("dead*")) == []
    return [json.loads(rank.stdout)["killed"] for rank in found]


@pytest.mark.parametrize("where", DEATHS)
def test_all_ranks_end_with_one_error_when_one_is_killed(killed, where):
    found = [rank[where] for rank in killed if where in rank]
    assert len(found) == (2 if where == "writing" else 3)
    kind, text, _ = found[0]
    assert kind == "PrecompError"
    assert DEATHS[where] in text
    assert all(other == found[0] for other in found)
