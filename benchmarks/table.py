"""Print the JSON of the benchmarks as Markdown tables.

python benchmarks/table.py startup.json steady.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

START = ("eager", "cold", "warm", "megacache", "precompile", "prepared")
STEP = ("eager", "compiled", "prepared")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def startup(data: dict) -> str:
    rows = []
    for name, program in data["programs"].items():
        seconds = [f"{program['seconds'][v]['median']:.3f}" for v in START]
        ratios = [
            f"{program['prepared_to_eager']:.3f}",
            f"{program['best_warm_start_to_prepared']:.1f}",
        ]
        rows.append([name, *seconds, *ratios, f"{program['artifact_bytes']:,}"])
    head = ["program", *START, "prepared / eager", "best warm / prepared", "artifact bytes"]
    alone = data["import_precomp_s"]["median"] * 1e3
    return f"{table(head, rows)}\n\n`import precomp` alone: {alone:.1f} ms"


def steady(data: dict) -> str:
    rows = [
        [
            name,
            *(f"{program['step_s'][v] * 1e3:.3f}" for v in STEP),
            f"{program['prepared_to_compiled']:.3f}",
        ]
        for name, program in data["programs"].items()
    ]
    return table(["program (ms a step)", *STEP, "prepared / compiled"], rows)


def main() -> int:
    for name in sys.argv[1:]:
        data = json.loads(Path(name).read_text())
        machine = ", ".join(f"{key} {value}" for key, value in data["machine"].items())
        print(f"### {data['benchmark']}: {data['unit']}\n\n{machine}\n")
        print({"startup": startup, "steady": steady}[data["benchmark"]](data) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
