"""What users of caches for compiled code ran into, reproduced on capture and prepare."""

from __future__ import annotations

import ast
from importlib.metadata import version
from pathlib import Path

import pytest
from processes import Place, differences

HERE = Path(__file__).parent
NAMES = [
    node.name
    for node in ast.parse((HERE / "cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef)
    and not (node.args.args or node.args.vararg or node.decorator_list)
]

CAPTURE = """
    import torch
    torch.set_num_threads(1)
    import precomp
    sys.path.insert(0, sys.argv[2])
    from cases import CASES
    plain, captured, refused = {}, {}, {}
    for name, run in CASES.items():
        torch._dynamo.reset()
        plain[name] = run()
        with precomp.capture(reset=True) as capture:
            captured[name] = run()
        try:
            capture.finalize(os.path.join(sys.argv[1], name + ".precomp"))
        except precomp.UnsupportedCaptureError as error:
            refused[name] = [list(p) for p in error.problems]
    done(plain=plain, captured=captured, refused=refused)
"""

SERVE = """
    import traceback
    import torch
    torch.set_num_threads(1)
    import precomp
    directory, cases, name = sys.argv[1:]
    prepared = precomp.prepare(os.path.join(directory, name + ".precomp"))
    sys.path.insert(0, cases)
    from cases import CASES
    with precomp.strict_no_compile():
        result = CASES[name]()
    done(result=result, report=str(prepared.report()),
         compiler=[m for m in ("torch._dynamo.convert_frame", "torch._inductor.compile_fx",
                               "triton") if m in sys.modules])
"""

# Refused at capture, by name; everything else is served.
REFUSED = {
    "registered_constant_with_a_list",
    "tensor_subclass_that_requires_grad",
    "wrapper_in_cpp",
}
if version("torch").startswith("2.14."):  # reads a contextvars.ContextVar
    REFUSED.add("process_group_as_an_argument")


@pytest.fixture(scope="module")
def cases(tmp_path_factory, inductor_cache):
    place = Place(tmp_path_factory.mktemp("cases"), cache=inductor_cache)
    return place.root, place.script(CAPTURE, place.root, HERE).facts


@pytest.mark.parametrize("name", NAMES)
def test_capturing_does_not_change_the_result(cases, name):
    _, facts = cases
    assert differences(facts["plain"][name], facts["captured"][name]) == []


@pytest.mark.parametrize("name", NAMES)
def test_case_is_served_bit_identical_or_refused_by_name(cases, bare, name):
    directory, facts = cases
    assert (name in facts["refused"]) == (name in REFUSED), facts["refused"].get(name)
    if name in REFUSED:
        assert all(function and reason for function, reason in facts["refused"][name])
        return
    served = bare.script(SERVE, directory, HERE, name).facts
    assert differences(facts["captured"][name], served["result"]) == []
    assert served["compiler"] == [], served["report"]


FUNCTION = """
    import torch
    torch.set_num_threads(1)
    import precomp

    def f(x):
        return (x.sin() * 2 + x.cos()).relu()

    X = torch.linspace(0, 1, 9)
"""


@pytest.fixture(scope="module")
def simple(tmp_path_factory, inductor_cache):
    """The artifact of one function, and its result."""
    place = Place(tmp_path_factory.mktemp("simple"), cache=inductor_cache)
    path = place.root / "f.precomp"
    code = f"""{FUNCTION}
    with precomp.capture(sys.argv[1]):
        y = torch.compile(f)(X)
    done(y=y.tolist())
    """
    return path, place.script(code, path).facts["y"]


def test_prepare_after_torch_compile_works_as_before_it(simple, bare):
    path, y = simple
    code = f"""{FUNCTION}
    early = torch.compile(f)
    precomp.prepare(sys.argv[1])
    with precomp.strict_no_compile():
        done(early=early(X).tolist(), late=torch.compile(f)(X).tolist())
    """
    assert bare.script(code, path).facts == {"early": y, "late": y}


def test_artifact_may_be_moved_replaced_or_deleted_after_prepare(simple, bare):
    path, y = simple
    code = f"""{FUNCTION}
    import shutil
    shutil.copy(sys.argv[1], "mine.precomp")
    shutil.copy(sys.argv[1], "new.precomp")
    precomp.prepare("mine.precomp")
    os.replace("new.precomp", "mine.precomp")
    os.unlink("mine.precomp")
    with precomp.strict_no_compile():
        done(y=torch.compile(f)(X).tolist())
    """
    assert bare.script(code, path).facts == {"y": y}


def test_a_hundred_loads_leave_no_files_and_no_descriptors(simple, bare):
    path, y = simple
    code = f"""{FUNCTION}
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def once():
        with precomp.prepare(sys.argv[1]), precomp.strict_no_compile():
            return torch.compile(f)(X).tolist()

    once()
    before = descriptors()
    results = [once() for _ in range(100)]
    done(same=all(r == results[0] for r in results), y=results[0], grown=descriptors() - before)
    """
    facts = bare.script(code, path).facts
    assert facts["same"] and facts["y"] == y
    assert facts["grown"] <= 2
    assert bare.leftovers() == []


def test_many_processes_prepare_at_once(simple, tmp_path):
    path, y = simple
    code = f"""{FUNCTION}
    precomp.prepare(sys.argv[1])
    with precomp.strict_no_compile():
        done(y=torch.compile(f)(X).tolist())
    """
    places = [Place(tmp_path / str(i), compiler=False) for i in range(6)]
    scripts = [place.write("script.py", _prelude() + _dedent(code)) for place in places]
    running = [p.start(script, path) for p, script in zip(places, scripts, strict=True)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert ast.literal_eval(out.splitlines()[-1]) == {"y": y}


def _prelude() -> str:
    from processes import PRELUDE

    return PRELUDE


def _dedent(code: str) -> str:
    import textwrap

    return textwrap.dedent(code)


def test_readers_beside_writers_always_see_a_whole_artifact(here):
    """Processes that finalize to one path while others open it."""
    code = f"""{FUNCTION}
    with precomp.capture() as capture:
        torch.compile(f)(X)
    path = "shared.precomp"
    capture.finalize(path)
    writers = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            try:
                for _ in range(10):
                    capture.finalize(path)
            finally:
                os._exit(0)
        writers.append(pid)
    opened = 0
    while writers:
        precomp.Artifact.open(path).verify()
        opened += 1
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            writers.remove(pid)
    done(opened=opened, files=sorted(os.listdir(".")))
    """
    facts = here.script(code).facts
    assert facts["opened"] > 3
    assert facts["files"] == ["script.py", "shared.precomp"]


def test_a_full_disk_leaves_no_artifact_and_no_harm(here):
    code = f"""{FUNCTION}
    import resource
    with precomp.capture() as capture:
        y = torch.compile(f)(X)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        capture.finalize("f.precomp")
        kind = None
    except OSError as error:
        kind = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    files = os.listdir(".")
    capture.finalize("f.precomp").verify()
    done(kind=kind, files=files, same=torch.allclose(y, f(X)))
    """
    assert here.script(code).facts == {"kind": "OSError", "files": ["script.py"], "same": True}


def test_a_spawned_worker_is_served(simple, bare):
    path, y = simple
    bare.write("user.py", FUNCTION)
    code = """
    import multiprocessing

    def work(path):
        import precomp
        import torch
        torch.set_num_threads(1)
        precomp.prepare(path)
        import user
        with precomp.strict_no_compile():
            return torch.compile(user.f)(user.X).tolist()

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            done(results=pool.map(work, [sys.argv[1]] * 2))
    """
    # Captured in a script, served from a module: equal code is served wherever it is.
    assert bare.script(code, path).facts == {"results": [y, y]}


def test_a_forked_worker_is_served(simple, bare):
    """prepare in the parent, first call in the child."""
    path, y = simple
    code = f"""{FUNCTION}
    precomp.prepare(sys.argv[1])
    g = torch.compile(f)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            with precomp.strict_no_compile():
                os.write(write, json.dumps(g(X).tolist()).encode())
        finally:
            os._exit(0)
    os.close(write)
    child = json.loads(os.fdopen(read).read() or "null")
    os.waitpid(pid, 0)
    with precomp.strict_no_compile():
        done(child=child, parent=g(X).tolist())
    """
    assert bare.script(code, path).facts == {"child": y, "parent": y}


def test_other_weights_are_used_not_frozen_ones(here, bare):
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:]
    if side == "serve":
        precomp.prepare(artifact)
    torch.manual_seed(0 if side == "capture" else 1)
    OFFSET = torch.randn(4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def f(x):
        return model(x) + OFFSET

    x = torch.ones(2, 4)
    if side == "capture":
        with precomp.capture(artifact):
            y = torch.compile(f)(x)
    else:
        with precomp.strict_no_compile():
            y = torch.compile(f)(x)
    done(y=y.tolist(), same=torch.allclose(y, f(x), atol=1e-6))
    """
    artifact = here.root / "weights.precomp"
    captured = here.script(code, "capture", artifact).facts
    served = bare.script(code, "serve", artifact).facts
    assert captured["same"] and served["same"]
    assert captured["y"] != served["y"]


OPERATOR = """
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:]
    if side == "serve":
        precomp.prepare(artifact)

    @torch.library.custom_op("shop::scale", mutates_args=MUTATES)
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    @scale.register_fake
    def _(x, by):
        return FAKE

    def f(x):
        return torch.ops.shop.scale(x, 2.0) + 1

    x = torch.ones(3)
    if side == "capture":
        with precomp.capture(artifact):
            done(y=torch.compile(f)(x).tolist())
    else:
        try:
            with precomp.strict_no_compile():
                done(y=torch.compile(f)(x).tolist())
        except precomp.CompileViolation as violation:
            done(why=violation.why)
"""


def operator(mutates="()", fake="torch.empty_like(x)"):
    return OPERATOR.replace("MUTATES", mutates).replace("FAKE", fake)


def test_a_custom_operator_is_served_and_its_changed_schema_refused(here, bare):
    artifact = here.root / "operator.precomp"
    captured = here.script(operator(), "capture", artifact).facts
    assert bare.script(operator(), "serve", artifact).facts == captured
    changed = bare.script(operator(mutates='("x",)'), "serve", artifact).facts
    assert "y" not in changed, "served with the old schema"
    assert "scale" in changed["why"]


def test_a_custom_operator_whose_fake_changed_is_refused(here, bare):
    artifact = here.root / "operator.precomp"
    here.script(operator(), "capture", artifact).facts  # noqa: B018
    changed = bare.script(operator(fake="x.new_empty(x.shape)"), "serve", artifact).facts
    assert "y" not in changed, "served with the old fake implementation"
    assert "scale" in changed["why"]


def test_a_reloaded_module_is_served(simple, bare):
    path, y = simple
    bare.write("user.py", FUNCTION)
    code = """
    import importlib
    import torch
    torch.set_num_threads(1)
    import precomp
    precomp.prepare(sys.argv[1])
    import user
    with precomp.strict_no_compile():
        first = torch.compile(user.f)(user.X).tolist()
        importlib.reload(user)
        done(first=first, second=torch.compile(user.f)(user.X).tolist())
    """
    assert bare.script(code, path).facts == {"first": y, "second": y}


def test_module_names_that_alias_alike_do_not_clash(here, bare):
    """``a.b`` and ``a_dot_b`` are two modules."""
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:]
    if side == "serve":
        precomp.prepare(artifact)
    import a.b, a_dot_b

    def f(x):
        return a.b.work(x) + a_dot_b.work(x)

    x = torch.ones(3)
    if side == "capture":
        with precomp.capture(artifact):
            done(y=torch.compile(f)(x).tolist())
    else:
        with precomp.strict_no_compile():
            done(y=torch.compile(f)(x).tolist())
    """
    artifact = here.root / "names.precomp"
    for place in (here, bare):
        place.write("a/__init__.py", "")
        place.write("a/b.py", "def work(x):\n    return x * 3\n")
        place.write("a_dot_b.py", "def work(x):\n    return x - 5\n")
    assert here.script(code, "capture", artifact).facts == {"y": [-1.0] * 3}
    assert bare.script(code, "serve", artifact).facts == {"y": [-1.0] * 3}


def test_capture_inside_fresh_cache(here, bare):
    """Inductor's temporary cache directory is gone when the artifact is finalized."""
    artifact = here.root / "fresh.precomp"
    code = f"""{FUNCTION}
    from torch._inductor.utils import fresh_cache
    capture = precomp.capture()
    with fresh_cache(), capture:
        y = torch.compile(f)(X)
    capture.finalize(sys.argv[1])
    done(y=y.tolist())
    """
    y = here.script(code, artifact).facts["y"]
    serve = f"""{FUNCTION}
    precomp.prepare(sys.argv[1])
    with precomp.strict_no_compile():
        done(y=torch.compile(f)(X).tolist())
    """
    assert bare.script(serve, artifact).facts == {"y": y}


def test_past_the_recompile_limit_strict_raises_instead_of_running_eager(here, bare):
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    side, artifact = sys.argv[1:]
    if side == "serve":
        precomp.prepare(artifact)

    def f(x, kind):
        return x * len(kind) if kind.startswith("a") else x - len(kind)

    g = torch.compile(f)
    x = torch.ones(3)
    kinds = ["a" * i for i in range(1, 11)]
    results, refused = [], []
    if side == "capture":
        import logging
        logging.disable()
        with precomp.capture(artifact):
            results = [g(x, kind).tolist() for kind in kinds]
    else:
        for i, kind in enumerate(kinds):
            try:
                with precomp.strict_no_compile():
                    results.append(g(x, kind).tolist())
            except precomp.CompileViolation:
                refused.append(i)
    done(results=results, refused=refused)
    """
    artifact = here.root / "limit.precomp"
    captured = here.script(code, "capture", artifact).facts["results"]
    facts = bare.script(code, "serve", artifact).facts
    assert facts["refused"] == [8, 9]
    assert facts["results"] == captured[:8]


def test_inductors_lowering_is_not_imported_by_loading(simple, bare):
    path, y = simple
    code = f"""{FUNCTION}
    before = set(sys.modules)
    precomp.prepare(sys.argv[1])
    with precomp.strict_no_compile():
        y = torch.compile(f)(X).tolist()
    heavy = sorted(m for m in set(sys.modules) - before
                   if m.startswith(("torch._inductor.", "sympy", "triton"))
                   or m in ("torch._functorch.aot_autograd", "torch._dynamo.convert_frame",
                            "torch._dynamo.symbolic_convert", "torch._dynamo.guards"))
    done(y=y, heavy=heavy)
    """
    assert bare.script(code, path).facts == {"y": y, "heavy": []}


def test_a_call_races_with_uninstall(simple, here):
    """Threads that call while their artifact goes: served before, compiled by torch afterwards."""
    path, y = simple
    code = f"""{FUNCTION}
    import threading
    g = torch.compile(f)
    prepared = precomp.prepare(sys.argv[1])
    results, stop, started = [], threading.Event(), threading.Barrier(4)

    def work():
        mine = []
        started.wait()
        while not stop.is_set() or len(mine) < 20:
            mine.append(g(X).tolist())
        results.append(mine)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    prepared.uninstall()
    g(X)
    stop.set()
    for thread in threads:
        thread.join()
    done(threads=len(results), values=sorted({{str(r) for mine in results for r in mine}}),
         compiled="torch._dynamo.convert_frame" in sys.modules)
    """
    facts = here.script(code, path).facts
    assert facts == {"threads": 3, "values": [str(y)], "compiled": True}


def test_equal_layers_compiled_apart_share_their_kernels(here):
    """The names of their inputs and attributes differ, what is compiled does not."""
    code = """
    import torch
    torch.set_num_threads(1)
    import precomp
    layers = torch.nn.ModuleDict({"first": torch.nn.Linear(4, 4), "other": torch.nn.Linear(4, 4)})

    def first(x):
        return layers["first"](x).relu()

    def second(value):
        return layers["other"](value).relu()

    with precomp.capture("layers.precomp") as capture:
        torch.compile(first)(torch.ones(2, 4))
        torch.compile(second)(torch.ones(2, 4))
    report = capture.report()
    done(frames=len(report.frames), modules=report.modules, kernels=report.kernels)
    """
    facts = here.script(code).facts
    assert facts == {"frames": 2, "modules": 1, "kernels": 1}


def test_a_module_without_the_name_torch_is_served(here, bare):
    """Guards name torch; the globals of the compiled function need not."""
    module = """
    from torch import compile, nn, ones

    linear = nn.Linear(3, 3)
    nn.init.ones_(linear.weight)
    nn.init.zeros_(linear.bias)

    @compile
    def f(x):
        return nn.functional.relu(linear(x)) + 1

    def run():
        return f(ones(2, 3)).tolist()
    """
    code = """
    import precomp
    side, artifact = sys.argv[1:]
    if side == "capture":
        import user
        with precomp.capture(artifact):
            done(y=user.run(), names=sorted(set(vars(user)) & {"torch"}))
    else:
        precomp.prepare(artifact)
        import user
        with precomp.strict_no_compile():
            done(y=user.run(), names=[])
    """
    artifact = here.root / "names.precomp"
    for place in (here, bare):
        place.write("user.py", module)
    captured = here.script(code, "capture", artifact).facts
    assert captured["names"] == []
    assert bare.script(code, "serve", artifact).facts == captured
