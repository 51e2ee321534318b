"""`make bench-gpu` in its small form: its parts on a CPU and on the device twin, and what it says of what it left out."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.device_twin import GIBIBYTE, device_twin
from benchmarks.gpu import varlen
from benchmarks.gpu.__main__ import CORRECTNESS, FINETUNING, KERNEL, MACHINE, app, measure, show_one_gpu
from benchmarks.gpu.correctness import correctness
from benchmarks.gpu.session import LEFT_OUT, Row, Rows, Session
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.sizes import SMALL, TrainingWork
from benchmarks.gpu.speed import (
    ANNOTATION,
    PEAK,
    VERIFICATION,
    WITH_VERIFICATION,
    _spread,
    measure_annotation,
    verification,
)
from benchmarks.random_models import random_network
from toolformer_ops.errors import ConfigurationError, DeviceMemoryError
from toolformer_ops.finetuning.recipe import PassSize

pytestmark = pytest.mark.slow


def session_in(folder: Path, device: str = "cpu", seconds: float = 300.0) -> Session:
    return Session(torch.device(device), folder, seconds)


@pytest.fixture(scope="module")
def on_a_cpu(tmp_path_factory):
    session = session_in(tmp_path_factory.mktemp("cpu"))
    measure(session, SMALL, SMALL.shapes)
    return session


@pytest.fixture(scope="module")
def on_the_twin(tmp_path_factory):
    with device_twin(free_bytes=64 * GIBIBYTE):
        session = session_in(tmp_path_factory.mktemp("twin"), "cuda")
        measure(session, SMALL, SMALL.shapes)
    return session


def reasons(session: Session) -> dict[str, str]:
    return {row["what"]: row["why"] for row in session.sections.get(LEFT_OUT, [])}


def test_every_part_gives_a_table(on_a_cpu):
    expected = [MACHINE, CORRECTNESS, PEAK, ANNOTATION, VERIFICATION, WITH_VERIFICATION, FINETUNING]
    assert list(on_a_cpu.sections) == expected


def test_a_cpu_has_no_problem(on_a_cpu):
    assert on_a_cpu.problems == []


def test_the_engine_has_a_row_beside_the_plain_way(on_a_cpu):
    plain, engine = on_a_cpu.sections[ANNOTATION]
    assert (plain["way"], engine["way"]) == ("plain", "engine")
    assert engine["times the plain way"] == pytest.approx(
        engine["texts an hour"] / plain["texts an hour"], rel=0.01
    )


def test_a_training_has_a_row_for_each_size_of_a_pass(on_a_cpu):
    assert [row["a pass"] for row in on_a_cpu.sections[FINETUNING]] == ["2048 tokens", "2 sequences"]


def test_the_tables_are_written(on_a_cpu):
    written = (on_a_cpu.folder / "gpu.md").read_text(encoding="utf-8")
    assert f"## {VERIFICATION}" in written
    assert "| llama | float32 |" in written


def test_the_twin_gives_what_the_cpu_gives(on_the_twin):
    # transformers' Trainer takes no stand-in for a device.
    assert [problem for problem in on_the_twin.problems if not problem.startswith("finetuning")] == []


def test_the_twin_goes_the_way_of_the_kernel(on_the_twin):
    rows = on_the_twin.sections[CORRECTNESS]
    ways = {row["format"]: row["attention"] for row in rows if row["architecture"] == "llama"}
    assert ways["bfloat16"] == ways["float16"] == "kernel"


def test_a_refused_kernel_is_named_with_its_reason(on_the_twin):
    assert reasons(on_the_twin)["gemma2 in bfloat16: the kernel of variable lengths"] == "capped scores"


def test_the_rungs_on_a_gpu_have_tf32_between(on_the_twin):
    rungs = [row["format"] for row in on_the_twin.sections[VERIFICATION]]
    assert rungs == ["float32", "TF32", "bfloat16", "float16"]


def test_an_old_card_is_measured_without_bfloat16(tmp_path):
    with device_twin(free_bytes=64 * GIBIBYTE, capability=(7, 5)):
        session = session_in(tmp_path, "cuda", seconds=0.0)
        measure(session, SMALL, SMALL.shapes)
    assert "7.5" in reasons(session)["bfloat16 and TF32"]


def test_another_result_in_float32_is_a_problem(tmp_path, monkeypatch):
    seeds = iter((0, 1))  # the CPU's network, and the one that is measured
    monkeypatch.setattr(
        "benchmarks.gpu.correctness.random_network", lambda config: random_network(config, next(seeds))
    )
    session = session_in(tmp_path)
    session.part(CORRECTNESS, correctness(session, ["llama"], ["float32"]))
    assert any("llama in float32: loss reductions off by" in problem for problem in session.problems)


def test_a_shape_that_does_not_fit_is_left_out(tmp_path):
    with device_twin(free_bytes=8 * GIBIBYTE):
        session = session_in(tmp_path, "cuda")
        measure_annotation(session, SHAPES["7B"], SMALL.work, "bfloat16")
    assert reasons(session)["annotation, 7B in bfloat16"] == "memory short: 16 GiB needed, 8 free"


def failing(error: Exception) -> Rows:
    yield {"number": 1}
    raise error


def succeeding() -> Rows:
    yield {"number": 2}


def test_a_part_that_fails_keeps_its_rows(tmp_path):
    session = session_in(tmp_path)
    session.part("first", failing(ValueError("no such shape")))
    assert session.sections["first"] == [{"number": 1}]


def test_a_part_that_fails_is_a_problem(tmp_path):
    session = session_in(tmp_path)
    session.part("first", failing(ValueError("no such shape")))
    assert session.problems == ["first: ValueError: no such shape"]


def test_a_part_that_fails_ends_no_other(tmp_path):
    session = session_in(tmp_path)
    session.part("first", failing(ValueError("no such shape")))
    session.part("second", succeeding())
    assert session.sections["second"] == [{"number": 2}]


def test_short_memory_is_no_problem_but_is_noted(tmp_path):
    session = session_in(tmp_path)
    session.part("first", failing(DeviceMemoryError("expected memory for one of sequences")))
    assert session.problems == []
    assert reasons(session)["first"] == "memory short (expected memory for one of sequences)"


def test_a_training_that_does_not_fit_is_halved(tmp_path, monkeypatch):
    from benchmarks.gpu import training

    sizes: list[str] = []

    def trained(session: Session, shape: Any, work: Any, job: Any, size: PassSize) -> Row:
        sizes.append(str(size))
        if len(sizes) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"a pass": str(size)}

    monkeypatch.setattr(training, "_trained", trained)
    session = session_in(tmp_path)
    work = TrainingWork(text_tokens=24, batch=8, steps=1, device_batches=(8,))
    session.part(FINETUNING, training.finetuning(session, SHAPES["tiny"], work))
    assert sizes == ["8 sequences", "4 sequences", "2 sequences"]
    assert session.sections[FINETUNING] == [{"a pass": "2 sequences"}]
    assert "memory short" in reasons(session)["finetuning of tiny, passes of 4 sequences"]


def test_a_rung_that_fails_ends_no_other(tmp_path, monkeypatch):
    def reductions(model: Any, *_: Any) -> list[float]:
        if model.number_format == "bfloat16":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return [0.5]

    monkeypatch.setattr("benchmarks.gpu.speed._reductions", reductions)
    session = session_in(tmp_path)
    formats = ["float32", "bfloat16", "float16"]
    session.part(VERIFICATION, verification(session, SHAPES["tiny"], SMALL.work, formats))
    assert [row["format"] for row in session.sections[VERIFICATION]] == ["float32", "float16"]


def test_a_problem_is_exit_status_3(tmp_path, monkeypatch):
    def wrong(session: Session, *_: Any) -> None:
        session.problems.append("llama in float32: off")

    monkeypatch.setattr("benchmarks.gpu.__main__.measure", wrong)
    result = CliRunner().invoke(app, ["--small", "--device", "cpu", "--out", str(tmp_path)])
    assert result.exit_code == 3
    assert "WRONG: llama in float32: off" in result.output


def test_no_row_is_begun_once_the_time_is_spent(tmp_path):
    session = session_in(tmp_path, seconds=0.0)
    session.part("first", succeeding())
    assert reasons(session) == {"first": "the 0 seconds are spent: what follows is left out"}
    assert "first" not in session.sections


def test_a_warning_of_the_package_is_noted(tmp_path):
    session = session_in(tmp_path)
    with session.noting_warnings():
        logging.getLogger("toolformer_ops.language_model.devices").warning("out of memory with %d texts", 8)
    assert reasons(session) == {"toolformer_ops.language_model.devices": "out of memory with 8 texts"}


def test_a_torch_without_the_function_gets_a_stand_in(tmp_path):
    import torch.nn.attention.varlen as module

    with mock.patch.object(module, "varlen_attn_out"):
        del module.varlen_attn_out
        assert varlen.provide_varlen() == varlen.STAND_IN
        assert module.varlen_attn_out is varlen.flash_attention_out


def test_the_stand_in_is_named_as_done_in_another_way(tmp_path):
    import torch.nn.attention.varlen as module

    with device_twin(), mock.patch.object(module, "varlen_attn_out"):
        del module.varlen_attn_out
        session = session_in(tmp_path, "cuda", seconds=0.0)
        measure(session, SMALL, SMALL.shapes)
    assert reasons(session)[KERNEL] == varlen.STAND_IN


@pytest.mark.parametrize(
    ("window", "causal", "sides"),
    [
        ((-1, -1), False, {}),
        ((-1, 0), True, {"window_size_left": -1, "window_size_right": 0}),
        ((23, 0), False, {"window_size_left": 23, "window_size_right": 0}),
    ],
)
def test_the_stand_in_hands_the_window_on(window, causal, sides):
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return torch.full((4, 2, 8), 3.0), "log-sum-exp", None, None, None

    out, queries, ends = torch.zeros(4, 2, 8), torch.zeros(4, 2, 8), torch.tensor([0, 4])
    aten = SimpleNamespace(aten=SimpleNamespace(_flash_attention_forward=kernel))
    with mock.patch.object(torch, "ops", aten):
        returned = varlen.flash_attention_out(
            out,
            queries,
            queries,
            queries,
            ends,
            ends,
            4,
            4,
            return_aux=varlen.LogSumExpRequest(lse=True),
            scale=0.5,
            window_size=window,
            enable_gqa=True,
            num_splits=1,
        )
    [(args, kwargs)] = calls
    assert args[8] is causal
    assert {name: value for name, value in kwargs.items() if name.startswith("window")} == sides
    assert returned == (out, "log-sum-exp")
    assert bool((out == 3.0).all())


@pytest.mark.parametrize(
    ("visible", "number", "shown"),
    [("", 0, "0"), ("", 2, "2"), ("4,5", 1, "5"), ("MIG-1c2d", 0, "MIG-1c2d")],
)
def test_one_gpu_is_measured(visible, number, shown, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    show_one_gpu(number)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == shown


def test_a_machine_without_a_gpu_is_told_what_is_lacking(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # restored afterwards
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["--small"])
    assert isinstance(result.exception, ConfigurationError)


def test_an_unknown_shape_is_refused_with_the_known_ones():
    result = CliRunner().invoke(app, ["--small", "--device", "cpu", "--shapes", "9B"])
    assert "tiny, 1.5B, 7B, 8B, found 9B" in str(result.exception)


def test_verified_calls_stand_in_all_of_a_text():
    assert _spread(range(100), 4) == [0, 33, 66, 99]


def test_a_short_text_has_a_call_at_each_word():
    assert _spread([5, 7, 9], 16) == [5, 7, 9]
