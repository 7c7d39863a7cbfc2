"""One rank of a served training run in which one rank meets a batch that nobody captured.

    violate.py FILE RANK            prints the violation that this rank raises, as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch

import precomp


def main() -> None:
    file, culprit = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    from cases import BATCH, model, shard, start, train

    start()
    precomp.prepare(file, group=True)
    net = shard(model())
    size = 5 if torch.distributed.get_rank() == culprit else BATCH
    gate = precomp.strict_no_compile()
    try:
        with gate:
            train(net, torch.compile(net), sizes=(BATCH, size, BATCH))
    except precomp.CompileViolation as violation:
        facts = {
            "text": str(violation),
            "args": violation.args,
            "rank": violation.rank,
            "count": len(gate.violations),
            "context": type(violation.__context__).__name__,
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
