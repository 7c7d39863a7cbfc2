"""Guards on constants of classes, where Dynamo asks none.

torch 2.11 makes a number or a text that compiled code reads from a class part of the code and does
not guard it: a changed class would go unnoticed, in the process that compiled as in those that are
served. While capturing, such a value is guarded as later versions do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from precomp import torch_api


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Patch Dynamo for as long as the capture is active, if it asks no such guards."""
    if "class_constants" in torch_api.tables().BEHAVIOUR:
        return
    api = torch_api.capture()
    read = api.UserDefinedClassVariable.var_getattr

    @functools.wraps(read)
    def var_getattr(variable: Any, tx: Any, name: str) -> Any:
        result = read(variable, tx, name)
        constant = isinstance(result, api.ConstantVariable)
        if constant and variable.source is not None and name in _names(variable.value):
            source = api.AttrSource(variable.source, name)
            api.install_guard(source.make_guard(api.GuardBuilder.CONSTANT_MATCH))
        return result

    patch(api.UserDefinedClassVariable, "var_getattr", var_getattr)


def _names(cls: type) -> set[str]:
    """What *cls* and its bases hold, without what every class has."""
    return {name for base in cls.__mro__[:-1] for name in vars(base) if not name.startswith("__")}
