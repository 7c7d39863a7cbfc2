"""Shared objects are loaded from memory; what is not one is refused before it is linked."""

from __future__ import annotations

import json
import shlex
import subprocess
import sysconfig

import pytest

SINGLE = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>
%(extra)s
static PyObject *
function(PyObject *self, PyObject *args)
{
    (void)self;
    return Py_BuildValue("is", %(value)s, getenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"));
}
static PyMethodDef methods[] = {{"%(name)s", function, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernel", NULL, %(size)s, methods};
PyMODINIT_FUNC PyInit_kernel(void) { %(init)s }
"""

PLAIN = {
    "extra": "", "value": "7", "name": "kernel", "size": "-1",
    "init": "return PyModule_Create(&module);",
}  # fmt: skip

SOURCES = {
    "single": {},
    "other": {"value": "8"},
    "renamed": {"name": "other"},
    "raises": {"init": 'PyErr_SetString(PyExc_ValueError, "no luck"); return NULL;'},
    "silent": {"init": "return NULL;"},
    "undefined": {"extra": "int precomp_nowhere(void);", "value": "precomp_nowhere()"},
    "constant": {
        "name": "function",
        "init": 'PyObject *m = PyModule_Create(&module); PyModule_AddIntConstant(m, "kernel", 3);'
        " return m;",
    },
    "multi": {
        "size": "0",
        "init": "return PyModuleDef_Init(&module);",
    },
    "multi_raises": {
        "size": "0",
        "extra": "static int run(PyObject *m)"
        '{ (void)m; PyErr_SetString(PyExc_ValueError, "no luck"); return -1; }'
        "static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)run}, {0}};",
        "init": "module.m_slots = slots; return PyModuleDef_Init(&module);",
    },
}


def compiler():
    return shlex.split(sysconfig.get_config_var("CC") or "cc")


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """name -> path of a small extension module."""
    directory = tmp_path_factory.mktemp("images")
    include = sysconfig.get_path("include")
    paths = {}
    for name, change in SOURCES.items():
        source = directory / f"{name}.c"
        source.write_text(SINGLE % {**PLAIN, **change})
        paths[name] = str(directory / f"{name}.so")
        command = [*compiler(), "-shared", "-fPIC", "-w", f"-I{include}", "-o", paths[name], source]
        subprocess.run(command, check=True)
    return paths


HEAD = """
import ctypes, glob, hashlib, json, os, random, sys
from precomp import _core
from precomp.errors import PrecompError
_core.bind_torch({"tensor_data_ptr": 12345})
images = json.loads(sys.stdin.read())
data = {name: open(path, "rb").read() for name, path in images.items()}
def descriptors():
    return len(os.listdir("/proc/self/fd"))
def error(image, *args):
    try:
        _core.load_kernel(image, *args)
    except PrecompError as e:
        return str(e)
    return None
"""


@pytest.fixture
def run(bare, images):
    """Run code with ``data`` (name -> bytes) at hand; returns what it prints as JSON."""

    def go(code, **environment):
        return bare("-c", HEAD + code, stdin=json.dumps(images), **environment)

    return go


def test_single_and_multi_phase_modules_are_loaded_with_the_accessor_of_torch(run):
    code = """
before = descriptors()
functions = [_core.load_kernel(data[name]) for name in ("single", "other", "multi")]
print(json.dumps([[f() for f in functions], descriptors() - before, dict(os.environ).get(
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"), os.listdir(os.environ["TMPDIR"])]))
"""
    assert run(code) == [[[7, "12345"], [8, "12345"], [7, "12345"]], 0, None, []]


def test_many_loads_of_equal_and_different_kernels_are_never_mixed_up(run):
    code = """
wrong = 0
for turn in range(100):
    names = ("single", "other")
    functions = _core.load_kernels([(n, data[n]) for n in names], turn % 3)
    wrong += [f()[0] for f in functions] != [7, 8]
    wrong += _core.load_kernel(data["other"])()[0] != 8
print(json.dumps([wrong, descriptors()]))
"""
    wrong, descriptors = run(code)
    assert wrong == 0
    assert descriptors < 10


def test_the_function_keeps_its_module_and_nothing_else_does(run):
    code = """
import gc, weakref
function = _core.load_kernel(data["single"])
module = weakref.ref(function.__self__)
gc.collect()
alive = module() is not None
del function
gc.collect()
print(json.dumps([alive, module() is None]))
"""
    assert run(code) == [True, True]


@pytest.mark.parametrize(
    ("image", "arguments", "message"),
    [
        ("renamed", ("kernel", "abc"), "kernel abc: its module is not a kernel: "),
        ("raises", ("kernel", "abc"), "kernel abc: its initialisation failed: no luck"),
        ("silent", (), "kernel kernel: its initialisation failed: no exception was set"),
        ("multi_raises", (), "kernel kernel: its initialisation failed: no luck"),
        ("constant", (), "its attribute 'kernel' is a int, expected a function of the module"),
        (
            "undefined",
            ("kernel", "abc"),
            "kernel abc: cannot be loaded: undefined symbol: precomp_nowhere",
        ),
        ("single", ("nothing",), "kernel nothing: it has no symbol PyInit_nothing"),
    ],
)
def test_a_kernel_that_cannot_start_is_named_with_the_reason(run, image, arguments, message):
    code = f"print(json.dumps(error(data[{image!r}], *{arguments!r})))"
    assert message in run(code)


def test_the_exception_of_an_initialisation_is_the_cause(run):
    code = """
try:
    _core.load_kernel(data["raises"])
except PrecompError as e:
    print(json.dumps(repr(e.__cause__)))
"""
    assert run(code) == "ValueError('no luck')"


def test_a_truncated_image_is_refused_at_any_length(run):
    code = """
image = data["single"]
lengths = [*range(0, 200), *range(200, len(image), 97), len(image) - 1]
accepted = [n for n in lengths if error(image[:n]) is None]
stripped = _core.strip_shared_object(image)
kept = [n for n in range(0, len(stripped), 61) if error(stripped[:n]) is None]
print(json.dumps([accepted, kept, _core.load_kernel(stripped)()[0]]))
"""
    assert run(code) == [[], [], 7]


def test_other_files_are_refused_with_what_they_are(run):
    code = """
image = bytearray(data["single"])
def changed(offset, value):
    copy = bytearray(image)
    copy[offset:offset + len(value)] = value
    return error(bytes(copy))
print(json.dumps([
    error(b""), error(b"x" * 100), error(open(sys.executable, "rb").read()) is not None,
    changed(4, b"\\1"), changed(16, b"\\1\\0"), changed(18, b"\\x08\\0"),
    changed(32, b"\\xff" * 8), changed(54, b"\\0\\0"), changed(40, b"\\xff" * 7 + b"\\x7f"),
]))
"""
    result = run(code)
    assert result[0].endswith("not a shared object: shorter than an ELF header")
    assert result[1].endswith("not a shared object: no ELF magic")
    assert result[2]
    assert "another machine" in result[3]
    assert result[4].endswith("not a shared object: another type of ELF file")
    assert "another machine" in result[5]
    assert "program headers" in result[6] and "program headers" in result[7]
    assert "section headers" in result[8]


def test_damaged_headers_never_reach_the_linker(run):
    code = """
import struct
image = data["single"]
phoff, phnum = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
places = [*range(64)]
for i in range(phnum):
    start = phoff + 56 * i
    places += [place for place in range(start, start + 56) if not 8 <= place - start < 16]
    kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", image, start)
    if kind == 2:
        tables = [struct.unpack_from("<qQ", image, at) for at in range(offset, offset + size, 16)]
        # string, symbol, hash and relocation tables moved out of the file
        moved = [offset + 16 * n + 8 for n, (tag, _) in enumerate(tables)
                 if tag in (5, 6, 7, 23, 25, 0x6ffffef5, 0x6ffffffe, 0x6ffffff0)]
refused = accepted = 0
child = os.fork()
if child == 0:
    for place in places:
        for value in {0, 0xff, image[place] ^ 0x80} - {image[place]}:
            copy = bytearray(image)
            copy[place] = value
            refused += error(bytes(copy)) is not None
    for place in moved:
        copy = bytearray(image)
        copy[place + 3] = 0x7f
        accepted += error(bytes(copy)) is None
    os._exit(0 if refused > 300 and len(moved) == 8 and not accepted else 1)
print(json.dumps(os.waitpid(child, 0)[1]))
"""
    assert run(code) == 0


@pytest.fixture
def shim(tmp_path):
    """Builds a library to preload that takes away parts of the system."""

    def build(source):
        path = tmp_path / "shim.so"
        (tmp_path / "shim.c").write_text(source)
        command = [*compiler(), "-shared", "-fPIC", "-w", "-o", path, tmp_path / "shim.c"]
        subprocess.run(command, check=True)
        return str(path)

    return build


NO_MEMFD = """
#include <errno.h>
int memfd_create(const char *name, unsigned flags) { errno = ENOSYS; return -1; }
"""
NO_PROC = """
#include <errno.h>
#include <string.h>
int access(const char *path, int mode)
{ if (strncmp(path, "/proc", 5) == 0) { errno = ENOENT; return -1; } return 0; }
"""
NO_EXEC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
void *dlopen(const char *path, int flags)
{
    void *(*next)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
    if (path != NULL && strstr(path, "/proc/self") == path)
        return next("/dev/null/failed to map segment", flags);
    return next(path, flags);
}
"""


@pytest.mark.parametrize("source", [NO_MEMFD, NO_PROC, NO_EXEC], ids=["memfd", "proc", "noexec"])
def test_without_anonymous_files_a_temporary_file_is_used_and_removed(run, shim, source):
    code = """
before = descriptors()
functions = _core.load_kernels([(n, data[n]) for n in ("single", "other")])
again = [_core.load_kernel(data["other"]) for _ in range(20)]
print(json.dumps([[f()[0] for f in functions], {f()[0] for f in again} == {8},
                  os.listdir(os.environ["TMPDIR"]), descriptors() - before]))
"""
    assert run(code, LD_PRELOAD=shim(source)) == [[7, 8], True, [], 0]


def test_without_any_file_the_error_says_what_to_do(run, shim):
    code = 'print(json.dumps(error(data["single"], "kernel", "abc")))'
    text = run(code, LD_PRELOAD=shim(NO_MEMFD), TMPDIR="/dev/null/none")
    assert text.startswith("kernel abc: cannot be loaded: ")
    assert "memfd_create: Function not implemented" in text
    assert "/dev/null/none" in text and "set TMPDIR to a writable directory" in text


def test_arguments_are_checked(run):
    code = """
def kind(call):
    try:
        call()
    except (TypeError, ValueError) as e:
        return type(e).__name__
print(json.dumps([
    kind(lambda: _core.load_kernel("text")),
    kind(lambda: _core.load_kernel(data["single"], "x" * 300)),
    kind(lambda: _core.load_kernels([b"x"])),
    kind(lambda: _core.load_kernels([("a", "b")])),
    kind(lambda: _core.load_kernels(7)),
    kind(lambda: _core.load_kernels([], -1)),
    _core.load_kernels([]),
]))
"""
    assert run(code) == ["TypeError", "ValueError", *["TypeError"] * 3, "ValueError", []]


def test_a_kernel_file_is_frozen_stripped_or_refused(run):
    code = """
from precomp.freeze.kernel import freeze_kernel
from precomp.freeze.store import Store, Unsupported
store = Store()
digest = freeze_kernel(images["single"], store)
(kind, stored), (name, blob) = next(iter(store.entries.items()))
reasons = []
open("text.so", "w").write("not a library")
for path in ("text.so", "/nonexistent/kernel.so"):
    try:
        freeze_kernel(path, store)
    except Unsupported as reason:
        reasons.append(str(reason))
print(json.dumps([kind, stored == name == digest == hashlib.sha256(blob).hexdigest(),
    len(blob) < len(data["single"]), _core.load_kernel(blob)()[0], reasons, len(store.entries)]))
"""
    kind, named, smaller, value, reasons, count = run(code)
    assert (kind, named, smaller, value, count) == ("kernel", True, True, 7, 1)
    assert "not a shared object" in reasons[0] and "cannot be read" in reasons[1]
