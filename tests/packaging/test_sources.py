"""Rules of the source that no compiler checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
C_FILES = sorted(ROOT.glob("csrc/*/*.[ch]"))
CORE = [path for path in C_FILES if path.parent.name == "core"]
BINDING = [path for path in C_FILES if path.parent.name == "binding"]
PYTHON = sorted(ROOT.glob("precomp/**/*.py"))
COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy", "triton")
PRIVATE = re.compile(r"\btorch\._(C|dynamo|inductor|functorch|guards)\b")

_DOORS = "doors patch what any torch has, supported or not; a name that is absent is passed over"
_STANDIN = "it answers imports of these very modules"
PRIVATE_NAMES_IN = {
    "doors/__init__.py": _DOORS,
    "doors/aot.py": _DOORS,
    "doors/autotune.py": _DOORS,
    "doors/dynamo.py": _DOORS,
    "doors/hooks.py": _DOORS,
    "doors/inductor.py": _DOORS,
    "doors/jit.py": _DOORS,
    "doors/state.py": _DOORS,
    "serve/standin.py": _STANDIN,
    "serve/standin_names.py": _STANDIN,
}


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_of(path: Path) -> str:
    """A C file without comments and string contents; lines keep their numbers."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'

    def blank(match: re.Match[str]) -> str:
        return '""' if match[0][0] == '"' else "\n" * match[0].count("\n") or " "

    text = path.read_text()
    includes = re.findall(r'^\s*#\s*include\s*"[^"]*"', text, re.M)
    text = re.sub(pattern, blank, text, flags=re.S)
    assert len(re.findall(r'^\s*#\s*include\s*""', text, re.M)) == len(includes)
    return text


def includes(path: Path) -> set[str]:
    found = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M)
    return {name.rpartition("/")[2] for name in found}


def functions(code: str) -> dict[str, str]:
    """Name -> body of the functions that a C file defines: the name starts a line."""
    found = re.finditer(r"^(\w+)\([^;{}]*\)\n\{\n(.*?)^\}", code, re.M | re.S)
    return {match[1]: match[2] for match in found}


def test_the_core_knows_nothing_of_python():
    assert CORE
    wrong = [short(path) for path in CORE if re.search(r"\bPy[A-Z_]\w*", code_of(path))]
    wrong += [short(path) for path in CORE if "Python.h" in includes(path)]
    headers = {path.name for path in BINDING if path.suffix == ".h"}
    wrong += [short(path) for path in CORE if includes(path) & headers]
    assert wrong == []


@pytest.mark.parametrize(("header", "stem"), [("cJSON.h", "pc_manifest"), ("zstd.h", "pc_blob")])
def test_one_file_knows_each_library(header, stem):
    users = [path for path in C_FILES if header in includes(path)]
    assert users
    assert [short(path) for path in users if not path.stem.startswith(stem)] == []


def test_no_jump_leaves_a_block_without_the_gil():
    wrong = []
    blocks = 0
    for path in BINDING:
        code = code_of(path)
        starts = len(re.findall(r"\bPy_BEGIN_ALLOW_THREADS\b", code))
        assert starts == len(re.findall(r"\bPy_END_ALLOW_THREADS\b", code)), short(path)
        found = re.finditer(r"\bPy_BEGIN_ALLOW_THREADS\b(.*?)\bPy_END_ALLOW_THREADS\b", code, re.S)
        for match in found:
            blocks += 1
            for jump in re.finditer(r"\b(return|goto|longjmp|Py_RETURN_\w+)\b", match[1]):
                line = code.count("\n", 0, match.start(1) + jump.start()) + 1
                wrong.append(f"{short(path)}:{line}: {jump[0]}")
            for call in re.finditer(r"\b_?Py[A-Z]\w*\s*\(", match[1]):
                line = code.count("\n", 0, match.start(1) + call.start()) + 1
                wrong.append(f"{short(path)}:{line}: {call[0]}")
    assert blocks
    assert wrong == []


def test_every_heap_type_takes_part_in_collection_and_visits_its_type():
    specs = 0
    wrong = []
    for path in BINDING:
        code = code_of(path)
        bodies = functions(code)
        slots = dict(re.findall(r"PyType_Slot (\w+)\[\] = \{(.*?)^\};", code, re.M | re.S))
        for name, spec in re.findall(r"PyType_Spec (\w+) = \{(.*?)^\};", code, re.M | re.S):
            specs += 1
            own = slots[re.search(r"\.slots = (\w+)", spec)[1]]
            traverse = re.search(r"\{Py_tp_traverse, (\w+)\}", own)
            if "Py_TPFLAGS_HAVE_GC" not in spec or traverse is None:
                wrong.append(f"{short(path)}: {name} is not collected")
            elif not re.search(r"Py_VISIT\(Py_TYPE\(\w+\)\)", bodies[traverse[1]]):
                wrong.append(f"{short(path)}: {traverse[1]} does not visit the type")
            elif "Py_tp_dealloc" not in own:
                wrong.append(f"{short(path)}: {name} has no dealloc")
            else:
                dealloc = bodies[re.search(r"\{Py_tp_dealloc, (\w+)\}", own)[1]]
                for call in ("PyObject_GC_UnTrack(", "Py_DECREF("):
                    if call not in dealloc:
                        wrong.append(f"{short(path)}: dealloc of {name} lacks {call})")
    assert specs == len(
        [match for path in BINDING for match in re.findall(r"PyType_Spec \w+ =", code_of(path))]
    )
    assert specs
    assert wrong == []


def test_what_goes_asks_its_type_for_nothing():
    """The collector may clear a type before the objects of it."""
    seen = 0
    wrong = []
    for path in BINDING:
        for name, body in functions(code_of(path)).items():
            if re.search(r"_(dealloc|clear|traverse)$", name):
                seen += 1
                found = re.findall(r"\b(core_\w+_by_type|PyType_GetModule\w*)\(", body)
                wrong += [f"{short(path)}: {name} calls {call}" for call in found]
    assert seen > 40
    assert wrong == []


def test_there_are_no_static_types():
    pattern = r"\bPyTypeObject\s+\w+\s*="
    assert [short(path) for path in BINDING if re.search(pattern, code_of(path))] == []


def test_files_stay_under_800_lines():
    long = {short(path): len(path.read_text().splitlines()) for path in C_FILES + PYTHON}
    assert {name: lines for name, lines in long.items() if lines >= 800} == {}


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that import statements name, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:
                parts = package.split(".")
                home = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [home])])
            yield from (f"{home}.{alias.name}" for alias in node.names)


def room_imports(room: str) -> dict[str, set[str]]:
    files = [path for path in PYTHON if path.parent == ROOT / "precomp" / room]
    assert files
    return {
        short(path): set(imports(ast.parse(path.read_text()), f"precomp.{room}")) for path in files
    }


def under(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


@pytest.mark.parametrize(("room", "other"), [("serve", "freeze"), ("freeze", "serve")])
def test_freeze_and_serve_never_import_each_other(room, other):
    wrong = {
        (path, name)
        for path, names in room_imports(room).items()
        for name in names
        if under(name, (f"precomp.{other}",))
    }
    assert wrong == set()


@pytest.mark.parametrize("room", ["serve", "torch_api"])
def test_serving_imports_nothing_of_the_compiler(room):
    wrong = {
        (path, name)
        for path, names in room_imports(room).items()
        for name in names
        if under(name, COMPILER)
    }
    assert wrong == set()


def test_the_names_for_serving_are_of_torch_core():
    from precomp.torch_api import SUPPORTED, tables_of

    for minor in SUPPORTED:
        homes = {address.partition(":")[0] for address in tables_of(minor).SERVE.values()}
        assert homes
        assert {home for home in homes if under(home, COMPILER)} == set()


def dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def private_names(path: Path) -> Iterator[str]:
    """Private names of torch in the code of a file: attributes, imports and strings, not prose."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.Attribute):
            text = dotted(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in prose else node.value
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            text = " ".join(imports(node, ""))
        if PRIVATE.search(text):
            yield f"{node.lineno}: {text}"


def test_private_names_of_torch_are_in_torch_api_and_freeze_only():
    found = {}
    for path in PYTHON:
        name = str(path.relative_to(ROOT / "precomp"))
        if not name.startswith(("torch_api/", "freeze/")):
            names = list(private_names(path))
            if names:
                found[name] = names
    assert {name: found[name] for name in found.keys() - PRIVATE_NAMES_IN.keys()} == {}
    assert PRIVATE_NAMES_IN.keys() - found.keys() == set(), "these need no exception any more"


def test_the_source_is_valid_for_the_oldest_python():
    for path in PYTHON:
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))
