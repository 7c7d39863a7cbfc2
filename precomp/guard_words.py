"""Guards in words: what a tape (docs/internals.md, section 4.2) demands of a frame.

Reads plain data and needs neither torch nor the room that writes it, so that an artifact can be
explained where it cannot be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from precomp.torch_api import objects
from precomp.value_words import of_object, of_value

Op = tuple[Any, ...]


@dataclass(frozen=True)
class Guard:
    """One guard: ``kind`` is torch's word for it, ``source`` the expression that it looks at (empty
    for the state of the process), ``text`` a sentence."""

    kind: str
    source: str
    text: str

    def __str__(self) -> str:
        return self.text


def of_frame(record: dict[str, Any]) -> list[Guard]:
    """The guards of a frame record, in the order of its tape."""
    return of_tape(record["tape"], modules_of(record))


def modules_of(record: dict[str, Any]) -> dict[str, str]:
    """Global name -> module, of the names for modules that Dynamo made up in a frame record."""
    return {name: spec[1] for name, spec in record["globals"] if spec[0] == "mod"}


def tidy(text: str, modules: dict[str, str]) -> str:
    """A text with the names of *modules* for those that Dynamo made up."""

    def name(match: re.Match[str]) -> str:
        return modules.get(match[1], "builtins" if match[1] == _BUILTINS else match[0])

    return _GLOBAL.sub(name, text)


def of_tape(tape: dict[str, Any], modules: dict[str, str] | None = None) -> list[Guard]:
    """The guards of a tape. *modules*: global name -> module, of the names that Dynamo made up."""
    return _Reader(tape, modules or {}).guards


class _Reader:
    def __init__(self, tape: dict[str, Any], modules: dict[str, str]) -> None:
        self.tape = tape
        self.modules = modules
        self.sources = {0: ""}
        self.guards: list[Guard] = []
        for op in tape["ops"]:
            if op[0].endswith("_manager"):
                self._manager(op)
            elif op[1] < 0:
                say = _RELATIONS.get(op[0], _Reader.expression)
                self._add(_kind(op[0]), "", say(self, op[2]))
            else:
                self._leaf(op)

    def _add(self, kind: str, source: str, text: str) -> None:
        self.guards.append(Guard(kind, source, text))

    # -------------------------------------------------------------- where a value is

    def _manager(self, op: Op) -> None:
        method, parent, node, key, source, category = op
        source = self.tidy(source or "") or step(self.sources[parent], method, key)
        if method == "func_defaults_manager" and not source.endswith("__defaults__"):
            source += ".__defaults__"  # torch gives the function's own source
        self.sources[node] = source
        if type(category) is tuple:
            kind, length = of_value(category[1]), category[2]
            self._add("dict", source, f"{source} is {_a(kind)} of {_count(length, 'item')}")

    def tidy(self, source: str) -> str:
        return tidy(source, self.modules)

    def path(self, path: Iterable[tuple[str, Any]]) -> str:
        """The source text of a path from the root."""
        source = ""
        for method, key in path:
            source = step(source, method, key)
        return self.tidy(source)

    # -------------------------------------------------------------- what it has to be

    def _leaf(self, op: Op) -> None:
        method, node, args = op
        source = self.sources.get(node, "")
        if method in ("add_lambda_guard", "add_epilogue_lambda_guard"):
            function, texts = args
            self._function(source, function, texts)
        elif method in _STATE:
            self._add(_kind(method), "", _STATE[method](self, args))
        else:
            say = _LEAVES.get(method)
            text = self.expression(args) if say is None else say(source or "the frame", *args)
            self._add(_kind(method), source, text)

    def _function(self, source: str, function: Any, texts: tuple[str, ...]) -> None:
        tag = function[0]
        if tag in _FUNCTIONS:
            self._add(tag, source, _FUNCTIONS[tag](self, source, function))
        else:
            kind = {"gfn": "shapes", "fn": "condition"}.get(tag, tag)
            self._add(kind, source, self.expression((texts,)))

    def expression(self, args: tuple[Any, ...]) -> str:
        """The condition as torch writes it: the texts among the arguments of a guard."""
        texts = [item for item in args if type(item) is tuple and item and _is_text(item)]
        parts = [self.tidy(part) for part in (texts[-1] if texts else ())]
        return " and ".join(parts) or "a condition that torch does not name"


def _is_text(value: tuple[Any, ...]) -> bool:
    return all(type(part) is str for part in value)


_BUILTINS = "__pc_builtins"
_GLOBAL = re.compile(r"G\['(__pc_\w+)'\]")


def _kind(method: str) -> str:
    return method.removeprefix("add_").removeprefix("install_").removesuffix("_guard")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeiouAEIOU" else f"a {noun}"


# ------------------------------------------------------------------ accessors

_ACCESSORS: dict[str, Callable[[str, str], str]] = {
    "globals_dict_manager": lambda at, key: "G",
    "global_weakref_manager": lambda at, key: f"{at}[{key}]()",
    "lambda_manager": lambda at, key: key.replace("?", at),
    "set_getitem_manager": lambda at, key: f"list({at})[{key}]",
    "tuple_iterator_getitem_manager": lambda at, key: f"item {key} of {at}",
    "indexed_manager": lambda at, key: f"item {key} of {at}",
    "tensor_property_size_manager": lambda at, key: f"{at}.size()[{key}]",
    "tensor_property_stride_manager": lambda at, key: f"{at}.stride()[{key}]",
    "tensor_property_storage_offset_manager": lambda at, key: f"{at}.storage_offset()",
    "get_key_manager": lambda at, key: f"list({at})[{key}]",
    "get_value_manager": lambda at, key: f"list({at}.values())[{key}]",
    "grad_manager": lambda at, key: f"{at}.grad",
    "get_generic_dict_manager": lambda at, key: f"{at}.__dict__",
    "func_defaults_manager": lambda at, key: f"{at}.__defaults__",
    "func_kwdefaults_manager": lambda at, key: f"{at}.__kwdefaults__",
    "weakref_call_manager": lambda at, key: f"{at}()",
    "call_function_no_args_manager": lambda at, key: f"{at}()",
    "type_manager": lambda at, key: f"type({at})",
    "type_dict_manager": lambda at, key: f"{at}.__dict__",
    "type_mro_manager": lambda at, key: f"{at}.__mro__",
    "code_manager": lambda at, key: f"{at}.__code__",
    "closure_manager": lambda at, key: f"{at}.__closure__",
}

# Functions that read a value, as texts in which "?" is what they are called with.
_READERS: dict[str, Callable[..., str]] = {
    "module": lambda module: of_value(module),
    "mode_at": lambda index: f"torch function mode {index}",
    "stream": lambda device: f"the current stream of {of_value(device)}",
    "from_numpy": lambda: "torch.as_tensor(?)",
    "dataclass_fields": lambda: "dataclasses.fields(?)",
}


def step(at: str, method: str, key: Any) -> str:
    """The source text of what an accessor reads from *at*; *key* is encoded."""
    if method == "framelocals_manager":
        return f"L[{of_value(key[1][0])}]"
    if method in ("getattr_manager", "generic_getattr_manager"):
        return f"{at}.{key[1]}"
    if method == "lambda_manager":
        say = _READERS.get(key[0])
        return _ACCESSORS[method](at, "a function of ?" if say is None else say(*key[1:]))
    text = "" if key is None else of_value(key)
    say_step = _ACCESSORS.get(method)
    return f"{at}[{text}]" if say_step is None else say_step(at, text)


# ------------------------------------------------------------------ leaves

_USUAL_KEYS = frozenset(
    "CPU CUDA BackendSelect ADInplaceOrView AutogradCPU AutogradCUDA AutocastCPU AutocastCUDA"
    " Meta AutogradMeta".split()
)
_KEYS = re.compile(r"DispatchKeySet\((.*?)\)")


def _sizes(encoded: Any) -> str:
    """Sizes or strides; None is one that may vary."""
    return "[" + ", ".join("any" if i[1] is None else str(i[1]) for i in encoded[1]) + "]"


def _tensor(source: str, example: Any, sizes: Any, strides: Any, name: Any, texts: Any,
            kind: Any, keys: Any) -> str:  # fmt: skip
    device, dtype, requires_grad, _ = example
    noun = of_value(kind)
    noun = "a tensor" if noun == "torch.Tensor" else _a(noun)
    facts = [
        dtype,
        f"shape {_sizes(sizes)}",
        f"strides {_sizes(strides)}",
        f"device {device}",
        f"requires_grad {'yes' if requires_grad else 'no'}",
    ]
    found = _KEYS.search(" ".join(texts))
    if found is not None:
        present = set(found[1].split(", "))
        facts += [f"dispatch key {key}" for key in sorted(present - _USUAL_KEYS - {""})]
        if not any(key.startswith("Autograd") for key in present):
            facts.append("made in inference mode")
    return f"{source} is {noun}: {', '.join(facts)}"


def _marks(source: str, marked: Any, absent: Any, conditional: Any, texts: Any) -> str:
    pairs = [*marked[1], *conditional[1]]
    if not pairs:
        return f"no dimension of {source} is marked dynamic, static or unbacked"
    allowed = "; ".join(f"{_mark(key[1])} within {of_value(value)}" for key, value in pairs)
    rest = [_mark(key[1]) for key in absent[1]]
    more = f", none as {', '.join(rest)}" if rest else ""
    return f"dimensions of {source} are marked: {allowed}{more}"


def _mark(attribute: str) -> str:
    return objects.mark_of(attribute).replace("_", " ")


def _contains(source: str, present: Any, key: Any, texts: Any) -> str:
    return f"{source} {'holds' if present[1] else 'does not hold'} {of_value(key)}"


def _has_key(source: str, present: Any, key: Any, texts: Any) -> str:
    return f"{source} has {'the' if present[1] else 'no'} key {of_value(key)}"


def _identity(source: str, value: Any, texts: Any) -> str:
    if value == ("M", source):
        return f"the module {source} is the imported one"
    return f"{source} is {of_object(value)}"


def _length(source: str, length: Any, texts: Any) -> str:
    return f"length of {source} is {of_value(length)}"


_LEAVES: dict[str, Callable[..., str]] = {
    "add_type_match_guard": lambda at, kind, texts: f"type of {at} is {of_value(kind)}",
    "add_id_match_guard": _identity,
    "add_equals_match_guard": lambda at, value, texts: f"{at} == {of_value(value)}",
    "add_length_check_guard": _length,
    "add_dict_length_check_guard": _length,
    "add_tuple_iterator_length_guard": lambda at, length, kind, texts: (
        f"{at} is {_a(of_value(kind))} with {_count(length[1], 'item')} left"
    ),
    "add_range_iterator_match_guard": lambda at, start, stop, stride, kind, texts: (
        f"{at} is {_a(of_value(kind))} over {of_value(('r', start[1], stop[1], stride[1]))}"
    ),
    "add_none_match_guard": lambda at, texts: f"{at} is None",
    "add_true_match_guard": lambda at, texts: f"{at} is True",
    "add_false_match_guard": lambda at, texts: f"{at} is False",
    "add_not_none_guard": lambda at, texts: f"{at} is not None",
    "add_float_is_nan_guard": lambda at, texts: f"{at} is a float that is not a number (NaN)",
    "add_complex_is_nan_guard": lambda at, texts: f"{at} is a complex number with a NaN part",
    "add_dispatch_key_set_guard": lambda at, keys, texts: f"{at} has the {of_value(keys)}",
    "add_no_hasattr_guard": lambda at, name, texts: f"{at} has no attribute {of_value(name)}",
    "add_dict_contains_guard": _has_key,
    "add_set_contains_guard": _contains,
    "add_dimension_marking_guard": _marks,
    "add_dynamic_indices_guard": lambda at, indices, texts: (
        f"dimensions of {at} that are marked dynamic are within {of_value(indices)}"
    ),
    "add_mapping_keys_guard": lambda at, keys, texts: f"keys of {at} are {of_value(keys)}",
    "add_fake_script_type_match_guard": lambda at, name, kind, texts: (
        f"{at} is an opaque object of exactly the type {of_value(kind)}"
    ),
    "add_tensor_match_guard": _tensor,
    "add_dict_version_guard": lambda at, content, texts: f"the dict {at} is as captured",
}


# ------------------------------------------------------------------ state of the process

# Numbers of torch's ScalarType (c10/core/ScalarType.h).
_DTYPES = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    8: "complex32",
    9: "complex64",
    10: "complex128",
    11: "bool",
    15: "bfloat16",
}
# Order of autocast's lists: _AUTOCAST_SUPPORTED_DEVICES of aten/src/ATen/autocast_mode.h.
_DEVICES = ("cpu", "cuda", "mtia", "maia", "xpu", "ipu", "hpu", "xla", "privateuse1", "mps")


def dtype_name(number: Any) -> str:
    """The name of a ScalarType by its number."""
    return _DTYPES.get(number, f"dtype number {number}")


def _autocast(state: dict[str, Any]) -> str:
    enabled = state.get("enabled", [])
    on = [
        f"{device} ({dtype_name(dtype)})"
        for device, dtype, flag in zip(_DEVICES, state.get("dtype", []), enabled, strict=False)
        if flag
    ]
    return f"autocast on for {', '.join(on)}" if on else "autocast off"


def _global_state(reader: _Reader, args: tuple[Any, ...]) -> str:
    state = json.loads(args[0][1])
    words = []
    for name, value in state.items():
        if name == "autocast_state":
            words.append(_autocast(value))
        elif name == "default_dtype":
            words.append(f"default dtype {dtype_name(value)}")
        elif name == "num_threads":
            words.append(_count(value, "thread"))
        elif type(value) is bool:
            words.append(f"{name.replace('_', ' ')} {'on' if value else 'off'}")
        else:
            words.append(f"{name.replace('_', ' ')} {value}")
    return f"global state: {', '.join(words)}"


def _modes(reader: _Reader, args: tuple[Any, ...]) -> str:
    modes = ", ".join(map(of_value, args[0]))
    return (
        f"active torch function modes are {modes}" if modes else "no torch function mode is active"
    )


def _device(reader: _Reader, args: tuple[Any, ...]) -> str:
    device = reader.tape["device"]
    return "no default device is set" if device == ("k", None) else (
        f"the default device is {of_value(device)}"
    )  # fmt: skip


def _dual_level(reader: _Reader, args: tuple[Any, ...]) -> str:
    level = args[0][1]
    return "no forward-mode differentiation is active" if level == -1 else (
        f"forward-mode differentiation is at level {level}"
    )  # fmt: skip


_STATE: dict[str, Callable[[_Reader, tuple[Any, ...]], str]] = {
    "add_global_state_guard": _global_state,
    "add_torch_function_mode_stack_guard": _modes,
    "add_default_device_guard": _device,
    "add_dual_level_match_guard": _dual_level,
}


# ------------------------------------------------------------------ functions


def _functorch(reader: _Reader, source: str, function: Any) -> str:
    states = of_value(function[1])
    return "no functorch transform is active" if states == "[]" else (
        f"the active functorch transforms are {states}"
    )  # fmt: skip


def _objects(reader: _Reader, source: str, function: Any) -> str:
    groups: dict[int, list[str]] = {}
    for path, group, kind, value in function[1]:
        what = f"{reader.path(path)} ({_a(of_value(kind))}"
        what += ")" if value is None else f" equal to {of_value(value)})"
        if what not in groups.setdefault(group, []):
            groups[group].append(what)
    text = "; ".join(" and ".join(members) for members in groups.values())
    return f"these stay the objects of the first accepted call: {text}"


def _subclass(reader: _Reader, source: str, function: Any) -> str:
    text = f"the metadata of tensor subclass {source} is {of_value(function[1])}"
    return text if function[2] is None else f"{text} for its __metadata_guard__"


def _spec(reader: _Reader, source: str, function: Any) -> str:
    placements, _, dtype, ranks, layout, device, names, _ = function[2][1]
    return (
        f"{source} places {of_value(dtype)} as {of_value(placements)} on the {of_value(device)} "
        f"mesh {of_value(names)} of ranks {of_value(ranks)}, {of_value(layout)}"
    )


_FUNCTIONS: dict[str, Callable[[_Reader, str, Any], str]] = {
    "saved_hooks": lambda reader, at, function: (
        "no saved-tensor hooks that Dynamo inlines are active"
    ),
    "functorch": _functorch,
    "rel": _objects,
    "late": lambda reader, at, function: f"{at} is {of_value(function)}",
    "nodes": lambda reader, at, function: (
        f"{at} holds exactly the {_count(len(function[1]), 'captured type')}"
    ),
    "types": lambda reader, at, function: (
        f"{at} holds exactly the {_count(len(function[1]), 'captured type')}"
    ),
    "count": lambda reader, at, function: (
        f"{at} is an itertools.count({of_value(function[1])}, {of_value(function[2])})"
    ),
    "cow": lambda reader, at, function: (
        f"{at} is {'' if function[1] else 'not '}a lazy clone (copy on write)"
    ),
    "subclass_value": lambda reader, at, function: (
        f"{of_value(function[1])}({at}) == {of_value(function[2])}"
    ),
    "subclass": _subclass,
    "spec": _spec,
    "opaque": lambda reader, at, function: (
        f"the guarded values of opaque object {at} are {of_value(function[1])}"
    ),
}


# ------------------------------------------------------------------ relations


def _names(reader: _Reader, nodes: Iterable[int]) -> str:
    return ", ".join(reader.sources[node] for node in nodes)


def _distinct(reader: _Reader, args: tuple[Any, ...]) -> str:
    return f"no two of these are the same tensor: {_names(reader, args[0])}"


def _same(reader: _Reader, args: tuple[Any, ...]) -> str:
    return f"{reader.sources[args[0]]} is the same object as {reader.sources[args[1]]}"


def _overlap(reader: _Reader, args: tuple[Any, ...]) -> str:
    text = f"these share memory: {_names(reader, args[0])}"
    return text + (f"; these do not: {_names(reader, args[1])}" if args[1] else "")


_RELATIONS: dict[str, Callable[[_Reader, tuple[Any, ...]], str]] = {
    "install_no_tensor_aliasing_guard": _distinct,
    "install_object_aliasing_guard": _same,
    "install_storage_overlapping_guard": _overlap,
}
