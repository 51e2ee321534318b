"""Which positions and which calls make a chain."""

from dataclasses import replace

import pytest

from toolformer_ops.annotation.chains import EarlierCalls
from toolformer_ops.annotation.filtering import (
    HOLDS_CALL_MARKUP,
    HOLDS_NO_CALL,
    TAKES_NO_INPUT,
    filter_document,
)
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


def test_the_calls_of_a_text_are_read_out_with_their_places():
    odd = WovenCall(19, Call("WikiSearch", "f(x)"), "f(2) -> 4")  # which holds what ends an input
    found = earlier(DATE, odd, SUM)
    assert found.plain_text == PLAIN
    assert [WovenCall(one.position_char, one.call, one.result) for one in found.calls] == [DATE, odd, SUM]
    assert [found.text[one.start_char : one.end_char] for one in found.calls] == [
        " [Calendar() -> Today is Friday, November 20, 2020.]",
        " [WikiSearch(f(x)) -> f(2) -> 4]",
        " [Calculator(2020 - 1987) -> 33]",
    ]


def test_a_second_call_is_sampled_where_its_scored_words_belong_to_no_other_call():
    found = earlier(DATE, SUM)
    first, second = found.calls
    words = [at for at, character in enumerate(found.text) if character == " "]
    allowed = [at for at in words if found.allows(at)]
    # Behind the date, but not right behind it; not in a call; five words before the sum; behind the sum, but
    # not right behind it.
    assert not any(at <= first.end_char for at in allowed)
    assert not any(second.start_char <= at <= second.end_char for at in allowed)
    last = max(at for at in allowed if at < second.start_char)
    assert found.text[last : second.start_char].split() == ["1987", "and", "so", "she", "is"]
    assert min(at for at in allowed if at > second.end_char) == found.text.index(" years")
    assert not any(earlier().allows(at) for at in words)


SAYS_LITTLE = "Well, this is a text that says little."
OLD = "It is Friday. Ada was born in 1987 and is so many years old by now, or soon."
OLD_SUM = replace(SUM, position_char=OLD.index(" years"))
BORN = replace(OLD_SUM, call=Call("WikiSearch", "Ada"), result="Born in 1987.")
LATE = replace(DATE, result="Today is Friday, November 5, 2020.")
ADA = WovenCall(5, Call("WikiSearch", "Ada Lovelace"), "Ada Lovelace was born in 1815.")


def found_on(asked: str, result: str) -> WovenCall:
    return WovenCall(5, Call("WikiSearch", asked), result)


@pytest.mark.parametrize(
    ("plain", "calls", "call_input", "parent"),
    [
        (OLD, [DATE, OLD_SUM], "2020 - 1987", 0),  # a number of the date
        (OLD, [DATE, OLD_SUM], "33 * 2", 1),  # the whole result of the sum
        (OLD, [DATE, OLD_SUM], "1987 + 1", None),  # in the text before
        (OLD, [DATE, BORN], "1987 + 1", None),  # the text says 1987 before that call
        (OLD, [DATE, OLD_SUM], "today is", None),  # words of the date that are in the text, or no pair of it
        (OLD, [DATE, OLD_SUM], "", None),
        (SAYS_LITTLE, [LATE], "days since November 5", 0),  # a name and a number that follow each other
        (SAYS_LITTLE, [LATE], "5 + 2", None),  # a number of one digit
        (SAYS_LITTLE, [WovenCall(5, Call("Calculator", "2 + 3"), "5")], "5 * 2", 0),  # all of the result
        (SAYS_LITTLE, [ADA], "1815 + 5", 0),
        (SAYS_LITTLE, [ADA], "Ada Lovelace", None),  # as the call itself has asked
        (SAYS_LITTLE, [found_on("beans", "It holds 25 grams.")], "25 * 2", 0),  # a number of two digits
        (SAYS_LITTLE, [found_on("vitamins", "It has b2 D3.")], "b2 D3", None),  # a name starts with a capital
        (PLAIN, [DATE, SUM], "33 * 2", None),  # the text says 33 behind the sum
    ],
)
def test_the_parent_is_the_last_call_of_whose_result_alone_a_piece_is_in_the_input(
    plain, calls, call_input, parent
):
    found = earlier(*calls, plain=plain)
    assert found.parent_of(call_input, len(found.text)) == parent


def test_a_parent_is_the_last_of_equal_results_even_right_before_the_call():
    found = earlier(DATE, OLD_SUM, plain=OLD)
    assert found.parent_of("2020 - 1987", found.calls[0].start_char) is None
    assert found.parent_of("33 * 2", found.calls[1].end_char) == 1
    twice = [WovenCall(at, Call("Calculator", f"{at} + {2020 - at}"), "2020") for at in (5, 15)]
    found = earlier(*twice, plain=SAYS_LITTLE)
    assert found.parent_of("2020 - 1987", len(found.text)) == 1
    assert found.parent_of("2020 - 1987", found.calls[1].start_char) == 0


SMUGGLED = "A [Calculator(2 + 2) -> 4 " + PLAIN
BRACKETED = "A d[QA(3)] of [Calculator(2 + 2) " + PLAIN


@pytest.mark.parametrize(
    ("tool", "text", "chains", "refused"),
    [
        ("Calculator", weave(PLAIN, [DATE]), False, HOLDS_CALL_MARKUP),
        ("Calculator", PLAIN, True, HOLDS_NO_CALL),
        ("Calculator", SMUGGLED, True, HOLDS_CALL_MARKUP),
        (
            "Calculator",
            weave(SMUGGLED, [replace(DATE, position_char=len(SMUGGLED))]),
            True,
            HOLDS_CALL_MARKUP,
        ),
        ("Calendar", weave(PLAIN, [DATE]), True, TAKES_NO_INPUT),
        ("Calculator", weave(PLAIN, [DATE]), True, None),
        ("Calculator", BRACKETED, True, HOLDS_NO_CALL),
        ("Calculator", weave(BRACKETED, [replace(DATE, position_char=len(BRACKETED))]), True, None),
    ],
)
def test_a_text_of_a_chain_holds_no_markup_but_calls(tool, text, chains, refused):
    [found] = filter_document(get_tool(tool), Document.of(text), FilterChoices(), chains=chains)
    assert (found.start_char, found.end_char) == (0, len(text))  # the calls included
    reason = found.reason if found.reason in (HOLDS_CALL_MARKUP, HOLDS_NO_CALL, TAKES_NO_INPUT) else None
    assert reason == refused
    assert not (found.kept and refused)


def test_a_result_is_used_by_an_input_that_writes_on_behind_it_without_a_space():
    date = WovenCall(4, Call("Calendar", ""), "星期五")
    chinese = earlier(date, plain="公园今天有很多人。")
    assert chinese.parent_of("星期五的人", len(chinese.text)) == 0
    assert chinese.parent_of("星期六的人", len(chinese.text)) is None
