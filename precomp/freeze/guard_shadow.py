"""Thawn guard trees beside torch's own, in the process that compiles (``precomp.testing``).

Two probes stand in each tree that Dynamo builds: a first leaf of the root, and a last function at
its end. torch runs the first whenever it asks the tree, and the last only when everything else of
the tree accepted. So the probes see each verdict of torch's own check, in C++, where torch makes
it: the first asks the thawn tree, the last says that torch accepted. If the last does not come,
torch rejected: the next probe of this thread, or the compile that follows, tells.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from precomp import data, torch_api
from precomp.freeze.guard_tree import PROBE_TEXT, Probe
from precomp.freeze.guards import GuardRecorder, thaw
from precomp.freeze.store import Disproved, Unsupported
from precomp.sources import qualname
from precomp.testing import Disagreement, ShadowGuards


class _Thread(threading.local):
    """What a thread is at."""

    def __init__(self, pending: list[_Pending]) -> None:
        self.depth = 0  # compiles within each other
        self.quiet = False  # the probes of this thread pass
        self.error: Exception | None = None  # of the recorder, in this compile
        self.pending = _Pending()
        pending.append(self.pending)


class _Pending:
    """A tree whose first probe was run and whose last was not yet, and the thawn verdict."""

    watch: _Watch | None = None
    verdict: bool | Exception = False
    parts: Sequence[str] = ()  # the thawn guard that failed
    f_locals: Any = None  # unless the verdict is False: for a message about torch's guard

    def take(self) -> bool | Exception:
        """The verdict; nothing is pending any more."""
        self.watch = self.f_locals = None
        self.parts = ()
        return self.verdict


class _Recorder(GuardRecorder):
    """Notes what threads do that compile. An error of its own must not reach the program."""

    def __init__(self, thread: _Thread) -> None:
        super().__init__()
        self._thread = thread

    def _notes(self) -> bool:
        return self._thread.depth > 0 and super()._notes()

    def _safe(self, sink: Callable[..., None]) -> Callable[..., None]:
        def safe(args: Any, kwargs: Any, result: Any) -> None:
            try:
                sink(args, kwargs, result)
            except Exception as error:  # noqa: BLE001 - reported as a disagreement
                self._thread.error = error

        return safe

    def _sink(self, name: str) -> Callable[..., None] | None:
        sink = super()._sink(name)
        return None if sink is None else self._safe(sink)

    def _relation_sink(self, name: str) -> Callable[..., None]:
        return self._safe(super()._relation_sink(name))


class _Watch:
    """The probes of one tree, and its thawn twin once there is one."""

    def __init__(self, shadow: Shadow, wrapper: Any) -> None:
        self.shadow = shadow
        self.wrapper = weakref.ref(wrapper)  # it owns the tree, and the tree the probes
        self.root: Any = None
        self.keep: Any = None
        self.code: Any = None
        wrapper.root.add_lambda_guard(Probe(self._first), [PROBE_TEXT], None)

    def arm(self, wrapper: Any, root: Any, keep: Any, code: types.CodeType) -> None:
        """The tree of *wrapper* is complete and *root* its thawn twin."""
        wrapper.root.add_epilogue_lambda_guard(Probe(self._last), [PROBE_TEXT], None)
        self.root, self.keep, self.code = root, keep, code

    def disarm(self) -> None:
        self.root = self.keep = None

    def _first(self, f_locals: Any) -> bool:
        if self.root is not None:
            self.shadow.asked(self, f_locals)
        return True

    def _last(self, _: Any) -> bool:
        if self.root is not None:
            self.shadow.accepted(self)
        return True


class Shadow:
    """Installs and removes what ``precomp.testing.shadow_guards`` needs."""

    def __init__(self, result: ShadowGuards) -> None:
        self._result = result
        self._api = torch_api.capture()
        self._undo = contextlib.ExitStack()
        self._pending: list[_Pending] = []
        self._thread = _Thread(self._pending)
        self._recorder = _Recorder(self._thread)
        self._compiling = 0
        self._lock = threading.Lock()
        self._watches: weakref.WeakKeyDictionary[Any, _Watch] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        try:
            self._recorder.install(self._patch)
            self._patch_compiles()
            self._patch_trees()
        except BaseException:
            self._undo.close()
            raise

    def remove(self) -> None:
        """Undo all that install did. Trees that live on have probes that do nothing."""
        self._undo.close()
        for pending in self._pending:
            self._rejected(pending)
        for watch in list(self._watches.values()):
            watch.disarm()
        self._recorder.clear()

    def _patch(self, owner: Any, name: str, new: Any) -> None:
        names = vars(owner)
        if name in names:
            self._undo.callback(setattr, owner, name, names[name])
        else:
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, new)

    # -------------------------------------------------------------- compiles

    def _patch_compiles(self) -> None:
        owner = self._api.CatchErrorsWrapper
        convert = owner.__call__

        @functools.wraps(convert)
        def call(wrapper: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            self._rejected(self._thread.pending)
            with self._compile():
                result = convert(wrapper, frame, cache_entry, frame_state)
                if result.guarded_code is not None:
                    self._compiled(frame, result.guarded_code.guard_manager)
            return result

        self._patch(owner, "__call__", call)

    @contextlib.contextmanager
    def _compile(self) -> Any:
        thread = self._thread
        with self._lock:
            self._compiling += 1
        thread.depth += 1
        try:
            yield
        finally:
            thread.depth -= 1
            if thread.depth == 0:
                thread.error = None
            with self._lock:
                self._compiling -= 1
                if self._compiling == 0:
                    self._recorder.clear()  # and the objects it keeps alive

    def _patch_trees(self) -> None:
        owner = self._api.GuardManagerWrapper
        make = owner.__init__

        @functools.wraps(make)
        def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            make(wrapper, *args, **kwargs)
            if not args and not kwargs:  # a tree that is still to be built
                self._watches[wrapper] = _Watch(self, wrapper)

        self._patch(owner, "__init__", init)

    def _compiled(self, frame: Any, guard_manager: Any) -> None:
        self._result.count(compiles=1)
        recorder = self._recorder
        try:
            if self._thread.error is not None:
                raise self._thread.error
            recorder.prove(guard_manager, frame.f_locals, frame.f_globals)
            frozen = data.dumps(recorder.record_for(guard_manager, {}))
            with recorder.paused():
                root, keep = thaw(data.loads(frozen), frame.f_locals, frame.f_globals)
        except Disproved as error:
            self._disagree(frame.f_code, str(error), "the thawn tree is not torch's")
        except Unsupported as error:
            self._result.refuse(str(error))
        except Exception as error:  # noqa: BLE001 - reported
            self._disagree(frame.f_code, "", f"{type(error).__name__}: {error}")
        else:
            self._result.count(checks=1)
            watch = self._watches.get(guard_manager)
            if watch is not None:
                with recorder.paused():
                    watch.arm(guard_manager, root, keep, frame.f_code)

    def _disagree(self, code: types.CodeType, guard: str, what: str) -> None:
        where = f"{code.co_filename}:{code.co_firstlineno}"
        self._result.disagree(Disagreement(qualname(code), where, guard, what))

    # -------------------------------------------------------------- verdicts

    def asked(self, watch: _Watch, f_locals: Any) -> None:
        """torch asks its tree: the thawn one is asked, too."""
        pending = self._thread.pending
        self._rejected(pending, watch)
        # With that stance torch asks trees made of a part of the guards.
        if self._thread.quiet or self._api.skips_guards():
            return
        pending.watch = watch
        try:
            pending.verdict = bool(watch.root.check(f_locals))
            if not pending.verdict:  # now: at the end torch has changed the state of the thread
                pending.parts = watch.root.check_verbose(f_locals).verbose_code_parts
        except Exception as error:  # noqa: BLE001 - reported as a disagreement
            pending.verdict = error
        if pending.verdict is not False:
            pending.f_locals = f_locals

    def accepted(self, watch: _Watch) -> None:
        """torch's tree accepted."""
        pending = self._thread.pending
        if pending.watch is not watch:
            return
        parts, verdict = pending.parts, pending.take()
        self._result.count(verdicts=1)
        if verdict is not True:
            self._differ(watch, "accept", verdict, parts)

    def _rejected(self, pending: _Pending, asked: _Watch | None = None) -> None:
        """No end came after *pending*: torch's tree rejected. *asked* is the one that torch holds
        the lock of."""
        watch, f_locals = pending.watch, pending.f_locals
        if watch is None:
            return
        verdict = pending.take()
        self._result.count(verdicts=1)
        if verdict is False:
            return
        wrapper = watch.wrapper()
        parts: Sequence[str] = ()
        if wrapper is not None and watch is not asked:
            self._thread.quiet = True
            try:
                parts = wrapper.root.check_verbose(f_locals).verbose_code_parts
            finally:
                self._thread.quiet = False
        self._differ(watch, "reject", verdict, parts)

    def _differ(self, watch: _Watch, torch_does: str, verdict: Any, parts: Sequence[str]) -> None:
        if isinstance(verdict, Exception):
            found = f"the thawn guards raise {type(verdict).__name__}: {verdict}"
        else:
            found = f"the thawn guards {'accept' if verdict else 'reject'}"
        texts = [part.partition("  # ")[0].rstrip() for part in parts]
        self._disagree(watch.code, " and ".join(texts), f"torch's guards {torch_does}, {found}")
