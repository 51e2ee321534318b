import itertools

from tests.fake_language_model import FakeLanguageModel
from toolformer_ops.annotation.call_positions import CHARACTERS_TOGETHER, PositionFinder
from toolformer_ops.language_model import AnnotationPrompt

PROMPT = AnnotationPrompt("Calculator", "Input: {text}\nOutput:")


def finder(model: FakeLanguageModel, texts: list[str], prune_below: float = 0.5) -> PositionFinder:
    ticks = itertools.count()
    return PositionFinder(
        model,  # type: ignore[arg-type] - what of it is used
        PROMPT,
        texts,
        at_most=2,
        threshold=0.0,
        prune_below=prune_below,
        clock=lambda: float(next(ticks)),
    )


def test_texts_are_taken_when_they_are_asked_for() -> None:
    half = "word " * (CHARACTERS_TOGETHER // 10)
    model = FakeLanguageModel()
    positions = iter(finder(model, [half, half, "three more words", "w " * CHARACTERS_TOGETHER, "the end"]))
    next(positions)
    assert model.seen == [half, half]
    next(positions), next(positions)
    assert model.seen == [half, half, "three more words"]
    assert len(list(positions)) == 2
    assert model.seen[3:] == ["w " * CHARACTERS_TOGETHER, "the end"]


def test_pruned_positions_are_apart_and_seconds_are_shared_by_length() -> None:
    model = FakeLanguageModel(sure_words=frozenset({"sure"}))
    found = finder(model, ["one is sure", "eleven more"])
    first, second = list(found)
    assert found.found == [first, second]
    assert [one.position.token for one in first.pruned] == [2]
    assert [one.token for one in first.kept] == [1]
    assert [one.token for one in first.all] == [1, 2]
    assert second.pruned == []
    assert first.seconds + second.seconds == 1.0
    assert first.seconds == second.seconds == 0.5
    assert [one.pruned for one in finder(model, ["one is sure"], prune_below=0.0)] == [[]]
