"""Guards on constants, where Dynamo asks none.

torch 2.11 makes some of what compiled code reads part of the code and does not guard it: numbers
and texts of classes, values of enums, defaults of named tuples and of functions. A change would go
unnoticed, in the process that compiled as in those that are served. While capturing, such values
are guarded as later versions do.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any

from precomp import torch_api


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Patch Dynamo for as long as the capture is active, if it asks no such guards."""
    if "constant_guards" in torch_api.tables().BEHAVIOUR:
        return
    api = torch_api.capture()
    read, construct = (
        api.UserDefinedClassVariable.var_getattr,
        api.UserDefinedClassVariable.call_function,
    )

    def guard(source: Any) -> None:
        api.install_guard(source.make_guard(api.GuardBuilder.CONSTANT_MATCH))

    @functools.wraps(read)
    def var_getattr(variable: Any, tx: Any, name: str) -> Any:
        result = read(variable, tx, name)
        if variable.source is not None and name in _names(variable.value):
            source = api.AttrSource(variable.source, name)
            value = getattr(result, "value", None)
            if isinstance(result, api.ConstantVariable):
                guard(source)
            elif isinstance(value, enum.Enum) and api.ConstantVariable.is_literal(value.value):
                guard(api.AttrSource(source, "_value_"))
        return result

    @functools.wraps(construct)
    def call_function(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        defaults = getattr(variable.value, "_field_defaults", None)  # of a named tuple
        if variable.source is not None and isinstance(defaults, dict):
            source = api.AttrSource(variable.source, "_field_defaults")
            for name, value in defaults.items():
                if api.ConstantVariable.is_literal(value):
                    guard(api.DictGetItemSource(source, name))
        return construct(variable, tx, args, kwargs)

    patch(api.UserDefinedClassVariable, "var_getattr", var_getattr)
    patch(api.UserDefinedClassVariable, "call_function", call_function)
    patch(api.dynamo_config, "skip_guards_on_constant_func_defaults", False)


def _names(cls: type) -> set[str]:
    """What *cls* and its bases hold, without what every class has."""
    return {name for base in cls.__mro__[:-1] for name in vars(base) if not name.startswith("__")}
