"""Doors of Dynamo: frames, captures, compiled autograd, and errors turned into eager runs."""

from __future__ import annotations

import ast
import re
import sys
from typing import Any

from precomp.doors import Door, Trip, code_text, short

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


def _found(reason: str, frame: Any) -> str:
    """The value that the failed guard in *reason* saw in *frame*, as text, or ''."""
    expression = re.sub(r"^\d+/\d+(?:_\d+)?: ", "", reason).split("  #")[0].strip()
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return ""
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return ""
    left = ast.Expression(tree.left)
    for node in ast.walk(left):
        if not isinstance(node, _READS):
            return ""
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) not in ("len", "type"):
            return ""
    scope = {**frame.f_locals, "L": frame.f_locals, "G": frame.f_globals}
    try:
        value = eval(compile(left, "<guard>", "eval"), {**frame.f_globals}, scope)
    except Exception as error:  # noqa: BLE001 - what the program would see there
        return f"{type(error).__name__}: {error}"
    return short(repr(value), 80)


def failed_guards(entries: list[Any], frame: Any, backend: Any) -> list[str]:
    """One line per cache entry: the guard that failed, what it expects and what it found."""
    from torch._dynamo import guards

    lines = []
    for reason in guards.get_and_maybe_log_recompilation_reasons(
        entries, frame, backend, skip_logging=True
    ):
        line = reason.split("\nUser stack trace:")[0].replace(", actual ", ", found ")
        line = line.split("  #")[0].strip()
        if "found" not in line:
            found = _found(reason, frame)
            if found:
                line += f" (found {found})"
        lines.append(short(line, 300))
    return lines


def _frame(args: dict[str, Any]) -> Trip:
    code = args["code"]
    entries = args.get("cache_entries_for_reasons") or args.get("cache_entries") or []
    frame = args.get("frame")
    if not entries or frame is None:
        return Trip(code_text(code), "not compiled before", _HINT)
    backend = args["compiler_fn"]
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    try:
        why = "; ".join(failed_guards(entries, frame, backend))
    except Exception as error:  # noqa: BLE001 - torch's own report can fail
        why = f"{len(entries)} compiled versions, none matches ({type(error).__name__}: {error})"
    why = "recompile: " + (why or f"none of {len(entries)} compiled versions matches")
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
    cache_size: Any = sys.modules["torch._dynamo.cache_size"]
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
    return Trip(what, f"torch starts a compile ({name}, id {args['compile_id']})", kind=kind)


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
