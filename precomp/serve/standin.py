"""A light module in the place of ``torch._dynamo``, which becomes the real package when needed.

Ordinary eager torch (optimizers, checkpointing, FSDP hooks, library imports) imports all of
``torch._dynamo`` for a handful of names. In a prepared process these names are answered without it:
see docs/standin.md.
"""

from __future__ import annotations

import enum
import importlib
import importlib.machinery
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from precomp import torch_api
from precomp.errors import PrecompError
from precomp.serve.standin_beside import Beside
from precomp.serve.standin_build import Builder, pass_over, skip_code
from precomp.serve.standin_engine import LOADING, REAL, Finder, Package, import_lock
from precomp.serve.standin_names import Written
from precomp.torch_api import modules
from precomp.torch_api.objects import DIM_RANGE

Key = tuple[str, str]
Helpers = Mapping[Key, tuple[Any, ...]] | Iterable[tuple[str, str, tuple[Any, ...]]]
F = TypeVar("F", bound=Callable[..., Any])


class GuardManagerType(enum.Enum):
    """Stands for the enum of torch._dynamo.guards; torch's C++ compares its members by identity."""

    GUARD_MANAGER = 1
    DICT_GUARD_MANAGER = 2


class _Lazy:
    """The installed stand-ins."""

    def __init__(self, records: dict[Key, tuple[Any, ...]]) -> None:
        table = torch_api.tables()
        self.top: dict[str, str] = table.STANDIN_TOP
        self.alone: frozenset[str] = table.STANDIN_ALONE
        self.written = Written(materialize, _module_classes)
        self.beside = Beside(table.STANDIN_BESIDE)
        self.builder = Builder(
            records,
            self.written.names,
            owned=self.owned,
            materialize=materialize,
            observed=frozenset({modules.POLYFILLS}),
        )
        common: dict[str, Any] = {
            "compiler": (modules.DYNAMO, modules.INDUCTOR),
            "path": list(torch.__path__),
            "alone": table.STANDIN_ALONE,
            "listed": table.STANDIN_LISTED,
            "hidden": self.hidden(),
            "offers": self.offers,
        }
        self.dynamo = Package(
            modules.DYNAMO,
            first=None,
            on_create=self.created,
            on_real=self.became_real,
            blocked=is_real,
            before_real=self.dynamo_comes,
            **common,
        )
        self.inductor = Package(
            modules.INDUCTOR,
            first=self.dynamo,
            on_create=_nothing,
            on_real=_nothing,
            blocked=self.dynamo_is_there,
            before_real=_nothing,
            **common,
        )
        self.finder = Finder([self.dynamo, self.inductor])

    def hidden(self) -> frozenset[str]:
        """Modules with names to offer that are not to be imported."""
        table = torch_api.tables()
        homes = {module for module, _ in (*self.builder.records, *self.builder.written)}
        return frozenset(homes - table.STANDIN_LISTED - table.STANDIN_ALONE)

    def add(self, records: Mapping[Key, tuple[Any, ...]]) -> None:
        """Answer what *records* name, too."""
        self.builder.records |= {**records, **self.builder.records}
        for package in (self.dynamo, self.inductor):
            package.hidden = self.hidden()

    def dynamo_is_there(self) -> bool:
        return self.dynamo.state == REAL or (not self.dynamo.homes and is_real())

    def dynamo_comes(self) -> None:
        # A thread that imports torch._inductor.config meanwhile must find its parent, or it would
        # wait for the parent's lock while the thread that materialises waits for that of config.
        importlib.import_module(modules.INDUCTOR)

    def owned(self, module: str) -> bool:
        """True when *module* belongs to a package that is still a stand-in."""
        if module in self.alone:
            return False
        for package in (self.dynamo, self.inductor):
            if module == package.name or module.startswith(package.name + "."):
                return package.state != REAL
        return False

    def offers(self, module: str) -> dict[str, Any]:
        """What the stand-in of *module* has as attributes."""
        found = {name: self.builder.get(module, name) for name in self.builder.offers(module)}
        if module == modules.DYNAMO:
            for name, home in self.top.items():
                if home in self.alone:
                    found[name] = getattr(importlib.import_module(home), name)
                elif self.builder.has(home, name):
                    found[name] = self.builder.get(home, name)
        return found

    def created(self) -> None:
        """What importing the real package changes outside itself and eager code can see."""
        external = importlib.import_module(modules.EXTERNAL_UTILS)
        for code in external.get_nonrecursive_disable_wrapper.__code__.co_consts:
            if isinstance(code, types.CodeType):
                skip_code(code)
        self.builder.setup(modules.DYNAMO)
        self.beside.install()

    def became_real(self) -> None:
        """Connect what was handed out before with the real package. Runs while it is loading."""
        global _by
        _by = self.dynamo.why
        self.beside.uninstall()
        if _enum_is_ours:
            guards: Any = importlib.import_module(modules.GUARDS)
            guards.GuardManagerType = GuardManagerType
        if (modules.DECORATORS, DIM_RANGE) in self.builder.built:
            ours = self.builder.get(modules.DECORATORS, DIM_RANGE)
            decorators: Any = importlib.import_module(modules.DECORATORS)
            torch_api.serve().remove_safe_globals([getattr(decorators, DIM_RANGE)])
            setattr(decorators, DIM_RANGE, ours)
        self.builder.become_real()
        self.written.become_real()
        for callback in tuple(_callbacks):
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 - raised by Package.become_real
                self.dynamo.errors.append(error)


_lazy: _Lazy | None = None
_by: str | None = None
_callbacks: list[Callable[[], None]] = []
_module_classes: list[type] = []
_enum_is_ours = False
_primed = False
_lock = threading.RLock()


def _nothing() -> None:
    return


def install(helpers: Helpers | None = None) -> None:
    """From now on, an import of ``torch._dynamo`` makes the stand-in.

    *helpers*: records of ``precomp.freeze.helpers.collect``, as ``{(module, name): record}`` or as
    triples; without them only what needs no record is answered. When the real package is loaded
    already, nothing changes. A second call adds its helpers to those of the first.
    """
    global _lazy
    with _lock:
        if is_real():
            return
        if helpers is None:
            records: dict[Key, tuple[Any, ...]] = {}
        elif isinstance(helpers, Mapping):
            records = dict(helpers)
        else:
            records = {(module, name): record for module, name, record in helpers}
        if _lazy is not None:
            _lazy.add(records)
            return
        lazy = _Lazy(records)
        _lazy = lazy
        sys.meta_path.insert(0, lazy.finder)


def uninstall() -> None:
    """Undo ``install``. A stand-in that exists becomes the real package first."""
    global _lazy
    with _lock:
        if _lazy is None:
            return
        for package in (_lazy.dynamo, _lazy.inductor):
            if package.homes and package.state != REAL:
                package.become_real("uninstall")
        sys.meta_path.remove(_lazy.finder)
        _lazy = None


def installed() -> bool:
    """True between ``install`` and ``uninstall``."""
    return _lazy is not None


def is_real() -> bool:
    """True when the real torch._dynamo is loaded (it may be loading in this thread)."""
    if modules.DYNAMO not in sys.modules:
        return False
    if _lazy is None or not _lazy.dynamo.homes:
        return True
    package = _lazy.dynamo
    loading = package.state == LOADING
    return package.state == REAL or (loading and package.homes[modules.DYNAMO].real)


def materialize(why: str) -> None:
    """Make ``torch._dynamo`` the real package, in the same module object.

    *why* names the first use that needed it. Runs with the frame evaluator off. Other threads wait;
    within the thread that is doing it, returns at once.
    """
    if _lazy is not None:
        _lazy.dynamo.become_real(why)
        if _lazy.dynamo.homes:
            return
    set_eval_frame = torch_api.serve().set_eval_frame
    prior = set_eval_frame(None)
    try:
        importlib.import_module(modules.DYNAMO)
    finally:
        set_eval_frame(prior)


def materialized_by() -> str | None:
    """The first use that needed the real package, None if none did or it was there before."""
    return _by


def on_materialize(callback: Callable[[], None]) -> Callable[[], None]:
    """Call *callback* when the real package has replaced the stand-in. Returns its remover."""
    _callbacks.append(callback)

    def remove() -> None:
        if callback in _callbacks:
            _callbacks.remove(callback)

    return remove


def add_module_class(cls: type) -> None:
    """Let instances of *cls* count as ``OptimizedModule`` until the real class is there."""
    _module_classes.append(cls)


def enum_type() -> Any:
    """The GuardManagerType enum whose members torch's C++ accepts."""
    global _enum_is_ours
    if is_real():
        return importlib.import_module(modules.GUARDS).GuardManagerType
    _enum_is_ours = True
    return GuardManagerType


def prime() -> None:
    """Let torch's C++ read the enum once, so that guard trees can be built without Dynamo.

    It asks for ``torch._dynamo.guards`` only at the first guard of the process and keeps the enum.
    """
    global _primed
    if _primed or is_real():
        return
    importlib.import_module(modules.CONFIG)
    with import_lock(modules.GUARDS):
        if _primed or modules.GUARDS in sys.modules:
            return
        kind = enum_type()
        stub: Any = types.ModuleType(modules.GUARDS)
        stub.GuardManagerType = kind
        # Other threads wait for the lock, and then find no module and import it.
        spec: Any = importlib.machinery.ModuleSpec(modules.GUARDS, None)
        spec._initializing = True
        stub.__spec__ = spec
        sys.modules[modules.GUARDS] = stub
        try:
            root = torch_api.serve().RootGuardManager()
            root.framelocals_manager(("x", 0), "L['x']", None, kind.GUARD_MANAGER)
        finally:
            del sys.modules[modules.GUARDS]
        _primed = True


@contextmanager
def building() -> Iterator[None]:
    """Around the building of a guard tree: what torch's C++ imports meanwhile is there.

    The first use primes the enum; later uses only see to it that ``torch._dynamo.config`` is
    loaded, alone, which the C++ reads at each node.
    """
    if not is_real():
        if _lazy is None:
            raise PrecompError("precomp: the stand-in for torch._dynamo is not installed")
        prime()
    yield


def twins() -> dict[Key, Any]:
    """``{(module, name): object}`` for names of compiler modules; empty once they are real."""
    if _lazy is None or is_real():
        return {}
    builder = _lazy.builder
    found = {
        (module, name): builder.get(module, name)
        for module in {module for module, _ in (*builder.records, *builder.written)}
        for name in builder.offers(module)
    }
    if _module_classes:
        # Guards compare the class of a compiled module itself.
        found[modules.EVAL_FRAME, "OptimizedModule"] = _module_classes[0]
    return found


def module_for(name: str) -> types.ModuleType:
    """Module *name* for bytecode and guards: real, or a stand-in that will become the real one."""
    if _lazy is not None and not is_real():
        for package in (_lazy.dynamo, _lazy.inductor):
            if name.startswith(package.name + "."):
                importlib.import_module(package.name)
                found = package.submodule(name)
                if found is not None:
                    return found
    return importlib.import_module(name)


def unobserved(fn: F, recursive: bool = False) -> F:
    """Mark the code of *fn* so that torch's frame evaluator runs it as it is. Returns *fn*.

    With *recursive*, also what it calls.
    """
    skip_code(fn.__code__, recursive)
    return fn


for _function in (
    is_real,
    materialize,
    materialized_by,
    enum_type,
    prime,
    building,
    twins,
    module_for,
):
    unobserved(inspect.unwrap(_function), recursive=True)
pass_over(_Lazy)
