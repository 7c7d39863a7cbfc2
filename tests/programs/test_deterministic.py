"""The same program gives the same bytes, whoever captures it, wherever."""

from __future__ import annotations

import pytest
from processes import Place

MODULE = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(16, 16)
            self.b = nn.Linear(16, 4)
            self.kinds = {"one", "two", "three"}
            self.table = {"x": 1.5, "y": 2.5}

        def forward(self, x, flags=frozenset({"p", "q", "r"})):
            h = torch.relu(self.a(x)) * self.table["x"]
            if "one" in self.kinds and "p" in flags:
                h = h + 1
            torch._dynamo.graph_break()
            return self.b(h).tanh()

    def run():
        torch.manual_seed(0)
        model = Model()
        compiled = torch.compile(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for n in (4, 6):
            loss = compiled(torch.ones(n, 16)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""

SCRIPT = """
    import torch
    torch.set_num_threads(1)
    import precomp
    from user import run
    with precomp.capture() as capture:
        run()
    artifact = capture.finalize(sys.argv[1])
    done(digest=artifact.digest, fingerprint=artifact.fingerprint,
         reopened=precomp.Artifact.open(sys.argv[1]).digest)
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Two captures from cold caches in different places, and one from the second's warm cache."""
    root = tmp_path_factory.mktemp("deterministic")
    running = []
    for i, seed in enumerate(("0", "4711")):
        place = Place(root / f"place-{i}", extra={"PYTHONHASHSEED": seed, "USER": f"user{i}"})
        place.write("user.py", MODULE)
        running.append((place, place.root / f"{i}.precomp"))
    results = []
    for place, path in running:
        results.append((path, place.script(SCRIPT, path).facts))
    warm = Place(root / "warm", cache=running[1][0].inductor)
    warm.write("user.py", MODULE)
    path = root / "warm.precomp"
    results.append((path, warm.script(SCRIPT, path, name="renamed.py").facts))
    return results


def test_two_cold_captures_are_byte_identical(three):
    (a, facts), (b, other), _ = three
    assert facts == other
    assert a.read_bytes() == b.read_bytes()


def test_a_capture_from_a_warm_cache_is_byte_identical(three):
    _, (b, facts), (c, other) = three
    assert facts == other
    assert b.read_bytes() == c.read_bytes()


def test_digest_is_the_sha256_of_the_file(three):
    import hashlib

    path, facts = three[0]
    assert facts["digest"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert facts["reopened"] == facts["digest"]


def test_no_path_of_the_capturing_machine_is_in_the_file(three, bare):
    """Nor in any of its entries."""
    path, _ = three[0]
    code = """
        from precomp import _core
        artifact = _core.Artifact(sys.argv[1])
        found = [(kind, name) for kind, name, digest, *_ in artifact.entries
                 if any(text.encode() in artifact.read(digest) for text in sys.argv[2:])]
        found += [text for text in sys.argv[2:] if text.encode() in open(sys.argv[1], "rb").read()]
        done(found=found)
    """
    texts = (path.parent, path.parent.parent, "place-0")
    assert bare.script(code, path, *texts).facts == {"found": []}
