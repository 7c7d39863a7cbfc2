"""One HTML page about an artifact: complete in itself, without scripts or anything to fetch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from typing import Any

from precomp.cli import describe
from precomp.files import Replacement

_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
code, td.c {{ font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }}
summary {{ cursor: pointer; margin-top: .6rem; }}
li {{ margin: .1rem 0; }}
.bar {{ display: inline-block; height: .7rem; background: #4a7ebb; }}
.dim {{ opacity: .65; }}
</style>
</head>
<body>
"""


def page(facts: dict[str, Any]) -> str:
    """The page about *facts* (``describe.artifact`` with guards); all of them are escaped."""
    name = os.path.basename(facts["path"])
    parts = [
        _HEAD.format(title=escape(name)),
        f"<h1>{escape(name)}</h1>\n",
        _table(
            [
                ("size", describe.size(facts["size"])),
                ("digest", facts["digest"]),
                ("fingerprint", facts["fingerprint"]),
            ]
        ),
        "<h2>Products</h2>\n",
        _products(facts["products"]),
        "<h2>Environment</h2>\n",
        _table(sorted(facts["environment"].items())),
        "<h2>Functions and their guards</h2>\n",
        *map(_frame, facts["frames"]),
        *_launches(facts["launches"]),
        "<h2>Entries</h2>\n",
        _entries(facts["entries"]),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def write(path: str, text: str) -> None:
    """Write *text* to *path*, whole or not at all."""
    with Replacement(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th>{escape(name)}</th><td class="c">{escape(value)}</td></tr>\n'
        for name, value in rows
    )
    return f"<table>\n{cells}</table>\n"


def _products(products: dict[str, dict[str, int]]) -> str:
    most = max((row["stored_size"] for row in products.values()), default=0) or 1
    rows = "".join(
        f'<tr><th>{escape(kind)}</th><td class="n">{row["entries"]}</td>'
        f'<td class="n">{row["raw_size"]}</td><td class="n">{row["stored_size"]}</td>'
        f'<td><span class="bar" style="width:{12 * row["stored_size"] / most:.2f}rem"></span></td>'
        "</tr>\n"
        for kind, row in products.items()
    )
    return (
        '<table>\n<tr><th>kind</th><th class="n">entries</th><th class="n">bytes</th>'
        f'<th class="n">in the file</th><th></th></tr>\n{rows}</table>\n'
    )


def _frame(frame: dict[str, Any]) -> str:
    guards = "".join(
        f'<li><code>{escape(guard["text"])}</code> <span class="dim">{escape(guard["kind"])}</span>'
        "</li>\n"
        for guard in frame["guards"]
    )
    inlined = "".join(f"<code>{escape(name)}</code> " for name in frame["inlined"])
    return (
        f"<details>\n<summary><code>{escape(describe.place(frame))}</code>: "
        f"{len(frame['guards'])} guards</summary>\n"
        f"<p>{escape(frame['backend'])}; frame <code>{escape(frame['digest'][:16])}</code>"
        f"{'; inlines ' + inlined if inlined else ''}</p>\n"
        f"<ul>\n{guards}</ul>\n</details>\n"
    )


def _launches(launches: list[dict[str, Any]]) -> Iterable[str]:
    """The section about Triton kernels that the program launches itself, if there are any."""
    if launches:
        yield "<h2>Launches of Triton kernels</h2>\n"
    for launch in launches:
        rows = "".join(
            f"<li><code>{escape(name)}: {escape(text)}</code></li>\n"
            for name, text in launch["arguments"].items()
        )
        yield (
            f"<details>\n<summary><code>{escape(launch['name'])}</code>: {escape(launch['arch'])}"
            f"</summary>\n<ul>\n{rows}</ul>\n</details>\n"
        )


def _entries(entries: Iterable[dict[str, Any]]) -> str:
    rows = "".join(
        f'<tr><td>{escape(entry["kind"])}</td><td class="c">{escape(entry["digest"][:16])}</td>'
        f'<td class="n">{entry["raw_size"]}</td><td class="n">{entry["stored_size"]}</td>'
        f'<td class="c">{"" if entry["name"] == entry["digest"] else escape(entry["name"])}</td>'
        "</tr>\n"
        for entry in entries
    )
    return (
        '<table>\n<tr><th>kind</th><th>digest</th><th class="n">bytes</th>'
        f'<th class="n">in the file</th><th>name</th></tr>\n{rows}</table>\n'
    )
