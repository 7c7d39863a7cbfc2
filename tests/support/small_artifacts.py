"""Small artifacts with real records, made without compiling anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import precomp
from precomp import _core, data

HOME = str(Path(precomp.__file__).parents[1])
ENVIRONMENT = {"torch": "2.13.0", "python": "CPython 3.11", "threads": "1"}
# The command line where torch cannot be imported.
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from precomp.cli import main; sys.exit(main())"
)
STATE = (
    '{"autocast_state":{"cached_enabled":true,"dtype":[15,5],"enabled":[true,false]},'
    '"default_dtype":6,"grad_mode":true,"num_threads":4}'
)


def guarded(source: str, *leaves: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Operations of a tape: the local or global *source* as node 1 and leaves on it."""
    name = ("k", source[3:-2])
    manager = ("framelocals_manager", 0, 1, ("t", (name, ("k", 0))), source, "o")
    return [manager, *((method, 1, args) for method, *args in leaves)]


def tensor(source: str, *shape: int) -> list[tuple[Any, ...]]:
    sizes = ("l", tuple(("k", size) for size in shape))
    strides = ("l", tuple(("k", 1) for _ in shape))
    text = "check_tensor(..., DispatchKeySet(CPU, BackendSelect, ADInplaceOrView, AutogradCPU))"
    kind = ("P", "torch", "Tensor", "type torch.Tensor")
    args = (("cpu", "float32", False, False), sizes, strides, ("k", source), (text,), kind)
    return guarded(source, ("add_tensor_match_guard", *args, ("dk", 5)))


def frame(name: str, ops: list[tuple[Any, ...]], plan: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "module": "model",
        "key": _core.sha256(name.encode()),
        "backend": {"backend": "inductor", "config": {}, "dynamic": None, "name": None},
        "code": (b"code", 0, ()),
        "globals": (("__pc_plan_1", ("plan", plan)), ("__pc_import_os", ("mod", "os.path"))),
        "tape": {"nodes": 2, "ops": tuple(ops), "tls": None, "device": ("k", None)},
        "ranks": None,
        "devices": ((1,), ("it reads the number of a device",)),
        "inlined": (("helpers", (("a", "scale"), ("f", "__code__")), "00"),),
        "sources": (),
        "torch": (),
        "values": (),
        "watched": (),
        "classes": (),
    } | changes


def kernel() -> bytes:
    """A shared object for this machine."""
    return _core.strip_shared_object(Path(_core.__file__).read_bytes())


def write(
    path: Path,
    ops: list[tuple[Any, ...]],
    environment: dict[str, str] = ENVIRONMENT,
    name: str = "Model.forward",
    outputs: int = 1,
    **changes: Any,
) -> Path:
    """An artifact with one entry of each kind; *changes* are made to the frame."""
    image = kernel()
    module = data.dumps({"kernels": (("kernel", _core.sha256(image)),)})
    plan = data.dumps(
        {"kind": "inference", "fw": _core.sha256(module), "bw": None, "outputs": outputs}
    )
    record = data.dumps(frame(name, ops, _core.sha256(plan), **changes))
    entries = [
        ("frame", name, record),
        ("plan", "inference", plan),
        ("module", _core.sha256(module), module),
        ("kernel", _core.sha256(image), image),
        ("rules", "rules", data.dumps({"order": (_core.sha256(record),)})),
    ]
    _core.write_artifact(path, environment, entries)
    return path
