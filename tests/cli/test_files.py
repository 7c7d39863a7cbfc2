"""Commands that read artifact files: what they say, their exit status, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from small_artifacts import ENVIRONMENT, HOME, guarded, kernel, tensor, write

import precomp
from precomp import _core, data

GOLDEN = Path(__file__).parents[1] / "container" / "golden"


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed command says."""
    assert done.returncode == 1 and done.stdout == "", done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("precomp: "), done.stderr
    return lines[0].removeprefix("precomp: ")


def test_help_is_quick_and_loads_neither_torch_nor_c(tmp_path):
    code = (
        "import sys\nfrom precomp.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n"
        "    print({'torch', 'numpy', 'precomp._core'} & set(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": HOME},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "set()\n"
    for command in ("run", "inspect", "verify", "diff", "merge", "bind", "report"):
        assert f"\n    {command} " in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("inspect",),
        ("inspect", "a", "b"),
        ("inspect", "--guard", "a"),
        ("diff", "a"),
        ("merge", "a"),
        ("bind", "a"),
        ("report", "a"),
    ],
)
def test_wrong_usage_has_status_2(cli, words):
    done = cli(*words)
    assert done.returncode == 2 and "usage: precomp" in done.stderr and done.stdout == ""


def test_inspect_shows_what_an_artifact_holds(cli, one):
    text = ok(cli("inspect", one))
    with precomp.Artifact.open(one) as artifact:
        assert artifact.digest in text and artifact.fingerprint in text
        assert all(entry.digest[:16] in text for entry in artifact.entries)
    for name, value in ENVIRONMENT.items():
        assert f"{name} " in text and value in text
    assert "Model.forward" in text and "is a tensor" not in text


def test_inspect_gives_json(cli, one):
    facts = json.loads(ok(cli("inspect", "--json", one)))
    with precomp.Artifact.open(one) as artifact:
        assert facts["digest"] == artifact.digest
        assert facts["fingerprint"] == artifact.fingerprint
        assert facts["environment"] == artifact.environment
        assert len(facts["entries"]) == len(artifact.entries) == 5
    assert facts["size"] == one.stat().st_size
    assert set(facts["products"]) == {"frame", "kernel", "module", "plan", "rules"}
    assert all(row["entries"] == 1 and row["raw_size"] > 0 for row in facts["products"].values())
    assert "frames" not in facts


def test_inspect_shows_guards_by_function(cli, one, tmp_path):
    module = "import torch\n\nclass Model:\n    def forward(self, x):\n        return x\n"
    (tmp_path / "model.py").write_text(module)
    text = ok(cli("inspect", "--guards", one))
    assert f"Model.forward ({tmp_path}/model.py:4)" in text
    assert "inlines helpers.scale" in text
    assert "served on cuda:1 only: it reads the number of a device" in text
    tensor_line = "L['x'] is a tensor: float32, shape [8, 32], strides [1, 1], device cpu"
    assert tensor_line in text
    facts = json.loads(ok(cli("inspect", "--guards", "--json", one)))
    (frame,) = facts["frames"]
    assert (frame["module"], frame["line"]) == ("model", 4)
    (guard,) = frame["guards"]
    assert guard["kind"] == "tensor_match" and guard["source"] == "L['x']"
    assert guard["text"].startswith(tensor_line)


def test_a_part_after_a_graph_break_is_named_by_its_function(cli, tmp_path):
    name = "Model.torch_dynamo_resume_in_forward_at_5"
    path = write(tmp_path / "a", tensor("L['x']", 8), name=name)
    assert "Model.forward, after the graph break at line 5 (module model, not found here)" in ok(
        cli("inspect", "--guards", path)
    )


@pytest.mark.parametrize("name", ["empty", "one_entry", "several", "zstd"])
def test_inspect_reads_the_golden_files(cli, name):
    facts = json.loads(ok(cli("inspect", "--json", GOLDEN / f"{name}.v1")))
    with precomp.Artifact.open(GOLDEN / f"{name}.v1") as artifact:
        assert len(facts["entries"]) == len(artifact.entries)
    ok(cli("inspect", GOLDEN / f"{name}.v1"))


def test_a_frame_that_is_no_record_is_refused_in_one_line(cli, tmp_path):
    for content in (b"hello", data.dumps((1, 2)), data.dumps({"name": "f", "module": "m"})):
        _core.write_artifact(tmp_path / "bad", ENVIRONMENT, [("frame", "f", content)])
        good = write(tmp_path / "good", tensor("L['x']", 4), name="f")
        for words in (("inspect", "--guards", "bad"), ("diff", "bad", good), ("verify", "bad")):
            line = refused(cli(*words))
            assert line.startswith('bad: entry frame "f"') and "record" in line


COMMANDS = {
    "inspect": lambda path, good: ("inspect", path),
    "guards": lambda path, good: ("inspect", "--guards", path),
    "verify": lambda path, good: ("verify", path),
    "diff": lambda path, good: ("diff", good, path),
    "merge": lambda path, good: ("merge", good, path, "-o", "out"),
    "bind": lambda path, good: ("bind", "weights.bin", path),
    "report": lambda path, good: ("report", path, "--html", "out"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_none_is_refused_in_one_line(cli, one, tmp_path, command):
    (tmp_path / "weights.bin").write_bytes(b"w")
    (tmp_path / "page.html").write_text("<html></html>")
    (tmp_path / "cut").write_bytes(one.read_bytes()[:-1])
    (tmp_path / "dir").mkdir()
    before = sorted(tmp_path.iterdir())
    for name, reason in (
        ("missing", "No such file or directory"),
        ("dir", "Is a directory"),
        ("page.html", "wrong magic"),
        ("cut", "the file has"),
    ):
        line = refused(cli(*COMMANDS[command](name, one)))
        assert line.startswith(f"{name}: ") and reason in line
    assert sorted(tmp_path.iterdir()) == before


def test_verify_looks_at_every_byte(cli, one, tmp_path):
    text = ok(cli("verify", one))
    assert "5 entries: all digests match" in text and "1 kernels are whole" in text
    content = one.read_bytes()
    damaged = tmp_path / "damaged"
    for at in (0, 9, 60, 130, len(content) // 2, len(content) - 5):
        changed = bytearray(content)
        changed[at] ^= 4
        damaged.write_bytes(changed)
        refused(cli("verify", damaged))


def entries_of(path: Path) -> list[tuple[str, str, bytes]]:
    with precomp.Artifact.open(path) as artifact:
        return [(e.kind, e.name, artifact.read(e.digest)) for e in artifact.entries]


FAULTS = {
    "a frame that is no record": ("frame", b"hello", "not a record"),
    "a frame without its keys": ("frame", data.dumps({"name": "f"}), "not a frame record"),
    "a kernel that is cut short": ("kernel", b"\x7fELF" + bytes(60), "kernel"),
    "a CUDA kernel that is for the host": ("cubin", kernel(), "not an ELF image"),
    "a plan without a module": ("module", None, "names the module"),
    "a module without a kernel": ("kernel", None, "names the kernel"),
    "a frame without a plan": ("plan", None, "names the plan"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verify_finds_what_digests_do_not_show(cli, one, tmp_path, fault):
    kind, content, reason = FAULTS[fault]
    entries = [row for row in entries_of(one) if row[0] not in (kind, "rules")]
    if content is not None:
        entries.append((kind, "bad", content))
        if kind in ("kernel", "cubin"):
            entries = entries[-1:]
    _core.write_artifact(tmp_path / "bad", ENVIRONMENT, entries)
    line = refused(cli("verify", "bad"))
    assert line.startswith("bad: entry ") and reason in line


def test_kernels_for_another_machine_are_not_judged(cli, one, tmp_path):
    environment = ENVIRONMENT | {"machine": "vax"}
    _core.write_artifact(tmp_path / "vax", environment, [("kernel", "k", b"anything")])
    assert "1 kernels are for vax: not looked into" in ok(cli("verify", "vax"))


def test_cuda_kernels_are_looked_at_and_named_by_modules(cli, tmp_path):
    image = b"\x7fELF\2\1" + bytes(12) + b"\xbe\0" + bytes(44)
    launch = {"cubin": _core.sha256(image)}
    module = data.dumps({"kernels": (), "cuda": (("triton_poi_0", launch),)})
    entries = [("module", "m", module), ("cubin", _core.sha256(image), image)]
    _core.write_artifact(tmp_path / "cuda", ENVIRONMENT, entries)
    text = ok(cli("verify", "cuda"))
    assert "1 CUDA kernels are device code" in text and "1 references" in text
    _core.write_artifact(tmp_path / "cuda", ENVIRONMENT, entries[:1])
    assert "names the cubin" in refused(cli("verify", "cuda"))


def test_plans_of_several_parts_and_without_modules_are_whole(cli, tmp_path):
    module = data.dumps({"kernels": ()})
    one = {"kind": "training", "fw": _core.sha256(module), "bw": None}
    empty = {"kind": "inference", "fw": (("i", 0),), "bw": None}
    plan = data.dumps({"kind": "split", "plans": (one, empty), "program": ()})
    entries = [("plan", "split", plan), ("module", "m", module)]
    _core.write_artifact(tmp_path / "split", ENVIRONMENT, entries)
    assert "1 references" in ok(cli("verify", "split"))
    _core.write_artifact(tmp_path / "split", ENVIRONMENT, entries[:1])
    assert "names the module" in refused(cli("verify", "split"))


def test_diff_names_guards_and_plans(cli, one, tmp_path):
    assert "same entries" in ok(cli("diff", one, one))
    ops = [
        *tensor("L['x']", 4, 32),
        *guarded("L['n']", ("add_equals_match_guard", ("k", 3), ("",))),
    ]
    environment = ENVIRONMENT | {"torch": "2.14.0"}
    changes = {"backend": {"backend": "inductor", "config": {}, "dynamic": True, "name": None}}
    other = write(tmp_path / "other", ops, environment, outputs=2, **changes)
    done = cli("diff", one, other)
    assert (done.returncode, done.stderr) == (1, "")
    for line in (
        "environment torch: 2.13.0 -> 2.14.0",
        "  Model.forward:",
        f"guard only in {one}: L['x'] is a tensor: float32, shape [8, 32]",
        f"guard only in {other}: L['x'] is a tensor: float32, shape [4, 32]",
        f"guard only in {other}: L['n'] == 3",
        "the arguments of torch.compile differ",
        "outputs 1 -> 2",
    ):
        assert line in done.stdout


def test_diff_compares_the_frames_that_are_most_alike(cli, one, tmp_path):
    both = tmp_path / "both"
    other = write(tmp_path / "other", tensor("L['x']", 4, 32))
    precomp.Artifact.merge([one, other], both).close()
    nearly = [*tensor("L['x']", 4, 32), *guarded("L['n']", ("add_none_match_guard", ("",)))]
    done = cli("diff", both, write(tmp_path / "new", nearly))
    guards = [line for line in done.stdout.splitlines() if "guard only in" in line]
    assert [line.partition(": ")[2] for line in guards] == ["L['n'] is None"]
    assert f"    only in {both}: " in done.stdout


def test_merge_writes_the_union(cli, one, tmp_path):
    other = write(tmp_path / "other", tensor("L['x']", 4, 32))
    assert "2 frame" in ok(cli("merge", one, other, "-o", "both"))
    with precomp.Artifact.open(tmp_path / "both") as both:
        assert sum(entry.kind == "frame" for entry in both.entries) == 2
    foreign = write(tmp_path / "foreign", tensor("L['x']", 4), ENVIRONMENT | {"torch": "2.14.0"})
    done = cli("merge", one, foreign, "-o", "neither")
    assert done.returncode == 1 and "torch: 2.13.0" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "neither").exists()


def test_bind_records_the_fingerprint(cli, one, tmp_path):
    model = tmp_path / "weights.bin"
    model.write_bytes(b"w")
    with precomp.Artifact.open(one) as artifact:
        text = ok(cli("bind", model, one))
        assert artifact.fingerprint in text
        from precomp.binding import require_bound

        require_bound(model, artifact)
    assert "No such file" in refused(cli("bind", "missing.bin", one))


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, content):
        self.words += content


def test_the_page_is_complete_in_itself_and_escapes_everything(cli, tmp_path):
    evil = "<script>alert('1 & 2')</script>\"><img src=http://e.example onerror=x>"
    equals = ("add_equals_match_guard", ("k", evil), ("",))
    ops = guarded(f"L['{evil}']", equals)
    path = write(tmp_path / f"{evil.replace('/', '_')}.precomp", ops, {"torch": evil}, name=evil)
    ok(cli("report", path, "--html", "page.html"))
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "href", "onerror", "onload"} & names
    assert page.words.count(evil) >= 4, "in the environment, the function, the guard, the entries"
    assert "url(" not in text and "@import" not in text
    with precomp.Artifact.open(path) as artifact:
        assert artifact.fingerprint in page.words


def test_a_page_that_cannot_be_written_leaves_nothing(cli, one, tmp_path):
    assert "No such file" in refused(cli("report", one, "--html", "no/such/page.html"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.precomp"]


def test_output_that_nobody_reads_is_no_traceback(one, tmp_path):
    command = f"{sys.executable} -m precomp inspect --guards {one} | true"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={"PYTHONPATH": HOME},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
