"""From paragraphs to candidate calls, with a scripted model and the real calculator and calendar."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from tests.fake_language_model import UNFINISHED, FakeLanguageModel
from toolformer_ops.annotation.candidates import candidates_at, read_call, sample_paragraphs
from toolformer_ops.annotation.text_sampling import SampledText, TextToSample, sample_texts
from toolformer_ops.call_syntax import Call
from toolformer_ops.language_model.tokenization import AnnotationPrompt
from toolformer_ops.records import CallPosition, Document, Paragraph, SampledContinuation
from toolformer_ops.runs.choices import ToolSamplingChoices
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

PROMPT = AnnotationPrompt("Calculator", "Input: {text}\nOutput:")
CALCULATOR = get_tool("Calculator")
CALENDAR = get_tool("Calendar")
SUM = "There were 2 cats and 3 dogs, a total of 5 animals."


def choices(**changed: Any) -> ToolSamplingChoices:
    given = {"max_positions": 2, "samples_per_position": 1, "sampling_threshold": 0.0, "max_call_tokens": 40}
    return ToolSamplingChoices(**(given | {"prune_below": 0.5} | changed))


def sampled(model: FakeLanguageModel, texts: list[str], **changed: Any) -> list[SampledText]:
    ticks = itertools.count()
    keyed = [TextToSample(text, text) for text in texts]
    engine: Any = model
    return sample_texts(engine, PROMPT, " [", choices(**changed), keyed, clock=lambda: float(next(ticks)))


def test_pruned_positions_are_marked_with_the_loss_that_proves_it():
    model = FakeLanguageModel(sure_words=frozenset({"sure"}))
    first, second = sampled(model, ["one is sure", "eleven more"])
    assert [(one.token, one.pruned_by) for one in first.positions] == [(1, None), (2, 0.25)]
    assert (len(first.samples), len(second.samples)) == (1, 1)
    assert [one.pruned_by for one in second.positions] == [None]
    [reached] = sampled(model, ["one is sure"], prune_below=0.25)  # a call may save all of it
    assert [one.pruned_by for one in reached.positions] == [None, None]


def test_without_pruning_no_loss_is_computed_before_sampling():
    model = FakeLanguageModel(sure_words=frozenset({"sure"}))
    never = mock.Mock(side_effect=AssertionError("a loss was computed that prunes nothing"))
    model.gain_bounds_without_call = never  # type: ignore[method-assign]
    [unpruned] = sampled(model, ["one is sure"], prune_below=0.0)
    assert [one.pruned_by for one in unpruned.positions] == [None, None]
    assert len(unpruned.samples) == 2


def test_what_a_run_chooses_is_what_the_model_is_asked_for():
    model = FakeLanguageModel()
    wrapped: Any = mock.Mock(wraps=model)
    sampling = {"max_call_tokens": 17, "temperature": 0.8, "top_p": 0.9, "samples_per_position": 4}
    sampled(wrapped, ["one two"], max_positions=3, sampling_threshold=0.05, prune_below=0.0, **sampling)
    of_sampling = {"samples": 4, "max_new_tokens": 17, "temperature": 0.8, "top_p": 0.9, "until_arrow": False}
    wrapped.start_sampling.assert_called_once_with(PROMPT, call_start=" [", **of_sampling)
    wrapped.find_positions.assert_called_once_with(
        PROMPT, ["one two"], at_most=3, threshold=0.05, allowed=None
    )


CHARACTERS_READ = 4 * FakeLanguageModel.read_tokens
"""Texts of so many characters are read together."""


def test_each_group_of_texts_is_sampled_before_the_positions_of_the_next_are_found():
    """The KV caches of a group's positions are used before others come."""
    half, long = "word " * (CHARACTERS_READ // 10), "w " * CHARACTERS_READ
    groups = [[half, half], ["three more words"], [long], ["the end"]]
    model = FakeLanguageModel()
    wrapped: Any = mock.Mock(wraps=model, read_tokens=model.read_tokens)
    read: list[tuple[list[str], list[str]]] = []

    def watched(prompt: object, texts: list[str], **_: object) -> Any:
        read.append((list(texts), list(model.added)))
        return mock.DEFAULT

    wrapped.find_positions.side_effect = watched
    sampled(wrapped, list(itertools.chain(*groups)))
    assert read == [(group, list(itertools.chain(*groups[:number]))) for number, group in enumerate(groups)]


def test_each_text_has_its_own_say_at_which_positions_calls_may_be_sampled():
    """Also where the texts are too long to be read together."""
    texts = [f"{number} two three {'x' * CHARACTERS_READ}" for number in range(3)]
    model: Any = FakeLanguageModel()
    restricted = [
        TextToSample(text, text, document=replace(model.tokenize(text), word_starts=(token,)))
        for text, token in zip(texts, (1, 3, 2), strict=True)
    ]
    sampled_texts = sample_texts(model, PROMPT, " [", choices(prune_below=0.0), restricted)
    assert [[one.token for one in text.positions] for text in sampled_texts] == [[1], [3], [2]]


HALVES = Document.of("one is sure of it. eleven more words")
SECOND_HALF = (19, 36)


def halves() -> list[Paragraph]:
    """The document's two sentences as paragraphs."""
    return [Paragraph(HALVES, 0, 0, 18), Paragraph(HALVES, 1, *SECOND_HALF)]


def test_a_position_in_a_paragraph_is_a_token_of_the_document():
    model: Any = FakeLanguageModel()
    [sampled_paragraph] = sample_paragraphs(model, CALCULATOR, choices(), halves()[1:])
    tokens = model.tokenize(HALVES.text)
    places = [
        (candidate.position.token, candidate.position.char) for candidate in sampled_paragraph.candidates
    ]
    assert places == [(6, tokens.starts[6]), (7, tokens.starts[7])]


def test_a_call_is_sampled_at_the_tokens_of_its_paragraph():
    model: Any = FakeLanguageModel()
    sampler = mock.Mock(wraps=model.start_sampling(PROMPT, samples=1))
    with mock.patch.object(model, "start_sampling", return_value=sampler):
        sample_paragraphs(model, CALCULATOR, choices(), halves()[1:])
    [added] = sampler.add.call_args_list
    assert added.args[:2] == ("eleven more words", [1, 2])


def test_a_position_of_a_paragraph_is_pruned_by_the_loss_in_its_document():
    model: Any = FakeLanguageModel()
    asked: list[tuple[str, list[int]]] = []

    def gain_bounds_without_call(texts: Sequence[tuple[str, list[int]]], _: str) -> list[list[float]]:
        asked.extend(texts)
        return [[0.125 if token == 6 else 2.0 for token in tokens] for _, tokens in texts]

    model.gain_bounds_without_call = gain_bounds_without_call
    [sampled_paragraph] = sample_paragraphs(model, CALCULATOR, choices(), halves()[1:])
    assert asked == [(HALVES.text, [6, 7])]
    assert [(one.token, one.pruned_by) for one in sampled_paragraph.pruned] == [(6, 0.125)]


def test_a_document_in_parts_is_read_once_to_prune_them():
    long = Document.of(" ".join(f"word{number}" for number in range(CHARACTERS_READ // 2)))
    third = len(long.text) // 3
    parts = [Paragraph(long, number, number * third, number * third + third) for number in range(3)]
    model: Any = FakeLanguageModel()
    watched = mock.Mock(wraps=model.gain_bounds_without_call)
    model.gain_bounds_without_call = watched
    sample_paragraphs(model, CALCULATOR, choices(), parts)
    [[[(text, _)], _]] = [call.args for call in watched.call_args_list]
    assert text == long.text


def test_parts_of_a_document_are_pruned_as_each_would_be_alone():
    model: Any = FakeLanguageModel(sure_words=frozenset({"sure", "more"}))
    together = sample_paragraphs(model, CALCULATOR, choices(max_positions=9), halves())
    alone = [
        sample_paragraphs(model, CALCULATOR, choices(max_positions=9), [paragraph])[0]
        for paragraph in halves()
    ]
    assert [one.pruned for one in together] == [one.pruned for one in alone]
    assert [len(one.pruned) for one in together] == [1, 1]


def test_seconds_are_shared_by_length_or_by_positions():
    first, second = sampled(FakeLanguageModel(), ["one two three", "four five six seven 8 9 10"])
    # the clock ticks once a question: 1 s for the positions of both, 1 s while they are added, 1 s until they
    # have ended
    assert (first.position_seconds, second.position_seconds) == (13 / 39, 26 / 39)
    assert (first.sampling_seconds, second.sampling_seconds) == (1.0, 1.0)  # two positions each


def test_a_text_without_a_position_took_no_seconds_of_sampling():
    [word] = sampled(FakeLanguageModel(), ["word"])
    assert (word.positions, word.samples, word.sampling_seconds) == ([], [], 0.0)


POSITION = CallPosition(3, 10, 0.5)


def written(*calls: str) -> list[SampledContinuation]:
    return [SampledContinuation(text, text != UNFINISHED) for text in calls]


def test_equal_calls_are_one_candidate_while_every_other_sample_has_its_reason():
    sum_ = "Calculator(2 + 3)"
    samples = written(sum_, "QA(how?)", sum_[:-1], "Calculator 2 +", UNFINISHED, "Calculator()")
    candidates, lost, counts = candidates_at(CALCULATOR, Document.of("a text"), POSITION, samples)
    [candidate] = candidates
    assert (candidate.call, candidate.sample_count, candidate.position) == (
        Call("Calculator", "2 + 3"),
        2,
        POSITION,
    )
    assert [(one.reason, one.text, one.sample_count) for one in lost] == [
        ("sample_of_another_tool", "QA(how?)", 1),
        ("sample_does_not_parse", "Calculator 2 +", 1),
        ("sample_without_end", UNFINISHED, 1),
        ("sample_without_input", "Calculator()", 1),
    ]
    reasons = dict.fromkeys((one.reason for one in lost), 1)
    assert counts == {"samples": 6, "candidates": 1, "duplicates_merged": 1, **reasons}


def test_a_tool_without_input_takes_empty_brackets_alone():
    assert read_call(CALENDAR, SampledContinuation("Calendar()", True), "x") == Call("Calendar", "")
    unexpected = read_call(CALENDAR, SampledContinuation("Calendar(now)", True), "x")
    assert unexpected == "sample_with_unexpected_input"


def test_a_sample_that_the_document_cannot_answer_is_counted():
    samples = written("Calendar()", "Calendar()")
    candidates, _, counts = candidates_at(CALENDAR, Document.of("x"), POSITION, samples)
    assert (candidates, counts) == ([], {"samples": 2, "sample_that_the_document_cannot_answer": 2})


@pytest.mark.parametrize("endpoint", [None, object()])
def test_an_endpoint_alone_gets_the_prompt_that_may_leave_the_house(monkeypatch, endpoint):
    sample = mock.Mock(return_value=[])
    monkeypatch.setattr("toolformer_ops.annotation.candidates.sample_texts", sample)
    monkeypatch.setattr(Tool, "prompt_to_send", "without rows {text} Output:")
    model: Any = FakeLanguageModel()
    sample_paragraphs(model, CALCULATOR, choices(), [], endpoint=endpoint)
    prompt = "without rows {text} Output:" if endpoint else CALCULATOR.prompt
    assert sample.call_args.args[1] == AnnotationPrompt("Calculator", prompt)


NOT_HELD = "sample_with_bracket_or_line_break"


@pytest.mark.parametrize(
    ("written", "text", "read"),
    [
        ("MT(dans cette\nmaison)", "She wrote: dans cette\nmaison.", Call("MT", "dans cette maison")),
        ("MT(dans cette\n> maison)", "> She wrote: dans cette\n> maison.", Call("MT", "dans cette maison")),
        ("MT(dans\ncette maison)", "She wrote: dans cette\nmaison.", Call("MT", "dans cette maison")),
        ("MT(dans cette\nville)", "She wrote: dans cette\nmaison.", NOT_HELD),  # not in the text
        ("MT(maison)\nMT(ville)", "She wrote: dans cette maison", NOT_HELD),
        ("MT(SELECT tags[1", "", NOT_HELD),
        ("MT maison\n", "", "sample_does_not_parse"),
        ("MT(\n)", "She wrote", "sample_without_input"),
    ],
)
def test_a_line_break_of_the_text_in_a_call_is_a_space(written, text, read):
    assert read_call(get_tool("MT"), SampledContinuation(written, True), text) == read


def test_whether_an_input_is_only_after_the_call_is_asked_of_the_whole_document():
    first = "Nothing at all had happened here in 2019, when 3 men came. "
    second = "Then 3 men and 4 women came, and 3 of the 4 stayed."
    document = Document.of(first + second)
    model: Any = FakeLanguageModel(("Calculator(3 + 4)", "Calculator(2019 + 1)"))
    numbers = choices(max_positions=20, samples_per_position=2, prune_below=0.0)
    paragraph = Paragraph(document, 1, len(first), len(document.text))
    [sampled_paragraph] = sample_paragraphs(model, CALCULATOR, numbers, [paragraph])
    only_after = {
        (item.call.input, document.text[len(first) : item.position.char])
        for item in sampled_paragraph.candidates
        if item.input_only_after
    }
    # The 4 is known from " women" on; the 3 and 2019 are from the sentence before.
    assert only_after == {("3 + 4", before) for before in ("Then", "Then 3", "Then 3 men", "Then 3 men and")}


def test_random_numbers_are_made_from_the_seed_for_each_paragraph_of_a_tool():
    """Of these alone: equal paragraphs get other samples, and any company gives a paragraph the same ones."""
    twice, once = Document.of("The same. The same."), Document.of("The same.")
    paragraphs = [Paragraph(twice, 0, 0, 9), Paragraph(twice, 1, 10, 19), Paragraph(once, 0, 0, 9)]
    model: Any = FakeLanguageModel()
    sample_paragraphs(model, CALCULATOR, choices(seed=7), paragraphs)
    sample_paragraphs(model, CALENDAR, choices(seed=8), paragraphs[1:2])
    texts = (f"{twice.document_id}|0", f"{twice.document_id}|1", f"{once.document_id}|0")
    of_calendar = f"8|Calendar|{twice.document_id}|1"
    assert model.seed_keys == [*(f"7|Calculator|{text}" for text in texts), of_calendar]
