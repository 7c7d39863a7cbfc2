"""Guards that cannot be data refuse the frame, each by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._C._dynamo.guards as native
from torches import OLD

# How torch writes an item of a set.
ITEM = "___set_getitem(L['names'], {})" if torch.__version__ >= "2.14" else "list(L['names'])[{}]"
EXPECTED = {
    "type_without_a_name": (
        "L['thing']: no module leads to the class __main__.local_class.<locals>.Local: "
        "a class must be found again by its name"
    ),
    "identity_of_a_type_without_a_name": (
        "L['thing']: identity of class __main__.local_class.<locals>.Local"
    ),
    "metadata_that_is_no_data": (
        "L['t']: metadata of a tensor subclass: a __main__.Version cannot be written as data"
    ),
    "opaque_value_that_is_no_data": (
        "L['handle']: values of an opaque object: a __main__.Version cannot be written as data"
    ),
    "equality_with_an_object": "L['version']: a __main__.Version cannot be written as data",
    "place_in_a_set": "\n".join(
        f"{ITEM.format(i)}: the place of a builtins.str in a set depends on the process"
        for i in range(2)
    ),
    "weak_global": "weak reference to a global object that guards reach in no other way",
    "cpp_shape_guards": (
        "(0, L['t'].stride()[0]): C++ shape guards (enable_cpp_symbolic_shape_guards)"
    ),
    "recursive_dict_tags": "tags: True",  # recorded; the harness proves the rebuilt tree
    "tensors_without_fast_path": "L['t']: torch takes a torch.Tensor for immutable: False",
    "identity_of_a_module": "L['thing']: identity of a torch.nn.modules.linear.Linear",
    "identity_of_an_optimizer": (
        "L['thing']: identity of a torch.optim.sgd.SGD"
        if OLD
        else "id() of a SGD, which is another one in each process"
    ),
    "identity_of_a_tensor": (
        "L['thing']: identity of a torch.Tensor"
        if OLD
        else "id() of a Tensor, which is another one in each process"
    ),
    "inlined_saved_tensor_hooks": "the frame: saved tensor hooks that Dynamo inlines",
    "late_tree": "guards that were built while nothing was recorded",
    "unrecorded_guard": "the frame: the rebuilt guard manager has other guards",
    "rejected_frame": "the guards do not accept the frame they were made for",
    "unknown_method": (
        "precomp: guards of this torch that precomp does not know: GuardManager.add_brand_new_guard"
    ),
}


if hasattr(native.RootGuardManager, "set_local_state"):
    EXPECTED["packaged_state"] = "the frame: guards that torch loaded from a package"


@pytest.mark.parametrize("name", EXPECTED)
def test_refused_by_name(name: str, refusals: dict[str, Any]) -> None:
    assert refusals[name] == EXPECTED[name]


def test_every_case_is_checked(refusals: dict[str, Any]) -> None:
    assert set(refusals) == set(EXPECTED)
