"""Guards on tensor subclasses, opaque objects and distributed tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch
from program_base import Program, attribute, program, x
from torch._opaque_base import OpaqueBase


def alone(t):
    return t * 2


# ------------------------------------------------------------------ tensor subclasses


class Pair(torch.Tensor):
    """Two tensors in one; *note* is metadata."""

    @staticmethod
    def __new__(cls, a, b, note):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, dtype=a.dtype, device=a.device, strides=a.stride()
        )

    def __init__(self, a, b, note):
        self.a, self.b, self.note = a, b, note

    def __tensor_flatten__(self):
        return ["a", "b"], {"note": self.note, "rows": self.a.shape[0]}

    @classmethod
    def __tensor_unflatten__(cls, inner, metadata, size, stride):
        return cls(inner["a"], inner["b"], metadata["note"])

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        def half(name: str) -> Any:
            return [getattr(arg, name) if isinstance(arg, Pair) else arg for arg in args]

        results = function(*half("a"), **(kwargs or {})), function(*half("b"), **(kwargs or {}))
        return cls(*results, "made")


class LoosePair(Pair):
    """Compares the first letter of its note only."""

    @classmethod
    def __metadata_guard__(cls, before, now):
        return before["note"][:1] == now["note"][:1]


def pair(note: Any = "note", rows: int = 3, kind: type = Pair, dtype: Any = torch.float32) -> Any:
    return (kind(x(rows, 2), x(rows, 2, dtype=dtype), note),)


@program
def subclass_metadata() -> Program:
    return Program(
        alone,
        pair(),
        {
            "equal": pair,
            "note": lambda: pair("other"),
            "note_type": lambda: pair(("note",)),
            "rows": lambda: pair(rows=4),
            "inner_dtype": lambda: pair(dtype=torch.float64),
            "other_class": lambda: pair(kind=LoosePair),
            "plain": lambda: (x(3, 2),),
        },
    )


@program
def symbolic_metadata() -> Program:
    return Program(
        alone,
        pair(rows=4),
        {
            "rows": lambda: pair(rows=5),
            "note": lambda: pair("other", rows=4),
            "plain": lambda: (x(4, 2),),
        },
        dynamic=True,
    )


@program
def own_metadata_guard() -> Program:
    return Program(
        alone,
        pair(kind=LoosePair),
        {
            "same_letter": lambda: pair("nothing", kind=LoosePair),
            "other_letter": lambda: pair("other", kind=LoosePair),
            "other_class": pair,
        },
    )


def nested(*rows: int) -> Any:
    return (torch.nested.nested_tensor([x(n, 3) for n in rows], layout=torch.jagged),)


@program
def jagged_dynamic() -> Program:
    """Its shape guards import modules of torch when they run."""
    return Program(
        alone,
        nested(2, 3),
        {
            "other_lengths": lambda: nested(4, 2),
            "more": lambda: nested(4, 2, 3),
            "plain": lambda: (x(2, 3),),
        },
        dynamic=True,
        loads_compiler=True,
    )


@program
def jagged() -> Program:
    return Program(
        alone,
        nested(2, 3),
        {
            "other_lengths": lambda: nested(4, 2),
            "more": lambda: nested(4, 2, 3),
            "plain": lambda: (x(2, 3),),
        },
        loads_compiler=True,
    )


# ------------------------------------------------------------------ opaque objects


class Handle(OpaqueBase):
    """An opaque object; its level is guarded."""

    def __init__(self, level: int) -> None:
        self.level = level


class BareHandle(OpaqueBase):
    """An opaque object of which only the type is guarded."""


def level_of(handle):
    return [handle.level]


def two_levels_of(handle):
    return [handle.level, 0]


def register_handles() -> None:
    from torch._library import opaque_object

    opaque_object.register_opaque_type(Handle, typ="reference", guard_fn=level_of)
    opaque_object.register_opaque_type(BareHandle, typ="reference")


register_handles()


def with_handle(t, handle):
    return t * 2 if isinstance(handle, Handle) else t


def other_guard() -> Any:
    from torch._library.opaque_object import get_opaque_obj_info

    return attribute(get_opaque_obj_info(Handle), "guard_fn", two_levels_of)


@program
def opaque_object() -> Program:
    handle = Handle(3)
    return Program(
        with_handle,
        (x(3), handle),
        {
            "equal": lambda: (x(3), Handle(3)),
            "level": lambda: (x(3), Handle(4)),
            "level_in_place": lambda: attribute(handle, "level", 5),
            "other_class": lambda: (x(3), BareHandle()),
            "other_guard": other_guard,
        },
    )


def with_bare_handle(t, handle):
    return t * 2 if isinstance(handle, BareHandle) else t


@program
def bare_opaque_object() -> Program:
    return Program(
        with_bare_handle,
        (x(3), BareHandle()),
        {"equal": lambda: (x(3), BareHandle()), "other_class": lambda: (x(3), Handle(3))},
    )


# ------------------------------------------------------------------ DTensor


@functools.cache
def mesh(*names: str) -> Any:
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    shape = torch.zeros((1,) * len(names), dtype=torch.int64)
    return DeviceMesh("cpu", shape, mesh_dim_names=names)


def sharded(*placements: str, names: tuple[str, ...] = ("rows",), dtype: Any = None) -> Any:
    from torch.distributed import tensor as distributed

    kinds = {
        "S0": distributed.Shard(0),
        "S1": distributed.Shard(1),
        "R": distributed.Replicate(),
        "P": distributed.Partial("sum"),
    }
    return (
        distributed.DTensor.from_local(
            x(4, 4, dtype=dtype), mesh(*names), [kinds[name] for name in placements]
        ),
    )


@program
def dtensor() -> Program:
    return Program(
        alone,
        lambda: sharded("S0"),
        {
            "equal": lambda: sharded("S0"),
            "other_dimension": lambda: sharded("S1"),
            "replicated": lambda: sharded("R"),
            "partial": lambda: sharded("P"),
            "mesh_names": lambda: sharded("S0", names=("columns",)),
            "mesh_shape": lambda: sharded("S0", "R", names=("a", "b")),
            "dtype": lambda: sharded("S0", dtype=torch.float64),
            "plain": lambda: (x(4, 4),),
        },
        loads_compiler=True,
    )


def placed(t, placement):
    return t * 2 if placement.is_shard() else t


@program
def placement_argument() -> Program:
    def placement(name: str, *args: Any) -> Any:
        from torch.distributed import tensor as distributed

        return x(3), getattr(distributed, name)(*args)

    return Program(
        placed,
        lambda: placement("Shard", 1),
        {
            "equal": lambda: placement("Shard", 1),
            "dimension": lambda: placement("Shard", 0),
            "replicated": lambda: placement("Replicate"),
            "none": lambda: (x(3), 3),
        },
        loads_compiler=True,
    )


def on_mesh(t, mesh):
    return t * mesh.ndim


@program
def mesh_argument() -> Program:
    return Program(
        on_mesh,
        lambda: (x(3), mesh("rows")),
        {
            "equal": lambda: (x(3), mesh.__wrapped__("rows")),
            "names": lambda: (x(3), mesh("columns")),
            "shape": lambda: (x(3), mesh("a", "b")),
            "none": lambda: (x(3), 3),
        },
        loads_compiler=True,
    )
