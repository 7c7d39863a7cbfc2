"""Puts doors in front of functions, at once or when their module is imported.

A function is hooked by a swap of its code object, in place: every ``from x import y``, every bound
method and every closure that already holds the function goes through the door. The new code has the
old signature, file and line, and does nothing but call the door. A callable of C is hooked where it
is an attribute.

Doors stay in place when no gate is active; they then cost one atomic load per call of a function
that a warm program does not call.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from precomp import _core
from precomp.doors import Door, Trip, all_doors
from precomp.errors import PrecompError
from precomp.torch_api import loaded

_MARK = "__precomp_door__"
_OWN = ("precomp.strict", "precomp.doors", "precomp.torch_api")
_lock = threading.RLock()
_waiting: dict[str, list[Door]] = {}
"""Doors whose module is not imported yet, by module name."""
_missing: dict[str, str] = {}
"""Required targets that are not there -> reason."""
_checked_roots: set[str] = set()
_started = False
_skipped = False
_warned = False


def missing() -> dict[str, str]:
    """Required targets that the installed packages lack -> reason."""
    with _lock:
        return dict(_missing)


def _describer(door: Door, original: Any) -> Any:
    """What the C door asks: (args, kwargs) -> (kind, what, why, where, hint) or None."""
    signature: inspect.Signature | None
    try:
        signature = inspect.signature(original)
    except ValueError:  # a C function that does not tell
        signature = None

    def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        trip: Trip | None
        try:
            if signature is None:
                named = {str(i): value for i, value in enumerate(args)} | kwargs
            else:
                named = dict(signature.bind(*args, **kwargs).arguments)
            trip = door.describe(named)
        except Exception as error:  # noqa: BLE001 - a door that cannot say why still closes
            trip = Trip(door.name, f"no details: {type(error).__name__}: {error}")
        if trip is None:
            return None
        return trip.kind or door.kind, str(trip.what), str(trip.why), trip.where, str(trip.hint)

    return describe


def _trampoline(function: types.FunctionType, door: Any) -> types.CodeType:
    """Code with the signature of *function* that returns ``door(the same arguments)``."""
    code = function.__code__
    names = code.co_varnames
    count = code.co_argcount
    only = code.co_kwonlyargcount
    arguments = list(names[:count])
    keywords = list(names[count : count + only])
    rest = list(names[count + only :])
    parameters = list(arguments)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    call = list(arguments)
    if code.co_flags & inspect.CO_VARARGS:
        star = rest.pop(0)
        parameters.append(f"*{star}")
        call.append(f"*{star}")
    elif keywords:
        parameters.append("*")
    parameters += keywords
    call += [f"{name}={name}" for name in keywords]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        star = rest.pop(0)
        parameters.append(f"**{star}")
        call.append(f"**{star}")
    value = f"{_MARK!r}.__call__({', '.join(call)})"
    if code.co_flags & inspect.CO_GENERATOR:
        value = f"(yield from {value})"  # Python 3.13 wants the kind of function to stay
    source = f"def f({', '.join(parameters)}):\n    return {value}"
    module = compile(source, code.co_filename, "exec", dont_inherit=True)
    made: types.CodeType = next(c for c in module.co_consts if isinstance(c, types.CodeType))
    changes: dict[str, Any] = {
        "co_name": code.co_name,
        "co_firstlineno": code.co_firstlineno,
        "co_freevars": code.co_freevars,
        "co_consts": tuple(door if c == _MARK else c for c in made.co_consts),
    }
    if sys.version_info >= (3, 11):
        changes["co_qualname"] = code.co_qualname
    return made.replace(**changes)


def _swap_code(function: types.FunctionType, door: Door) -> None:
    original = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__qualname__ = function.__qualname__
    original.__module__ = function.__module__
    original.__doc__ = function.__doc__
    original.__annotations__ = function.__annotations__
    original.__dict__.update(function.__dict__)
    kinds = (door.kind, *door.also)
    hook = _core.Door(original, _describer(door, original), kinds)
    function.__code__ = _trampoline(function, hook)


def _owner_of(module: types.ModuleType, path: str) -> tuple[Any, str, Any]:
    """(owner, attribute name, raw attribute) of *path*. Raises AttributeError.

    Never asks a module for a name that it does not hold: that could import something.
    """
    *parents, name = path.split(".")
    owner: Any = module
    for parent in parents:
        if parent not in vars(owner):
            raise AttributeError(f"no attribute {parent!r}")
        owner = vars(owner)[parent]
    if name in vars(owner):
        return owner, name, vars(owner)[name]
    if isinstance(owner, types.ModuleType):
        raise AttributeError(f"no attribute {name!r}")
    return owner, name, inspect.getattr_static(owner, name)


def innermost(raw: Any) -> Any:
    """The function under static methods, class methods, partial objects and decorators."""
    while True:
        if isinstance(raw, (staticmethod, classmethod)):
            raw = raw.__func__
        elif hasattr(raw, "__wrapped__"):
            raw = raw.__wrapped__
        elif isinstance(raw, property):
            raw = raw.fget
        else:
            return raw


def put(door: Door, module: types.ModuleType) -> None:
    """Put *door* in front of its target in *module*. Raises AttributeError if it is not there."""
    owner, name, raw = _owner_of(module, door.path)
    target = innermost(raw)
    if isinstance(target, types.FunctionType):
        _swap_code(target, door)
        return
    if not callable(target):
        raise AttributeError(f"{door.target} is {type(target).__name__}, not callable")
    hook = _core.Door(target, _describer(door, target), (door.kind, *door.also))
    functools.update_wrapper(hook, target, updated=())
    setattr(owner, name, hook)


def _is_standin(module: types.ModuleType) -> bool:
    """Whether *module* is a light stand-in of precomp: the doors wait for the real one."""
    lookup = vars(module).get("__getattr__")
    home: str = getattr(lookup, "__globals__", {}).get("__name__", "")
    return home.startswith("precomp.")


def _sweep() -> None:
    """Put the doors of every module that is there and ready, whoever imported it."""
    for name in list(_waiting):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is None or getattr(spec, "_initializing", False) or _is_standin(module):
            continue
        _install(name)


def _watch_libtorch() -> None:
    """Watch the compilers that libtorch calls from C++, once it is loaded.

    A libtorch_cuda that does not look as expected is told, once: it is not watched then.
    """
    global _warned
    reason = _core.gate_watch_nvrtc()
    if reason is not None and not _warned:
        _warned = True
        warnings.warn(
            "precomp: strict_no_compile does not see what libtorch compiles with NVRTC: "
            f"{reason}",
            RuntimeWarning,
            stacklevel=2,
        )


def _install(name: str) -> None:
    """Put the waiting doors of module *name*, which is imported. Records missing targets."""
    _watch_libtorch()
    with _lock:
        doors = _waiting.get(name)
        module = sys.modules.get(name)
        if doors is None or module is None:
            return
        for door in doors:
            try:
                put(door, module)
            except AttributeError as error:
                if door.required:
                    _missing[door.target] = str(error)
        del _waiting[name]
        _skip_own_frames()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find the module, and puts its doors once it has run."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        run = getattr(loader, "exec_module", None)
        if run is None:
            return spec

        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module
            run(module)
            if not _is_standin(module):
                _install(fullname)
            _sweep()
            raise_if_missing(only_active=True)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            # A loader that takes no attributes: the doors come at the next entry of a gate.
            _missing.update({door.target: "its loader" for door in _waiting[fullname]})
        return spec


_finder = _AfterImport()


def raise_if_missing(only_active: bool = False) -> None:
    """Raise PrecompError that names the required targets that are missing."""
    absent = missing()
    if not absent or (only_active and not _core.gate_active()):
        return
    listed = "; ".join(f"{target} ({reason})" for target, reason in sorted(absent.items()))
    raise PrecompError(
        "precomp: strict_no_compile cannot watch this torch or Triton, it lacks entry points "
        f"that precomp hooks: {listed}"
    )


def _check_files(root: str) -> None:
    """Record modules with required doors that the imported package *root* does not have.

    By a look at the file system: importing the module to find out would be heavy.
    """
    package = sys.modules[root]
    places = list(vars(package).get("__path__", ()))
    if not places or root in _checked_roots:
        return
    _checked_roots.add(root)
    for name, doors in _waiting.items():
        if name.partition(".")[0] != root or not any(door.required for door in doors):
            continue
        parts = name.split(".")[1:]
        for place in places:
            path = os.path.join(place, *parts)
            if os.path.isfile(path + ".py") or os.path.isdir(path):
                break
        else:
            for door in doors:
                if door.required:
                    _missing[door.target] = "no such module"


def _codes(value: Any) -> Iterator[types.CodeType]:
    """All code objects of a function or class of precomp, nested ones included."""
    if isinstance(value, types.CodeType):
        yield value
        for constant in value.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _codes(constant)
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _codes(value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from _codes(value.__code__)
    elif isinstance(value, type):
        for member in vars(value).values():
            yield from _codes(member)


def _skip_own_frames() -> None:
    """Keep the gate's own Python out of Dynamo, once torch is there.

    A gate may be entered and left inside a compiled function, and modules may be imported there;
    Dynamo, or precomp's server, would look at each of these frames.
    """
    global _skipped
    if _skipped or not loaded.has_evaluator():
        return
    for name, module in list(sys.modules.items()):
        if name.startswith(_OWN):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    for code in _codes(value):
                        loaded.set_strategy(code, "SKIP", "DEFAULT")
    _skipped = True


def start() -> None:
    """Put all doors whose module is imported, and see to it that the others follow.

    Called at every entry of a gate; all but the first call do little. Raises PrecompError if a
    required target is missing.
    """
    global _started
    with _lock:
        if not _started:
            for door in all_doors():
                _waiting.setdefault(door.module, []).append(door)
            _started = True
        if sys.meta_path[0] is not _finder:
            if _finder in sys.meta_path:
                sys.meta_path.remove(_finder)
            sys.meta_path.insert(0, _finder)
        _skip_own_frames()
        _sweep()
        _watch_libtorch()
        for root in {name.partition(".")[0] for name in _waiting}:
            if root in sys.modules:
                _check_files(root)
    raise_if_missing()
