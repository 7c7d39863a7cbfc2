"""Frames: each conversion that was recorded becomes a frame record.

See docs/internals.md, section 4.1. Names that Dynamo counts per process become names made of
content, so that the same program always freezes to the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

from precomp import _core
from precomp.data import dumps
from precomp.freeze import helpers, inlined, process_groups
from precomp.freeze.compiler_names import (
    aliased_names,
    code_names,
    compiler_names,
    guarded_names,
    in_compiler,
)
from precomp.freeze.conversions import Converted, FrameRecorder, Installed
from precomp.freeze.devices import Numbering
from precomp.freeze.live import WEAK
from precomp.freeze.module import freeze_module
from precomp.freeze.plan import freeze_plan
from precomp.freeze.plan_source import GraphSource
from precomp.freeze.store import Store, Unsupported
from precomp.freeze.values import encode, encode_code
from precomp.process_groups import Layout
from precomp.sources import qualname


def integers(code: types.CodeType) -> set[int]:
    """All integer constants of a code object and the code nested in it."""
    found = {constant for constant in code.co_consts if type(constant) is int}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= integers(constant)
    return found


def rename_code(code: types.CodeType, rename: dict[str, str]) -> types.CodeType:
    """*code* with global names replaced, also in nested code."""
    return code.replace(
        co_names=tuple(rename.get(name, name) for name in code.co_names),
        co_consts=tuple(
            rename_code(constant, rename) if isinstance(constant, types.CodeType) else constant
            for constant in code.co_consts
        ),
    )


def _digest(record: Any) -> str:
    return hashlib.sha256(dumps(record)).hexdigest()


class FrameFreezer:
    """Turns what a FrameRecorder holds into entries of a Store.

    ``problems`` collects ``(function, reason)`` for frames that cannot be frozen, ``order`` the
    digests of the frame entries in order of conversion, ``helpers`` the names ``(module, name)`` of
    torch's compiler that they use.
    """

    def __init__(self, recorder: FrameRecorder, store: Store) -> None:
        self.recorder = recorder
        self.store = store
        self.problems: list[tuple[str, str]] = []
        self.order: list[str] = []
        self.helpers: set[tuple[str, str]] = set()
        self.plan_digests: dict[int, str | Unsupported] = {}
        self.numbering = Numbering(recorder)
        # per scope: old name -> new name, and new name -> spec or refusal
        self.renames: dict[int, dict[str, str]] = {}
        self.specs: dict[int, dict[str, Any]] = {}
        for scope in recorder.scopes:
            self._name_globals(scope)

    def _plan(self, source: GraphSource) -> str:
        known = self.plan_digests.get(id(source))
        if known is None:
            try:
                known = self._freeze_plan(source)
            except Unsupported as refusal:
                known = refusal
            self.plan_digests[id(source)] = known
        if isinstance(known, Unsupported):
            raise known
        return known

    def _freeze_plan(self, source: GraphSource) -> str:
        numbers = self.numbering.of_graph(source)
        while True:
            store, stays = Store(), list[str]()
            record = freeze_plan(
                source, functools.partial(freeze_module, store=store, numbers=numbers, stays=stays)
            )
            self.numbering.keep(source, stays)
            if not (stays and numbers):
                self.store.entries.update(store.entries)
                return self.store.add("plan", record["kind"], dumps(record))
            numbers = {}

    def _name_globals(self, scope: int) -> None:
        rename: dict[str, str] = {}
        specs: dict[str, Any] = {}
        resumes: list[tuple[str, Installed]] = []
        for (owner, name), entry in self.recorder.installed.items():
            if owner != scope:
                continue
            if entry.kind.startswith("resume"):
                resumes.append((name, entry))
                continue
            if entry.kind == "weak":  # named for each frame: _bound_globals
                continue
            try:
                new, spec = self._name_global(entry)
            except Unsupported as refusal:
                new, spec = f"__pc_unsupported_{name}", refusal
            rename[name] = new
            specs[new] = spec
        # The code of a resume function may use the names above, never another resume function.
        for name, entry in resumes:
            code = rename_code(entry.value, rename)
            try:
                encoded = encode_code(code, code.co_firstlineno)
                new = f"__pc_resume_{_digest(encoded)[:16]}"
                spec = (entry.kind, encoded, code.co_name)
            except Unsupported as refusal:
                new, spec = f"__pc_unsupported_{name}", refusal
            rename[name] = new
            specs[new] = spec
        self.renames[scope] = rename
        self.specs[scope] = specs

    def _name_global(self, entry: Installed) -> tuple[str, Any]:
        if entry.kind == "plan":
            digest = self._plan(entry.value)
            return f"__pc_plan_{digest[:16]}", ("plan", digest)
        if entry.kind == "refused":
            raise entry.value
        if entry.kind == "builtins":
            return "__pc_builtins", ("builtins",)
        if entry.kind == "mod":
            return f"__pc_import_{entry.value.replace('.', '_')}", ("mod", entry.value)
        encoded = encode(entry.value)
        return f"__pc_val_{_digest(encoded)[:16]}", ("val", encoded)

    def _globals(self, scope: int, names: set[str]) -> tuple[tuple[str, Any], ...]:
        """Specs of the installed globals among *names*, and what their resume functions use."""
        specs = self.specs.get(scope, {})
        rename = self.renames.get(scope, {})
        wanted = {rename.get(name, name) for name in names} & specs.keys()
        by_new = {
            rename[name]: entry.value
            for (owner, name), entry in self.recorder.installed.items()
            if owner == scope and entry.kind.startswith("resume")
        }
        for new in list(wanted):
            if new in by_new:
                used = {rename.get(name, name) for name in code_names(by_new[new])}
                wanted |= used & specs.keys()
        found = []
        for new in sorted(wanted):
            if isinstance(specs[new], Unsupported):
                raise specs[new]
            found.append((new, specs[new]))
        return tuple(found)

    def freeze(self) -> None:
        """Add an entry for each converted frame, in order of conversion."""
        for frame in self.recorder.converted:
            name = qualname(frame.original)
            try:
                record = self._freeze(frame)
            except Unsupported as refusal:
                self.problems.append((name, str(refusal)))
                continue
            self.order.append(self.store.add("frame", name, dumps(record)))

    def _freeze(self, frame: Converted) -> dict[str, Any]:
        if frame.problems:
            raise Unsupported("; ".join(frame.problems))
        if frame.backend["backend"] != "inductor":
            raise Unsupported(
                f"backend {frame.backend['backend']!r} is not supported, only 'inductor'"
            )
        scope = id(frame.f_globals)
        rename = self.renames.get(scope, {})
        module = frame.f_globals.get("__name__")
        if not isinstance(module, str):
            raise Unsupported("the globals of the function belong to no module")
        names = code_names(frame.transformed) | self.recorder.guards.used_globals(
            frame.guard_manager
        )
        original = rename_code(frame.original, rename)
        if self.recorder.guards.bound_ids(frame.guard_manager) & integers(frame.transformed):
            raise Unsupported("the id() of an object is a constant of the compiled code")
        bind = self._bound_globals(frame, names, rename)
        rename = {**rename, **{old: new for old, new, _ in bind["weak"]}}
        transformed = rename_code(frame.transformed, rename)
        tape = self.recorder.guards.record_for(frame.guard_manager, rename)
        record = {
            "name": qualname(frame.original),
            "module": module,
            "key": _core.code_digest(original),
            "backend": frame.backend,
            "code": encode_code(transformed, frame.original.co_firstlineno),
            "globals": self._globals(scope, names),
            "tape": tape,
            **inlined.rows(frame.original, frame.traced, tape),
            "ranks": self._ranks(frame),
            "bind": {key: tuple(row[1:] for row in rows) for key, rows in bind.items()},
        }
        self._take_helpers(frame, record)
        return self.numbering.settle(frame, record)

    def _ranks(self, frame: Converted) -> Layout | None:
        """Where the rank was, if that is compiled in, with the groups that matter."""
        named = self.recorder.guards.groups(frame.guard_manager) or set()
        graphs = (
            graph
            for name in code_names(frame.transformed)
            for entry in [self.recorder.installed.get((id(frame.f_globals), name))]
            if entry is not None and entry.kind == "plan"
            for plan in entry.value.plans
            for graph in (plan.fw, plan.bw)
        )
        sources = (getattr(graph, "source_code", None) or "" for graph in graphs)
        return process_groups.needed(frame.ranks, named, sources)

    def _bound_globals(
        self, frame: Converted, names: set[str], rename: dict[str, str]
    ) -> dict[str, list[tuple[str, str, Any]]]:
        """The globals that belong to the live objects of a frame, ``(old name, new name, value)``:
        graphs with the rows of the tensors that they hold, weak references with their row."""
        objects = self.recorder.guards.live_objects(frame.guard_manager)
        bound: dict[str, list[tuple[str, str, Any]]] = {"plans": [], "weak": []}
        for name in sorted(names):
            entry = self.recorder.installed.get((id(frame.f_globals), name))
            if entry is not None and entry.kind == "plan" and entry.value.attributes:
                rows = tuple(map(objects.row, entry.value.attributes))
                if None in rows:
                    raise Unsupported("tensors that are attributes of the graph")
                bound["plans"].append((name, rename[name], rows))
        for name, row in sorted(objects.weak().items(), key=lambda item: item[1]):
            bound["weak"].append((name, f"{WEAK}{row}", row))
        return bound

    @functools.cached_property
    def _offered(self) -> dict[Any, Any]:
        return helpers.offered()

    def _take_helpers(self, frame: Converted, record: dict[str, Any]) -> None:
        """Note the names of torch's compiler modules that bytecode and guards use."""
        modules = {
            name: entry.value
            for (owner, name), entry in self.recorder.installed.items()
            if owner == id(frame.f_globals) and entry.kind == "mod" and in_compiler(entry.value)
        }
        names = compiler_names(record["tape"]["ops"]) | guarded_names(record)
        names |= aliased_names(frame.transformed, modules)
        if names:
            helpers.taken(names, self._offered)
            self.helpers |= names

    def freeze_skips(self) -> tuple[Any, ...]:
        """Rows ``(code digest, current action, recursive action, apply_to_code, name)``."""
        rows = {}
        for skip in self.recorder.skipped:
            code = rename_code(skip.code, self.renames.get(id(skip.f_globals), {}))
            digest = _core.code_digest(code)
            rows[digest] = (
                digest,
                skip.current,
                skip.recursive,
                skip.apply_to_code,
                qualname(skip.code),
            )
        return tuple(rows[digest] for digest in sorted(rows))
