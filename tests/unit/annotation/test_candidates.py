"""From a document to candidate calls, with a scripted model and the real calculator and calendar."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_language_model import UNFINISHED, FakeLanguageModel
from toolformer_ops.annotation.candidates import (
    HOLDS_CALL_MARKUP,
    LONGER_THAN_LIMIT,
    NOT_JUDGED,
    SampledText,
    TextToSample,
    candidates_at,
    cut,
    filter_document,
    kept_paragraphs,
    read_call,
    sample_paragraphs,
    sample_texts,
)
from toolformer_ops.call_syntax import Call
from toolformer_ops.language_model import AnnotationPrompt
from toolformer_ops.records import CallPosition, Document, Paragraph, SampledContinuation
from toolformer_ops.runs.choices import FilterChoices, ToolSamplingChoices
from toolformer_ops.tools.base import FilterDecision
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.writing_systems import tokens_before

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


class TellingTool(type(CALCULATOR)):  # type: ignore[misc] - a tool's class
    """The calculator with decisions that are given, and what it was shown."""

    def __init__(
        self, decisions: Sequence[FilterDecision] | None = None, whole: str | None = None, **spec: Any
    ) -> None:
        self.spec = replace(CALCULATOR.spec, **spec)
        self._decisions = decisions
        self._whole = whole
        self.seen: list[Document] = []

    def filter(self, document: Document) -> list[FilterDecision]:
        self.seen.append(document)
        if self._decisions is None:
            return super().filter(document)
        if self._whole not in (None, document.text):  # a piece of it
            return [FilterDecision(kept=True, reason="of a piece", end_char=len(document.text))]
        return list(self._decisions)

    def effective_input(self, call_input: str, document: Document) -> str | None:
        self.seen.append(document)
        return super().effective_input(call_input, document)


def test_a_document_with_call_markup_is_refused_whole() -> None:
    document = Document.of(f"Sums: [Calculator(1 + 1) -> 3] {SUM}")
    [decision] = filter_document(CALCULATOR, document, FilterChoices())
    assert decision == FilterDecision(kept=False, reason=HOLDS_CALL_MARKUP, end_char=len(document.text))
    assert not kept_paragraphs(document, [decision])


@pytest.mark.parametrize(
    "beginning", ["", "Our [QA (quality assurance)] team: ", "[[Calendar (New York City)|1]] ", "d[QA(3)] = "]
)
def test_the_tool_decides_on_a_document_whose_brackets_hold_no_call(beginning: str) -> None:
    document = Document.of(beginning + SUM)
    [decision] = filter_document(CALCULATOR, document, FilterChoices())
    assert (decision.kept, decision.start_char, decision.end_char) == (True, 0, len(document.text))
    assert [item.text for item in kept_paragraphs(document, [decision])] == [document.text]


PROSE = "One two three. Four five six.\nSeven eight.\n \nNine ten eleven twelve, and thirteen is the last of them."
WRAPPED = (
    "The old man walked slowly along the river and looked at the boats. They\n"
    "came down from the hills with the first light, laden with apples and with\n"
    "wood, and he knew all of them."
)
LAST_LINE_IN_20 = ("Nine ten eleven", "twelve, and", "thirteen is the", "last of them.")


@pytest.mark.parametrize(
    ("text", "most", "unbroken", "pieces"),
    [
        ("ab cd\nef gh", 1.25, (), ["ab cd", "ef gh"]),  # at a line that ends exactly there
        (PROSE, 20, (), [PROSE[:42], PROSE[45:]]),  # at the end of the paragraph
        (PROSE, 5, (), ["One two three.", "Four five six.", "Seven eight.", *LAST_LINE_IN_20]),
        (WRAPPED, 35, (), [WRAPPED[:66], WRAPPED[67:]]),  # its line ends are no ends of a paragraph
        # a call holds the end of the paragraph: the line's
        (PROSE, 20, ((40, 47),), [PROSE[:29], PROSE[30:]]),
    ],
)  # fmt: skip
def test_a_text_is_cut_at_a_blank_line_or_else_at_the_end_of_a_paragraph_a_sentence_or_a_word(
    text: str, most: float, unbroken: Sequence[tuple[int, int]], pieces: list[str]
) -> None:
    found = cut(text, (0, len(text)), most, unbroken)
    assert [text[start:end] for start, end in found] == pieces


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from(["x", "word ", "é\n", "  ", "\n\n", "End. ", "x" * 30]), max_size=60).map(
        "".join
    ),
    st.integers(4, 100).map(lambda quarters: quarters / 4),
    st.lists(st.tuples(st.integers(0, 200), st.integers(2, 40)), max_size=3),
    st.integers(0, 20),
)
def test_pieces_hold_all_but_white_space_and_none_is_longer_than_the_limit_or_breaks_a_call(
    text: str, most: float, calls: list[tuple[int, int]], start: int
) -> None:
    ends = itertools.accumulate(
        calls, lambda last, call: (last[1] + call[0], last[1] + call[0] + call[1]), initial=(0, 0)
    )
    unbroken = [span for span in ends if start <= span[0] and span[1] <= len(text)]
    pieces = cut(text, (min(start, len(text)), len(text)), most, unbroken)
    before = tokens_before(text)
    assert "".join("".join(text[first:end].split()) for first, end in pieces) == "".join(text[start:].split())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(pieces))
    for first, end in pieces:
        longest = sum(
            before[last] - before[begin] for begin, last in unbroken if first < last and begin < end
        )
        assert 0 < before[end] - before[first] <= most + longest or end == first + 1
        for begin, last in unbroken:
            assert not begin < first < last or not text[begin:first].strip()
            assert not begin < end < last or not text[end:last].strip()


def test_a_long_paragraph_is_annotated_in_pieces_or_left_out_and_the_others_keep_their_numbers() -> None:
    long = "Seven words of a long first line."
    lines = [f"{long} {long}", "not kept, though it is too long to be annotated", "short", f"{long} {long}"]
    document = Document.of("\n".join(lines))
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))
    decisions = [
        FilterDecision(
            kept=number != 1, reason="of a line", paragraph=number, start_char=start, end_char=end - 1
        )
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]

    def found(**chosen: Any) -> list[tuple[int, bool, str, str]]:
        made = filter_document(TellingTool(decisions, document.text), document, FilterChoices(**chosen))
        return [
            (one.paragraph, one.kept, one.reason, document.text[one.start_char : one.end_char])
            for one in made
        ]

    whole = [(number, number != 1, "of a line", line) for number, line in enumerate(lines)]
    assert found() == found(max_text_tokens=0) == found(max_text_tokens=0, long_texts="leave_out") == whole
    piece = (True, "of a piece", long)
    assert found(max_text_tokens=10) == [(0, *piece), (4, *piece), *whole[1:3], (3, *piece), (5, *piece)]
    left_out = [(number, False, LONGER_THAN_LIMIT, lines[number]) for number in (0, 3)]
    assert found(max_text_tokens=10, long_texts="leave_out") == [left_out[0], *whole[1:3], left_out[1]]
    choices = FilterChoices(max_text_tokens=10, long_texts="leave_out")
    for decided in (
        [],
        [FilterDecision(kept=True, reason="of a line", start_char=0, end_char=40)],
    ):  # exactly ten
        assert filter_document(TellingTool(decided), document, choices) == decided


def test_pruned_positions_are_marked_with_the_loss_that_proves_it_and_not_sampled() -> None:
    model = FakeLanguageModel(sure_words=frozenset({"sure"}))
    first, second = sampled(model, ["one is sure", "eleven more"])
    assert [(one.token, one.pruned_by_loss) for one in first.positions] == [(1, None), (2, 0.25)]
    assert (len(first.samples), len(second.samples)) == (1, 1)
    assert [one.pruned_by_loss for one in second.positions] == [None]
    [reached] = sampled(model, ["one is sure"], prune_below=0.25)  # a call may save all of it
    assert [one.pruned_by_loss for one in reached.positions] == [None, None]

    never = mock.Mock(side_effect=AssertionError("a loss was computed that prunes nothing"))
    model.losses_without_call = never  # type: ignore[method-assign]
    [unpruned] = sampled(model, ["one is sure"], prune_below=0.0)
    assert [one.pruned_by_loss for one in unpruned.positions] == [None, None]
    assert len(unpruned.samples) == 2


def test_what_a_run_chooses_is_what_the_model_is_asked_for() -> None:
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


def test_each_group_of_texts_is_sampled_before_the_positions_of_the_next_are_found() -> None:
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


def test_each_text_has_its_own_say_at_which_positions_calls_may_be_sampled() -> None:
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


def test_a_position_in_a_paragraph_is_a_token_of_the_document() -> None:
    model: Any = FakeLanguageModel()
    [sampled_paragraph] = sample_paragraphs(model, CALCULATOR, choices(), halves()[1:])
    tokens = model.tokenize(HALVES.text)
    places = [
        (candidate.position.token, candidate.position.char) for candidate in sampled_paragraph.candidates
    ]
    assert places == [(6, tokens.starts[6]), (7, tokens.starts[7])]


def test_a_call_is_sampled_at_the_tokens_of_its_paragraph() -> None:
    model: Any = FakeLanguageModel()
    sampler = mock.Mock(wraps=model.start_sampling(PROMPT, samples=1))
    with mock.patch.object(model, "start_sampling", return_value=sampler):
        sample_paragraphs(model, CALCULATOR, choices(), halves()[1:])
    [added] = sampler.add.call_args_list
    assert added.args[:2] == ("eleven more words", [1, 2])


def test_a_position_of_a_paragraph_is_pruned_by_the_loss_in_its_document() -> None:
    model: Any = FakeLanguageModel()
    asked: list[tuple[str, list[int]]] = []

    def losses_without_call(texts: Sequence[tuple[str, list[int]]]) -> list[list[float]]:
        asked.extend(texts)
        return [[0.125 if token == 6 else 2.0 for token in tokens] for _, tokens in texts]

    model.losses_without_call = losses_without_call
    [sampled_paragraph] = sample_paragraphs(model, CALCULATOR, choices(), halves()[1:])
    assert asked == [(HALVES.text, [6, 7])]
    assert [(one.token, one.pruned_by_loss) for one in sampled_paragraph.pruned] == [(6, 0.125)]


def test_a_document_in_parts_is_read_once_to_prune_them() -> None:
    long = Document.of(" ".join(f"word{number}" for number in range(CHARACTERS_READ // 2)))
    third = len(long.text) // 3
    parts = [Paragraph(long, number, number * third, number * third + third) for number in range(3)]
    model: Any = FakeLanguageModel()
    watched = mock.Mock(wraps=model.losses_without_call)
    model.losses_without_call = watched
    sample_paragraphs(model, CALCULATOR, choices(), parts)
    [[[(text, _)]]] = [call.args for call in watched.call_args_list]
    assert text == long.text


def test_parts_of_a_document_are_pruned_as_each_would_be_alone() -> None:
    model: Any = FakeLanguageModel(sure_words=frozenset({"sure", "more"}))
    together = sample_paragraphs(model, CALCULATOR, choices(max_positions=9), halves())
    alone = [
        sample_paragraphs(model, CALCULATOR, choices(max_positions=9), [paragraph])[0]
        for paragraph in halves()
    ]
    assert [one.pruned for one in together] == [one.pruned for one in alone]
    assert [len(one.pruned) for one in together] == [1, 1]


def test_seconds_of_positions_are_shared_by_length_and_those_of_sampling_by_positions() -> None:
    first, second = sampled(FakeLanguageModel(), ["one two three", "four five six seven 8 9 10"])
    # the clock ticks once a question: 1 s for the positions of both, 1 s while they are added, 1 s until they
    # have ended
    assert (first.position_seconds, second.position_seconds) == (13 / 39, 26 / 39)
    assert (first.sampling_seconds, second.sampling_seconds) == (1.0, 1.0)  # two positions each
    [word] = sampled(FakeLanguageModel(), ["word"])
    assert (word.positions, word.samples, word.sampling_seconds) == ([], [], 0.0)


POSITION = CallPosition(3, 10, 0.5)


def written(*calls: str) -> list[SampledContinuation]:
    return [SampledContinuation(text, text != UNFINISHED) for text in calls]


def test_equal_calls_are_one_candidate_and_every_other_sample_has_its_reason() -> None:
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


def test_a_tool_without_input_takes_empty_brackets_alone_and_what_it_cannot_answer_is_counted() -> None:
    assert read_call(CALENDAR, SampledContinuation("Calendar()", True), "x") == Call("Calendar", "")
    unexpected = read_call(CALENDAR, SampledContinuation("Calendar(now)", True), "x")
    assert unexpected == "sample_with_unexpected_input"
    samples = written("Calendar()", "Calendar()")
    candidates, _, counts = candidates_at(CALENDAR, Document.of("x"), POSITION, samples)
    assert (candidates, counts) == ([], {"samples": 2, "sample_that_the_document_cannot_answer": 2})


NO_CALL = "sample_does_not_parse"


@pytest.mark.parametrize(
    ("written", "text", "read"),
    [
        ("MT(dans cette\nmaison)", "She wrote: dans cette\nmaison.", Call("MT", "dans cette maison")),
        ("MT(dans cette\n> maison)", "> She wrote: dans cette\n> maison.", Call("MT", "dans cette maison")),
        ("MT(dans\ncette maison)", "She wrote: dans cette\nmaison.", Call("MT", "dans cette maison")),
        ("MT(dans cette\nville)", "She wrote: dans cette\nmaison.", NO_CALL),  # not in the text
        ("MT(maison)\nMT(ville)", "She wrote: dans cette maison", NO_CALL),
        ("MT(\n)", "She wrote", "sample_without_input"),
    ],
)
def test_a_line_break_of_the_text_in_a_call_is_a_space(written: str, text: str, read: Call | str) -> None:
    assert read_call(get_tool("MT"), SampledContinuation(written, True), text) == read


def test_whether_an_input_is_only_after_the_call_is_asked_of_the_whole_document() -> None:
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


class WordFilter(type(CALCULATOR)):  # type: ignore[misc] - a tool's class
    """Keeps a text that holds a word."""

    def filter(self, document: Document) -> list[FilterDecision]:
        kept = "word" in document.text
        return [FilterDecision(kept, "has_it" if kept else "has_it_not", end_char=len(document.text))]


def test_each_piece_of_a_long_text_is_judged_by_the_filter() -> None:
    document = Document.of(
        "Nothing to see here today.\n\nA word stands in this one.\n\nAnd nothing here again."
    )
    decisions = filter_document(WordFilter(), document, FilterChoices(max_text_tokens=8))
    pieces = [
        (one.paragraph, one.kept, one.reason, document.text[one.start_char : one.end_char])
        for one in decisions
    ]
    assert pieces == [
        (0, False, "has_it_not", "Nothing to see here today."),
        (1, True, "has_it", "A word stands in this one."),
        (2, False, "has_it_not", "And nothing here again."),
    ]


def test_a_piece_is_judged_with_the_date_of_its_document() -> None:
    text = "Today is a day.\n\nSo was the day before, it is said."
    dated = Document.of(text, document_date=date(2023, 1, 30))
    decisions = filter_document(CALENDAR, dated, FilterChoices(max_text_tokens=9))
    assert [one.kept for one in decisions] == [True, True]


def test_a_piece_that_the_filter_says_nothing_of_is_refused_under_that_reason() -> None:
    whole = FilterDecision(kept=True, reason="of a text", end_char=40)
    tool: Any = TellingTool([])
    with mock.patch.object(tool, "filter", side_effect=[[whole], [], []]):
        decisions = filter_document(tool, Document.of("four " * 8), FilterChoices(max_text_tokens=5))
    assert [(one.kept, one.reason) for one in decisions] == [(False, NOT_JUDGED)] * 2


def test_random_numbers_are_made_from_seed_tool_document_and_paragraph() -> None:
    """Of these alone: equal paragraphs get other samples, and any company gives a paragraph the same ones."""
    twice, once = Document.of("The same. The same."), Document.of("The same.")
    paragraphs = [Paragraph(twice, 0, 0, 9), Paragraph(twice, 1, 10, 19), Paragraph(once, 0, 0, 9)]
    model: Any = FakeLanguageModel()
    sample_paragraphs(model, CALCULATOR, choices(seed=7), paragraphs)
    sample_paragraphs(model, CALENDAR, choices(seed=8), paragraphs[1:2])
    texts = (f"{twice.document_id}|0", f"{twice.document_id}|1", f"{once.document_id}|0")
    of_calendar = f"8|Calendar|{twice.document_id}|1"
    assert model.seed_keys == [*(f"7|Calculator|{text}" for text in texts), of_calendar]


@pytest.mark.parametrize("reads_record", [False, True])
def test_only_a_tool_that_says_so_gets_the_url_and_date_of_a_record(reads_record: bool) -> None:
    """Filtering and sampling alike: what another tool computed cannot change when a record's date is corrected."""
    dated = Document.of(SUM, "https://x.org/2023/01/30/", date(2023, 1, 30))
    tool = TellingTool(reads_record=reads_record)
    filter_document(tool, dated, FilterChoices())
    candidates_at(tool, dated, POSITION, written("Calculator(2 + 3)"))
    assert tool.seen == [dated if reads_record else Document.of(SUM)] * 2
    assert (CALENDAR.spec.reads_record, CALCULATOR.spec.reads_record) == (True, False)
