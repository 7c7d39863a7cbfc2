"""A damaged artifact is refused when it is prepared; nothing is installed, nothing crashes."""

from __future__ import annotations

CODE = """
    import random
    import torch
    torch.set_num_threads(1)
    import precomp

    how, artifact, damaged = sys.argv[1:4]
    whole = open(artifact, "rb").read()
    rng = random.Random(7)
    places = sorted({0, 1, 7, 8, 9, 15, 16, 31, 32, len(whole) - 1, len(whole) - 9}
                    | {i * len(whole) // 150 for i in range(150)})
    while len(places) < 300:
        places.append(rng.randrange(len(whole)))
    compile, hooks = torch.compile, list(sys.meta_path)
    other = {}
    for place in places:
        data = bytearray(whole[:place] if how == "cut" else whole)
        if how == "flip":
            data[place] ^= 1 << rng.randrange(8)
        with open(damaged, "wb") as file:
            file.write(data)
        try:
            precomp.prepare(damaged)
            other[place] = "accepted"
        except precomp.ArtifactCorruptError as error:
            if damaged not in str(error):
                other[place] = f"does not name the file: {error}"
        except Exception as error:
            other[place] = f"{type(error).__name__}: {error}"
        assert torch.compile is compile and sys.meta_path == hooks, place
    precomp.prepare(artifact).uninstall()
    done(places=len(places), other=other)
"""


def test_cut_anywhere_is_corrupt(captured, bare):
    facts = bare.script(CODE, "cut", captured("mlp").artifact, bare.tmp / "damaged").facts
    assert facts == {"places": 300, "other": {}}


def test_one_bit_flipped_anywhere_is_corrupt(captured, bare):
    facts = bare.script(CODE, "flip", captured("mlp").artifact, bare.tmp / "damaged").facts
    assert facts == {"places": 300, "other": {}}


def test_other_files_are_refused(bare):
    code = """
        import precomp
        seen = {}
        for name, data in {"empty": b"", "text": b"hello\\n" * 100, "zeros": bytes(5000),
                           "zip": b"PK\\x03\\x04" + bytes(500)}.items():
            open(name, "wb").write(data)
            try:
                precomp.prepare(name)
                seen[name] = "accepted"
            except precomp.ArtifactCorruptError as error:
                seen[name] = "refused" if name in str(error) else str(error)
        try:
            precomp.prepare("missing.precomp")
        except FileNotFoundError as error:
            seen["missing"] = error.filename
        done(**seen)
    """
    assert bare.script(code).facts == {
        "empty": "refused",
        "text": "refused",
        "zeros": "refused",
        "zip": "refused",
        "missing": "missing.precomp",
    }


def test_another_digest_than_asked_for_is_refused(captured, bare):
    code = """
        import precomp
        artifact = precomp.Artifact.open(sys.argv[1])
        prepared = precomp.prepare(sys.argv[1], digest=artifact.digest)
        prepared.uninstall()
        try:
            precomp.prepare(sys.argv[1], digest="0" * 64)
        except precomp.ArtifactError as error:
            done(text=str(error), digest=artifact.digest)
    """
    facts = bare.script(code, captured("mlp").artifact).facts
    assert "0" * 16 in facts["text"]
    assert facts["digest"][:16] in facts["text"]
