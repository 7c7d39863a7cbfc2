"""Guards and encoded values in words: each kind that an artifact can hold has its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_artifacts import STATE

from precomp import guard_functions, guard_words, value_words
from precomp.freeze.guard_tree import LEAVES, MANAGERS, RELATIONS

DOCS = Path(__file__).parents[2] / "docs"
TORCH_TEXT = "the text of torch"
RAW = re.compile(r"\(\s*'(k|P|PF|l|t|d|M|C)'")
PATH = (("framelocals_manager", ("t", (("k", "o"), ("k", 0)))), ("getattr_manager", ("k", "a")))

VALUES = {
    "k": (("k", 1.5), "1.5"),
    "N": (("N",), "NotImplemented"),
    "t": (("t", (("k", 1),)), "(1,)"),
    "l": (("l", (("k", 1), ("k", "a"))), "[1, 'a']"),
    "s": (("s", (("k", 1),)), "{1}"),
    "f": (("f", (("k", 1),)), "frozenset({1})"),
    "d": (("d", ((("k", "a"), ("l", ())),)), "{'a': []}"),
    "sl": (("sl", ("k", None), ("k", 3), ("k", 1)), "slice(None, 3, 1)"),
    "r": (("r", 0, 8, 2), "range(0, 8, 2)"),
    "sz": (("sz", (2, 3)), "torch.Size([2, 3])"),
    "dt": (("dt", "float16"), "torch.float16"),
    "dv": (("dv", "cuda:1"), "torch.device('cuda:1')"),
    "en": (("en", ("P", "m", "Color", "type m.Color"), "RED", ("k", 1)), "m.Color.RED"),
    "ns": (("ns", "aten"), "torch.ops.aten"),
    "op": (("op", "aten", "add", "Tensor"), "torch.ops.aten.add.Tensor"),
    "opp": (("opp", "aten", "add"), "torch.ops.aten.add"),
    "M": (("M", "os.path"), "module os.path"),
    "dk": (("dk", 255), "dispatch keys 0xff"),
    "irm": (("irm", "Base"), "InverseReturnMode.Base"),
    "gs": (("gs", "{}"), "the global state {}"),
    "dks": (("dks", (("k", "a"),)), "dict_keys(['a'])"),
    "mp": (("mp", ("d", ())), "mappingproxy({})"),
    "C": (
        ("C", "m", (("a", "make"), ("f", "__code__"), ("k", 1)), "00"),
        "the code of m.make nested code 1",
    ),
    "P": (("P", "builtins", "dict", "type builtins.dict"), "dict"),
    "FS": (
        ("FS", ("P", "m", "Net", "type m.Net")),
        "the class that fully_shard made of m.Net",
    ),
    "PF": (("PF", "m", "f", "00"), "m.f"),
    "A": (("A", "range_iterator"), "range_iterator"),
    "np": (("np", "<f4", bytes.fromhex("0000c03f")), "numpy.float32(1.5)"),
    "pt": (
        ("pt", ("PF", "m", "f", "00"), ("t", (("k", 1),)), ("d", ((("k", "a"), ("k", 2)),))),
        "functools.partial(m.f, 1, a=2)",
    ),
    "nw": (
        (
            "nw",
            ("P", "m", "Cut", "type m.Cut"),
            ("t", (("k", 0),)),
            ("d", ((("k", "by"), ("k", 2)),)),
        ),
        "m.Cut(0, by=2)",
    ),
}


def tags_of_page(name: str, heading: str) -> set[str]:
    """First cells of the table that follows *heading*: the tags in it."""
    text = (DOCS / name).read_text().split(heading, 1)[1]
    table = text[text.index("|---") :].split("\n\n")[0]
    firsts = [line.split("|")[1] for line in table.splitlines()[1:]]
    tags = {tag for first in firsts for tag in re.findall(r"`(\w+)`", first)}
    assert len(tags) > 10
    return tags


def test_every_kind_of_value_is_told():
    assert tags_of_page("internals.md", "Objects that are not plain") == set(VALUES)


@pytest.mark.parametrize("tag", VALUES)
def test_a_value_in_words(tag):
    encoded, words = VALUES[tag]
    assert value_words.of_value(encoded) == words


def test_an_unknown_kind_of_value_is_named_not_dumped():
    assert value_words.of_value(("new", 1, 2)) == "a value of the unknown kind 'new'"


TYPE = ("P", "pkg", "Model", "type pkg.Model")
TEXT = (TORCH_TEXT,)
SPECIAL = {
    "add_tensor_match_guard": (
        ("cpu", "float32", False, False),
        ("l", (("k", 8), ("k", None))),
        ("l", (("k", 32), ("k", 1))),
        ("k", "L['o']"),
        ("check_tensor(L['o'], DispatchKeySet(CPU, Conjugate, AutogradCPU), ...)",),
        ("P", "torch", "Tensor", "type torch.Tensor"),
        ("dk", 1),
    ),
    "add_global_state_guard": (("gs", STATE), TEXT),
    "add_dimension_marking_guard": (
        ("d", ((("k", "_dynamo_dynamic_indices"), ("s", (("k", 0),))),)),
        ("l", (("k", "_dynamo_static_indices"),)),
        ("d", ()),
        TEXT,
    ),
    "add_dynamic_indices_guard": (("s", (("k", 0),)), TEXT),
    "add_mapping_keys_guard": (("l", (("k", "a"),)), TEXT),
    "add_dict_contains_guard": (("k", False), ("k", "a"), TEXT),
    "add_set_contains_guard": (("k", True), ("k", "a"), TEXT),
    "add_dispatch_key_set_guard": (("dk", 255), TEXT),
    "add_no_hasattr_guard": (("k", "a"), TEXT),
    "add_dict_version_guard": (("nodes", ()), TEXT),
}
BY_LETTER = {"k": ("k", 3), "w": TEXT, "i": TYPE, "f": ("saved_hooks",), "m": (TYPE,)}
SENTENCES = {
    "add_type_match_guard": "type of L['o'] is pkg.Model",
    "add_id_match_guard": "L['o'] is pkg.Model itself",
    "add_equals_match_guard": "L['o'] == 3",
    "add_length_check_guard": "length of L['o'] is 3",
    "add_dict_length_check_guard": "length of L['o'] is 3",
    "add_tuple_iterator_length_guard": "L['o'] is a pkg.Model with 3 items left",
    "add_range_iterator_match_guard": "L['o'] is a pkg.Model over range(3, 3, 3)",
    "add_none_match_guard": "L['o'] is None",
    "add_true_match_guard": "L['o'] is True",
    "add_false_match_guard": "L['o'] is False",
    "add_not_none_guard": "L['o'] is not None",
    "add_float_is_nan_guard": "L['o'] is a float that is not a number (NaN)",
    "add_complex_is_nan_guard": "L['o'] is a complex number with a NaN part",
    "add_default_device_guard": "the default device is torch.device('cpu')",
    "add_dispatch_key_set_guard": "L['o'] has the dispatch keys 0xff",
    "add_global_state_guard": "global state: autocast on for cpu (bfloat16), "
    "default dtype float32, grad mode on, 4 threads",
    "add_torch_function_mode_stack_guard": "active torch function modes are pkg.Model",
    "add_no_hasattr_guard": "L['o'] has no attribute 'a'",
    "add_dict_contains_guard": "L['o'] has no key 'a'",
    "add_set_contains_guard": "L['o'] holds 'a'",
    "add_dual_level_match_guard": "forward-mode differentiation is at level 3",
    "add_dimension_marking_guard": "dimensions of L['o'] are marked: dynamic within {0}, "
    "none as static",
    "add_dynamic_indices_guard": "dimensions of L['o'] that are marked dynamic are within {0}",
    "add_mapping_keys_guard": "keys of L['o'] are ['a']",
    "add_fake_script_type_match_guard": "L['o'] is an opaque object of exactly the type pkg.Model",
    "add_tensor_match_guard": "L['o'] is a tensor: float32, shape [8, any], strides [32, 1], "
    "device cpu, requires_grad no, dispatch key Conjugate",
    "add_lambda_guard": "no saved-tensor hooks that Dynamo inlines are active",
    "add_epilogue_lambda_guard": "no saved-tensor hooks that Dynamo inlines are active",
    "add_dict_version_guard": "the dict L['o'] is as captured",
}


def tape(*ops: tuple) -> dict:
    local = ("framelocals_manager", 0, 1, ("t", (("k", "o"), ("k", 0))), "L['o']", "o")
    return {"nodes": 2, "ops": (local, *ops), "tls": None, "device": ("dv", "cpu")}


def sentence(*ops: tuple) -> str:
    (guard,) = guard_words.of_tape(tape(*ops))
    assert not RAW.search(guard.text) and TORCH_TEXT not in guard.text
    return guard.text


def test_the_table_of_this_test_has_every_kind_of_guard():
    assert set(SENTENCES) == set(LEAVES)


@pytest.mark.parametrize("method", LEAVES)
def test_a_guard_in_words(method):
    letters = LEAVES[method].replace("u", "")
    args = SPECIAL.get(method) or tuple(BY_LETTER[letter] for letter in letters)
    assert len(args) == len(letters)
    assert sentence((method, 1, args)) == SENTENCES[method]


def test_plain_states_are_told_plainly():
    nothing = {"nodes": 1, "tls": None, "device": ("k", None)}
    ops = (
        ("add_default_device_guard", 0, (TEXT,)),
        ("add_torch_function_mode_stack_guard", 0, ((), TEXT)),
        ("add_dual_level_match_guard", 0, (("k", -1), TEXT)),
        ("add_lambda_guard", 0, (("functorch", ("l", ())), TEXT)),
    )
    assert [guard.text for guard in guard_words.of_tape(nothing | {"ops": ops})] == [
        "no default device is set",
        "no torch function mode is active",
        "no forward-mode differentiation is active",
        "no functorch transform is active",
    ]


CODE = ("code", 0, ())
CUT = ("nw", ("P", "m", "Cut", "type m.Cut"), ("t", (("k", 0),)), ("d", ()))
FUNCTIONS = {
    "saved_hooks": (("saved_hooks",), "no saved-tensor hooks that Dynamo inlines are active"),
    "functorch": (
        ("functorch", ("l", (("k", "vmap"),))),
        "the active functorch transforms are ['vmap']",
    ),
    "rel": (
        ("rel", ((PATH, 0, TYPE, None), (PATH[:1], 0, TYPE, None), (PATH[:1], 1, TYPE, ("k", 2)))),
        "these stay the objects of the first accepted call: L['o'].a (a pkg.Model) and "
        "L['o'] (a pkg.Model); L['o'] (a pkg.Model equal to 2)",
    ),
    "late": (
        ("late", "function", "ab" * 32, ("t", (("k", 1), ("k", None)))),
        f"L['o'] is function with the captured content ({'ab' * 8}) and its defaults",
    ),
    "types": (("types", (TYPE, TYPE)), "L['o'] holds exactly the 2 captured types"),
    "nodes": (("nodes", (TYPE, TYPE)), "L['o'] holds exactly the 2 captured types"),
    "count": (("count", ("k", 5), ("k", 2)), "L['o'] is an itertools.count(5, 2)"),
    "cow": (("cow", False), "L['o'] is not a lazy clone (copy on write)"),
    "subclass_value": (
        ("subclass_value", ("P", "builtins", "int", "type builtins.int"), ("k", 3)),
        "int(L['o']) == 3",
    ),
    "subclass": (
        ("subclass", ("d", ((("k", "bits"), ("k", 4)),)), None, None),
        "the metadata of tensor subclass L['o'] is {'bits': 4}",
    ),
    "spec": (
        (
            "spec",
            TYPE,
            (
                "t",
                (
                    ("t", (CUT,)),
                    ("t", ()),
                    ("dt", "float32"),
                    ("t", (("k", 0), ("k", 1))),
                    ("k", 2),
                    ("k", "cpu"),
                    ("t", (("k", "rows"),)),
                    ("k", None),
                ),
            ),
        ),
        "L['o'] places torch.float32 as (m.Cut(0),) on the 'cpu' mesh ('rows',) of ranks (0, 1), 2",
    ),
    "opaque": (
        ("opaque", ("l", (("k", 4),)), "00"),
        "the guarded values of opaque object L['o'] are [4]",
    ),
}
# Told by torch's own text: an expression of the shapes, a condition of a lambda.
BY_TORCH = {
    "gfn": (("gfn", CODE, ()), ("2 <= L['o'].size()[0]", "L['o'].size()[0] <= 8")),
    "fn": (("fn", CODE, (), ("k", None)), ("hasattr(L['o'], 'a')",)),
}
READERS = {
    "module": (("module", ("M", "torch")), "module torch == 3"),
    "mode_at": (("mode_at", 0), "torch function mode 0 == 3"),
    "stream": (("stream", ("dv", "cuda")), "the current stream of torch.device('cuda') == 3"),
    "from_numpy": (("from_numpy",), "torch.as_tensor(L['o']) == 3"),
    "dataclass_fields": (("dataclass_fields",), "dataclasses.fields(L['o']) == 3"),
}


def test_the_tables_of_this_test_have_every_function():
    tables = {*FUNCTIONS, *BY_TORCH, *READERS}
    assert tables == set(guard_functions._READERS)
    assert tables == tags_of_page("guards.md", "## Functions inside guards")


@pytest.mark.parametrize("tag", FUNCTIONS)
def test_a_function_in_words(tag):
    function, words = FUNCTIONS[tag]
    assert sentence(("add_lambda_guard", 1, (function, TEXT))) == words


@pytest.mark.parametrize("tag", BY_TORCH)
def test_a_condition_in_the_words_of_torch(tag):
    function, texts = BY_TORCH[tag]
    assert sentence(("add_epilogue_lambda_guard", 0, (function, texts))) == " and ".join(texts)


@pytest.mark.parametrize("tag", READERS)
def test_a_value_that_a_function_reads(tag):
    key, words = READERS[tag]
    ops = (
        ("lambda_manager", 1, 2, key, "", "o"),
        ("add_equals_match_guard", 2, (("k", 3), TEXT)),
    )
    assert sentence(*ops) == words


@pytest.mark.parametrize("method", MANAGERS)
def test_where_a_value_is_without_a_text_of_torch(method):
    """Each accessor reads as an expression of its own."""
    key: tuple | None = ("k", 7)
    if method == "framelocals_manager":
        key = ("t", (("k", "name"), ("k", 0)))
    elif method == "lambda_manager":
        key = ("from_numpy",)
    elif MANAGERS[method] is None:
        key = None
    text = guard_words.step("L['o']", method, key)
    assert not RAW.search(text) and "None" not in text
    assert method in ("framelocals_manager", "globals_dict_manager") or "L['o']" in text


def test_relations_in_words():
    other = ("framelocals_manager", 0, 2, ("t", (("k", "p"), ("k", 1))), "L['p']", "o")
    words = {
        "install_no_tensor_aliasing_guard": (
            ((1, 2), ("L['o']", "L['p']"), TEXT),
            "no two of these are the same tensor: L['o'], L['p']",
        ),
        "install_object_aliasing_guard": ((1, 2, TEXT), "L['o'] is the same object as L['p']"),
        "install_storage_overlapping_guard": (
            ((1,), (2,), TEXT),
            "these share memory: L['o']; these do not: L['p']",
        ),
    }
    assert set(words) == set(RELATIONS)
    for method, (args, text) in words.items():
        assert sentence(other, (method, -1, args)) == text


def test_names_that_dynamo_made_up_are_told_as_the_modules_they_are():
    name = "__pc_import_torch_dot_nn"
    ops = (
        ("globals_dict_manager", 0, 1, None, "G", "d"),
        ("dict_getitem_manager", 1, 2, ("k", name), f"G['{name}']", "o"),
        ("add_id_match_guard", 2, (("M", "torch.nn"), TEXT)),
        ("getattr_manager", 2, 3, ("k", "Linear"), f"G['{name}'].Linear", "o"),
        ("add_id_match_guard", 3, (("P", "torch.nn", "Linear", ""), TEXT)),
    )
    record = {"globals": ((name, ("mod", "torch.nn")),), "tape": tape() | {"ops": ops}}
    assert [guard.text for guard in guard_words.of_frame(record)] == [
        "the module torch.nn is the imported one",
        "torch.nn.Linear is torch.nn.Linear itself",
    ]


def test_a_dict_whose_keys_are_guarded_is_a_guard_too():
    kind = ("D", ("P", "builtins", "dict", "type builtins.dict"), 1)
    at = ("t", (("k", "o"), ("k", 0)))
    ops = (("framelocals_manager", 0, 1, at, "L['o']", kind),)
    (guard,) = guard_words.of_tape(tape() | {"ops": ops})
    assert str(guard) == "L['o'] is a dict of 1 item" and guard.kind == "dict"


def test_a_named_tuple_reads_as_its_type():
    new = ("P", "builtins", "tuple.__new__", "")
    fields = ("t", (("P", "m", "Pair", "type m.Pair"), ("t", (("k", 1), ("k", 2)))))
    assert value_words.of_value(("nw", new, fields, ("d", ()))) == "m.Pair(1, 2)"


def test_a_class_with_its_own_comparison_of_metadata_is_told():
    function = ("subclass", ("k", "a"), TYPE, "00")
    words = "the metadata of tensor subclass L['o'] is 'a' for its __metadata_guard__"
    assert sentence(("add_lambda_guard", 1, (function, TEXT))) == words
