"""What identifies a kernel of ``triton.jit`` and its specialisations, in both processes.

The only file besides ``precomp.doors`` that names Triton's own attributes; it imports nothing of
Triton itself. Words are those of ``_core.TritonDispatch`` (docs/internals.md, section 4.8).
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from precomp import _core
from precomp.data import dumps

# Options of a launch that name files.
REFUSED_OPTIONS = ("extern_libs", "ir_override")


class NoForm(Exception):
    """Something of a kernel that has no frozen form; the message says what."""


def module(name: str) -> Any:
    """The module ``triton.<name>``, which is there wherever a kernel is."""
    return sys.modules[f"triton.{name}"]


# ------------------------------------------------------------------ constants


def constant_word(value: Any, declared: bool = True) -> str:
    """The text of a constant, as C has it. Raises NoForm."""
    if value is None:
        return "N"
    if type(value) is bool:
        return "T" if value else "F"
    if type(value) is int:
        return f"i{value}"
    if type(value) is float:
        return f"f{value!r}"
    if type(value) is str:
        return f"s{len(value.encode())}:{value}"
    if isinstance(value, tuple):
        name = "" if type(value) is tuple else type(value).__name__
        return f"{name}({''.join(constant_word(item, declared) + ',' for item in value)})"
    text = described(value, declared)
    if text is None:
        raise NoForm(f"a constant of type {type(value).__qualname__}")
    return f"o{len(text.encode())}:{text}"


def described(value: Any, declared: bool) -> str | None:
    """The text of a constant that is not plain; None if it has none.

    *declared*: it belongs to a ``tl.constexpr`` parameter or to an option.
    """
    try:
        if isinstance(value, module("language").constexpr):
            return f"constexpr {constant_word(value.value)}"
        if isinstance(value, module("runtime.jit").JITCallable):
            return f"function {_digest_of(value)}"
    except NoForm:
        return None
    return f"dtype {value}" if declared and isinstance(value, module("language").dtype) else None


def element(dtype: Any) -> str:
    """Triton's name of an element type. Raises KeyError if it has none."""
    name: str = module("_utils").canonicalize_dtype(dtype)
    return name


# ------------------------------------------------------------------ tensor descriptors


def descriptor(kind: str) -> tuple[int, int]:
    """(dimensions, flags) that a kernel takes of a tensor descriptor of this type, whose device
    has no tensor maps."""
    rank = kind[kind.index("[") :].count(",") + 1
    expand = getattr(module("backends.nvidia.driver"), "expand_signature", None)
    return rank, 1 if expand is None else expand([kind], None).count("i1")


def map_types(kind: int) -> tuple[int, int]:
    """The driver's numbers of the element type *kind* of a tensor map: as it is, and of descriptors
    that round to TF32 (-1 if Triton has none)."""
    nvidia = module("backends.nvidia.driver")
    numbers: dict[int, int] = nvidia.TMA_DTYPE_DEVICE_TO_HOST
    return numbers[kind], numbers[nvidia.TMA_TF32] if hasattr(nvidia, "TMA_TF32") else -1


def passes_padded() -> bool:
    """Whether kernels get the shape of a tensor of padded 4-bit elements as its map has it."""
    return tuple(map(int, sys.modules["triton"].__version__.split(".")[:2])) < (3, 7)


# ------------------------------------------------------------------ kernels


def full_name(function: Any) -> str:
    """``module.qualname`` of a kernel."""
    return f"{function.fn.__module__}.{function.fn.__qualname__}"


def parameters(function: Any) -> tuple[tuple[Any, ...], ...]:
    """The parameters of a kernel as ``_core.TritonDispatch`` takes them. Raises NoForm."""
    rows = []
    for parameter, declared in zip(
        function.params, function.signature.parameters.values(), strict=True
    ):
        if declared.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise NoForm(f"a variable number of arguments (parameter {parameter.name})")
        row = (
            parameter.name,
            None if parameter.is_constexpr else parameter.annotation_type or None,
            parameter.is_constexpr,
            not parameter.do_not_specialize,
            not parameter.do_not_specialize_on_alignment,
            parameter.is_const,
        )
        rows.append((*row, parameter.default) if parameter.has_default else row)
    return tuple(rows)


def source(function: Any) -> dict[str, Any]:
    """What the code of a kernel depends on, as plain data. Raises NoForm.

    ``key`` is Triton's own digest: the source of the kernel and of all that it calls, the lines
    where they begin, and the constexpr globals that they read. ``globals`` are all variables that
    they read, ``parameters`` is what decorator and annotations say of the parameters.
    """
    key = function.cache_key
    found = {}
    for home, name, value, _ in _variables(function):
        try:
            found[f"{home}.{name}"] = _global_word(value)
        except NoForm as error:
            raise NoForm(f"the global variable {home}.{name}: {error}") from None
    rows: tuple[tuple[Any, ...], ...] = ()
    if hasattr(function, "params"):
        rows = tuple(
            (*row[:6], *(constant_word(value) for value in row[6:])) for row in parameters(function)
        )
    return {"key": key, "globals": tuple(sorted(found.items())), "parameters": rows}


def source_digest(record: dict[str, Any]) -> str:
    """sha256 (hex) of what ``source`` found."""
    return hashlib.sha256(dumps(record)).hexdigest()


_digests: dict[int, tuple[Any, str, str]] = {}


def _digest_of(function: Any) -> str:
    """The digest of a function that is an argument; once for each state of its source."""
    known = _digests.get(id(function))
    if known is None or known[0]() is not function or known[1] != function.hash:
        digest = source_digest(source(function))
        known = _digests[id(function)] = (weakref.ref(function), function.hash, digest)
    return known[2]


def _callees(function: Any) -> list[Any]:
    """A kernel and all functions of Triton that it can call, by the names in its code.

    Triton's own list of the variables that they read lacks those of callees before Triton 3.8.
    """
    found: dict[int, Any] = {}
    waiting = [function]
    while waiting:
        callee = waiting.pop()
        if id(callee) in found:
            continue
        found[id(callee)] = callee
        names = callee.fn.__code__.co_names + callee.fn.__code__.co_freevars
        scope = callee.get_capture_scope()
        values = [scope.get(name) for name in names]
        homes = [vars(value) for value in values if type(value) is types.ModuleType]
        values += [home.get(name) for home in homes for name in names]
        waiting += [
            value for value in values if isinstance(value, module("runtime.jit").JITCallable)
        ]
    return list(found.values())


def _variables(function: Any) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """(module, name, value, globals) of the variables that a kernel and its callees read.

    Values are those of the time when Triton looked first.
    """
    seen = set()
    for callee in _callees(function):
        callee.cache_key  # noqa: B018 - Triton finds the variables now
        for (name, _), (value, scope) in callee.used_global_vals.items():
            if (name, id(scope)) not in seen:
                seen.add((name, id(scope)))
                yield str(scope.get("__name__", "")), name, value, scope


def _global_word(value: Any) -> str:
    if type(value) is list:
        return f"[{''.join(_global_word(item) + ',' for item in value)}]"
    return constant_word(value)


def variables(function: Any) -> tuple[tuple[dict[str, Any], str, Any, bool], ...]:
    """The globals that a kernel reads, as ``_core.TritonDispatch`` watches them.

    Triton compares their values at each launch. Where a value cannot change in place, it is
    enough that it is the same object.
    """
    rows = []
    for home, name, value, scope in _variables(function):
        if not home:
            continue  # a variable of an enclosing function: Triton looks at it once
        now = scope.get(name)
        same = type(now) is type(value) and now == value
        fixed = same and type(value) in (bool, int, float, str)
        rows.append((scope, name, now if fixed else value, fixed))
    return tuple(rows)


# ------------------------------------------------------------------ settings


def settings(function: Any) -> dict[str, Any]:
    """What else decides how Triton compiles a kernel, as plain data."""
    knobs = module("knobs")
    native = sys.modules["triton._C.libtriton"]
    return {
        "triton": str(sys.modules["triton"].__version__),
        "debug": bool(function.debug or knobs.runtime.debug),
        "instrumentation": str(knobs.compilation.instrumentation_mode),
        "environment": tuple(sorted(native.get_cache_invalidating_env_vars().items())),
    }


def watched() -> tuple[tuple[Any, str, Any], ...]:
    """Attributes that Triton reads at each launch, with their values now."""
    knobs = module("knobs")
    names = ("debug", "launch_enter_hook", "launch_exit_hook", "add_stages_inspection_hook")
    rows = [(knobs.runtime, name) for name in names if hasattr(knobs.runtime, name)]
    rows.append((knobs.compilation, "instrumentation_mode"))
    return tuple((owner, name, getattr(owner, name)) for owner, name in rows)


def hooks(function: Any) -> tuple[list[Any], ...]:
    """The lists of functions that Triton calls at a launch. Raises NoForm if there is another."""
    runtime = module("knobs").runtime
    found = [function.pre_run_hooks]
    for name in ("launch_enter_hook", "launch_exit_hook"):
        chain = getattr(runtime, name)
        if chain is not None:
            calls = getattr(chain, "calls", None)
            if type(calls) is not list:
                raise NoForm(f"triton.knobs.runtime.{name} is set")
            found.append(calls)
    if getattr(runtime, "add_stages_inspection_hook", None) is not None:
        raise NoForm("triton.knobs.runtime.add_stages_inspection_hook is set")
    return tuple(found)


# ------------------------------------------------------------------ dispatch


State = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]


def state(function: Any) -> State:
    """What must stay as it is for the frozen launches of a kernel. Raises NoForm."""
    return watched(), hooks(function), variables(function)


def changes(
    attributes: tuple[Any, ...], lists: tuple[Any, ...], globals_: tuple[Any, ...]
) -> list[str]:
    """What of a ``state`` is not as it was, as text."""
    texts = [
        f"triton.knobs: {name} changed from {value!r} to {getattr(owner, name)!r}"
        for owner, name, value in attributes
        if getattr(owner, name) is not value
    ]
    if any(lists):
        texts.append("hooks of launches are set (add_pre_run_hook or triton.knobs.runtime)")
    texts += [
        f"the global variable {name} changed from {value!r} to {scope.get(name)!r}"
        for scope, name, value, _ in globals_
        if type(scope.get(name)) is not type(value) or scope[name] != value
    ]
    return texts


def dispatcher(
    function: Any,
    before: State,
    miss: Callable[..., Any],
    load: Callable[[Any], Any],
    device: Callable[[], int],
    stream: Callable[[int], int],
    archs: tuple[int, ...],
) -> _core.TritonDispatch:
    """A dispatcher without specialisations for a kernel. Raises NoForm."""
    return _core.TritonDispatch(
        parameters(function),
        elements,
        element,
        described,
        miss,
        load,
        device,
        stream,
        archs,
        *before,
    )


elements: dict[Any, str] = {}
"""Element types that ``element`` named so far; all dispatchers share it."""


def no_word(kind: str) -> str:
    """Stands for the word of an argument of type *kind* that has none."""
    return f"?{kind}"


def shown(word: str) -> str:
    """A word, as people say it."""
    if word.startswith("?"):
        return f"an argument of type {word[1:]}, which has no frozen form"
    if word.startswith("="):
        return f"constexpr {shown_constant(word[1:])}"
    for end, text in ((":D", ", divisible by 16"), (":1", ", equal to 1"), (":", "")):
        if word.endswith(end):
            return word[: -len(end)] + text
    return word


def explained(names: Sequence[str], words: Sequence[str]) -> dict[str, str]:
    """What the words of a launch say, by parameter and option."""
    texts = {name: shown(word) for name, word in zip(names, words, strict=False)}
    for word in words[len(names) :]:
        name, value = _option(word)
        texts[f"option {name}"] = value
    return texts


def shown_config(word: str) -> str:
    """The text of a configuration, as people say it."""
    return ", ".join("=".join(_option(part)) for part in word.split(", "))


def shown_constant(word: str) -> str:
    """A plain constant as Python writes it, anything else as its word."""
    plain = {"N": "None", "T": "True", "F": "False"}
    if word in plain:
        return plain[word]
    if word[:1] in ("i", "f"):
        return word[1:]
    return repr(word.partition(":")[2]) if word[:1] == "s" else word


def differences(names: Sequence[str], old: Sequence[str], new: Sequence[Any]) -> list[str]:
    """In what two lists of words differ, as text; *names* are the parameters."""
    texts = [
        f"{name}: captured as {shown(one)}, found {shown(other)}"
        for name, one, other in zip(names, old, new, strict=False)
        if one != other
    ]
    options = [dict(_option(word) for word in words[len(names) :]) for words in (old, new)]
    for name in sorted(options[0].keys() | options[1].keys()):
        one, other = (row.get(name, "(not given)") for row in options)
        if one != other:
            texts.append(f"option {name}: captured as {one}, found {other}")
    return texts


def _option(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, shown_constant(value)  # no "=": one that has no frozen form


# ------------------------------------------------------------------ autotuning


def kernel_of(wrapper: Any) -> Any:
    """The kernel under ``@triton.autotune``, ``@triton.heuristics`` and the like; None if it is
    none of ``triton.jit`` (Triton's interpreter)."""
    jit = module("runtime.jit").JITFunction
    while not isinstance(wrapper, jit):
        wrapper = getattr(wrapper, "fn", None)
        if wrapper is None:
            return None
    return wrapper


def config_word(config: Any) -> str:
    """A ``triton.Config`` as text. Raises NoForm."""
    rows = sorted(config.all_kwargs().items())
    return ", ".join(f"{name}={constant_word(value)}" for name, value in rows)


def tuner_record(tuner: Any) -> dict[str, Any]:
    """What an Autotuner chooses from, and by what. Raises NoForm."""
    return {
        "keys": tuple(map(str, tuner.keys)),
        "configs": tuple(config_word(config) for config in tuner.configs),
    }


def tuning_key(tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What an Autotuner keeps its choice for these arguments under."""
    given = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    given = {name: value for name, value in given.items() if name in tuner.arg_names}
    key = [given[name] for name in tuner.keys if name in given]
    key += [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    return tuple(key)
