"""A miss on one rank is raised on every rank."""

from __future__ import annotations

import ranks


def test_every_rank_raises_the_violation_of_one(few, tmp_path):
    culprit = 0  # whose process runs the store, and ends
    places = ranks.places(tmp_path, 2, compiler=False)
    file = few.directory / "fsdp_compiled_model.precomp"
    facts = [rank.facts for rank in ranks.run(places, "violate.py", file, culprit)]
    assert facts[0]["text"] == facts[1]["text"]
    for found in facts:
        assert found["args"][:3] == [
            "trace", "Net.forward", "L['x']: shape expected [8, 6], found [5, 6]"
        ]  # fmt: skip
        assert found["args"][3].startswith(str(ranks.SCRIPTS / "cases.py:"))
        assert found["rank"] == culprit
        assert found["count"] == 1
    # The other rank raises it in the place of what its collective said.
    assert facts[1 - culprit]["context"] == "RuntimeError"
