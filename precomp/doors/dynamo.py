"""Doors of Dynamo: frames, captures, compiled autograd, and errors turned into eager runs."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from typing import Any

from precomp.doors import (
    BACKWARD_HINT,
    BACKWARD_WHY,
    Door,
    Trip,
    brief,
    code_text,
    short,
    type_name,
)
from precomp.torch_api import loaded, modules, objects

_HINT = "run it once before the gate, or capture this case"
_READS = (
    ast.Expression,
    ast.Name,
    ast.Load,
    ast.Attribute,
    ast.Subscript,
    ast.Constant,
    ast.Call,
    ast.UnaryOp,
    ast.USub,
)


_NOTHING = object()


def _read(tree: ast.expr, frame: Any) -> Any:
    """What the source expression *tree* of a guard is in *frame*, _NOTHING if it is not just read.

    Guards read attributes and items of the frame's variables; so does this, and no more.
    """
    body = ast.Expression(tree)
    for node in ast.walk(body):
        if not isinstance(node, _READS):
            return _NOTHING
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) not in ("len", "type"):
            return _NOTHING
    scope = {**frame.f_globals, **frame.f_locals, "L": frame.f_locals, "G": frame.f_globals}
    try:
        return eval(compile(body, "<guard>", "eval"), scope)
    except Exception:  # noqa: BLE001 - the object may have changed in any way
        return _NOTHING


def _read_text(source: str, frame: Any) -> Any:
    try:
        return _read(ast.parse(source.strip(), mode="eval").body, frame)
    except SyntaxError:
        return _NOTHING


def _explain(guard: str, frame: Any) -> str:
    """*guard*, the failed check as torch words it, with the expected and the found value."""
    if " expected " in guard and " found " in guard:
        return guard
    match = re.match(r"___check_type_id\((.+), \d+\), type=<class '(.+)'>", guard)
    if match:
        value = _read_text(match[1], frame)
        found = "" if value is _NOTHING else f", found type {type_name(type(value))}"
        return f"{match[1]}: expected type {match[2]}{found}"
    match = re.match(r"___check_obj_id\((.+), \d+\)(?:, type=<class '(.+)'>)?", guard)
    if match:
        value = _read_text(match[1], frame)
        found = "" if value is _NOTHING else f" of type {type_name(type(value))}"
        kind = f" {match[2]}" if match[2] else ""
        return f"{match[1]}: expected the object{kind} it was compiled with, found another{found}"
    match = re.match(r"tensor '(.+)' requires_grad mismatch", guard)
    if match:
        flag = getattr(_read_text(match[1], frame), "requires_grad", None)
        return guard if flag is None else f"{guard}, found requires_grad={int(flag)}"
    if guard.startswith("GLOBAL_STATE changed: grad_mode"):
        import torch

        mode = torch.is_grad_enabled()
        return f"GLOBAL_STATE changed: grad_mode (expected {not mode}, found {mode})"
    try:
        tree = ast.parse(guard, mode="eval").body
    except SyntaxError:
        return guard
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
        value = _read(tree.left, frame)
        if value is not _NOTHING:
            wanted = ast.unparse(tree.comparators[0])
            if not isinstance(tree.ops[0], (ast.Eq, ast.Is)):
                wanted = guard.removeprefix(ast.unparse(tree.left)).strip()
            return f"{guard} (expected {wanted}, found {brief(value)})"
    return guard


def _reason(entry: Any, frame: Any, backend: Any) -> str:
    """Torch's word on why *entry* does not fit *frame*."""
    guards: Any = importlib.import_module(modules.GUARDS)
    manager = entry.guard_manager
    try:
        return str(
            guards.get_guard_fail_reason(
                manager, entry.code, frame.f_locals, entry.compile_id, backend, skip_logging=True
            )
        )
    except Exception:  # noqa: BLE001 - it evaluates guard text, and knows only its own managers
        info = manager.root.check_verbose(frame.f_locals)
        parts = "; ".join(info.verbose_code_parts[:3])
        return f"{getattr(entry, 'compile_id', '?')}: {parts}"


def failed_guards(entries: list[Any], frame: Any, backend: Any) -> list[str]:
    """One line per cache entry: the guard that failed, what it expects and what it found."""
    lines = []
    for entry in entries:
        line = _reason(entry, frame, backend).split("\nUser stack trace:")[0]
        line = line.replace(", actual ", ", found ").split("  #")[0].strip()
        number, colon, guard = line.partition(": ")
        lines.append(short(number + colon + _explain(guard, frame), 300))
    return lines


def _entries(args: dict[str, Any]) -> list[Any]:
    """The compiled versions that torch looked at before this call."""
    entries = args.get("cache_entries_for_reasons") or args.get("cache_entries")
    if entries is None:  # torch 2.11 hands over a linked list
        entries = loaded.cache_entries(args["code"])
    return list(entries)


def _frame(args: dict[str, Any]) -> Trip:
    code = args["code"]
    frame = args.get("frame")
    entries = _entries(args)
    if not entries or frame is None:
        return Trip(code_text(code), "not compiled before", _HINT)
    backend = objects.innermost_backend(args["compiler_fn"])
    try:
        why = "; ".join(failed_guards(entries, frame, backend))
    except Exception as error:  # noqa: BLE001 - torch's own report can fail
        why = f"{len(entries)} compiled versions, none fits ({type(error).__name__}: {error})"
    why = f"recompile: {why}"
    limit = _limit(args)
    if limit:
        why += f"; {limit} reached: without the gate this would run eager from now on, silently"
    return Trip(code_text(code), why, _HINT)


def _limit(args: dict[str, Any]) -> str:
    """Name of the limit that this recompile would hit, or ''."""
    size = args.get("cache_size")
    compile_id = args.get("compile_id")
    if size is None or compile_id is None:
        return ""
    cache_size: Any = sys.modules[modules.CACHE_SIZE]
    exceeded, name = cache_size.exceeds_recompile_limit(size, compile_id)
    return str(name) if exceeded else ""


def _capture(args: dict[str, Any]) -> Trip:
    return Trip(code_text(args["code"]), "torch.export or aot_compile captures it", _HINT)


def _skip(args: dict[str, Any]) -> Trip | None:
    result = args["result"]
    reason = result.skip_reason
    if reason is None or result.guarded_code is not None:
        return None
    if "suppressed" not in reason and "custom frame execution strategy" not in reason:
        return None  # skipped by rule, or by the user's wish
    code = args["frame"].f_code
    return Trip(code_text(code), f"falls back to eager: {reason}", "fix the error it hides")


_TRIGGERS = {
    "DYNAMO": ("trace", "a graph"),
    "LAZY_BACKWARD": ("lower", "backward graph"),
    "TRITON_AUTOTUNING": ("tune", "Triton kernel"),
    "CUDAGRAPH_RECORDING": ("record", "CUDA graph"),
}


def _callback(args: dict[str, Any]) -> Trip:
    name = args["trigger"].name
    kind, what = _TRIGGERS.get(name, ("trace", name))
    if name == "LAZY_BACKWARD":  # torch 2.11: later ones come to the door in doors/aot.py first
        why = f"{BACKWARD_WHY} ({args['compile_id']})"
        return Trip(what, why, BACKWARD_HINT, kind=kind)
    why = f"torch starts a compile ({name}, id {args['compile_id']})"
    return Trip(what, why, _HINT, kind=kind)


def _autograd(args: dict[str, Any]) -> Trip:
    return Trip(
        "compiled autograd: backward graph",
        "not captured for these inputs before",
        _HINT,
    )


def _stance(args: dict[str, Any]) -> Trip | None:
    stance = getattr(args["stance"], "stance", None)
    if stance != "eager_on_recompile":
        return None
    return Trip(
        "torch.compiler.set_stance('eager_on_recompile')",
        "from now on frames whose guards fail would run eager, silently",
        "reset the stance, or allow 'fallback'",
    )


DOORS = (
    Door("Dynamo frame", "trace", "torch._dynamo.convert_frame:_compile", _frame),
    Door("Dynamo capture", "trace", "torch._dynamo.convert_frame:compile_frame", _capture),
    Door(
        "eager fall-back",
        "fallback",
        "torch._dynamo.convert_frame:CatchErrorsWrapper._handle_skip",
        _skip,
        required=False,  # not in torch 2.11; the door of the frame stands before it
    ),
    Door("stance", "fallback", "torch._dynamo.eval_frame:_set_stance", _stance),
    Door(
        "compile callbacks",
        "trace",
        "torch._dynamo.callback:CompilationCallbackHandler.install_callbacks",
        _callback,
        also=("lower", "tune", "record"),
    ),
    Door(
        "compiled autograd",
        "trace",
        "torch._dynamo.compiled_autograd:AutogradCompilerInstance.begin_capture",
        _autograd,
    ),
)
