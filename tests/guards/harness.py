"""What the scripts of these tests share: recording, rebuilding, asking for decisions."""

from __future__ import annotations

import contextlib
import enum
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

import programs
import torch

torch.set_num_threads(1)


class GuardManagerType(enum.Enum):
    GUARD_MANAGER = 1
    DICT_GUARD_MANAGER = 2


@contextlib.contextmanager
def building() -> Iterator[None]:
    """The modules of Dynamo that torch's guard classes import, while a tree is built."""
    if "torch._dynamo.guards" in sys.modules:
        yield
        return
    config = types.ModuleType("torch._dynamo.config")
    config.max_saved_pointers_for_recursive_dict_tags_check = 256
    config.skip_tensor_guards_with_matching_dict_tags = True
    config.use_recursive_dict_tags_for_guards = False
    guards = types.ModuleType("torch._dynamo.guards")
    guards.GuardManagerType = GuardManagerType
    made = {
        "torch._dynamo": types.ModuleType("torch._dynamo"),
        "torch._dynamo.config": config,
        "torch._dynamo.guards": guards,
    }
    new = {name: module for name, module in made.items() if name not in sys.modules}
    sys.modules.update(new)
    try:
        yield
    finally:
        for name in new:
            del sys.modules[name]


def enum_type() -> Any:
    loaded = sys.modules.get("torch._dynamo.guards")
    return loaded.GuardManagerType if loaded is not None else GuardManagerType


def code_of(function: Any) -> types.CodeType:
    if isinstance(function, torch.nn.Module):
        return type(function).forward.__code__
    return function.__code__


def globals_of(program: programs.Program) -> dict[str, Any]:
    """The globals of the program's frame."""
    function = program.function
    if isinstance(function, torch.nn.Module):
        function = type(function).forward
    return function.__globals__


def locals_of(program: programs.Program, arguments: Any = None) -> dict[str, Any]:
    """The locals of the program's frame at its start."""
    function = program.function
    if arguments is None:
        arguments = program.arguments() if callable(program.arguments) else program.arguments
    if isinstance(function, torch.nn.Module):
        arguments = (function, *arguments)
        function = type(function).forward
    return dict(inspect.signature(function).bind(*arguments).arguments)


class Recording:
    """A GuardRecorder in place, and the frames that were compiled meanwhile."""

    def __init__(self) -> None:
        import torch._dynamo.convert_frame as convert_frame
        from torch._dynamo.utils import orig_code_map

        from precomp.freeze.guards import GuardRecorder

        self.recorder = GuardRecorder()
        self.frames: list[tuple[types.CodeType, Any]] = []
        self._undo: list[tuple[Any, str, bool, Any]] = []
        original = convert_frame.GuardedCode

        def guarded_code(code: Any, manager: Any, *args: Any, **kwargs: Any) -> Any:
            self.frames.append((orig_code_map[code], manager))
            return original(code, manager, *args, **kwargs)

        self.recorder.install(self.patch)
        self.patch(convert_frame, "GuardedCode", guarded_code)

    def patch(self, owner: Any, name: str, new: Any) -> None:
        self._undo.append((owner, name, name in vars(owner), vars(owner).get(name)))
        setattr(owner, name, new)

    def close(self) -> None:
        for owner, name, had, old in reversed(self._undo):
            if had:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

    def manager_of(self, code: types.CodeType) -> Any:
        return next(manager for original, manager in self.frames if original is code)

    def rename(self, manager: Any) -> dict[str, str]:
        names = {}
        for name in self.recorder.used_globals(manager):
            if name.startswith("__builtins_dict__"):
                names[name] = "__pc_builtins"
            elif name.startswith("__import_"):
                names[name] = "__pc" + name[1:]
            elif name.startswith("___unnamed_scope"):
                names[name] = "__pc_namedtuple"
        return names


def compile_and_record(
    recording: Recording, program: programs.Program, **options: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """``(guard manager, record, specs of globals)`` of a program's own frame."""
    torch._dynamo.reset()
    recording.frames.clear()
    backend = program.backend if isinstance(program.backend, str) else program.backend()
    compiled = torch.compile(program.function, backend=backend, dynamic=program.dynamic, **options)
    # On in torch 2.11: its tree then skips guards that a rebuilt one checks.
    config = {"use_recursive_dict_tags_for_guards": False, **program.config}
    with program.around(), torch._dynamo.config.patch(config):
        compiled(*(program.arguments() if callable(program.arguments) else program.arguments))
        manager = recording.manager_of(code_of(program.function))
        rename = recording.rename(manager)
        record = recording.recorder.record_for(manager, rename)
        recording.recorder.prove(manager, locals_of(program), globals_of(program))
    specs: dict[str, Any] = {}
    for old, new in rename.items():
        value = globals_of(program)[old]
        specs[new] = value.__name__ if isinstance(value, types.ModuleType) else None
    return manager, record, specs


def install_globals(specs: dict[str, Any], f_globals: dict[str, Any]) -> None:
    import builtins
    import importlib

    for name, module in specs.items():
        if name == "__pc_namedtuple":
            f_globals[name] = {"_tuple_new": tuple.__new__}
        else:
            f_globals[name] = importlib.import_module(module) if module else builtins.__dict__


def decide(program: programs.Program, name: str, check: Any) -> Any:
    """What *check* says of the program's locals under one variation."""
    with program.around():
        made = program.variations[name]()
        if isinstance(made, tuple):
            return check(locals_of(program, made))
        with made:
            return check(locals_of(program))


def decide_base(program: programs.Program, check: Any) -> Any:
    with program.around():
        return check(locals_of(program))
