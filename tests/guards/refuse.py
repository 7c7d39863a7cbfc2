"""Prints, as JSON, what the recorder says of programs whose guards cannot be data."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable
from typing import Any

import harness
import programs
import programs_rare
import programs_subclasses
import torch
import torch._dynamo
from torch._opaque_base import OpaqueBase

from precomp.errors import PrecompError
from precomp.freeze.store import Unsupported

x = torch.ones(3)
CASES: dict[str, Callable[[], dict[str, Any]]] = {}


def case(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[make.__name__] = make
    return make


def local_class() -> type:
    class Local:
        factor = 3

    return Local


def reads_factor(t, thing):
    return t * thing.factor


@case
def type_without_a_name() -> dict[str, Any]:
    return {"function": reads_factor, "arguments": (x, local_class()())}


@case
def identity_of_a_type_without_a_name() -> dict[str, Any]:
    return {"function": reads_factor, "arguments": (x, local_class())}


def twice(t):
    return t * 2


def by_size(t):
    return t * 2 if t.shape[0] > 4 else t


@case
def cpp_shape_guards() -> dict[str, Any]:
    return {
        "function": by_size,
        "arguments": (torch.ones(6, 3),),
        "dynamic": True,
        "config": {"enable_cpp_symbolic_shape_guards": True},
    }


@case
def tensors_without_fast_path() -> dict[str, Any]:
    return {
        "function": twice,
        "arguments": (x,),
        "config": {"skip_tensor_guards_with_matching_dict_tags": False},
    }


def identity_number(t, thing):
    return t + (1 if id(thing) == 3 else 2)


@case
def identity_of_a_module() -> dict[str, Any]:
    return {"function": identity_number, "arguments": (x, torch.nn.Linear(3, 3))}


@case
def identity_of_an_optimizer() -> dict[str, Any]:
    parameter = torch.nn.Parameter(torch.ones(3))
    return {"function": identity_number, "arguments": (x, torch.optim.SGD([parameter], lr=0.1))}


@case
def identity_of_a_tensor() -> dict[str, Any]:
    return {"function": identity_number, "arguments": (x, torch.ones(3))}


class Version(OpaqueBase):
    """Equal by content, but no plain data."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def __fx_repr__(self):
        return f"Version({self.number})", {"Version": Version}


@case
def metadata_that_is_no_data() -> dict[str, Any]:
    return {"function": twice, "arguments": programs_subclasses.pair(Version(3))}


class VersionHandle(OpaqueBase):
    def __init__(self) -> None:
        self.version = Version(3)


@case
def opaque_value_that_is_no_data() -> dict[str, Any]:
    from torch._library.opaque_object import register_opaque_type

    register_opaque_type(VersionHandle, typ="reference", guard_fn=lambda handle: [handle.version])

    def function(t, handle):
        return t * 2 if isinstance(handle, VersionHandle) else t

    return {"function": function, "arguments": (x, VersionHandle())}


@case
def equality_with_an_object() -> dict[str, Any]:
    from torch._library.opaque_object import register_opaque_type

    register_opaque_type(Version, typ="value")

    def function(t, version):
        return t * 2 if isinstance(version, Version) else t

    return {"function": function, "arguments": (x, Version(3))}


@case
def place_in_a_set() -> dict[str, Any]:
    def function(t, names):
        for name in names:
            t = t + len(name)
        return t

    return {"function": function, "arguments": (x, programs_rare.Numbers({"a", "bc"}))}


class Referent:
    pass


REFERENT = Referent()
WEAK = weakref.ref(REFERENT)


@case
def weak_global() -> dict[str, Any]:
    def function(t):
        return t * 2

    return {
        "function": function,
        "arguments": (x,),
        "backend": programs_rare.planted(
            lambda S, B: S.GlobalWeakRefSource("WEAK").make_guard(B.WEAKREF_ALIVE)
        ),
    }


@contextlib.contextmanager
def hooks():
    def pack(t):
        return t * 2

    def unpack(t):
        return t / 2

    traced = [torch.fx.symbolic_trace(function) for function in (pack, unpack)]
    with torch.autograd.graph.saved_tensors_hooks(*traced):
        yield


@case
def inlined_saved_tensor_hooks() -> dict[str, Any]:
    return {"function": twice, "arguments": (x,), "around": hooks}


def run(recording: harness.Recording, options: dict[str, Any]) -> str:
    program = programs.Program(
        options["function"],
        options["arguments"],
        {},
        around=options.get("around", contextlib.nullcontext),
        dynamic=options.get("dynamic"),
        backend=options.get("backend", "eager"),
        config=options.get("config", {}),
    )
    try:
        harness.compile_and_record(recording, program)
    except Unsupported as error:
        return str(error)
    return ""


def unknown_method() -> str:
    from precomp.freeze.guards import GuardRecorder

    cls = torch._C._dynamo.guards.GuardManager
    cls.add_brand_new_guard = lambda self: None
    try:
        GuardRecorder().install(lambda owner, name, new: None)
    except PrecompError as error:
        return str(error)
    finally:
        del cls.add_brand_new_guard
    return ""


def unrecorded_guard(recording: harness.Recording) -> str:
    """A guard that comes into a tree behind the recorder's back."""
    program = programs.plain()
    manager, _, _ = harness.compile_and_record(recording, program)
    with recording.recorder.paused():
        manager.root.add_lambda_guard(lambda value: True, ["unseen"], None)
    try:
        recording.recorder.prove(manager, harness.locals_of(program), harness.globals_of(program))
    except Unsupported as error:
        return str(error)
    return ""


def rejected_frame(recording: harness.Recording) -> str:
    program = programs.plain()
    manager, _, _ = harness.compile_and_record(recording, program)
    other = harness.locals_of(program) | {"n": 77}
    try:
        recording.recorder.prove(manager, other, harness.globals_of(program))
    except Unsupported as error:
        return str(error)
    return ""


def recursive_dict_tags(recording: harness.Recording) -> str:
    """torch may skip guards under a module by its tag; the rebuilt tree has them all."""
    program = programs.PROGRAMS["mlp"]()
    program.config["use_recursive_dict_tags_for_guards"] = True
    manager, _, _ = harness.compile_and_record(recording, program)
    nodes = [manager.root]
    for node in nodes:
        nodes += node.get_child_managers()
    return f"tags: {any(node.is_tag_safe_root() for node in nodes)}"


def packaged_state(recording: harness.Recording) -> str:
    """State of the process that torch restores from a package, from 2.14 on."""
    manager, _, _ = harness.compile_and_record(recording, programs.plain())
    manager.root.set_local_state(manager.root.get_local_state())
    try:
        recording.recorder.record_for(manager, {})
    except Unsupported as error:
        return str(error)
    return ""


def late_tree() -> str:
    """Guards built before the recorder was in place."""
    seen = []
    import torch._dynamo.convert_frame as convert_frame

    original = convert_frame.GuardedCode
    convert_frame.GuardedCode = lambda code, manager, *a, **k: (
        seen.append(manager) or original(code, manager, *a, **k)
    )
    torch.compile(twice, backend="eager")(x)
    convert_frame.GuardedCode = original
    recording = harness.Recording()
    try:
        recording.recorder.record_for(seen[0], {})
    except Unsupported as error:
        return str(error)
    finally:
        recording.close()
    return ""


def main() -> None:
    results = {"late_tree": late_tree(), "unknown_method": unknown_method()}
    recording = harness.Recording()
    for name, make in CASES.items():
        results[name] = run(recording, make())
    if hasattr(torch._C._dynamo.guards.RootGuardManager, "set_local_state"):
        results["packaged_state"] = packaged_state(recording)
    results["unrecorded_guard"] = unrecorded_guard(recording)
    results["recursive_dict_tags"] = recursive_dict_tags(recording)
    results["rejected_frame"] = rejected_frame(recording)
    recording.close()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
