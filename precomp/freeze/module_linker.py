"""The file that Inductor generated for a module -> code whose globals are all listed.

Inductor writes a Python file around its kernels. Of that file only the functions that run are
kept: ``call``, the partitions and the subgraphs. Every other global that they use is a *leaf*: a
kernel, a constant, or a value that is stored by name (an operator, a function of torch, a dtype).
Chains of attributes such as ``torch.ops.aten.sort.stable`` or ``extern_kernels.addmm`` are resolved
here and become one global (its name keeps the dots), so the frozen code cannot reach anything that
is not listed in the record. A name that cannot be listed makes the module ``Unsupported``.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import textwrap
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from precomp import operators, torch_api
from precomp.freeze.cuda import is_triton
from precomp.freeze.devices import DeviceNames
from precomp.freeze.store import Unsupported
from precomp.freeze.values import Unencodable, encode
from precomp.tensor_descriptor import TensorDescriptor
from precomp.torch_api import modules, objects

FILE = "<precomp>"

# The object of the file that compiles kernels while the file is imported.
_ASYNC = "async_compile"
# Makes a tensor descriptor; Triton has no part in what is frozen.
_DESCRIPTOR = ["triton", "tools", "tensor_descriptor", "TensorDescriptor", "from_tensor"]
# Their operators belong to the torch version.
_OWN_NAMESPACES = frozenset({"aten", "prims", "prim", "inductor", "higher_order"})


def _kernel_path(value: Any) -> str | None:
    """The shared object of a C++ kernel as ``async_compile.cpp_pybinding`` returns it."""
    owner = getattr(value, "__self__", None)
    if isinstance(value, BuiltinFunctionType) and isinstance(owner, ModuleType):
        path = getattr(owner, "__file__", None)
        if path is not None and path.endswith(".so") and value.__name__ == "kernel":
            return path
    return None


def _forbidden(encoded: Any) -> str | None:
    """The module of a compiler package that an encoded value would import."""
    if isinstance(encoded, tuple):
        tagged = len(encoded) >= 2 and encoded[0] in ("P", "PF", "M", "C")
        if tagged and isinstance(encoded[1], str):
            name = encoded[1]
            if any(name == root or name.startswith(root + ".") for root in modules.COMPILERS):
                return name
            return None
        for item in encoded:
            found = _forbidden(item)
            if found is not None:
                return found
    return None


class ModuleLinker:
    """Turns the file into code whose globals are all listed."""

    def __init__(self, graph: Any, namespace: dict[str, Any], devices: DeviceNames) -> None:
        names = torch_api.capture()
        self.graph = graph
        self.namespace = namespace
        self.devices = devices
        self.tensors: dict[str, Any] = dict(graph.constants or {})
        self.extern: dict[str, Any] = {}
        self.kernels: dict[str, str] = {}
        self.triton: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.operators: dict[str, operators.Description] = {}
        self.defined: set[str] = set()
        self.body: list[tuple[int, ast.stmt]] = []
        self.kept: set[int] = set()
        self.carried: list[ast.stmt] = []
        self.bindings: dict[str, tuple[int, ast.stmt]] = {}
        # Attributes of these are looked up now, not when the code runs.
        self.static = (
            ModuleType, names.Ops, names.OpNamespace, names.OpOverloadPacket,
            type(names.extern_kernels),
        )  # fmt: skip
        self.overload = names.OpOverload
        self.packet = names.OpOverloadPacket

    def link(self) -> CodeType:
        self._index(ast.parse(self.graph.source_code).body)
        self._need("call", self.namespace, "")
        body = [*self.carried, *(node for _, node in sorted(self.body, key=lambda item: item[0]))]
        # Line numbers from the kept code alone: they must not tell what was dropped.
        tree = ast.Module(body=body, type_ignores=[])
        for line, node in enumerate(body, 1):
            for item in ast.walk(node):
                if isinstance(item, (ast.stmt, ast.expr, ast.arg, ast.keyword)):
                    item.lineno = item.end_lineno = line
                    item.col_offset = item.end_col_offset = 0
        code = compile(ast.fix_missing_locations(tree), FILE, "exec", dont_inherit=True)
        self._verify(code)
        return code

    # -- the file

    def _index(self, body: list[ast.stmt]) -> None:
        """Sort the statements of the file into those that bind names and those to drop."""
        for index, node in enumerate(body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.bindings[node.name] = (index, node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    for item in ast.walk(target):
                        if isinstance(item, ast.Name):
                            self.bindings[item.id] = (index, node)
            elif not self._droppable(node):
                text = ast.unparse(node).splitlines()[0][:120]
                raise Unsupported(f"statement in the generated file: {text!r}")

    @staticmethod
    def _droppable(node: ast.stmt) -> bool:
        """Imports, ``async_compile.wait(...)``, ``del async_compile``, docstring, ``__main__``."""
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return True
        if isinstance(node, ast.Delete):
            return all(isinstance(t, ast.Name) and t.id == _ASYNC for t in node.targets)
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):
                return True
            return ast.unparse(node).startswith(f"{_ASYNC}.wait(")
        if isinstance(node, ast.If):
            return ast.unparse(node.test) == "__name__ == '__main__'"
        return False

    # -- names

    def _need(self, name: str, space: dict[str, Any], prefix: str) -> str:
        """Make the global *name* of *space* available; returns its name in the frozen code."""
        mine = prefix + name
        if mine in self.defined or mine in self.extern:
            return mine
        if name not in space:
            if hasattr(builtins, name):
                return name
            raise Unsupported(f"the name {name!r} is used and not defined")
        value = space[name]
        if not prefix and name in self.tensors:
            self.constants[name] = value
            self.defined.add(name)
            return name
        path = _kernel_path(value)
        if path is not None:
            self.kernels[mine] = path
            self.defined.add(mine)
            return mine
        if is_triton(value):
            self.triton[mine] = value
            self.defined.add(mine)
            return mine
        binding = None if prefix else self.bindings.get(name)
        if binding is not None and isinstance(binding[1], ast.Assign):
            self._refuse_kernel(name, binding[1])
            if self._try_leaf(mine, value):
                return mine
        if binding is None:
            self._leaf(mine, value)
            return mine
        self._keep(*binding)
        return mine

    def _refuse_kernel(self, name: str, node: ast.Assign) -> None:
        text = ast.unparse(node.value)
        if text.startswith(f"{_ASYNC}."):
            kind = text.removeprefix(f"{_ASYNC}.").partition("(")[0]
            raise Unsupported(f"kernel {name} is made by async_compile.{kind}")
        if "CppWrapperCodeCache" in text:
            raise Unsupported("cpp_wrapper")

    def _keep(self, index: int, node: ast.stmt) -> None:
        """Keep one statement of the file and everything it needs."""
        if index in self.kept:
            return
        self.kept.add(index)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self.defined.add(node.name)
        else:
            names = (item for item in ast.walk(node) if isinstance(item, ast.Name))
            self.defined.update(item.id for item in names if isinstance(item.ctx, ast.Store))
        if any(getattr(item, "decorator_list", None) for item in ast.walk(node)):
            raise Unsupported(f"decorator in the generated file at {ast.unparse(node)[:80]!r}")
        self.body.append((index, _Resolver(self, self.namespace, "").visit(node)))

    def _try_leaf(self, name: str, value: Any) -> bool:
        """Store *value* as a leaf called *name*; False when it has no encoded form."""
        try:
            encoded = encode(value)
        except Unencodable:
            return False
        if _forbidden(encoded) is not None:
            return False
        self._operators(value)
        self.extern[name] = encoded
        return True

    def _leaf(self, name: str, value: Any) -> None:
        """Store *value* as a leaf, or carry its code when it is a helper of the compiler."""
        if isinstance(value, FunctionType) and self._is_compiler(value.__module__):
            self._carry(name, value)
        elif not self._try_leaf(name, value):
            raise Unsupported(f"{name} is {type(value).__qualname__} {value!r:.100}")

    @staticmethod
    def _is_compiler(module: str | None) -> bool:
        return _forbidden(("M", module or "")) is not None

    def _carry(self, name: str, function: FunctionType) -> None:
        """Take a small Python function of torch._inductor along, with what it needs."""
        what = f"helper {function.__module__}.{function.__qualname__}"
        try:
            source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError) as error:
            raise Unsupported(f"{what}: no source: {error}") from error
        node = ast.parse(source).body[0]
        if (
            not isinstance(node, ast.FunctionDef)
            or node.decorator_list
            or function.__closure__
            or function.__globals__.get(node.name) is not function
        ):
            raise Unsupported(f"{what} is not a plain function")
        self.defined.add(name)
        node.name = name
        node.returns = None
        for item in ast.walk(node):
            if isinstance(item, ast.arg):
                item.annotation = None
            if isinstance(item, (ast.Import, ast.ImportFrom, ast.Global)):
                raise Unsupported(f"{what} uses {ast.unparse(item)!r}")
        try:
            resolver = _Resolver(self, function.__globals__, function.__module__ + ":")
            self.carried.append(resolver.visit(node))
        except Unsupported as error:
            raise Unsupported(f"{what}: {error}") from error

    def _operators(self, value: Any) -> None:
        """Note the schema of every operator in *value* that does not belong to torch's own."""
        overloads: list[Any] = []
        if isinstance(value, self.overload):
            overloads = [value]
        elif isinstance(value, self.packet):
            overloads = [getattr(value, name) for name in value.overloads()]
        for operator in overloads:
            namespace, _, name = objects.schema(operator).name.partition("::")
            file = operators.defining_file(namespace, name)
            roots = (root for root in modules.COMPILERS if root.startswith("torch."))
            if file.endswith(".py") and any(root.replace(".", "/") in file for root in roots):
                raise Unsupported(f"operator {namespace}::{name} is defined by {file}")
            if namespace in _OWN_NAMESPACES:
                continue
            described = operators.describe(namespace, name, objects.overload_name(operator))
            self.operators[described[0]] = described

    def chain(self, parts: list[str], space: dict[str, Any], prefix: str) -> tuple[str, int]:
        """Resolve ``a.b.c`` from a global; returns the new name and how many parts it took."""
        if parts == _DESCRIPTOR:
            name = ".".join(parts)
            self._leaf(name, TensorDescriptor)
            return name, len(parts)
        value = space[parts[0]]
        used = 1
        while used < len(parts) and isinstance(value, self.static):
            if isinstance(value, ModuleType) and self._is_compiler(value.__name__):
                raise Unsupported(f"{'.'.join(parts)}: needs {value.__name__}")
            try:
                value = getattr(value, parts[used])
            except AttributeError as error:
                raise Unsupported(f"{'.'.join(parts)} does not exist: {error}") from error
            used += 1
        name = prefix + ".".join(parts[:used])
        if isinstance(value, ModuleType) or parts[:3] == ["torch", "ops", "higher_order"]:
            raise Unsupported(f"{name} is used as a value")
        if name not in self.extern and name not in self.defined:
            self._leaf(name, value)
        return name, used

    # -- the proof

    def _verify(self, code: CodeType) -> None:
        """Every global that the code reads must be listed, defined by it, or a builtin."""
        known = self.defined | self.extern.keys()
        known |= self.devices.ordinals.keys() | self.devices.values.keys()
        for item in dis.get_instructions(code):
            if item.opname.startswith("IMPORT_"):
                raise Unsupported(f"the generated code imports {item.argval}")
            if item.opname in ("LOAD_GLOBAL", "LOAD_NAME") and item.argval not in known:
                # __name__ and __module__ are read by class statements
                if not hasattr(builtins, item.argval) and item.argval != "__name__":
                    raise Unsupported(f"the name {item.argval!r} is used and not defined")
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._verify(constant)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _bound_names(node: ast.AST) -> set[str]:
    """Names that the body of a function (without nested functions) binds."""
    names: set[str] = set()
    declared: set[str] = set()
    stack = list(ast.iter_child_nodes(node))
    while stack:
        item = stack.pop()
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(item.name)
            continue
        if isinstance(item, (ast.Lambda, *_COMPREHENSIONS)):
            continue
        if isinstance(item, ast.arg):
            names.add(item.arg)
        elif isinstance(item, ast.Name) and isinstance(item.ctx, (ast.Store, ast.Del)):
            names.add(item.id)
        elif isinstance(item, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).split(".")[0] for alias in item.names)
        elif isinstance(item, ast.ExceptHandler) and item.name:
            names.add(item.name)
        elif isinstance(item, ast.Global):
            declared.update(item.names)
        stack.extend(ast.iter_child_nodes(item))
    return names - declared


class _Resolver(ast.NodeTransformer):
    """Rewrites the globals that one statement uses; names of function scopes stay."""

    def __init__(self, linker: ModuleLinker, space: dict[str, Any], prefix: str) -> None:
        self.linker = linker
        self.space = space
        self.prefix = prefix
        self.scopes: list[set[str]] = []

    def _is_global(self, name: str) -> bool:
        return not any(name in scope for scope in self.scopes)

    def _scope(self, node: Any) -> Any:
        # Defaults and decorators belong to the scope outside.
        node.args.defaults = [self.visit(item) for item in node.args.defaults]
        node.args.kw_defaults = [item and self.visit(item) for item in node.args.kw_defaults]
        if not self.scopes:
            self.linker.devices.variables(node, self._static_value)
        self.scopes.append(_bound_names(node))
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        else:
            node.body = [self.visit(item) for item in node.body]
        self.scopes.pop()
        return node

    def _comprehension(self, node: Any) -> Any:
        # The first iterable belongs to the scope outside.
        node.generators[0].iter = self.visit(node.generators[0].iter)
        targets = (item for part in node.generators for item in ast.walk(part.target))
        self.scopes.append({item.id for item in targets if isinstance(item, ast.Name)})
        for number, part in enumerate(node.generators):
            if number:
                part.iter = self.visit(part.iter)
            part.ifs = [self.visit(item) for item in part.ifs]
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        self.scopes.pop()
        return node

    def _static_value(self, node: ast.expr) -> Any:
        """The value of a global, or of an attribute of a module; None if it is not known now."""
        if isinstance(node, ast.Name):
            return self.space.get(node.id) if self._is_global(node.id) else None
        if isinstance(node, ast.Attribute):
            owner = self._static_value(node.value)
            return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
        return None

    def visit_Call(self, node: ast.Call) -> ast.AST:
        found = self.linker.devices.call(node, self._static_value(node.func))
        return self.generic_visit(node) if found is node else found

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.linker.devices.text(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self.linker.devices.parts(node)
        node.values = [
            item if isinstance(item, ast.Constant) else self.visit(item) for item in node.values
        ]
        return node

    visit_FunctionDef = _scope
    visit_Lambda = _scope
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        parts: list[str] = []
        item: ast.expr = node
        while isinstance(item, ast.Attribute):
            parts.append(item.attr)
            item = item.value
        if not isinstance(item, ast.Name) or not self._is_global(item.id):
            return self.generic_visit(node)
        value = self.space.get(item.id)
        if not isinstance(value, self.linker.static):
            return self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            raise Unsupported(f"the generated code changes {ast.unparse(node)}")
        parts = [item.id, *reversed(parts)]
        name, used = self.linker.chain(parts, self.space, self.prefix)
        result: ast.expr = ast.Name(id=name, ctx=ast.Load())
        for part in parts[used:]:
            result = ast.Attribute(value=result, attr=part, ctx=ast.Load())
        return ast.copy_location(result, node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.linker.devices.ordinals:
            return node
        if self._is_global(node.id) and isinstance(node.ctx, ast.Load):
            node.id = self.linker._need(node.id, self.space, self.prefix)
        return node
