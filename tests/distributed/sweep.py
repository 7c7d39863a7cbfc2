"""Every case, other world sizes, and a compile cache for each rank: `tools/test distributed`.

Too slow for every push; pytest collects it only when it is named.
"""

from __future__ import annotations

import pytest
import ranks
from processes import Place, differences

from precomp import Artifact

CASES = (
    "fsdp_compiled_model", "fsdp_compile_method_after", "fsdp_compile_method_before",
    "fsdp_blocks_before", "fsdp_blocks_after", "fsdp_remainder", "fsdp_remainder_per_rank",
    "fsdp_mixed_precision", "fsdp_checkpointing", "fsdp_checkpoint_wrapper", "fsdp_accumulate",
    "fsdp_recommendation", "fsdp_hybrid", "pipeline",
    "ddp_one_bucket", "ddp_compiled_module", "ddp_buckets", "ddp_no_sync",
    "tensor_parallel", "tensor_parallel_blocks", "fsdp_tensor_parallel", "asks_for_its_rank",
)  # fmt: skip
# What is compiled depends on the rank and on the number of ranks.
RANKED = (
    "tensor_parallel", "tensor_parallel_blocks", "fsdp_tensor_parallel", "asks_for_its_rank",
)  # fmt: skip
# Written for two ranks, or for an even number of them.
PAIRS = ("fsdp_hybrid", "pipeline")
FEW = ("fsdp_compiled_model", "fsdp_remainder", "fsdp_recommendation", "ddp_one_bucket")


@pytest.fixture(scope="module")
def all_cases(capture_and_serve):
    return capture_and_serve(*CASES)


def same_results(compiled, served):
    for one, other in zip(compiled, served, strict=True):
        assert one["errors"] == other["errors"] == {}
        assert other["violations"] == other["missing"] == other["spawns"] == []
        assert differences(one["results"], other["results"]) == []


@pytest.mark.parametrize("name", CASES)
def test_every_rank_is_bit_identical_to_its_compiled_run(all_cases, name):
    for captured, served in zip(all_cases.captured, all_cases.served, strict=True):
        assert captured["errors"] == served["errors"] == {}
        assert served["violations"] == served["missing"] == served["spawns"] == []
        assert differences(captured["results"][name], served["results"][name]) == []


@pytest.mark.parametrize("name", CASES)
def test_ranks_store_one_artifact(all_cases, name):
    whole = Artifact.open(all_cases.directory / f"{name}.precomp")
    for rank in range(2):
        own = Artifact.open(all_cases.directory / f"{name}.{rank}.precomp")
        assert (own.digest == whole.digest) == (name not in (*RANKED, "pipeline"))


@pytest.mark.parametrize("count", [1, 3, 4, 16])
def test_an_artifact_of_two_ranks_serves_other_world_sizes(
    all_cases, inductor_cache, tmp_path, count
):
    names = [name for name in CASES if name not in (*PAIRS, *RANKED)] if count == 4 else FEW
    compiling = Place(tmp_path / "compile", cache=inductor_cache)
    serving = Place(tmp_path / "serve", compiler=False)
    compiled = ranks.forked(
        compiling, count, ranks.COMPILED, "worker.py", "compiled", *names, timeout=1800
    )
    served = ranks.forked(
        serving, count, ranks.SERVED, "worker.py", "serve", all_cases.directory, *names
    )
    same_results(compiled, served)


def test_an_artifact_of_two_ranks_serves_hybrid_sharding(all_cases, inductor_cache, tmp_path):
    """2 groups of 2 ranks, from what was captured without replicas."""
    name = "fsdp_hybrid"
    (tmp_path / f"{name}.precomp").symlink_to(all_cases.directory / "fsdp_compiled_model.precomp")
    compiling = Place(tmp_path / "compile", cache=inductor_cache)
    serving = Place(tmp_path / "serve", compiler=False)
    compiled = ranks.forked(compiling, 4, ranks.COMPILED, "worker.py", "compiled", name)
    served = ranks.forked(serving, 4, ranks.SERVED, "worker.py", "serve", tmp_path, name)
    same_results(compiled, served)


def test_what_depends_on_ranks_is_served_to_as_many(inductor_cache, tmp_path):
    capturing = Place(tmp_path / "capture", cache=inductor_cache)
    serving = Place(tmp_path / "serve", compiler=False)
    captured = ranks.forked(
        capturing, 4, ranks.COMPILED, "worker.py", "capture", tmp_path, *RANKED, timeout=1800
    )
    assert [rank["errors"] for rank in captured] == [{}] * 4
    served = ranks.forked(serving, 4, ranks.SERVED, "worker.py", "serve", tmp_path, *RANKED)
    same_results(captured, served)


def test_an_artifact_of_16_ranks_is_the_file_of_two(all_cases, inductor_cache, tmp_path):
    names = (*FEW, "fsdp_remainder_per_rank", "ddp_buckets")
    place = Place(tmp_path, cache=inductor_cache)
    captured = ranks.forked(
        place, 16, ranks.COMPILED, "worker.py", "capture", place.work, *names, timeout=1800
    )
    assert [rank["errors"] for rank in captured] == [{}] * 16
    for name in names:
        two, many = (d / f"{name}.precomp" for d in (all_cases.directory, place.work))
        print(f"{name}: {two.stat().st_size:,} bytes of 2 ranks, {many.stat().st_size:,} of 16")
        if name == "fsdp_remainder_per_rank":  # 16 ranks met other shapes
            assert many.stat().st_size < 1.25 * two.stat().st_size
        else:
            assert Artifact.open(many).digest == Artifact.open(two).digest


@pytest.mark.parametrize(
    ("name", "words"),
    [("tensor_parallel_output", "DTensor"), ("fsdp_compiled_optimizer", "optimizer")],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, inductor_cache, name, words):
    places = ranks.places(tmp_path, 2, cache=inductor_cache)
    for rank in ranks.run(places, "worker.py", "capture", tmp_path, name, timeout=900):
        assert "UnsupportedCaptureError" in rank.facts["errors"][name]
        assert words in rank.facts["errors"][name]
    assert list(tmp_path.glob("*.precomp")) == []


def test_ranks_with_caches_of_their_own_store_one_artifact(tmp_path):
    places = ranks.places(tmp_path, 2)
    for rank in ranks.run(places, "worker.py", "capture", tmp_path, "fsdp_blocks_before"):
        assert rank.facts["errors"] == {}
    parts = [Artifact.open(tmp_path / f"fsdp_blocks_before.{rank}.precomp") for rank in range(2)]
    assert parts[0].digest == parts[1].digest
