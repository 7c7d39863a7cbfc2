"""Training programs of several ranks; each returns what a rank must have, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import blocks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

CASES: dict[str, Callable[[], dict[str, Any]]] = {}
# "cpu" or "cuda": a GPU for each rank, in reverse order of the ranks where RANKS_SWAP is set.
DEVICE = os.environ.get("RANKS_DEVICE", "cpu")
STEPS = 3
BATCH = 8


def case(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CASES[function.__name__] = function
    return function


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def batch(
    step: int, size: int = BATCH, rank: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.rand(size, blocks.FEATURES, generator=generator)
    return x.to(DEVICE), torch.rand(size, generator=generator).to(DEVICE)


def train(
    model: nn.Module,
    run: Any = None,
    *,
    sizes: tuple[int, ...] = (BATCH,) * STEPS,
    clip: bool = False,
    foreach: bool = True,
    alike: bool = False,
) -> dict[str, Any]:
    """Losses, gradients, parameters and state of the random numbers after a few steps; *alike*:
    every rank has the batches of the first."""
    run = model if run is None else run
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=foreach)
    losses, gradients = [], []
    for step, size in enumerate(sizes):
        x, y = batch(step, size, 0 if alike else dist.get_rank())
        loss = nn.functional.mse_loss(run(x).float().squeeze(-1), y)
        optimizer.zero_grad()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients.append([local(p.grad) for p in model.parameters()])
        optimizer.step()
        losses.append(loss)
    return {
        "losses": losses,
        "gradients": gradients,
        "parameters": [local(p) for p in model.parameters()],
        "random": torch.get_rng_state(),
    }


def model(**options: Any) -> blocks.Net:
    torch.manual_seed(0)
    return blocks.Net(**options).to(DEVICE)


def mesh(*shape: int) -> Any:
    shape = shape or (dist.get_world_size(),)
    return init_device_mesh(DEVICE, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


def shard(net: nn.Module, *, over: Any = None, **options: Any) -> nn.Module:
    """FSDP2 of each block of *net* and of itself, over that mesh, or over all ranks."""
    over = mesh() if over is None else over
    for block in net.children():
        fully_shard(block, mesh=over, **options)
    fully_shard(net, mesh=over, **options)
    return net


@case
def fsdp_compiled_model() -> dict[str, Any]:
    net = shard(model())
    return train(net, torch.compile(net))


@case
def fsdp_compile_method_after() -> dict[str, Any]:
    net = shard(model())
    net.compile()
    return train(net, clip=True)


@case
def fsdp_compile_method_before() -> dict[str, Any]:
    net = model()
    net.compile()
    return train(shard(net))


@case
def fsdp_blocks_before() -> dict[str, Any]:
    net = model()
    for block in (net.bottom, net.top):
        block.compile()
    return train(shard(net))


@case
def fsdp_blocks_after() -> dict[str, Any]:
    net = shard(model())
    for block in (net.bottom, net.top):
        block.compile()
    return train(net)


@case
def fsdp_remainder() -> dict[str, Any]:
    net = shard(model())
    return train(net, torch.compile(net), sizes=(BATCH, BATCH, 5, BATCH))


@case
def fsdp_remainder_per_rank() -> dict[str, Any]:
    net = shard(model())
    return train(net, torch.compile(net), sizes=(BATCH, BATCH, 5 + dist.get_rank()))


@case
def fsdp_mixed_precision() -> dict[str, Any]:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = shard(model(), mp_policy=policy)
    return train(net, torch.compile(net))


@case
def fsdp_checkpointing() -> dict[str, Any]:
    net = shard(model(checkpoint=True))
    return train(net, torch.compile(net))


@case
def fsdp_checkpoint_wrapper() -> dict[str, Any]:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = model()
    net.bottom = checkpoint_wrapper(net.bottom)
    net.top = checkpoint_wrapper(net.top)
    shard(net)
    net.bottom.compile()
    net.top.compile()
    return train(net)


@case
def fsdp_accumulate() -> dict[str, Any]:
    net = shard(model())
    run = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        assert isinstance(net, FSDPModule)
        net.set_requires_gradient_sync(step % 2 == 1)
        x, y = batch(step)
        loss = nn.functional.mse_loss(run(x).squeeze(-1), y)
        loss.backward()
        losses.append(loss)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        out = run(batch(9)[0])
    return {"losses": losses, "out": out, "parameters": [local(p) for p in net.parameters()]}


@case
def fsdp_hybrid() -> dict[str, Any]:
    """HSDP: two groups of ranks that hold the whole model, sharded inside each."""
    net = shard(model(), over=mesh(2, dist.get_world_size() // 2))
    return train(net, torch.compile(net))


@case
def fsdp_recommendation() -> dict[str, Any]:
    """A larger model, whose tables no number of ranks divides."""
    torch.manual_seed(0)
    net = blocks.DLRM(columns=5, rows=1009, width=10).to(DEVICE)
    for table in net.tables.tables:
        fully_shard(table, mesh=mesh())
    run = torch.compile(shard(net))
    sparse = torch.randint(1009, (BATCH, 5)).to(DEVICE)
    return train(net, lambda x: run(torch.cat([x, x, x[:, :1]], 1), sparse))


@case
def pipeline() -> dict[str, Any]:
    """Two stages, each on a rank of its own, and two microbatches."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    net = model()
    stage = (net.bottom, net.top)[dist.get_rank()]
    stage.compile()
    schedule = ScheduleGPipe(
        PipelineStage(stage, dist.get_rank(), 2, torch.device(DEVICE)),
        n_microbatches=2,
        loss_fn=lambda out, y: nn.functional.mse_loss(out.squeeze(-1), y),
    )
    optimizer = torch.optim.Adam(stage.parameters(), lr=1e-2, foreach=True)
    losses: list[torch.Tensor] = []
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        optimizer.step()
    return {"losses": losses, "parameters": list(stage.parameters())}


@case
def ddp_one_bucket() -> dict[str, Any]:
    ddp = DistributedDataParallel(model())
    return train(ddp, torch.compile(ddp))


@case
def ddp_compiled_module() -> dict[str, Any]:
    ddp = DistributedDataParallel(torch.compile(model()))
    return train(ddp)


@case
def ddp_buckets() -> dict[str, Any]:
    ddp = DistributedDataParallel(model(width=60_000), bucket_cap_mb=1)
    return train(ddp, torch.compile(ddp))


@case
def ddp_device_ids() -> dict[str, Any]:
    ordinals = None if DEVICE == "cpu" else [torch.cuda.current_device()]
    ddp = DistributedDataParallel(model(width=60_000), bucket_cap_mb=1, device_ids=ordinals)
    return train(ddp, torch.compile(ddp))


@case
def ddp_no_sync() -> dict[str, Any]:
    ddp = DistributedDataParallel(model())
    run = torch.compile(ddp)
    x, y = batch(0)
    with ddp.no_sync():
        nn.functional.mse_loss(run(x).squeeze(-1), y).backward()
    return train(ddp, run)


def split(net: blocks.Net, over: Any, **options: Any) -> blocks.Net:
    """Tensor parallel: the bottom of *net* by columns, then by rows."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"layers.0": ColwiseParallel(), "layers.1": RowwiseParallel(**options)}
    parallelize_module(net.bottom, over, plan)
    return net


@case
def tensor_parallel() -> dict[str, Any]:
    net = split(model(width=16), mesh())
    found = train(net, torch.compile(net), foreach=False, alike=True)
    with torch.no_grad():
        return {"out": torch.compile(net)(batch(9, rank=0)[0]), **found}


@case
def tensor_parallel_blocks() -> dict[str, Any]:
    """Sharded by rows of the batch between the layers; each block is compiled."""
    from torch.distributed.tensor import Shard

    net = split(model(width=16), mesh(), output_layouts=Shard(0))
    net.bottom.compile()
    net.top.compile()
    sizes = (BATCH, BATCH, BATCH)

    def run(x: torch.Tensor) -> torch.Tensor:
        rows = net.bottom(x)
        return net.top(rows.repeat(dist.get_world_size(), 1))

    return train(net, run, sizes=sizes, foreach=False, alike=True)


@case
def fsdp_tensor_parallel() -> dict[str, Any]:
    """Tensor parallel over pairs of ranks, FSDP2 over the pairs."""
    both = mesh(dist.get_world_size() // 2, 2)
    net = split(model(width=16), both["shard"])
    for block in net.children():
        fully_shard(block, mesh=both["replicate"])
    return train(net, torch.compile(net), foreach=False, alike=True)


@case
def asks_for_its_rank() -> dict[str, Any]:
    @torch.compile
    def run(x: torch.Tensor) -> torch.Tensor:
        return x * dist.get_world_size() + dist.get_rank()

    return {"out": run(batch(0, rank=0)[0])}


# -- refused at capture


@case
def tensor_parallel_output() -> dict[str, Any]:
    net = split(model(width=16), mesh(), use_local_output=False)
    return {"out": torch.compile(net.bottom)(batch(0)[0]).to_local()}


@case
def fsdp_compiled_optimizer() -> dict[str, Any]:
    net = shard(model())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, foreach=True)
    step = torch.compile(optimizer.step)
    x, y = batch(0)
    nn.functional.mse_loss(net(x).squeeze(-1), y).backward()
    step()
    return {"parameters": [local(p) for p in net.parameters()]}


def start() -> None:
    """Join the process group named by torchrun's variables."""
    from datetime import timedelta

    seconds = int(os.environ.get("GROUP_TIMEOUT", "60"))
    if DEVICE == "cuda":
        local, count = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(count - 1 - local if os.environ.get("RANKS_SWAP") else local)
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
