"""Frames: which code objects Dynamo converted, and what their new code needs.

``FrameRecorder`` listens to Dynamo while a capture is active. ``freeze`` turns each conversion
into a frame record (docs/internals.md, section 4.1): names that Dynamo counts per process become
names made of content, so that the same program always freezes to the same bytes.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import marshal
import os
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

import torch

from precomp import _core, backends
from precomp.data import dumps, loads
from precomp.freeze import codepath
from precomp.freeze.guards import GuardRecorder
from precomp.freeze.module import freeze_module
from precomp.freeze.plan import GraphSource, PlanRecorder
from precomp.freeze.store import Store, Unsupported
from precomp.freeze.values import encode, encode_code
from precomp.sources import qualname, source_digests
from precomp.torch_api import capture as capture_api

Patch = Callable[[Any, str, Any], None]

STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
SITE = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

COMPILED = "__compiled_fn"
BUILTINS = "__builtins_dict__"
RANDOM = "__gen_rand_values"
RANDOM_REASON = (
    "random numbers that Dynamo draws for a graph (random.randint, random.uniform, random.Random)"
)
UNNAMED = "___unnamed_scope"  # globals that no module holds
RESUME = "torch_dynamo_resume_in"


@dataclasses.dataclass
class Converted:
    """One frame that Dynamo converted."""

    original: types.CodeType
    transformed: types.CodeType
    guard_manager: Any
    f_globals: dict[str, Any]
    backend: dict[str, Any]
    inlined: dict[types.CodeType, str | None]  # inlined code -> module of its globals
    problems: list[str]


@dataclasses.dataclass
class Skipped:
    """One frame that Dynamo decided to run as it is."""

    code: types.CodeType
    f_globals: dict[str, Any]
    current: int
    recursive: int
    apply_to_code: bool


@dataclasses.dataclass
class Installed:
    """A global that Dynamo put into a module for its bytecode or guards."""

    kind: str  # plan, builtins, resume, resume_closure, mod, val, refused
    value: Any


def backend_record(callback: Any) -> dict[str, Any]:
    """What torch compares to decide whether a cache entry belongs to a torch.compile call."""
    backend = backends.innermost(callback)
    wrapper = capture_api().InductorWrapper
    if type(backend) is not wrapper:
        name = getattr(backend, "compiler_name", None) or getattr(
            backend, "__name__", type(backend).__name__
        )
        return {"backend": str(name), "config": {}, "dynamic": None, "name": None}
    return backends.record(backend)


class FrameRecorder:
    """Records conversions, skips, inlined code and installed globals of one capture."""

    def __init__(self, guards: GuardRecorder, plans: PlanRecorder) -> None:
        self.guards = guards
        self.plans = plans
        self.converted: list[Converted] = []
        self.skipped: list[Skipped] = []
        # (id of the module dict, name) -> what was installed there
        self.installed: dict[tuple[int, str], Installed] = {}
        self.scopes: dict[int, dict[str, Any]] = {}
        self._inlined: list[dict[types.CodeType, str | None]] = []

    def install(self, patch: Patch) -> None:
        """Start listening; *patch(owner, name, new)* replaces an attribute while capturing."""
        api = capture_api()
        recorder = self
        convert = api.CatchErrorsWrapper.__call__

        @functools.wraps(convert)
        def call(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            recorder._inlined.append({})
            try:
                result = convert(wrapper, frame, cache_entry, frame_state)
            except BaseException:
                recorder.plans.discard_pending()
                raise
            finally:
                inlined = recorder._inlined.pop()
            recorder._record(wrapper, frame, result, inlined)
            return result

        patch(api.CatchErrorsWrapper, "__call__", call)

        inline = api.InliningInstructionTranslator.__init__

        @functools.wraps(inline)
        def inline_init(translator: Any, *args: Any, **kwargs: Any) -> None:
            inline(translator, *args, **kwargs)
            if recorder._inlined:
                module = translator.f_globals.get("__name__")
                recorder._inlined[-1][translator.f_code] = module

        patch(api.InliningInstructionTranslator, "__init__", inline_init)

        create = api.CleanupHook.create

        def create_hook(scope: dict[str, Any], name: str, value: Any) -> Any:
            recorder._record_global(scope, name, value)
            return create(scope, name, value)

        patch(api.CleanupHook, "create", staticmethod(create_hook))

        import_source = api.InstructionTranslatorBase.import_source

        @functools.wraps(import_source)
        def importing(translator: Any, module_name: str) -> Any:
            source = import_source(translator, module_name)
            scope = translator.output.global_scope
            recorder.scopes[id(scope)] = scope
            recorder.installed[id(scope), source.global_name] = Installed("mod", module_name)
            return source

        patch(api.InstructionTranslatorBase, "import_source", importing)

    def _record_global(self, scope: dict[str, Any], name: str, value: Any) -> None:
        if name.startswith(COMPILED):
            try:
                entry = Installed("plan", self.plans.claim(name))
            except Unsupported as refusal:
                entry = Installed("refused", refusal)
        elif name.startswith(BUILTINS):
            entry = Installed("builtins", None)
        elif isinstance(value, types.FunctionType) and RESUME in value.__code__.co_name:
            entry = Installed("resume", value.__code__)
        elif isinstance(value, types.FunctionType) and value.__name__ == "_make_fn":
            entry = Installed("resume_closure", inspect.getclosurevars(value).nonlocals["code"])
        elif name.startswith(RANDOM):
            entry = Installed("refused", Unsupported(RANDOM_REASON))
        elif name.startswith(UNNAMED) and not _is_namedtuple_scope(value):
            entry = Installed("refused", Unsupported("an inlined function of no module"))
        else:
            entry = Installed("val", value)
        self.scopes[id(scope)] = scope
        self.installed[id(scope), name] = entry

    def _record(
        self, wrapper: Any, frame: Any, result: Any, inlined: dict[types.CodeType, str | None]
    ) -> None:
        if result.guarded_code is None:
            strategy = result.frame_exec_strategy
            self.skipped.append(
                Skipped(
                    frame.f_code,
                    frame.f_globals,
                    int(strategy.cur_action.value),
                    int(strategy.recursive_action.value),
                    bool(result.apply_to_code),
                )
            )
            return
        guarded = result.guarded_code
        problems: list[str] = []
        try:
            self.guards.prove(guarded.guard_manager, frame.f_locals, frame.f_globals)
        except Unsupported as refusal:
            problems.append(str(refusal))
        self.converted.append(
            Converted(
                frame.f_code,
                guarded.code,
                guarded.guard_manager,
                frame.f_globals,
                backend_record(wrapper),
                inlined,
                problems,
            )
        )


def code_names(code: types.CodeType) -> set[str]:
    """The global names that a code object and the code nested in it look up.

    Not all of ``co_names``: Dynamo adds names there that its bytecode does not use.
    """
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith(("_GLOBAL", "_NAME"))
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= code_names(constant)
    return names


def integers(code: types.CodeType) -> set[int]:
    """All integer constants of a code object and the code nested in it."""
    found = {constant for constant in code.co_consts if type(constant) is int}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= integers(constant)
    return found


def nested_code(code: types.CodeType) -> set[types.CodeType]:
    """*code* and all code among its constants: what the digest of *code* covers."""
    found = {code}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= nested_code(constant)
    return found


def fixed_by_version(filename: str) -> bool:
    """Whether the version of torch or Python fixes the content of a source file."""
    if filename.startswith(("<frozen ", TORCH)):
        return True
    return filename.startswith(STDLIB) and not filename.startswith((SITE, STDLIB + "site-packages"))


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
    digests of the frame entries in order of conversion.
    """

    def __init__(self, recorder: FrameRecorder, store: Store) -> None:
        self.recorder = recorder
        self.store = store
        self.problems: list[tuple[str, str]] = []
        self.order: list[str] = []
        self.plan_digests: dict[int, str | Unsupported] = {}
        # per scope: old name -> new name, and new name -> spec or refusal
        self.renames: dict[int, dict[str, str]] = {}
        self.specs: dict[int, dict[str, Any]] = {}
        for scope in recorder.scopes:
            self._name_globals(scope)

    def _plan(self, source: GraphSource) -> str:
        known = self.plan_digests.get(id(source))
        if known is None:
            try:
                record = self.recorder.plans.freeze(
                    source, lambda graph: freeze_module(graph, self.store)
                )
                known = self.store.add("plan", record["kind"], dumps(record))
            except Unsupported as refusal:
                known = refusal
            self.plan_digests[id(source)] = known
        if isinstance(known, Unsupported):
            raise known
        return known

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
        transformed = rename_code(frame.transformed, rename)
        if self.recorder.guards.bound_ids(frame.guard_manager) & integers(frame.transformed):
            raise Unsupported("the id() of an object is a constant of the compiled code")
        inlined, sources = self._inlined(frame)
        return {
            "name": qualname(frame.original),
            "module": module,
            "key": _core.code_digest(original),
            "backend": frame.backend,
            "code": encode_code(transformed, frame.original.co_firstlineno),
            "globals": self._globals(scope, names),
            "tape": self.recorder.guards.record_for(frame.guard_manager, rename),
            "inlined": inlined,
            "sources": sources,
        }

    def _inlined(self, frame: Converted) -> tuple[Any, Any]:
        """Digests of the inlined code that neither torch's nor Python's version fixes."""
        inlined = set()
        sources = set()
        own = nested_code(frame.original)
        for code, module in frame.inlined.items():
            filename = code.co_filename
            if fixed_by_version(filename) or code in own:
                continue
            if RESUME in code.co_name:
                continue
            place = codepath.find(code, module)
            if place is not None:
                inlined.add((place[0], place[1], _core.code_digest(code)))
                continue
            digest = _core.code_digest(code)
            holder = _module_of_file(filename)
            if holder is None or digest not in source_digests(holder):
                raise Unsupported(
                    f"inlined function {qualname(code)} cannot be found again: "
                    "no module holds it, nor the source file of one"
                )
            sources.add((holder, digest))
        return tuple(sorted(inlined)), tuple(sorted(sources))

    def helpers(self) -> set[tuple[str, str]]:
        """Names of torch's compiler modules that the frozen bytecode and guards use."""
        found: set[tuple[str, str]] = set()
        for (kind, _), (_, data) in self.store.entries.items():
            if kind == "frame":
                record = loads(data)
                found |= compiler_names(record["tape"]["ops"])
                found |= guarded_names(record)
        for frame in self.recorder.converted:
            modules = {
                name: entry.value
                for (owner, name), entry in self.recorder.installed.items()
                if owner == id(frame.f_globals)
                and entry.kind == "mod"
                and _in_compiler(entry.value)
            }
            found |= aliased_names(frame.transformed, modules)
        return found

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


def _is_namedtuple_scope(scope: dict[str, Any]) -> bool:
    """The globals that collections.namedtuple gives to ``__new__``: always the same."""
    return str(scope.get("__name__")).startswith("namedtuple_")


def _module_of_file(filename: str) -> str | None:
    for name, module in sorted(sys.modules.items()):
        if getattr(module, "__file__", None) == filename:
            return name
    return None


def compiler_names(value: Any) -> set[tuple[str, str]]:
    """``(module, name)`` of everything in a record that lives in a module of torch's compiler."""
    found: set[tuple[str, str]] = set()
    if type(value) is tuple:
        if len(value) >= 3 and value[0] in ("P", "PF") and _in_compiler(value[1]):
            found.add((value[1], value[2].partition(".")[0]))
        elif len(value) >= 3 and value[0] == "C" and _in_compiler(value[1]):
            found.add((value[1], value[2][0][1]))
        for item in value:
            found |= compiler_names(item)
    return found


def guarded_names(record: dict[str, Any]) -> set[tuple[str, str]]:
    """``(module, name)`` that the guards of a frame record read from compiler modules."""
    aliases = {
        name: spec[1]
        for name, spec in record["globals"]
        if spec[0] == "mod" and _in_compiler(spec[1])
    }
    modules: dict[int, str] = {}
    found: set[tuple[str, str]] = set()
    for op in record["tape"]["ops"]:
        if op[0] == "dict_getitem_manager" and op[3] and op[3][1] in aliases:
            modules[op[2]] = aliases[op[3][1]]
        elif op[0] in ("getattr_manager", "generic_getattr_manager") and op[1] in modules:
            found.add((modules[op[1]], op[3][1]))
        elif op[0] == "add_epilogue_lambda_guard" and op[2][0][0] == "gfn":
            # Generated code reads G['alias'].name: take each name that the module has.
            names = marshal.loads(op[2][0][1][0]).co_names
            for constant in op[2][0][1][2]:
                module = aliases.get(constant[1]) if constant[0] == "k" else None
                if module is not None:
                    offered = vars(sys.modules[module])
                    found |= {(module, name) for name in names if name in offered}
    return found


def _in_compiler(module: Any) -> bool:
    return isinstance(module, str) and module.startswith(("torch._dynamo", "torch._inductor"))


def aliased_names(code: types.CodeType, modules: dict[str, str]) -> set[tuple[str, str]]:
    """``(module, name)`` that *code* reads from the modules behind the global names *modules*."""
    found: set[tuple[str, str]] = set()
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if (
            previous is not None
            and previous.opname == "LOAD_GLOBAL"
            and previous.argval in modules
            and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        ):
            found.add((modules[previous.argval], instruction.argval))
        previous = instruction
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= aliased_names(constant, modules)
    return found
