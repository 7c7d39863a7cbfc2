"""A process killed while it finalizes leaves either the whole file or none."""

from __future__ import annotations

CODE = """
    import signal, time
    import torch
    torch.set_num_threads(1)
    import precomp

    def f(x):
        return (x.sin() * 2 + x.cos()).relu().sum()

    path = sys.argv[1]
    with precomp.capture() as capture:
        x = torch.ones(64, requires_grad=True)
        torch.compile(f)(x).backward()

    def child(delay):
        "Finalize in a child and kill it after *delay* seconds; what the file is afterwards."
        pid = os.fork()
        if not pid:
            try:
                capture.finalize(path)
            finally:
                os._exit(0)
        if delay is not None:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not os.path.exists(path):
            return "none"
        precomp.Artifact.open(path).verify()
        return "whole"

    start = time.perf_counter()
    assert child(None) == "whole"
    whole = time.perf_counter() - start
    good = open(path, "rb").read()
    found = []
    for i in range(40):
        os.unlink(path)
        found.append(child(whole * 1.2 * i / 40))
        # Over an older file: the old one stays, or the new one is there.
        with open(path, "wb") as file:
            file.write(good)
        found.append(child(whole * 1.2 * i / 40))
        assert found[-1] == "whole"
    artifact = capture.finalize(path)
    done(found=found, same=open(path, "rb").read() == good, digest=artifact.digest)
"""


def test_killed_while_finalizing_leaves_the_whole_file_or_none(here):
    path = here.work / "out" / "f.precomp"
    path.parent.mkdir()
    facts = here.script(CODE, path).facts
    assert set(facts["found"]) == {"none", "whole"}
    assert facts["same"]


def test_a_directory_that_cannot_be_written_leaves_nothing_and_the_run_is_unharmed(here):
    code = """
        import torch
        torch.set_num_threads(1)
        import precomp

        def f(x):
            return x.sin() * 2

        with precomp.capture() as capture:
            y = torch.compile(f)(torch.ones(4))
        try:
            capture.finalize("missing/f.precomp")
        except OSError as error:
            kind = type(error).__name__
        artifact = capture.finalize("f.precomp")
        done(kind=kind, same=torch.allclose(y, f(torch.ones(4))), path=os.path.exists("f.precomp"),
             files=os.listdir("."))
    """
    facts = here.script(code).facts
    assert facts["kind"] == "FileNotFoundError"
    assert facts["same"] and facts["path"]
    assert sorted(facts["files"]) == ["f.precomp", "script.py"]
