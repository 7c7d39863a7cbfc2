"""FSDP2 and DDP: every rank is served from one artifact, bit for bit as it was compiled."""

from __future__ import annotations

import pytest
from processes import differences
from ranks import FEW, TENSOR_PARALLEL

from precomp import Artifact

ALL = (*FEW, *TENSOR_PARALLEL)


@pytest.mark.parametrize("name", ALL)
def test_every_rank_is_bit_identical_to_its_compiled_run(few, name):
    for captured, served in zip(few.captured, few.served, strict=True):
        assert captured["errors"] == served["errors"] == {}
        assert differences(captured["results"][name], served["results"][name]) == []


def test_nothing_compiles_on_any_rank(few):
    for served in few.served:
        assert served["violations"] == served["missing"] == served["spawns"] == []
        # torch.distributed.tensor itself imports sympy.
        assert set(served["compiler"]) <= {"sympy"}


@pytest.mark.parametrize("name", FEW)
def test_ranks_store_one_artifact(few, name):
    whole = Artifact.open(few.directory / f"{name}.precomp")
    parts = [Artifact.open(few.directory / f"{name}.{rank}.precomp") for rank in range(2)]
    assert {part.digest for part in parts} == {whole.digest}


@pytest.mark.parametrize("name", ALL)
def test_merge_gives_what_finalize_in_the_group_gave(few, name, tmp_path):
    parts = [few.directory / f"{name}.{rank}.precomp" for rank in range(2)]
    merged = Artifact.merge(parts, tmp_path / "merged.precomp")
    assert merged.digest == Artifact.open(few.directory / f"{name}.precomp").digest
