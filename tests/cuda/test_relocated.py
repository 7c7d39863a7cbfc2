"""The wrapper that Inductor generated for one GPU runs on another; the record names neither."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import Place

from precomp.ordinals import named, renumber

HERE = Path(__file__).parent
TEXT = (
    "check_tensor(L['x'], Tensor, DispatchKeySet(CUDA), torch.float32, device={0}, "
    "requires_grad=True, size=[2], stride=[1])"
)
STAYS = {
    "a call of torch.cuda": "torch.cuda.synchronize(1) is called by its code",
    "a device that is computed": "device('cuda', x - 1) is called by its code",
    "a text": "the text 'on cuda:1' is in its code",
    "a formatted text": "the text f'cuda:1 {x}' is in its code",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory, driver):
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("relocated")
    return Place(folder / "place").run(HERE / "relocated.py", driver, folder).facts


def test_what_inductor_generates_for_one_gpu_is_frozen_as_for_another(found):
    generated = found["generated"]
    assert all(generated["names its gpu"])
    assert generated["equal"] and generated["stays"] == []
    assert generated["ordinals"] == [["cuda 0", 0]] and generated["named"] == [0]
    assert generated["kept"] == [["cuda 3", 3]]


@pytest.mark.parametrize(("index", "ordinal"), list(enumerate((0, 1, 5))))
def test_a_module_runs_on_the_gpu_that_it_is_loaded_for(found, index, ordinal):
    assert found["equal"] and found["stays"] == []
    seen, stream, values = found["calls"][index]
    assert seen == [
        ["_exchange_device", ordinal],
        ["set_device", ordinal],
        ["_cuda_getCurrentRawStream", ordinal],
        ["_maybe_exchange_device", 100 + ordinal],
    ]
    assert stream == 100 + ordinal
    assert values == [f"cuda:{ordinal}"] * 3


def test_one_image_is_loaded_for_all_gpus(found):
    assert found["loads"] == 1


def test_a_gpu_that_is_not_there_or_another_architecture_is_refused(found):
    assert found["machine"] == {
        "3": "accepted",
        "5": "prepare: devices: cuda:5 is sm_00, a.precomp is for sm_90",
        "8": "prepare: devices: there is no cuda:8; the driver shows 8",
    }


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_known_to_be_an_ordinal_keeps_the_module(found, name):
    assert found["refused"][name] == [STAYS[name]]


RECORD = {
    "ops": (
        ("dict_getitem_manager", 0, 1, ("dv", "cuda:3"), "L['d'][device(type='cuda', index=3)]"),
        ("add_tensor_match_guard", 1, (("cuda:3", "float32", True, False), (TEXT.format(3),))),
        ("add_equals_match_guard", 2, (("k", "cuda:3"), ("L['s'] == 'cuda:3'",))),
    ),
    "ints": (3, -3, 3.0, True, None, b"cuda:3"),
    "cuda:3": ("k", "cuda"),
}


def test_strings_are_renumbered_wherever_they_name_a_gpu_and_nothing_else_is():
    assert named(RECORD) == {3}
    moved = renumber(RECORD, {3: 0})
    assert named(moved) == {0} and moved["ints"] == RECORD["ints"]
    assert moved["ops"][1][2] == (("cuda:0", "float32", True, False), (TEXT.format(0),))
    assert moved["ops"][0][3:] == (("dv", "cuda:0"), "L['d'][device(type='cuda', index=0)]")
    assert renumber(moved, {0: 3}) == RECORD
    assert renumber(RECORD, {3: 3}) is RECORD and renumber(RECORD, {}) is RECORD


def test_ordinals_are_renumbered_at_once():
    value = ("cuda:0", "cuda:10", "cuda", "cuda:0,cuda:1", "mycuda:0", "device('cuda', 1)")
    assert renumber(value, {0: 1, 1: 0}) == (
        "cuda:1", "cuda:10", "cuda", "cuda:1,cuda:0", "mycuda:0", "device('cuda', 0)",
    )  # fmt: skip
    assert named(value) == {0, 1, 10}


def test_texts_about_the_cpu_stay():
    text = TEXT.format("None")
    assert named(text) == set() and renumber(text, {0: 1}) == text


def held_by(f_locals, **f_globals):
    """The GPUs of a frame whose code names *f_globals*."""
    from precomp.serve.devices import Shown

    code = SimpleNamespace(co_names=tuple(f_globals))
    shown = Shown(SimpleNamespace(f_code=code, f_locals=f_locals, f_globals=f_globals))
    first = [ordinal for ordinal, _ in zip(shown, range(1), strict=False)]
    assert list(shown)[: len(first)] == first and list(shown) == list(shown)
    return list(shown)


def test_the_gpu_of_a_frame_is_that_of_its_tensors():
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        one, two = (torch.empty(2, device=f"cuda:{n}") for n in (1, 2))
        on_cpu = torch.empty(2)
    inner = torch.nn.Module()
    inner.register_buffer("mean", two)
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.ReLU(), inner))
    place, name = torch.device("cuda", 5), "cuda:6"
    assert held_by({"x": on_cpu, "y": one}) == [1]
    assert held_by({"self": model, "name": name, "place": place}) == [2]
    assert held_by({"x": [{"key": (on_cpu, two)}], "y": one}) == [1, 2]
    assert held_by({"trainer": SimpleNamespace(model=model)}) == [2]
    assert held_by({}, model=model) == [2]
    assert held_by({"place": place, "name": name, "x": on_cpu}) == [5, 6]
    assert held_by({"text": "on cuda:6", "number": 3, "x": on_cpu}) == [0]


class Refuses:
    """An object that must not be asked anything."""

    def __getattribute__(self, name):
        raise AssertionError(name)

    __iter__ = __len__ = __eq__ = __hash__ = None


def test_looking_for_the_gpu_of_a_frame_runs_no_code_of_objects():
    loop = []
    loop.append(loop)
    assert held_by({"x": Refuses(), "loop": loop, "deep": [Refuses()]}) == [0]


def asks(method, *args, **kwargs):
    """What a graph that calls x.method(*args, **kwargs), or torch.<method>, asks for."""
    import torch

    from precomp.freeze.devices import uses_of_graph

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    if isinstance(method, str):
        graph.call_method(method, (x, *args), kwargs)
    else:
        graph.call_function(method, args, kwargs)
    graph.output(x)
    outer = torch.fx.Graph()
    outer.output(outer.create_node("get_attr", "inner"))
    inner = torch.fx.GraphModule({}, graph)
    return uses_of_graph(torch.fx.GraphModule({"inner": inner}, outer))


def test_a_graph_that_names_a_device_by_a_number_or_not_at_all_is_noticed():
    import torch

    device, zeros = torch.device, torch.zeros
    autocast = torch.amp.autocast_mode._enter_autocast
    for uses in (
        asks("cuda", 1), asks("to", 1), asks("to", 1, torch.half), asks(zeros, 3, device=1),
    ):  # fmt: skip
        assert len(uses.numbers) == 1 and not uses.current
    for uses in (
        asks("cuda"), asks("to", "cuda"), asks("to", device("cuda")),
        asks(zeros, 3, device="cuda"), asks(zeros, 3, device=device("cuda")),
    ):  # fmt: skip
        assert uses == (True, [])
    for uses in (
        asks("to", torch.half), asks("to", device("cuda:1")), asks("cuda", "cuda:1"),
        asks(zeros, 3, device=device("cuda:1")), asks(zeros, 3), asks("sum", 1),
        asks(autocast, "cuda", torch.half, True, True),
    ):  # fmt: skip
        assert uses == (False, [])
