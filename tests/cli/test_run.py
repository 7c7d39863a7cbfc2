"""``precomp run``: a script runs as ``python`` runs it, and what goes on around it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_artifacts import HOME

SCRIPT = """\
import atexit, sys, threading, time

def finish(what):
    print("main", __name__, __file__, sys.argv, sys.path[0], __package__, __spec__ is None)
    print(sorted(globals()), sys.modules["__main__"].finish is finish, type(__loader__).__name__)
    atexit.register(print, "atexit")
    # Outlives the script, and does not print into what that prints.
    threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
    if what == "error":
        raise ValueError("what went wrong")
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "hook":
        sys.excepthook = lambda kind, error, traceback: print("hook", traceback.tb_lineno)
        raise ValueError
    if what.startswith("exit "):
        sys.exit(eval(what[5:]))

finish(sys.argv[-1])
"""


def python(*words: object, cwd: Path, env: dict[str, str] | None = None):
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": HOME, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


RUN = ("-m", "precomp", "run", "--strict")


def as_python_does(*words: object, cwd: Path) -> None:
    bare = python(*words, cwd=cwd)
    ours = python(*RUN, *words, cwd=cwd)
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        bare.returncode,
        bare.stdout,
        bare.stderr,
    )


@pytest.mark.parametrize(
    "what",
    ["", "error", "interrupt", "hook", "exit 0", "exit 3", "exit None", "exit 'a message'"],
)
def test_a_script_runs_and_ends_as_in_python(tmp_path, what):
    (tmp_path / "script.py").write_text(SCRIPT)
    as_python_does("script.py", "--strict", "--", "-m", what, cwd=tmp_path)


def test_modules_packages_directories_and_links_run_as_in_python(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text(SCRIPT)
    (package / "__main__.py").write_text(SCRIPT)
    (tmp_path / "link.py").symlink_to(package / "part.py")
    (tmp_path / "no_suffix").write_text(SCRIPT)
    (tmp_path / "broken.py").write_text("def f(:\n")
    for words in (
        ("-m", "package.part", "--x"),
        ("-m", "package", "--strict"),
        ("package", "y"),
        ("link.py",),
        ("no_suffix",),
        ("broken.py",),
    ):
        as_python_does(*words, cwd=tmp_path)


def test_two_dashes_end_the_options_of_precomp(tmp_path):
    (tmp_path / "--script.py").write_text("import sys; print(sys.argv)")
    done = python(*RUN, "--", "--script.py", "--", "-x", cwd=tmp_path)
    assert done.stdout == "['--script.py', '--', '-x']\n", done.stderr


def test_what_cannot_be_run_is_said_in_one_line(tmp_path):
    for words, line, status in (
        (("missing.py",), "precomp: missing.py: No such file or directory", 2),
        (("-m", "no.such.module"), "precomp: no module named no.such.module", 1),
        (("-m", "json"), "precomp: no module named json.__main__", 1),
    ):
        done = python(*RUN, *words, cwd=tmp_path)
        assert (done.returncode, done.stderr.splitlines(), done.stdout) == (status, [line], "")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("script.py",),
        ("--strict",),
        ("--strict", "-m"),
        ("--capture", "a", "--prepare", "a", "script.py"),
        ("--capture", "a", "--strict", "script.py"),
        ("--prepare", "a", "--allow", "tune", "script.py"),
        ("--prepare", "a", "--skip-unsupported", "script.py"),
        ("--strict", "--digest", "00", "script.py"),
        ("--nonsense", "script.py"),
    ],
)
def test_wrong_usage_has_status_2(tmp_path, words):
    (tmp_path / "script.py").write_text("print('ran')")
    done = python("-m", "precomp", "run", *words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and "usage: precomp run" in done.stderr


def test_the_rank_is_put_into_the_names_of_files(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')")
    ranks = {"RANK": "1", "WORLD_SIZE": "2"}
    command = ("-m", "precomp", "run", "--capture", "a{rank}.precomp", "script.py")
    done = python(*command, cwd=tmp_path, env=ranks)
    assert (done.returncode, done.stdout) == (1, "ran\n")
    assert "a1.precomp was not written: the script did not import torch" in done.stderr
    command = ("-m", "precomp", "run", "--prepare", "b{rank}.precomp", "script.py")
    assert "b1.precomp: No such file" in python(*command, cwd=tmp_path, env=ranks).stderr


def test_what_is_wrong_with_the_files_is_said_before_the_script_runs(tmp_path, one):
    (tmp_path / "script.py").write_text("print('ran')")
    (tmp_path / "bad.precomp").write_bytes(one.read_bytes()[:-1])
    for words, reason in (
        (("--prepare", "missing"), "missing: No such file or directory"),
        (("--prepare", "bad.precomp"), "bad.precomp: header: the file has"),
        (("--capture", "no/such/a.precomp"), "no directory"),
        (("--strict", "--allow", "nonsense"), "nonsense"),
    ):
        done = python("-m", "precomp", "run", *words, "script.py", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert reason in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_script_without_torch_needs_no_artifact(tmp_path, one):
    (tmp_path / "script.py").write_text("import sys; print('torch' in sys.modules)")
    done = python("-m", "precomp", "run", "--prepare", one, "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert "did not import torch" in done.stderr


def test_another_environment_ends_the_script_where_it_imports_torch(tmp_path, one):
    pytest.importorskip("torch")
    script = "try:\n    import torch\nexcept:\n    print('caught')\nprint('after')\n"
    (tmp_path / "script.py").write_text(script)
    done = python("-m", "precomp", "run", "--prepare", one, "script.py", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "caught\nafter\n"
    assert "captured in another environment" in done.stderr
    assert "Traceback" not in done.stderr
