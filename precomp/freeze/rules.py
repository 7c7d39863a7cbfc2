"""Rules: what holds for the whole artifact rather than for one frame (record 4.5).

Dynamo decides by file whether it converts a frame. Those lists become data, relative to the
standard library and to the site directory, so that a frame that was never seen at capture (a
``__del__``, a logging handler) is treated as torch would treat it.
"""

from __future__ import annotations

from typing import Any

from precomp.freeze.traced import SITE, STDLIB
from precomp.torch_api import capture as capture_api


def relative(path: str) -> tuple[str, str]:
    """``(root, rest)`` of a file or directory; root is "site", "std" or "abs"."""
    if path.startswith(SITE):
        return ("site", path[len(SITE) :])
    if path.startswith(STDLIB):
        return ("std", path[len(STDLIB) :])
    return ("abs", path)


def _rows(paths: Any) -> tuple[tuple[str, str], ...]:
    # An absolute path would tie the artifact to one machine; torch has none in these lists.
    return tuple(sorted(row for row in map(relative, paths) if row[0] != "abs"))


def rules(skips: tuple[Any, ...], helpers: tuple[Any, ...], order: list[str]) -> dict[str, Any]:
    """The rules record, from what FrameFreezer and freeze.helpers.collect give."""
    api = capture_api()
    trace_rules = api.trace_rules
    return {
        "skip_files": _rows(trace_rules.FORCE_SKIP_FILES),
        "inline_files": _rows(trace_rules.get_legacy_mod_inlinelist()),
        "skip_dirs": _rows([*trace_rules.SKIP_DIRS, *trace_rules.get_mod_skiplist()]),
        "skips": skips,
        "modes": tuple((mode, dict(options)) for mode, options in api.list_mode_options().items()),
        "helpers": helpers,
        "order": tuple(order),
    }
