"""What the gate does in libtorch_cuda's table of NVRTC and driver functions: one scene a process.

``python nvrtc_scenes.py SCENE LIBRARY`` runs the function SCENE against the stand-in LIBRARY
(standin_cuda.c). Torch is not imported.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import warnings

from precomp import CompileViolation, _core, strict_no_compile

SOURCE = b'#define f\n__device__ int help(int);\nextern "C" __launch_bounds__(512, 4)\n__global__\n'
SOURCE += b"void bessel_j0_kernel(const int N, float *x) { x[help(N)] = 0; }"
PTX = b".version 7.0\n.target sm_80\n.visible .entry ptx_kernel(.param .u64 a) { ret; }\n"
CUBIN = b"\x7fELF" + bytes(60)
FAT = b"\x50\xed\x55\xba" + bytes(60)
REFUSED = 0x5043
CREATE, COMPILE, LOAD, LINK = range(4)


class Library:
    """The stand-in, with the functions that call through its table."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)  # lets go of the GIL, as torch's operators do
        self.held = ctypes.PyDLL(path)  # keeps it, as torch's jiterator does
        for name in ("nvrtc_text", "cu_text"):
            getattr(self.c, name).restype = ctypes.c_char_p
        self.c.table_copy.restype = ctypes.c_size_t
        self.calls = (ctypes.c_int * 4).in_dll(self.c, "calls")

    def table(self) -> tuple[int, ...]:
        """The words of the table."""
        room = ctypes.create_string_buffer(2000)
        size = self.c.table_copy(room)
        return struct.unpack(f"{size // 8}P", room.raw[:size])


class swallowing:
    """A gate whose violations the scene looks at."""

    def __init__(self, allow=()):
        self.gate = strict_no_compile(allow=allow)

    def __enter__(self):
        return self.gate.__enter__()

    def __exit__(self, *exc_info):
        try:
            self.gate.__exit__(*exc_info)
        except CompileViolation:
            return exc_info[0] is None
        return False


def only(*kinds):
    every = ("trace", "lower", "build", "load", "tune", "record", "fallback", "spawn", "driver_jit")
    return tuple(kind for kind in every if kind not in kinds)


def raised(call):
    try:
        call()
    except CompileViolation as violation:
        return violation
    raise AssertionError("not raised")


def compiling_is_refused_by_name_and_raised_at_exit(library):
    gate = strict_no_compile()

    def block():
        with gate:
            assert library.c.create(SOURCE, None) == REFUSED

    violation = raised(block)
    assert gate.violations == (violation,)
    assert violation.kind == "build"
    assert violation.what == "CUDA kernel bessel_j0_kernel"
    assert "NVRTC" in violation.why and violation.hint
    assert violation.where == f"{__file__}:{block.__code__.co_firstlineno + 2}"
    assert violation.args == (
        violation.kind,
        violation.what,
        violation.why,
        violation.where,
        violation.hint,
    )
    text = library.c.nvrtc_text(REFUSED).decode()
    assert "unknown" in text  # outside a gate it is the library's own
    assert library.calls[CREATE] == 0
    assert library.c.create(SOURCE, None) == 0
    assert library.calls[CREATE] == 1


def torch_error_says_who_refused(library):
    with swallowing():
        status = library.c.create(SOURCE, None)
        text = library.c.nvrtc_text(status).decode()
        assert "strict_no_compile" in text and "bessel_j0_kernel" in text
        assert library.c.nvrtc_text(0) == b"NVRTC_SUCCESS"
        status = library.c.load(PTX)
        text = library.c.cu_text(status).decode()
        assert "strict_no_compile" in text and "ptx_kernel" in text
        assert library.c.cu_text(0) == b"unknown error"


def table_is_what_it_was_after_the_gate(library):
    before = library.table()
    with swallowing():
        inside = library.table()
        with swallowing():
            assert library.table() == inside
        assert library.table() == inside
        library.c.create(SOURCE, None)
        library.c.load(CUBIN)
    assert library.table() == before
    changed = [i for i, (a, b) in enumerate(zip(before, inside, strict=True)) if a != b]
    assert len(changed) == 7


def functions_that_torch_has_resolved_are_watched(library):
    assert library.c.create(SOURCE, None) == library.c.compile() == library.c.load(PTX) == 0
    before = library.table()
    with swallowing() as gate:
        assert library.c.create(SOURCE, None) == REFUSED
        assert library.c.load(PTX) == REFUSED
    assert [v.kind for v in gate.violations] == ["build", "driver_jit"]
    assert library.table() == before


def resolving_inside_the_gate_does_not_lose_the_hook(library):
    reference = library.table()
    with swallowing(only("driver_jit")) as gate:
        inside = library.table()
        for _ in range(2):
            assert library.c.create(SOURCE, None) == 0
            assert library.c.compile() == 0
            assert library.c.load(CUBIN) == 0
            assert library.table() == inside
    assert gate.violations == ()
    assert library.calls[:3] == [2, 2, 2]
    after = library.table()
    exports = ("nvrtcCreateProgram", "nvrtcCompileProgram", "cuModuleLoadData")
    found = [ctypes.cast(getattr(library.c, name), ctypes.c_void_p).value for name in exports]
    assert [new for old, new in zip(reference, after, strict=True) if old != new] == found
    with swallowing():
        assert library.c.create(SOURCE, None) == REFUSED


def program_made_before_the_gate_is_not_compiled(library):
    library.c.create(SOURCE, None)
    with swallowing() as gate:
        assert library.c.compile() == REFUSED
    assert [v.kind for v in gate.violations] == ["build"]


def calls_past_the_table_are_seen(library):
    """cuDNN's front end in libtorch_cuda calls libnvrtc by the import table."""
    with swallowing() as gate:
        assert library.c.create_directly(SOURCE) == REFUSED
    assert gate.violations[0].what == "CUDA kernel bessel_j0_kernel"
    assert library.c.create_directly(SOURCE) == 0


def ptx_is_told_from_code(library):
    cases = (
        (library.c.load, PTX, REFUSED),
        (library.c.load_ex, PTX, REFUSED),
        (library.c.load, CUBIN, 0),
        (library.c.load_ex, FAT, 0),
    )
    for load, image, status in cases:
        with swallowing(only("driver_jit")) as gate:
            assert load(image) == status
        expected = [("driver_jit", "CUDA kernel ptx_kernel")] if status else []
        assert [(v.kind, v.what) for v in gate.violations] == expected
    with swallowing() as gate:
        assert library.c.link_data(1, PTX, len(PTX), b"named") == REFUSED
        assert library.c.link_data(0, CUBIN, len(CUBIN), None) == 0
        assert library.c.link_complete() == 0
    assert [v.kind for v in gate.violations] == ["driver_jit"]


def kernel_of_the_cache_on_disk_is_a_load(library):
    with swallowing() as gate:
        assert library.c.load(CUBIN) == REFUSED
    assert [v.kind for v in gate.violations] == ["load"]
    with strict_no_compile(allow=only("load")):
        pass
    with swallowing(only("load")) as gate:  # what was compiled just now was not looked up
        assert library.c.create(SOURCE, None) == library.c.compile() == 0
        assert library.c.load(CUBIN) == 0
        assert library.c.load(CUBIN) == REFUSED
    assert [v.kind for v in gate.violations] == ["load"]


def allowed_kinds_pass(library):
    with strict_no_compile(allow=("build", "load", "driver_jit")):
        assert library.c.create(SOURCE, None) == library.c.compile() == 0
        assert library.c.load(PTX) == library.c.load_ex(CUBIN) == 0
        assert library.c.link_data(1, PTX, len(PTX), None) == 0


def every_thread_is_watched(library):
    with swallowing() as gate:
        assert library.c.create_in_thread(SOURCE) == REFUSED  # unknown to Python
        assert library.held.create(SOURCE, None) == REFUSED  # with the GIL
        statuses = []
        thread = threading.Thread(target=lambda: statuses.append(library.c.create(SOURCE, None)))
        thread.start()
        thread.join()
        assert statuses == [REFUSED]
    unknown, held, known = gate.violations
    assert unknown.where == ""
    assert held.where.startswith(__file__) and known.where.startswith(__file__)


def threads_enter_and_leave_while_others_compile(library):
    before = library.table()
    stop = threading.Event()
    statuses = set()

    def compile_on():
        while not stop.is_set():
            statuses.add(library.c.create(SOURCE, None))

    def enter_and_leave():
        for _ in range(300):
            with swallowing():
                pass

    workers = [threading.Thread(target=compile_on) for _ in range(2)]
    gates = [threading.Thread(target=enter_and_leave) for _ in range(2)]
    for thread in workers + gates:
        thread.start()
    for thread in gates:
        thread.join()
    stop.set()
    for thread in workers:
        thread.join()
    assert statuses <= {0, REFUSED}
    create = ctypes.cast(library.c.nvrtcCreateProgram, ctypes.c_void_p).value
    assert library.table() in (before, (create, *before[1:]))
    with swallowing():
        assert library.c.create(SOURCE, None) == REFUSED


def pending_exception_of_the_thread_is_kept(library):
    class Late:
        def __del__(self):
            library.held.create(SOURCE, None)

    def fail():
        late = Late()  # noqa: F841 - dies while the exception is on its way
        raise KeyError("mine")

    with swallowing() as gate:
        try:
            fail()
        except KeyError as error:
            assert error.args == ("mine",)
    assert len(gate.violations) == 1


def exempt_thread_compiles(library):
    with strict_no_compile(), _core.gate_exempt():
        assert library.c.create(SOURCE, None) == 0


def names_of_kernels(library):
    cases = {
        b"__global__ void plain(int x) {}": "plain",
        b"__global__ void __launch_bounds__(128) bounded(int x) {}": "bounded",
        b"__global__ void first(); __global__ void\nlast ( int x) {}": "last",
        b"template <class T> __global__ T* odd$name(T x) {}": "odd$name",
        b"int no_kernel() { return 0; }": "program",
        b"__global__": "program",
        b"__global__ void unfinished": "program",
        b"__global__ void __launch_bounds__(": "program",
        b"__global__ void " + b"a" * 5000 + b"(": "a" * 199,
    }
    for source, name in cases.items():
        with swallowing() as gate:
            library.c.create(source, b"program.cu")
        assert gate.violations[0].what == f"CUDA kernel {name}", source[:40]
    with swallowing() as gate:
        library.c.create(b"\xff\xfe __global__", None)
    assert gate.violations[0].what == "CUDA kernel (no name)"


def library_that_is_loaded_inside_the_gate_is_watched(path):
    with swallowing() as gate:
        library = Library(path)
        assert _core.gate_watch_nvrtc() is None  # as after each import of a watched module
        assert library.c.create(SOURCE, None) == REFUSED
    assert len(gate.violations) == 1
    assert library.c.create(SOURCE, None) == 0


def unknown_layout_is_told_once_and_left_alone(path):
    library = Library(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            before = library.table()
            with strict_no_compile():
                assert library.table() == before
                assert library.c.create(SOURCE, None) == 0
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert "does not see what libtorch compiles with NVRTC: libtorch_cuda.so" in str(
        warning.message
    )
    print(_core.gate_watch_nvrtc())


LATE = ("library_that_is_loaded_inside_the_gate_is_watched",)
UNKNOWN = "unknown_layout_is_told_once_and_left_alone"


if __name__ == "__main__":
    scene = globals()[sys.argv[1]]
    early = sys.argv[1] not in (*LATE, UNKNOWN)
    scene(Library(sys.argv[2]) if early else sys.argv[2])
