"""Records how Dynamo builds its C++ guard trees, as data (docs/guards.md).

While a :class:`GuardRecorder` is installed, every call on torch's guard classes that adds to a tree
is noted with its arguments encoded. ``record_for`` gives the tape of one tree (docs/internals.md,
section 4.2), or refuses it with every reason: no guard is ever left out silently.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from precomp import _core, guard_functions, torch_api
from precomp.errors import PrecompError
from precomp.freeze import codepath
from precomp.freeze.guard_compare import compare_trees
from precomp.freeze.guard_lambdas import encode_function
from precomp.freeze.guard_tree import (
    ADDRESS,
    IMPLIED,
    LEAVES,
    MANAGERS,
    QUERIES,
    REFUSED,
    RELATIONS,
    RELATIONS_TEXT,
    ROOT,
    Generated,
    Identity,
    Tree,
    category_of,
    probe_immutable,
)
from precomp.freeze.store import Unsupported
from precomp.freeze.values import (
    Encoded,
    Unencodable,
    describe,
    encode,
    encode_code,
    is_library,
    sort_encoded,
)

Patch = Callable[[Any, str, Any], None]

_NUMBER = re.compile(r"(?<![\w.])\d{6,}(?![\w.])|(?<=_)\d{6,}(?=_c)")
_DICT_VERSION = re.compile(r"^(___dict_version\(.+\)) == \d+$")
_COMPILE_ID = re.compile(r"(?<=_ID_c)\[?\d+/\d+(_\d+)?\]?")

# Dynamo's own modules whose content a user may set: guards on them are kept.
_SETTABLE = ("torch._dynamo.config",)


class GuardRecorder:
    """Records every guard tree built while it is installed."""

    def __init__(self) -> None:
        self._trees: dict[int, Tree] = {}  # id of any wrapper -> its tree
        self._objects: dict[int, Any] = {}  # id -> object under an id guard, kept alive
        self._immutable: set[str] = set()
        self._off = False

    # -------------------------------------------------------------- hooks

    def install(self, patch: Patch) -> None:
        """Replace torch's guard methods by taps through ``patch(owner, name, new)``; the caller
        undoes the replacements. Raises PrecompError that names methods of torch's guard classes
        that precomp does not know."""
        names, serve = torch_api.capture(), torch_api.serve()
        classes = (serve.GuardManager, serve.DictGuardManager, serve.RootGuardManager)
        self._refuse_unknown(classes, names.guards_module)
        self._immutable = probe_immutable(names)
        for cls in classes:
            for name in list(vars(cls)):
                sink = self._sink(name)
                if sink is not None:
                    patch(cls, name, _core.Tap(vars(cls)[name], sink))
        for name in (*RELATIONS, "install_symbolic_shape_guard"):
            sink = self._relation_sink(name)
            patch(names.guards_module, name, _core.Tap(getattr(names.guards_module, name), sink))
        manager = names.check_function_manager
        patch(manager, "id_ref", _core.Tap(manager.id_ref, self._note_id))

    @staticmethod
    def _refuse_unknown(classes: tuple[type, ...], module: Any) -> None:
        known = {*MANAGERS, *LEAVES, *REFUSED, *QUERIES}
        unknown = sorted(
            f"{cls.__name__}.{name}"
            for cls in classes
            for name in vars(cls)
            if not name.startswith("__") and name not in known
        )
        functions = {name for name in vars(module) if name.startswith("install_")}
        import torch._C._dynamo.guards as native

        functions &= set(vars(native))
        unknown += sorted(functions - {*RELATIONS, "install_symbolic_shape_guard"})
        if unknown:
            raise PrecompError(
                f"precomp: guards of this torch that precomp does not know: {', '.join(unknown)}"
            )

    def _sink(self, name: str) -> Callable[..., None] | None:
        if name in MANAGERS:
            return lambda args, kwargs, result: self._manager(name, args, kwargs or {}, result)
        if name in LEAVES:
            return lambda args, kwargs, result: self._leaf(name, args)
        if name in REFUSED:
            return lambda args, kwargs, result: self._refuse(name, args[0])
        return None

    def _relation_sink(self, name: str) -> Callable[..., None]:
        if name in REFUSED:
            return lambda args, kwargs, result: self._refuse(name, args[0][0])
        return lambda args, kwargs, result: self._relation(name, args)

    def _note_id(self, args: tuple[Any, ...], kwargs: Any, result: int) -> None:
        self._objects[result] = args[1]

    def clear(self) -> None:
        """Forget all trees (and the objects under their guards)."""
        self._trees.clear()
        self._objects.clear()

    # -------------------------------------------------------------- recording

    def _tree(self, manager: Any) -> tuple[Tree, int]:
        tree = self._trees.get(id(manager))
        if tree is None or id(manager) not in tree.numbers:
            tree = Tree(manager)
            self._trees[id(manager)] = tree
            if not isinstance(manager, torch_api.serve().RootGuardManager):
                tree.problems.append("a guard was added to a tree built before the capture")
        return tree, tree.numbers[id(manager)]

    def _refuse(self, name: str, manager: Any) -> None:
        if not self._off:
            tree, node = self._tree(manager)
            where = "" if name.startswith("mark") else f"{tree.source(node)}: "
            tree.problems.append(f"{where}{REFUSED[name]}")

    def _manager(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        if self._off:
            return
        key_name = MANAGERS[name]
        order = [*([key_name] if key_name else []), "source", "example_value", "guard_manager_enum"]
        given = dict(zip(order, args[1:], strict=False)) | kwargs
        tree, parent = self._tree(args[0])
        if id(made) in tree.numbers:  # torch found an accessor that exists already
            return
        node = tree.add(made)
        self._trees[id(made)] = tree
        example, source = given["example_value"], given["source"]
        if parent in tree.constant:
            tree.constant[node] = tree.constant[parent]
        elif isinstance(example, types.ModuleType) and _is_dynamo(example.__name__):
            tree.constant[node] = example.__name__
        elif parent in tree.registries and name == "get_key_manager":
            tree.constant[node] = IMPLIED
        if node in tree.constant:
            return
        key_value: Any = given.get(key_name) if key_name else None
        if parent in tree.registries and name == "get_value_manager":
            # Read by key: types that other libraries register may come in between.
            name = "dict_getitem_manager"
            key_value = list(torch_api.capture().supported_nodes)[int(key_value)]
        if example is torch_api.capture().supported_nodes:
            tree.registries.add(node)
        try:
            key = self._key(tree, name, key_value)
            category = "d" if node in tree.registries else self._example(made, example)
            if name == "set_getitem_manager":
                _refuse_hashed(example)
        except Unsupported as error:
            tree.problems.append(f"{source}: {error}")
            key, category = None, "o"
        if name == "globals_dict_manager":
            tree.globals_node = node
        tree.ops.append((name, parent, node, key, source, category))

    def _key(self, tree: Tree, name: str, value: Any) -> Any:
        if name == "globals_dict_manager" or MANAGERS[name] is None:
            return None
        if name == "lambda_manager":
            return encode_function(value)
        return encode(value)

    def _example(self, made: Any, example: Any) -> Any:
        """The category of an example value: C++ takes its fast paths by it."""
        if isinstance(made, torch_api.serve().DictGuardManager):
            if not isinstance(example, dict):
                raise Unencodable(f"a guard on the keys of {describe(example)}")
            return ("D", encode(type(example)), dict.__len__(example))
        immutable = bool(made.is_guarded_value_immutable())
        category = category_of(example, immutable)
        if immutable != (category in self._immutable):
            raise Unencodable(f"torch takes {describe(example)} for immutable: {immutable}")
        return category

    def _leaf(self, name: str, args: tuple[Any, ...]) -> None:
        if self._off:
            return
        tree, node = self._tree(args[0])
        values = args[1:]
        where = tree.constant.get(node)
        if where == IMPLIED and name == "add_id_match_guard":
            return
        if where is not None:
            self._check_constant(tree, node, name, values, where)
            return
        if name == "add_default_device_guard":
            tree.device = encode(torch_api.serve().device_module.CURRENT_DEVICE)
        if name in ("add_tensor_match_guard", "add_dispatch_key_set_guard"):
            self._note_dispatch_keys(tree)
        out: list[Any] = []
        letters = LEAVES[name]
        for letter, value in zip(letters, values, strict=True):
            if letter == "u":
                continue
            try:
                out.append(self._argument(tree, node, name, letter, value, values))
            except Unsupported as error:
                tree.problems.append(f"{tree.source(node)}: {error}")
                out.append(None)
        if name == "add_equals_match_guard" and _holds_set(values[0]):
            stable = f"{tree.source(node)} == {_stable_text(values[0])}"
            tree.stable.update(dict.fromkeys(out[1], stable))
        if name == "add_dict_version_guard":
            name = "add_lambda_guard"
        elif out and type(out[0]) is tuple and out[0][:1] == ("late",):
            name = "add_lambda_guard"
        if name == "add_lambda_guard" and LEAVES[name] != letters:
            # torch keeps the first guard of a kind on a node, but all lambda guards.
            if (node, letters) in tree.replaced:
                return
            tree.replaced.add((node, letters))
        tree.ops.append((name, node, tuple(out)))

    def _note_dispatch_keys(self, tree: Tree) -> None:
        names = torch_api.capture()
        now = (
            names.dispatch_keys_include().raw_repr(),
            names.dispatch_keys_exclude().raw_repr(),
        )
        if tree.tls is not None and tree.tls != now:
            tree.problems.append("dispatch keys of the thread changed while guards were built")
        tree.tls = now

    def _argument(
        self, tree: Tree, node: int, name: str, letter: str, value: Any, values: Any
    ) -> Any:
        if letter == "k":
            return encode(value)
        if letter == "w":
            return (value,) if isinstance(value, str) else tuple(value)
        if letter == "f":
            return encode_function(value)
        if letter == "m":
            return tuple(encode(type(mode)) for mode in value)
        if letter == "t":
            zero_dim = len(list(values[1])) == 0
            dtype = str(value.dtype).removeprefix("torch.")
            return (str(value.device), dtype, bool(value.requires_grad), zero_dim)
        if letter == "d":
            if value is not torch_api.capture().supported_nodes:
                raise Unencodable("the version of a dict (DICT_VERSION)")
            return ("nodes", _encode_nodes(value))
        return self._identity(name, value)

    def _identity(self, name: str, number: int) -> Any:
        if number not in self._objects:
            raise Unencodable("the identity of an object that was not seen")
        value = self._objects[number]
        if name != "add_id_match_guard":
            return encode(value)
        if _is_value(value):
            return Identity(value)
        if isinstance(value, types.CodeType):
            found = codepath.find(value)
            if found is not None:
                return ("C", *found, _core.code_digest(value))
            return ("late", "code", _core.code_digest(value))
        try:
            return encode(value)
        except Unencodable:
            if isinstance(value, types.FunctionType):
                return _encode_late_function(value)
            _refuse_identity(value)
            return Identity(value)

    def _check_constant(
        self, tree: Tree, node: int, name: str, values: tuple[Any, ...], where: str
    ) -> None:
        """A guard inside a module of Dynamo says what the version of torch fixes, when it is about
        a function, class or module. Anything else there could be set by a user."""
        if name in ("add_type_match_guard", "add_id_match_guard"):
            value = self._objects.get(values[0])
            if isinstance(value, types.CodeType) and _is_library_file(value.co_filename):
                return
            module = value.__name__ if isinstance(value, types.ModuleType) else None
            if is_library(str(module or getattr(value, "__module__", None) or "builtins")):
                return
        elif name in ("add_dict_contains_guard", "add_no_hasattr_guard"):
            return
        tree.problems.append(f"{tree.source(node)}: a guard on the state of {where}")

    def _relation(self, name: str, args: tuple[Any, ...]) -> None:
        if self._off:
            return
        if name == "install_object_aliasing_guard":
            managers = [args[0], args[1]]
        else:
            managers = [*args[0], *(args[1] if name == "install_storage_overlapping_guard" else ())]
        tree, _ = self._tree(managers[0])
        numbers = [tree.numbers[id(manager)] for manager in managers]
        verbose = tuple(args[2])
        if name == "install_object_aliasing_guard":
            out: tuple[Any, ...] = (*numbers, verbose)
        elif name == "install_storage_overlapping_guard":
            half = len(args[0])
            out = (tuple(numbers[:half]), tuple(numbers[half:]), verbose)
        else:
            out = (tuple(numbers), tuple(args[1]), verbose)
        tree.ops.append((name, -1, out))

    # -------------------------------------------------------------- records

    def record_for(self, guard_manager: Any, rename: dict[str, str]) -> dict[str, Any]:
        """The tape of the tree of *guard_manager* (a GuardManagerWrapper).

        *rename* maps names that Dynamo put into f_globals to the names the artifact uses. Raises
        Unsupported with all reasons, one a line, when the tree cannot be frozen.
        """
        tree = self._tree_of(guard_manager)
        return self._record(tree, rename, lambda text: _canonical_text(text, tree, self._objects))

    def _tree_of(self, guard_manager: Any) -> Tree:
        tree = self._trees.get(id(guard_manager.root))
        if tree is None or tree.wrappers[ROOT] is not guard_manager.root:
            raise Unsupported("guards that were built while nothing was recorded")
        return tree

    def _record(
        self, tree: Tree, rename: dict[str, str], canonical: Callable[[str], str]
    ) -> dict[str, Any]:
        problems = list(tree.problems)
        texts = _Texts(rename, canonical)
        numbers = _numbering(tree)
        ops: list[tuple[Any, ...]] = []
        identities: list[tuple[int, Any]] = []
        moved: list[tuple[Any, ...]] = []
        for op in tree.ops:
            if op[0] in MANAGERS:
                ops.append(_final_manager(op, tree, numbers, rename, texts))
            elif op[0] in RELATIONS:
                ops.append(_final_relation(op, numbers, texts, problems))
            elif op[2] and isinstance(op[2][0], Identity):
                identities.append((op[1], op[2][0].value))
            elif op[0] == "add_lambda_guard" and tree.is_dict_manager(op[1]):
                moved.append(op)
            else:
                ops.append((op[0], numbers[op[1]], _final_arguments(op, rename, texts)))
        try:
            for _, node, (function, verbose) in moved:
                at = ("at", _path(tree, node, rename), function)
                verbose = tuple(map(texts, verbose))
                ops.append(("add_epilogue_lambda_guard", ROOT, (at, verbose)))
            if identities:
                ops.append(self._object_relations(tree, identities, rename))
        except Unsupported as error:
            problems.append(str(error))
        if problems:
            raise Unsupported("\n".join(dict.fromkeys(map(texts, problems))))
        return {
            "nodes": len(numbers),
            "ops": tuple(ops),
            "tls": tree.tls,
            "device": tree.device,
        }

    def _object_relations(
        self, tree: Tree, identities: list[tuple[int, Any]], rename: dict[str, str]
    ) -> tuple[Any, ...]:
        """One guard at the end of the root for all objects under id guards that have no name."""
        typed = {op[1] for op in tree.ops if op[0] == "add_type_match_guard"}
        groups: dict[int, int] = {}
        out = []
        for node, value in identities:
            if not _is_value(value) and node not in typed:
                raise Unsupported(
                    f"{tree.source(node)}: identity of {describe(value)}, which is guarded by "
                    "nothing else"
                )
            equal = encode(value) if _is_immutable_value(value) else None
            group = groups.setdefault(id(value), len(groups))
            out.append((_path(tree, node, rename), group, encode(type(value)), equal))
        relations = (("rel", tuple(out)), (RELATIONS_TEXT,))
        return ("add_epilogue_lambda_guard", ROOT, relations)

    def used_globals(self, guard_manager: Any) -> set[str]:
        """The names that the tape of *guard_manager* reads from f_globals."""
        tree = self._tree_of(guard_manager)
        used: set[str] = set()
        for op in tree.ops:
            if op[0] == "dict_getitem_manager" and op[1] == tree.globals_node and op[3]:
                used.add(op[3][1])
            elif op[0] not in MANAGERS and op[2] and isinstance(op[2][0], Generated):
                used.update(_names_of_globals(op[2][0].code))
        return used

    def bound_ids(self, guard_manager: Any) -> set[int]:
        """Ids of objects that the tape binds at its first accepted call. None of them may be a
        constant of the frame's bytecode."""
        return {
            id(op[2][0].value)
            for op in self._tree_of(guard_manager).ops
            if op[0] not in MANAGERS and op[2] and isinstance(op[2][0], Identity)
        }

    # -------------------------------------------------------------- proof

    def prove(
        self, guard_manager: Any, f_locals: dict[str, Any], f_globals: dict[str, Any]
    ) -> None:
        """Rebuild the tree from its tape in this process: the rebuilt one must accept *f_locals*
        and have the same nodes and guards. Raises Unsupported when it does not."""
        tree = self._tree_of(guard_manager)
        record = self._record(tree, {}, str)
        self._off = True
        try:
            root, keep = _core.GuardTape(record).replay(
                f_globals,
                torch_api.capture().guard_manager_type,
                None,
                guard_functions.decode_function,
            )
            if not guard_manager.root.check(f_locals):
                raise Unsupported("the guards do not accept the frame they were made for")
            if not root.check(f_locals):
                parts = root.check_verbose(f_locals).verbose_code_parts
                raise Unsupported(f"the rebuilt guards reject their own frame: {parts}")
            compare_trees(tree, guard_manager.root, root)
            del keep
        except (_core.Stale, RuntimeError, guard_functions.NeedsCompiler) as error:
            raise Unsupported(f"the guards cannot be rebuilt: {error}") from error
        finally:
            self._off = False


# ------------------------------------------------------------------ helpers


def _encode_nodes(registry: Any) -> Encoded:
    kinds = sort_encoded(map(encode, registry))
    for kind in kinds:
        if kind[0] not in ("P", "PF"):
            raise Unencodable(f"a pytree node type without a module: {kind}")
    return kinds


def _holds_set(value: Any) -> bool:
    if isinstance(value, (set, frozenset)):
        return True
    return isinstance(value, (tuple, list)) and any(map(_holds_set, value))


def _stable_text(value: Any) -> str:
    """repr() with the items of sets in order."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_stable_text, value))) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(_stable_text, value)) + ")"
    return repr(value)


def _is_dynamo(module: str) -> bool:
    inside = module == "torch._dynamo" or module.startswith("torch._dynamo.")
    return inside and module not in _SETTABLE


def _is_library_file(filename: str) -> bool:
    import os

    import torch

    roots = (os.path.dirname(torch.__file__), os.path.dirname(os.__file__))
    return filename.startswith("<frozen ") or (
        filename.startswith(roots) and "site-packages" not in filename.removeprefix(roots[0])
    )


def _refuse_hashed(example: Any) -> None:
    if not isinstance(example, (int, float, complex)):
        raise Unencodable(f"the place of {describe(example)} in a set depends on the process")


def _is_immutable_value(value: Any) -> bool:
    import torch

    return type(value) in (
        int,
        float,
        complex,
        str,
        bytes,
        tuple,
        frozenset,
        range,
        slice,
        torch.Size,
        torch.device,
    )


def _is_value(value: Any) -> bool:
    """Plain content: an id guard on it cannot be rebuilt from the content."""
    return _is_immutable_value(value) or type(value) in (dict, list, set)


def _refuse_identity(value: Any) -> None:
    import torch

    kinds = (
        torch.Tensor,
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.Generator,
        torch.Stream,
        type,
        types.ModuleType,
        types.MethodType,
        types.BuiltinFunctionType,
        types.GeneratorType,
    )
    if isinstance(value, kinds) or is_library(type(value).__module__):
        raise Unencodable(f"identity of {describe(value)}")


def _encode_late_function(value: types.FunctionType) -> Encoded:
    if value.__closure__ or value.__dict__:
        raise Unencodable(f"identity of the {describe(value)}, which no module leads to")
    defaults = encode((value.__defaults__, value.__kwdefaults__))
    return ("late", "function", _core.code_digest(value.__code__), defaults)


def _names_of_globals(code: types.CodeType) -> Iterator[str]:
    """The names x in G['x'] of a generated guard function."""
    previous = None
    for instruction in dis.get_instructions(code):
        if previous == "G" and isinstance(instruction.argval, str):
            yield instruction.argval
        previous = instruction.argval if instruction.opname == "LOAD_GLOBAL" else None


def _path(tree: Tree, node: int, rename: dict[str, str]) -> Encoded:
    """How to read the value of *node* from the frame, for a guard at the end of the root."""
    made = {op[2]: op for op in tree.ops if op[0] in MANAGERS}
    path = []
    at = node
    while at != ROOT:
        name, parent, _, key, _, _ = made[at]
        if name != "globals_dict_manager" and name not in guard_functions.ACCESSORS:
            raise Unsupported(f"{tree.source(node)}: an identity that is read by {name}")
        path.append((name, _renamed_key(key, rename) if parent == tree.globals_node else key))
        at = parent
    return tuple(reversed(path))


def _renamed_key(key: Any, rename: dict[str, str]) -> Any:
    return ("k", rename.get(key[1], key[1])) if key is not None and key[0] == "k" else key


def _numbering(tree: Tree) -> dict[int, int]:
    """New numbers of the nodes that stay on the tape."""
    stay = (node for node in range(len(tree.wrappers)) if node not in tree.constant)
    return {node: number for number, node in enumerate(stay)}


def _final_manager(
    op: tuple[Any, ...],
    tree: Tree,
    numbers: dict[int, int],
    rename: dict[str, str],
    texts: _Texts,
) -> tuple[Any, ...]:
    name, parent, node, key, source, category = op
    if parent == tree.globals_node and name == "dict_getitem_manager":
        key = _renamed_key(key, rename)
    return name, numbers[parent], numbers[node], key, texts(source), category


def _final_relation(
    op: tuple[Any, ...], numbers: dict[int, int], texts: _Texts, problems: list[str]
) -> tuple[Any, ...]:
    def final(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(final, value))
        if type(value) is str:
            return texts(value)
        if value not in numbers:
            problems.append("a relation with a value inside torch._dynamo")
        return numbers.get(value, 0)

    return op[0], -1, final(op[2])


def _final_arguments(op: tuple[Any, ...], rename: dict[str, str], texts: _Texts) -> Any:
    name, _, values = op
    out = []
    for letter, value in zip(LEAVES[name].replace("u", ""), values, strict=True):
        if letter == "w":
            value = tuple(map(texts, value))
        elif isinstance(value, Generated):
            value = _final_generated(value.code, rename)
        out.append(value)
    if name == "add_tensor_match_guard" and out[3] is not None:
        out[3] = ("k", texts(out[3][1]))  # the name of the tensor, for messages
    return tuple(out)


def _final_generated(code: types.CodeType, rename: dict[str, str]) -> Encoded:
    names = set(_names_of_globals(code))
    constants = tuple(
        rename.get(item, item) if isinstance(item, str) and item in names else item
        for item in code.co_consts
    )
    return ("gfn", encode_code(code.replace(co_consts=constants)), code.co_freevars)


class _Texts:
    """Renames global names in sources and verbose parts."""

    def __init__(self, rename: dict[str, str], canonical: Callable[[str], str]) -> None:
        names = sorted(rename, key=len, reverse=True)
        self._pattern = (
            re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, names)) + r")(?!\w)")
            if names
            else None
        )
        self._rename = rename
        self._canonical = canonical
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        found = self._known.get(text)
        if found is None:
            found = self._canonical(text)
            if self._pattern is not None:
                found = self._pattern.sub(lambda match: self._rename[match[0]], found)
            self._known[text] = found
        return found


def _canonical_text(text: str, tree: Tree, objects: dict[int, Any]) -> str:
    """A text without what differs between two processes: ids, addresses, order of sets, the user's
    source line."""
    text = tree.stable.get(text, text)
    text = text.partition("  # ")[0].rstrip()
    text = _DICT_VERSION.sub(r"\1 is unchanged", text)
    text = ADDRESS.sub("0x", text)
    text = _NUMBER.sub(lambda match: "ID" if int(match[0]) in objects else match[0], text)
    return _COMPILE_ID.sub("", text)
