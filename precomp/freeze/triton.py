"""Kernels of ``triton.jit`` that the program launches itself -> ``triton`` and ``tuned`` entries.

What is stored are the specialisations that were launched while capturing, without those that
tuning only tried, and the configuration that each tuned call used (docs/internals.md, section 4.8).
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

from precomp import triton_kernels as kernels
from precomp.data import dumps
from precomp.distributed.tuning import first
from precomp.freeze.cuda import launch_of, parameters_of, store_image
from precomp.freeze.store import Store, Unsupported

GRID = 3
"""A launcher's last arguments are the dimensions of the grid."""


class LaunchRecorder:
    """Records while a capture is active; ``freeze`` makes the entries."""

    def __init__(self) -> None:
        self.problems: dict[tuple[str, str], None] = {}
        self._lock = threading.Lock()
        self._local = threading.local()
        self._functions: dict[int, _Function] = {}
        self._choices: dict[tuple[int, tuple[Any, ...]], tuple[Any, Any]] = {}

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        """Patch Triton, if it is installed, for as long as the capture is active."""
        if importlib.util.find_spec("triton") is None:
            return
        import triton.runtime.autotuner
        import triton.runtime.jit

        jit, autotuner = triton.runtime.jit.JITFunction, triton.runtime.autotuner.Autotuner
        run, tune, bench = jit.run, autotuner.run, autotuner._bench

        @functools.wraps(run)
        def running(function: Any, *args: Any, **kwargs: Any) -> Any:
            compiled = run(function, *args, **kwargs)
            if not (self._tuning or kwargs.get("warmup")):
                self._launched(function, args, kwargs, compiled)
            return compiled

        @functools.wraps(tune)
        def tuning(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            result = tune(tuner, *args, **kwargs)
            if not (self._tuning or kwargs.get("warmup")):
                self._chosen(tuner, args, kwargs)
            return result

        @functools.wraps(bench)
        def trying(tuner: Any, *args: Any, config: Any, **kwargs: Any) -> Any:
            before, self._local.tuning = self._tuning, True
            try:
                times = bench(tuner, *args, config=config, **kwargs)
            finally:
                self._local.tuning = before
            function = kernels.kernel_of(tuner)
            key = kernels.tuning_key(tuner, args, kwargs)
            if function is None or not _plain(key):
                return times
            return first((kernels.full_name(function), function.src, key, str(config)), times)

        patch(jit, "run", running)
        patch(autotuner, "run", tuning)
        patch(autotuner, "_bench", trying)

    @property
    def _tuning(self) -> bool:
        return getattr(self._local, "tuning", False)

    def _problem(self, function: Any, reason: object) -> None:
        name = kernels.full_name(function)
        self.problems.setdefault((name, f"a launch of this Triton kernel: {reason}"))

    def _function(self, function: Any) -> _Function:
        with self._lock:
            known = self._functions.get(id(function))
            if known is None:
                known = self._functions[id(function)] = _Function(function)
            return known

    def _launched(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], compiled: Any
    ) -> None:
        try:
            self._function(function).launched(args, kwargs, compiled)
        except (kernels.NoForm, Unsupported) as error:
            self._problem(function, error)

    def _chosen(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        function = kernels.kernel_of(tuner)
        if function is None or len(tuner.configs) < 2:
            return
        try:
            key = kernels.tuning_key(tuner, args, kwargs)
            odd = next((part for part in key if not _plain(part)), None)
            if odd is not None:
                raise Unsupported(f"it is tuned by a value of type {type(odd).__qualname__}")
            if tuner.cache.get(key) is not tuner.best_config:
                raise Unsupported("its autotuner does not keep its choices as Triton's does")
            with self._lock:
                self._choices[id(tuner), key] = (tuner, tuner.best_config)
        except Unsupported as error:
            self._problem(function, error)

    def freeze(self, store: Store) -> tuple[str, ...]:
        """Store everything recorded; returns the names of the kernels. Adds to ``problems``."""
        names = set()
        for function in self._functions.values():
            try:
                if function.freeze(store):
                    names.add(kernels.full_name(function.function))
            except (kernels.NoForm, Unsupported) as error:
                self._problem(function.function, error)
        for (_, key), (tuner, config) in self._choices.items():
            function = kernels.kernel_of(tuner)
            try:
                record = {
                    **_identity(function),
                    "tuner": kernels.tuner_record(tuner),
                    "key": key,
                    "choice": kernels.config_word(config),
                }
            except (kernels.NoForm, Unsupported) as error:
                self._problem(function, error)
            else:
                store.add("tuned", kernels.full_name(function), dumps(record))
        return tuple(sorted(names))


def _plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _identity(function: Any) -> dict[str, Any]:
    return {
        "name": kernels.full_name(function),
        "source": kernels.source(function),
        "settings": kernels.settings(function),
    }


class _Function:
    """A kernel with what was launched of it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self._launches: dict[tuple[str, ...], tuple[Any, list[str]]] = {}
        self._dispatch: Any = None

    def launched(self, args: tuple[Any, ...], kwargs: dict[str, Any], compiled: Any) -> None:
        if compiled is None:
            return  # a hook of the user's took the launch
        if self._dispatch is None:
            self._dispatch = kernels.dispatcher(
                self.function, ((), (), ()), _never, _never, _never, _never, ()
            )
        words = self._dispatch.describe(*args, **kwargs)
        if words in self._launches:
            return
        if any(map(len, kernels.hooks(self.function))):
            raise Unsupported("hooks of launches are set (add_pre_run_hook, triton.knobs.runtime)")
        for name in kernels.REFUSED_OPTIONS:
            if kwargs.get(name) is not None:
                raise Unsupported(f"the option {name}")
        device = kernels.module("runtime.driver").driver.active.get_current_device()
        own = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        values, specialization, options = self.function.device_caches[device][4](*args, **own)
        names = [*values, *sorted(options)]
        for name, found in zip(names, words, strict=True):
            if found is None:
                kind = type({**values, **options}[name]).__qualname__
                raise Unsupported(f"argument {name}: a {kind} has no frozen form")
        expected = triton_words(self.function, values, specialization, options)
        for name, word, found in zip(names, expected, words, strict=True):
            if word != found:
                raise Unsupported(
                    f"argument {name}: Triton specialises it as {kernels.shown(word)}, "
                    f"precomp as {kernels.shown(found)}"
                )
        signature = getattr(getattr(compiled, "src", None), "signature", None)
        if signature is None:
            raise Unsupported(f"Triton gave a {type(compiled).__qualname__}, not a compiled kernel")
        kinds = [
            leaf
            for kind, value in zip(signature.values(), values.values(), strict=True)
            for leaf in _leaves(kind, value)
        ]
        self._launches[words] = (compiled, kinds)

    def freeze(self, store: Store) -> bool:
        """Store all that was launched; whether that is anything. Raises NoForm, Unsupported."""
        if not self._launches:
            return False
        identity = _identity(self.function)
        if identity["settings"]["instrumentation"]:
            raise Unsupported("instrumented kernels (TRITON_INSTRUMENTATION_MODE)")
        for words, (compiled, kinds) in self._launches.items():
            record = {
                **identity,
                "words": words,
                "launch": launch_record(compiled, kinds, store),
            }
            store.add("triton", identity["name"], dumps(record))
        return True


def _never(*_: Any) -> Any:
    raise AssertionError("this dispatcher describes, it does not launch")


# ------------------------------------------------------------------ Triton's own answer


def triton_words(
    function: Any,
    values: dict[str, Any],
    specialization: list[Any],
    options: dict[str, Any],
) -> list[str]:
    """The words of a call by what Triton's binder says of it. Raises NoForm.

    ``_core.TritonDispatch`` finds them without Triton; a capture compares the two.
    """
    words = [
        _word(parameter, value, kind, key)
        for parameter, value, (kind, key) in zip(
            function.params, values.values(), specialization, strict=False
        )
    ]
    return words + [
        f"{name}={kernels.constant_word(value)}" for name, value in sorted(options.items())
    ]


def _word(parameter: Any, value: Any, kind: Any, key: Any) -> str:
    declared = parameter is not None and parameter.is_constexpr
    if isinstance(kind, tuple):
        name = "" if type(value) is tuple else type(value).__name__
        items = zip(value, kind, key, strict=True)
        return f"{name}({''.join(_word(None, *item) + ',' for item in items)})"
    if kind == "constexpr":
        return f"={kernels.constant_word(value, declared)}"
    if key is None:
        return str(kind)
    if type(key) is int or (type(key) is str and key in ("", "D")):
        return f"{kind}:{key}"
    raise kernels.NoForm(f"{type(value).__qualname__} for a parameter declared {kind}")


# ------------------------------------------------------------------ launching


def launch_record(compiled: Any, kinds: list[str], store: Store) -> dict[str, Any]:
    """Store the image of a kernel that Triton compiled; returns its launch record.

    *kinds*: Triton's types of the leaves of all arguments. A call of the launcher has these leaves,
    then the dimensions of the grid.
    """
    meta = compiled.metadata
    if meta.target.backend != "cuda":
        raise Unsupported(f"a kernel for {meta.target.backend}")
    if getattr(meta, "profile_scratch_size", 0):
        raise Unsupported("an instrumented kernel")
    used = [i for i, kind in enumerate(kinds) if kind != "constexpr"]
    arch = int(meta.target.arch)
    return {
        "cubin": store_image(store, arch, bytes(compiled.asm["cubin"])),
        "arch": arch,
        "args": len(kinds) + GRID,
        "select": tuple(used),
        "grid": tuple((("a", len(kinds) + i),) for i in range(GRID)),
        **parameters_of([kinds[i] for i in used], meta),
        **launch_of(compiled),
    }


def _leaves(kind: Any, value: Any) -> list[str]:
    """Triton's types of the leaves of an argument, in order."""
    if not isinstance(kind, tuple):
        return [str(kind)]
    return [leaf for part, item in zip(kind, value, strict=True) for leaf in _leaves(part, item)]
