"""Which positions and which calls make a chain."""

import pytest

from toolformer_ops.annotation.candidates import HOLDS_CALL_MARKUP, HOLDS_NO_CALL, TAKES_NO_INPUT, filter_document
from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.call_syntax import Call, WovenCall, weave
from toolformer_ops.records import Document
from toolformer_ops.runs.choices import FilterChoices
from toolformer_ops.tools.registry import get_tool

TOOLS = ("Calendar", "Calculator", "WikiSearch")
PLAIN = "It is Friday today. Ada was born in 1987 and so she is 33 years old by now, or soon."
DATE = WovenCall(5, Call("Calendar", ""), "Today is Friday, November 20, 2020.")
SUM = WovenCall(PLAIN.index(" 33"), Call("Calculator", "2020 - 1987"), "33")


def earlier(*calls: WovenCall, plain: str = PLAIN) -> EarlierCalls:
    return EarlierCalls.of(weave(plain, calls), TOOLS)


def test_the_calls_of_a_text_are_read_out_with_their_places() -> None:
    found = earlier(DATE, SUM)
    assert found.plain_text == PLAIN
    assert [WovenCall(one.position_char, one.call, one.result) for one in found.calls] == [DATE, SUM]
    assert [found.text[one.start_char : one.end_char] for one in found.calls] == [
        " [Calendar() -> Today is Friday, November 20, 2020.]",
        " [Calculator(2020 - 1987) -> 33]",
    ]


def test_a_result_that_holds_what_ends_an_input_is_read_whole() -> None:
    odd = WovenCall(5, Call("WikiSearch", "f(x)"), "f(2) -> 4")
    assert [(one.call, one.result) for one in earlier(odd).calls] == [(odd.call, odd.result)]


def test_a_second_call_is_sampled_where_text_is_between_and_the_scored_words_belong_to_no_later_call() -> None:
    found = earlier(DATE, SUM)
    first, second = found.calls
    words = [at for at, character in enumerate(found.text) if character == " "]
    allowed = [at for at in words if found.allows(at)]
    # Behind the date, but not right behind it; not in a call; five words before the sum; behind the sum, but not right behind it.
    assert not any(at <= first.end_char for at in allowed)
    assert not any(second.start_char <= at <= second.end_char for at in allowed)
    assert found.text[max(at for at in allowed if at < second.start_char) : second.start_char].split() == [
        "1987", "and", "so", "she", "is",
    ]  # fmt: skip
    assert min(at for at in allowed if at > second.end_char) == found.text.index(" years")
    assert not any(earlier().allows(at) for at in words)


@pytest.mark.parametrize(
    ("call_input", "parent"),
    [
        ("2020 - 1987", 0),  # a number of the date
        ("days since November 20", 0),
        ("33 * 2", 1),  # the whole result of the sum
        ("1987 + 1", None),  # in the text before
        ("today is", None),  # words of the date that are in the text, or no pair of it
        ("2 + 2", None),
        ("", None),
    ],
)
def test_the_parent_is_the_call_whose_result_alone_gives_the_input(call_input: str, parent: int | None) -> None:
    plain = "It is Friday. Ada was born in 1987 and is so many years old by now, or soon."
    at = plain.index(" years")
    found = earlier(DATE, WovenCall(at, SUM.call, SUM.result), plain=plain)
    assert found.parent_of(call_input, len(found.text)) == parent
    assert found.parent_of("33 * 2", found.calls[1].end_char) == 1  # right behind it, too


LATE = "Today is Friday, November 5, 2020."
ADA = "Ada Lovelace was born in 1815."


@pytest.mark.parametrize(
    ("call", "result", "call_input", "is_parent"),
    [
        (Call("Calendar", ""), LATE, "days since November 5", True),  # a name and a number that follow each other
        (Call("Calendar", ""), LATE, "5 + 2", False),  # a number of one digit
        (Call("Calculator", "2 + 3"), "5", "5 * 2", True),  # all of the result
        (Call("WikiSearch", "Ada Lovelace"), ADA, "1815 + 5", True),
        (Call("WikiSearch", "beans"), "It holds 25 grams.", "25 * 2", True),  # a number of two digits
        (
            Call("WikiSearch", "vitamins"),
            "It holds vitamins b2 D3.",
            "b2 D3",
            False,
        ),  # a name starts with a capital or a digit
        (Call("WikiSearch", "Ada Lovelace"), ADA, "Ada Lovelace", False),  # as the call itself has asked
    ],
)
def test_what_is_a_piece_of_a_result(call: Call, result: str, call_input: str, is_parent: bool) -> None:
    found = earlier(WovenCall(5, call, result), plain="Well, this is a text that says little.")
    assert found.parent_of(call_input, len(found.text)) == (0 if is_parent else None)


def test_of_two_calls_with_the_same_result_the_last_one_before_is_the_parent() -> None:
    twice = [WovenCall(at, Call("Calculator", f"{at} + {2020 - at}"), "2020") for at in (5, 15)]
    found = earlier(*twice, plain="Well, this is a text that says little.")
    assert found.parent_of("2020 - 1987", len(found.text)) == 1
    assert found.parent_of("2020 - 1987", found.calls[1].start_char) == 0


def test_a_result_that_the_text_says_too_makes_no_chain() -> None:
    found = earlier(DATE, SUM)
    assert found.parent_of("33 * 2", len(found.text)) is None  # the text says 33 behind the sum
    assert found.parent_of("2020 - 1987", len(found.text)) == 0
    assert found.parent_of("2020 - 1987", found.calls[0].start_char) is None  # before the date


def test_a_text_of_a_chain_holds_calls_and_no_other_markup() -> None:
    calculator = get_tool("Calculator")
    woven, smuggled = weave(PLAIN, [DATE]), "A [Calculator(2 + 2) of 4 " + PLAIN
    assert [item.reason for item in filter_document(calculator, Document.of(woven), FilterChoices())] == [
        HOLDS_CALL_MARKUP
    ]
    assert [item.reason for item in filter_document(calculator, Document.of(PLAIN), FilterChoices(), chains=True)] == [
        HOLDS_NO_CALL
    ]
    assert [
        item.reason for item in filter_document(calculator, Document.of(smuggled), FilterChoices(), chains=True)
    ] == [HOLDS_CALL_MARKUP]
    both = weave(smuggled, [WovenCall(len(smuggled), DATE.call, DATE.result)])
    assert [item.reason for item in filter_document(calculator, Document.of(both), FilterChoices(), chains=True)] == [
        HOLDS_CALL_MARKUP
    ]
    # The decision is on all of the text, its calls included.
    assert [
        (item.reason, item.start_char, item.end_char)
        for item in filter_document(get_tool("Calendar"), Document.of(woven), FilterChoices(), chains=True)
    ] == [(TAKES_NO_INPUT, 0, len(woven))]
    assert not {HOLDS_CALL_MARKUP, HOLDS_NO_CALL} & {
        item.reason for item in filter_document(calculator, Document.of(woven), FilterChoices(), chains=True)
    }
