"""Records of ``precomp.freeze.helpers`` -> live functions and classes.

Each compiler module has one *space*: the globals of the functions rebuilt for it. A space is not
the module's own dict, so that what functions need does not appear as attributes of the module. When
the real module arrives, its names replace those in the space: functions handed out earlier then
work with the real ones.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import marshal
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from precomp import torch_api
from precomp.errors import ArtifactError

Key = tuple[str, str]

_ROOT = os.path.dirname(torch.__path__[0])


def unpack_code(packed: tuple[Any, ...], path: str) -> types.CodeType:
    """The code object of a packed one, with *path* as its file name."""
    data, constants = packed
    code: types.CodeType = marshal.loads(data)
    return code.replace(
        co_consts=tuple(_unpack_const(constant, path) for constant in constants), co_filename=path
    )


def _unpack_const(packed: tuple[Any, ...], path: str) -> Any:
    tag, value = packed
    if tag == "k":
        return value
    if tag == "t":
        return tuple(_unpack_const(item, path) for item in value)
    if tag == "f":
        return frozenset(_unpack_const(item, path) for item in value)
    if tag == "CODE":
        return unpack_code(value, path)
    raise ArtifactError(f"helper record: unknown constant tag {tag!r}")


def _strategy(recursive: bool) -> Any:
    api = torch_api.serve()
    action = api.FrameAction
    return api.FrameExecStrategy(action.SKIP, action.SKIP if recursive else action.DEFAULT)


def skip_code(code: types.CodeType, recursive: bool = False) -> None:
    """Tell torch's frame evaluator to run *code*, and code nested in it, as it is.

    With *recursive*, everything that is called from it runs unobserved, too.
    """
    torch_api.serve().set_code_exec_strategy(code, _strategy(recursive))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            skip_code(constant, recursive)


class Later:
    """A name of a module that is not loaded; the first use loads it."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._find()(*args, **kwargs)


def _import_now(module: str, attribute: str) -> Any:
    """Attribute of a module; an empty *attribute* means the module."""
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


for _function in (Later.__init__, Later.__getattr__, Later.__call__):
    skip_code(_function.__code__)
skip_code(_import_now.__code__, recursive=True)


def pass_over(*classes: type) -> None:
    """Mark all methods of *classes*, and what they call, to run unobserved."""
    for cls in classes:
        for value in vars(cls).values():
            if isinstance(value, types.FunctionType):
                skip_code(value.__code__, recursive=True)


class Builder:
    """Makes the objects named by records, each once.

    *written* maps ``(module, name)`` to hand-written objects, *owned* tells whether a module is
    still a stand-in, *materialize* makes its package real, *observed* names modules whose code
    torch may compile by itself.
    """

    def __init__(
        self,
        records: dict[Key, tuple[Any, ...]],
        written: Mapping[Key, Any],
        owned: Callable[[str], bool],
        materialize: Callable[[str], None],
        observed: frozenset[str],
    ) -> None:
        self.records = records
        self.written = written
        self._owned = owned
        self._materialize = materialize
        self._observed = observed
        self.spaces: dict[str, dict[str, Any]] = {}
        self.built: dict[Key, Any] = {}

    def space(self, module: str) -> dict[str, Any]:
        """Globals of the functions rebuilt for *module*."""
        space = self.spaces.get(module)
        if space is None:
            space = self.spaces[module] = {
                "__name__": module,
                "__package__": module.rpartition(".")[0],
                "__builtins__": builtins.__dict__,
            }
        return space

    def offers(self, module: str) -> list[str]:
        """Names that the stand-in of *module* has."""
        names = [
            name
            for (home, name), record in self.records.items()
            if home == module and record[0] not in ("const", "setup")
        ]
        names += [n for m, n in self.written if m == module and n not in names]
        return names

    def has(self, module: str, name: str) -> bool:
        """True when ``get`` can make it."""
        return (module, name) in self.written or (module, name) in self.records

    def get(self, module: str, name: str) -> Any:
        """The object *name* of *module*. Raises KeyError when there is neither record nor text."""
        key = (module, name)
        if key in self.built:
            return self.built[key]
        if key in self.written:
            value = self.built[key] = self.written[key]
            return value
        record = self.records[key]
        kind = record[0]
        if kind == "import":
            value = self.built[key] = self._import(record[1], record[2])
            return value
        if kind not in ("fn", "stmt", "const"):
            raise ArtifactError(f"helper record of {module}.{name}: unknown kind {kind!r}")
        space = self.space(module)
        path = os.path.join(_ROOT, *record[1].split("/"))
        code = unpack_code(record[2], path)
        if kind == "fn":
            _, _, _, defaults, keyword_defaults, attributes, names = record
            value = types.FunctionType(code, space, code.co_name, defaults)
            value.__kwdefaults__ = None if keyword_defaults is None else dict(keyword_defaults)
            vars(value).update(attributes)
            self.built[key] = space[name] = value
            self._bind(space, names)
        else:
            self._bind(space, record[3])
            exec(code, space)
            value = self.built[key] = space[name]
        if module not in self._observed:
            skip_code(code, recursive=True)
        return value

    def _bind(self, space: dict[str, Any], names: tuple[tuple[str, str, str], ...]) -> None:
        for name, module, attribute in names:
            if name not in space:
                space[name] = self._import(module, attribute)

    def _import(self, module: str, attribute: str) -> Any:
        key = (module, attribute)
        if key in self.records or key in self.written:
            return self.get(module, attribute)
        if module in sys.modules and not self._owned(module):
            found = sys.modules[module]
            return getattr(found, attribute) if attribute else found
        return Later(functools.partial(self._late, module, attribute))

    def _late(self, module: str, attribute: str) -> Any:
        if attribute and self._owned(module):
            self._materialize(f"{module}.{attribute}")
        return _import_now(module, attribute)

    def setup(self, module: str) -> None:
        """Run the statements of *module* that change torch outside the compiler."""
        for (home, _), record in self.records.items():
            if home == module and record[0] == "setup":
                space = self.space(module)
                self._bind(space, record[3])
                exec(unpack_code(record[2], os.path.join(_ROOT, *record[1].split("/"))), space)

    def become_real(self) -> None:
        """Replace the names in all spaces by those of the real modules."""
        for name, space in self.spaces.items():
            real = sys.modules.get(name)
            if real is not None:
                space.update({k: v for k, v in vars(real).items() if not k.startswith("__")})


pass_over(Builder)
