"""Packages that exist as light modules until somebody needs them, and then become real in place.

A *package* (``torch._dynamo``) starts as a *stand-in*: a plain module with a few names. Any other
name, or the import of a submodule that is not offered, *materialises* it: the real files are
executed in the same module objects, so nobody ever holds a second copy. Its submodules that exist
before (*homes*) become real the same way.

Locks. Everything runs under Python's own import locks, so that concurrent imports see what they see
for any module. Two rules keep them free of dead-locks: the package becomes real under the module
lock of the package, and no thread waits for that while it holds the lock of a submodule. For the
second, the loader of a submodule releases the lock of the submodule and takes it again.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from precomp import torch_api
from precomp.serve.standin_build import pass_over, skip_code

# Not public: the import locks of single modules. Same names in CPython 3.10 to 3.13.
_bootstrap: Any = importlib._bootstrap  # type: ignore[attr-defined]

STANDIN, LOADING, REAL = "standin", "loading", "real"

Spec = importlib.machinery.ModuleSpec


@contextmanager
def import_lock(name: str) -> Iterator[None]:
    """Hold the lock under which module *name* is imported."""
    lock = _bootstrap._get_module_lock(name)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _unlocked(prefixes: tuple[str, ...]) -> Iterator[None]:
    """Give up all import locks that this thread holds of modules under *prefixes*, for a while."""
    me = threading.get_ident()
    held = []
    for name, reference in list(_bootstrap._module_locks.items()):
        lock = reference()
        while name.startswith(prefixes) and lock is not None and lock.owner == me:
            lock.release()
            held.append(lock)
    try:
        yield
    finally:
        for lock in reversed(held):
            lock.acquire()


@contextmanager
def _import_weather() -> Iterator[None]:
    """As at the start of a program: no frame evaluator, no modes that would trace what is run."""
    api = torch_api.serve()
    prior = api.set_eval_frame(None)
    try:
        with api.disable_current_modes(), api.DisableTorchFunction():
            yield
    finally:
        api.set_eval_frame(prior)


def _like(spec: Spec, loader: importlib.abc.Loader) -> Spec:
    """A spec for the same file with another loader."""
    made = Spec(spec.name, loader, origin=spec.origin)
    made.submodule_search_locations = spec.submodule_search_locations
    return made


def _dress(module: types.ModuleType, spec: Spec) -> None:
    """Give a stand-in the import attributes of the real module."""
    contents = vars(module)
    contents.update(
        __spec__=spec,
        __loader__=spec.loader,
        __file__=spec.origin,
        __cached__=spec.cached,
        __package__=spec.parent,
    )
    if spec.submodule_search_locations is not None:
        contents["__path__"] = list(spec.submodule_search_locations)


class _StandIn(importlib.abc.Loader):
    """Loader that makes a stand-in."""

    def __init__(self, package: Package) -> None:
        self.package = package

    def create_module(self, spec: Spec) -> types.ModuleType:
        # The home must exist before the module is in sys.modules.
        return self.package.make(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        self.package.made(module)


class _Real(importlib.abc.Loader):
    """Loader of a submodule that needs the real package, or is a part of it that gets real.

    Making the package real must not happen in ``find_spec``: Python calls it under the global
    import lock.
    """

    def __init__(self, package: Package, spec: Spec) -> None:
        self.package = package
        self.spec = spec
        self.execute: Callable[[types.ModuleType], None] | None = None

    def create_module(self, spec: Spec) -> types.ModuleType:
        name = spec.name
        package = self.package
        if package.first is not None and package.first.thread == threading.get_ident():
            # The modules that this thread is in the middle of stay locked.
            package.become_real(name)
        elif package.thread != threading.get_ident():
            with _unlocked(package.compiler):
                package.become_real(name)
        module = sys.modules.get(name)
        if module is not None:  # the package has imported it
            self.spec = module.__spec__ or self.spec
            return module
        home = package.homes.get(name)
        if home is not None and not home.real:
            self.execute = lambda module: home.execute()
            return home.module
        loader: Any = self.spec.loader
        self.execute = loader.exec_module
        return importlib.util.module_from_spec(self.spec)

    def exec_module(self, module: types.ModuleType) -> None:
        if self.execute is not None:
            self.execute(module)
        vars(module).update(__spec__=self.spec, __loader__=self.spec.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec.loader, name)


class _Reload(importlib.abc.Loader):
    """Loader for ``importlib.reload`` of a stand-in package: makes it real."""

    def __init__(self, package: Package) -> None:
        self.package = package

    def create_module(self, spec: Spec) -> types.ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        self.package.become_real("reload")
        _dress(module, self.package.spec)


class Home:
    """One module that may be a stand-in: the package itself or a submodule of it."""

    def __init__(self, package: Package, module: types.ModuleType, spec: Spec) -> None:
        self.package = package
        self.module = module
        self.name = spec.name
        self.spec = spec
        self.real = False
        self.offered: dict[str, Any] = {}
        _dress(module, spec)

        def __getattr__(name: str) -> Any:
            return self.lookup(name)

        skip_code(__getattr__.__code__, recursive=True)
        self._getattr = __getattr__

    def fill(self) -> None:
        """Give the module what the stand-in offers."""
        _dress(self.module, self.spec)
        self.offered = self.package.offers(self.name)
        vars(self.module).update(self.offered, __getattr__=self._getattr)

    def lookup(self, name: str) -> Any:
        """An attribute that the module object does not have (yet)."""
        package = self.package
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.name!r} has no attribute {name!r}")
        if package.state == STANDIN and not self.real:
            full = f"{self.name}.{name}"
            found = package.submodule(full)
            if found is not None:
                return found
            # More is offered than when the module was made.
            offered = package.offers(self.name)
            if name in offered:
                self.offered[name] = vars(self.module)[name] = offered[name]
                return offered[name]
            package.become_real(full)
        elif package.is_loading_elsewhere():
            package.wait()
        contents = vars(self.module)
        if name in contents:
            return contents[name]
        after = contents.get("__getattr__")
        if after is not None and after is not self._getattr:
            return after(name)
        raise AttributeError(f"module {self.name!r} has no attribute {name!r}")

    def execute(self) -> None:
        """Run the real file in the module. If that fails, the stand-in stays."""
        contents = vars(self.module)
        before = dict(contents)
        loader: Any = self.spec.loader
        # Nobody may take a name of the stand-in for one that the real file has set already.
        for name in self.offered:
            contents.pop(name, None)
        try:
            loader.exec_module(self.module)
        except BaseException:
            contents.update(before)
            raise
        if contents.get("__getattr__") is self._getattr:
            del contents["__getattr__"]
        _dress(self.module, self.spec)
        self.real = True


class Package:
    """A package of torch that is a stand-in until needed.

    *first*: the package that becomes real before this one, so that threads take their locks in one
    order; *compiler*: prefixes of all module names whose locks nobody keeps while waiting.
    *alone*: submodules whose real file is loaded without making the package real.
    *listed*: submodules that may be imported as stand-ins. *offers* gives the names of a home,
    *hidden*: submodules that have names to offer, but only as an attribute of the package, not by
    import. *on_create* runs when the stand-in appears, *on_real* at the end of materialising; what
    it puts into ``errors`` is raised afterwards. *blocked* tells that no stand-in may appear any
    more. *before_real* runs before anything is locked.
    """

    def __init__(
        self,
        name: str,
        first: Package | None,
        compiler: tuple[str, ...],
        path: list[str],
        alone: frozenset[str],
        listed: frozenset[str],
        hidden: frozenset[str],
        offers: Callable[[str], dict[str, Any]],
        on_create: Callable[[], None],
        on_real: Callable[[], None],
        blocked: Callable[[], bool],
        before_real: Callable[[], None],
    ) -> None:
        self.name = name
        self.first = first
        self.compiler = compiler
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        self.spec = spec
        self.path: list[str] = list(self.spec.submodule_search_locations or ())
        self.alone = alone
        self.listed = listed
        self.hidden = hidden
        self.offers = offers
        self.on_create = on_create
        self.on_real = on_real
        self.blocked = blocked
        self.before_real = before_real
        self.state = STANDIN
        self.thread = 0
        self.why: str | None = None
        self.homes: dict[str, Home] = {}
        self.errors: list[BaseException] = []

    # ------------------------------------------------------------ stand-in

    def find_spec(self, name: str) -> Spec | None:
        """The spec for the package or one of its submodules, None to let Python find it."""
        if name in self.alone:
            return None
        if name == self.name:
            if not self.homes:
                return None if self.blocked() else _like(self.spec, _StandIn(self))
            if self.state != STANDIN:
                return None
            return _like(self.spec, _Reload(self))
        if self.name not in self.homes:  # the real package is there without our doing
            return None
        real = None if self.state == REAL else self._real_spec(name)
        if real is None:
            return None
        if not self.is_loading_elsewhere():
            pending = name in self.homes and not self.homes[name].real
            if self.state == LOADING and not pending:
                return None
            if self.state == STANDIN and name in self.listed:
                return _like(real, _StandIn(self))
        return _like(real, _Real(self, real))

    def is_loading_elsewhere(self) -> bool:
        """True while another thread makes the package real."""
        return self.state == LOADING and self.thread != threading.get_ident()

    def _real_spec(self, name: str) -> Spec | None:
        path = self._real_path(name.rpartition(".")[0])
        return None if path is None else importlib.machinery.PathFinder.find_spec(name, path)

    def _real_path(self, package: str) -> Sequence[str] | None:
        """Where the submodules of *package* are, which need not be imported."""
        if package == self.name:
            return self.path
        if package in sys.modules:
            return list(sys.modules[package].__path__)
        spec = self._real_spec(package)
        return None if spec is None else spec.submodule_search_locations

    def make(self, name: str) -> types.ModuleType:
        """The module object of a stand-in, with its home."""
        spec = self.spec if name == self.name else self._real_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        home = Home(self, types.ModuleType(name), spec)
        self.homes[name] = home
        return home.module

    def made(self, module: types.ModuleType) -> None:
        """The stand-in *module* is in sys.modules."""
        self.homes[module.__name__].fill()
        if module.__name__ == self.name:
            self.on_create()

    def submodule(self, name: str) -> types.ModuleType | None:
        """Submodule *name* without making the package real, None if that is not possible."""
        if name in self.alone or name in self.listed:
            return importlib.import_module(name)
        if name not in self.hidden:
            return None
        with import_lock(name):
            if self.state == STANDIN and name not in self.homes:
                self.make(name)
                self.homes[name].fill()
            home = self.homes.get(name)
        return None if home is None else home.module

    # ------------------------------------------------------------ real

    def wait(self) -> None:
        """Until the thread that is materialising has done it."""
        _bootstrap._lock_unlock_module(self.name)

    def become_real(self, why: str) -> None:
        """Execute the real package in the stand-in; returns when it is real.

        Re-entrant: the thread that materialises gets the unfinished module, as in any circular
        import. A failure leaves the stand-in as it was, and is raised.
        """
        if self.state == REAL or self.thread == threading.get_ident():
            return
        if self.first is not None:
            self.first.become_real(why)
        with _import_weather():
            importlib.import_module(self.name)
            self.before_real()
            lock = _bootstrap._get_module_lock(self.name)
            try:
                lock.acquire()
            except _bootstrap._DeadlockError:
                # The thread that materialises waits for a module that this thread is importing.
                # As in any circular import, the caller sees an unfinished module.
                return
            try:
                if self.state == STANDIN and self.homes:
                    self._execute(why)
            finally:
                lock.release()

    def _execute(self, why: str) -> None:
        package = self.homes[self.name]
        spec: Any = self.spec
        attributes = {}
        with ExitStack() as stack:
            # No stand-in of a submodule is being made while the state changes.
            for name in sorted(self.listed | self.hidden):
                if name.startswith(self.name + "."):
                    stack.enter_context(import_lock(name))
            loaded = {name: sys.modules.pop(name, None) for name in self.homes if name != self.name}
            for name in loaded:
                parent, _, child = name.rpartition(".")
                if parent in self.homes:
                    attributes[parent, child] = vars(self.homes[parent].module).pop(child, None)
            self.state, self.thread, self.why = LOADING, threading.get_ident(), why
        self.errors.clear()
        spec._initializing = True
        try:
            package.execute()
            for name in loaded:
                if not self.homes[name].real:
                    importlib.import_module(name)
            self.on_real()
            self.state = REAL
        except BaseException:
            self.state, self.why = STANDIN, None
            for name, module in loaded.items():
                if module is not None:
                    sys.modules.setdefault(name, module)
            for (parent, child), module in attributes.items():
                if module is not None:
                    vars(self.homes[parent].module).setdefault(child, module)
            raise
        finally:
            self.thread = 0
            spec._initializing = False
        if self.errors:
            raise self.errors[0]


class Finder(importlib.abc.MetaPathFinder):
    """First on ``sys.meta_path`` while the stand-ins are installed."""

    def __init__(self, packages: list[Package]) -> None:
        self.packages = packages

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> Spec | None:
        for package in self.packages:
            if fullname == package.name or fullname.startswith(package.name + "."):
                return package.find_spec(fullname)
        return None


pass_over(_StandIn, _Real, _Reload, Home, Package, Finder)
