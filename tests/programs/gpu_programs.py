"""Programs for a GPU: those of ``programs`` that train, and models that need one.

Run by ``runner.py --programs gpu_programs`` (tools/gpu_programs.sh), with deterministic algorithms:
on a GPU cuDNN, attention and gradients of embeddings add atomically by default, in any order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import programs
import torch
from programs import Program, Run, Step, gradients, state, training
from torch import nn
from torch.nn import functional as F

torch.use_deterministic_algorithms(True)
torch.backends.cuda.enable_cudnn_sdp(False)

# PROGRAMS_DEVICE names a GPU; with PROGRAMS_SET_DEVICE it is made the current one, too.
DEVICE = os.environ.get("PROGRAMS_DEVICE", "cuda")
if os.environ.get("PROGRAMS_SET_DEVICE"):
    torch.cuda.set_device(DEVICE)
_batches = programs.batches


def batches(*shapes, n):
    for x, y in _batches(*shapes, n=n):
        yield x.to(DEVICE), y.to(DEVICE)


programs.batches = batches


def on_gpu(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: make().to(DEVICE)


class Language(nn.Module):
    """A 4-layer transformer over 8192 tokens in bfloat16 autocast.

    Dropout is inside the feed-forward part alone. With more of it torch.compile itself (2.11, on an
    H200) gives other bits from step to step from the same seeds in bfloat16; ``enc`` has it
    everywhere, in float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(8192, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, dropout=0.1)
        layer.self_attn.dropout = layer.dropout1.p = layer.dropout2.p = 0.0
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(256)
        self.head = nn.Linear(256, 8192, bias=False)

    def forward(self, tokens, targets):
        with torch.autocast("cuda", torch.bfloat16):
            x = self.norm(self.encoder(self.token(tokens)))
            return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class GPT2(nn.Module):
    """GPT-2 (124M) of transformers with random weights."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(use_cache=False)
        self.model = GPT2LMHeadModel(config)

    def forward(self, tokens, targets):
        logits = self.model(tokens).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Bottleneck(nn.Module):
    def __init__(self, inner: int, outer: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.norm3 = nn.BatchNorm2d(outer)
        self.down = None
        if stride != 1 or inner != outer:
            self.down = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet50(nn.Module):
    """He et al. 2015, table 1; the stride is in the 3x3 convolution, as in torchvision."""

    def __init__(self) -> None:
        super().__init__()
        blocks, inner = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Bottleneck(inner, 4 * width, width, stride if i == 0 else 1))
                inner = 4 * width
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(2048, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class UserKernel(nn.Module):
    """A Triton kernel of the user inside compiled code."""

    def __init__(self) -> None:
        super().__init__()
        from gpu_kernel import scale_add  # imports triton, as the user's file does

        self.scale_add = scale_add
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        x = self.linear(x)
        return torch.relu(self.scale_add(x, x, 0.5)).sum(1)


class Described(nn.Module):
    """A Triton kernel of the user that takes tensor descriptors, inside compiled code."""

    def __init__(self) -> None:
        super().__init__()
        from gpu_kernel import multiply

        self.multiply = multiply

    def forward(self, x, y):
        x, y = x.sin().bfloat16(), y.cos().bfloat16()
        return self.multiply(x, y).relu() + self.multiply(x[:, 64:], y[64:]).sum(0)


class Half(nn.Module):
    """Matrix products in bfloat16, with and without bias, batched and not."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 512, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(512, 128, dtype=torch.bfloat16)

    def forward(self, x):
        x = self.down(F.gelu(self.up(x.bfloat16())))
        x = x.view(-1, 32, 128)
        return torch.bmm(x, x.transpose(1, 2)).flatten(0, 1).float()


class Flexible(nn.Module):
    """Attention by a template of Inductor that takes a function of the user's in."""

    def forward(self, q, k, v):
        from torch.nn.attention.flex_attention import flex_attention

        def distance(score, batch, head, i, j):
            return score - (i - j).abs() * 0.1

        return flex_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), score_mod=distance).sum(1)


def many(*tensors):
    """Operations that have nothing to do with each other: kernels that can be put together."""
    sums = [x.sin().sum(-1) for x in tensors]
    return [x * 2 + 1 for x in tensors], sums, [x.softmax(-1).t() for x in tensors]


def adam(*tensors):
    """A step of Adam over lists of tensors."""
    count = len(tensors) // 2
    weights, grads = list(tensors[:count]), list(tensors[count:])
    first = torch._foreach_mul(grads, 0.1)
    second = torch._foreach_mul(torch._foreach_mul(grads, grads), 0.001)
    steps = torch._foreach_add(torch._foreach_sqrt(second), 1e-8)
    torch._foreach_add_(weights, torch._foreach_div(first, steps), alpha=-0.01)
    return weights, first, second


def reductions(x, w, b):
    y = F.layer_norm(x, (x.shape[-1],), w, b).relu() * 2 + x.sin()
    return torch.softmax(y.float(), -1).to(x.dtype), y.sum(0), y.amax(), (x @ x.t()).cos()


def long_rows(x):
    return torch.softmax(x, -1), x.square().mean(-1)


def benchmarked(build: Callable[[], Run]) -> Callable[[], Run]:
    """Where all kernels may be timed: Inductor times none of several kernels with deterministic
    algorithms."""

    def allowed() -> Run:
        torch.use_deterministic_algorithms(False)
        return build()

    return allowed


def language(make: Callable[[], nn.Module]) -> Callable[[], Run]:
    """Trains on token ids that are all different."""

    def build() -> Run:
        torch.manual_seed(0)
        model = make().to(DEVICE).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        compiled = torch.compile(model)

        def run(step: Step) -> Any:
            losses, grads = [], []
            generator = torch.Generator().manual_seed(1)
            for _ in range(5):
                tokens = torch.randperm(8192, generator=generator)[: 4 * 128].view(4, 128)
                tokens, targets = tokens.to(DEVICE), tokens.roll(1).to(DEVICE)
                with step():
                    loss = compiled(tokens, targets)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.detach().clone())
                    grads.append(gradients(model))
            with step():
                return {"losses": losses, "gradients": grads, "state": state(model)}

        return run

    return build


def with_options(**options: Any) -> Callable[[Any], Any]:
    """torch.compile with these options of Inductor; ``__`` stands for a dot."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    return lambda function: torch.compile(function, options=named)


def compiled_optimizer() -> Run:
    """Trains with compiled steps of Adam, two groups of parameters."""
    torch.manual_seed(0)
    model = programs.MLP().to(DEVICE)
    first, *rest = model.parameters()
    optimizer = torch.optim.Adam([{"params": [first], "lr": 0.1}, {"params": rest}], lr=0.01)
    update = torch.compile(optimizer.step)

    def run(step: Step) -> Any:
        for x, y in batches((8, 32), n=4):
            F.cross_entropy(model(x), y).backward()
            with step():
                update()
            optimizer.zero_grad()
        return {"state": state(model), "optimizer": optimizer.state_dict()}

    return run


def calls(
    make: Callable[[], Callable[..., Any]],
    *shapes: tuple[int, ...],
    compile: Callable[[Any], Any] = torch.compile,
) -> Callable[[], Run]:
    """Calls without gradients, in bfloat16 where it is a plain function."""

    def build() -> Run:
        torch.manual_seed(0)
        function = make()
        compiled = compile(function)
        inputs = [torch.randn(shape, device=DEVICE) for shape in shapes]

        def run(step: Step) -> Any:
            with torch.no_grad():
                results = []
                for _ in range(3):
                    with step():
                        results.append(compiled(*inputs))
                return results

        return run

    return build


class Dropped(nn.Module):
    """Random numbers in the forward, which the backward needs again."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(32, 64)
        self.b = nn.Linear(64, 10)

    def forward(self, x):
        return self.b(F.dropout(torch.relu(self.a(x)), 0.3, self.training))


def with_graphs(
    make: Callable[[], nn.Module],
    *shapes: tuple[int, ...],
    forwards: int = 1,
    mark_dynamic: bool = False,
    mode: str = "reduce-overhead",
) -> Callable[[], Run]:
    """Trains with CUDA graphs; *forwards*: batches before each backward."""

    def build() -> Run:
        torch.manual_seed(0)
        model = make().to(DEVICE).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        compiled = torch.compile(model, mode=mode)

        def run(step: Step) -> Any:
            results = []
            data = list(batches(*shapes, n=10 * forwards))
            for i in range(10):
                with step():
                    torch.compiler.cudagraph_mark_step_begin()
                    total = torch.zeros((), device=DEVICE)
                    for x, y in data[i * forwards : (i + 1) * forwards]:
                        if mark_dynamic:
                            torch._dynamo.mark_dynamic(x, 0)
                        total = total + F.cross_entropy(compiled(x), y)
                        results.append([total.detach().clone(), torch.cuda.get_rng_state(DEVICE)])
                    optimizer.zero_grad()
                    total.backward()
                    results.append(gradients(model))
                    optimizer.step()
            with step():
                return [results, state(model), torch.cuda.get_rng_state(DEVICE)]

        return run

    return build


def calls_with_graphs(
    make: Callable[[], Callable[..., Any]],
    *shapes: tuple[int, ...],
    mode: str = "reduce-overhead",
    keep: bool = False,
) -> Callable[[], Run]:
    """Calls without gradients; with *keep* the results of one call are alive during the next."""

    def build() -> Run:
        torch.manual_seed(0)
        compiled = torch.compile(make(), mode=mode)
        inputs = [torch.randn(shape, device=DEVICE) for shape in shapes]

        def run(step: Step) -> Any:
            results = []
            out = None
            with torch.no_grad():
                for i in range(10):
                    with step():
                        first = inputs[0] + i
                        if not keep:
                            del out
                        out = compiled(first, *inputs[1:])
                        found = out if isinstance(out, tuple) else (out,)
                        results.append([t.clone() for t in (*found, first)])
            return [results, torch.cuda.get_rng_state(DEVICE)]

        return run

    return build


def large(x, w):
    y = torch.relu(x @ w)
    return y, F.dropout(y, 0.5), y.sum(1), torch.rand_like(y)


def parts(x, w):
    """On the GPU, on the CPU, on the GPU again."""
    y = torch.relu(x @ w)
    z = (y.sum(0).cpu() * 2 + 1).to(x.device)
    return y * z, (y + z).softmax(1)


def changes(x, w):
    x.add_(1)
    return torch.relu(x @ w)


# Programs with CUDA graphs -> how often they are replayed at least in the served process.
GRAPHS = {
    "graphs_train": 12,
    "graphs_mlp": 12,
    "graphs_bn": 12,
    "graphs_break": 30,
    "graphs_dynamic": 8,
    "graphs_accumulate": 12,
    "graphs_tuned": 6,
    "graphs_infer": 6,
    "graphs_kept": 6,
    "graphs_parts": 12,
    "graphs_changes": 0,
}
# How Inductor tunes, chooses and shapes kernels.
TEMPLATES = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
MIXED = ((333, 1024), (64, 2048), (5, 77), (1000, 16))
PAIRED = ((64, 64), (7,), (3, 129), (64, 64), (7,), (3, 129))
TUNED = {
    "max_autotune": training(
        on_gpu(Half), (512, 256),
        compile=lambda model: torch.compile(model, mode="max-autotune-no-cudagraphs"),
    ),
    "templates": training(on_gpu(Half), (512, 256), compile=with_options(**TEMPLATES)),
    "templates_dynamic": training(
        on_gpu(Half), (512, 256), mark_dynamic=True, compile=with_options(**TEMPLATES)
    ),
    "templates_tma": calls(
        on_gpu(Half), (512, 256),
        compile=with_options(**TEMPLATES, triton__enable_persistent_tma_matmul=True),
    ),
    "flex_attention": calls(on_gpu(Flexible), *[(2, 4, 256, 64)] * 3),
    "combo_kernels": calls(lambda: many, *MIXED, compile=with_options(combo_kernels=True)),
    "foreach": calls(lambda: adam, *PAIRED),
    "foreach_combo": calls(lambda: adam, *PAIRED, compile=with_options(combo_kernels=True)),
    "coordinate_descent": training(
        on_gpu(programs.MLP), (8, 32), compile=with_options(coordinate_descent_tuning=True)
    ),
    "max_pointwise": calls(
        lambda: many, *MIXED, compile=with_options(max_autotune_pointwise=True)
    ),
    "multi_kernel": benchmarked(calls(
        lambda: reductions, (333, 1024), (1024,), (1024,),
        compile=with_options(triton__multi_kernel=1),
    )),
    "looped": calls(
        lambda: reductions, (333, 1024), (1024,), (1024,),
        compile=with_options(triton__persistent_reductions=False),
    ),
    "cooperative": calls(
        lambda: long_rows, (4, 65536),
        compile=with_options(triton__force_cooperative_reductions=True),
    ),
}  # fmt: skip
# Programs of the CPU that train, by the names they have there.
TRAINING = {
    "mlp": (programs.MLP, (8, 32)),
    "enc": (programs.Encoder, (4, 16, 64)),
    "bn": (programs.ConvNorm, (4, 3, 8, 8)),
    "ck": (programs.Checkpointed, (8, 32)),
    "brk": (programs.GraphBreaks, (8, 32)),
}
PROGRAMS: dict[str, Program] = {
    **{name: Program(build) for name, build in TUNED.items()},
    **{name: Program(training(on_gpu(make), shape)) for name, (make, shape) in TRAINING.items()},
    "dyn": Program(training(on_gpu(programs.MLP), (8, 32), mark_dynamic=True)),
    "language": Program(language(Language)),
    "gpt2": Program(language(GPT2)),
    "resnet50": Program(training(on_gpu(ResNet50), (4, 3, 64, 64))),
    "reductions": Program(calls(lambda: reductions, (333, 1024), (1024,), (1024,))),
    "user_kernel": Program(calls(on_gpu(UserKernel), (300, 64))),
    "descriptors": Program(calls(on_gpu(Described), (200, 128), (128, 192))),
    "graphs_train": Program(with_graphs(programs.Encoder, (4, 16, 64))),
    "graphs_mlp": Program(with_graphs(Dropped, (8, 32))),
    "graphs_bn": Program(with_graphs(programs.ConvNorm, (4, 3, 8, 8))),
    "graphs_break": Program(with_graphs(programs.GraphBreaks, (8, 32))),
    "graphs_dynamic": Program(with_graphs(Dropped, (8, 32), (12, 32), mark_dynamic=True)),
    "graphs_accumulate": Program(with_graphs(Dropped, (8, 32), forwards=2)),
    "graphs_tuned": Program(
        calls_with_graphs(lambda: large, (256, 128), (128, 512), mode="max-autotune")
    ),
    "graphs_infer": Program(calls_with_graphs(lambda: large, (1024, 512), (512, 2048))),
    "graphs_kept": Program(calls_with_graphs(lambda: large, (1024, 512), (512, 2048), keep=True)),
    "graphs_parts": Program(calls_with_graphs(lambda: parts, (256, 64), (64, 512))),
    "graphs_changes": Program(calls_with_graphs(lambda: changes, (64, 64), (64, 64))),
}
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):  # refused before
    PROGRAMS["compiled_optimizer"] = Program(compiled_optimizer)
