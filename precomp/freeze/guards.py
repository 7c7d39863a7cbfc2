"""Records how Dynamo builds its C++ guard trees, as data (docs/guards.md).

While a :class:`GuardRecorder` is installed, every call on torch's guard classes that adds to a tree
is noted with its arguments encoded. ``record_for`` gives the tape of one tree (docs/internals.md,
section 4.2), or refuses it with every reason: no guard is ever left out silently.
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from precomp import _core, guard_functions, live_objects, torch_api
from precomp.errors import PrecompError
from precomp.freeze import live
from precomp.freeze.guard_arguments import (
    encode_argument,
    encode_example,
    encode_key,
    is_dynamo,
    is_fixed,
    opaque_digest,
    refuse_hashed,
)
from precomp.freeze.guard_compare import compare_trees
from precomp.freeze.guard_record import (
    canonical_text,
    holds_set,
    make_record,
    names_a_global,
    names_of_globals,
    stable_text,
)
from precomp.freeze.guard_tree import (
    DEFAULTS,
    IMPLIED,
    LEAVES,
    MANAGERS,
    NUMBERED,
    QUERIES,
    REFUSED,
    RELATIONS,
    ROOT,
    Generated,
    Identity,
    Probe,
    Tree,
    probe_immutable,
)
from precomp.freeze.process_groups import names_of_groups, tells
from precomp.freeze.store import Disproved, Unsupported
from precomp.freeze.values import encode

Patch = Callable[[Any, str, Any], None]


class GuardRecorder:
    """Records every guard tree built while it is installed."""

    def __init__(self) -> None:
        self._trees: dict[int, Tree] = {}  # id of any wrapper -> its tree
        self._objects: dict[int, Any] = {}  # id -> object under an id guard, kept alive
        self._immutable: set[str] = set()
        self.trace = live.TraceRecorder()
        self._paused: set[int] = set()  # threads whose calls are not noted

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
        self.trace.install(patch, self.attach)
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
        functions &= set(vars(torch_api.capture().native_guards))
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

    def _notes(self) -> bool:
        """Whether calls of this thread are noted."""
        return threading.get_ident() not in self._paused

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Calls of this thread are not noted meanwhile."""
        thread = threading.get_ident()
        inner = thread in self._paused
        self._paused.add(thread)
        try:
            yield
        finally:
            if not inner:
                self._paused.discard(thread)

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
        if self._notes():
            tree, node = self._tree(manager)
            tree.problems.append(f"{tree.source(node)}: {REFUSED[name]}")

    def _manager(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        if not self._notes():
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
        if tells(type(example).__module__):
            tree.ranks = True
            tree.groups |= names_of_groups(example)
        if parent in tree.constant:
            fixed = ".__defaults__" in source or ".__kwdefaults__" in source
            tree.constant[node] = DEFAULTS if fixed else tree.constant[parent]
        elif isinstance(example, types.ModuleType) and is_dynamo(example.__name__):
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
            key = encode_key(name, key_value)
            category = (
                "d" if node in tree.registries else encode_example(made, example, self._immutable)
            )
            if name == "set_getitem_manager":
                refuse_hashed(example)
            gradient = live.unchecked(name, example)
            if gradient is not None:
                tree.gradients[node] = gradient
            if name == "global_weakref_manager":
                tree.weak[node] = id(example)
            if live.is_type_list(example):
                tree.type_lists[node] = tuple(map(encode, example))
        except Unsupported as error:
            tree.problems.append(f"{source}: {error}")
            key, category = None, "o"
        if name == "globals_dict_manager":
            tree.globals_node = node
        tree.ops.append((name, parent, node, key, source, category))

    def _leaf(self, name: str, args: tuple[Any, ...]) -> None:
        if not self._notes() or isinstance(args[1], Probe):
            return
        tree, node = self._tree(args[0])
        values = args[1:]
        where = tree.constant.get(node)
        if where == DEFAULTS or (where == IMPLIED and name == "add_id_match_guard"):
            return
        if where is not None:
            if not is_fixed(name, values, self._objects):
                tree.problems.append(f"{tree.source(node)}: a guard on the state of {where}")
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
                encoded = encode_argument(name, letter, value, values, self._objects)
                if letter == "f" and type(encoded) is tuple and encoded[0] == "opaque":
                    encoded = (*encoded, opaque_digest(tree, node))
                out.append(encoded)
            except Unsupported as error:
                tree.problems.append(f"{tree.source(node)}: {error}")
                out.append(None)
        if name == "add_length_check_guard" and node in tree.type_lists:
            out[0] = ("types", tree.type_lists[node])
        stable = None  # what to say instead of a text that differs between two processes
        if name == "add_equals_match_guard" and holds_set(values[0]):
            stable = f"{tree.source(node)} == {stable_text(values[0])}"
        elif letters[0] == "f" and type(out[0]) is tuple and out[0][0] in NUMBERED:
            stable = f"{tree.source(node)}: {NUMBERED[out[0][0]]} must be as captured"
        if stable is not None:
            tree.stable.update(dict.fromkeys(out[1], stable))
        if name == "add_dict_version_guard":
            name = "add_lambda_guard"
        elif out and type(out[0]) is tuple and out[0][:1] in (("late",), ("types",)):
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

    def _relation(self, name: str, args: tuple[Any, ...]) -> None:
        if not self._notes():
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
        return make_record(tree, rename, lambda text: canonical_text(text, tree, self._objects))

    def _tree_of(self, guard_manager: Any) -> Tree:
        tree = self._trees.get(id(guard_manager.root))
        if tree is None or tree.wrappers[ROOT] is not guard_manager.root:
            raise Unsupported("guards that were built while nothing was recorded")
        return tree

    def used_globals(self, guard_manager: Any) -> set[str]:
        """The names that the tape of *guard_manager* reads from f_globals."""
        tree = self._tree_of(guard_manager)
        used: set[str] = set()
        for op in tree.ops:
            if names_a_global(op, tree) and op[3]:
                used.add(op[3][1])
            elif op[0] not in MANAGERS and op[2] and isinstance(op[2][0], Generated):
                used.update(names_of_globals(op[2][0].code))
        return used

    def operations(self, guard_manager: Any) -> tuple[tuple[Any, ...], ...]:
        """What was recorded of the tree of *guard_manager*, as it is on no tape yet."""
        tree = self._trees.get(id(guard_manager.root))
        return () if tree is None else (*tree.ops, ("device", tree.device))

    def groups(self, guard_manager: Any) -> set[str] | None:
        """The names of the process groups that are guarded; None when no object is that tells where
        the rank is: a group, a mesh, a DTensor."""
        tree = self._trees.get(id(guard_manager.root))
        return tree.groups if tree is not None and tree.ranks else None

    def bound_ids(self, guard_manager: Any) -> set[int]:
        """Ids of objects that the tape binds at its first accepted call. None of them may be a
        constant of the frame's bytecode."""
        return {
            id(op[2][0].value)
            for op in self._tree_of(guard_manager).ops
            if op[0] not in MANAGERS and op[2] and isinstance(op[2][0], (Identity, live.Held))
        }

    def live_objects(self, guard_manager: Any) -> live.Table:
        """The live objects of the tree of *guard_manager*, numbered as on its tape."""
        return live.Table(self._tree_of(guard_manager))

    def attach(self, guard_manager: Any, notes: live.Notes) -> None:
        """Keep what was seen while the frame of these guards was traced."""
        tree = self._trees.get(id(guard_manager.root))
        if tree is not None:
            tree.notes = notes

    # -------------------------------------------------------------- proof

    def prove(
        self, guard_manager: Any, f_locals: dict[str, Any], f_globals: dict[str, Any]
    ) -> None:
        """Rebuild the tree from its tape in this process: the rebuilt one must accept *f_locals*
        and have the same nodes and guards. Raises Disproved when it does not, Unsupported when
        there is no tape."""
        tree = self._tree_of(guard_manager)
        record = make_record(tree, {}, str)
        with self.paused():
            if not guard_manager.root.check(f_locals):
                raise Unsupported("the guards do not accept the frame they were made for")
            root, keep = thaw(record, f_locals, f_globals)
            compare_trees(tree, guard_manager.root, root)
            del keep


def thaw(
    record: dict[str, Any], f_locals: dict[str, Any], f_globals: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """``(root, keep)`` of *record*, rebuilt in the process that recorded it; *keep* must live as
    long as *root*. Raises Disproved when that fails or the tree rejects *f_locals*."""
    found: tuple[Any, ...] = ()
    try:
        if record["live"] is not None:
            reader = live_objects.Reader(record, f_locals, f_globals, None)
            found = live_objects.find(record["live"], reader, None)
        root, keep = _core.GuardTape(record).replay(
            f_globals,
            torch_api.capture().guard_manager_type,
            None,
            guard_functions.decode_function,
            found,
        )
        if not root.check(f_locals):
            parts = root.check_verbose(f_locals).verbose_code_parts
            raise Disproved(f"the rebuilt guards reject their own frame: {parts}")
    except (
        _core.Stale,
        RuntimeError,
        guard_functions.NeedsCompiler,
        live_objects.Unfit,
    ) as error:
        raise Disproved(f"the guards cannot be rebuilt: {error}") from error
    return root, keep
