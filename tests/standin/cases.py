"""Ordinary things that eager programs do, run with and without the stand-in (driver.py).

Each case returns something comparable; tensors become lists.
"""

from __future__ import annotations

import copy
import inspect
import io
import os
import re
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def batch() -> torch.Tensor:
    return torch.arange(8.0).reshape(2, 4) / 8


def train(make_optimizer: Any, steps: int = 3) -> Any:
    net = model()
    optimizer = make_optimizer(net.parameters())
    losses = []
    for _ in range(steps):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(batch()).square().sum()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure))
    state = optimizer.state_dict()
    optimizer.load_state_dict(copy.deepcopy(state))
    return losses, list(net.parameters()), state


def sgd() -> Any:
    return train(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def adamw() -> Any:
    return train(lambda p: torch.optim.AdamW(p, lr=0.1))


def adam_foreach_capturable_off() -> Any:
    return train(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True, amsgrad=True))


def adagrad() -> Any:
    return train(lambda p: torch.optim.Adagrad(p, lr=0.1))


def rmsprop() -> Any:
    return train(lambda p: torch.optim.RMSprop(p, lr=0.1))


def lbfgs() -> Any:
    return train(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2))


def nadam_differentiable_off() -> Any:
    return train(lambda p: torch.optim.NAdam(p, lr=0.1))


def lr_scheduler() -> Any:
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    schedulers = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        torch.optim.lr_scheduler.LinearLR(optimizer),
    ]
    rates = []
    for _ in range(3):
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def swa() -> Any:
    net = model()
    average = torch.optim.swa_utils.AveragedModel(net)
    average.update_parameters(net)
    return list(average.parameters())


def clip_and_autograd() -> Any:
    net = model()
    net(batch()).sum().backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    grads = torch.autograd.grad(net(batch()).sum(), list(net.parameters()))
    return norm, grads


def backward_with_gradient() -> Any:
    net = model()
    net(batch()).backward(torch.ones(2, 4))
    return [p.grad for p in net.parameters()]


def checkpoint_non_reentrant() -> Any:
    from torch.utils.checkpoint import checkpoint

    net = model()
    checkpoint(net, batch(), use_reentrant=False).sum().backward()
    return [p.grad for p in net.parameters()]


def checkpoint_reentrant() -> Any:
    from torch.utils.checkpoint import checkpoint

    net, x = model(), batch().requires_grad_()
    checkpoint(net, x, use_reentrant=True).sum().backward()
    return x.grad, [p.grad for p in net.parameters()]


def checkpoint_selective() -> Any:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    ops = [torch.ops.aten.addmm.default]
    net = model()
    checkpoint(
        net,
        batch(),
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(ops),
    ).sum().backward()
    return [p.grad for p in net.parameters()]


def amp() -> Any:
    with torch.autocast("cpu"):
        out = model()(batch())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(out.sum()).backward()
    return out, scaler.get_scale()


def data_loader() -> Any:
    data = torch.utils.data.TensorDataset(batch())
    return [x for (x,) in torch.utils.data.DataLoader(data, batch_size=1, shuffle=False)]


def save_and_load() -> Any:
    buffer = io.BytesIO()
    torch.save(model().state_dict(), buffer)
    buffer.seek(0)
    net = model()
    net.load_state_dict(torch.load(buffer))
    return list(net.parameters())


def manual_seed() -> Any:
    torch.optim.SGD(model().parameters(), lr=0.1)
    torch.manual_seed(3)
    first = torch.rand(2)
    scripted = torch.jit._builtins._find_builtin(torch.manual_seed)
    return first, scripted, torch.manual_seed is torch.random.manual_seed


def func_transforms() -> Any:
    x = batch()
    return (
        torch.func.vmap(lambda t: t * 2)(x),
        torch.func.grad(lambda t: t.square().sum())(x),
        torch.func.jacrev(lambda t: t.sin())(x[0]),
        torch.func.jvp(torch.sin, (x,), (x,)),
        torch.func.functional_call(model(), dict(model().named_parameters()), (x,)),
    )


def custom_op() -> Any:
    @torch.library.custom_op("pc_standin::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, grad: grad * 2)
    x = batch().requires_grad_()
    twice(x).sum().backward()
    return x.grad


def profiler() -> Any:
    net = model()
    with torch.profiler.profile(record_shapes=True) as prof:
        out = net(batch())
    return out, sorted({event.key for event in prof.key_averages() if event.key[:5] == "aten:"})


def profiler_with_stack() -> Any:
    net = model()
    with torch.profiler.profile(with_stack=True):
        return net(batch())


def parametrize() -> Any:
    torch.manual_seed(0)
    return nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))(torch.ones(1, 2))


def deep_copy() -> Any:
    return list(copy.deepcopy(model()).parameters())


def transformer_encoder() -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()(torch.ones(1, 3, 8))


def attention_bias() -> Any:
    from torch.nn.attention.bias import causal_lower_right

    q = torch.ones(1, 1, 3, 4)
    return nn.functional.scaled_dot_product_attention(q, q, q, causal_lower_right(3, 3))


def make_fx() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx as trace

    return trace(lambda x: x.sin() + 1)(batch()).code


def symbolic_trace() -> Any:
    return torch.fx.symbolic_trace(model()).code


def import_export() -> Any:
    import torch.export

    return torch.export.Dim("batch").__name__


def export_program() -> Any:
    import torch.export

    return str(torch.export.export(model(), (batch(),)).graph).count("\n")


def jit_script() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model(), batch())(batch())


# ---------------------------------------------------------------- torch.compiler, torch._dynamo


def disable_function() -> Any:
    @torch.compiler.disable
    def plain(x: Any) -> Any:
        """Text."""
        return x + 1

    @torch.compiler.disable(reason="because")
    def why(x: Any) -> Any:
        return x + 1

    @torch.compiler.disable(recursive=False)
    def shallow(x: Any) -> Any:
        return x + 1

    @torch._dynamo.disable
    def twice(x: Any) -> Any:
        return plain(why(shallow(x)))

    seen = []
    for fn in (plain, why, shallow, twice, torch._dynamo.disable(plain)):
        attributes = {
            k: v for k, v in vars(fn).items() if k not in ("_torchdynamo_wrapper_id", "__wrapped__")
        }
        attributes["_torchdynamo_orig_callable"] = fn._torchdynamo_orig_callable.__qualname__
        seen.append((fn.__name__, fn.__doc__, fn.__code__.co_qualname, sorted(attributes.items())))
        seen.append(fn._torchdynamo_wrapper_id == id(fn))
        seen.append(torch._dynamo.is_dynamo_disable_recursive(fn))
    return twice(1), seen


def disable_class() -> Any:
    @torch._dynamo.disable
    class Plain:
        def __init__(self, x: Any) -> None:
            self.x = x

        def __call__(self) -> Any:
            return self.x + 1

    return Plain(1)(), Plain.__init__.__name__


def disable_module() -> Any:
    return torch._dynamo.disable(model())(batch())


def disable_as_context() -> Any:
    torch._dynamo.config.raise_on_ctx_manager_usage = False
    with torch._dynamo.disable():
        return model()(batch())


def marks() -> dict[str, Any]:
    """Attributes that the mark functions leave on tensors and functions."""
    d = torch._dynamo
    seen: dict[str, Any] = {}

    def note(name: str, x: Any) -> None:
        seen[name] = [(k, show(v), str(type(v))) for k, v in vars(x).items()]

    def show(value: Any) -> str:
        return str(sorted(map(repr, value))) if isinstance(value, set) else repr(value)

    x = batch()
    d.mark_dynamic(x, 0)
    note("dynamic", x)
    d.mark_dynamic(x, [0, 1], min=2, max=10, hint_override=4)
    note("more", x)
    seen["hashes"] = sorted(hash(r) for r in x._dynamo_dynamic_range if r.min)
    x = batch()
    d.mark_dynamic(x, 1, specialize_on=[len])
    note("specialize", x)
    x = batch()
    d.maybe_mark_dynamic(x, (0, 1))
    d.mark_static(x, 1)
    d.mark_static(x)
    note("static", x)
    x = batch()
    d.mark_static_address(x)
    note("address", x)
    d.mark_static_address(x, guard=True)
    note("guarded", x)
    x = batch()
    later = "shape_id" in inspect.signature(d.decorators.mark_unbacked).parameters
    d.decorators.mark_unbacked(x, 0, **({"min": 1, "shape_id": "a"} if later else {}))
    note("unbacked", x)

    class Net(nn.Module):
        pass

    d.mark_static(Net)
    seen["class"] = Net._dynamo_marked_static
    seen["constant"] = vars(d.assume_constant_result(lambda: 1))
    seen["forbid"] = vars(d.forbid_in_graph(lambda: 1))
    for bad in ((d.mark_dynamic, "x", "y"), (d.mark_static, 1), (d.mark_static_address, 1)):
        try:
            bad[0](*bad[1:])
        except (TypeError, AssertionError, AttributeError) as error:
            seen[f"{bad[0].__name__}{bad[1:]}"] = f"{type(error).__name__}: {error}"
    seen["none"] = (d.graph_break("x"), d.skip_frame(), d.step_unsupported())
    for name in ("mark_dynamic", "graph_break", "disable", "mark_static", "set_stance"):
        fn = getattr(d, name)
        seen[name] = [
            getattr(fn, part, None)
            for part in ("__module__", "__qualname__", "__doc__", "__defaults__", "__kwdefaults__")
        ]
    return seen


def mark_subclass() -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(batch(), batch())
    torch._dynamo.mark_dynamic(x, 0)
    return sorted(x.a._dynamo_dynamic_indices), sorted(x._dynamo_dynamic_indices)


def pickle_marks() -> Any:
    import pickle

    x = batch()
    torch._dynamo.mark_dynamic(x, 0)
    again = pickle.loads(pickle.dumps(x._dynamo_dynamic_range))
    return again == x._dynamo_dynamic_range, torch.serialization.get_safe_globals().__len__() > 0


def allow_in_graph() -> Any:
    def f(x: Any) -> Any:
        return x

    same = torch.compiler.allow_in_graph(f) is f
    try:
        torch.compiler.allow_in_graph(3)
    except AssertionError as error:
        return same, str(error), torch.compiler.allow_in_graph([f, f]) == [f, f]
    return None


def assume_constant() -> Any:
    def f() -> int:
        return 1

    return torch.compiler.assume_constant_result(f) is f, vars(f)


def stance_default() -> Any:
    torch.compiler.set_stance("default")
    with torch.compiler.set_stance("default"):
        out = model()(batch())

    @torch.compiler.set_stance("default")
    def f(x: Any) -> Any:
        return x + 1

    return out, f(1), f._dynamo_forbidden


def stance_force_eager() -> Any:
    with torch.compiler.set_stance("force_eager"):
        return torch.compile(lambda x: x + 1, backend="eager")(batch())


def stance_wrong() -> Any:
    try:
        torch.compiler.set_stance("default", force_backend="eager")
        torch.compiler.set_stance("eager_on_recompile", force_backend="eager")
    except RuntimeError as error:
        return str(error)
    finally:
        torch.compiler.set_stance("default")


def is_compiling() -> Any:
    return (
        torch.compiler.is_compiling(),
        torch.compiler.is_dynamo_compiling(),
        torch._dynamo.is_compiling(),
        torch._dynamo.external_utils.is_compiling(),
        torch._dynamo.is_dynamo_supported(),
        torch.compiler.is_exporting(),
    )


def dynamo_config() -> Any:
    import torch._dynamo.config as config

    torch._dynamo.config.recompile_limit = 16
    with torch._dynamo.config.patch(verbose=True):
        inside = config.verbose
    try:
        torch._dynamo.config.no_such_setting = 1
    except AttributeError as error:
        return inside, config.verbose, config.recompile_limit, str(error)


def compiler_config() -> Any:
    import torch.compiler.config as config

    config.recompile_limit = 11
    return torch._dynamo.config.recompile_limit


def inductor_config() -> Any:
    import torch._inductor.config as config

    before = config.max_autotune
    config.coordinate_descent_tuning = True
    return before, torch._inductor.config.coordinate_descent_tuning, config.triton.cudagraphs


def lazy_neighbours() -> Any:
    """Submodules that exist because the real package imports them."""
    torch.optim.SGD(model().parameters(), lr=0.1)
    return (
        torch.distributed.tensor.DTensor.__name__,
        hasattr(torch.distributed, "no_such_module"),
        torch.fx.experimental.symbolic_shapes.is_symbolic(3),
        torch.utils._device.DeviceContext.__name__,
    )


def materialize_in_modes() -> Any:
    """The real package may arrive anywhere, also where tensors are not what they seem."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), torch.device("meta"):
        torch._dynamo.reset()
        shape = torch.ones(3).shape
    return shape, torch.ones(2)


def list_backends() -> Any:
    return torch.compiler.list_backends()


def compile_reset() -> Any:
    torch._dynamo.config.recompile_limit = 3
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    return compiled(batch()), torch._dynamo.config.recompile_limit


def train_then_compile() -> Any:
    """What existed before goes on working after the real package has arrived."""
    optimizer_result = adamw()

    @torch.compiler.disable
    def plain(x: Any) -> Any:
        return x * 2

    x = batch()
    torch._dynamo.mark_dynamic(x, 0)
    early = torch._dynamo.disable
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph

    @torch.compile(backend=backend, dynamic=None)
    def f(x: Any) -> Any:
        y = x.sin()
        y = plain(y)
        return y.cos()

    out = [f(x), f(batch()[:1]), early(lambda: 3)()]
    return optimizer_result, out, len(graphs), adamw(), torch._dynamo.utils.counters["stats"]


def allow_in_graph_then_compile() -> Any:
    def g(x: Any) -> Any:
        return x + 1

    torch.compiler.allow_in_graph(g)
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append([n.target is g for n in graph.graph.nodes if n.op == "call_function"])
        return graph

    return torch.compile(lambda x: g(x).sin(), backend=backend)(batch()), graphs


# ---------------------------------------------------------------- torch.distributed


def process_group() -> None:
    import torch.distributed as dist

    torch._dynamo.disable  # noqa: B018 - somebody imported it before
    port = 20000 + os.getpid() % 20000
    store = dist.TCPStore("127.0.0.1", port, 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def ddp() -> Any:
    process_group()
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(batch()).sum().backward()
        optimizer.step()
    with net.no_sync():
        net(batch()).sum().backward()
    return list(net.parameters()), [p.grad for p in net.parameters()]


def import_fsdp() -> Any:
    from torch.distributed.fsdp import FSDPModule

    return FSDPModule.__name__


def fsdp2() -> Any:
    from torch.distributed.fsdp import fully_shard

    process_group()
    net = model()
    fully_shard(net[0])
    fully_shard(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(batch()).sum().backward()
        optimizer.step()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    return [p.to_local() for p in net.parameters()], sorted(net.state_dict())


def fsdp1() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    process_group()
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    net(batch()).sum().backward()
    return [p.grad for p in net.parameters()]


def distributed_state_dict() -> Any:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    process_group()
    net = model()
    fully_shard(net)
    return sorted(get_model_state_dict(net))


def composable_checkpoint() -> Any:
    from torch.distributed._composable import checkpoint

    net = checkpoint(model())
    net(batch()).sum().backward()
    return [p.grad for p in net.parameters()]


# ---------------------------------------------------------------- libraries


def declare_torchvision_ops() -> None:
    """torchvision's C++ operators, which a CPU build of another version may lack."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    path = os.path.join(os.path.dirname(spec.origin), "_meta_registrations.py")
    with open(path, encoding="utf-8") as file:
        found = re.findall(r"(?:torchvision::|register_meta\(\")(\w+)", file.read())
    for name in sorted(set(found)):
        try:
            torch.library.define(f"torchvision::{name}", "(Tensor x) -> Tensor")
        except RuntimeError:
            continue


def torchvision_resnet() -> Any:
    declare_torchvision_ops()
    from torchvision.models.resnet import BasicBlock, ResNet

    torch.manual_seed(0)
    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4).eval()(torch.ones(1, 3, 32, 32))


def timm_mixer() -> Any:
    declare_torchvision_ops()
    from timm.models.mlp_mixer import MlpMixer

    torch.manual_seed(0)
    net = MlpMixer(num_classes=4, img_size=32, patch_size=16, num_blocks=1, embed_dim=16)
    return net.eval()(torch.ones(1, 3, 32, 32))


def transformers_llama() -> Any:
    declare_torchvision_ops()
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        vocab_size=11,
        max_position_embeddings=16,
    )
    net = transformers.LlamaForCausalLM(config).eval()
    return net(torch.arange(6).reshape(1, 6)).logits


def transformers_bert() -> Any:
    declare_torchvision_ops()
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=11,
    )
    net = transformers.BertForSequenceClassification(config)
    net.eval()
    out = net(torch.arange(6).reshape(1, 6), labels=torch.tensor([1]))
    out.loss.backward()
    return [p.grad for p in net.parameters() if p.grad is not None][:3]


def transformers_static_cache() -> Any:
    declare_torchvision_ops()
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        vocab_size=11,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    net = transformers.LlamaForCausalLM(config).eval()
    cache = transformers.StaticCache(config=config, max_cache_len=8)
    with torch.no_grad():
        out = net(torch.arange(3).reshape(1, 3), cache=cache)
    return out.logits, sorted(
        k for k in vars(cache.layers[0].keys) if k.startswith("_dynamo")
    )


LIBRARIES = {
    "torchvision_resnet": ("torchvision", "PIL"),
    "timm_mixer": ("timm", "torchvision", "PIL"),
    "transformers_llama": ("transformers",),
    "transformers_bert": ("transformers",),
    "transformers_static_cache": ("transformers",),
}


def names() -> list[str]:
    """All cases whose libraries are installed."""
    helpers = (model, batch, train, process_group, declare_torchvision_ops, names)
    return [
        name
        for name, value in vars(sys.modules[__name__]).items()
        if getattr(value, "__module__", None) == __name__
        and value not in helpers
        and all(find_spec(library) is not None for library in LIBRARIES.get(name, ()))
    ]
