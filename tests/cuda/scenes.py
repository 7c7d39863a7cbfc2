"""Launching through the stand-in driver (fakecuda.c): one scene a process, without torch.

``python scenes.py SCENE DRIVER CUBIN`` runs SCENE; CUBIN is for compute capability 9.0.
"""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

from precomp import ArtifactCorruptError, ArtifactVersionError, CudaError, _core

SIZES = {"P": 8, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "l": 8, "K": 8}
SIZES |= {"e": 2, "y": 2, "f": 4, "d": 8}
FORMATS = {"P": "Q", "b": "b", "B": "B", "h": "h", "H": "H", "i": "i", "I": "I", "l": "q"}
FORMATS |= {"K": "Q", "e": "e", "f": "f", "d": "d"}


class Buffer:
    """Memory of a GPU that is not there: an address with an element type, as a tensor has."""

    def __init__(self, address: int, dtype: Any) -> None:
        self.address = address
        self.dtype = dtype

    def data_ptr(self) -> int:
        return self.address


class Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("words", ctypes.c_uint * 16))


class Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("attribute_count", ctypes.c_uint),
        ("stream", ctypes.c_uint64),
        ("kernel", ctypes.c_uint64),
        ("attributes", Attribute * 8),
        ("parameters", (ctypes.c_ubyte * 128) * 512),
    )


class Driver:
    """The stand-in: ``driver.name`` reads its variable fake_name, setting it writes."""

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "c", ctypes.CDLL(path))
        _core.cuda_driver(path)

    def _variable(self, name: str):
        return ctypes.c_int.in_dll(self.c, f"fake_{name}")

    def __getattr__(self, name: str) -> int:
        return self._variable(name).value

    def __setattr__(self, name: str, value: int) -> None:
        self._variable(name).value = value

    def log(self) -> list[str]:
        """Names of the calls since the last time."""
        room = (ctypes.c_char * (1 << 16)).in_dll(self.c, "fake_log")
        names = room.value.decode().split()
        room.value = b""
        return names

    def launch(self) -> Launch:
        """The last launch."""
        return (Launch * 64).in_dll(self.c, "fake_launch")[(self.launches - 1) % 64]

    def attributes(self) -> list[tuple[int, ...]]:
        rows = ((ctypes.c_int * 3) * 64).in_dll(self.c, "fake_attributes")
        return [tuple(row) for row in rows[: self.attribute_count]]

    def parameters(self, codes: str, scratch: int = 0) -> None:
        """Give the kernel these parameters."""
        self.sizes([SIZES[code] for code in codes] + [8] * scratch)

    def sizes(self, every: list[int]) -> None:
        """Give the kernel parameters of these sizes."""
        sizes = (ctypes.c_uint64 * 512).in_dll(self.c, "fake_sizes")
        sizes[: len(every)] = every
        self.parameter_count = len(every)

    def fail(self, after: int, result: int) -> None:
        """The call after *after* more calls returns *result*."""
        self.fail_with = result
        self.fail_at = self.calls + after + 1


def record(codes: str, **changes):
    return {
        "cubin": "0" * 64,
        "symbol": "scaled",
        "arch": 90,
        "args": len(codes),
        "codes": codes,
        "select": tuple(range(len(codes))),
        "scratch": (),
        "grid": ((5,), (6,), (7,)),
        "num_warps": 4,
        "num_ctas": 1,
        "shared": 0,
        "pdl": False,
        "cooperative": False,
        "tensormaps": (),
    } | changes


def launcher(driver, image, codes, **changes):
    driver.parameters(codes, len(changes.get("scratch", ())))
    library = _core.CudaLibrary(image, "test")
    return _core.CudaLauncher(library, record(codes, **changes))


def unpack(code, raw):
    if code == "y":
        return struct.unpack("<f", b"\0\0" + bytes(raw[:2]))[0]
    return struct.unpack("<" + FORMATS[code], bytes(raw[: SIZES[code]]))[0]


def raised(kind, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} not raised")


class Memory:
    """Has an address, as a tensor does."""

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


# --- parameters ----------------------------------------------------------------------------------


def every_kind_of_parameter_is_packed_exactly(driver, image):
    codes = "PbBhHiIlKfdeyPP"
    values = [Memory(2**63 + 8), -128, 255, -32768, 65535, -(2**31), 2**32 - 1, -(2**63)]
    values += [2**64 - 1, 1.5, -2.25, 0.1, 3.140625, 4096, None]
    launch = launcher(driver, image, codes, scratch=((0, 1), None))
    assert launch(*values, stream=99) is None
    seen = driver.launch()
    assert list(seen.grid) == [5, 6, 7] and list(seen.block) == [128, 1, 1]
    assert seen.stream == 99 and seen.attribute_count == 0 and seen.shared == 0
    got = [unpack(code, seen.parameters[i]) for i, code in enumerate(codes)]
    half = struct.unpack("<e", struct.pack("<e", 0.1))[0]
    assert got == [2**63 + 8, *values[1:11], half, values[12], 4096, 0]
    assert all(bytes(seen.parameters[i][:8]) == bytes(8) for i in (15, 16))


def small_floats_are_rounded_and_cut_as_triton_does(driver, image):
    launch = launcher(driver, image, "eyfd")
    launch(1 / 3, 1 / 3, 1 / 3, 1 / 3, stream=0)
    raw = [bytes(p[:8]) for p in driver.launch().parameters[:4]]
    assert raw[0][:2] == struct.pack("<e", 1 / 3)
    assert raw[1][:2] == struct.pack("<f", 1 / 3)[2:]
    assert raw[2][:4] == struct.pack("<f", 1 / 3)
    assert raw[3] == struct.pack("<d", 1 / 3)
    assert "argument 0" in raised(OverflowError, launch, 1e6, 0, 0, 0, stream=0)
    launch(float("inf"), float("nan"), float("-inf"), 0, stream=0)


def numbers_that_do_not_fit_are_refused(driver, image):
    for code, low, high in (
        ("b", -(2**7), 2**7 - 1),
        ("B", 0, 2**8 - 1),
        ("h", -(2**15), 2**15 - 1),
        ("H", 0, 2**16 - 1),
        ("i", -(2**31), 2**31 - 1),
        ("I", 0, 2**32 - 1),
        ("l", -(2**63), 2**63 - 1),
        ("K", 0, 2**64 - 1),
    ):
        launch = launcher(driver, image, "P" + code)
        for value in (low, high):
            launch(0, value, stream=0)
            assert unpack(code, driver.launch().parameters[1]) == value
        before = driver.launches
        for value in (low - 1, high + 1):
            text = raised(OverflowError, launch, 0, value, stream=0)
            assert "kernel scaled (test): argument 1: " in text, text
        assert driver.launches == before


def wrong_arguments_are_refused_by_name(driver, image):
    launch = launcher(driver, image, "Pi")
    text = raised(TypeError, launch, object(), 1, stream=0)
    assert text == (
        "kernel scaled (test): argument 0: expected a tensor, an address or None, found object"
    )
    assert "argument 1" in raised(TypeError, launch, 0, "x", stream=0)
    assert "argument 1" in raised(TypeError, launch, 0, 1.5, stream=0)
    for arguments, keywords in (
        ((0,), {"stream": 0}),
        ((0, 1, 2), {"stream": 0}),
        ((0, 1), {}),
        ((0, 1), {"strea": 0}),
        ((0, 1), {"stream": 0, "grid": 1}),
    ):
        assert "expected 2 positional arguments and stream=" in raised(
            TypeError, launch, *arguments, **keywords
        )
    assert "argument 2" in raised(TypeError, launch, 0, 1, stream=None)
    assert driver.launches == 0

    class Broken:
        def data_ptr(self):
            raise KeyError("mine")

    assert raised(KeyError, launch, Broken(), 1, stream=0) == "'mine'"


def parameters_take_the_arguments_that_the_record_selects(driver, image):
    launch = launcher(driver, image, "iPi", args=4, select=(3, 0, 0))
    launch(7, "unused", object(), 9, stream=1)
    got = [unpack(c, driver.launch().parameters[i]) for i, c in enumerate("iPi")]
    assert got == [9, 7, 7]


def bind_tensors(driver, tensor, parameter):
    """As torch_api binds torch's types, with the exchange functions of the stand-in."""
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    address = ctypes.addressof(ctypes.c_char.in_dll(driver.c, "fake_exchange"))
    exchange = capsule(address, b"dlpack_exchange_api", None)
    names = {"Tensor": tensor, "Parameter": parameter, "dlpack_exchange": exchange}
    _core.bind_torch(names)


def tensors_give_their_address_through_dlpack(driver, image):
    class Tensor:
        pass

    class Parameter(Tensor):
        pass

    class Subclass(Tensor):
        def data_ptr(self):
            return 0x5000

    bind_tensors(driver, Tensor, Parameter)
    launch = launcher(driver, image, "PPP")
    tensor = (ctypes.c_uint64 * 6).in_dll(driver.c, "fake_tensor")
    tensor[5] = 0x20  # byte offset
    launch(Tensor(), Parameter(), Subclass(), stream=0)
    got = [unpack("P", p) for p in driver.launch().parameters[:3]]
    assert got == [0x7020, 0x7020, 0x5000]
    kind = (ctypes.c_int32 * 4).in_dll(driver.c, "fake_tensor")
    kind[2] = 1  # on the CPU
    text = raised(ValueError, launch, 0, Tensor(), 0, stream=0)
    assert "argument 1: expected a tensor on a GPU, found one on cpu" in text
    tensor[0] = 0  # an empty one
    launch(Tensor(), 0, 0, stream=0)
    driver.tensor_status = -1
    assert "argument 0: the tensor has no address" in raised(
        TypeError, launch, Tensor(), 0, 0, stream=0
    )


class Holder:
    """Holds one pointer, to its implementation, as torch's tensors do."""

    __slots__ = ("held",)

    def __init__(self):
        self.held = Held()


class Held:
    pass


class HoldingParameter(Holder):
    pass


def tensors_give_their_address_through_torchs_c_interface(driver, image):
    c = ctypes.CDLL(str(Path(sys.argv[2]).with_name("libtorch_cpu.so")))
    bind_tensors(driver, Holder, HoldingParameter)
    example = Holder()
    assert _core.read_tensors_like(example, id(example.held))
    launch = launcher(driver, image, "PP")
    handle = ctypes.c_uint64.in_dll(c, "fake_handle")
    for tensor in (Holder(), HoldingParameter()):
        launch(tensor, 0, stream=0)
        assert unpack("P", driver.launch().parameters[0]) == 0x9000
        assert handle.value == id(tensor.held)
    kind = ctypes.c_int32.in_dll(c, "fake_type")
    status = ctypes.c_int32.in_dll(c, "fake_status")
    for variable in (kind, status):  # on another device; no address
        before, variable.value = variable.value, 7
        launch(0, Holder(), stream=0)
        assert unpack("P", driver.launch().parameters[1]) == 0x7000, "DLPack is asked then"
        variable.value = before


def tensors_that_are_made_otherwise_are_read_through_dlpack(driver, image):
    bind_tensors(driver, Holder, HoldingParameter)

    def read(pointer):
        found = _core.read_tensors_like(example, pointer)
        launcher(driver, image, "P")(Holder(), stream=0)
        return found, unpack("P", driver.launch().parameters[0])

    example = Holder()
    assert read(id(example.held)) == (False, 0x7000), "there is no torch"
    c = ctypes.CDLL(str(Path(sys.argv[2]).with_name("libtorch_cpu.so")))
    assert read(id(example.held)) == (True, 0x9000)
    assert read(id(c)) == (False, 0x7000)
    assert "int" in raised(TypeError, _core.read_tensors_like, example, "text")


# --- tensor descriptors --------------------------------------------------------------------------

# (elements, rounded elements, bytes of one, block, swizzle, factors of the last dimension)
MAP = (6, -1, 2, (32, 64), 3, 1, 1)


class Descriptor:
    def __init__(self, base, shape, strides, padding="zero", **more):
        self.base, self.shape, self.strides, self.padding = base, shape, strides, padding
        vars(self).update(more)


def described(driver, image, rows, codes, sizes):
    driver.sizes(sizes)
    library = _core.CudaLibrary(image, "test")
    return _core.CudaLauncher(library, record(codes, tensormaps=rows))


def encoded(raw):
    """What the stand-in was asked to encode."""
    words = struct.unpack("<iIQQ5Q4Q5I4B8B", bytes(raw))
    rank = words[1]
    assert (words[18], words[20]) == (0, 2) and words[22 : 22 + rank] == (1,) * rank
    return {
        "type": words[0], "address": words[3], "shape": words[4 : 4 + rank],
        "strides": words[9 : 8 + rank], "box": words[13 : 13 + rank], "swizzle": words[19],
        "fill": words[21], "mark": words[2],
    }  # fmt: skip


def tensor_descriptors_become_tensor_maps(driver, image):
    launch = described(driver, image, (MAP,), "iT", [4, 128, 4, 4, 8, 8])
    for padding, fill in (("zero", 0), ("nan", 1), (None, 0)):
        launch(5, Descriptor(Memory(2**40), [100, 200], (256, 1), padding), stream=3)
        seen = driver.launch()
        assert encoded(seen.parameters[1]) == {
            "type": 6, "address": 2**40, "shape": (200, 100), "strides": (512,), "box": (64, 32),
            "swizzle": 3, "fill": fill, "mark": 2**64 - 1,
        }  # fmt: skip
        rest = [int.from_bytes(bytes(p[:8]), "little") for p in seen.parameters[2:6]]
        assert rest == [100, 200, 256, 1]
    rows = ((0, -1, 1, (128,), 0, 1, 1), (7, 11, 4, (1, 2, 4, 8, 16), 1, 1, 1))
    sizes = [128, 4, 8, 128, *[4] * 5, *[8] * 5]
    launch = described(driver, image, rows, "TT", sizes)
    shape, strides = (3, 5, 7, 9, 11), [2**33, 2**20, 256, 16, 1]
    for rounds, kind in ((False, 7), (True, 11)):
        line = Descriptor(0x1000, [300], [1], round_f32_to_tf32=rounds)
        launch(line, Descriptor(Memory(64), shape, strides, round_f32_to_tf32=rounds), stream=0)
        first, second = (encoded(driver.launch().parameters[i]) for i in (0, 3))
        assert (first["type"], first["shape"], first["box"]) == (0, (300,), (128,))
        assert (second["type"], second["shape"], second["box"]) == (
            kind, shape[::-1], (16, 8, 4, 2, 1)
        )  # fmt: skip
        assert second["strides"] == (64, 1024, 2**22, 2**35)


def padded_elements_count_twice(driver, image):
    for passed in (1, 2):
        row = (13, -1, 1, (32, 64), 3, 2, passed)
        launch = described(driver, image, (row,), "T", [128, 4, 4, 8, 8])
        launch(Descriptor(64, [8, 100], [112, 1]), stream=0)
        seen = driver.launch().parameters
        found = encoded(seen[0])
        assert (found["shape"], found["strides"]) == ((200, 8), (112,))
        rest = [int.from_bytes(bytes(p[:8]), "little") for p in seen[1:5]]
        assert rest == [8, 100 * passed, 112, 1]


def maps_of_small_tensors_are_mended_for_old_drivers(driver, image):
    launch = described(driver, image, (MAP,), "T", [128, 4, 4, 8, 8])
    kept, mended = 2**64 - 1, 2**64 - 1 - 2**21
    for version, rows, mark in (
        (13010, 512, mended),  # 128 KB less the last element
        (13010, 513, kept),
        (12080, 512, mended),
        (13020, 512, kept),
    ):
        driver.version = version
        launch(Descriptor(64, [rows, 128], [128, 1]), stream=0)
        assert encoded(driver.launch().parameters[0])["mark"] == mark, (version, rows)
    driver.version = 13010
    launch(Descriptor(64, [2**31 - 1, 2**31 - 1], [2**62 // 2, 1]), stream=0)  # no overflow
    assert encoded(driver.launch().parameters[0])["mark"] == kept


def descriptors_without_tensor_maps_are_passed_in_parts(driver, image):
    for flags in (1, 2):
        sizes = [8, 8, 8, 8, 8, *[1] * flags, 4, 4, 8, 8]
        launch = described(driver, image, ((2, flags),), "D", sizes)
        for padding, rounds in (("zero", True), ("nan", False)):
            descriptor = Descriptor(
                Memory(2**40), [100, 200], [256, 1], padding, round_f32_to_tf32=rounds
            )
            launch(descriptor, stream=0)
            seen = driver.launch().parameters
            found = [int.from_bytes(bytes(seen[i][:n]), "little") for i, n in enumerate(sizes)]
            truths = [padding == "nan", rounds][:flags]
            assert found == [2**40, 100, 200, 256, 1, *truths, 100, 200, 256, 1]


def wrong_descriptors_are_refused(driver, image):
    launch = described(driver, image, (MAP,), "iT", [4, 128, 4, 4, 8, 8])
    before = driver.launches
    for kind, descriptor, text in (
        (TypeError, object(), "expected a tensor descriptor, found object"),
        (TypeError, Memory(64), "expected a tensor descriptor, found Memory"),
        (TypeError, Descriptor(object(), [1, 1], [1, 1]), "expected a tensor, an address or None"),
        (ValueError, Descriptor(64, [1], [1, 1]), "expected a shape of 2 dimensions, found 1"),
        (ValueError, Descriptor(64, [1, 1], [1, 1, 1]), "a strides of 2 dimensions, found 3"),
        (TypeError, Descriptor(64, 3, [1, 1]), "shape and strides must be sequences"),
        (TypeError, Descriptor(64, [1, 1.5], [1, 1]), "argument 1"),
        (ValueError, Descriptor(64, [4, 4], [4, 2]), "its last stride is 2, expected 1"),
        (OverflowError, Descriptor(64, [2**31, 4], [4, 1]), "dimension 0 of its shape does not"),
        (OverflowError, Descriptor(64, [-1, 4], [4, 1]), "dimension 0 of its shape does not"),
        (OverflowError, Descriptor(64, [4, 4], [-4, 1]), "stride 0 does not fit 64 bits"),
    ):
        found = raised(kind, launch, 1, descriptor, stream=0)
        assert "kernel scaled (test): argument 1: " in found and text in found, found
    driver.fail(0, 1)
    found = raised(CudaError, launch, 1, Descriptor(0x30, [9, 8], [16, 1]), stream=0)
    assert "cuTensorMapEncodeTiled failed: CUDA error 1" in found, found
    assert "address 0x30, type 6, swizzle 3" in found and "(8, 2, 64) (9, 32, 32)" in found, found
    assert driver.launches == before

    class Odd(Descriptor):
        @property
        def padding(self):
            raise KeyError("mine")

        @padding.setter
        def padding(self, value):
            pass

    assert raised(KeyError, launch, 1, Odd(64, [1, 1], [1, 1]), stream=0) == "'mine'"
    descriptor = Descriptor(Memory(64), [2**20, 2**20], [2**20, 1])
    counts = [sys.getrefcount(item) for item in (descriptor, descriptor.base, descriptor.shape)]
    for _ in range(50):
        launch(1, descriptor, stream=0)
    assert counts == [
        sys.getrefcount(item) for item in (descriptor, descriptor.base, descriptor.shape)
    ]


# --- grid ----------------------------------------------------------------------------------------


def grids_are_computed_as_python_does(driver, image):
    numbers = (-7, -2, -1, 0, 1, 2, 5, 2**40)
    for op, expected in (
        ("+", lambda a, b: a + b),
        ("-", lambda a, b: a - b),
        ("*", lambda a, b: a * b),
        ("//", lambda a, b: a // b if b else 0),
        ("%", lambda a, b: a % b if b else 0),
        ("max", max),
        ("min", min),
        ("unless0", lambda a, b: b if a else 0),
    ):
        # The result, shifted to lie within a grid, is told modulo 1000.
        program = (("a", 0), ("a", 1), op, 1000, "%", 1, "+")
        launch = launcher(driver, image, "ll", grid=(program, (1,), (1,)))
        for a in numbers:
            for b in numbers:
                if abs(expected(a, b)) < 2**63:
                    launch(a, b, stream=0)
                    assert driver.launch().grid[0] == expected(a, b) % 1000 + 1, (op, a, b)
    launch = launcher(driver, image, "i", grid=((("a", 0), "neg"), (("a", 0), "neg"), (3,)))
    launch(-4, stream=0)
    assert list(driver.launch().grid) == [4, 4, 3]
    ceil = (("a", 0), 127, "+", 128, "//")
    launch = launcher(driver, image, "i", grid=(ceil, (1,), (1,)))
    for n in (1, 128, 129):
        launch(n, stream=0)
        assert driver.launch().grid[0] == -(-n // 128)


def empty_grid_launches_nothing(driver, image):
    launch = launcher(driver, image, "i", grid=((1,), (("a", 0),), (1,)))
    for n in (0, -1):
        assert launch(n, stream=0) is None
    assert driver.launches == 0
    launch(1, stream=0)
    assert driver.launches == 1


def grids_beyond_the_limits_are_refused(driver, image):
    launch = launcher(driver, image, "l", grid=((("a", 0), ("a", 0), "*"), (1,), (1,)))
    text = raised(OverflowError, launch, 2**32, stream=0)
    assert text == "kernel scaled (test): dimension 0 of the grid does not fit 64 bits"
    for a, b, op in ((2**63 - 1, 1, "+"), (-(2**63), 1, "-"), (-(2**63), -1, "//")):
        launch = launcher(driver, image, "ll", grid=((1,), (("a", 0), ("a", 1), op), (1,)))
        assert "dimension 1" in raised(OverflowError, launch, a, b, stream=0)
    launch = launcher(driver, image, "l", grid=((1,), (1,), (("a", 0), "neg")))
    assert "dimension 2" in raised(OverflowError, launch, -(2**63), stream=0)
    for i, limit in enumerate((2**31 - 1, 65535, 65535)):
        grid = [(1,), (1,), (1,)]
        grid[i] = (("a", 0),)
        launch = launcher(driver, image, "l", grid=tuple(grid))
        launch(limit, stream=0)
        assert driver.launch().grid[i] == limit
        text = raised(CudaError, launch, limit + 1, stream=0)
        assert f"dimension {i} may be at most {limit}" in text
    launch = launcher(driver, image, "l", grid=((("a", 0),), (1,), (1,)), num_ctas=4)
    assert "at most 536870911" in raised(CudaError, launch, 2**29, stream=0)
    launch = launcher(driver, image, "P", grid=((("a", 0),), (1,), (1,)))
    assert "argument 0" in raised(TypeError, launch, Memory(1), stream=0)


# --- shape of a launch ---------------------------------------------------------------------------


def clusters_and_attributes_reach_the_driver(driver, image):
    launcher(driver, image, "i", num_ctas=2, pdl=True, cooperative=True)(1, stream=0)
    seen = driver.launch()
    assert list(seen.grid) == [10, 6, 7]
    rows = [(a.id, *a.words[:3]) for a in seen.attributes[: seen.attribute_count]]
    assert rows == [(6, 1, 0, 0), (2, 1, 0, 0), (4, 2, 1, 1), (5, 1, 0, 0)]
    assert driver.attributes() == []
    launcher(driver, image, "i", num_ctas=16, num_warps=8)(1, stream=0)
    assert driver.launch().grid[0] == 80 and driver.launch().block[0] == 256
    assert driver.attributes() == [(14, 1, 0)]


def much_shared_memory_is_asked_for_once_a_device(driver, image):
    driver.devices = 2
    launch = launcher(driver, image, "i", shared=49152)
    launch(1, stream=0)
    assert driver.attributes() == [] and driver.launch().shared == 49152
    launch = launcher(driver, image, "i", shared=98304)
    for device in (0, 0, 1, 1, 0):
        driver.device = device
        launch(1, stream=0)
        assert driver.launch().shared == 98304
    assert driver.attributes() == [(8, 98304, 0), (8, 98304, 1)]
    assert driver.loads == 2
    text = raised(CudaError, launcher, driver, image, "i", shared=232449)
    assert "needs 232449 bytes of shared memory a block, the devices here allow 232448" in text


def one_library_serves_several_devices(driver, image):
    driver.devices = 4
    library = _core.CudaLibrary(image, "test")
    driver.parameters("i")
    for device in range(4):
        driver.device = device
        _core.CudaLauncher(library, record("i"))(device, stream=0)
    assert driver.loads == 1
    assert "cuDevicePrimaryCtxRetain" not in driver.log()


def scratch_memory_comes_from_the_allocator(driver, image):
    alive = []

    class Block(Memory):
        def __init__(self, address):
            super().__init__(address)
            alive.append(address)

        def __del__(self):
            alive.remove(self.address)

    asked = []

    def allocate(size, stream):
        asked.append((size, stream))
        return Block(0x1000 * len(asked) + (8 if size == 210 * 4 else 0))

    launch = launcher(driver, image, "i", scratch=((256, 128), (0, 1), None), num_ctas=2)
    assert "cuda_scratch" in raised(RuntimeError, launch, 1, stream=7)
    _core.bind_torch({"cuda_scratch": allocate})
    launch(1, stream=7)
    assert asked == [(210 * 2 * 256, 7)]
    assert [unpack("P", p) for p in driver.launch().parameters[1:4]] == [0x1000, 0, 0]
    assert alive == []
    launch = launcher(driver, image, "i", scratch=((4, 16),))
    assert "not aligned to 16 bytes" in raised(CudaError, launch, 1, stream=7)
    launch = launcher(driver, image, "i", scratch=((2**62, 1),))
    assert "scratch memory does not fit" in raised(OverflowError, launch, 1, stream=7)
    assert alive == []


# --- loading -------------------------------------------------------------------------------------


def nothing_is_loaded_before_the_first_launcher(driver, image):
    library = _core.CudaLibrary(image, "test")
    assert driver.log() == [] and not library.loaded
    assert library.arch == 90 and library.symbols == ("scaled",) and library.label == "test"
    driver.parameters("i")
    first = _core.CudaLauncher(library, record("i"))
    assert library.loaded and driver.log().count("cuInit") == 1
    second = _core.CudaLauncher(library, record("i"))
    assert driver.loads == 1 and first.library is second.library is library
    assert first.run is first


def image_stays_where_the_driver_reads_it(driver, image):
    copy = bytes(bytearray(image))
    launch = launcher(driver, copy, "i")
    address = ctypes.c_uint64.in_dll(driver.c, "fake_image").value
    del copy, launch
    gc.collect()
    other = [bytes(bytearray(image)) for _ in range(50)]
    assert ctypes.string_at(address, len(image)) == image
    assert other


def parameters_of_the_image_must_be_those_of_the_record(driver, image):
    library = _core.CudaLibrary(image, "test")
    for real, codes, text in (
        ("Pi", "P", "the image has more parameters than the launch record, 1"),
        ("Pi", "Pii", "the image has 2 parameters, the launch record 3"),
        ("Pi", "Pl", "parameter 1 has 4 bytes in the image, 8 in the launch record"),
        ("Pe", "Pf", "parameter 1 has 2 bytes in the image, 4 in the launch record"),
    ):
        driver.parameters(real)
        found = raised(CudaError, _core.CudaLauncher, library, record(codes))
        assert found == f"kernel scaled (test): {text}"
    driver.parameters("Pi", 2)
    assert "more parameters" in raised(
        CudaError, _core.CudaLauncher, library, record("Pi", scratch=((0, 1),))
    )
    _core.CudaLauncher(library, record("Pi", scratch=((0, 1), (0, 1))))


def code_for_another_gpu_is_refused(driver, image):
    capability = ((ctypes.c_int * 2) * 16).in_dll(driver.c, "fake_capability")
    capability[0][0], capability[0][1] = 8, 9
    text = raised(CudaError, launcher, driver, image, "i")
    assert "code for compute capability 9.0 exactly, the devices here have 8.9" in text
    driver.devices = 2
    launcher(driver, image, "i")(1, stream=0)
    assert "sm_80, the image for sm_90" in raised(CudaError, launcher, driver, image, "i", arch=80)
    assert _core.cuda_devices() == ((8, 9), (9, 0))


def no_device_is_told(driver, image):
    driver.devices = 0
    assert _core.cuda_devices() == ()
    assert "CUDA error 100" in raised(CudaError, launcher, driver, image, "i")


def every_failing_call_is_one_clear_error(driver, image):
    """The n-th call of the driver fails, for each n."""
    launcher(driver, image, "ii", shared=98304)(1, 2, stream=0)
    total = driver.calls
    driver.log()
    failures = []
    for n in range(total - 1):  # cuInit is called once
        driver.fail(n, 999)
        text = ""
        try:
            launcher(driver, image, "ii", shared=98304)(1, 2, stream=0)
        except CudaError as error:
            text = str(error)
        failed = driver.log()[n]
        failures.append(failed)
        assert "CUDA error 999 CUDA_ERROR_FAKE: as the test wanted" in text, (failed, text)
    assert {"cuLibraryLoadData", "cuKernelSetAttribute", "cuLaunchKernelEx"} < set(failures)
    launcher(driver, image, "ii", shared=98304)(1, 2, stream=0)


def image_that_does_not_load_says_which_versions_met(driver, image):
    major, minor = divmod(launcher(driver, image, "i").library.toolkit, 10)
    versions = f"; the image was built by CUDA {major}.{minor}, the driver is for CUDA 13.2"
    for call in ("cuLibraryLoadData", "cuLibraryGetKernel"):
        driver.log()
        launcher(driver, image, "i")
        driver.fail(driver.log().index(call), 222)
        text = raised(CudaError, launcher, driver, image, "i")
        assert f"{call} failed: CUDA error 222" in text
        assert text.endswith(versions)


def failed_launch_says_what_was_launched(driver, image):
    launch = launcher(driver, image, "i", shared=1024)
    driver.fail(0, 1)
    assert raised(CudaError, launch, 1, stream=0) == (
        "kernel scaled (test): cuLaunchKernelEx failed: CUDA error 1 CUDA_ERROR_FAKE: as the test "
        "wanted; grid 5 x 6 x 7, 128 threads, 1024 bytes of shared memory"
    )
    launch(1, stream=0)


def thread_without_a_context_gets_that_of_the_tensor(driver, image):
    driver.devices = 2
    for shared in (0, 98304):
        launch = launcher(driver, image, "i", shared=shared)
        driver.no_context = 1
        driver.log()
        launch(1, stream=0)
        assert "cuDevicePrimaryCtxRetain cuCtxSetCurrent" in " ".join(driver.log())
        assert driver.device == 0
        launch(1, stream=0)
        assert "cuDevicePrimaryCtxRetain" not in driver.log()


def malformed_records_are_refused(driver, image):
    library = _core.CudaLibrary(image, "test")
    driver.parameters("i")
    for change, text in (
        ({"codes": "Z"}, "unknown code 'Z'"),
        ({"codes": "ii"}, "2 codes, but 1 items in 'select'"),
        ({"select": (1,)}, "'select' has 1, a call has 1 arguments"),
        ({"select": (-1,)}, "'select' has -1"),
        ({"num_warps": 0}, "'num_warps': expected 1 to 32, found 0"),
        ({"num_ctas": 17}, "'num_ctas'"),
        ({"shared": -1}, "'shared'"),
        ({"grid": ((1,), (1,))}, "expected three programs"),
        ({"grid": ((), (1,), (1,))}, "program 0 does not leave one value"),
        ({"grid": ((1,), (1, 1), (1,))}, "program 1 does not leave one value"),
        ({"grid": ((1,), (1,), ("+",))}, "program 2 does not leave one value"),
        ({"grid": ((1, "neg", "+"), (1,), (1,))}, "program 0"),
        ({"grid": (("**",), (1,), (1,))}, "unknown item '**'"),
        ({"grid": ((("b", 0),), (1,), (1,))}, "unknown item ('b', 0)"),
        ({"grid": ((("a", 1),), (1,), (1,))}, "uses argument 1, a call has 1"),
        ({"grid": ((1,) * 257, (1,), (1,))}, "at most 256 items"),
        ({"scratch": (3,)}, "'scratch': expected (bytes, alignment)"),
        ({"scratch": (None,) * 5}, "'scratch': expected a tuple of at most 4"),
        ({"args": -1}, "'args'"),
        ({"codes": "T"}, "'tensormaps': expected one item for each code T and D"),
        ({"tensormaps": (MAP,)}, "'tensormaps': expected one item for each code T and D"),
        ({"codes": "T", "tensormaps": (3,)}, "expected a tuple of tuples"),
        ({"codes": "T", "tensormaps": (MAP,) * 33}, "'tensormaps': expected a tuple of at most 32"),
        ({"codes": "T", "tensormaps": ((*MAP[:3], (8,) * 6, *MAP[4:]),)}, "6 dimensions"),
        ({"codes": "T", "tensormaps": ((*MAP[:3], (), *MAP[4:]),)}, "0 dimensions"),
        ({"codes": "D", "tensormaps": ((2, 3),)}, "2 dimensions, 3 flags"),
        ({"codes": "D" * 31, "select": (0,) * 31, "tensormaps": ((5, 2),) * 31},
         "more than 508 parameters"),
    ):
        found = raised(ValueError, _core.CudaLauncher, library, record("i") | change)
        assert text in found, (change, found)
    for name in record("i"):
        if name != "cubin":
            broken = record("i")
            del broken[name]
            assert f"'{name}'" in raised(ValueError, _core.CudaLauncher, library, broken)
    raised(TypeError, _core.CudaLauncher, library, record("i", symbol=3))
    raised(TypeError, _core.CudaLauncher, object(), record("i"))
    assert "absent" in raised(CudaError, _core.CudaLauncher, library, record("i", symbol="absent"))


def damaged_images_never_reach_the_driver(driver, image):
    for size in (*range(0, 64, 7), *range(64, len(image), 61), len(image) - 1):
        text = raised(ArtifactCorruptError, _core.CudaLibrary, image[:size], "test")
        assert text.startswith("kernel test: cubin: ")
    for at, value, error in (
        (0, 0, ArtifactCorruptError),
        (4, 1, ArtifactCorruptError),
        (8, 9, ArtifactVersionError),
        (16, 3, ArtifactCorruptError),
        (18, 62, ArtifactCorruptError),
        (47, 1, ArtifactCorruptError),
        (62, 255, ArtifactCorruptError),
    ):
        broken = bytearray(image)
        broken[at] = value
        raised(error, _core.CudaLibrary, bytes(broken), "test")
    raised(ArtifactCorruptError, _core.CudaLibrary, b".version 8.0\n.target sm_90\n" * 9, "test")
    assert driver.log() == []


def threads_launch_together(driver, image):
    launch = launcher(driver, image, "Pi")
    failures = []

    def run():
        try:
            for i in range(2000):
                launch(i, i, stream=0)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def launching_keeps_nothing(driver, image):
    launch = launcher(driver, image, "Pi", shared=98304)
    argument = Memory(2**40)
    before = sys.getrefcount(argument), sys.getrefcount(launch)
    for _ in range(100):
        launch(argument, 2**20, stream=2**40)
        raised(OverflowError, launch, argument, 2**40, stream=0)
    assert (sys.getrefcount(argument), sys.getrefcount(launch)) == before
    for _ in range(20):
        launcher(driver, image, "i")
    gc.collect()


def forked_child_is_told(driver, image):
    launch = launcher(driver, image, "i")
    library = _core.CudaLibrary(image, "test")
    pid = os.fork()
    if pid == 0:
        texts = [raised(CudaError, launch, 1, stream=0)]
        texts.append(raised(CudaError, _core.CudaLauncher, library, record("i")))
        texts.append(raised(CudaError, _core.cuda_devices))
        ok = all("CUDA error 3" in text and "start it with spawn" in text for text in texts)
        os._exit(0 if ok and "cuLaunchKernelEx" not in driver.log() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    launch(1, stream=0)


def child_forked_before_cuda_was_used_can_use_it(driver, image):
    library = _core.CudaLibrary(image, "test")
    driver.parameters("i")
    pid = os.fork()
    if pid == 0:
        _core.CudaLauncher(library, record("i"))(1, stream=0)
        os._exit(0 if driver.launches == 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    _core.CudaLauncher(library, record("i"))(1, stream=0)


def forked_child_is_told_of_descriptors(driver, image):
    launch = described(driver, image, (MAP,), "T", [128, 4, 4, 8, 8])
    pid = os.fork()
    if pid == 0:
        text = raised(CudaError, launch, Descriptor(64, [4, 4], [4, 1]), stream=0)
        os._exit(0 if "start it with spawn" in text else 1)
    assert os.waitpid(pid, 0)[1] == 0


def driver_is_chosen_once(driver, image):
    assert _core.cuda_devices() == ((9, 0),)
    assert "already in use" in raised(ValueError, _core.cuda_driver, "other.so")


# --- without the stand-in ------------------------------------------------------------------------


def missing_driver_is_explained(path, image):
    _core.cuda_driver(path)
    library = _core.CudaLibrary(image, "test")
    for _ in range(2):
        text = raised(CudaError, _core.cuda_devices)
        assert "the CUDA driver cannot be loaded" in text and path in text
        assert text == raised(CudaError, _core.CudaLauncher, library, record("i"))


def old_driver_is_explained(path, image):
    _core.cuda_driver(path)
    text = raised(CudaError, _core.cuda_devices)
    assert "too old, it lacks cuKernelGetParamInfo: expected one for CUDA 12.4 or newer" in text


def driver_without_tensor_maps_is_explained(path, image):
    driver = Driver(path)
    library = _core.CudaLibrary(image, "test")
    driver.sizes([128, 4, 4, 8, 8])
    record_of = record("T", tensormaps=(MAP,))
    text = raised(CudaError, _core.CudaLauncher, library, record_of)
    assert text == (
        "kernel scaled (test): it takes tensor descriptors, but the CUDA driver lacks "
        "cuTensorMapEncodeTiled: expected one for CUDA 12.0 or newer"
    )
    launcher(driver, image, "i")(1, stream=0)


BARE = (
    "missing_driver_is_explained",
    "old_driver_is_explained",
    "driver_without_tensor_maps_is_explained",
)

if __name__ == "__main__":
    scene = globals()[sys.argv[1]]
    scene(
        sys.argv[2] if sys.argv[1] in BARE else Driver(sys.argv[2]),
        Path(sys.argv[3]).read_bytes(),
    )
