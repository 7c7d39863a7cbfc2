"""The environment record: what must match, what must not matter."""

import pickle
import subprocess
import sys

import pytest

import precomp
from precomp import _core, environment, torch_api
from precomp.errors import (
    ArtifactCorruptError,
    BindingError,
    CompileViolation,
    CudaError,
    EnvironmentMismatchError,
    PrecompError,
    UnsupportedCaptureError,
)

BASE = {
    "torch": "2.13.0+cpu",
    "torch_commit": "abc",
    "python": "CPython 3.11",
    "bytecode": "a70d0d0a",
    "machine": "x86_64",
    "cpu_capability": "AVX2",
    "threads": "1",
}


def test_all_differences_are_reported_at_once():
    found = {**BASE, "torch": "2.14.0", "cpu_capability": "DEFAULT", "threads": "8"}
    with pytest.raises(EnvironmentMismatchError) as caught:
        environment.require_match("a.precomp", BASE, found)
    assert caught.value.differences == (
        ("cpu_capability", "AVX2", "DEFAULT"),
        ("torch", "2.13.0+cpu", "2.14.0"),
    )
    text = str(caught.value)
    assert "a.precomp" in text
    assert "torch: expected 2.13.0+cpu, found 2.14.0" in text
    assert "cpu_capability: expected AVX2, found DEFAULT" in text
    assert "threads" not in text


def test_a_field_that_one_side_lacks_is_a_difference():
    found = {k: v for k, v in BASE.items() if k != "machine"}
    assert environment.differences(BASE, found) == (("machine", "x86_64", "nothing"),)


def test_the_number_of_threads_is_a_warning_that_names_both_numbers():
    assert environment.warnings(BASE, BASE) == ()
    (text,) = environment.warnings(BASE, {**BASE, "threads": "4"})
    assert "get_num_threads() == 1" in text
    assert "has 4" in text


def test_the_record_does_not_depend_on_directories_or_unrelated_variables(tmp_path):
    pytest.importorskip("torch")
    code = "import json, precomp.environment as e; print(json.dumps(e.current(), sort_keys=True))"

    def record(**extra):
        import os

        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **extra},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    plain = record(OMP_NUM_THREADS="1")
    other = record(OMP_NUM_THREADS="1", HOME=str(tmp_path), HOSTNAME="elsewhere", FOO="bar")
    assert plain == other
    assert record(OMP_NUM_THREADS="1", ATEN_CPU_CAPABILITY="default") != plain


def test_an_artifact_of_a_version_with_other_records_is_refused_before_it_is_read(tmp_path):
    pytest.importorskip("torch")
    older = environment.current() | {"records": "1"}
    with_none = {k: v for k, v in older.items() if k != "records"}
    for record, said in ((older, "1"), (with_none, "nothing")):
        path = tmp_path / f"{said}.precomp"
        _core.write_artifact(path, record, [("frame", "f", b"no record at all")])
        with pytest.raises(EnvironmentMismatchError) as caught:
            precomp.prepare(path)
        assert caught.value.differences == (("records", said, environment.RECORDS),)
        assert "another version of precomp wrote them" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        EnvironmentMismatchError("text", (("torch", "1", "2"),)),
        UnsupportedCaptureError("text", (("f", "because"),)),
        CompileViolation("trace", "f", "why", "f.py:1", "hint"),
        ArtifactCorruptError("text"),
        BindingError("text"),
        CudaError("text"),
        PrecompError("text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_pickle_with_everything_they_say(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_violation_is_no_exception_that_handlers_catch():
    assert not issubclass(CompileViolation, Exception)
    text = str(CompileViolation("trace", "f", "x changed", "f.py:3", "capture again"))
    assert text == "[trace] f at f.py:3: x changed (capture again)"


def test_an_unknown_torch_is_refused_with_one_line(monkeypatch):
    monkeypatch.setattr(torch_api, "_version", lambda: "2.99.1+cu140")
    with pytest.raises(PrecompError) as caught:
        torch_api.tables()
    supported = "2.11, 2.13, 2.14"
    assert str(caught.value) == (
        f"precomp: torch 2.99.1+cu140 is not supported (supported: {supported})"
    )


def test_all_missing_torch_names_are_listed_at_once(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(torch_api, "_version", lambda: "2.13.9")
    table = {"a": "torch:no_such_name", "b": "torch.no_such_module:x", "c": "torch:Tensor"}
    with pytest.raises(PrecompError) as caught:
        torch_api._resolve(table)
    text = str(caught.value)
    assert "a (torch:no_such_name)" in text
    assert "b (torch.no_such_module:x)" in text
    assert "c (" not in text
