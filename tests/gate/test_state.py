"""Settings that make a gate refuse to be entered, told from a torch that is not there."""

import sys
import types

import pytest

from precomp import PrecompError, strict_no_compile


@pytest.fixture
def torch(monkeypatch):
    """A module torch of a CUDA build with one device, and nothing in it that compiles."""
    module = types.ModuleType("torch")
    module._C = types.SimpleNamespace(
        _cuda_getDeviceCount=lambda: 1,
        _get_cudnn_benchmark=lambda: False,
        _cuda_tunableop_is_enabled=lambda: False,
        _cuda_tunableop_tuning_is_enabled=lambda: True,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.delenv("CUDA_FORCE_PTX_JIT", raising=False)
    return module


def refused(allow=()):
    with pytest.raises(PrecompError) as caught, strict_no_compile(allow=allow):
        pass
    return str(caught.value)


def test_nothing_to_refuse(torch):
    torch._C._cuda_getDeviceCount = None  # not asked: that would start CUDA
    with strict_no_compile():
        pass


def test_algorithms_that_cudnn_times(torch):
    torch._C._get_cudnn_benchmark = lambda: True
    assert "cudnn.benchmark" in refused()
    with strict_no_compile(allow=("tune",)):
        pass
    torch._C._cuda_getDeviceCount = lambda: 0
    with strict_no_compile():
        pass


def test_tunable_operators(torch):
    torch._C._cuda_tunableop_is_enabled = lambda: True
    assert "TunableOp" in refused()
    torch._C._cuda_tunableop_tuning_is_enabled = lambda: False
    with strict_no_compile():
        pass


def test_driver_that_must_compile(torch, monkeypatch):
    monkeypatch.setenv("CUDA_FORCE_PTX_JIT", "1")
    assert "CUDA_FORCE_PTX_JIT=1" in refused()
    with strict_no_compile(allow=("driver_jit",)):
        pass
    monkeypatch.setenv("CUDA_FORCE_PTX_JIT", "0")
    with strict_no_compile():
        pass


def test_all_findings_are_listed_at_once(torch, monkeypatch):
    monkeypatch.setenv("CUDA_FORCE_PTX_JIT", "1")
    torch._C._get_cudnn_benchmark = lambda: True
    message = refused()
    assert "cudnn.benchmark" in message and "CUDA_FORCE_PTX_JIT" in message
    assert "allow 'tune'" in message and "allow 'driver_jit'" in message


@pytest.mark.parametrize("name", ["_AsyncFxCompile", "_ProgressiveFxCompile"])
def test_compile_in_the_background(torch, monkeypatch, name):
    module = types.ModuleType("torch._inductor.compile_fx_async")
    scheme = types.SimpleNamespace(_stat_bg_started=2, _stat_bg_finished=1)
    setattr(module, name, scheme)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert f"background compiles of {name}" in refused()
    scheme._stat_bg_finished = 2
    with strict_no_compile():
        pass
