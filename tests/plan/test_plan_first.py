from __future__ import annotations

import torch


def test_inference(twin):
    t = twin(lambda x, y: (x + y).relu())
    t.compare(lambda call: call(torch.randn(3, 4), torch.randn(4)))
    assert [r["kind"] for r in t.records] == ["inference"]


def test_training(twin):
    t = twin(lambda x, w: (x @ w).sin().sum())

    def scenario(call):
        x = torch.randn(3, 4)
        w = torch.randn(4, 5, requires_grad=True)
        loss = call(x, w)
        loss.backward()
        return [loss, x, w, w.grad]

    t.compare(scenario)
    assert [r["kind"] for r in t.records] == ["training"]
