"""The writer and reader of calls: what parses, what is written, and that taking calls out gives the text back."""

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from toolformer_ops.call_syntax import (
    NOT_IN_A_CALL,
    Call,
    WovenCall,
    call_opening,
    call_with_result,
    call_without_result,
    clean_result,
    holds_call_markup,
    marked_calls,
    parse_call,
    read_out,
    take_out,
    weave,
)
from toolformer_ops.errors import CallSyntaxError

TOOLS = ("Calculator", "Calendar", "WikiSearch", "QA", "MT")


def test_a_call_is_read_as_its_name_with_its_input():
    for written, tool, call_input in (
        ("Calculator((2 + 3) * 4)", "Calculator", "(2 + 3) * 4"),
        (" Calendar() ", "Calendar", ""),
        ('QA("Where was Joe Biden born?")', "QA", "Where was Joe Biden born?"),
        ("WikiSearch(“Ghana flag”)", "WikiSearch", "Ghana flag"),
        ('QA("a" or "b")', "QA", '"a" or "b"'),
        ("QA(“a” b”)", "QA", "“a” b”"),
        ("QA(“a “b”)", "QA", "“a “b”"),
        ('QA("")', "QA", ""),
        ('QA(")', "QA", '"'),
        ("Calculator(18 + 12) -> 30", "Calculator", "18 + 12"),
    ):
        assert parse_call(written) == Call(tool, call_input)


def test_what_is_not_one_call_does_not_parse():
    for written in (
        "",
        "54",
        "Calculator",
        "Calculator(4",
        "1Tool(4)",
        "QA(see [1)",
        "QA(a\nb)",
        "the QA(x) is",
    ):
        with pytest.raises(CallSyntaxError):
            parse_call(written)


def test_a_sample_may_lack_only_its_last_round_bracket():
    for written, call_input in (
        ('WikiSearch("iris function"', "iris function"),
        ("WikiSearch(f(x)", "f(x)"),
        ("WikiSearch(iris -> a flower)", "iris"),
        ("WikiSearch(", ""),
    ):
        assert parse_call(written, is_closed=False) == Call("WikiSearch", call_input)
    for refused in ("WikiSearch", "WikiSearch(a) of it", "WikiSearch((a", "WikiSearch(a (b) (c"):
        with pytest.raises(CallSyntaxError):
            parse_call(refused, is_closed=False)


def test_a_result_cannot_end_the_call_early_or_break_the_line():
    assert clean_result(" see [1]\nand [2] ") == "see (1) and (2)"
    assert call_with_result(Call("QA", "x"), "a] b").count("]") == 1


def test_the_example_of_the_paper_is_written_as_printed():
    call = Call("Calculator", "400 / 1400")
    assert str(call) == "Calculator(400 / 1400)"
    assert call_without_result(call) == "[Calculator(400 / 1400) -> ]"
    assert call_with_result(call, "0.29") == "[Calculator(400 / 1400) -> 0.29]"
    text = "Out of 1400 participants, 400 (or 29%) passed the test."
    woven = weave(text, [WovenCall(text.index(" 29%") - 3, call, "0.29")])
    assert woven == "Out of 1400 participants, 400 [Calculator(400 / 1400) -> 0.29] (or 29%) passed the test."
    assert take_out(woven, TOOLS) == text


def test_a_call_brings_its_space_before_it_or_at_a_line_start_after_it():
    call = Call("Calculator", "1 + 1")
    assert weave("so two\nin all", [WovenCall(6, call, "2")]) == "so two [Calculator(1 + 1) -> 2]\nin all"
    assert weave("so two", [WovenCall(6, call, "2")]) == "so two [Calculator(1 + 1) -> 2]"
    assert weave(" two", [WovenCall(0, call, "2")]) == "[Calculator(1 + 1) -> 2]  two"
    assert weave("so\ntwo it is", [WovenCall(3, call, "2")]) == "so\n[Calculator(1 + 1) -> 2] two it is"


def test_a_call_beyond_the_text_is_refused():
    call = Call("Calculator", "1 + 1")
    with pytest.raises(CallSyntaxError, match=r"0\.\.3, found 4"):
        weave("abc", [WovenCall(4, call, "2")])


def test_a_call_between_two_words_without_a_space_brings_its_space_before_it():
    text = "今年卖出三百本。"
    woven = weave(text, [WovenCall(4, Call("Calculator", "1 + 1"), "2")])
    assert woven == "今年卖出 [Calculator(1 + 1) -> 2]三百本。"
    assert take_out(woven, TOOLS) == text


def test_brackets_that_are_no_call_of_the_tools_stay_in_the_text():
    text = "see [1] and [Note(2) -> 3] and [Calculator] here"
    assert take_out(text, TOOLS) == text


def test_of_white_space_only_a_space_goes_with_a_call():
    assert (
        take_out("so[QA(x) -> y]it is", TOOLS) == "soit is"
    )  # of white space, only a space goes with a call


def test_text_that_could_smuggle_in_a_call_is_recognised():
    for text in (
        "so [Calculator(1+1) -> 3] it is",
        "so [ QA (x) -> y] it is",  # as a model may write it
        "so [QA(x)->y] it is",
        "so [QA(x) -> and no end",
        "so [QA(f(x) -> y) -> z]",
        "[[QA(x) -> y]|link]",
        "d[QA(3) -> 4]",
    ):
        assert holds_call_markup(text, TOOLS), text


def test_what_no_reader_takes_for_a_call_is_no_markup():
    for text in (
        "the Calculator(1) -> 2 [1] [Other(2) -> 3]",
        "our [QA (quality assurance)] team",
        "for [[Calendar (New York City)|the calendar]] 1 and 2",
        "total = d[QA(3)] + d[MT(x)]",
        "so [ QA (x",
        "[QA(x) and then -> y]",
        "[QA(a [1] b) -> c]",
        "[QA(a\nb) -> c]",
        "[Calculator(1 + 1)] -> 2",
        "[QAs(x) -> y]",
        "[qa(x) -> y]",
    ):
        assert not holds_call_markup(text, TOOLS), text


texts = st.text(st.sampled_from("ab .,\n\t 1é汉"), max_size=30)
results = st.text(st.sampled_from("ab[]()->\n \t9"), min_size=1, max_size=12)
inputs = st.text(st.sampled_from('ab()-> +9"'), max_size=12)


def place(text: str, char: int) -> int:
    """What is read for a call before `char`: before a word, the place before the space in front of it has the same text."""
    before_word = 1 < char < len(text) and not text[char].isspace()
    return char - 1 if before_word and text[char - 1] == " " else char


@settings(derandomize=True, deadline=None)
@example(" 1", [(0, "QA", "x", "9"), (1, "QA", "y", "9"), (1, "QA", "z", "9")])
@given(texts, st.lists(st.tuples(st.integers(0, 30), st.sampled_from(TOOLS), inputs, results), max_size=6))
def test_taking_all_calls_out_gives_the_text_back_byte_for_byte(text, placed):
    calls = [WovenCall(min(at, len(text)), Call(tool, asked), result) for at, tool, asked, result in placed]
    woven = weave(text, calls)
    plain, written = read_out(woven, TOOLS)
    assert plain == take_out(woven, TOOLS) == text
    in_order = sorted(calls, key=lambda item: item.position_char)
    assert [(item.call, item.result, item.position_char) for item in written] == [
        (item.call, clean_result(item.result), place(text, item.position_char)) for item in in_order
    ]
    assert weave(plain, [WovenCall(item.position_char, item.call, item.result) for item in written]) == woven
    ends = [0, *(item.end_char for item in written)]
    starts = [*(item.start_char for item in written), len(woven)]
    assert "".join(woven[end:start] for end, start in zip(ends, starts, strict=True)) == text


FRAGMENTS = (
    "[", "]", "[[", "(", ")", " ", "\n", "\t", "a", "1", "|", "->", " -> ", ") -> ", ") -> y]", "QA", "QA(", "[QA(", "[QA(x)",
    "[QA(x)]", "[ QA (x)", "[QA(x) ->", "[QA(x) -> y]", "[Calendar() -> ", "Calendar (New York City)", "d[MT(3)]", " [",
)  # fmt: skip
"""Pieces of calls: put together they hold whole calls, halves of calls, and brackets around them."""
hostile_texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
placed_calls = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from(TOOLS),
        st.text(st.sampled_from("ab() +9")),
        st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join),
    ),
    max_size=4,
)


@settings(derandomize=True, deadline=None, max_examples=500)
@example("[QA(x ", [(6, "QA", "y", "z")])  # the call's end may not end what the text began
@example("[QA(x)", [(6, "QA", "y", ") -> z")])
@example("[", [(1, "QA", "y", "z"), (0, "MT", "", "")])
@example("[QA (quality assurance)]", [(4, "QA", "y", "z"), (24, "QA", "y", "z")])
@given(hostile_texts, placed_calls)
def test_every_text_that_is_no_markup_comes_back_with_the_woven_calls_alone(text, placed):
    assume(not holds_call_markup(text, TOOLS))
    calls = [
        WovenCall(min(char, len(text)), Call(tool, call_input), result)
        for char, tool, call_input, result in placed
    ]
    plain, written = read_out(weave(text, calls), TOOLS)
    assert plain == text
    in_order = sorted(calls, key=lambda item: item.position_char)
    assert [(item.call, item.result) for item in written] == [
        (item.call, clean_result(item.result)) for item in in_order
    ]


@settings(derandomize=True, deadline=None, max_examples=500)
@given(hostile_texts)
def test_whatever_is_read_as_a_call_is_markup(text):
    if take_out(text, TOOLS) != text:
        assert holds_call_markup(text, TOOLS)


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from(["a", " ", "\n", "[", "]", "QA", "[QA(", "[QA(1) -> 2]"]), max_size=12).map(
        "".join
    ),
    st.lists(
        st.tuples(st.integers(0, 60), st.text(st.sampled_from("a[]()-> \n9"), max_size=6), results),
        max_size=4,
    ),
)
def test_what_is_plainly_written_gives_the_text_back(text, placed):
    assume(call_opening("QA") not in text)
    assume(not any(re.search(NOT_IN_A_CALL, asked) for _, asked, _ in placed))
    calls = [WovenCall(min(at, len(text)), Call("QA", asked), result) for at, asked, result in placed]
    assert take_out(weave(text, calls), ["QA"]) == text


def test_an_input_with_a_control_character_is_no_call():
    for text in ("QA(a\x00b)", "QA(a\x1bb)", "QA(a\x7fb)", "QA(a\nb)"):
        with pytest.raises(CallSyntaxError, match="control characters"):
            parse_call(text)


def test_marked_calls_come_out_of_their_text_with_their_places():
    plain, calls = marked_calls(
        "[qa(a) -> b] It is [Calculator(1 + 1)] 2 or [Sum(2) -> 2] 2, [see (1)] d[Foo(3)].",
        ["Calculator", "QA"],
    )
    assert plain == "It is 2 or 2, [see (1)] d[Foo(3)]."
    assert [(call.position_char, str(call.call), call.result) for call in calls] == [
        (0, "qa(a)", "b"),
        (5, "Calculator(1 + 1)", ""),
        (10, "Sum(2)", "2"),
    ]
