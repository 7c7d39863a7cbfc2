"""One rank: runs cases eager, compiled, captured or served; prints one JSON line, which is in the
file facts.RANK.json of the working directory, too.

    worker.py eager|compiled NAME...
    worker.py capture DIR NAME...     all ranks write DIR/NAME.precomp, each DIR/NAME.RANK.precomp
    worker.py serve DIR NAME...       from DIR/NAME.precomp, all prepared at once
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "programs")]

from runner import COMPILER, SPAWNS, audit, plain  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("eager", "compiled", "capture", "serve"))
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    side, names = options.side, options.names
    directory = names.pop(0) if side in ("capture", "serve") else ""
    sys.addaudithook(audit)

    import torch

    SPAWNS.clear()  # Importing torch itself may start ldconfig (2.14 built for CUDA).
    torch.set_num_threads(1)
    prepared = {}
    gate = nullcontext()
    if directory:
        import precomp
    from cases import start

    start()
    if side == "serve":
        for name in names:
            prepared[name] = precomp.prepare(f"{directory}/{name}.precomp", group=True)
        gate = precomp.strict_no_compile()

    from cases import CASES

    rank = torch.distributed.get_rank()
    facts: dict = {"rank": rank, "results": {}, "errors": {}, "reports": {}}
    with gate as entered:
        for name in names:
            try:
                if side == "compiled":
                    torch._dynamo.reset()
                if side == "capture":
                    with precomp.capture(reset=True) as capture:
                        facts["results"][name] = plain(torch, CASES[name]())
                    facts["reports"][name] = str(capture.report())
                    own = f"{directory}/{name}.{rank}.precomp"
                    capture.finalize(own, group=False)
                    capture.finalize(f"{directory}/{name}.precomp")
                else:
                    facts["results"][name] = plain(torch, CASES[name]())
            except Exception:  # noqa: BLE001 (a test reports it)
                facts["errors"][name] = traceback.format_exc()
    facts["reports"] |= {name: str(p.report()) for name, p in prepared.items()}
    if prepared:
        facts["violations"] = [str(v) for v in entered.violations]
        facts["missing"] = [m for p in prepared.values() for m in p.coverage().missing]
    facts["compiler"] = [m for m in COMPILER if m in sys.modules]
    facts["spawns"] = SPAWNS
    torch.distributed.destroy_process_group()
    line = json.dumps(facts)
    Path(f"facts.{rank}.json").write_text(line)
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
