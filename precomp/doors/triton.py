"""Doors of Triton: kernels new to this process, their compilation, autotuning, C stubs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from precomp.doors import Door, Trip, brief, short

_HINT = "launch it once before the gate with such arguments, or capture it"


def _signature(names: list[str], signature: dict[str, Any], attrs: Any, constants: Any) -> dict:
    """Argument -> how Triton specialised it, as text."""
    described: dict[str, str] = {}
    for index, name in enumerate(names):
        text = str(signature.get(name, ""))
        constant = (constants or {}).get((index,))
        if text == "constexpr" or constant is not None:
            text = f"constexpr {brief(constant)}"
        attribute = (attrs or {}).get((index,))
        if attribute:
            text += " " + " ".join(f"{key}={value}" for key, value in attribute)
        described[name] = text
    return described


def _changes(function: Any, device: Any, new: dict[str, str]) -> str:
    """How *new* differs from the nearest signature that is compiled already, or ''."""
    best: list[str] | None = None
    for kernel in list(function.device_caches[device][0].values()):
        source = getattr(kernel, "src", None)
        if source is None:
            continue
        old = _signature(function.arg_names, source.signature, source.attrs, source.constants)
        diff = [
            f"{name}: compiled for {old[name] or '(none)'}, found {text or '(none)'}"
            for name, text in new.items()
            if old.get(name) != text
        ]
        if best is None or len(diff) < len(best):
            best = diff
    if best is None:
        return ""
    return "; ".join(best) if best else "the launch options changed (num_warps, num_stages, ...)"


def _nothing(_: Any) -> str:
    return ""


frozen_kernel: Callable[[Any], str] = _nothing
"""Why a launch of a kernel is not served; precomp.serve.triton puts its answer here."""

frozen_choice: Callable[[Any], str] = _nothing
"""The same of an autotuner."""


def _kernel(args: dict[str, Any]) -> Trip:
    function = args["self"]
    new = _signature(function.arg_names, args["signature"], args["attrs"], args["constexprs"])
    listed = ", ".join(f"{name}: {text}" for name, text in new.items())
    known = function.device_caches[args["device"]][0]
    if not known:
        why = f"not launched before; signature ({listed})"
    else:
        why = f"new specialisation: {_changes(function, args['device'], new)}; ({listed})"
    why = frozen_kernel(function) or why
    return Trip(f"Triton kernel {function.__name__}", short(why, 600), _HINT)


def _source_name(source: Any) -> str:
    return short(getattr(source, "name", source), 100)


def _compile(args: dict[str, Any]) -> Trip:
    return Trip(
        f"Triton kernel {_source_name(args['src'])}",
        "not in this process: looked up in Triton's cache on disk, and compiled if it misses there",
        _HINT,
    )


def _make_ir(args: dict[str, Any]) -> Trip:
    return Trip(
        f"Triton kernel {_source_name(args['self'])}",
        f"not in Triton's cache on disk ({_cache_dir()}) for target {args.get('target')}",
        _HINT,
    )


def _background(args: dict[str, Any]) -> Trip | None:
    """A compile that goes to a thread: stopped before its future is kept for later."""
    key = args["key"]
    compile_it = args["compile_fn"]
    if key in args["self"].future_kernels:
        return None
    names = dict(zip(compile_it.__code__.co_freevars, compile_it.__closure__, strict=True))
    name = _source_name(names["src"].cell_contents)
    if _on_disk(key, name):
        return None
    return Trip(f"Triton kernel {name}", f"not in Triton's cache on disk ({_cache_dir()})", _HINT)


def _on_disk(key: str, name: str) -> bool:
    """Whether Triton's cache has the kernel of this key, as triton.compile would look it up."""
    from triton import knobs
    from triton.runtime.cache import get_cache_manager

    file = f"{name[:150]}.json"
    group = get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).get_group(file) or {}
    return file in group and not knobs.compilation.always_compile


def _cache_dir() -> str:
    from triton import knobs

    return str(knobs.cache.dir)


def _ptxas(args: dict[str, Any]) -> Trip:
    metadata = args.get("metadata") or {}
    return Trip(f"Triton kernel {metadata.get('name', '')}", "ptxas is about to run", _HINT)


def _bench(args: dict[str, Any]) -> Trip:
    tuner = args["self"]
    function = getattr(tuner, "base_fn", None) or tuner.fn
    keys = list(tuner.cache)[:3]
    values = tuner.nargs or {}
    key = ", ".join(
        f"{name}={brief(values[name])}" for name in getattr(tuner, "keys", ()) if name in values
    )
    why = f"no best config for key ({key}); tuned so far: {brief(keys) if keys else 'nothing'}"
    return Trip(
        f"@triton.autotune of {getattr(function, '__name__', function)}",
        "; ".join(filter(None, (why, frozen_choice(tuner)))),
        "tune it before the gate, or capture the choice",
    )


def _stub(args: dict[str, Any]) -> Trip:
    return Trip(f"Triton C module {args['name']}", "the C compiler is about to run", _HINT)


DOORS = (
    Door("Triton kernel", "load", "triton.runtime.jit:JITFunction._do_compile", _kernel),
    Door("triton.compile", "load", "triton.compiler.compiler:compile", _compile),
    Door("Triton front end", "build", "triton.compiler.compiler:ASTSource.make_ir", _make_ir),
    Door("Triton IR", "build", "triton.compiler.compiler:IRSource.make_ir", _make_ir),
    Door(
        "ptxas",
        "build",
        "triton.backends.nvidia.compiler:CUDABackend.make_cubin",
        _ptxas,
        required=False,  # the doors of the front end stand before it
    ),
    Door(
        "Triton compile thread",
        "build",
        "triton.runtime._async_compile:AsyncCompileMode.submit",
        _background,
        required=False,  # the doors of the front end stand behind it
    ),
    Door("triton.autotune", "tune", "triton.runtime.autotuner:Autotuner._bench", _bench),
    Door("Triton C module", "build", "triton.runtime.build:_build", _stub),
)
