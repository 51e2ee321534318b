"""What a process says about GPUs that it cannot use, and about those that others fill; the driver and torch are stand-ins."""

import ctypes
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch

from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    DeviceMemoryError,
    InfrastructureError,
    ModelError,
    ToolformerError,
    exit_code,
)
from toolformer_ops.language_model import devices
from toolformer_ops.language_model.devices import GIB, DeviceMemory
from toolformer_ops.language_model.models.loading import _cannot_be_loaded
from toolformer_ops.runs import self_check


def driver(cuda: int, error: str = "") -> SimpleNamespace:
    """The driver's library: the newest CUDA that it knows, such as 12040, and its answer when asked for devices."""

    def fill(target: Any, value: object) -> int:
        target._obj.value = value
        return 0

    return SimpleNamespace(
        cuDriverGetVersion=lambda number: fill(number, cuda),
        cuGetErrorName=lambda code, text: fill(text, error.encode() if code == 100 else b"CUDA_SUCCESS"),
        cuInit=lambda _flags: 100,
    )


@pytest.mark.parametrize(
    ("built_for", "library", "status", "words"),
    [
        (None, None, 2, ["found torch", "--build-arg TORCH_INDEX="]),
        ("13.0", None, 75, ["no NVIDIA driver"]),
        (
            "13.0",
            driver(12040),
            2,
            ["CUDA 13 (branch 580) or newer", "one for CUDA 12.4", "too old", "whl/cu126"],
        ),
        ("12.6", driver(11080), 2, ["CUDA 12 (branch 525) or newer", "one for CUDA 11.8"]),
        (
            "12.6",
            driver(12020, "CUDA_ERROR_NO_DEVICE"),
            75,
            ["driver for CUDA 12.2 says CUDA_ERROR_NO_DEVICE"],
        ),
    ],
)
def test_a_missing_gpu_is_told_with_its_reason(monkeypatch, built_for, library, status, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=[library, library] if library else OSError))
    with pytest.raises(ToolformerError) as raised:
        devices.require_gpu("cuda")
    assert exit_code(raised.value) == status
    assert [word for word in words if word not in str(raised.value)] == []
    assert device_finding() == ("missing", str(raised.value))


def device_finding() -> tuple[str, str]:
    """What the doctor says of the device."""
    found = self_check.looked("device", lambda: self_check.device(Settings(_env_file=None, device="cuda")))
    return found.state, found.detail


@pytest.fixture
def machine(monkeypatch):
    """A machine with these GPUs: name, free and all GiB, and what this process holds."""

    def make(*cards: tuple[str, float, float, float], current: int = 0) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: cards[number][0])
        monkeypatch.setattr(
            torch.cuda,
            "mem_get_info",
            lambda number: (int(cards[number][1] * GIB), int(cards[number][2] * GIB)),
        )
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: int(cards[number][3] * GIB))
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(ctypes, "CDLL", lambda _path: driver(13010, ""))

    return make


A100 = "NVIDIA A100-SXM4-80GB"


def test_the_doctor_names_the_versions_of_the_driver(machine):
    machine((A100, 78.6, 79.2, 0.0))
    versions = "torch for CUDA 13.0, driver for CUDA 13.1"
    assert device_finding() == ("ok", f"GPU 0: {A100} (78.6 of 79.2 GiB free); {versions}")


def test_the_doctor_names_slices_beside_memory_of_other_processes(machine):
    machine((f"{A100} MIG 1g.10gb", 78.6, 79.2, 0.0), (A100, 3.5, 79.5, 0.0))
    state, detail = device_finding()
    assert state == "missing"
    assert "MIG 1g.10gb (a MIG slice, 78.6" in detail
    assert f"1: {A100} (3.5 of 79.5 GiB free, 76.0 GiB held by other processes)" in detail


def test_the_doctor_names_a_gpu_that_another_process_has_for_itself(machine, monkeypatch):
    machine((A100, 78.6, 79.2, 0.0))
    busy = RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with ...")
    monkeypatch.setattr(torch.cuda, "mem_get_info", Mock(side_effect=busy))
    state, detail = device_finding()
    assert state == "missing"
    assert "devices are busy or unavailable. Does another process have it for itself" in detail


def test_memory_that_another_process_holds_is_no_fault_of_the_text_or_the_model(machine):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    out_of_memory = Mock(side_effect=error)
    memory = DeviceMemory(MagicMock(dtype=torch.float16, parameters=lambda: []), free_bytes=0)
    machine((A100, 0.2, 79.2, 15.0))
    with pytest.raises(
        InfrastructureError, match=r"one of texts, found GPU 0: .*64\.0 GiB held by other processes"
    ):
        memory.halving(out_of_memory, [1], "texts")
    with pytest.raises(InfrastructureError, match="expected memory for the weights of models/m"):
        _cannot_be_loaded("models/m", {}, error)
    # All of it is this process's own, and what other processes of a training hold on their GPUs does not
    # count.
    machine((A100, 0.2, 79.2, 0.0), (A100, 0.2, 79.2, 78.0), current=1)
    with pytest.raises(DeviceMemoryError, match="expected memory for one of texts"):
        memory.halving(out_of_memory, [1], "texts")
    assert isinstance(_cannot_be_loaded("models/m", {}, error), ModelError)


@pytest.mark.parametrize(("share", "gibibytes"), [(1.0, 72), (0.25, 18)])
def test_a_process_takes_no_more_of_a_gpu_than_its_share(machine, monkeypatch, share, gibibytes):
    machine((A100, 70.0, 80.0, 4.0))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2 * GIB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: share)
    assert devices.free_memory(torch.device("cuda:0")) == gibibytes * GIB
