"""CUDA graphs on the CPU: a recording runs the call and puts everything back as if it had not; a
replay runs it again on the addresses that the recording saw."""

from __future__ import annotations

import ctypes

import torch


class Gpu:
    """Stands in for ``precomp.serve.cuda_graphs.Gpu``; its graphs know addresses alone."""

    device = torch.device("cpu")

    def __init__(self):
        self.busy = False
        self.error = None
        self.waits = self.syncs = 0

    def capturing(self):
        return self.busy

    def follow(self, stream):
        self.waits += 1
        return "stream"

    def synchronize(self):
        self.syncs += 1

    def record(self, call, args):
        inputs = [
            (x.data_ptr(), x.untyped_storage().nbytes(), x.shape, x.stride(), x.dtype)
            if isinstance(x, torch.Tensor) else x
            for x in args
        ]  # fmt: skip
        before = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
        whole = list(args)
        random = torch.get_rng_state()
        outputs = call(args)
        torch.set_rng_state(random)
        for x, was in zip(whole, before, strict=True):
            if isinstance(x, torch.Tensor) and not x.equal(was):
                x.copy_(was)
        mine = {x.untyped_storage().data_ptr() for x in whole if isinstance(x, torch.Tensor)}
        places = []
        for out in outputs:
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in mine:
                out.fill_(-9)  # nothing has run yet
                places.append((out.data_ptr(), out.shape, out.stride(), out.dtype))
            else:
                places.append(None)
        if self.error is not None:
            error, self.error = self.error, None
            raise error

        def replay():
            again = call([at(*x) if isinstance(x, tuple) else x for x in inputs])
            for place, new in zip(places, again, strict=True):
                if place is not None:
                    address, *form = place
                    at(address, 0, *form).copy_(new)

        return outputs, replay


def at(address, _nbytes, shape, stride, dtype):
    """A tensor over memory that it does not own."""
    span = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    raw = (ctypes.c_byte * (span * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype).as_strided(shape, stride)
