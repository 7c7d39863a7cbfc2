"""Recorded CUDA graphs on a GPU: ``python gpu_graphs.py OUT.json``.

Calls of eager torch go through ``precomp.serve.cuda_graphs``; each result is compared with that of
the call itself, bit for bit. Exit status: 0 all right, 1 something wrong, 2 no GPU.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

from precomp.serve.cuda_graphs import FIRST, Gpu, Graphed

DEVICE = "cuda:0"


def boxed(call):
    def run(args):
        inputs = list(args)
        args.clear()
        return call(*inputs)

    return run


def graphed(call, static=(), mutated=()):
    return Graphed(boxed(call), Gpu(DEVICE), static, mutated)


def chain(x, w):
    for _ in range(8):
        x = torch.relu(x @ w)
    return x, x.sum(1)


def inputs(number, size=256):
    generator = torch.Generator(DEVICE).manual_seed(number)
    return [torch.randn(size, size, device=DEVICE, generator=generator) for _ in range(2)]


def same(one, other):
    return all(map(torch.equal, one, other)) and len(one) == len(other)


def replayed_results_are_the_same():
    graph = graphed(chain, static=[1])
    weight = inputs(0)[1]
    for i in range(10):
        x = inputs(i)[0]
        out = graph([x, weight])
        assert same(out, chain(x, weight))
        del out
    assert graph.counts == {FIRST: 1, "recorded": 1, "replayed": 8}


def kept_results_stay():
    graph = graphed(chain)
    kept = [graph(inputs(i, 1024)) for i in range(8)]
    for i, out in enumerate(kept):
        assert same(out, chain(*inputs(i, 1024))), i
    return dict(graph.counts)


def results_outlive_the_graph():
    graph = graphed(chain)
    for i in range(3):
        out = graph(inputs(i))
    expected = chain(*inputs(2))
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    junk = [torch.full((256, 256), -1.0, device=DEVICE) for _ in range(64)]
    assert same(out, expected)
    del junk


def memory_is_given_back():
    def used():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    chain(*inputs(0))
    before = used()
    graph = graphed(lambda x: (x.repeat(64, 4, 1).sin().sum(),))
    for i in range(4):
        graph([inputs(i)[0]])
    during = used()
    del graph
    assert used() <= before < during
    return [before, during]


def random_numbers_are_the_same_stream():
    def draw(x):
        return torch.nn.functional.dropout(x, 0.5), torch.rand_like(x)

    graph = graphed(draw)
    x = torch.ones(1000, device=DEVICE)
    torch.manual_seed(7)
    expected = [[t.clone() for t in draw(x)] for _ in range(6)]
    after = torch.cuda.get_rng_state(DEVICE)
    torch.manual_seed(7)
    found = [[t.clone() for t in graph([x])] for _ in range(6)]
    assert all(map(same, expected, found))
    assert torch.equal(after, torch.cuda.get_rng_state(DEVICE))
    assert graph.counts["replayed"] >= 3, graph.counts


def changed_static_arguments_change_once():
    state = torch.zeros(4, device=DEVICE)
    graph = graphed(lambda s, x: (s.add_(x), s * 2)[1:], static=[0], mutated=[0])
    for i in range(6):
        (out,) = graph([state, torch.ones(4, device=DEVICE)])
        assert state.eq(i + 1).all() and out.eq(2 * i + 2).all()
        del out
    assert graph.counts["replayed"] == 4, graph.counts


def streams_wait_for_each_other():
    graph = graphed(chain)
    expected = [chain(*inputs(i, 2048)) for i in range(8)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for i in range(8):
        with torch.cuda.stream(streams[i % 2]):
            out = graph(inputs(i, 2048))
            found.append([t.clone() for t in out])
            del out
    torch.cuda.synchronize()
    assert all(map(same, expected, found))


def in_the_threads_of_autograd():
    forward = graphed(lambda x, w: (torch.relu(x @ w), x, w), static=[1])
    backward = graphed(
        lambda y, x, w, g: ((g * (y > 0)) @ w.t(), x.t() @ (g * (y > 0))), static=[0, 1, 2]
    )

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            y, *saved = forward([x, w])
            ctx.save_for_backward(y, *saved)
            return y

        @staticmethod
        def backward(ctx, g):
            return tuple(backward([*ctx.saved_tensors, g]))

    weight = inputs(0)[1].requires_grad_()
    for i in range(8):
        x = inputs(i)[0].requires_grad_()
        Layer.apply(x, weight).pow(2).sum().backward()
        found = x.grad, weight.grad
        x.grad = weight.grad = None
        torch.relu(x @ weight).pow(2).sum().backward()
        assert torch.equal(found[0], x.grad) and torch.equal(found[1], weight.grad), i
        weight.grad = found = None
    assert backward.counts["replayed"] >= 5, backward.counts
    return [dict(forward.counts), dict(backward.counts)]


def while_something_else_is_recorded():
    graph = graphed(chain)
    x, w = inputs(1)
    for _ in range(3):
        graph([x, w])
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        out = graph([x, w])
    outer.replay()
    assert same(out, chain(x, w))
    assert graph.counts["inside another CUDA graph"] == 1


def repeated_elements_are_copied():
    graph = graphed(lambda x: (x * 2,))
    for i in range(5):
        x = torch.full((64, 1), float(i), device=DEVICE).expand(64, 64)
        assert torch.equal(graph([x])[0], x * 2)
    assert graph.counts["replayed"] == 3


def two_threads_at_once():
    graph = graphed(chain)
    wrong = []

    def work(start):
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(start, start + 20):
                args = inputs(i % 5)
                found = [t.clone() for t in graph(list(args))]
                if not same(found, chain(*args)):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    return dict(graph.counts)


def attention_with_dropout():
    """A forward that was replayed, and a backward that never ran before."""
    aten = torch.ops.aten

    def forward(q, k, v):
        out = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.2)
        return (q, k, v, *out)

    def backward(q, k, v, out, lse, seed, offset, g):
        mask = (True, True, True, False)
        return aten._scaled_dot_product_efficient_attention_backward(
            g, q, k, v, None, out, lse, seed, offset, 0.2, mask
        )[:3]

    graph = graphed(forward)
    qkv = [torch.randn(2, 4, 64, 32, device=DEVICE) for _ in range(3)]
    for _ in range(3):
        del_me = graph(list(qkv))
        del del_me
    torch.manual_seed(3)
    expected = backward(*forward(*qkv), torch.ones_like(qkv[0]))
    torch.manual_seed(3)
    saved = graph(list(qkv))
    back = graphed(backward, static=range(7))
    found = back([*saved, torch.ones_like(qkv[0])])
    assert same(expected, found)
    assert back.counts["recorded"] == 1, back.counts
    return [str(t.device) for t in saved[5:7]]


def what_replays_cost():
    x, w = inputs(0, 64)
    graph = graphed(chain, static=[1])
    times = {}
    for name, call in (("direct", boxed(chain)), ("graph", graph)):
        for _ in range(20):
            call([x, w])
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            call([x, w])
        torch.cuda.synchronize()
        times[name] = round((time.perf_counter() - start) * 1e3, 2)
    return {"microseconds a call": times}


def errors_are_raised():
    """Last: what it leaves of torch's random numbers is torch's."""
    graph = graphed(lambda x: (x * float(x.sum()),))
    x = torch.ones(4, device=DEVICE)
    graph([x])
    try:
        graph([x])
    except RuntimeError as error:
        text = str(error).splitlines()[0]
    else:
        raise AssertionError("nothing was raised")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    other = graphed(lambda x: (x * 2,))
    for _ in range(4):
        assert other([x])[0].eq(2).all()
    return text


CHECKS = (
    replayed_results_are_the_same,
    kept_results_stay,
    results_outlive_the_graph,
    memory_is_given_back,
    random_numbers_are_the_same_stream,
    changed_static_arguments_change_once,
    streams_wait_for_each_other,
    in_the_threads_of_autograd,
    while_something_else_is_recorded,
    repeated_elements_are_copied,
    two_threads_at_once,
    attention_with_dropout,
    what_replays_cost,
    errors_are_raised,
)


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU")
        return 2
    found = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "checks": {}}
    wrong = []
    for check in CHECKS:
        try:
            said = check()
        except BaseException:  # noqa: BLE001 - told below
            said = traceback.format_exc()[-3000:]
            wrong.append(check.__name__)
        found["checks"][check.__name__] = "ok" if said is None else said
        print(check.__name__, "WRONG" if check.__name__ in wrong else "ok", said, flush=True)
    found["wrong"] = wrong
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(CHECKS)} checks, {len(wrong)} wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
