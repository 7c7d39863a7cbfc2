"""precomp.bind and prepare(model=...): a model file and the artifact it belongs to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import precomp
from precomp import _core
from precomp.binding import HEADER_LIMIT, Binding, binding_of, require_bound
from precomp.errors import ArtifactCorruptError, BindingError, EnvironmentMismatchError

TENSORS = bytes(range(256)) * 9
HEADER = {
    "__metadata__": {"format": "pt", "note": "größer"},
    "b": {"dtype": "U8", "shape": [256], "data_offsets": [0, 256]},
    "a": {"dtype": "F32", "shape": [2, 256], "data_offsets": [256, 2304]},
}


def artifact(path: Path, *names: str) -> Path:
    entries = [("frame", name, f"code of {name}".encode()) for name in names]
    _core.write_artifact(path, {"torch": "0.0"}, [*entries, ("rules", "rules", b"r")])
    return path


def safetensors(path: Path, header: object = HEADER, tensors: bytes = TENSORS) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)
    return path


def parts(path: Path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert (8 + length) % 8 == 0, "tensors are not aligned"
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return artifact(tmp_path / "one.precomp", "f", "g")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return artifact(tmp_path / "other.precomp", "f", "h")


@pytest.fixture(params=["safetensors", "bin"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"model.{request.param}"
    if request.param == "safetensors":
        return safetensors(path)
    path.write_bytes(TENSORS)
    return path


def require(model: Path, path: Path) -> None:
    with precomp.Artifact.open(path) as opened:
        require_bound(model, opened)


def test_a_pair_that_was_bound_is_accepted_and_another_refused(model, one, other):
    binding = precomp.bind(model, one)
    assert isinstance(binding, Binding) and binding == binding_of(model)
    assert binding.fingerprint == precomp.Artifact.open(one).fingerprint
    require(model, one)
    with pytest.raises(BindingError, match="lacks 1 of 2 frame") as caught:
        require(model, other)
    assert binding.fingerprint in str(caught.value) and str(other) in str(caught.value)


def test_bind_takes_an_open_artifact_and_leaves_it_open(model, one):
    with precomp.Artifact.open(one) as opened:
        assert precomp.bind(model, opened).fingerprint == opened.fingerprint
        assert not opened.closed


def test_binding_again_replaces(model, one, other):
    precomp.bind(model, one)
    precomp.bind(model, other)
    require(model, other)
    with pytest.raises(BindingError):
        require(model, one)


def test_an_unbound_model_is_refused(model, one):
    assert binding_of(model) is None
    with pytest.raises(BindingError, match="not bound to an artifact.*precomp bind"):
        require(model, one)


def test_an_artifact_merged_from_the_bound_one_belongs_to_the_model(model, one, other, tmp_path):
    precomp.Artifact.merge([one, other], tmp_path / "both.precomp").close()
    precomp.bind(model, one)
    require(model, tmp_path / "both.precomp")
    precomp.bind(model, tmp_path / "both.precomp")
    with pytest.raises(BindingError, match="lacks 1 of 3 frame"):
        require(model, one)


def test_an_artifact_without_frames_binds_nothing(model, tmp_path):
    with pytest.raises(BindingError, match="holds no frames"):
        precomp.bind(model, artifact(tmp_path / "empty.precomp"))
    assert binding_of(model) is None


def test_a_damaged_artifact_binds_nothing(model, one):
    before = model.read_bytes()
    one.write_bytes(one.read_bytes()[:-1])
    with pytest.raises(ArtifactCorruptError):
        precomp.bind(model, one)
    assert model.read_bytes() == before and binding_of(model) is None


def test_the_rest_of_a_safetensors_file_stays(tmp_path, one):
    model = safetensors(tmp_path / "m.safetensors")
    model.chmod(0o640)
    precomp.bind(model, one)
    header, tensors = parts(model)
    assert tensors == TENSORS
    assert model.stat().st_mode & 0o777 == 0o640
    metadata = header.pop("__metadata__")
    assert header == {name: HEADER[name] for name in ("b", "a")} and list(header) == ["b", "a"]
    assert metadata.pop("precomp.fingerprint") == precomp.Artifact.open(one).fingerprint
    assert len(metadata.pop("precomp.frames").split(",")) == 2
    assert metadata == HEADER["__metadata__"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "one.precomp"]
    once = model.read_bytes()
    precomp.bind(model, one)
    assert model.read_bytes() == once


def test_the_safetensors_library_reads_a_bound_file(tmp_path, one):
    library = pytest.importorskip("safetensors")
    numpy = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    path = tmp_path / "m.safetensors"
    weights = {name: numpy.arange(6, dtype="float32") + i for i, name in enumerate("xy")}
    save_file(weights, path)
    fingerprint = precomp.bind(path, one).fingerprint
    with library.safe_open(path, "numpy") as file:
        assert file.metadata()["precomp.fingerprint"] == fingerprint
        assert all((file.get_tensor(name) == weights[name]).all() for name in weights)
    save_file(weights, path)
    assert binding_of(path) is None, "written anew, it is another model"


def test_checking_reads_no_weights(tmp_path, one):
    size = 1 << 38  # as a sparse file
    header = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header["__metadata__"] = {}
    model = safetensors(tmp_path / "m.safetensors", header, b"")
    os.truncate(model, model.stat().st_size + size)
    with pytest.raises(BindingError, match="not bound"):
        require(model, one)


DAMAGE = {
    "empty file": (b"", "expected 8 bytes of header length, found 0"),
    "part of the length": (b"\1\0\0", "expected 8 bytes of header length, found 3"),
    "huge header length": (b"\xff" * 8 + b"{}", f"expected at most {HEADER_LIMIT}"),
    "truncated header": (struct.pack("<Q", 500) + b'{"a":', "cut short: header of 500 bytes"),
    "header that is not JSON": (struct.pack("<Q", 4) + b"{'a'", "the header is not JSON"),
    "header that is not UTF-8": (struct.pack("<Q", 4) + b'"\xff\xff"', "the header is not JSON"),
    "header nested deeply": (
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        "the header is not JSON",
    ),
    "header that is no object": (struct.pack("<Q", 2) + b"[]", "expected a JSON object"),
    "key twice": (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "a key occurs twice"),
    "metadata of numbers": (
        struct.pack("<Q", 24) + b'{"__metadata__":{"a":1}}',
        "expected strings only",
    ),
    "tensor without offsets": (struct.pack("<Q", 8) + b'{"a":{}}', "tensor 'a': no valid"),
    "truncated tensors": (
        struct.pack("<Q", 30) + b'{"a":{"data_offsets":[0,100]}}' + bytes(99),
        "expected 100 bytes of tensors, found 99",
    ),
    "bytes after the tensors": (struct.pack("<Q", 2) + b"{}x", "expected 0 bytes of tensors"),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_damaged_safetensors_file_is_named_and_left_alone(tmp_path, one, fault):
    data, message = DAMAGE[fault]
    model = tmp_path / "m.safetensors"
    model.write_bytes(data)
    for act in (lambda: precomp.bind(model, one), lambda: require(model, one)):
        with pytest.raises(BindingError, match=message) as caught:
            act()
        assert str(caught.value).startswith(f"{model}: ")
    assert model.read_bytes() == data
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_model_is_an_error_of_the_file_system(tmp_path, one):
    for name in ("m.safetensors", "m.bin"):
        for act in (lambda p: precomp.bind(p, one), lambda p: require(p, one)):
            with pytest.raises(FileNotFoundError) as caught:
                act(tmp_path / name)
            assert caught.value.filename == str(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_directory_is_refused(tmp_path, one):
    (tmp_path / "checkpoint").mkdir()
    for act in (lambda p: precomp.bind(p, one), lambda p: require(p, one)):
        with pytest.raises(BindingError, match="a directory"):
            act(tmp_path / "checkpoint")


def test_a_link_is_not_replaced_by_a_file(tmp_path, one):
    target = safetensors(tmp_path / "blob.safetensors")
    link = tmp_path / "m.safetensors"
    link.symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(BindingError, match="a symbolic link to .*blob.safetensors"):
        precomp.bind(link, one)
    assert precomp.bind(link, one, side_file=True).where == f"{link}.precomp.json"
    require(link, one)
    assert link.is_symlink() and target.read_bytes() == before


def test_a_header_binding_replaces_a_side_file(tmp_path, one, other):
    model = safetensors(tmp_path / "m.safetensors")
    precomp.bind(model, one, side_file=True)
    precomp.bind(model, other)
    assert not Path(f"{model}.precomp.json").exists()
    require(model, other)


def test_only_safetensors_have_a_header(tmp_path, one):
    model = tmp_path / "m.bin"
    model.write_bytes(b"x")
    with pytest.raises(BindingError, match="bind it with a side file"):
        precomp.bind(model, one, side_file=False)


def test_a_model_moves_with_its_side_file(tmp_path, one):
    model = tmp_path / "m.bin"
    model.write_bytes(TENSORS)
    precomp.bind(model, one)
    target = tmp_path / "elsewhere"
    target.mkdir()
    for name in ("m.bin", "m.bin.precomp.json"):
        shutil.move(tmp_path / name, target / name.replace("m.bin", "n.bin"))
    require(target / "n.bin", one)
    (target / "n.bin.precomp.json").rename(tmp_path / "lost")
    with pytest.raises(BindingError, match="not bound"):
        require(target / "n.bin", one)


SIDE_DAMAGE = {
    "not JSON": (lambda text: text[:-9], "the binding is not JSON"),
    "no object": (lambda text: "[]", "expected a JSON object"),
    "no frames": (lambda text: '{"fingerprint": "00"}', "no list of frames"),
    "a changed frame": (
        lambda text: text.replace('"frames": [\n  "', '"frames": [\n  "0', 1),
        "hex",
    ),
    "another fingerprint": (
        lambda text: json.dumps(json.loads(text) | {"fingerprint": "0" * 64}),
        "expected fingerprint 0{64}, its frames give",
    ),
    "a longer model": (
        lambda text: json.dumps(json.loads(text) | {"model_size": 1}),
        "expected 1 bytes, found 2304",
    ),
}


@pytest.mark.parametrize("fault", SIDE_DAMAGE)
def test_a_damaged_side_file_is_named(tmp_path, one, fault):
    change, message = SIDE_DAMAGE[fault]
    model = tmp_path / "m.bin"
    model.write_bytes(TENSORS)
    side = Path(precomp.bind(model, one).where)
    side.write_text(change(side.read_text()))
    with pytest.raises(BindingError, match=message) as caught:
        require(model, one)
    assert str(caught.value).startswith(f"{side}: ")
    precomp.bind(model, one)
    require(model, one)


def test_a_failed_write_leaves_the_model_as_it_was(tmp_path, one):
    model = safetensors(tmp_path / "m.safetensors", tensors=TENSORS)
    before = hashlib.sha256(model.read_bytes()).hexdigest()
    code = (
        "import resource, signal, sys, precomp\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    precomp.bind(*sys.argv[1:])\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    home = str(Path(precomp.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(model), str(one)],
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "27", done.stderr
    assert hashlib.sha256(model.read_bytes()).hexdigest() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "one.precomp"]


def test_prepare_refuses_a_foreign_model_first_and_accepts_its_own(model, one, other):
    precomp.bind(model, other)
    with pytest.raises(BindingError, match="bound to another artifact"):
        precomp.prepare(one, model=model)
    precomp.bind(model, one)
    pytest.importorskip("torch")
    with pytest.raises(EnvironmentMismatchError):  # the next check: these frames are not real
        precomp.prepare(one, model=model)
