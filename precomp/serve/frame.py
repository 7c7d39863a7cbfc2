"""The tables behind the frame server: which code is known, how an entry is built, what a miss says.

One ``Runtime`` per process serves any number of artifacts. torch keys its cache by the callback
object, so each distinct set of ``torch.compile`` arguments has its own ``_core.FrameServer``.
"""

from __future__ import annotations

import builtins
import collections
import functools
import importlib
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from precomp import _core, process_groups, torch_api
from precomp.errors import CompileViolation
from precomp.serve import devices, guards, live, source, standin
from precomp.serve.devices import Placed
from precomp.serve.entries import Entry, Loaded
from precomp.serve.unknown import FileRules, holds_torch, never_converted
from precomp.sources import qualname
from precomp.torch_api.modules import STANDIN

if TYPE_CHECKING:
    from precomp.serve.triton import Server as LaunchServer

NOT_CAPTURED = "not captured: the artifact has no entry for this function"
SKIPPED = "skipped when it was captured"
HINT = "capture a run that makes this call, or fix what differs"


def relocate(value: Any, old: str, new: str) -> Any:
    """An encoded value with references into module *old* turned into references into *new*."""
    if type(value) is dict:
        return {key: relocate(item, old, new) for key, item in value.items()}
    if type(value) is not tuple:
        return value
    if len(value) >= 2 and value[0] in ("P", "PF", "C", "M") and value[1] == old:
        return (value[0], new, *value[2:])
    return tuple(relocate(item, old, new) for item in value)


class Runtime:
    """All that is served in this process."""

    def __init__(self) -> None:
        self.api = torch_api.serve()
        self.lock = threading.RLock()
        self.loaded: list[Loaded] = []
        self.entries: dict[int, Entry] = {}
        self.by_key: dict[str, list[Entry]] = {}
        self.names: dict[str, list[Entry]] = {}
        self.skips: dict[str, tuple[Any, ...]] = {}
        self.modes: dict[str, dict[str, Any]] = {}
        self.files = FileRules([])
        self.lean = False
        self.missing: collections.Counter[tuple[str, str]] = collections.Counter()
        # What serves Triton kernels; imported for the first artifact that has any.
        self.launches: LaunchServer | None = None
        self.servers: list[_core.FrameServer] = []
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], Any, Any]] = {}
        self._trees: dict[tuple[int, int], Any] = {}
        self._on: dict[tuple[int, int, int], Any] = {}  # entry, ordinal, id of the globals
        self._installed: dict[int, tuple[types.CodeType, list[tuple[Any, types.CodeType]]]] = {}
        action = self.api.FrameAction
        self._actions = {int(member.value): member for member in action.__members__.values()}
        self.run = self.api.FrameExecStrategy(action.DEFAULT, action.DEFAULT)
        self.skip = self.api.FrameExecStrategy(action.SKIP, action.DEFAULT)
        standin.on_materialize(self.join_compiler)

    def set_lean(self, lean: bool) -> None:
        """Whether a miss raises instead of compiling."""
        self.lean = lean
        if self.launches is not None:
            self.launches.lean = lean

    # -- artifacts come and go

    def add(self, loaded: Loaded) -> None:
        """Serve *loaded* too."""
        with self.lock:
            self.loaded.append(loaded)
            self._index()
        if loaded.triton or loaded.tuned:
            from precomp.serve import triton

            self.launches = triton.server()
            self.launches.add(loaded.triton, loaded.tuned)

    def remove(self, loaded: Loaded) -> None:
        """Serve *loaded* no longer: its code leaves torch's caches, its globals their modules."""
        if self.launches is not None:
            self.launches.remove(loaded.triton, loaded.tuned)
        with self.lock:
            self.loaded.remove(loaded)
            for code, _ in self._installed.values():
                self.api.reset_code(code)
            self._installed.clear()
            self._trees.clear()
            self._on.clear()
            for (_, name), (scope, value, _) in self._globals.items():
                if scope.get(name) is value:
                    del scope[name]
            self._globals.clear()
            self._index()

    def _index(self) -> None:
        self.entries = {e.number: e for item in self.loaded for e in item.frames}
        self.by_key = {}
        self.names = {}
        for entry in self.entries.values():
            self.by_key.setdefault(entry.record["key"], []).append(entry)
            self.names.setdefault(entry.record["name"], []).append(entry)
        records = [record for item in self.loaded for record in item.rules]
        self.skips = {row[0]: row for record in records for row in record["skips"]}
        self.modes = {}
        for record in records:
            self.modes.update(record["modes"])
        self.files = FileRules(records)
        for server in self.servers:
            server.forget()

    # -- servers

    def server(
        self, backend: dict[str, Any], fallback: Callable[[], Any], *, whole: bool = False
    ) -> _core.FrameServer:
        """A new frame server for calls of one compiler configuration.

        *fallback()* gives torch's own callback for that configuration. *whole*: serve only entries
        without graph breaks (``fullgraph=True``).
        """
        torch_callback: list[Any] = []

        def find(code: types.CodeType) -> Any:
            return self.find(code, backend, whole)

        def miss(frame: Any, cache_entry: Any, frame_state: Any, numbers: Any) -> Any:
            answer = self.miss(frame, numbers)
            if answer is not None:
                return answer
            if not torch_callback:
                torch_callback.append(fallback())
            return torch_callback[0](frame, cache_entry, frame_state)

        server = _core.FrameServer(find, self.build, miss)
        self.servers.append(server)
        return server

    def find(self, code: types.CodeType, backend: dict[str, Any], whole: bool = False) -> Any:
        """Entry numbers for *code*, or the FrameReturn of a frame that is never converted."""
        key = _core.code_digest(code)
        entries = [
            entry
            for entry in self.by_key.get(key, ())
            if entry.record["backend"] == backend and not (whole and entry.breaks)
        ]
        if entries:
            return tuple(entry.number for entry in entries)
        row = self.skips.get(key)
        if row is not None and key not in self.by_key:
            strategy = self.api.FrameExecStrategy(self._actions[row[1]], self._actions[row[2]])
            return _core.FrameReturn(None, strategy, row[3], SKIPPED)
        if never_converted(code) or self.files.skips(code.co_filename):
            return _core.FrameReturn(None, self.skip, True, "torch skips code of this kind")
        return ()

    # -- building an entry

    def build(self, number: int, code: types.CodeType, f_globals: dict[str, Any]) -> Any:
        """``(check, FrameReturn)`` of an entry for code in *f_globals*; None if it is stale."""
        with self.lock:
            entry = self.entries.get(number)
            if entry is None or entry.live or entry.placed is None:
                return None  # rebind builds it, which sees the frame
            return self._try_build(entry, entry.placed, code, f_globals)

    def _try_build(
        self, entry: Entry, placed: Placed, code: types.CodeType, f_globals: dict[str, Any]
    ) -> Any:
        try:
            pair = self._build(entry, placed, code, f_globals)
        except (_core.Stale, guards.NeedsCompiler) as reason:
            entry.stale = str(reason)
            pair = None
        self._trees[entry.number, id(f_globals)] = pair
        return pair

    def _build(
        self,
        entry: Entry,
        placed: Placed,
        code: types.CodeType,
        f_globals: dict[str, Any],
        f_locals: Any = None,
    ) -> Any:
        record = placed.record
        own, here = record["module"], str(f_globals.get("__name__"))
        moved = own != here
        source.check(record, here)
        process_groups.check(record["ranks"])
        tape = relocate(record["tape"], own, here) if moved else record["tape"]
        twins = standin.twins()
        binding = None
        if entry.live:
            binding = live.Binding(record, tape, f_locals, f_globals, twins)
            tape = binding.tape(tape)
        self._install_globals(entry, placed, f_globals, code, binding)
        guard_tape = _core.GuardTape(tape)
        entry.binds = guard_tape.binds
        root, keep = guards.build(
            guard_tape,
            f_globals,
            twins,
            standin.enum_type(),
            standin.building(),
            binding.objects if binding else (),
        )
        encoded = relocate(record["code"], own, here) if moved else record["code"]
        transformed = _core.decode_code(encoded, code.co_filename, code.co_firstlineno, twins)
        for names in (placed.names, binding.names if binding else None):
            if names:
                transformed = live.rename_code(transformed, names)
        manager = guards.GuardWrapper(root, f_globals, keep)
        guarded = types.SimpleNamespace(
            code=transformed,
            guard_manager=manager,
            compile_id=f"precomp/{entry.number}",
            trace_annotation="precomp",
            record=record,
        )
        known = self._installed.setdefault(id(code), (code, []))
        known[1].append((manager, transformed))
        if standin.is_real():
            self._introduce(code, manager, transformed)
        if binding is not None:
            keep.append(binding)
            binding.watch(functools.partial(self._unbind, binding, code, manager, f_globals))
        return root.check, _core.FrameReturn(guarded, self.run)

    def _bind(self, entry: Entry, placed: Placed, frame: Any) -> Any:
        """Serve *entry* for the live objects of *frame*; None when they do not fit."""
        with self.lock:
            try:
                check, answer = self._build(
                    entry, placed, frame.f_code, frame.f_globals, frame.f_locals
                )
            except (_core.Stale, guards.NeedsCompiler, live.Unfit) as reason:
                entry.stale = str(reason)
                return None
            if check(frame.f_locals):
                entry.bound += 1
                return answer
            from precomp.serve.reasons import explain

            manager = answer.guarded_code.guard_manager
            entry.stale = explain(manager.root, frame.f_locals, frame.f_globals)
            manager.keep[-1].end(entry.stale)
            return None

    def _unbind(
        self,
        binding: live.Binding,
        code: types.CodeType,
        manager: Any,
        f_globals: dict[str, Any],
        why: str,
    ) -> None:
        """Drop what was built for *binding*."""
        with self.lock:
            for name in binding.names.values():
                f_globals.pop(name, None)
                self._globals.pop((id(f_globals), name), None)
            dead: Any = guards.DeadGuards(why)
            if standin.is_real():
                dead = torch_api.compiler().DeletedGuardManagerWrapper(why)
            rows = self._installed.get(id(code), (code, []))[1]
            for i, (known, transformed) in enumerate(rows):
                if known is manager:
                    rows[i] = (dead, transformed)
            if manager.cache_entry is not None:
                manager.extra_state.invalidate(manager.cache_entry, dead)

    def _install_globals(
        self,
        entry: Entry,
        placed: Placed,
        f_globals: dict[str, Any],
        code: types.CodeType,
        binding: live.Binding | None,
    ) -> None:
        if binding is not None:
            specs = dict(placed.record["globals"])
            made = binding.globals(
                lambda name: entry.loaded.plan(specs[name][1], placed.numbers)
            )
            for name, value in made.items():
                f_globals[name] = value
                self._globals[id(f_globals), name] = (f_globals, value, ("bound",))
        for name, spec in placed.record["globals"]:
            if binding is not None and name in binding.names:
                continue
            if (id(f_globals), name) in self._globals and name in f_globals:
                continue
            value = self._global(entry, placed, spec, f_globals, code)
            f_globals[name] = value
            self._globals[id(f_globals), name] = (f_globals, value, spec)

    def _global(
        self,
        entry: Entry,
        placed: Placed,
        spec: tuple[Any, ...],
        f_globals: dict[str, Any],
        code: types.CodeType,
    ) -> Any:
        kind = spec[0]
        if kind == "plan":
            return entry.loaded.plan(spec[1], placed.numbers)
        if kind == "builtins":
            value = f_globals.get("__builtins__", builtins)
            return value if isinstance(value, dict) else value.__dict__
        if kind == "mod":
            if spec[1].startswith(STANDIN):
                return standin.module_for(spec[1])
            return importlib.import_module(spec[1])
        if kind == "val":
            return _core.decode(spec[1], standin.twins())
        resumed = _core.decode_code(spec[1], code.co_filename, code.co_firstlineno, standin.twins())
        if kind == "resume":
            return types.FunctionType(resumed, f_globals, spec[2])
        # Called from bytecode as make(closure): a Python function here would be a frame too.
        return functools.partial(types.FunctionType, resumed, f_globals, spec[2], None)

    # -- misses

    def miss(self, frame: Any, numbers: tuple[int, ...]) -> Any:
        """A FrameReturn for a frame that runs as it is, or None when torch shall compile it.

        Raises CompileViolation under a strict gate, and always with runtime "lean".
        """
        code = frame.f_code
        if not numbers and not holds_torch(frame):
            return _core.FrameReturn(None, self.skip, False, "nothing of torch in the frame")
        rebound = self.rebind(frame, numbers)
        if rebound is not None:
            return rebound
        what = qualname(code)
        why = self.why(frame, numbers)
        self.missing[what, why] += 1
        _core.gate_trip("trace", what, why, None, HINT)
        if self.lean:
            where = _core.gate_where()
            raise CompileViolation("trace", what, why, where, 'runtime="lean" never compiles')
        return None

    def rebind(self, frame: Any, numbers: tuple[int, ...]) -> Any:
        """Serve what only the frame decides: another instance than the one that the tree of an
        entry is bound to, live objects, the GPU."""
        shown = devices.Shown(frame)
        for number in numbers:
            entry = self.entries.get(number)
            if entry is None:
                continue
            if entry.placed is not None:
                answer = self._rebind(entry, entry.placed, frame)
            else:
                answer = self._serve_on_any(entry, shown, frame)
            if answer is not None:
                return answer
        return None

    def _serve_on_any(self, entry: Entry, shown: devices.Shown, frame: Any) -> Any:
        try:
            ordinals = devices.for_frame(entry.record, entry.loaded.numbers, shown)
        except _core.Stale as reason:
            entry.stale = str(reason)
            return None
        answers = (self._serve_on(entry, ordinal, frame) for ordinal in ordinals)
        return next(filter(None, answers), None)

    def _rebind(self, entry: Entry, placed: Placed, frame: Any) -> Any:
        if entry.live:
            return self._bind(entry, placed, frame)
        if not entry.binds:
            return None
        with self.lock:
            built = self._try_build(entry, placed, frame.f_code, frame.f_globals)
        return built[1] if built is not None and built[0](frame.f_locals) else None

    def _serve_on(self, entry: Entry, ordinal: int, frame: Any) -> Any:
        """Serve *entry* on one GPU; None when it does not accept the frame there."""
        placed = entry.on(ordinal)
        if entry.live:
            return self._bind(entry, placed, frame)
        key = (entry.number, ordinal, id(frame.f_globals))
        with self.lock:
            built = self._on.get(key)
            if built is None or (entry.binds and not built[0](frame.f_locals)):
                built = self._try_build(entry, placed, frame.f_code, frame.f_globals)
                self._on[key] = built
            self._trees[entry.number, id(frame.f_globals)] = built
            if built is None or not built[0](frame.f_locals):
                return None
            entry.bound += 1
            return built[1]

    def why(self, frame: Any, numbers: tuple[int, ...]) -> str:
        """Why no entry accepts *frame*: the failed guard, or what changed."""
        from precomp.serve.reasons import explain

        reasons = []
        for number in numbers:
            entry = self.entries.get(number)
            if entry is None:
                continue
            built = self._trees.get((number, id(frame.f_globals)))
            if built is None:
                reasons.append(entry.stale or NOT_CAPTURED)
            else:
                guarded = built[1].guarded_code
                scopes = frame.f_locals, frame.f_globals
                why = explain(guarded.guard_manager.root, *scopes, guarded.record)
                reasons.append(why + devices.only(entry.record))
        if reasons:
            return "; ".join(dict.fromkeys(reasons))
        same_name = self.names.get(qualname(frame.f_code), ())
        if any(e.record["key"] == _core.code_digest(frame.f_code) for e in same_name):
            return (
                "captured with other arguments of torch.compile "
                "(backend, mode, options, dynamic, fullgraph)"
            )
        if same_name:
            return f"source of {qualname(frame.f_code)} changed since it was captured"
        return NOT_CAPTURED

    # -- torch's own compiler arrives

    def join_compiler(self) -> None:
        """Give torch's recompile logic what it expects of entries that we installed."""
        with self.lock:
            for code, rows in list(self._installed.values()):
                for manager, transformed in list(rows):
                    self._introduce(code, manager, transformed)
            for (_, name), (scope, value, spec) in list(self._globals.items()):
                # Guards and bytecode reach torch._dynamo through these names.
                if spec[0] == "mod" and scope.get(name) is value:
                    scope[name] = importlib.import_module(spec[1])
                    self._globals[id(scope), name] = (scope, scope[name], spec)
            for server in self.servers:
                server.forget()

    def _introduce(self, code: types.CodeType, manager: Any, transformed: types.CodeType) -> None:
        real = torch_api.compiler()
        real.orig_code_map[transformed] = code
        if type(manager) is guards.GuardWrapper:
            manager.closure_vars = real.closure_vars()
            manager.diff_guard_sources = real.OrderedSet()
            manager.__class__ = real.GuardManagerWrapper
        elif type(manager) is guards.DeadGuards:
            manager.__dict__.update(
                vars(real.DeletedGuardManagerWrapper(manager.invalidation_reason))
            )
            manager.__class__ = real.DeletedGuardManagerWrapper

    def coverage(self, loaded: Loaded) -> tuple[list[str], list[str]]:
        """Names of the frames and Triton kernels of *loaded* that were served, and of the rest."""
        counts: collections.Counter[int] = collections.Counter()
        for server in self.servers:
            counts.update(server.served)
        counts.update({e.number: e.bound for e in loaded.frames})
        served = [e.record["name"] for e in loaded.frames if counts[e.number]]
        rest = [e.record["name"] for e in loaded.frames if not counts[e.number]]
        for entry in (*loaded.triton, *loaded.tuned):
            (served if entry.served else rest).append(entry.name)
        return served, rest

    def missed(self) -> tuple[tuple[str, str], ...]:
        """(function, reason) of every call that asked for something that is not there."""
        launches = () if self.launches is None else tuple(self.launches.missing)
        return (*self.missing, *launches)


_runtime: Runtime | None = None


def runtime() -> Runtime:
    """The runtime of this process; made on first use."""
    global _runtime
    if _runtime is None:
        _runtime = Runtime()
    return _runtime
