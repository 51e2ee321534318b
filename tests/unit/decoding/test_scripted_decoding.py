"""Decoding with tools follows a scripted model token by token, in every branch."""

import dataclasses
import datetime
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch

from tests.unit.decoding.scripted import (
    END,
    WINDOW,
    ScriptedNetwork,
    TellingTool,
    tokenization,
    vocabulary_size,
    write,
    written_by,
)
from toolformer_ops.call_syntax import Call, call_with_result
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.together import ToolRuns
from toolformer_ops.errors import InfrastructureError, ModelError, ToolError, UsageError
from toolformer_ops.language_model.batch_sizes import BATCH_SIZES
from toolformer_ops.tools.base import ToolOutput

PROMPT = "The sum of 2 and 3 is"
PLAIN = " six, they say."
CALL = " [Calculator(2 + 3) -> 5] 5, they say."
SUMS = {"2 + 3": "5", "5 * 2": "10"}
ANSWERS = {"Which?": "see [1]\nand ] more", "When?": "so, they said", "Why?": "a long answer " * 30}
SECOND_BEST = DecodingSettings(call_start_rank=2)


def tool_runs(*names: str, time_limit: float = 60.0) -> ToolRuns:
    settings = Settings(_env_file=None, tool_time_limit_seconds=time_limit)  # type: ignore[call-arg]
    return ToolRuns(settings, names, lambda: pytest.fail("no tool here asks for the model"))


class Decoder:
    """Follows a script, with a calculator and a tool for questions that answer as they are told."""

    def __init__(self) -> None:
        self.calculator = TellingTool(
            "Calculator",
            lambda asked: ToolOutput.of(SUMS[asked]) if asked in SUMS else ToolOutput.none("not_a_sum"),
        )
        self.qa = TellingTool("QA", lambda asked: ToolOutput.of(ANSWERS.get(asked, f"answer to {asked}")))

    def tools(self, **options: Any) -> ToolRuns:
        return tool_runs("Calculator", "QA", **options)

    def write(
        self,
        *texts: str,
        tools: ToolRuns | None = None,
        prompt: str = PROMPT,
        window: int = WINDOW,
        **settings: Any,
    ) -> WrittenText:
        """The continuation of one prompt; k is 2 unless it is given."""
        decoding = DecodingSettings(**({"call_start_rank": 2} | settings))
        script = {prompt: [text + END for text in texts]}
        [text] = write(script, decoding, self.tools() if tools is None else tools, window=window)
        return text


@pytest.fixture
def decoder(monkeypatch):
    """Its tools are those that are found by their names."""
    made = Decoder()
    by_name = {"Calculator": made.calculator, "QA": made.qa}
    monkeypatch.setattr("toolformer_ops.decoding.together.get_tool", by_name.__getitem__)
    return made


def ids(text: str) -> tuple[int, ...]:
    return tokenization().continuation(text)


class Case(NamedTuple):
    """What a model likes to write, the best first, and what is written; calls with input, and result or reason."""

    texts: tuple[str, ...]
    written: str
    calls: tuple[tuple[str, str], ...] = ()
    abandoned: tuple[str, ...] = ()
    without_calls: str | None = None
    """The same as `written` where it is not given."""
    end: str = "end_of_text"
    settings: dict[str, Any] = {}  # noqa: RUF012 - never written to


FIVE = (("2 + 3", "5"),)
AGAIN = " [Calculator(2 + 3) -> 5] 5, that is [Calculator(5 * 2) -> 77] 77."
NOT_AGAIN = " [Calculator(2 + 3) -> 5] 5, that is it."
TWICE = " [Calculator(2 + 3) -> 5] [Calculator(2 + 3) -> 5] 5."
CHAINED = " [Calculator(2 + 3) -> 5] 5, twice that is [Calculator(5 * 2) -> 10] 10."
LATER = " six, they [Calculator(2 + 3) -> 5] say."
NOTHING = " [1] as the table says."
STOPPING = " [QA(When?) -> so, they said] Fritz."
CLEANED = " [QA(Which?) -> see (1) and ) more] Fritz."
UNSPACED = "今年卖出 [Calculator(2 + 3) -> 5]五本。"
UNSPACED_PLAIN = "今年卖出六本。"
NEW_LINE = "\n[Calculator(2 + 3) -> 5] 5 it is."


CASES = {
    "the marker is not among the k most likely": Case((PLAIN, CALL), PLAIN, settings={"call_start_rank": 1}),
    "a call between two words without a space": Case(
        (UNSPACED_PLAIN, UNSPACED), UNSPACED, FIVE, without_calls="今年卖出五本。"
    ),
    "the marker is second and k is two": Case((PLAIN, CALL), CALL, FIVE, without_calls=" 5, they say."),
    "a result that the model would have made up": Case(
        (" [Calculator(2 + 3) -> 77] 77.", CALL), CALL, FIVE, without_calls=" 5, they say.", settings={"call_start_rank": 1}
    ),
    "no call is left": Case((PLAIN, AGAIN, NOT_AGAIN), NOT_AGAIN, FIVE, ("no_call_left",), " 5, that is it."),
    "an equal call": Case(
        (PLAIN, TWICE, CHAINED), CHAINED, (*FIVE, ("5 * 2", "10")), ("repeated_call",), " 5, twice that is 10.",
        settings={"calls_per_input": 3},
    ),
    "a call that came to nothing counts": Case((PLAIN, NOTHING, LATER), PLAIN, abandoned=("not_a_call",)),
    "a result without room in the window": Case(
        (PLAIN, " [QA(Why?) -> x] Fritz."), PLAIN, (("Why?", "no_room_for_result"),),
        settings={"window": len(ids(PROMPT)) + 40},
    ),
    "a result with brackets and lines, spelled as in the training texts": Case(
        (PLAIN, ' [QA("Which?") -> x] Fritz.', CLEANED), CLEANED, (("Which?", ANSWERS["Which?"]),), without_calls=" Fritz."
    ),
    "a barred name": Case(
        (PLAIN, " [QA(2 and 3?) -> 5] 5.", CALL), CALL, FIVE, without_calls=" 5, they say.", settings={"barred_tools": ("QA",)}
    ),
    "a line that starts with a call": Case(("\nFive it is.", NEW_LINE), NEW_LINE, FIVE, without_calls="\n 5 it is."),
    "a stop text in a result": Case(
        (PLAIN, STOPPING), STOPPING, (("When?", "so, they said"),), without_calls=" Fritz.", settings={"stops": (", they",)}
    ),
    "a stop text": Case((PLAIN,), " six", end="stop", settings={"stops": (" say", ", they", "six, they say")}),
    "a bracket over two lines": Case(
        (" rows [sum(x)\n and] more.",), " rows [sum(x)\n and] more.", settings={"call_start_rank": 1}
    ),
    "an arrow in an input": Case((PLAIN, " [Calculator(2 + 3 -> 5] 5."), PLAIN, abandoned=("not_a_call",)),
    "a stop text in brackets": Case(
        (" rows [sum(x), mean(x)] of it.", PLAIN), " rows [sum(x), ", end="stop",
        settings={"call_start_rank": 1, "stops": ("mean",)},
    ),
    **{
        f"no call: {text}": Case((PLAIN, text), PLAIN, abandoned=(reason,), settings={"max_call_tokens": 24})
        for text, reason in (
            (NOTHING, "not_a_call"),
            (" [Calculator(2 + 3)] 5.", "not_a_call"),
            (" [Calculator(2 +", "end_of_text_in_call"),
            (" [Abacus(2 + 3) -> 5] 5.", "unknown_tool"),
            (" [Calculator(2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13) -> 1] 1.", "call_too_long"),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_follows_from_the_script_with_its_answers(decoder, name):
    case = CASES[name]
    text = decoder.write(*case.texts, **case.settings)
    assert text.text == case.written
    assert [(call.input, call.result or call.reason) for call in text.calls] == list(case.calls)
    assert (text.abandoned, text.end) == (case.abandoned, case.end)
    assert text.without_calls == (case.written if case.without_calls is None else case.without_calls)
    if case.end == "end_of_text":
        assert text.token_ids == ids(case.written)
    for call in text.calls:
        shown = call_with_result(Call(call.tool, call.input), call.result) if call.result else ""
        assert text.text[call.start_char : call.end_char] == shown
    # Each input was run, once and alone, and nothing else was.
    assert decoder.calculator.batches + decoder.qa.batches == [[asked] for asked, _ in case.calls]


def test_a_call_of_the_prompt_is_not_made_again(decoder):
    text = decoder.write(PLAIN, CALL, prompt=f"{CALL.strip()} Again:")
    assert (text.token_ids, text.abandoned) == (ids(PLAIN), ("repeated_call",))


class RandomNetwork(ScriptedNetwork):
    """Logits follow from the tokens that are there alone, with brackets among the most likely ones."""

    def _logits(self, held: tuple[int, ...]) -> torch.Tensor:
        draw = torch.Generator().manual_seed(hash(held))
        logits = torch.randn(vocabulary_size(self.tokenization), generator=draw)
        logits[list(self.tokenization.bracket_ids)] += 3.0
        return logits


def test_random_texts_have_brackets_as_greedy_decoding_writes_them_unless_calls_are_disabled(decoder):
    words = tokenization()
    prompts = [Prompt(f"Text {number} is") for number in range(12)]

    def written(runs: ToolRuns, **settings: int) -> list[WrittenText]:
        decoding = DecodingSettings(max_new_tokens=40, **settings)
        return written_by(RandomNetwork(words, {}), decoding, runs, prompts)

    greedy = written(tool_runs())
    assert sum(text.text.count("[") for text in greedy) > 40
    # The limit of a call is none for what is no call.
    found = written(decoder.tools(), call_start_rank=1, max_call_tokens=3)
    assert [(text.token_ids, text.end) for text in found] == [(text.token_ids, text.end) for text in greedy]
    for disabled in ({"call_start_rank": 0}, {"call_start_rank": 10, "calls_per_input": 0}):
        for runs in (decoder.tools(), tool_runs()):
            assert not any("[" in text.text for text in written(runs, **disabled))


def test_a_tool_that_takes_too_long_raises_or_cannot_be_opened_leaves_no_bracket(decoder):
    for error, reason in (
        (None, "timed_out"),
        (ZeroDivisionError(), "tool_error"),
        (InfrastructureError("no answer"), "tool_not_available"),
        (ToolError("expected an abacus, found none"), "tool_not_available"),
    ):
        decoder.calculator.hangs = error is None
        decoder.calculator.answers = mock.Mock(side_effect=error)
        decoder.calculator.opening_error = error if isinstance(error, ToolError) else None
        text = decoder.write(PLAIN, CALL, tools=decoder.tools(time_limit=60.0 if error else 0.05))
        assert (text.token_ids, [call.reason for call in text.calls]) == (ids(PLAIN), [reason])
    with pytest.raises(ToolError, match="abacus"):
        decoder.tools().require()


def test_the_words_of_a_failed_call_are_not_left_behind_without_its_bracket(decoder):
    call = "Unknown(3 / 0) -> 3] then"
    text = decoder.write(f" [{call}", f" {call}", call, " then.", call_start_rank=1)
    assert (text.text, text.without_calls, text.end) == (" then.", " then.", "end_of_text")
    assert set(text.abandoned) == {"call_without_bracket", "unknown_tool"}


FAR, ASKED = " a long way to [Calculator(5 * 2) -> 10] 10.", " [QA(Who?) -> answer to Who?] Fritz."
TOGETHER = {
    "One. The sum is": ([PLAIN, CALL], CALL),
    "Two. No call here is": ([PLAIN], PLAIN),
    "Three. A long way before it is": ([" a long way to the end.", FAR], FAR),
    "Four. It fails and is": ([PLAIN, " [Calculator(nothing) -> ] five."], PLAIN),
    "Five. A question is": ([PLAIN, ASKED], ASKED),
    "Six. It is given up and is": ([PLAIN, NOTHING], PLAIN),
}


def test_calls_of_texts_that_are_interrupted_independently_run_together(decoder, monkeypatch):
    scripts = {prompt: [text + END for text in texts] for prompt, (texts, _) in TOGETHER.items()}
    told: list[list[int]] = [[] for _ in scripts]
    together = write(scripts, SECOND_BEST, decoder.tools(), told=lambda number, new: told[number].extend(new))
    assert sorted(decoder.calculator.batches[0]) == ["2 + 3", "5 * 2", "nothing"]
    assert len(decoder.calculator.batches) == len(decoder.qa.batches) == 1
    assert [text.text for text in together] == [written for _, written in TOGETHER.values()]
    # Settled tokens are told once, and those of a call that is forgotten never.
    assert [tuple(tokens) for tokens in told] == [text.token_ids for text in together]
    fewer = dataclasses.replace(BATCH_SIZES["cpu"], written_texts=2)  # more texts than fit together
    monkeypatch.setitem(BATCH_SIZES, "cpu", fewer)
    in_turn = write(scripts, SECOND_BEST, decoder.tools())
    assert [text.token_ids for text in in_turn] == [text.token_ids for text in together]


def test_the_token_limit_counts_text_but_not_calls(decoder):
    plain_tokens, text_tokens = len(ids(PLAIN)), len(ids(" 5, they say."))
    assert text_tokens >= 4
    for limit in (1, 3):
        plain = decoder.write(PLAIN, max_new_tokens=limit)
        assert (plain.token_ids, plain.end) == (ids(PLAIN)[:limit], "length")
        called = decoder.write(PLAIN, CALL, max_new_tokens=limit)
        assert len(called.token_ids) == len(ids(CALL)) - text_tokens + limit
        assert called.calls[0].result == "5"
    assert decoder.write(PLAIN, max_new_tokens=plain_tokens).text == PLAIN


def test_the_window_ends_a_text(decoder):
    prompt_tokens = len(tokenization().start_ids) + len(tokenization().ids(PROMPT))
    text = decoder.write(PLAIN, window=prompt_tokens + 3)
    assert (text.token_ids, text.end) == (ids(PLAIN)[: len(text.token_ids)], "length")
    assert 0 < len(text.token_ids) <= 3


def test_a_prompt_that_fills_the_window_is_refused(decoder):
    prompt_tokens = len(tokenization().start_ids) + len(tokenization().ids(PROMPT))
    with pytest.raises(ModelError, match="Shorten it"):
        decoder.write(PLAIN, window=prompt_tokens)


def test_the_calendar_tells_the_prompts_date():
    woven = " [Calendar() -> Today is Sunday, November 20, 2022.] Sunday."
    prompts = [Prompt(PROMPT, datetime.date(2022, 11, 20))]
    [text] = write({PROMPT: [PLAIN + END, woven + END]}, SECOND_BEST, tool_runs("Calendar"), prompts)
    assert text.text == woven


def test_settings_out_of_bounds_are_refused():
    for wrong in ({"max_new_tokens": -1}, {"call_start_rank": -1}, {"stops": ("",)}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            DecodingSettings(**wrong)  # type: ignore[arg-type]
