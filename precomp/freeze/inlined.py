"""Source that a frame depends on beside its own: the rows that serving compares.

``rows`` makes the keys ``inlined``, ``sources``, ``torch``, ``values``, ``watched`` and ``classes``
of a frame record (docs/internals.md, section 4.1) from what the trace went through.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator
from typing import Any

from precomp import _core
from precomp.freeze import codepath
from precomp.freeze.compiler_names import in_compiler
from precomp.freeze.store import Unsupported
from precomp.freeze.traced import RESUME, Traced, fixed_by_version
from precomp.freeze.values import Unencodable, encode
from precomp.sources import class_text, qualname, source_digests, under, watched_names
from precomp.torch_api import modules, objects

# Dynamo goes from the call of a module to its forward when these are torch's own.
_MODULE_CALL = tuple(
    (modules.MODULE, (("a", "Module"), ("a", name), ("f", "__code__")))
    for name in objects.MODULE_CALLS
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """*code* and all code among its constants: what the digest of *code* covers."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_code(constant)


def rows(original: types.CodeType, traced: Traced, tape: dict[str, Any]) -> dict[str, Any]:
    """The part of a frame record about source. Raises Unsupported for code that cannot be found
    again by name."""
    own = {id(code) for code in nested_code(original)}
    inlined, sources, library, values = set(), set(), set(), set()
    functions = {key: function for key, (_, _, function) in traced.inlined.items()}
    codes = {key: (code, module) for key, (code, module, _) in traced.inlined.items()}
    codes |= traced.called
    named = _named_classes(tape["ops"])
    generated = {module for module, _ in named} | {module for _, module in codes.values()}
    for key, (code, module) in codes.items():
        if key in own or RESUME in code.co_name:
            continue
        digest = _core.code_digest(code)
        fixed = fixed_by_version(code.co_filename)
        hints = [module, *sorted(filter(None, generated))] if _is_generated(code) else [module]
        place = None if fixed and in_compiler(module) else codepath.find(code, *hints)
        if fixed:
            if place is not None and place[0].startswith("torch."):
                library.add((*place, digest))
            continue
        if place is not None:
            inlined.add((*place, digest))
            values |= set(_values(place, functions.get(key), key in traced.called))
            continue
        if key not in functions and str(module).startswith("namedtuple_"):
            continue  # a tuple of torch or Python; those of users are found
        holder = _module_of_file(code.co_filename)
        if holder is None or digest not in source_digests(holder):
            raise Unsupported(
                f"inlined function {qualname(code)} cannot be found again: "
                "no module holds it, nor the source file of one"
            )
        sources.add((holder, digest))
    library.update((*place, _core.code_digest(_core.code_at(*place))) for place in _MODULE_CALL)
    watched = _attribute_names([original, *(code for code, _ in codes.values())])
    return {
        "inlined": tuple(sorted(inlined)),
        "sources": tuple(sorted(sources)),
        "torch": tuple(sorted(library)),
        "values": tuple(sorted(values, key=repr)),
        "watched": tuple(sorted(watched)),
        "classes": _classes(named, inlined, codes, watched),
    }


def _is_generated(code: types.CodeType) -> bool:
    return code.co_filename.startswith("<")


def _module_of_file(filename: str) -> str | None:
    for name, module in sorted(sys.modules.items()):
        if getattr(module, "__file__", None) == filename:
            return name
    return None


def _values(
    place: tuple[str, codepath.Steps], function: Any, called: bool
) -> Iterator[tuple[str, codepath.Steps, Any]]:
    """Plain values that a function holds: its defaults; of one that ran for real, which no guard
    protects, also the globals and the closure that it reads."""
    module, steps = place
    if steps[-1] != ("f", "__code__"):
        return
    found = _core.object_at(module, steps[:-1])
    if not isinstance(found, types.FunctionType) or (not called and found is not function):
        return
    for name in ("__defaults__", "__kwdefaults__"):
        value = getattr(found, name)
        if value:
            items = value if isinstance(value, tuple) else value.values()
            if all(map(_has_encoding, items)):
                yield module, (*steps[:-1], ("f", name)), encode(value)
    if not called:
        return
    for i, cell in enumerate(found.__closure__ or ()):
        if _is_plain(cell):
            yield module, (*steps[:-1], ("c", i)), encode(cell.cell_contents)
    space = found.__globals__
    for name in _global_names(found.__code__):
        if type(space.get(name, space)) in _PLAIN:
            yield str(space["__name__"]), (("a", name),), encode(space[name])


def _has_encoding(value: Any) -> bool:
    try:
        encode(value)
    except Unencodable:
        return False
    return True


def _is_plain(cell: Any) -> bool:
    try:
        return type(cell.cell_contents) in _PLAIN
    except ValueError:  # an empty cell
        return False


def _global_names(code: types.CodeType) -> set[str]:
    names = {
        str(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"
    }
    return names.union(*(_global_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


# ------------------------------------------------------------------ classes


def _attribute_names(codes: list[types.CodeType]) -> set[str]:
    """Every name that *codes* may look up on an object: their names, and strings for getattr."""
    names: set[str] = set()
    for code in codes:
        for part in nested_code(code):
            names.update(part.co_names)
            names.update(c for c in part.co_consts if type(c) is str and c.isidentifier())
    return {name for name in names if not name.startswith(codepath.COUNTED)}


def _classes(
    roots: set[tuple[str, str]], inlined: set[Any], codes: dict[int, Any], watched: set[str]
) -> tuple[Any, ...]:
    """Rows ``(module, qualname, bases, parts)`` of the classes that guards or paths name.

    What a name of an object means depends on all classes of its MRO. *bases* are their names; a
    part ``(index in the MRO, names, ((name, code digest), ...))`` has the watched names that one of
    them defines (None for a class of torch or Python) and the inlined code that it holds.
    """
    for module, steps, _ in inlined:
        roots = roots | _on_the_way(module, steps)
    kinds = [type(cls) for cls in map(_class_at, roots) if cls is not None]
    roots |= {(kind.__module__, kind.__qualname__) for kind in kinds}
    found, done = [], set()
    for module, name in sorted(roots):
        cls = _class_at((module, name))
        if cls is None:
            continue
        parts = []
        for i, base in enumerate(cls.__mro__):
            if base in done:
                continue
            done.add(base)
            mine = not _is_fixed(base)
            space = vars(base)
            names = tuple(sorted(watched_names(base, watched))) if mine else None
            held = [
                (n, _core.code_digest(code))
                for n, code in ((n, under(value)) for n, value in space.items())
                if code is not None and id(code) in codes
                # Torch's own code is compared by its path.
                if mine or not fixed_by_version(code.co_filename)
            ]
            if mine or held:
                parts.append((i, names, tuple(sorted(held))))
        if parts or not _is_fixed(cls):
            found.append((module, name, tuple(map(class_text, cls.__mro__)), tuple(parts)))
    return tuple(found)


def _named_classes(value: Any) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    if type(value) is tuple:
        if len(value) == 4 and value[0] == "P" and not in_compiler(value[1]):
            found.add((value[1], value[2]))
        for item in value:
            found |= _named_classes(item)
    return found


def _on_the_way(module: str, steps: codepath.Steps) -> set[tuple[str, str]]:
    names: list[str] = []
    for letter, name in steps:
        if letter != "a":
            break
        names.append(name)
    return {(module, ".".join(names[:count])) for count in range(1, len(names))}


def _class_at(place: tuple[str, str]) -> Any:
    module, name = place
    try:
        found = _core.object_at(module, tuple(("a", part) for part in name.split(".")))
    except _core.Stale:
        return None
    return found if isinstance(found, type) else None


def _is_fixed(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return fixed_by_version(getattr(module, "__file__", None) or "<frozen >")
