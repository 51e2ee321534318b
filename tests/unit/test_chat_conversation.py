"""A released text as chat messages: shapes, the opening, and that nothing of the text is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.finetuning_jobs import opening, plain_text, released_call, released_text
from toolformer_ops.release.conversations import CONTINUE, WRITE, conversation
from toolformer_ops.tools.registry import BUILT_IN_TOOLS

SUM = "Out of 1400 people, 400 passed, that is 29 %."


def test_a_text_is_written_up_to_a_call_then_the_tool_answers_then_the_text_continues():
    text = released_text(
        SUM, released_call(11, "Who?", "people", "QA"), released_call(39, "400 / 1400", "0.29")
    )
    seed = next(seed for seed in range(1000) if opening(conversation(text, seed)) == "Out")
    messages = conversation(text, seed)
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", f"{CONTINUE}Out"),
        ("assistant", " of 1400"),
        ("tool", "people"),
        ("assistant", " people, 400 passed, that is"),
        ("tool", "0.29"),
        ("assistant", " 29 %."),
    ]
    function = {"name": "Calculator", "arguments": {"input": "400 / 1400"}}
    assert messages[3]["tool_calls"] == [{"id": "call00002", "type": "function", "function": function}]
    assert (messages[4]["tool_call_id"], messages[4]["name"]) == ("call00002", "Calculator")


def test_an_opening_ends_after_a_word_at_or_before_the_first_call():
    text = released_text(SUM, released_call(19, "1400 - 1000", "400"))
    found = {opening(conversation(text, seed)) for seed in range(200)}
    assert found == {"", "Out", "Out of", "Out of 1400", "Out of 1400 people,"}


_CALLS = st.tuples(
    st.sampled_from(BUILT_IN_TOOLS), st.integers(0, 10**6), st.text(max_size=8), st.text(max_size=8)
)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(plain=st.text(max_size=60), drawn=st.lists(_CALLS, min_size=1, max_size=4), seed=st.integers(0, 5))
def test_the_contents_of_a_conversation_are_the_plain_text(plain, drawn, seed):
    calls = [
        released_call(place % (len(plain) + 1), call_input, result, tool)
        for tool, place, call_input, result in drawn
    ]
    text = released_text(plain, *calls)
    messages = conversation(text, seed)
    assert plain_text(messages) == plain
    assert (messages[0]["content"] == WRITE) == (opening(messages) == "")
    assert [message["content"] for message in messages if message["role"] == "tool"] == [
        call.result for call in text.calls
    ]
