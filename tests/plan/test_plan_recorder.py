"""What the recorder sees of torch's compiler, and what it refuses by name."""

from __future__ import annotations

import gc
import hashlib
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.compile_fx import compile_fx
from torch._inductor.utils import fresh_cache

from precomp import torch_api
from precomp.errors import CompileViolation
from precomp.freeze.plan import _aligned, _module, freeze_plan, plan_reasons
from precomp.freeze.plan_recorder import PlanRecorder, _graph_reasons
from precomp.freeze.plan_source import GraphSource, PassGraph, PlanSource
from precomp.freeze.plan_split import split_program
from precomp.freeze.store import Unsupported
from precomp.serve.plan import build


def source_digest(graph: Any) -> str:
    return hashlib.sha256(graph.source_code.encode()).hexdigest()


def freeze_all(twin: Any) -> list[dict[str, Any]]:
    return [freeze_plan(s.source, source_digest) for s in twin.switches]


# -- caches ------------------------------------------------------------------


def test_cache_hits_give_the_same_records_as_compiling(twin, ignore_warnings):
    def fn(x, w):
        mid = x * w
        return mid.view(-1), mid[0], x.t(), x.shape[0]

    def step(call):
        x, w = torch.randn(3, 4), torch.randn(4, requires_grad=True)
        call(x, w)[0].sum().backward()

    records = []
    hits = []
    with fresh_cache():
        for autograd_cache in (True, True, False, False):
            counters.clear()
            with torch._functorch.config.patch(enable_autograd_cache=autograd_cache):
                t = twin(fn, dynamic=True)
                step(t)
                records.append(freeze_all(t))
                t.close()
            hits.append(
                (
                    counters["aot_autograd"]["autograd_cache_hit"] > 0,
                    counters["inductor"]["fxgraph_cache_hit"] > 0,
                )
            )
    assert hits[0] == (False, False)
    assert hits[1][0]
    assert hits[2] == (False, True)
    assert records[0]
    assert records[0] == records[1] == records[2] == records[3]


def test_backward_inside_a_compiled_function(twin, ignore_warnings, monkeypatch):
    from torch._dynamo.convert_frame import ConvertFrame

    seen = []
    original = ConvertFrame.__call__

    def call(converter, frame, *args, **kwargs):
        seen.append(frame.f_code.co_filename)
        return original(converter, frame, *args, **kwargs)

    monkeypatch.setattr(ConvertFrame, "__call__", call)

    def step(x):
        y = (x * 3).sin().sum()
        torch._dynamo.graph_break()
        y.backward()
        return x.grad * 2

    t = twin(step)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        x = torch.ones(3, requires_grad=True)
        out = t(x)
    assert torch.allclose(out, 6 * torch.cos(torch.full((3,), 3.0)))
    assert len(freeze_all(t)) == 2
    assert not [name for name in seen if name.endswith("freeze/plan_recorder.py")]
    t.ours = True
    y = torch.ones(3, requires_grad=True)
    assert torch.equal(t(y), out)


# -- lifetimes ---------------------------------------------------------------


def test_recording_keeps_no_tensor_alive(twin, ignore_warnings):
    model = nn.Linear(3, 3)
    t = twin(lambda x: model(x).sin())
    refs = []

    def step():
        x = torch.randn(2, 3) * 1
        out = t(x)
        refs.extend([weakref.ref(x), weakref.ref(out)])
        out.sum().backward()

    step()
    step()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
    assert t.switches[0].source.plans[0].bw is not None


# -- pending sources ---------------------------------------------------------


def test_claim_without_a_graph_is_refused():
    recorder = PlanRecorder()
    with pytest.raises(Unsupported, match="__compiled_fn_1: the compiled graph was not seen"):
        recorder.claim("__compiled_fn_1")
    recorder.discard_pending()


def test_failed_compilation_leaves_nothing_pending(twin, ignore_warnings):
    def fail(graph):
        raise RuntimeError("pass failed")

    t = twin(lambda x: x.sin() + 1)
    x = torch.randn(3, requires_grad=True)
    with torch._inductor.config.patch(post_grad_custom_pre_pass=fail):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="pass failed"):
            t(x)
    with pytest.raises(Unsupported, match="not seen"):
        t.recorder.claim("x")
    t(x).sum().backward()
    assert len(t.switches) == 1
    assert len(t.switches[0].source.plans) == 1
    assert freeze_all(t)[0]["kind"] == "training"


def test_discarded_graph_is_not_given_to_the_next_claim():
    recorder = PlanRecorder()
    with recorder._collecting(GraphSource("inductor", [])):
        pass
    recorder._local.finished = GraphSource("inductor", [])
    recorder.discard_pending()
    with pytest.raises(Unsupported):
        recorder.claim("name")


# -- refusals ----------------------------------------------------------------


def refused(twin: Any) -> str:
    with pytest.raises(Unsupported) as caught:
        freeze_all(twin)
    return str(caught.value)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends_are_refused_by_name(twin, backend):
    t = twin(lambda x: x.sin(), backend=backend)
    t(torch.ones(2))
    assert f"backend '{backend}' is not 'inductor'" in refused(t)


def test_custom_backend_is_refused_even_if_it_calls_inductor(twin, ignore_warnings):
    def doubling_backend(gm, inputs):
        inner = compile_fx(gm, inputs)
        return lambda *args: [x * 2 for x in inner(*args)]

    t = twin(lambda x: x.sin(), backend=doubling_backend)
    t(torch.ones(2))
    assert refused(t) == "backend 'doubling_backend' is not 'inductor'"


def test_inductor_by_other_ways_of_naming_it(twin, ignore_warnings):
    def fn(x):
        return x.sin()

    for backend in ("inductor", compile_fx):
        t = twin(fn)
        torch._dynamo.optimize(backend)(fn)(torch.ones(2))
        assert freeze_all(t)[0]["kind"] == "inference"
    t = twin(fn, mode="max-autotune-no-cudagraphs")
    t(torch.ones(2))
    assert freeze_all(t)[0]["kind"] == "inference"


def test_backward_that_never_ran_is_a_violation_when_it_is_asked_for(twin, ignore_warnings):
    t = twin(lambda x: x.sin())
    x = torch.ones(2, requires_grad=True)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        out = t(x)
    record = freeze_all(t)[0]
    assert record["bw"] is None
    plan = build(record, lambda args: (args[0].sin(), args[0]))
    (served,) = plan(x)
    assert torch.equal(served, x.sin())
    with pytest.raises(CompileViolation) as caught:
        served.sum().backward()
    assert caught.value.kind == "lower"
    assert "backward was not run while capturing" in str(caught.value)
    out.sum().backward()
    assert freeze_all(t)[0]["bw"]


def test_aliased_mutated_inputs_are_refused(twin, ignore_warnings):
    def fn(a, b):
        a.mul_(2)
        return a + b

    t = twin(fn)
    base = torch.ones(4, requires_grad=True) * 1
    t(base[:3], base[1:]).sum().backward()
    assert "inputs that alias each other and are mutated" in refused(t)


def test_duplicated_mutated_inputs_are_refused(twin, ignore_warnings):
    def fn(a, b):
        a.mul_(2)
        return (a + b,)

    t = twin(fn)
    source = GraphSource("inductor", [])
    x = torch.ones(3)
    with t.recorder._collecting(source):
        compile_fx(torch.fx.symbolic_trace(fn), [x, x])
    with pytest.raises(Unsupported, match="more than once"):
        freeze_plan(source, source_digest)


def test_tensor_subclass_is_refused(twin, ignore_warnings):
    from torch.testing._internal.two_tensor import TwoTensor

    t = twin(lambda x: x * 2)
    t(TwoTensor(torch.ones(2), torch.ones(2)))
    assert "tensor subclass inputs or outputs (TwoTensor)" in refused(t)


def test_freezing_is_refused(twin, ignore_warnings):
    model = nn.Linear(2, 2).eval()
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        t = twin(model)
        t(torch.ones(1, 2))
    assert "freezing" in refused(t)


def test_compiler_debugging_options_are_refused(twin, ignore_warnings):
    with torch._dynamo.config.patch(verify_correctness=True):
        t = twin(lambda x: x.sin())
        t(torch.ones(2))
    assert "verify_correctness" in refused(t)


def metadata(**changes: Any) -> Any:
    made: dict[str, Any] = {
        "input_info": [],
        "subclass_inp_meta": [],
        "subclass_fw_graph_out_meta": [],
        "subclass_tangent_meta": [],
        **dict.fromkeys(torch_api.tables().METADATA_REFUSED),
    }
    return SimpleNamespace(**(made | changes))


@pytest.mark.parametrize(("field", "reason"), torch_api.tables().METADATA_REFUSED.items())
def test_metadata_that_is_refused(field, reason):
    config = SimpleNamespace(keep_inference_input_mutations=True, num_params_buffers=0)
    plan = PlanSource("inference", metadata(), config)
    plan.fw = object()
    assert plan_reasons(plan, "inductor") == []
    plan.metadata = metadata(**{field: [1]})
    assert plan_reasons(plan, "inductor") == [reason]


def test_all_reasons_are_listed_at_once():
    config = SimpleNamespace(keep_inference_input_mutations=True, num_params_buffers=2)
    plan = PlanSource("training", metadata(tokens={1: 2}), config)
    plan.backward_state = True
    source = GraphSource("inductor", [])
    source.plans.append(plan)
    with pytest.raises(Unsupported) as caught:
        freeze_plan(source, source_digest)
    reasons = str(caught.value).split("; ")
    assert len(reasons) == 4
    assert "BackwardState (backward hooks in the graph)" in reasons


@pytest.mark.parametrize(
    ("graph", "kwargs", "options", "reason"),
    [
        ({}, {"cudagraphs": True}, {"triton.cudagraph_trees": False}, "cudagraph_trees is off"),
        (
            {},
            {"cudagraphs": True},
            {"triton.cudagraph_capture_sizes": (8,)},
            "cudagraph_capture_sizes is set",
        ),
        ({"frozen_param_names": {"a": "b"}}, {}, {}, "freezing"),
        ({"fx_kwargs": {"cpp_wrapper": True}}, {}, {}, "cpp_wrapper"),
        ({}, {}, {"cpp_wrapper": True}, "cpp_wrapper"),
        ({"_wrap_compiled_regions": True}, {}, {}, "wrap_inductor_compiled_regions"),
    ],
)
def test_inductor_graphs_that_are_refused(graph, kwargs, options, reason):
    made = {
        "frozen_param_names": {},
        "fx_kwargs": {},
        "_wrap_compiled_regions": False,
    }
    with torch._inductor.config.patch(**options):
        reasons = _graph_reasons(
            SimpleNamespace(**(made | graph)),
            {"cudagraphs": False} | kwargs,
            torch_api.capture(),
        )
    assert [reason in found for found in reasons] == [True]


def test_cuda_graphs_alone_are_not_refused():
    graph = SimpleNamespace(frozen_param_names={}, fx_kwargs={}, _wrap_compiled_regions=False)
    assert _graph_reasons(graph, {"cudagraphs": True}, torch_api.capture()) == []


@pytest.mark.parametrize(
    ("deferred", "expected"),
    [(False, ((0, False), (2, True))), (True, ((2, True),))],
)
def test_arguments_that_must_be_aligned(deferred, expected):
    graph = SimpleNamespace(
        inputs_to_check=[0, 2], mutated_input_idxs=[1, 2], _defers_input_alignment=deferred
    )
    assert _aligned(graph) == expected


def test_graph_without_operations_that_returns_a_constant_is_refused():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("constant", torch.ones(2))

        def forward(self, x):
            return (x, self.constant, None)

    graph = PassGraph(torch.fx.symbolic_trace(Constant()))
    with pytest.raises(Unsupported, match="tensor constant"):
        _module(graph, source_digest)
    graph = PassGraph(torch.fx.symbolic_trace(lambda x, y: (y, None, x, 3)))
    expected = (("i", 1), ("c", None), ("i", 0), ("c", 3))
    assert _module(graph, source_digest) == expected


# -- DDPOptimizer ------------------------------------------------------------


@pytest.fixture
def process_group():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, x):
        return self.second(self.first(x).relu()).sin()


def test_graph_that_ddp_splits(twin, process_group):
    torch.manual_seed(0)
    model = TwoLayers()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    t = twin(ddp)

    def scenario(call):
        model.load_state_dict(state)
        model.zero_grad()
        x = torch.randn(2, 512)
        out = call(x)
        out.sum().backward()
        return [out, [p.grad for p in model.parameters()]]

    t.compare(scenario)
    (record,) = [r for r in t.records if r["kind"] == "split"]
    assert len(record["plans"]) > 1
    assert all(part["kind"] == "training" for part in record["plans"])


def test_split_graph_that_is_not_understood_is_refused():
    graph = torch.fx.symbolic_trace(lambda x: x.sin())
    with pytest.raises(Unsupported, match="split graph: call_method sin"):
        split_program(graph)
