"""Packages that exist as light modules until somebody needs them, and then become real in place.

A *package* (``torch._dynamo``) starts as a *stand-in*: a plain module with a few names. Any other
name, or the import of a submodule that is not offered, *materialises* it: the real files are
executed in the same module objects, so nobody ever holds a second copy. Its submodules that exist
before (*homes*) become real the same way.

Locks. Everything runs under Python's own import locks, so that concurrent imports see what they see
for any module. Two rules keep them free of dead-locks: the package becomes real under the module
lock of the package, and no thread waits for that while it holds the lock of a submodule. For the
second, ``find_spec`` releases the lock of the submodule that it is asked for, and takes it again.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
def _unlocked(name: str) -> Iterator[None]:
    """Give up the import lock of module *name*, which this thread may hold, for a while."""
    lock = _bootstrap._get_module_lock(name)
    held = 0
    while lock.owner == threading.get_ident():
        lock.release()
        held += 1
    try:
        yield
    finally:
        for _ in range(held):
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


def _real_spec(name: str, path: Sequence[str]) -> Spec:
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return spec


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


class _Known(importlib.abc.Loader):
    """Loader for a module that a look-up has already loaded: hands out that very module."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module
        self.spec: Any = module.__spec__
        if isinstance(self.spec.loader, _Known):
            self.spec = self.spec.loader.spec

    def create_module(self, spec: Spec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec.loader, name)


class _InPlace(importlib.abc.Loader):
    """Loader that executes the real file in the stand-in's module object."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def create_module(self, spec: Spec) -> types.ModuleType:
        return self.home.module

    def exec_module(self, module: types.ModuleType) -> None:
        self.home.execute()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.home.spec.loader, name)


class _Create(importlib.abc.Loader):
    """Loader of a stand-in package or submodule."""

    def __init__(self, fill: Callable[[types.ModuleType], None]) -> None:
        self.fill = fill

    def create_module(self, spec: Spec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        self.fill(module)


class Home:
    """One module that may be a stand-in: the package itself or a submodule of it."""

    def __init__(self, package: Package, module: types.ModuleType, spec: Spec) -> None:
        self.package = package
        self.module = module
        self.name = spec.name
        self.spec = spec
        self.real = False
        _dress(module, spec)
        self.offered = package.offers(self.name)

        def __getattr__(name: str) -> Any:
            return self.lookup(name)

        skip_code(__getattr__.__code__, recursive=True)
        self._getattr = __getattr__
        vars(module).update(self.offered, __getattr__=__getattr__)

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
            package.become_real(full)
        elif package.state == LOADING and package.thread != threading.get_ident():
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

    *alone*: submodules whose real file is loaded without making the package real.
    *listed*: submodules that may be imported as stand-ins. *offers* gives the names of a home,
    *hidden*: submodules that have names to offer, but only as an attribute of the package, not by
    import. *on_create* runs when the stand-in appears, *on_real* at the end of materialising; what
    it puts into ``errors`` is raised afterwards. *blocked* tells that no stand-in may appear now.
    """

    def __init__(
        self,
        name: str,
        path: list[str],
        alone: frozenset[str],
        listed: frozenset[str],
        hidden: frozenset[str],
        offers: Callable[[str], dict[str, Any]],
        on_create: Callable[[], None],
        on_real: Callable[[], None],
        blocked: Callable[[], bool],
    ) -> None:
        self.name = name
        self.spec = _real_spec(name, path)
        self.path: list[str] = list(self.spec.submodule_search_locations or ())
        self.alone = alone
        self.listed = listed
        self.hidden = hidden
        self.offers = offers
        self.on_create = on_create
        self.on_real = on_real
        self.blocked = blocked
        self.state = STANDIN
        self.thread = 0
        self.why: str | None = None
        self.homes: dict[str, Home] = {}
        self.errors: list[BaseException] = []

    # ------------------------------------------------------------ stand-in

    def find_spec(self, name: str) -> Spec | None:
        """The spec for the package or one of its submodules, None to let Python find it."""
        if name == self.name:
            if self.homes and self.state == STANDIN:  # somebody reloads it
                self.become_real("reload")
            if self.homes or self.blocked():
                return None
            return Spec(name, _Create(self._create), is_package=True)
        if self.name not in self.homes:  # the real package is there without our doing
            return None
        if self.state == LOADING and self.thread != threading.get_ident():
            with _unlocked(name):
                self.wait()
            if name in sys.modules:
                return self._known(name)
        if self.state == LOADING:
            home = self.homes.get(name)
            if home is None or home.real:
                return None
            spec = Spec(name, _InPlace(home), origin=home.spec.origin)
            spec.submodule_search_locations = home.spec.submodule_search_locations
            return spec
        if self.state == REAL or name in self.alone:
            return None
        if name in self.listed:
            package = self._real_spec(name).submodule_search_locations is not None
            return Spec(name, _Create(self._create), is_package=package)
        with _unlocked(name):
            self.become_real(name)
        return self._known(name)

    def _known(self, name: str) -> Spec | None:
        module = sys.modules.get(name)
        if module is None:
            return None
        # _find_spec prefers the spec of a module that appeared meanwhile; with its own loader the
        # file would be executed a second time.
        spec = Spec(name, _Known(module), is_package=hasattr(module, "__path__"))
        module.__spec__ = spec
        return spec

    def _real_spec(self, name: str) -> Spec:
        parent = name.rpartition(".")[0]
        return _real_spec(name, self.path if parent == self.name else sys.modules[parent].__path__)

    def _create(self, module: types.ModuleType) -> None:
        name = module.__name__
        spec = self.spec if name == self.name else self._real_spec(name)
        self.homes[name] = Home(self, module, spec)
        if name == self.name:
            self.on_create()

    def submodule(self, name: str) -> types.ModuleType | None:
        """Submodule *name* without making the package real, None if that is not possible."""
        if name in self.alone or name in self.listed:
            return importlib.import_module(name)
        if name not in self.hidden:
            return None
        home = self.homes.get(name)
        if home is None:
            made = Home(self, types.ModuleType(name), self._real_spec(name))
            home = self.homes.setdefault(name, made)
        return home.module

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
        with _import_weather():
            importlib.import_module(self.name)
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
        loaded = {name: sys.modules.pop(name, None) for name in self.homes if name != self.name}
        attributes = {}
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


pass_over(_Known, _InPlace, _Create, Home, Package, Finder)
