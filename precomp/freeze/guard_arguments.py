"""Encodes the arguments of the calls that build a guard tree (docs/guards.md)."""

from __future__ import annotations

import types
from typing import Any

from precomp import _core, torch_api
from precomp.freeze import codepath, live
from precomp.freeze.guard_lambdas import digest_of_guard, encode_function
from precomp.freeze.guard_tree import MANAGERS, Identity, Tree, category_of
from precomp.freeze.values import (
    Encoded,
    Unencodable,
    describe,
    encode,
    is_library,
    sort_encoded,
)
from precomp.torch_api import modules

# Dynamo's own modules whose content a user may set: guards on them are kept.
_SETTABLE = (modules.CONFIG,)


def encode_key(name: str, value: Any) -> Any:
    """The key of an accessor; None where a method takes none."""
    if name == "globals_dict_manager" or MANAGERS[name] is None:
        return None
    if name == "lambda_manager":
        return encode_function(value)
    return encode(value)


def encode_example(made: Any, example: Any, immutable_kinds: set[str]) -> Any:
    """The category of an example value: C++ takes its fast paths by it."""
    if isinstance(made, torch_api.serve().DictGuardManager):
        if not isinstance(example, dict):
            raise Unencodable(f"a guard on the keys of {describe(example)}")
        return ("D", encode(type(example)), dict.__len__(example))
    immutable = bool(made.is_guarded_value_immutable())
    category = category_of(example, immutable)
    if immutable != (category in immutable_kinds):
        raise Unencodable(f"torch takes {describe(example)} for immutable: {immutable}")
    return category


def encode_argument(
    name: str, letter: str, value: Any, values: tuple[Any, ...], objects: dict[int, Any]
) -> Any:
    """One argument of a leaf guard, by its *letter* in LEAVES; *values* are all of them and
    *objects* the objects under id guards by their id."""
    if letter == "k":
        return encode(value)
    if letter == "w":
        return (value,) if isinstance(value, str) else tuple(value)
    if letter == "f":
        return encode_function(value)
    if letter == "m":
        return tuple(encode(type(mode)) for mode in value)
    if letter == "t":
        zero_dim = len(list(values[1])) == 0
        dtype = str(value.dtype).removeprefix("torch.")
        return (str(value.device), dtype, bool(value.requires_grad), zero_dim)
    if letter == "d":
        if value is not torch_api.capture().supported_nodes:
            raise Unencodable("the version of a dict (DICT_VERSION)")
        return ("nodes", _encode_nodes(value))
    return _encode_identity(name, value, objects)


def _encode_identity(name: str, number: int, objects: dict[int, Any]) -> Any:
    if number not in objects:
        raise Unencodable("the identity of an object that was not seen")
    value = objects[number]
    if name != "add_id_match_guard":
        return encode(value)
    if is_value(value):
        return Identity(value)
    if live.is_live(value):
        return live.Held(value)
    if isinstance(value, types.CodeType):
        found = codepath.find(value)
        if found is not None:
            return ("C", *found, _core.code_digest(value))
        return ("late", "code", _core.code_digest(value))
    try:
        return encode(value)
    except Unencodable:
        if isinstance(value, types.FunctionType):
            return _encode_late_function(value)
        _refuse_identity(value)
        return Identity(value)


def opaque_digest(tree: Tree, node: int) -> str:
    """The digest of the ``guard_fn`` that the type of the opaque object on *node* registered."""
    kinds = [
        op[2][1]
        for op in tree.ops
        if op[:2] == ("add_fake_script_type_match_guard", node) and op[2][1]
    ]
    if not kinds:
        raise Unencodable("values of an opaque object whose type is not guarded")
    info = torch_api.serve().opaque_object_info(_core.decode(kinds[-1]))
    return digest_of_guard(info.guard_fn)


def _encode_nodes(registry: Any) -> Encoded:
    kinds = sort_encoded(map(encode, registry))
    for kind in kinds:
        if kind[0] not in ("P", "PF"):
            raise Unencodable(f"a pytree node type without a module: {kind}")
    return kinds


def is_immutable_value(value: Any) -> bool:
    import torch

    return type(value) in (
        int,
        float,
        complex,
        str,
        bytes,
        tuple,
        frozenset,
        range,
        slice,
        torch.Size,
        torch.device,
    )


def is_value(value: Any) -> bool:
    """Plain content: an id guard on it cannot be rebuilt from the content."""
    return is_immutable_value(value) or type(value) in (dict, list, set)


def _refuse_identity(value: Any) -> None:
    import torch

    kinds = (
        torch.Tensor,
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.Generator,
        torch.Stream,
        type,
        types.ModuleType,
        types.MethodType,
        types.BuiltinFunctionType,
        types.GeneratorType,
    )
    if isinstance(value, kinds) or is_library(type(value).__module__):
        raise Unencodable(f"identity of {describe(value)}")


def _encode_late_function(value: types.FunctionType) -> Encoded:
    if value.__closure__ or value.__dict__:
        raise Unencodable(f"identity of the {describe(value)}, which no module leads to")
    defaults = encode((value.__defaults__, value.__kwdefaults__))
    return ("late", "function", _core.code_digest(value.__code__), defaults)


def refuse_hashed(example: Any) -> None:
    if not isinstance(example, (int, float, complex)):
        raise Unencodable(f"the place of {describe(example)} in a set depends on the process")


def is_dynamo(module: str) -> bool:
    inside = module == modules.DYNAMO or module.startswith(f"{modules.DYNAMO}.")
    return inside and module not in _SETTABLE


def _is_library_file(filename: str) -> bool:
    import os

    import torch

    roots = (os.path.dirname(torch.__file__), os.path.dirname(os.__file__))
    return filename.startswith("<frozen ") or (
        filename.startswith(roots) and "site-packages" not in filename.removeprefix(roots[0])
    )


def is_fixed(name: str, values: tuple[Any, ...], objects: dict[int, Any]) -> bool:
    """Whether the version of torch fixes what a guard inside a module of Dynamo says: it is about
    a function, class or module. Anything else there could be set by a user."""
    if name in ("add_type_match_guard", "add_id_match_guard"):
        value = objects.get(values[0])
        if isinstance(value, types.CodeType) and _is_library_file(value.co_filename):
            return True
        module = value.__name__ if isinstance(value, types.ModuleType) else None
        return is_library(str(module or getattr(value, "__module__", None) or "builtins"))
    return name in ("add_dict_contains_guard", "add_no_hasattr_guard")
