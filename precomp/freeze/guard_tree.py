"""What is known of torch's guard classes, and what is recorded of one guard tree."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

from precomp import torch_api
from precomp.freeze.values import Encoded

# Managers: the argument that holds the accessor's key (None: no key).
MANAGERS: dict[str, str | None] = {
    "framelocals_manager": "key",
    "globals_dict_manager": "f_globals",
    "global_weakref_manager": "global_name",
    "lambda_manager": "python_lambda",
    "dict_getitem_manager": "key",
    "getitem_manager": "key",
    "list_getitem_manager": "key",
    "tuple_getitem_manager": "key",
    "set_getitem_manager": "index",
    "tuple_iterator_getitem_manager": "index",
    "indexed_manager": "idx",
    "tensor_property_size_manager": "idx",
    "tensor_property_stride_manager": "idx",
    "tensor_property_storage_offset_manager": "idx",
    "generic_getattr_manager": "attr",
    "getattr_manager": "attr",
    "get_key_manager": "index",
    "get_value_manager": "index",
    "grad_manager": None,
    "get_generic_dict_manager": None,
    "func_defaults_manager": None,
    "func_kwdefaults_manager": None,
    "weakref_call_manager": None,
    "call_function_no_args_manager": None,
    "type_manager": None,
    "type_dict_manager": None,
    "type_mro_manager": None,
    "code_manager": None,
    "closure_manager": None,
}

# Leaves: what each argument is. k value, w verbose parts, u user stack (dropped), i id of an
# object, f function, t example tensor, m function modes, d live dict. As in guard_tape.c.
LEAVES: dict[str, str] = {
    "add_type_match_guard": "iwu",
    "add_id_match_guard": "iwu",
    "add_equals_match_guard": "kwu",
    "add_length_check_guard": "kwu",
    "add_dict_length_check_guard": "kwu",
    "add_tuple_iterator_length_guard": "kiwu",
    "add_range_iterator_match_guard": "kkkiwu",
    "add_none_match_guard": "wu",
    "add_true_match_guard": "wu",
    "add_false_match_guard": "wu",
    "add_not_none_guard": "wu",
    "add_float_is_nan_guard": "wu",
    "add_complex_is_nan_guard": "wu",
    "add_default_device_guard": "wu",
    "add_dispatch_key_set_guard": "kwu",
    "add_global_state_guard": "kwu",
    "add_torch_function_mode_stack_guard": "mwu",
    "add_no_hasattr_guard": "kwu",
    "add_dict_contains_guard": "kkwu",
    "add_set_contains_guard": "kkwu",
    "add_dual_level_match_guard": "kwu",
    "add_dimension_marking_guard": "kkkwu",
    "add_dynamic_indices_guard": "kwu",
    "add_mapping_keys_guard": "kwu",
    "add_fake_script_type_match_guard": "kiwu",
    "add_tensor_match_guard": "tkkkwukk",
    "add_lambda_guard": "fwu",
    "add_epilogue_lambda_guard": "fwu",
    "add_dict_version_guard": "dwu",
}

# Recorded only to be refused by name.
REFUSED: dict[str, str] = {
    "set_local_state": "guards that torch loaded from a package",
    "install_symbolic_shape_guard": "C++ shape guards (enable_cpp_symbolic_shape_guards)",
}

RELATIONS = (
    "install_no_tensor_aliasing_guard",
    "install_object_aliasing_guard",
    "install_storage_overlapping_guard",
)

# Methods that add nothing to a tree.
QUERIES = frozenset(
    "_pybind11_conduit_v1_ attach_compile_id check check_verbose clone_manager fail_count "
    "get_accessors get_child_managers get_epilogue_lambda_guards get_key_value_managers "
    "get_leaf_guards get_local_state get_source get_type_of_guarded_value has_no_accessors "
    "has_object_aliasing_guard is_guarded_value_immutable "
    "is_recursive_dict_tag_matching_disabled is_tag_safe is_tag_safe_root "
    # Where torch may skip guards that held before: a rebuilt tree checks them all.
    "mark_tag_safe mark_tag_safe_root".split()
)

# Functions whose text torch makes of an object id, by tag.
NUMBERED = {
    "subclass": "the metadata of the tensor subclass",
    "spec": "the mesh and the placements",
    "opaque": "the guarded values of the opaque object",
}

ROOT = 0
DEFAULTS = "defaults"  # a node in the defaults of a function of Dynamo: torch's version fixes them
IMPLIED = "implied"  # a node whose guards another accessor already makes sure of
RELATIONS_TEXT = "identity relations of objects"
PROBE_TEXT = "precomp: a probe"
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


# ------------------------------------------------------------------ categories of examples

_CATEGORIES: dict[type, str] = {
    type(None): "n",
    bool: "b",
    int: "i",
    float: "f",
    str: "s",
    bytes: "y",
    types.CodeType: "c",
    types.BuiltinFunctionType: "bf",
}


def probe_immutable(names: Any) -> set[str]:
    """The categories that C++ takes for immutable, asked from C++ itself."""
    import torch

    examples: dict[str, Any] = {
        "n": None,
        "b": True,
        "i": 0,
        "f": 0.0,
        "s": "",
        "y": b"",
        "c": probe_immutable.__code__,
        "bf": len,
        "tu": (),
        "tm": ([],),
        "o": object(),
        "d": {},
        "T": torch.empty(0),
        "P": torch.nn.Parameter(torch.empty(0)),
    }
    root = torch_api.serve().RootGuardManager()
    kind = names.guard_manager_type.GUARD_MANAGER
    return {
        category
        for category, example in examples.items()
        if root.getitem_manager(category, category, example, kind).is_guarded_value_immutable()
    }


def category_of(value: Any, immutable: bool) -> str:
    import torch

    if isinstance(value, dict):
        return "d"
    if isinstance(value, torch.nn.Parameter):
        return "P"
    if isinstance(value, torch.Tensor):
        return "T"
    exact = _CATEGORIES.get(type(value))
    if exact is not None:
        return exact
    if isinstance(value, tuple):
        return "tu" if immutable else "tm"
    for base, name in ((int, "i"), (float, "f"), (str, "s")):
        if isinstance(value, base):
            return name
    return "o"


# ------------------------------------------------------------------ one tree


class Identity:
    """An id guard whose object has no name: it takes part in a relation of objects."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Probe:
    """A callable that precomp puts into a tree, with PROBE_TEXT as its text, to be told that the
    tree is checked. It is no guard: the recorder passes over it."""

    def __init__(self, call: Callable[[Any], bool]) -> None:
        self._call = call

    def __call__(self, value: Any) -> bool:
        return self._call(value)


class Generated:
    """A generated guard function, before its global names are renamed."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code


class Tree:
    """What was recorded of one root guard manager."""

    def __init__(self, root: Any) -> None:
        self.wrappers = [root]  # alive, so that pybind keeps giving the same ones
        self.numbers = {id(root): ROOT}
        self.ops: list[tuple[Any, ...]] = []
        self.problems: list[str] = []
        self.constant: dict[int, str] = {}  # node -> module of Dynamo it is in, DEFAULTS or IMPLIED
        self.replaced: set[tuple[int, str]] = set()  # (node, kind) that a function stands for
        self.registries: set[int] = set()  # nodes that hold the registry of pytree nodes
        self.globals_node: int | None = None
        self.gradients: dict[int, Any] = {}  # node -> Seen, for precomp.freeze.live
        self.type_lists: dict[int, Encoded] = {}  # nodes that hold a list of types that may grow
        self.weak: dict[int, int] = {}  # node of a weak reference -> id of its object
        self.notes: Any = None  # Notes of tracing, for precomp.freeze.live
        self.stable: dict[str, str] = {}  # texts that depend on hashing -> without that
        self.tls: tuple[int, int] | None = None
        self.device: Encoded = ("k", None)
        self.ranks = False  # it guards an object that tells where the rank is
        self.groups: set[str] = set()  # the names of the process groups among these

    def add(self, wrapper: Any) -> int:
        number = len(self.wrappers)
        self.wrappers.append(wrapper)
        self.numbers[id(wrapper)] = number
        return number

    def source(self, number: int) -> str:
        return "the frame" if number == ROOT else str(self.wrappers[number].get_source())
