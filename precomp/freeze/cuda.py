"""A Triton kernel of Inductor that ran -> its launch record and ``cubin`` entry.

What is stored is the configuration that was really launched, after all tuning (docs/internals.md,
section 4.7); nothing of it depends on the place of a cache or on the process.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from precomp import _core, torch_api
from precomp import triton_kernels as kernels
from precomp.freeze.grid import compile_grid
from precomp.freeze.store import Store, Unsupported
from precomp.torch_api import objects

# Triton's types of scalar parameters -> codes of a launch record; a bool is one byte.
_SCALARS = {
    "i1": "B", "i8": "b", "i16": "h", "i32": "i", "i64": "l",
    "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "K",
    "fp16": "e", "bf16": "y", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip


_MAP_KEYS = frozenset(
    ("swizzle", "elem_size", "elem_type", "block_size", "fp4_padded", "is_im2col")
)


# Of each launcher that was made while capturing the compile result that it launches: torch does
# not keep those of configurations that it tries one after the other.
_results: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Note what each launcher launches, for as long as the capture is active."""
    names = torch_api.capture()
    for owner in (names.TritonCompileResult, names.StaticTritonCompileResult):
        patch(owner, "make_launcher", _noting(owner.make_launcher))


def _noting(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(make)
    def make_launcher(result: Any) -> Any:
        launcher = make(result)
        _results[launcher] = result
        return launcher

    return make_launcher


def is_triton(value: Any) -> bool:
    """Whether *value* is a Triton kernel as ``async_compile`` makes it, alone or one of several."""
    names = torch_api.capture()
    return isinstance(value, (names.CachingAutotuner, names.MultiKernelCall))


def freeze_launch(kernel: Any, store: Store) -> dict[str, Any]:
    """Store what was launched of *kernel* and return its launch record.

    Raises Unsupported when no single configuration was launched while capturing, and for kernels
    whose parameters or launch have no frozen form.
    """
    if not isinstance(kernel, torch_api.capture().MultiKernelCall):
        return _freeze_tuned(kernel, store)
    if type(kernel) is not torch_api.capture().MultiKernelCall:
        raise Unsupported("several Triton kernels, one of which is chosen by shapes at each launch")
    chosen = kernel.picked_kernel
    if chosen is None:
        raise Unsupported("a Triton kernel that was not launched while capturing: none was chosen")
    record = _freeze_tuned(kernel.kernels[chosen], store)
    # A call has the arguments of all kernels.
    parts = kernel.arg_index
    places = [place for part in parts[chosen] for place in range(part.start, part.stop)]
    return {
        **record,
        "args": max(part.stop for row in parts.values() for part in row),
        "select": tuple(places[position] for position in record["select"]),
        "grid": tuple(
            tuple(("a", places[item[1]]) if isinstance(item, tuple) else item for item in program)
            for program in record["grid"]
        ),
    }


def _freeze_tuned(autotuner: Any, store: Store) -> dict[str, Any]:
    result = _launched(autotuner)
    kernel = result.kernel
    meta = result.compile_meta
    if meta.get("device_type", "cuda") != "cuda":
        raise Unsupported(f"a Triton kernel for {meta['device_type']}")
    static = isinstance(kernel, torch_api.capture().StaticTritonKernel)
    launch = _static_launch(kernel) if static else launch_of(kernel)
    names, constants = (
        (kernel.arg_names, frozenset(kernel.full_constexprs))
        if static
        else (kernel.src.fn.arg_names, frozenset(k[0] for k in kernel.src.constants))
    )
    constexprs = (
        kernel.declared_constexprs if static else torch_api.capture().get_constexprs(kernel.src.fn)
    )
    _, arguments, absent = objects.argument_lists(result, names, constexprs)
    signature = meta["signature"]
    parameters = [
        name
        for i, name in enumerate(names)
        if i not in constants
        and name not in absent
        and signature.get(name, "constexpr") != "constexpr"
    ]
    kinds = [signature[name] for name in parameters]
    grid = torch_api.capture().GridExpr.from_meta(result.inductor_meta, result.config)
    arch = int(meta["cc"])
    return {
        "cubin": store_image(store, arch, _image(kernel, meta, static)),
        "arch": arch,
        "args": len(arguments),
        "select": tuple(arguments.index(name) for name in parameters),
        "grid": compile_grid(grid.prefix, (grid.x_grid, grid.y_grid, grid.z_grid), arguments),
        **parameters_of(kinds, None if static else kernel.metadata),
        **launch,
    }


def _launched(autotuner: Any) -> Any:
    """The compile result whose launcher ran."""
    launchers = autotuner.launchers
    if len(launchers) != 1:
        raise Unsupported(
            "a Triton kernel that was not launched while capturing: "
            f"{len(launchers)} configurations are left"
        )
    if autotuner.inductor_meta.get("store_cubin"):
        raise Unsupported("triton.store_cubin")
    result = _results.get(launchers[0])
    if result is not None:
        return result
    for result in autotuner.compile_results:
        if result.config is launchers[0].config:
            return result
    raise Unsupported("a Triton kernel whose launched configuration torch did not keep")


def _static_launch(kernel: Any) -> dict[str, Any]:
    """What torch keeps of a kernel that its static launcher can launch."""
    return {
        "symbol": kernel.name,
        "num_warps": int(kernel.num_warps),
        "num_ctas": 1,
        "shared": int(kernel.shared),
        "pdl": False,
        "cooperative": False,
        "scratch": ((0, 1),) * (bool(kernel.has_global_scratch) + bool(kernel.has_profile_scratch)),
    }


def launch_of(kernel: Any) -> dict[str, Any]:
    """How a kernel is launched, of one as Triton holds it."""
    meta = kernel.metadata
    scratch = []
    for name in ("global_scratch", "profile_scratch"):
        if hasattr(meta, f"{name}_size"):
            scratch.append(
                (int(getattr(meta, f"{name}_size")), int(getattr(meta, f"{name}_align")))
            )
    return {
        "symbol": meta.name,
        "num_warps": int(meta.num_warps),
        "num_ctas": int(meta.num_ctas),
        "shared": int(meta.shared),
        "pdl": bool(getattr(meta, "launch_pdl", False)),
        "cooperative": bool(getattr(meta, "launch_cooperative_grid", False)),
        "scratch": tuple(scratch),
    }


def parameters_of(kinds: Sequence[str], metadata: Any) -> dict[str, Any]:
    """The part of a launch record about the parameters, by Triton's types of them.

    *metadata*: that of the kernel that Triton compiled; None if torch kept none of it.
    """
    described = [kind for kind in kinds if kind.startswith("tensordesc")]
    if described and metadata is None:
        raise Unsupported("a Triton kernel with tensor descriptors that torch launches by itself")
    # Empty if the device has no tensor maps; then the kernel takes the parts of a descriptor.
    maps = getattr(metadata, "tensordesc_meta", None) or [None] * len(described)
    rows = [
        kernels.descriptor(kind) if row is None else _map(row)
        for kind, row in zip(described, maps, strict=True)
    ]
    letters = iter("D" if row is None else "T" for row in maps)
    codes = [
        next(letters) if kind.startswith("tensordesc") else _parameter_code(kind) for kind in kinds
    ]
    return {"codes": "".join(codes), "tensormaps": tuple(rows)}


def _map(row: dict[str, Any]) -> tuple[Any, ...]:
    """How the tensor map of a descriptor is encoded, of what Triton's compiler says."""
    if row.get("is_im2col"):
        raise Unsupported("a Triton kernel with a tensor descriptor for im2col")
    unknown = sorted(row.keys() - _MAP_KEYS)
    if unknown:
        raise Unsupported(f"a Triton kernel with tensor descriptors of unknown {unknown}")
    kind, rounded = kernels.map_types(row["elem_type"])
    scale = 2 if row["fp4_padded"] else 1
    passed = scale if kernels.passes_padded() else 1
    block = tuple(map(int, row["block_size"]))
    return kind, rounded, int(row["elem_size"]), block, int(row["swizzle"]), scale, passed


def _parameter_code(kind: str) -> str:
    if kind.startswith("*"):
        return "P"
    try:
        return _SCALARS[kind]
    except KeyError:
        raise Unsupported(f"a Triton kernel with a parameter of type {kind}") from None


def store_image(store: Store, arch: int, image: bytes) -> str:
    """Store the image of a kernel, without its PTX and debug data; returns its digest.

    With ``PRECOMP_KEEP_CUBIN_DEBUG=1`` it is stored as it is.
    """
    kept = os.environ.get("PRECOMP_KEEP_CUBIN_DEBUG") == "1"
    return store.add("cubin", f"sm_{arch}", image if kept else _core.strip_cubin(image))


def _image(kernel: Any, meta: dict[str, Any], static: bool) -> bytes:
    """The cubin: from the kernel itself, or from the directory where Triton keeps it.

    The file's name is not relied on: Triton cuts long names, torch does not.
    """
    if not static:
        return bytes(kernel.asm["cubin"])
    raw = getattr(kernel, "cubin_raw", None)
    if raw is not None:
        return bytes(raw)
    names = torch_api.capture()
    directory = os.path.join(
        names.triton_cache_dir(meta.get("device", 0) or 0),
        names.triton_hash_to_path_key(kernel.hash),
    )
    try:
        files = [name for name in os.listdir(directory) if name.endswith(".cubin")]
        if len(files) != 1:
            raise Unsupported(f"{directory}: expected one cubin, found {len(files)}")
        with open(os.path.join(directory, files[0]), "rb") as file:
            return file.read()
    except OSError as error:
        raise Unsupported(f"the kernel's file cannot be read: {error}") from error
