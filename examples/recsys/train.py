"""Train a recommendation model on click logs with FSDP2: DLRM, Adam, progressive AUC.

    python clicks.py clicks.tsv
    torchrun --nproc-per-node 2 train.py clicks.tsv --batches 3 --capture dlrm.precomp
    torchrun --nproc-per-node 16 train.py clicks.tsv --prepare dlrm.precomp --strict
    torchrun --nproc-per-node 16 train.py clicks.tsv --eager        # no torch.compile at all

Each rank reads its own lines and embedding tables are sharded over all ranks. Every batch is scored
before it is learned from; the AUC is that of the scores of the second half of the batches, of all
ranks. ``--report FILE`` writes what happened on this rank as JSON (``{rank}`` in FILE is replaced).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

SPAWN_EVENTS = {
    "subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"
}  # fmt: skip

spawned: list[str] = []


def watch_processes(event: str, args: tuple) -> None:
    if event in SPAWN_EVENTS:
        spawned.append(f"{event} {args[:1]!r}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clicks", help="click log, as clicks.py describes it")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64, help="lines a rank and batch")
    parser.add_argument("--rows", type=int, default=1000, help="rows of each embedding table")
    parser.add_argument("--columns", type=int, default=26, help="categorical columns to use")
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--eager", action="store_true", help="do not use torch.compile")
    parser.add_argument("--capture", metavar="FILE", help="record the run and write an artifact")
    parser.add_argument("--prepare", metavar="FILE", help="serve the run from an artifact")
    parser.add_argument("--strict", action="store_true", help="raise if anything would compile")
    parser.add_argument("--report", metavar="FILE", help="write what happened as JSON")
    parser.add_argument("--timeout", type=float, default=300, help="of collectives, in seconds")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    sys.addaudithook(watch_processes)
    marks: dict[str, list[float]] = {}

    def mark(name: str) -> None:
        """Wall-clock time, and CPU seconds of this process and its children."""
        times = os.times()
        marks[name] = [time.time(), sum(times[:4])]

    mark("start")
    import torch

    torch.set_num_threads(1)
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mark("imports")
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    prepared = None
    if options.capture or options.prepare or options.strict:
        import precomp
    if options.prepare:
        prepared = precomp.prepare(options.prepare, group=dist.group.WORLD, timeout=60)
    mark("prepared")

    import clicks
    from dlrm import DLRM

    number = torch.float64 if options.double else torch.float32
    torch.manual_seed(0)
    model = DLRM(columns=options.columns, rows=options.rows).to(number)
    mesh = init_device_mesh("cpu", (ranks,))
    for part in (model.tables, model.bottom, model.top):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run = model if options.eager else torch.compile(model)
    mark("built")

    losses: list[float] = []
    scores: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    data = clicks.batches(options.clicks, options.batch_size, options.rows, rank, ranks)
    with ExitStack() as stack:
        if options.capture:
            stack.enter_context(precomp.capture(options.capture))
        gate = precomp.strict_no_compile() if options.strict else None
        if gate is not None:
            stack.enter_context(gate)
        for step in range(options.batches):
            dense, sparse, clicked = next(data)
            dense, clicked = dense.to(number), clicked.to(number)
            logits = run(dense, sparse[:, : options.columns])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, clicked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step >= options.batches // 2:
                scores.append(logits.detach())
                labels.append(clicked)
            if step == 0:
                mark("step 1")
        mark("done")

    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean)
    mean /= ranks
    area = auc(gathered(torch.cat(scores)), gathered(torch.cat(labels)))
    if rank == 0:
        print(
            f"{ranks} ranks, {options.batches} batches of {options.batch_size}: "
            f"loss {mean[0]:.4f} -> {mean[-1]:.4f}, AUC {area:.4f}"
        )
        if prepared is not None:
            print(prepared.coverage())
    if options.report:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.to_local().detach().contiguous().numpy().tobytes())
        facts = {
            "rank": rank,
            "losses": [loss.hex() for loss in losses],
            "mean_losses": mean.tolist(),
            "auc": area,
            "parameters": digest.hexdigest(),
            "marks": marks,
            "violations": [str(v) for v in gate.violations] if gate is not None else [],
            "missing": prepared.coverage().missing if prepared is not None else [],
            "subprocesses": spawned,
            **compiled(),
        }
        Path(options.report.format(rank=rank)).write_text(json.dumps(facts) + "\n")
    dist.destroy_process_group()
    return 0


def gathered(own: object) -> object:
    """The tensors of all ranks, one after the other."""
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.contiguous())
    return torch.cat(parts)


def auc(scores: object, labels: object) -> float:
    """Area under the ROC curve: how often a click is scored higher than a non-click; ties count
    half (the Mann-Whitney statistic)."""
    import torch

    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    ranks = (last - (counts - 1) / 2.0)[place].double()
    clicks = labels.sum().item()
    others = labels.numel() - clicks
    if not clicks or not others:
        return float("nan")
    total = ranks[labels > 0].sum().item()
    return (total - clicks * (clicks + 1) / 2) / (clicks * others)


def compiled() -> dict[str, int]:
    """How often this process compiled a frame, and how often it looked into a cache of torch."""
    counts = {"compile_ids": 0, "cache_lookups": 0}
    if "torch._dynamo.convert_frame" in sys.modules:
        from torch._dynamo.utils import counters, get_compilation_metrics

        counts["compile_ids"] = len(get_compilation_metrics())
        for name, group in (("inductor", "fxgraph_cache_"), ("aot_autograd", "autograd_cache_")):
            for outcome in ("hit", "miss", "bypass"):
                counts["cache_lookups"] += counters[name][f"{group}{outcome}"]
    return counts


if __name__ == "__main__":
    sys.exit(main())
