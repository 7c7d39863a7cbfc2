"""Functions of torch's compiler as data, for processes that never import the compiler.

Transformed bytecode, guards and ordinary eager torch call a few small functions that live in
``torch._dynamo`` (``disable``, ``mark_dynamic``, ``call_size``, polyfills). ``collect`` takes their
code from the running torch, never a re-typed copy. ``precomp.serve.standin`` rebuilds them.

Records (plain data, docs/standin.md section 4):

``("import", module, attribute)``
    The name is that attribute of another module; an empty attribute means the module itself.
``("fn", file, code, defaults, keyword defaults, attributes, names)``
    A function. ``code`` is a packed code object, ``attributes`` its ``__dict__``.
``("stmt", file, code, names)``
    A statement (class, decorated function) that binds the name when it is run.
``("const", file, code, names)``
    The same for a module-level constant. Code that is taken may use it; it is not offered to
    others, because the module may rebind it.

``("setup", file, code, names)``
    A statement to run when the stand-in appears; its name is its first line.

``names`` is a tuple of ``(global name, module, attribute)``: what the code looks up.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import dis
import hashlib
import importlib
import marshal
import os
import sys
import types
from collections.abc import Container, Iterable
from functools import cache
from typing import Any

import torch

from precomp import data, torch_api
from precomp.errors import PrecompError
from precomp.freeze.store import Unsupported
from precomp.torch_api import modules, objects

Record = tuple[Any, ...]

_ROOT = os.path.dirname(torch.__path__[0])
# Decorators outside the standard library that work without the compiler.
_LIGHT_DECORATORS = {objects.DISABLES_DYNAMO}
# Calls that make module-level objects without state worth keeping.
_HARMLESS_CALLS = {"ParamSpec", "TypeVar", "TypeVarTuple", "set", "dict", "list", "frozenset"}


def pack_code(code: types.CodeType) -> Record:
    """*code* as plain data: no file name, frozen sets sorted, marshal version 2."""
    bare = code.replace(co_consts=(), co_filename="")
    return marshal.dumps(bare, data.VERSION), tuple(_pack_const(c) for c in code.co_consts)


def _pack_const(value: Any) -> Record:
    if isinstance(value, types.CodeType):
        return "CODE", pack_code(value)
    if type(value) is tuple:
        return "t", tuple(_pack_const(item) for item in value)
    if type(value) is frozenset:
        return "f", tuple(sorted((_pack_const(item) for item in value), key=repr))
    return "k", value


def global_names(code: types.CodeType) -> set[str]:
    """Names that *code*, or code nested in it, looks up in its globals."""
    found = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "DELETE_GLOBAL")
    }
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= global_names(const)
    return found


class _Source:
    """Top-level definitions of one module of torch, read from its installed file."""

    def __init__(self, module: str) -> None:
        self.module: Any = importlib.import_module(module)
        self.path = str(self.module.__file__)
        with open(self.path, encoding="utf-8") as file:
            self.text = file.read()
        self.bound: dict[str, ast.stmt] = {}
        self.flags = 0
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                for alias in node.names:
                    self.flags |= getattr(__future__, alias.name).compiler_flag
        self.imports = [
            node
            for node in self.tree.body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            and getattr(node, "module", "") != "__future__"
        ]
        self._scan(self.tree.body)

    def _scan(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.bound[node.name] = node
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                for alias in node.names:
                    self.bound[alias.asname or alias.name.split(".")[0]] = node
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.bound[target.id] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.bound[node.target.id] = node
            elif isinstance(node, ast.If):
                self._scan(node.body)
                self._scan(node.orelse)
            elif isinstance(node, ast.Try):
                self._scan(node.body)

    @property
    def file(self) -> str:
        """Path of the file relative to the folder that holds torch."""
        return os.path.relpath(self.path, _ROOT).replace(os.sep, "/")

    def imported_from(self, name: str) -> tuple[str, str] | None:
        """``(module, attribute)`` of an imported *name*; an empty attribute is the module."""
        node = self.bound.get(name)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname == name:
                    return alias.name, ""
                if alias.asname is None and alias.name.split(".")[0] == name:
                    return name, ""
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = self.module.__package__.split(".")
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    full = f"{base}.{alias.name}"
                    value = vars(self.module).get(name)
                    if isinstance(value, types.ModuleType) and sys.modules.get(full) is value:
                        return full, ""
                    return base, alias.name
        return None

    def compile(self, node: ast.stmt) -> types.CodeType:
        flags = self.flags
        if isinstance(node, ast.ClassDef) and all(not hasattr(n, "args") for n in node.body):
            # dataclasses looks up string annotations in sys.modules, where the module is not.
            node = _Plain().visit(copy.deepcopy(node))
            flags &= ~__future__.annotations.compiler_flag
        # CPython compiles calls of imported names in another way: show it the imports, unused.
        unused = ast.If(ast.Constant(False), [*self.imports, ast.Pass()], [])
        tree = ast.fix_missing_locations(ast.Module([unused, node], []))
        return compile(tree, self.path, "exec", flags=flags, dont_inherit=True)


class _Plain(ast.NodeTransformer):
    """Annotations of a class body become ``object``."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.copy_location(ast.Name("object", ast.Load()), node.annotation)
        return node


@cache
def _source(module: str) -> _Source:
    return _Source(module)


def source_digest(address: str) -> str:
    """sha256 (hex) of the source text of ``"module:Class.method"`` in the installed torch."""
    module, _, path = address.partition(":")
    source = _source(module)
    parts = path.split(".")
    node: ast.AST | None = source.bound.get(parts[0])
    for part in parts[1:]:
        node = next(
            (n for n in getattr(node, "body", ()) if getattr(n, "name", None) == part), None
        )
    text = ast.get_source_segment(source.text, node) if node is not None else None
    if text is None:
        raise PrecompError(f"precomp: torch {torch.__version__} has no {address}")
    return hashlib.sha256(text.encode()).hexdigest()


def check_written() -> None:
    """Compare the originals of the hand-written stand-ins with those they were written for.

    Raises PrecompError that names every original that differs.
    """
    table: dict[str, str] = torch_api.tables().STANDIN_WRITTEN
    changed = [address for address, digest in table.items() if source_digest(address) != digest]
    if changed:
        raise PrecompError(
            f"precomp: torch {torch.__version__} changed code that the stand-in for torch._dynamo "
            f"restates: {', '.join(sorted(changed))}"
        )


def _plain(value: Any, what: str) -> Any:
    try:
        data.dumps(value)
    except TypeError as error:
        raise Unsupported(f"{what} is not plain data: {error}") from None
    return value


def _names_of(code: types.CodeType, source: _Source) -> tuple[tuple[str, str, str], ...]:
    found: list[tuple[str, str, str]] = []
    own = source.module.__name__
    for name in sorted(global_names(code)):
        if name not in vars(source.module):
            continue
        origin = source.imported_from(name)
        if origin is not None:
            found.append((name, *origin))
        elif name in source.bound or not hasattr(builtins, name):
            found.append((name, own, name))
    return tuple(found)


def _record(module: str, name: str) -> Record:
    source = _source(module)
    if name not in vars(source.module):
        raise Unsupported(f"{module} has no {name}")
    value = vars(source.module)[name]
    origin = source.imported_from(name)
    if origin is not None:
        return ("import", *origin)
    if isinstance(value, types.ModuleType):
        return "import", value.__name__, ""
    what = f"{module}.{name}"
    node = source.bound.get(name)
    if isinstance(value, types.FunctionType) and value.__globals__ is vars(source.module):
        if value.__closure__ is None and not hasattr(value, "__wrapped__"):
            attributes = {k: v for k, v in vars(value).items() if k != "__doc__"}
            defaults = value.__kwdefaults__
            return (
                "fn",
                source.file,
                pack_code(value.__code__),
                _plain(value.__defaults__, f"default of {what}"),
                None if defaults is None else tuple(_plain(defaults, what).items()),
                tuple(_plain(attributes, f"attribute of {what}").items()),
                _names_of(value.__code__, source),
            )
    if node is None:
        raise Unsupported(f"{what} is not bound by a statement of its module")
    kind = "stmt"
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        kind = "const"
        _check_harmless(node, what)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        for decorator in node.decorator_list:
            _check_decorator(decorator, source, what)
    code = source.compile(node)
    return kind, source.file, pack_code(code), _names_of(code, source)


def _check_harmless(node: ast.Assign | ast.AnnAssign, what: str) -> None:
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        if value.func.id in _HARMLESS_CALLS:
            return
    try:
        ast.literal_eval(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise Unsupported(f"{what} is state of its module") from None


def _check_decorator(node: ast.expr, source: _Source, what: str) -> None:
    text = ast.unparse(node)
    if text in _LIGHT_DECORATORS:
        return
    while isinstance(node, (ast.Call, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    origin = source.imported_from(node.id) if isinstance(node, ast.Name) else None
    if origin is None or origin[0].partition(".")[0] not in sys.stdlib_module_names:
        raise Unsupported(f"{what} is decorated by {text}")


def _setup(module: str, line: str) -> Record:
    source = _source(module)
    for node in source.tree.body:
        if source.lines[node.lineno - 1].strip() == line:
            code = source.compile(node)
            return "setup", source.file, pack_code(code), _names_of(code, source)
    raise PrecompError(f"precomp: torch {torch.__version__}: {module} lacks the statement {line!r}")


def offered() -> dict[tuple[str, str], Record]:
    """Records of everything the stand-in answers in any case."""
    records: dict[tuple[str, str], Record] = {}
    for module, lines in torch_api.tables().STANDIN_SETUP.items():
        for line in lines:
            records[module, line] = _setup(module, line)
    for module, wanted in torch_api.tables().STANDIN_TAKE.items():
        for name in wanted:
            record = records[module, name] = _record(module, name)
            for _, home, used in record[-1]:
                node = _source(module).bound.get(used) if home == module else None
                if isinstance(node, (ast.Assign, ast.AnnAssign)):
                    records[module, used] = _record(module, used)
    return records


def taken(
    names: Iterable[tuple[str, str]], known: Container[tuple[str, str]]
) -> dict[tuple[str, str], Record]:
    """Records of *names* ``(module, attribute)`` in modules of the compiler and of what they use,
    but for those that are *known*.

    Raises Unsupported for a name that cannot be data.
    """
    records: dict[tuple[str, str], Record] = {}
    todo = [(module, name) for module, name in names if module.startswith(modules.STANDIN)]
    while todo:
        key = todo.pop()
        if key in records or key in known:
            continue
        module, name = key
        record = records[key] = _record(module, name)
        if record[0] == "import":
            continue
        for _, home, attribute in record[-1]:
            if home == module and attribute and (home, attribute) not in records:
                todo.append((home, attribute))
    return records


def collect(names: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str, Record], ...]:
    """Records of everything the stand-in answers, plus *names* ``(module, attribute)``.

    Definitions of the same module that *names* use are taken with them. The result is sorted and
    equal for equal torch builds. Raises Unsupported for a name that cannot be data, PrecompError
    when the originals of the hand-written stand-ins changed.
    """
    check_written()
    records = offered()
    records |= taken(names, records)
    return tuple((module, name, records[module, name]) for module, name in sorted(records))
