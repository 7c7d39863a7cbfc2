"""The gate's hooks in the libtorch_cuda that is installed; needs no GPU, but ``nm``.

The symbol table of the file, which the product does not use, says where the table is and which
resolver each field starts with.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import torch

from precomp import CompileViolation, strict_no_compile

HOOKED = {
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetErrorString",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuLinkAddData_v2",
    "cuGetErrorString",
}
REFUSED = 0x5043
SOURCE = b'extern "C" __global__ void real_kernel(int *x) { x[0] = 1; }'
PTX = b".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry real_ptx() { ret; }\n"
Create = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
Compile = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
Load = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


def symbols(path: Path) -> tuple[int, int, dict[int, str]]:
    """Address and size of the table, and names of the resolvers by address, in the file."""
    text = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
    table = re.search(r"^(\w+) (\w+) \w _ZN2at4cuda6detail9lazyNVRTCE$", text, re.M)
    assert table, "the file has no symbol for the table"
    resolvers = re.findall(r"^(\w+) \w+ \w _ZN2at4cuda6detail6_stubs(\d+)(\w+)$", text, re.M)
    names = {int(address, 16): name[: int(length)] for address, length, name in resolvers}
    return int(table[1], 16), int(table[2], 16), names


def main() -> None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    maps = Path("/proc/self/maps").read_text().splitlines()
    base = int(next(line for line in maps if line.endswith(str(path))).partition("-")[0], 16)
    address, size, names = symbols(path)
    table = (ctypes.c_void_p * (size // 8)).from_address(base + address)
    before = list(table)
    fields = {names.get((value or 0) - base, "?"): i for i, value in enumerate(before)}
    assert HOOKED <= set(fields), fields

    program = ctypes.c_void_p()

    def create() -> int:
        function = Create(table[fields["nvrtcCreateProgram"]])
        return function(ctypes.addressof(program), SOURCE, None, 0, None, None)

    gate = strict_no_compile()
    try:
        with gate:
            inside = list(table)
            assert create() == REFUSED
            function = Load(table[fields["cuModuleLoadData"]])
            assert function(ctypes.addressof(program), PTX) == REFUSED
    except CompileViolation as violation:
        assert violation.what == "CUDA kernel real_kernel", violation
    else:
        raise AssertionError("not raised")
    changed = {name for name, i in fields.items() if inside[i] != before[i]}
    assert changed == HOOKED, changed
    assert [v.kind for v in gate.violations] == ["build", "driver_jit"]
    assert list(table) == before

    with strict_no_compile(allow=("build",)):
        assert create() == 0
        function = Compile(table[fields["nvrtcCompileProgram"]])
        assert function(program, 0, None) == 0
        assert list(table) == inside
    nvrtc = ctypes.CDLL(f"libnvrtc.so.{torch.version.cuda.partition('.')[0]}")
    for name, i in fields.items():
        expected = before[i]
        if name in ("nvrtcCreateProgram", "nvrtcCompileProgram"):
            expected = ctypes.cast(getattr(nvrtc, name), ctypes.c_void_p).value
        assert table[i] == expected, name
    print(f"torch {torch.__version__}: {len(changed)} of {len(before)} fields, all right")


if __name__ == "__main__":
    main()
