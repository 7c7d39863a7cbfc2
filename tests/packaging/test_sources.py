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
# A private module, or a private name in a module or class, of torch.
PRIVATE = re.compile(r"\btorch(\.\w+)*\._[a-zC]")
# Private names of Python and of its libraries.
OF_PYTHON = frozenset(
    "_DeadlockError _field_defaults _fields _find_and_load _get_module_lock _getframe "
    "_initializing _lock_unlock_module _lru_cache_wrapper _make _module_locks _run_exitfuncs "
    "_value_".split()
)


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


def own_names() -> set[str]:
    """The names that precomp itself gives: to functions, classes, variables and attributes."""
    names = {"_core"}
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    names.add(node.attr)
    return names | {path.stem for path in PYTHON}


def is_foreign(name: str, own: set[str]) -> bool:
    private = re.fullmatch(r"_[a-z]\w*", name) is not None and not name.startswith("_precomp")
    return private and name not in own | OF_PYTHON


def private_names(path: Path, own: set[str]) -> Iterator[str]:
    """Private names of torch in the code of a file: attributes, imports and strings, not prose.

    The targets of doors are left out: a door tells itself when it has no function to stand before.
    """
    tree = ast.parse(path.read_text())
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Door":
            apart |= {id(part) for part in ast.walk(node.args[2])}
        elif isinstance(node, ast.JoinedStr) and " " in ast.unparse(node):
            apart |= {id(part) for part in node.values}
    pieces = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".removesuffix"))
        for part in ast.iter_child_nodes(node)
    }
    for node in ast.walk(tree):
        if id(node) in apart:
            continue
        text = name = ""
        if isinstance(node, ast.Attribute):
            text, name = dotted(node), node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if " " in node.value else node.value
            name = "" if id(node) in pieces else text
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            text = " ".join(imports(node, ""))
        of_triton = path.name == "triton_kernels.py"  # names Triton's attributes, for all others
        if PRIVATE.search(text) or (is_foreign(name, own) and not of_triton):
            yield f"{node.lineno}: {text or name}"


def test_private_names_of_torch_are_in_torch_api_only():
    own = own_names()
    found = {}
    for path in PYTHON:
        if path.parent.name != "torch_api":
            names = list(private_names(path, own))
            if names:
                found[short(path)] = names
    assert found == {}


def test_the_installed_torch_has_the_attributes_that_are_used():
    """Each stands in the source file that the table names."""
    import torch

    from precomp import torch_api

    root = Path(torch.__file__).parent
    table = torch_api.tables().ATTRIBUTES
    missing = [
        f"{name} in {file}"
        for name, file in table.items()
        if not re.search(rf"\b{name}\b", (root / file).read_text())
    ]
    assert missing == []
    objects = ast.parse((ROOT / "precomp/torch_api/objects.py").read_text())
    used = {
        node.attr
        for node in ast.walk(objects)
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr)
    }
    assert used - torch_api.tables_of("2.13").ATTRIBUTES.keys() == {"_in_hop_compile"}


def test_the_source_is_valid_for_the_oldest_python():
    for path in PYTHON:
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))
