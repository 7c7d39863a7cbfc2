"""Which names frozen bytecode and guards use, of torch's compiler modules above all.

Serving takes them from the stand-in (docs/standin.md), so capture has to know them all.
"""

from __future__ import annotations

import dis
import marshal
import sys
import types
from typing import Any

from precomp.torch_api import modules


def code_names(code: types.CodeType) -> set[str]:
    """The global names that a code object and the code nested in it look up.

    Not all of ``co_names``: Dynamo adds names there that its bytecode does not use.
    """
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith(("_GLOBAL", "_NAME"))
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= code_names(constant)
    return names


def compiler_names(value: Any) -> set[tuple[str, str]]:
    """``(module, name)`` of everything in a record that lives in a module of torch's compiler."""
    found: set[tuple[str, str]] = set()
    if type(value) is tuple:
        if len(value) >= 3 and value[0] in ("P", "PF") and in_compiler(value[1]):
            found.add((value[1], value[2].partition(".")[0]))
        elif len(value) >= 3 and value[0] == "C" and in_compiler(value[1]):
            found.add((value[1], value[2][0][1]))
        for item in value:
            found |= compiler_names(item)
    return found


def guarded_names(record: dict[str, Any]) -> set[tuple[str, str]]:
    """``(module, name)`` that the guards of a frame record read from compiler modules."""
    aliases = {
        name: spec[1]
        for name, spec in record["globals"]
        if spec[0] == "mod" and in_compiler(spec[1])
    }
    modules: dict[int, str] = {}
    found: set[tuple[str, str]] = set()
    for op in record["tape"]["ops"]:
        if op[0] == "dict_getitem_manager" and op[3] and op[3][1] in aliases:
            modules[op[2]] = aliases[op[3][1]]
        elif op[0] in ("getattr_manager", "generic_getattr_manager") and op[1] in modules:
            found.add((modules[op[1]], op[3][1]))
        elif op[0] == "add_epilogue_lambda_guard" and op[2][0][0] == "gfn":
            # Generated code reads G['alias'].name: take each name that the module has.
            names = marshal.loads(op[2][0][1][0]).co_names
            for constant in op[2][0][1][2]:
                module = aliases.get(constant[1]) if constant[0] == "k" else None
                if module is not None:
                    offered = vars(sys.modules[module])
                    found |= {(module, name) for name in names if name in offered}
    return found


def in_compiler(module: Any) -> bool:
    return isinstance(module, str) and module.startswith(modules.STANDIN)


def aliased_names(code: types.CodeType, modules: dict[str, str]) -> set[tuple[str, str]]:
    """``(module, name)`` that *code* reads from the modules behind the global names *modules*."""
    found: set[tuple[str, str]] = set()
    previous: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if (
            previous is not None
            and previous.opname == "LOAD_GLOBAL"
            and previous.argval in modules
            and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        ):
            found.add((modules[previous.argval], instruction.argval))
        previous = instruction
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= aliased_names(constant, modules)
    return found
