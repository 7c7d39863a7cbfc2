"""``triton`` and ``tuned`` entries -> launches of kernels that the program launches itself.

Triton is imported by the program, if at all. Once it is, the methods ``run`` of its kernels and
autotuners are looked at when they are first called: a kernel with frozen specialisations gets a
``_core.TritonDispatch`` in place of its method, an autotuner gets its frozen choices. All other
calls go to Triton.
"""

from __future__ import annotations

import collections
import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from precomp import _core, torch_api
from precomp import triton_kernels as kernels
from precomp.after_import import after_import
from precomp.data import loads
from precomp.errors import CompileViolation

NOT_CAPTURED = "not captured: the artifact has no entry for this kernel"
HINT = "capture a run that makes this launch, or fix what differs"


class Entry:
    """One ``triton`` or ``tuned`` entry of a prepared artifact."""

    def __init__(self, record: dict[str, Any], launcher: Callable[[dict[str, Any]], Any]) -> None:
        self.record = record
        self.name: str = record["name"]
        self.served = False
        self._launcher = launcher

    def load(self) -> Any:
        """The launcher of a ``triton`` entry; made when it is first launched."""
        self.served = True
        return self._launcher(self.record["launch"])


def entries_of(blobs: dict[str, bytes], digests: list[str], launcher: Any) -> list[Entry]:
    """The entries with these digests."""
    return [Entry(loads(blobs[digest]), launcher) for digest in digests]


def stale(entries: list[Entry], function: Any, source: dict[str, Any]) -> str:
    """Why none of *entries*, which have the name of a kernel, is for it as it is now."""
    settings = kernels.settings(function)
    reasons = []
    for entry in entries:
        old = entry.record["source"]
        if old["parameters"] != source["parameters"]:
            reasons.append("its parameters changed since it was captured")
        elif old["key"] != source["key"]:
            reasons.append(
                "its source, that of a function that it calls, or a constexpr that they read "
                "changed since it was captured"
            )
        elif old != source:
            was, now = dict(old["globals"]), dict(source["globals"])
            reasons += [
                f"the global variable {name} changed: captured {was.get(name)}, "
                f"found {now.get(name)}"
                for name in sorted(was.keys() | now.keys())
                if was.get(name) != now.get(name)
            ]
        else:
            was, now = entry.record["settings"], settings
            reasons += [
                f"Triton's {name} changed: captured {was[name]!r}, found {now[name]!r}"
                for name in sorted(was)
                if was[name] != now[name]
            ]
    return "; ".join(dict.fromkeys(reasons)) or NOT_CAPTURED


class Kernel:
    """A kernel of the program for which there are frozen specialisations."""

    def __init__(self, server: Server, function: Any, entries: list[Entry]) -> None:
        self.server = server
        self.function = weakref.ref(function)
        self.name = kernels.full_name(function)
        self.parameters = list(function.signature.parameters)
        self.entries = entries
        self._reasons: dict[Any, str] = {}
        cuda = torch_api.cuda()
        self.archs = tuple(10 * major + minor for major, minor in _core.cuda_devices())
        self.device: Callable[[], int] = cuda.device
        self.before = kernels.state(function)
        self.dispatch = kernels.dispatcher(
            function, self.before, self.miss, Entry.load, cuda.device, cuda.stream, self.archs
        )
        for entry in entries:
            self.dispatch.add(entry.record["launch"]["arch"], entry.record["words"], entry)

    def miss(self, *args: Any, **kwargs: Any) -> Any:
        """A launch that is not frozen."""
        function: Any = self.function()
        named = {name: value for name, value in kwargs.items() if name in self.parameters}
        function.signature.bind(*args, **named)  # a call that does not fit is no miss
        if not kwargs.get("warmup"):
            self.server.missed(function, self.name, lambda: self.why(args, kwargs))
        return self.server.pass_on(function, args, kwargs)

    def why(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Why a launch is not frozen."""
        function: Any = self.function()
        try:
            words = self.dispatch.describe(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - of the argument's own; Triton will raise it too
            return f"an argument cannot be looked at: {type(error).__name__}: {error}"
        if None in words:
            named = {name: value for name, value in kwargs.items() if name in self.parameters}
            given = function.signature.bind(*args, **named).arguments
            kinds = [type(given.get(name)).__qualname__ for name in self.parameters]
            found = zip(words, itertools.chain(kinds, itertools.repeat("an option")), strict=False)
            words = tuple(word or kernels.no_word(kind) for word, kind in found)
        arch = self.archs[self.device()]
        reason = self._reasons.get((arch, words))
        if reason is None:
            reason = self._reasons[arch, words] = self._explain(words, arch)
        return reason or "; ".join(kernels.changes(*self.before)) or NOT_CAPTURED

    def _explain(self, words: tuple[str | None, ...], arch: int) -> str:
        """In what a launch differs from the nearest captured one; "" if in nothing."""
        each: list[list[str]] = []
        for entry in self.entries:
            captured = entry.record["launch"]["arch"]
            found = kernels.differences(self.parameters, entry.record["words"], words)
            if captured != arch:
                found.append(f"captured for sm_{captured}, the current device is sm_{arch}")
            each.append(found)
        return "; ".join(min((len(found), found) for found in each)[1])


class Server:
    """All frozen kernels of this process, of any number of artifacts."""

    def __init__(self) -> None:
        self.lean = False
        self.missing: collections.Counter[tuple[str, str]] = collections.Counter()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._entries: list[Entry] = []
        self._tuned: list[Entry] = []
        self._kernels: dict[int, tuple[weakref.ref[Any], str | None]] = {}
        self._tuners: dict[int, tuple[weakref.ref[Any], str | None]] = {}
        self._seeded: list[tuple[Any, tuple[Any, ...], Any]] = []
        self._cancel: Callable[[], None] | None = None
        self._undo: list[tuple[Any, str, Any, Any]] = []

    # -- artifacts come and go

    def add(self, entries: list[Entry], tuned: list[Entry]) -> None:
        """Serve these entries too."""
        if not entries and not tuned:
            return
        with self._lock:
            self._forget()
            self._entries += entries
            self._tuned += tuned
            if self._cancel is None:
                self._cancel = after_import("triton.runtime.autotuner", self._install)

    def remove(self, entries: list[Entry], tuned: list[Entry]) -> None:
        """Serve these entries no longer. The last ones give Triton its methods back."""
        with self._lock:
            self._forget()
            self._entries = [entry for entry in self._entries if entry not in entries]
            self._tuned = [entry for entry in self._tuned if entry not in tuned]
            if not self._entries and not self._tuned and self._cancel is not None:
                self._cancel()
                self._cancel = None
                for owner, name, ours, original in self._undo:
                    if vars(owner).get(name) == ours:
                        setattr(owner, name, original)
                self._undo.clear()

    def _forget(self) -> None:
        """Look at every kernel and autotuner again when it is next called."""
        for reference, _ in self._kernels.values():
            function = reference()
            if function is not None and isinstance(vars(function).get("run"), _core.TritonDispatch):
                del function.run
        for tuner, key, config in self._seeded:
            if tuner.cache.get(key) is config:
                del tuner.cache[key]
        self._kernels.clear()
        self._tuners.clear()
        self._seeded.clear()

    def _install(self) -> None:
        """Triton is there: put our methods in place of its own."""
        jit = kernels.module("runtime.jit").JITFunction
        autotuner = kernels.module("runtime.autotuner").Autotuner
        run, tune = jit.run, autotuner.run

        @functools.wraps(run)
        def first_run(function: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._local, "passing", None) is function:
                self._local.passing = None
                return run(function, *args, **kwargs)
            served = self._kernel(function)
            if served is not None:
                return served(*args, **kwargs)
            if not kwargs.get("warmup"):
                name = kernels.full_name(function)
                self.missed(function, name, lambda: self._kernels[id(function)][1] or NOT_CAPTURED)
            return run(function, *args, **kwargs)

        @functools.wraps(tune)
        def first_tune(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            self._choices(tuner)
            return tune(tuner, *args, **kwargs)

        from precomp.doors import triton as doors

        for owner, name, ours in (
            (jit, "run", first_run),
            (autotuner, "run", first_tune),
            (doors, "frozen_kernel", self.why_kernel),
            (doors, "frozen_choice", self.why_choice),
        ):
            self._undo.append((owner, name, ours, vars(owner)[name]))
            setattr(owner, name, ours)

    # -- kernels

    def _kernel(self, function: Any) -> Any:
        """The dispatcher of a kernel, from now on its method ``run``; None if there is none."""
        known = self._kernels.get(id(function))
        if known is not None and known[1] is not None and known[0]() is function:
            return None
        with self._lock:
            known = self._kernels.get(id(function))
            if known is None or known[0]() is not function:
                dispatch, reason = self._look(function)
                self._kernels[id(function)] = (weakref.ref(function), reason)
                if dispatch is not None:
                    function.run = dispatch
            return vars(function).get("run")

    def _look(self, function: Any) -> tuple[Any, str | None]:
        """(dispatcher, None), or (None, why there is none)."""
        found = self._matching(self._entries, function)
        if isinstance(found, str):
            return None, found
        try:
            return Kernel(self, function, found).dispatch, None
        except kernels.NoForm as error:
            return None, str(error)

    def _matching(self, entries: list[Entry], function: Any) -> list[Entry] | str:
        """The entries for a kernel as it is, or why there are none."""
        try:
            source, settings = kernels.source(function), kernels.settings(function)
        except kernels.NoForm as error:
            return f"{NOT_CAPTURED} ({error})"
        found = [
            entry
            for entry in entries
            if entry.record["source"] == source and entry.record["settings"] == settings
        ]
        if found:
            return found
        name = kernels.full_name(function)
        return stale([entry for entry in entries if entry.name == name], function, source)

    def missed(self, function: Any, name: str, why: Callable[[], str]) -> None:
        """Count a launch that is not frozen. Raises CompileViolation if Triton may not compile.

        A kernel that Triton has compiled in this process may be in its memory: then the doors in
        front of the compiler decide.
        """
        reason = why()
        self._local.reason = function, reason
        self.missing[f"Triton kernel {name}", reason] += 1
        if not function.device_caches:
            _core.gate_trip("load", f"Triton kernel {name}", reason, None, HINT)
        if self.lean:
            where = _core.gate_where()
            hint = 'runtime="lean" never compiles'
            raise CompileViolation("load", f"Triton kernel {name}", reason, where, hint)

    def pass_on(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call Triton's method ``run``, or what was put in its place after ours."""
        self._local.passing = function
        try:
            return type(function).run(function, *args, **kwargs)
        finally:
            self._local.passing = None

    def why_kernel(self, function: Any) -> str:
        """What the door in front of Triton's compiler adds about a kernel."""
        last, reason = getattr(self._local, "reason", (None, ""))
        return str(reason) if last is function else ""

    # -- autotuners

    def _choices(self, tuner: Any) -> None:
        """Give an autotuner its frozen choices, when it is first called."""
        with self._lock:
            known = self._tuners.get(id(tuner))
            if known is not None and known[0]() is tuner:
                return
            reason = self._seed(tuner) if len(tuner.configs) > 1 else None
            self._tuners[id(tuner)] = (weakref.ref(tuner), reason)

    def _seed(self, tuner: Any) -> str | None:
        function = kernels.kernel_of(tuner)
        if function is None:
            return NOT_CAPTURED
        found = self._matching(self._tuned, function)
        if isinstance(found, str):
            return found
        try:
            record = kernels.tuner_record(tuner)
        except kernels.NoForm as error:
            return f"{NOT_CAPTURED} ({error})"
        found = [entry for entry in found if entry.record["tuner"] == record]
        if not found:
            return "its configurations or its keys changed since it was captured"
        by_word = {kernels.config_word(config): config for config in reversed(tuner.configs)}
        for entry in found:
            entry.served = True
            key, config = entry.record["key"], by_word[entry.record["choice"]]
            if tuner.cache.setdefault(key, config) is config:
                self._seeded.append((tuner, key, config))
        return None

    def why_choice(self, tuner: Any) -> str:
        """What the door in front of tuning adds about an autotuner."""
        known = self._tuners.get(id(tuner))
        return "" if known is None or known[1] is None else known[1]


@functools.cache
def server() -> Server:
    """The server of this process."""
    return Server()
