"""The pytest plugin, in pytest runs of its own."""

import os
import re
import subprocess
import sys

import pytest

# Compiles without torch: what a test program does through torch in real life.
HELPERS = """
import subprocess, sys, threading
import pytest

def compile_it():
    sys.audit("subprocess.Popen", "gcc", ["gcc", "-c", "x.c"], None, None)

def compile_swallowed():
    try:
        compile_it()
    except BaseException:
        pass
"""


class Run:
    def __init__(self, process):
        self.code = process.returncode
        self.text = process.stdout + process.stderr
        self.counts = {
            word.rstrip("s"): int(number)
            for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", self.text)
        }


@pytest.fixture
def run(tmp_path):
    def run(source, *options, ini="", conftest="", plugins=()):
        (tmp_path / "helpers.py").write_text(HELPERS)
        (tmp_path / "test_it.py").write_text("from helpers import *\n" + source)
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n" + ini)
        loaded = ("precomp.pytest_plugin", *plugins)
        process = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"),
                *(word for name in loaded for word in ("-p", name)),
                *options,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
        )
        return Run(process)

    return run


BOTH = """
def test_compiles(): compile_it()
def test_does_not(): pass
"""


def test_without_options_nothing_is_forbidden(run):
    assert run(BOTH).counts == {"passed": 2}


def test_option_forbids_in_the_whole_run(run):
    result = run(BOTH, "--no-compile")
    assert result.counts == {"failed": 1, "passed": 1}
    assert "FAILED test_it.py::test_compiles - precomp.errors.CompileViolation: [spawn] gcc" in (
        result.text
    )


def test_ini_key_forbids_in_the_whole_run(run):
    result = run(BOTH, ini="no_compile = true\n")
    assert result.counts == {"failed": 1, "passed": 1}
    assert run(BOTH, "-o", "no_compile=false", ini="no_compile = true\n").counts == {"passed": 2}


def test_allowed_kinds_from_option_and_ini(run):
    assert run(BOTH, "--no-compile", "--no-compile-allow=tune,spawn").counts == {"passed": 2}
    ini = "no_compile = true\nno_compile_allow = spawn\n"
    assert run(BOTH, ini=ini).counts == {"passed": 2}
    assert run(BOTH, "--no-compile-allow=tune", ini=ini).counts == {"failed": 1, "passed": 1}


def test_mark_forbids_in_the_test_function(run):
    source = """
@pytest.fixture
def warm(): compile_it()

@pytest.mark.no_compile
def test_marked(warm): compile_it()
@pytest.mark.no_compile
def test_warm(warm): pass
@pytest.mark.no_compile(allow=["spawn"])
def test_allowed(): compile_it()
def test_other(): compile_it()
"""
    result = run(source)
    assert result.counts == {"failed": 1, "passed": 3}
    assert "FAILED test_it.py::test_marked" in result.text


def test_mark_wins_over_the_run(run):
    source = """
@pytest.mark.no_compile(False)
def test_off(): compile_it()
@pytest.mark.no_compile(allow=("spawn",))
def test_allowed(): compile_it()
@pytest.mark.no_compile
class TestClass:
    @pytest.mark.no_compile(enabled=False)
    def test_closest(self): compile_it()
    def test_class(self): compile_it()
"""
    result = run(source, "--no-compile")
    assert result.counts == {"failed": 1, "passed": 3}
    assert "FAILED test_it.py::TestClass::test_class" in result.text


PROBE = """
from precomp import _core

KINDS = ("trace", "load", "tune")

def forbidden():
    return "".join(kind[:2] for kind in KINDS if _core.gate_active(kind)) or "-"

@pytest.fixture
def before():
    print("PHASE setup", forbidden())
    yield
    print("PHASE teardown", forbidden())

def probe():
    print("PHASE call", forbidden())
"""

ALL, LOAD, TUNE, NONE = "trlotu", "trtu", "trlo", "-"  # LOAD, TUNE: all but these
MARK_OFF = "no_compile(False)"
MARK = "no_compile(allow=['load'])"
RUN = ("--no-compile", "--no-compile-allow=tune")


# Rows of the table in docs/pytest.md: what is forbidden in set-up, function and tear-down.
@pytest.mark.parametrize(
    ("mark", "options", "ini", "fixture", "expected"),
    [
        ("", (), "", False, (NONE, NONE, NONE)),
        (MARK, (), "", False, (NONE, LOAD, NONE)),
        (MARK_OFF, (), "", True, (NONE, NONE, NONE)),
        (MARK_OFF, RUN, "", True, (NONE, NONE, NONE)),
        (MARK, RUN, "", False, (TUNE, LOAD, TUNE)),
        (MARK, RUN, "", True, (TUNE, LOAD, TUNE)),
        ("", RUN, "", False, (TUNE, TUNE, TUNE)),
        ("", (), "no_compile = true\nno_compile_allow = load", False, (LOAD, LOAD, LOAD)),
        ("", RUN, "no_compile = false\nno_compile_allow = load", False, (TUNE, TUNE, TUNE)),
        ("", ("-o", "no_compile=false"), "no_compile = true", False, (NONE, NONE, NONE)),
        ("", (), "", True, (NONE, ALL, NONE)),
        ("", (), "no_compile_allow = load", True, (NONE, LOAD, NONE)),
        ("", ("--no-compile-allow=tune",), "no_compile_allow = load", True, (NONE, TUNE, NONE)),
        (MARK, ("--no-compile-allow=tune",), "", True, (NONE, LOAD, NONE)),
    ],
)
def test_who_decides(run, mark, options, ini, fixture, expected):
    source = PROBE
    if mark:
        source += f"@pytest.mark.{mark}\n"
    source += f"def test_it(before{', no_compile' if fixture else ''}): probe()\n"
    result = run(source, "-s", *options, ini=ini + "\n")
    assert result.counts == {"passed": 1}
    found = dict(re.findall(r"PHASE (\w+) (\S+)", result.text))
    assert (found["setup"], found["call"], found["teardown"]) == expected


def test_wrong_mark_is_told(run):
    result = run("@pytest.mark.no_compile(speed=1)\ndef test_it(): pass\n")
    assert result.code and "speed" in result.text
    result = run('@pytest.mark.no_compile(allow=["speed"])\ndef test_it(): pass\n')
    assert "unknown kind 'speed'" in result.text


def test_fixture_forbids_from_there_on(run):
    source = """
@pytest.fixture
def warm(): compile_it()
@pytest.fixture
def cold(no_compile): compile_it()

def test_forbidden(warm, no_compile): compile_it()
def test_swallowed(no_compile): compile_swallowed()
def test_gate(no_compile): assert no_compile.active and no_compile.violations == ()
def test_later_fixture(cold): pass
def test_after(): compile_it()
"""
    result = run(source)
    assert result.counts == {"failed": 2, "error": 1, "passed": 2}
    assert "ERROR test_it.py::test_later_fixture - precomp.errors.CompileViolation" in result.text
    assert "FAILED test_it.py::test_swallowed - precomp.errors.CompileViolation" in result.text


@pytest.mark.parametrize("mark", ["@pytest.mark.no_compile", ""])
def test_swallowed_violation_fails_the_test_that_caused_it(run, mark):
    source = f"""
def in_thread():
    thread = threading.Thread(target=compile_it)
    thread.start()
    thread.join()

class Finalized:
    def __del__(self): compile_it()

{mark}
def test_swallowed(): compile_swallowed()
{mark}
def test_thread(): in_thread()
{mark}
def test_finalizer(): Finalized()
{mark}
def test_clean(): pass
"""
    options = () if mark else ("--no-compile",)
    result = run(source, "-p", "no:threadexception", "-p", "no:unraisableexception", *options)
    assert result.counts == {"failed": 3, "passed": 1}
    assert result.text.count("- precomp.errors.CompileViolation: [spawn]") == 3


def test_wider_fixtures_fail_the_test_that_first_needs_them(run):
    source = """
@pytest.fixture(scope="session")
def session(): return 1
@pytest.fixture(scope="class")
def model(session): compile_it()

class TestModel:
    def test_first(self, model): pass
    def test_other(self, session): pass
"""
    result = run(source, "--no-compile")
    assert result.counts == {"error": 1, "passed": 1}
    assert "ERROR test_it.py::TestModel::test_first - precomp.errors.CompileViolation" in (
        result.text
    )
    assert run(
        source.replace("def test_first", "@pytest.mark.no_compile\n    def test_first")
    ).counts == {"passed": 2}


def test_teardown_is_covered_in_a_whole_run(run):
    source = """
@pytest.fixture
def late():
    yield
    compile_it()
def test_it(late): pass
"""
    assert run(source, "--no-compile").counts == {"passed": 1, "error": 1}


def test_collection_is_covered_in_a_whole_run(run):
    result = run("compile_it()\ndef test_it(): pass\n", "--no-compile")
    assert result.code == 2 and "CompileViolation: [spawn]" in result.text
    result = run("compile_swallowed()\ndef test_it(): pass\n", "--no-compile")
    assert result.code == 2 and "CompileViolation: [spawn]" in result.text


def test_unittest_classes(run):
    source = """
import unittest

class Case(unittest.TestCase):
    def setUp(self): self.value = 1
    def test_compiles(self): compile_it()
    def test_swallowed(self): compile_swallowed()
    def test_clean(self): self.assertEqual(self.value, 1)
"""
    result = run(source, "--no-compile")
    assert result.counts == {"failed": 2, "passed": 1}
    assert result.text.count("- precomp.errors.CompileViolation: [spawn]") == 2


def test_marks_and_fixtures_on_unittest_classes(run):
    source = """
import unittest

@pytest.mark.no_compile
class Marked(unittest.TestCase):
    def setUp(self): compile_it()
    @classmethod
    def setUpClass(cls): compile_it()
    def test_clean(self): pass

@pytest.mark.usefixtures("no_compile")
class WithFixture(unittest.TestCase):
    def test_compiles(self): compile_it()
    def test_clean(self): pass

class Mixed(unittest.TestCase):
    @pytest.mark.no_compile
    def test_marked(self): compile_swallowed()
    def test_other(self): compile_it()
"""
    result = run(source)
    # unittest runs setUp as a part of the test function; setUpClass is a fixture of the class.
    assert result.counts == {"failed": 3, "passed": 2}
    for name in ("Marked::test_clean", "WithFixture::test_compiles", "Mixed::test_marked"):
        assert f"FAILED test_it.py::{name} - precomp.errors.CompileViolation" in result.text


def test_asyncio_of_unittest(run):
    source = """
import asyncio, unittest

class Case(unittest.IsolatedAsyncioTestCase):
    async def test_compiles(self):
        await asyncio.sleep(0)
        compile_it()
    async def test_in_task(self):
        await asyncio.gather(asyncio.to_thread(compile_it), return_exceptions=True)
    async def test_clean(self): await asyncio.sleep(0)
"""
    result = run(source, "--no-compile")
    assert result.counts == {"failed": 2, "passed": 1}
    assert result.text.count("- precomp.errors.CompileViolation: [spawn]") == 2


def test_pytest_asyncio(run):
    pytest.importorskip("pytest_asyncio")
    source = """
import asyncio
import pytest_asyncio

@pytest_asyncio.fixture
async def cold(): compile_it()

@pytest.mark.asyncio
@pytest.mark.no_compile
async def test_compiles():
    await asyncio.sleep(0)
    compile_it()

@pytest.mark.asyncio
async def test_fixture(no_compile, cold): pass

@pytest.mark.asyncio
@pytest.mark.no_compile
async def test_clean(): await asyncio.sleep(0)
"""
    result = run(source, plugins=("pytest_asyncio.plugin",))
    assert result.counts == {"failed": 1, "error": 1, "passed": 1}
    assert result.text.count("- precomp.errors.CompileViolation: [spawn]") == 2


def test_doctests(run):
    source = '''
def documented():
    """
    >>> compile_it()
    """

def clean():
    """
    >>> 1 + 1
    2
    """
'''
    result = run(source, "--no-compile", "--doctest-modules", "test_it.py")
    assert result.counts == {"failed": 1, "passed": 1}
    assert "CompileViolation: [spawn]" in result.text


def test_doctest_files_and_the_fixture_in_them(run, tmp_path):
    (tmp_path / "test_page.txt").write_text(
        ">>> from helpers import *\n>>> gate = getfixture('no_compile')\n>>> compile_swallowed()\n"
    )
    (tmp_path / "test_other.txt").write_text(">>> from helpers import *\n>>> compile_it()\n")
    result = run("", "--doctest-glob=test_*.txt")
    assert result.counts == {"failed": 1, "passed": 1}
    assert "FAILED test_page.txt::test_page.txt - precomp.errors.CompileViolation" in result.text


def test_async_tests(run):
    pytest.importorskip("anyio")
    source = """
import anyio

@pytest.fixture
def anyio_backend(): return "asyncio"

@pytest.mark.anyio
@pytest.mark.no_compile
async def test_compiles():
    await anyio.sleep(0)
    compile_it()

@pytest.mark.anyio
async def test_to_thread(no_compile):
    await anyio.to_thread.run_sync(compile_it)

@pytest.mark.anyio
@pytest.mark.no_compile
async def test_clean(): await anyio.sleep(0)
"""
    result = run(source, plugins=("anyio.pytest_plugin",))
    assert result.counts == {"failed": 2, "passed": 1}
    assert result.text.count("- precomp.errors.CompileViolation: [spawn]") == 2
    assert "never retrieved" not in result.text


def test_xdist(run):
    pytest.importorskip("xdist")
    result = run(BOTH, "-n2", "--no-compile", plugins=("xdist.plugin",))
    assert result.counts == {"failed": 1, "passed": 1}
    assert "precomp.errors.CompileViolation: [spawn] gcc" in result.text


def test_xdist_forbids_in_each_worker(run):
    pytest.importorskip("xdist")
    source = """
@pytest.fixture(scope="session")
def model(): compile_it()
@pytest.mark.parametrize("number", range(4))
def test_model(model, number): pass
@pytest.mark.no_compile
def test_marked(): compile_swallowed()
def test_fixture(no_compile): compile_swallowed()
"""
    result = run(source, "-n2", plugins=("xdist.plugin",))
    assert result.counts == {"failed": 2, "passed": 4}
    result = run(
        "compile_it()\ndef test_it(): pass\n", "-n2", "--no-compile", plugins=("xdist.plugin",)
    )
    assert result.code and "CompileViolation: [spawn]" in result.text
    ini = "no_compile = true\nno_compile_allow = spawn\n"
    assert run(BOTH, "-n2", ini=ini, plugins=("xdist.plugin",)).counts == {"passed": 2}


def test_skips_and_expected_failures_stay_what_they_are(run):
    source = """
@pytest.mark.no_compile
def test_skip(): pytest.skip("no")
@pytest.mark.no_compile
@pytest.mark.xfail(strict=True)
def test_xfail(): assert False
"""
    result = run(source)
    assert result.code == 0 and "1 skipped, 1 xfailed" in result.text


PREPARE = """
import precomp

class Prepared:
    def uninstall(self): print("UNINSTALLED")

def prepare(path):
    if "missing" in path:
        raise precomp.ArtifactError("no such artifact")
    print("PREPARED", path)
    return Prepared()

precomp.prepare = prepare
"""


def test_prepare_comes_before_collection(run):
    source = "print('COLLECTED')\ndef test_it(): pass\n"
    for options, ini in (
        (("--precomp-prepare=a.precomp",), ""),
        ((), "precomp_prepare = a.precomp\n"),
        (("--precomp-prepare=a.precomp",), "precomp_prepare = other\n"),
    ):
        result = run(source, "-s", *options, ini=ini, conftest=PREPARE)
        assert result.code == 0
        order = [result.text.index(word) for word in ("PREPARED a.", "COLLECTED", "UNINSTALLED")]
        assert order == sorted(order)
    result = run(source, "--precomp-prepare=missing", conftest=PREPARE)
    assert result.code == 4 and "missing: no such artifact" in result.text


def test_prepare_is_done_by_the_workers_of_xdist(run):
    pytest.importorskip("xdist")
    conftest = PREPARE.replace('print("PREPARED", path)', 'open(f"done-{os.getpid()}", "x")')
    source = """
import glob, os
def test_it(): assert os.path.exists(f"done-{os.getpid()}")
def test_others(): assert len(glob.glob("done-*")) <= 2
"""
    options = ("-n2", "--precomp-prepare=a.precomp")
    result = run(source, *options, conftest="import os\n" + conftest, plugins=("xdist.plugin",))
    assert result.counts == {"passed": 2}


def test_plugin_is_light():
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import precomp.pytest_plugin\n"
        "print(sorted(set(sys.modules) - before))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "['precomp', 'precomp.pytest_plugin']"
