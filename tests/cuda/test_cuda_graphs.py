"""What is recorded as a CUDA graph, when it is replayed, and what it gives.

A stand-in for the GPU records on the CPU (tests/support/cpu_graphs.py).
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cpu_graphs import Gpu
from processes import Place

from precomp import torch_api
from precomp.freeze import cuda_graphs as freezing
from precomp.report import Coverage, PrepareReport
from precomp.serve import cuda_graphs
from precomp.serve.cuda_graphs import FEW, FIRST, KEPT_AT_ONCE, RECORDED, SIZES, Graphed, used
from precomp.serve.entries import Loaded, graphs_enabled

BIG = cuda_graphs.COPIED_OUT // 4 + 1  # floats of an output that is not copied out


def make(call, static=(), mutated=()):
    def boxed(args):
        inputs = list(args)
        args.clear()
        return call(*inputs)

    gpu = Gpu()
    return Graphed(boxed, gpu, static, mutated), gpu


def double(x):
    return (x * 2,)


def big(number=1.0):
    return torch.full((BIG,), float(number))


def test_the_first_call_runs_the_second_is_recorded_and_later_ones_are_replayed():
    graph, _ = make(double)
    for i in range(6):
        x = torch.arange(4.0) + i
        args = [x]
        (y,) = graph(args)
        assert args == [] and y.equal(x * 2) and not y._is_view()
        del y
    assert graph.counts == {FIRST: 1, "recorded": 1, "replayed": 4}


def test_outputs_have_their_own_version_counter_and_can_be_reshaped():
    graph, _ = make(double)
    for _ in range(4):
        (y,) = graph([torch.ones(4)])
        assert y._version == 0
        y.add_(1).unsqueeze_(0)
        assert y._version == 2
        del y
    assert graph.counts["replayed"] == 2


def test_what_is_kept_is_never_overwritten():
    graph, _ = make(double)
    kept = [graph([big(i)])[0] for i in range(12)]
    assert all(y.equal(big(2 * i)) for i, y in enumerate(kept))
    assert graph.counts["recorded"] == KEPT_AT_ONCE
    assert graph.counts["all outputs were in use"] == 11 - KEPT_AT_ONCE
    del kept[4:]
    before = graph.counts["replayed"]
    (y,) = graph([big(7.0)])
    assert y.equal(big(14.0)) and graph.counts["replayed"] == before + 1
    assert kept[3].equal(big(6.0))


def test_two_outputs_in_use_in_turn_need_two_recordings():
    graph, _ = make(double)
    y = None
    for i in range(10):
        (y,) = graph([big(i)])  # the one before is alive during the call
        assert y.equal(big(2 * i))
    assert graph.counts == {FIRST: 1, "recorded": 2, "replayed": 7}


def test_a_small_output_that_stays_in_use_is_copied_out_and_needs_no_other_recording():
    graph, _ = make(lambda x: (x.sum(), x * 2))
    kept = []
    for i in range(8):
        total, large = graph([big(i)])
        kept.append(total)
        assert large.equal(big(2 * i))
        del total, large
    assert [float(t) for t in kept] == [float(big(i).sum()) for i in range(8)]
    # That of the first recording stays in use: it is given up for one that copies it out.
    assert graph.counts == {
        FIRST: 1, "recorded": 2, "replayed": 4, "output () was in use, copied from now on": 1
    }  # fmt: skip
    loss = None
    graph, _ = make(lambda x: (x.sum(), x * 2))
    for i in range(8):
        loss, large = graph([big(i)])  # the one before is in use during the call
        del large
    assert graph.counts["recorded"] == 1 and graph.counts["replayed"] == 5


def test_many_outputs_in_use_are_not_copied_out():
    graph, _ = make(lambda x: tuple(x + k for k in range(FEW + 1)))
    y = None
    for i in range(8):
        y = graph([torch.ones(2) * i])
        assert [float(t[0]) for t in y] == [float(i + k) for k in range(FEW + 1)]
    assert graph.counts == {FIRST: 1, "recorded": 2, "replayed": 5}


def test_a_storage_or_a_view_keeps_an_output_in_use():
    graph, _ = make(double)
    for keep in (lambda y: y.untyped_storage(), lambda y: y[1:], lambda y: y.detach()):
        for _ in range(3):
            graph([big()])
        before = graph.counts["replayed"]
        held = keep(graph([big(3.0)])[0])
        assert graph.counts["replayed"] == before + 1
        graph([big(5.0)])
        values = torch.empty(0).set_(held) if isinstance(held, torch.UntypedStorage) else held
        assert values.eq(6.0).all()
        del held, values
        gc.collect()


def test_a_static_argument_is_read_where_it_is():
    weight = torch.ones(4)
    graph, _ = make(lambda w, x: (w * x,), static=[0])
    for i in range(5):
        weight.fill_(i)
        (y,) = graph([weight, torch.full((4,), 2.0)])
        assert y.eq(2.0 * i).all()
        del y
    assert graph.counts == {FIRST: 1, "recorded": 1, "replayed": 3}


def test_a_static_argument_that_moves_is_recorded_again_and_the_old_place_is_still_known():
    one, two = torch.ones(4), torch.full((4,), 2.0)
    graph, _ = make(lambda w: (w + 1,), static=[0])
    for weight in (one, one, one, two, two, two, one, two):
        (y,) = graph([weight])
        assert y.equal(weight + 1)
        del y
    assert graph.counts == {
        FIRST: 1, "recorded": 2, "replayed": 4, "a static argument has moved": 1
    }  # fmt: skip


def test_a_static_argument_that_always_moves_is_copied():
    graph, _ = make(lambda w: (w + 1,), static=[0])
    kept = []
    for i in range(8):
        kept.append(torch.full((4,), float(i)))
        (y,) = graph([kept[-1]])
        assert y.eq(i + 1.0).all()
        del y
    assert graph.counts["recorded"] == 1 and graph.counts["replayed"] == 4


def test_recordings_are_bounded_when_addresses_never_repeat(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOVES", 1 << 30)
    graph, gpu = make(lambda w: (w + 1,), static=[0])
    kept = [torch.full((4,), float(i)) for i in range(2 * RECORDED)]
    for weight in kept:
        for _ in range(3):
            (y,) = graph([weight])
            assert y.equal(weight + 1)
            del y
    assert graph.counts["recorded"] == RECORDED
    assert gpu.syncs == RECORDED - KEPT_AT_ONCE


def test_a_changed_static_argument_changes_once_per_call():
    state = torch.zeros(2)
    graph, _ = make(lambda s, x: (s.add_(1) * x,), static=[0], mutated=[0])
    for i in range(5):
        (y,) = graph([state, torch.ones(2)])
        assert state.eq(i + 1.0).all() and y.eq(i + 1.0).all()
        del y
    assert graph.counts == {FIRST: 1, "recorded": 1, "replayed": 3}


def test_a_changed_argument_that_is_not_static_is_changed_itself():
    graph, _ = make(lambda x: (x.add_(1).sum(),), mutated=[0])
    for i in range(4):
        x = torch.full((2,), float(i))
        graph([x])
        assert x.eq(i + 1.0).all()
    assert graph.counts == {FIRST: 1, "an argument that it changes is not static": 3}


def test_the_output_of_one_graph_is_read_by_the_next_where_it_is():
    first, _ = make(double)
    second, _ = make(lambda x: (x + 1,))
    for i in range(6):
        (x,) = first([torch.full((4,), float(i))])
        (y,) = second([x])
        assert y.eq(2.0 * i + 1).all()
        del x, y
    assert second.counts == {FIRST: 1, "recorded": 1, "replayed": 4}
    ((recording,),) = [sizes.recordings for sizes in second._sizes.values()]
    assert recording.copied == {}


def test_a_pair_that_alternates_is_followed_by_the_next_graph():
    first, _ = make(double)
    second, _ = make(lambda x: (x + 1,))
    x = None
    for i in range(10):
        (x,) = first([big(i)])
        (y,) = second([x])
        assert y.equal(big(2 * i + 1))
        del y
    assert first.counts["recorded"] == second.counts["recorded"] == 2
    assert second.counts["replayed"] == 7


def test_a_changed_output_of_a_graph_is_changed_itself():
    first, _ = make(double)
    second, _ = make(lambda x: (x.add_(1).sum(),), mutated=[0])
    for i in range(6):
        (x,) = first([torch.full((4,), float(i))])
        second([x])
        assert x.eq(2.0 * i + 1).all()
        del x
    assert second.counts["replayed"] == 4


def test_each_size_has_its_own_recording_up_to_a_limit():
    graph, _ = make(lambda n, x: (x[:n] * 2, n))
    for _ in range(3):
        for n in range(1, SIZES + 3):
            y, m = graph([n, torch.arange(30.0)])
            assert y.equal(torch.arange(30.0)[:n] * 2) and m == n
            del y
    assert graph.counts[FIRST] == graph.counts["recorded"] == graph.counts["replayed"] == SIZES
    assert graph.counts[f"more than {SIZES} different sizes"] == 6


def test_inference_mode_has_recordings_of_its_own():
    graph, _ = make(double)
    for _ in range(3):
        for mode in (False, True):
            with torch.inference_mode(mode):
                (y,) = graph([torch.ones(2)])
            assert y.is_inference() == mode
            del y
    assert graph.counts == {FIRST: 2, "recorded": 2, "replayed": 2}


def test_arguments_returned_as_they_are_stay_the_same_objects():
    weight = torch.arange(6.0).view(2, 3)
    graph, _ = make(lambda w, x: (w, w.t(), x, x, w.sum() + x, None, 3), static=[0])
    for i in range(4):
        x = torch.full((), float(i))
        a, b, c, d, e, none, three = graph([weight, x])
        assert a is weight and b.data_ptr() == weight.data_ptr() and b.equal(weight.t())
        assert c is d and c == i and e == 15 + i and none is None and three == 3
        del a, b, c, d, e
    assert graph.counts["replayed"] == 2


def test_a_copied_argument_that_is_returned_keeps_the_recording_in_use():
    graph, _ = make(lambda x: (x,))
    graph([big(1.0)])
    first = graph([big(2.0)])[0]
    second = graph([big(3.0)])[0]
    third = graph([big(4.0)])[0]
    assert [t[0].item() for t in (first, second, third)] == [2.0, 3.0, 4.0]
    assert graph.counts["recorded"] == 3


def test_two_outputs_that_share_memory_share_it_again():
    def call(x):
        y = x * 2
        return y, y[1:]

    graph, _ = make(call)
    for i in range(4):
        y, z = graph([torch.arange(4.0) + i])
        y[1] = 100.0
        assert z[0] == 100.0 and z.storage_offset() == 1 and z[1] == 2.0 * (i + 2)
        del y, z
    assert graph.counts["replayed"] == 2


def test_arguments_with_repeated_elements_are_copied_and_others_that_overlap_are_not():
    graph, _ = make(lambda x: (x * 2,))
    for i in range(4):
        x = torch.full((3, 1), float(i)).expand(3, 4)
        (y,) = graph([x])
        assert y.equal(x * 2)
        del y
    assert graph.counts["replayed"] == 2
    graph, _ = make(lambda x: (x * 2,))
    for _ in range(3):
        x = torch.arange(6.0).as_strided((3, 3), (1, 1))
        assert graph([x])[0].equal(x * 2)
    assert graph.counts == {FIRST: 1, "elements of an argument overlap": 2}


def test_an_argument_on_another_device_runs_directly():
    graph, gpu = make(lambda x: (x,))
    gpu.device = torch.device("meta")
    for _ in range(3):
        graph([torch.ones(2)])
    assert graph.counts == {FIRST: 1, "an argument is on cpu": 2}


def test_an_argument_of_another_type_runs_directly():
    graph, _ = make(lambda scale, x: (x * scale,))
    for _ in range(3):
        assert graph([0.5, torch.ones(2)])[0].eq(0.5).all()
    assert graph.counts == {"an argument is neither a tensor nor an integer": 3}
    graph, _ = make(lambda scales, x: (x * scales[0],))
    for _ in range(3):
        assert graph([[0.5], torch.ones(2)])[0].eq(0.5).all()


def test_an_integer_that_torch_calls_static_is_a_size():
    graph, _ = make(lambda n, x: (x * n,), static=[0, 1])
    x = torch.ones(2)
    for n in (2, 3) * 3:
        assert graph([n, x])[0].eq(float(n)).all()
    assert graph.counts == {FIRST: 2, "recorded": 2, "replayed": 2}


def test_inside_another_recording_it_runs_directly():
    graph, gpu = make(double)
    for _ in range(3):
        graph([torch.ones(2)])
    gpu.busy = True
    assert graph([torch.ones(2)])[0].eq(2.0).all()
    assert graph.counts["inside another CUDA graph"] == 1


def test_an_error_while_recording_is_raised_and_leaves_everything_usable():
    graph, gpu = make(double)
    graph([torch.ones(2)])
    gpu.error = RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(RuntimeError, match="not permitted"):
        graph([torch.ones(2)])
    for i in range(3):
        assert graph([torch.full((2,), float(i))])[0].eq(2.0 * i).all()
    assert graph.counts == {FIRST: 1, "recorded": 1, "replayed": 2}


def test_an_error_of_the_call_is_raised():
    graph, _ = make(lambda x: (x.view(3),))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="shape"):
            graph([torch.ones(2)])


def test_an_output_that_a_graph_cannot_give_is_an_error():
    graph, _ = make(lambda x: (x.tolist(),))
    graph([torch.ones(2)])
    with pytest.raises(TypeError, match="an output is a list"):
        graph([torch.ones(2)])


def test_another_thread_does_not_wait():
    inside, go = threading.Event(), threading.Event()

    def call(x):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go.wait(20)
        return (x * 2,)

    graph, _ = make(call)
    results = []
    thread = threading.Thread(target=lambda: results.append(graph([torch.ones(2)])[0]))
    thread.start()
    assert inside.wait(20)
    assert graph([torch.full((2,), 3.0)])[0].eq(6.0).all()
    go.set()
    thread.join()
    assert results[0].eq(2.0).all()
    assert graph.counts == {FIRST: 1, "while another thread was in it": 1}


def test_a_random_state_that_a_graph_left_is_read_by_a_recording_alone():
    """The backward of attention reads it on the GPU only while it is recorded."""
    recorded = []
    forward, _ = make(lambda x: (x * 2, torch.tensor(7)))
    x = seed = None
    backward, gpu = make(lambda x, seed: (x + seed,), static=[0, 1])
    plain = gpu.record
    gpu.record = lambda call, args: recorded.append(1) or plain(call, args)
    for _ in range(3):
        x, seed = forward([torch.ones(2)])
        del x
    (y,) = backward([torch.ones(2), seed])  # its first call, and it is recorded nevertheless
    assert y.eq(8.0).all() and recorded == [1]
    assert backward.counts == {FIRST: 1, "recorded": 1}


def test_outputs_outlive_the_graph():
    graph, _ = make(double)
    for _ in range(3):
        (y,) = graph([big(4.0)])
    del graph
    gc.collect()
    assert y.equal(big(8.0))
    assert not cuda_graphs._owners or y.untyped_storage()._cdata not in cuda_graphs._owners


def test_gradients_flow_through_a_pair_of_graphs():
    """As in a training step: what the forward saves is in use until the backward ran."""
    weight = torch.ones(4, requires_grad=True)
    forward, _ = make(lambda w, x: ((w * x).sum(), w, x), static=[0])
    backward, _ = make(lambda w, x, g: (g * x, g * w), static=[0, 1])

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w, x):
            out, *saved = forward([w.detach(), x])
            ctx.save_for_backward(*saved)
            return out

        @staticmethod
        def backward(ctx, g):
            return tuple(backward([*ctx.saved_tensors, g]))

    total = torch.zeros(4)
    for i in range(8):
        inputs = [torch.full((4,), float(i + k)) for k in range(2)]
        losses = [Step.apply(weight, x) for x in inputs]  # two forwards before the backwards
        assert [float(loss.detach()) for loss in losses] == [float(x.sum()) for x in inputs]
        for loss, x in zip(losses, inputs, strict=True):
            loss.backward()
            total += x
        assert weight.grad.equal(total)
        del losses, loss
    assert forward.counts["replayed"] + forward.counts["recorded"] >= 8
    assert backward.counts["replayed"] >= 4


def test_counts_are_told_together():
    one, two = make(double)[0], make(double)[0]
    one.counts = Counter(recorded=1, replayed=3)
    two.counts = Counter({"recorded": 1, FIRST: 2})
    assert used([one, two]) == {"recorded": 2, "replayed": 3, FIRST: 2}
    assert used([]) is None


def test_a_variable_turns_graphs_off(monkeypatch):
    assert graphs_enabled()
    monkeypatch.setenv("PRECOMP_CUDA_GRAPHS", "0")
    assert not graphs_enabled() and Loaded({}, {}).graphs is None
    monkeypatch.delenv("PRECOMP_CUDA_GRAPHS")
    assert Loaded({}, {}).graphs == []


def test_the_report_tells_what_was_replayed_and_what_was_not():
    def text(counts):
        coverage = Coverage((), (), ())
        report = PrepareReport("p", "d", "f", "auto", 0, 0, {}, coverage, None, (), counts)
        return [line for line in str(report).splitlines() if "CUDA" in line]

    assert text(None) == []
    assert text({}) == ["CUDA graphs: 0 recorded, 0 replayed"]
    assert text({"recorded": 1, FIRST: 2, "replayed": 9, "x": 1}) == [
        "CUDA graphs: 1 recorded, 9 replayed; run without: 2 before it was recorded, 1 x"
    ]


MARKS = """
import sys, torch
from precomp.serve import compile as surface, standin
own = torch.compiler.cudagraph_mark_step_begin.__code__
standin.install()
surface.install()
torch.compiler.cudagraph_mark_step_begin()
loaded = [m for m in sys.modules if m.startswith("torch._inductor") or m == "torch._dynamo"]
from torch._inductor import cudagraph_trees
torch.compiler.cudagraph_mark_step_begin()
counted = cudagraph_trees.MarkStepBox.mark_step_counter
surface.uninstall()
done(loaded=loaded, counted=counted, back=torch.compiler.cudagraph_mark_step_begin.__code__ is own)
"""


def test_marking_a_step_imports_no_compiler_and_reaches_graphs_of_torch_if_there_are_any(tmp_path):
    facts = Place(tmp_path).script(MARKS).facts
    assert facts == {"loaded": [], "counted": -1, "back": True}


# ------------------------------------------------------------------ what is recorded at capture


@pytest.fixture(scope="module")
def found(tmp_path_factory, driver):
    pytest.importorskip("triton")
    script = Path(__file__).with_name("graphed.py")
    folder = tmp_path_factory.mktemp("graphed")
    return Place(folder / "place").run(script, driver, folder).facts


@pytest.mark.parametrize(
    ("case", "graphs"),
    [
        # Partition 0 has x, w, b; partition 1 an intermediate, b and another intermediate.
        ("partitions", [[0, "cuda:0", [1, 2], [2]], [1, "cuda:0", [1], [1]]]),
        ("nothing static", [[0, "cuda:0", [], []], [1, "cuda:0", [], []]]),
        ("a backward with", [[0, "cuda:0", [1, 2], [2]], [1, "cuda:0", [1], [1]]]),
        ("against it", []),
        ("a backward without", []),
        ("whole", [[None, "cuda:0", [1, 2], [2]]]),
    ],
)
def test_what_torch_wraps_is_recorded_with_its_static_and_changed_arguments(found, case, graphs):
    assert found["graphs"][case] == graphs


@pytest.mark.parametrize("case", ["wrapped before", "whole wrapped before"])
def test_graphs_that_torch_wrapped_before_the_capture_are_refused(found, case):
    assert "CUDA graphs made before the capture" in found["graphs"][case]


def test_a_part_without_kernels_is_noted_as_such(monkeypatch):
    """Of which torch 2.14 makes no graph."""
    compile_fx = SimpleNamespace(cudagraphify=lambda model, *_, **__: lambda args: model(args))
    monkeypatch.setattr(torch_api, "capture", lambda: SimpleNamespace(compile_fx_module=compile_fx))
    freezing.watch(setattr)
    options = {"device_index": 0, "mutated_input_idxs": {3}}
    plain = compile_fx.cudagraphify(len, (2, 1), **options)
    empty = compile_fx.cudagraphify(len, kernel_free_cudagraph=True, **options)
    assert freezing.unwrapped(plain) == (len, 0, (1, 2), (3,), False)
    assert freezing.unwrapped(empty) == (len, 0, (), (3,), True)
    assert freezing.unwrapped(len) is None and freezing.unwrapped([]) is None


@pytest.mark.parametrize("case", ["partitions", "whole"])
def test_a_module_is_loaded_with_graphs_on_its_gpu_or_without_any(found, case):
    seen = found[case]
    count = 2 if case == "partitions" else 1
    assert seen["devices"] == ["cuda:5"] * count
    assert seen["in their places"] and seen["compiled again"] == [True] * count
    assert set(seen["without"]) <= {"function", "method"}
