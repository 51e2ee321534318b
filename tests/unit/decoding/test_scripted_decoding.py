"""Decoding with tools follows a scripted model token by token, in every branch."""

import datetime
import logging
from collections.abc import Callable

import pytest
import torch

from tests.tiny_models import train_tokenizer
from tests.unit.decoding.scripted import END, ScriptedNetwork, TellingTool, tokenization, vocabulary_size, write
from toolformer_ops.config import Settings
from toolformer_ops.decoding.records import DecodingSettings, Prompt, WrittenText
from toolformer_ops.decoding.together import Together, ToolRuns
from toolformer_ops.errors import ModelError, ParameterError, ToolError
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.tools.base import ToolOutput

PROMPT = "The sum of 2 and 3 is"
PLAIN = " six, they say." + END
CALL = " [Calculator(2 + 3) -> 5] 5, they say." + END
SECOND_BEST = DecodingSettings(call_start_rank=2)


def sums(call_input: str) -> ToolOutput:
    known = {"2 + 3": "5", "5 * 2": "10"}
    return ToolOutput.of(known[call_input]) if call_input in known else ToolOutput.none("not_a_sum")


@pytest.fixture
def calculator() -> TellingTool:
    return TellingTool("Calculator", sums)


@pytest.fixture
def qa() -> TellingTool:
    return TellingTool("QA", lambda question: ToolOutput.of(f"answer to {question}"))


@pytest.fixture
def tools(calculator: TellingTool, qa: TellingTool, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ToolRuns]:
    by_name = {"Calculator": calculator, "QA": qa}
    monkeypatch.setattr("toolformer_ops.decoding.together.get_tool", by_name.__getitem__)

    def make(*names: str, time_limit: float = 60.0) -> ToolRuns:
        settings = Settings(_env_file=None, tool_time_limit_seconds=time_limit)  # type: ignore[call-arg]
        return ToolRuns(settings, names or ("Calculator", "QA"), lambda: pytest.fail("no tool here asks for the model"))

    return make


def ids(text: str) -> tuple[int, ...]:
    return tokenization().continuation(text.removesuffix(END))


def only(written: list[WrittenText]) -> WrittenText:
    [text] = written
    return text


def test_no_call_starts_where_the_marker_is_not_among_the_k_most_likely(tools: Callable[..., ToolRuns]) -> None:
    text = only(write({PROMPT: [PLAIN, CALL]}, DecodingSettings(call_start_rank=1), tools()))
    assert text.token_ids == ids(PLAIN)
    assert (text.text, text.calls, text.end) == (" six, they say.", (), "end_of_text")


def test_a_call_starts_where_the_marker_is_second_and_k_is_two(
    tools: Callable[..., ToolRuns], calculator: TellingTool
) -> None:
    text = only(write({PROMPT: [PLAIN, CALL]}, SECOND_BEST, tools()))
    assert text.token_ids == ids(CALL)
    assert text.text == " [Calculator(2 + 3) -> 5] 5, they say."
    assert text.without_calls == " 5, they say."
    [call] = text.calls
    assert (call.tool, call.input, call.result, call.reason) == ("Calculator", "2 + 3", "5", None)
    assert text.text[call.start_char : call.end_char] == "[Calculator(2 + 3) -> 5]"
    assert calculator.batches == [["2 + 3"]]


def test_what_the_model_would_have_made_up_as_a_result_is_never_written(tools: Callable[..., ToolRuns]) -> None:
    made_up = " [Calculator(2 + 3) -> 77] 77." + END
    text = only(write({PROMPT: [made_up, CALL]}, DecodingSettings(call_start_rank=1), tools()))
    assert text.text == " [Calculator(2 + 3) -> 5] 5, they say."


def test_with_k_zero_the_marker_is_never_written_even_where_it_is_the_most_likely(
    tools: Callable[..., ToolRuns], calculator: TellingTool
) -> None:
    text = only(write({PROMPT: [CALL, PLAIN]}, DecodingSettings(call_start_rank=0), tools()))
    assert text.token_ids == ids(PLAIN)
    assert calculator.batches == []


@pytest.mark.parametrize(
    "line",
    [
        " Today[Calendar() -> 5] is Friday.",  # a bracket right behind a letter
        "([Calculator(2 + 3) -> 5] is it).",
        "\n[Calculator(2 + 3) -> 5] is it.",
        " see [1].",
    ],
)
@pytest.mark.parametrize("disabled", [DecodingSettings(call_start_rank=0), DecodingSettings(calls_per_input=0)])
def test_with_calls_disabled_no_bracket_is_ever_written(
    tools: Callable[..., ToolRuns], calculator: TellingTool, line: str, disabled: DecodingSettings
) -> None:
    before = line.partition("[")[0].rstrip(" ")
    script = {PROMPT: [line + END, before + " is it." + END]}
    no_tools = ToolRuns(Settings(), (), lambda: pytest.fail("no tool here asks for the model"))
    for runs in (tools(), no_tools):
        text = only(write(script, disabled, runs))
        assert (text.text, text.calls, text.abandoned) == (before + " is it.", (), ())
    assert calculator.batches == []


def test_without_tools_decoding_is_plain_and_greedy() -> None:
    no_tools = ToolRuns(Settings(), (), lambda: pytest.fail("no tool here asks for the model"))
    text = only(write({PROMPT: [CALL, PLAIN]}, DecodingSettings(), no_tools))
    assert text.token_ids == ids(CALL)
    assert text.calls == ()


BRACKETS = (
    " see [1], as the table says.",
    " a list: [a, b, c] and [[1], [2]].",
    " x = [f(y) for y in rows]; y[0] = [sum(x), 2]",
    "\n[note] It is [sic] six.",
    " [Calculators are a kind of thing] six.",
    " the array [\n1,\n2\n] is it.",
    " it begins [sum",
)


@pytest.mark.parametrize("line", BRACKETS)
@pytest.mark.parametrize("rank", [1, 10])
def test_a_bracket_that_becomes_no_call_is_left_as_text(tools: Callable[..., ToolRuns], line: str, rank: int) -> None:
    text = only(write({PROMPT: [line + END, PLAIN]}, DecodingSettings(call_start_rank=rank), tools()))
    assert text.token_ids == ids(line)
    assert (text.text, text.calls, text.abandoned, text.end) == (line, (), (), "end_of_text")


@pytest.mark.parametrize("line", BRACKETS)
def test_text_in_brackets_counts_as_text_and_is_cut_as_text(tools: Callable[..., ToolRuns], line: str) -> None:
    for limit in range(1, len(ids(line))):
        decoding = DecodingSettings(max_new_tokens=limit, call_start_rank=1)
        text = only(write({PROMPT: [line + END, PLAIN]}, decoding, tools()))
        assert (text.token_ids, text.end) == (ids(line)[:limit], "length")
        short = DecodingSettings(max_call_tokens=limit, call_start_rank=1)  # no limit for what is no call
        assert only(write({PROMPT: [line + END, PLAIN]}, short, tools())).token_ids == ids(line)


def test_a_stop_text_inside_brackets_ends_the_text(tools: Callable[..., ToolRuns]) -> None:
    line = " rows [sum(x), mean(x)] of it." + END
    text = only(write({PROMPT: [line, PLAIN]}, DecodingSettings(call_start_rank=1, stop="mean"), tools()))
    assert (text.text, text.end) == (" rows [sum(x), ", "stop")


def test_where_the_rank_alone_started_a_bracket_greedy_decoding_goes_on(tools: Callable[..., ToolRuns]) -> None:
    greedy = " six ([1])." + END
    text = only(write({PROMPT: [greedy, " [2] six." + END, PLAIN]}, DecodingSettings(), tools()))
    assert (text.text, text.abandoned) == (" six ([1]).", ("not_a_call",))


def test_brackets_are_left_as_text_where_no_call_is_left_and_a_call_is_not_written(
    tools: Callable[..., ToolRuns], calculator: TellingTool
) -> None:
    cited = " [Calculator(2 + 3) -> 5] 5, see [1]." + END
    assert only(write({PROMPT: [PLAIN, cited]}, SECOND_BEST, tools())).token_ids == ids(cited)
    again = " [Calculator(2 + 3) -> 5] 5, that is [Calculator(5 * 2) -> 77] 77." + END
    without = " [Calculator(2 + 3) -> 5] 5, that is it." + END
    text = only(write({PROMPT: [PLAIN, again, without]}, SECOND_BEST, tools()))
    assert (text.token_ids, text.abandoned) == (ids(without), ("no_call_left",))
    behind_a_letter = " [Calculator(2 + 3) -> 5] 5, that is[Calculator(5 * 2) -> 77] 77." + END
    assert only(write({PROMPT: [PLAIN, behind_a_letter, without]}, SECOND_BEST, tools())).token_ids == ids(without)
    assert calculator.batches == [["2 + 3"]] * 3


def test_a_call_that_greedy_decoding_writes_right_behind_a_letter_is_run(
    tools: Callable[..., ToolRuns], calculator: TellingTool
) -> None:
    made_up = " they say[Calculator(2 + 3) -> 77] 77." + END
    woven = " they say[Calculator(2 + 3) -> 5] 5." + END
    text = only(write({PROMPT: [made_up, woven]}, DecodingSettings(), tools()))
    assert (text.token_ids, text.without_calls) == (ids(woven), " they say 5.")
    assert calculator.batches == [["2 + 3"]]


def test_a_token_that_ends_in_a_bracket_opens_no_call_and_may_open_a_text_in_brackets(
    tools: Callable[..., ToolRuns], calculator: TellingTool
) -> None:
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(["(["])
    words = Tokenization(tokenizer)
    [token] = words.ids("([")
    assert token in words.bracket_ids
    cited, called = "so([1], [2]).", "so([Calculator(2 + 3) -> 77])."
    for decoding, line, expected in (
        (DecodingSettings(call_start_rank=1), cited, cited),
        (DecodingSettings(call_start_rank=1), called, "so it is."),
        (DecodingSettings(call_start_rank=0), cited, "so it is."),
    ):
        network = ScriptedNetwork(words, {PROMPT: [line + END, "so it is." + END]})
        prompts, encoded = [Prompt(PROMPT)], [(*words.start_ids, *words.ids(PROMPT))]
        [text] = Together(network, words, tools()).write(prompts, encoded, decoding)
        assert text.text == expected
    assert calculator.batches == []


def test_an_equal_call_is_not_made_again(tools: Callable[..., ToolRuns], calculator: TellingTool) -> None:
    twice = " [Calculator(2 + 3) -> 5] [Calculator(2 + 3) -> 5] 5." + END
    once = " [Calculator(2 + 3) -> 5] 5, twice that is [Calculator(5 * 2) -> 10] 10." + END
    decoding = DecodingSettings(call_start_rank=2, calls_per_input=3)
    text = only(write({PROMPT: [PLAIN, twice, once]}, decoding, tools()))
    assert (text.token_ids, text.abandoned) == (ids(once), ("repeated_call",))
    assert calculator.batches == [["2 + 3"], ["5 * 2"]]
    told = f"{CALL.removesuffix(END).strip()} Again:"  # the call is in the prompt
    text = only(write({told: [PLAIN, CALL]}, decoding, tools()))
    assert (text.token_ids, text.abandoned) == (ids(PLAIN), ("repeated_call",))


class RandomNetwork(ScriptedNetwork):
    """Logits follow from the tokens that are there alone, with brackets among the most likely ones."""

    def _logits(self, held: tuple[int, ...]) -> torch.Tensor:
        draw = torch.Generator().manual_seed(hash(held))
        logits = torch.randn(vocabulary_size(self.tokenization), generator=draw)
        logits[list(self.tokenization.bracket_ids)] += 3.0
        return logits


def test_random_texts_have_brackets_as_greedy_decoding_writes_them_and_none_where_calls_are_disabled(
    tools: Callable[..., ToolRuns],
) -> None:
    words = tokenization()
    prompts = [Prompt(f"Text {number} is") for number in range(12)]
    encoded = [(*words.start_ids, *words.ids(prompt.text)) for prompt in prompts]

    def written(decoding: DecodingSettings, runs: ToolRuns) -> list[WrittenText]:
        return Together(RandomNetwork(words, {}), words, runs).write(prompts, encoded, decoding)

    no_tools = ToolRuns(Settings(), (), lambda: pytest.fail("no tool here asks for the model"))
    greedy = written(DecodingSettings(max_new_tokens=40), no_tools)
    assert sum(text.text.count("[") for text in greedy) > 40
    found = written(DecodingSettings(max_new_tokens=40, call_start_rank=1), tools())
    assert [(text.token_ids, text.end) for text in found] == [(text.token_ids, text.end) for text in greedy]
    disabled = written(DecodingSettings(max_new_tokens=40, call_start_rank=0), tools())
    assert not any("[" in text.text for text in disabled)


def test_a_tool_without_a_result_leaves_no_bracket(tools: Callable[..., ToolRuns]) -> None:
    failing = " [Calculator(two and three) -> 5] 5." + END
    text = only(write({PROMPT: [PLAIN, failing]}, SECOND_BEST, tools()))
    assert text.token_ids == ids(PLAIN)
    [call] = text.calls
    assert (call.input, call.result, call.reason) == ("two and three", None, "not_a_sum")
    assert (call.start_char, call.end_char) == (0, 0)


def test_a_tool_that_takes_too_long_leaves_no_bracket(tools: Callable[..., ToolRuns], calculator: TellingTool) -> None:
    calculator.hangs = True
    text = only(write({PROMPT: [PLAIN, CALL]}, SECOND_BEST, tools(time_limit=0.05)))
    assert text.token_ids == ids(PLAIN)
    assert text.calls[0].reason == "timed_out"


def test_a_tool_that_raises_leaves_no_bracket(tools: Callable[..., ToolRuns], calculator: TellingTool) -> None:
    calculator.answers = lambda _: 1 / 0  # type: ignore[assignment, return-value]
    text = only(write({PROMPT: [PLAIN, CALL]}, SECOND_BEST, tools()))
    assert text.token_ids == ids(PLAIN)
    assert text.calls[0].reason == "tool_error"


def test_a_tool_that_cannot_be_opened_is_named_once_and_leaves_no_bracket(
    tools: Callable[..., ToolRuns], calculator: TellingTool, caplog: pytest.LogCaptureFixture
) -> None:
    calculator.opening_error = ToolError("expected an abacus, found none")
    again = "Again: 2 and 3 is"
    with caplog.at_level(logging.WARNING):
        first, second = write({PROMPT: [PLAIN, CALL], again: [PLAIN, CALL]}, SECOND_BEST, tools())
    assert first.token_ids == second.token_ids == ids(PLAIN)
    assert first.calls[0].reason == second.calls[0].reason == "tool_not_available"
    assert caplog.text.count("expected an abacus, found none") == 1
    with pytest.raises(ToolError, match="abacus"):
        tools().require()
    tools().require(barred=["Calculator"])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (" [1] as the table says." + END, "not_a_call"),
        (" [Calculator(2 + 3)] 5." + END, "not_a_call"),
        (" [Calculator(2 + 3\n) -> 5] 5." + END, "not_a_call"),
        (" [Calculator(2 + 3 -> 5] 5." + END, "not_a_call"),
        (" [Calculator(2 +" + END, "end_of_text_in_call"),
        (" [Abacus(2 + 3) -> 5] 5." + END, "unknown_tool"),
        (" [Calculator(2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13) -> 1] 1." + END, "call_too_long"),
    ],
)
def test_what_is_no_call_is_forgotten(tools: Callable[..., ToolRuns], call: str, reason: str) -> None:
    decoding = DecodingSettings(call_start_rank=2, max_call_tokens=24)
    text = only(write({PROMPT: [PLAIN, call]}, decoding, tools()))
    assert text.token_ids == ids(PLAIN)
    assert (text.calls, text.abandoned) == ((), (reason,))


@pytest.mark.parametrize("rank", [1, 10])
@pytest.mark.parametrize(
    ("before", "call", "reason"),
    [
        (" and", "Unknown(3 / 0) -> 3] then", "unknown_tool"),
        ("", "Unknown(3 / 0) -> 3] then", "unknown_tool"),
        (" and", "Calculator(three) -> 3] then", "not_a_sum"),
    ],
)
def test_the_words_of_a_failed_call_are_not_left_behind_without_its_bracket(
    tools: Callable[..., ToolRuns], before: str, call: str, reason: str, rank: int
) -> None:
    texts = [f"{before} [{call}{END}", f"{before} {call}{END}", f"{before}{call}{END}", f"{before} then.{END}"]
    told: list[int] = []
    words = tokenization()
    network, decoding = ScriptedNetwork(words, {PROMPT: texts}), DecodingSettings(call_start_rank=rank)
    encoded = [(*words.start_ids, *words.ids(PROMPT))]
    together = Together(network, words, tools(), lambda _, tokens: told.extend(tokens))
    [text] = together.write([Prompt(PROMPT)], encoded, decoding)
    assert (text.text, text.without_calls, text.end) == (f"{before} then.", f"{before} then.", "end_of_text")
    failed = [*text.abandoned, *(made.reason for made in text.calls)]
    assert sorted(set(failed)) == sorted(["call_without_bracket", reason])
    assert told == list(text.token_ids)


def test_a_name_that_a_failed_call_had_may_follow_as_a_word(tools: Callable[..., ToolRuns]) -> None:
    texts = [" and [Unknown(3 / 0) -> 3] then" + END, " and Unknown is it." + END]
    text = only(write({PROMPT: texts}, DecodingSettings(call_start_rank=1), tools()))
    assert (text.text, text.abandoned) == (" and Unknown is it.", ("unknown_tool",))


def test_at_most_one_call_is_made_unless_more_are_allowed(
    tools: Callable[..., ToolRuns], calculator: TellingTool
) -> None:
    plain_end = " [Calculator(2 + 3) -> 5] 5, twice that is ten." + END
    chained = " [Calculator(2 + 3) -> 5] 5, twice that is [Calculator(5 * 2) -> 10] 10." + END
    script = {PROMPT: [PLAIN, plain_end, chained]}
    one = only(write(script, DecodingSettings(call_start_rank=2), tools()))
    assert one.token_ids == ids(plain_end)
    assert calculator.batches == [["2 + 3"]]
    two = only(write(script, DecodingSettings(call_start_rank=2, calls_per_input=2), tools()))
    assert two.token_ids == ids(chained)
    assert two.without_calls == " 5, twice that is 10."
    assert [(call.input, call.result) for call in two.calls] == [("2 + 3", "5"), ("5 * 2", "10")]
    assert [two.text[call.start_char : call.end_char] for call in two.calls] == [
        "[Calculator(2 + 3) -> 5]",
        "[Calculator(5 * 2) -> 10]",
    ]


def test_a_call_that_came_to_nothing_counts_as_one(tools: Callable[..., ToolRuns], calculator: TellingTool) -> None:
    later = " six, they [Calculator(2 + 3) -> 5] say." + END
    nothing = " [1] as the table says." + END
    text = only(write({PROMPT: [PLAIN, nothing, later]}, SECOND_BEST, tools()))
    assert text.token_ids == ids(PLAIN)
    assert calculator.batches == []
    text = only(
        write({PROMPT: [PLAIN, nothing, later]}, DecodingSettings(call_start_rank=2, calls_per_input=2), tools())
    )
    assert text.text == " six, they [Calculator(2 + 3) -> 5] say."


def test_the_call_is_spelled_as_in_the_training_texts(tools: Callable[..., ToolRuns], qa: TellingTool) -> None:
    quoted = ' [QA("Who was it?") -> nobody] nobody.' + END
    woven = " [QA(Who was it?) -> answer to Who was it?] Fritz." + END
    text = only(write({PROMPT: [PLAIN, quoted, woven]}, SECOND_BEST, tools()))
    assert text.token_ids == ids(woven)
    assert qa.batches == [["Who was it?"]]


def test_a_result_cannot_end_the_call_early_or_break_the_line(tools: Callable[..., ToolRuns], qa: TellingTool) -> None:
    qa.answers = lambda _: ToolOutput.of("see [1]\nand ] more")
    asked = " [QA(Who?) -> x] Fritz." + END
    woven = " [QA(Who?) -> see (1) and ) more] Fritz." + END
    text = only(write({PROMPT: [PLAIN, asked, woven]}, SECOND_BEST, tools()))
    assert text.text == woven.removesuffix(END)


def test_a_barred_tools_name_cannot_be_written_and_another_tool_is_called(
    tools: Callable[..., ToolRuns], qa: TellingTool, calculator: TellingTool
) -> None:
    asks = " [QA(2 and 3?) -> 5] 5." + END
    decoding = DecodingSettings(call_start_rank=2, barred_tools=("QA",))
    text = only(write({PROMPT: [PLAIN, asks, CALL]}, decoding, tools()))
    assert text.token_ids == ids(CALL)
    assert qa.batches == []
    alone = only(write({PROMPT: [PLAIN, asks]}, decoding, tools("QA")))
    assert "QA(" not in alone.text
    assert qa.batches == []


def test_texts_of_a_batch_are_interrupted_independently_and_their_calls_run_together(
    tools: Callable[..., ToolRuns], calculator: TellingTool, qa: TellingTool
) -> None:
    scripts = {
        "One. The sum is": [PLAIN, CALL],
        "Two. No call here is": [PLAIN],
        "Three. A long way before it is": [
            " a long way to the end." + END,
            " a long way to [Calculator(5 * 2) -> 10] 10." + END,
        ],
        "Four. It fails and is": [PLAIN, " [Calculator(nothing) -> ] five." + END],
        "Five. A question is": [PLAIN, " [QA(Who?) -> answer to Who?] Fritz." + END],
    }
    together = write(scripts, SECOND_BEST, tools())
    assert sorted(calculator.batches[0]) == ["2 + 3", "5 * 2", "nothing"]
    assert len(calculator.batches) == len(qa.batches) == 1
    alone = [only(write({prompt: script}, SECOND_BEST, tools())) for prompt, script in scripts.items()]
    assert [text.token_ids for text in together] == [text.token_ids for text in alone]
    assert [text.text for text in together] == [
        CALL.removesuffix(END),
        PLAIN.removesuffix(END),
        " a long way to [Calculator(5 * 2) -> 10] 10.",
        PLAIN.removesuffix(END),
        " [QA(Who?) -> answer to Who?] Fritz.",
    ]


def test_more_texts_than_fit_together_are_all_written(
    tools: Callable[..., ToolRuns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolformer_ops.decoding.together.MAX_ROWS", 3)
    scripts = {f"Text {number} is": [PLAIN, CALL] if number % 2 else [PLAIN] for number in range(10)}
    words = tokenization()
    network = ScriptedNetwork(words, scripts)
    prompts = [Prompt(text) for text in scripts]
    encoded = [(*words.start_ids, *words.ids(prompt.text)) for prompt in prompts]
    written = Together(network, words, tools()).write(prompts, encoded, SECOND_BEST)
    assert [text.text for text in written] == [
        (CALL if number % 2 else PLAIN).removesuffix(END) for number in range(10)
    ]
    assert max(network.caches[0].passes) == 3


def test_the_token_limit_counts_text_and_not_calls(tools: Callable[..., ToolRuns]) -> None:
    plain_tokens, text_tokens = len(ids(PLAIN)), len(ids(" 5, they say."))
    assert text_tokens >= 4
    for limit in (1, 3):
        plain = only(write({PROMPT: [PLAIN]}, DecodingSettings(max_new_tokens=limit), tools()))
        assert plain.token_ids == ids(PLAIN)[:limit]
        assert plain.end == "length"
        called = only(
            write({PROMPT: [PLAIN, CALL]}, DecodingSettings(max_new_tokens=limit, call_start_rank=2), tools())
        )
        assert len(called.token_ids) == len(ids(CALL)) - text_tokens + limit
        assert called.calls[0].result == "5"
    whole = only(write({PROMPT: [PLAIN]}, DecodingSettings(max_new_tokens=plain_tokens), tools()))
    assert whole.text == PLAIN.removesuffix(END)


def test_a_stop_text_ends_the_continuation_and_is_not_part_of_it(
    tools: Callable[..., ToolRuns], qa: TellingTool
) -> None:
    decoding = DecodingSettings(call_start_rank=2, stop=", they")
    plain = only(write({PROMPT: [PLAIN]}, decoding, tools()))
    assert (plain.text, plain.end) == (" six", "stop")
    called = only(write({PROMPT: [PLAIN, CALL]}, decoding, tools()))
    assert (called.text, called.without_calls) == (" [Calculator(2 + 3) -> 5] 5", " 5")
    qa.answers = lambda _: ToolOutput.of("so, they said")  # inside a result it stops nothing
    asked = " [QA(Who?) -> so, they said] Fritz." + END
    inside = only(write({PROMPT: [PLAIN, asked]}, decoding, tools()))
    assert (inside.text, inside.end) == (asked.removesuffix(END), "end_of_text")


def test_a_result_that_has_no_room_in_the_window_is_left_out(tools: Callable[..., ToolRuns], qa: TellingTool) -> None:
    qa.answers = lambda _: ToolOutput.of("a long answer " * 30)
    asked = " [QA(Who?) -> x] Fritz." + END
    window = len(ids(PROMPT)) + 40
    text = only(write({PROMPT: [PLAIN, asked]}, SECOND_BEST, tools(), window=window))
    assert text.token_ids == ids(PLAIN)
    assert text.calls[0].reason == "no_room_for_result"


def test_the_window_ends_a_text_and_a_prompt_that_fills_it_is_refused(tools: Callable[..., ToolRuns]) -> None:
    words = tokenization()
    prompt_tokens = len(words.start_ids) + len(words.ids(PROMPT))
    text = only(write({PROMPT: [PLAIN]}, DecodingSettings(), tools(), window=prompt_tokens + 3))
    assert text.end == "length"
    assert text.token_ids == ids(PLAIN)[: len(text.token_ids)]
    assert 0 < len(text.token_ids) <= 3
    with pytest.raises(ModelError, match="Shorten it"):
        write({PROMPT: [PLAIN]}, DecodingSettings(), tools(), window=prompt_tokens)


def test_a_call_may_start_a_line_without_a_space(tools: Callable[..., ToolRuns]) -> None:
    line = "\n[Calculator(2 + 3) -> 5] 5 it is." + END
    text = only(write({PROMPT: ["\nFive it is." + END, line]}, DecodingSettings(call_start_rank=2), tools()))
    assert text.text == line.removesuffix(END)
    assert text.without_calls == "\n 5 it is."
    disabled = only(write({PROMPT: [line, "\nFive it is." + END]}, DecodingSettings(call_start_rank=0), tools()))
    assert disabled.text == "\nFive it is."


def test_the_calendar_tells_the_prompts_date(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ToolRuns(Settings(_env_file=None), ("Calendar",), lambda: pytest.fail("not asked"))  # type: ignore[call-arg]
    woven = " [Calendar() -> Today is Sunday, November 20, 2022.] Sunday." + END
    prompts = [Prompt(PROMPT, datetime.date(2022, 11, 20))]
    text = only(write({PROMPT: [PLAIN, woven]}, SECOND_BEST, runs, prompts))
    assert text.text == woven.removesuffix(END)


def test_a_call_that_holds_the_result_of_the_one_before_is_written(
    tools: Callable[..., ToolRuns], calculator: TellingTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calendar = TellingTool("Calendar", lambda _: ToolOutput.of("Today is Friday, November 20, 2020."))
    years = TellingTool("Calculator", lambda sum_: ToolOutput.of("33" if sum_ == "2020 - 1987" else "0"))
    monkeypatch.setattr("toolformer_ops.decoding.together.get_tool", {"Calendar": calendar, "Calculator": years}.get)
    runs = ToolRuns(Settings(_env_file=None), ("Calendar", "Calculator"), lambda: pytest.fail("not asked"))  # type: ignore[call-arg]
    chain = (
        " [Calendar() -> Today is Friday, November 20, 2020.] Friday, so she has lived"
        " [Calculator(2020 - 1987) -> 33] 33 years."
    )
    text = only(write({PROMPT: [chain + END]}, DecodingSettings(call_start_rank=2, calls_per_input=2), runs))
    assert text.text == chain
    assert [(call.tool, call.input, call.result) for call in text.calls] == [
        ("Calendar", "", "Today is Friday, November 20, 2020."),
        ("Calculator", "2020 - 1987", "33"),
    ]


def test_settled_tokens_are_told_once_and_a_forgotten_call_never(tools: Callable[..., ToolRuns]) -> None:
    words = tokenization()
    scripts = {"One is": [PLAIN, CALL], "Two is": [PLAIN, " [1] as the table says." + END]}
    told: dict[int, list[int]] = {0: [], 1: []}
    together = Together(
        ScriptedNetwork(words, scripts), words, tools(), lambda number, tokens: told[number].extend(tokens)
    )
    prompts = [Prompt(text) for text in scripts]
    written = together.write(prompts, [(*words.start_ids, *words.ids(p.text)) for p in prompts], SECOND_BEST)
    assert [tuple(told[number]) for number in (0, 1)] == [text.token_ids for text in written] == [ids(CALL), ids(PLAIN)]


@pytest.mark.parametrize(
    "wrong",
    [{"max_new_tokens": 0}, {"call_start_rank": -1}, {"calls_per_input": -1}, {"max_call_tokens": 0}, {"stop": ""}],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        DecodingSettings(**wrong)  # type: ignore[arg-type]
