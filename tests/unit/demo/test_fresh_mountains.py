"""What two models write of ten mountains: scripted models, and the real database in a folder of its own."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.decoding import model as decoding_model
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.local.demo.fresh_mountains import FRESH_MOUNTAINS, FreshMountains, ask_both_models
from toolformer_ops.tools.registry import forget_tools


class ReadsTheDatabase:
    """Writes the height that the database of its tools has now."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.tools_folder / "mountains.db"

    def write(self, prompts: Sequence[Prompt], decoding: DecodingSettings) -> list[WrittenText]:
        connection = sqlite3.connect(self._path)
        heights = dict(connection.execute("select name, height from mountains").fetchall())
        connection.close()
        return [written(prompt, f" {heights[mountain_of(prompt)]} metres") for prompt in prompts]


class SaysOneHeight:
    """Writes 8,485 of each mountain, which is right of Makalu."""

    def write(self, prompts: Sequence[Prompt], decoding: DecodingSettings) -> list[WrittenText]:
        return [written(prompt, " 8,485 metres") for prompt in prompts]


class SaysNoHeight:
    """Writes no number."""

    def write(self, prompts: Sequence[Prompt], decoding: DecodingSettings) -> list[WrittenText]:
        return [written(prompt, " high") for prompt in prompts]


def mountain_of(prompt: Prompt) -> str:
    [mountain] = [name for name in FRESH_MOUNTAINS if f"saw {name}, which is" in prompt.text]
    return mountain


def written(prompt: Prompt, text: str) -> WrittenText:
    return WrittenText(prompt, text, text, (), (), (), 1, "length")


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Ask a model before, and one after; the tools of this process are its own again afterwards."""
    monkeypatch.setenv("TOOLFORMER_TOOLS_DIR", str(tmp_path))

    def asked(before: Callable[[Settings], Any], after: Callable[[Settings], Any]) -> FreshMountains:
        models = {"before": before, "after": after}
        load = lambda settings, model, tools: models[model](settings)  # noqa: E731
        monkeypatch.setattr(decoding_model, "WritingModel", SimpleNamespace(load=load))
        return ask_both_models(Settings(_env_file=None, state_dir=tmp_path), "before", "after")

    yield asked
    load_settings.cache_clear()
    forget_tools()


def test_a_model_that_asks_the_database_is_right_about_all_ten(ask) -> None:
    assert ask(lambda _: SaysNoHeight(), ReadsTheDatabase).right_after == 10


def test_a_model_that_says_no_number_is_right_about_none(ask) -> None:
    assert ask(lambda _: SaysNoHeight(), ReadsTheDatabase).right_before == 0


def test_a_number_with_a_comma_is_a_height(ask) -> None:
    assert ask(lambda _: SaysOneHeight(), ReadsTheDatabase).right_before == 1


def test_a_model_that_asks_the_database_follows_both_changes(ask) -> None:
    assert ask(lambda _: SaysNoHeight(), ReadsTheDatabase).followed == 2


def test_a_model_that_knows_a_height_by_heart_follows_no_change(ask) -> None:
    assert ask(lambda _: SaysNoHeight(), lambda _: SaysOneHeight()).followed == 0


def test_the_sentences_are_about_the_first_mountain(ask) -> None:
    sentences = ask(lambda _: SaysNoHeight(), ReadsTheDatabase)
    assert (sentences.sentence_before, sentences.sentence_after) == (
        "From our tent we saw Makalu, which is high",
        "From our tent we saw Makalu, which is 8485 metres",
    )


def test_the_database_of_the_demo_stays_as_it_is(ask) -> None:
    folders: list[Path] = []

    def after(settings: Settings) -> ReadsTheDatabase:
        folders.append(settings.tools_folder)
        return ReadsTheDatabase(settings)

    ask(lambda _: SaysNoHeight(), after)
    assert [folder.exists() for folder in folders] == [False]
