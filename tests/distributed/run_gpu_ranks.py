"""DDP and FSDP2 on two GPUs: captured by two ranks, served by two others in fresh processes.

The ranks are served from the artifact of both and from that of rank 0 alone, each on its own GPU
and on the other one's, without a compiler. The reference is the captured run of the same rank.

``python run_gpu_ranks.py [--device cpu] OUT.json [NAME...]``; with ``cpu`` the same over gloo. Exit
status 0: all the same bits. The ranks have torchrun's variables; so
``torchrun --nproc-per-node 2 worker.py serve FOLDER NAME`` runs one of these steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]

import ranks  # noqa: E402
from processes import differences  # noqa: E402

from precomp import Artifact  # noqa: E402
from precomp.data import loads  # noqa: E402

RANKS = 2
KEPT = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
FAMILIES = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_")  # what a machine needs said to its links
NAMES = (
    "ddp_one_bucket", "ddp_buckets", "ddp_device_ids", "ddp_compiled_module", "ddp_no_sync",
    "fsdp_compiled_model", "fsdp_blocks_before", "fsdp_blocks_after", "fsdp_mixed_precision",
    "fsdp_checkpointing", "fsdp_accumulate",
)  # fmt: skip


def start(
    place: Path, device: str, *arguments: object, compiler: bool = True, swap: bool = False
) -> list[Any]:
    """What the ranks print."""
    extra = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(FAMILIES)}
    extra |= {"RANKS_DEVICE": device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GROUP_TIMEOUT": "240"}
    extra |= {"RANKS_SWAP": "1"} if swap else {}
    places = ranks.places(place, RANKS, compiler=compiler, extra=extra)
    return [rank.facts for rank in ranks.run(places, "worker.py", *arguments, timeout=500)]


def entries(folder: Path, name: str) -> dict[str, Any]:
    """What the artifacts of the two ranks and of both hold."""
    files = [folder / f"{name}.{rank}.precomp" for rank in range(RANKS)]
    whole = Artifact.open(folder / f"{name}.precomp")
    frames = [loads(whole.read(e.digest)) for e in whole.entries if e.kind == "frame"]
    fixed = [(r["name"], r["devices"]) for r in frames if r["devices"] not in (None, ("any",))]
    alone = [{e.digest: e.kind for e in Artifact.open(file).entries} for file in files]
    own = [
        kind
        for part in alone
        for digest, kind in part.items()
        if not all(digest in a for a in alone)
    ]
    return {
        "stored_once": len({Artifact.open(file).digest for file in files} | {whole.digest}) == 1,
        "of_one_rank": {kind: own.count(kind) for kind in sorted(set(own))},
        "frames": len(frames),
        "on_any_gpu": sum(record["devices"] == ("any",) for record in frames),
        "on_their_own": fixed,
    }


def compare(captured: list[Any], served: list[Any], names: list[str]) -> dict[str, Any]:
    """What is wrong, by case and by kind; empty lists where nothing is."""
    wrong: dict[str, Any] = {"violations": [], "missing": [], "spawns": [], "compiler": []}
    for facts in served:
        for kind in ("violations", "missing", "spawns"):
            wrong[kind] += facts[kind]
        # torch.distributed.tensor itself imports sympy.
        wrong["compiler"] += sorted(set(facts["compiler"]) - {"sympy"})
    for name in names:
        wrong[name] = []
        for one, other in zip(captured, served, strict=True):
            if name in other["errors"]:
                wrong[name].append(other["errors"][name][-1500:])
            else:
                wrong[name] += differences(one["results"][name], other["results"][name])[:3]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options = parser.parse_intermixed_args()  # names may follow options
    import torch

    if options.device == "cuda" and torch.cuda.device_count() < RANKS:
        print(f"{RANKS} GPUs are needed, {torch.cuda.device_count()} are here", file=sys.stderr)
        return 2
    names = list(options.names)
    with tempfile.TemporaryDirectory(prefix="precomp-ranks-") as temporary:
        root = Path(temporary)
        both, alone = root / "both", root / "alone"
        both.mkdir()
        alone.mkdir()
        captured = start(root / "capture", options.device, "capture", both, *names)
        failed = {name: facts["errors"][name] for facts in captured for name in facts["errors"]}
        names = [name for name in names if name not in failed]
        found: dict[str, Any] = {
            "torch": torch.__version__,
            "device": options.device,
            "ranks": RANKS,
            "not_captured": {name: text[-1500:] for name, text in failed.items()},
            "artifacts": {name: entries(both, name) for name in names},
            "served": {},
        }
        for name in names:
            shutil.copy(both / f"{name}.0.precomp", alone / f"{name}.precomp")
        for folder in (both, alone) if names else ():
            for swap in (False, True):
                way = f"{folder.name}, {'the GPUs swapped' if swap else 'as captured'}"
                served = start(
                    root / way.replace(" ", "-"), options.device, "serve", folder, *names,
                    compiler=False, swap=swap,
                )  # fmt: skip
                found["served"][way] = compare(captured, served, names)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    wrong = {
        way: [what for what, lines in rows.items() if lines]
        for way, rows in found["served"].items()
    }
    print(json.dumps({"not_captured": sorted(failed), "wrong": wrong}))
    return 1 if failed or any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
