"""How micro-batches are cut after processes have died at them: down to the one document that kills, and no other."""

import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolformer_ops.runs.claims import Try, plan_batches

DOCUMENTS = [uuid.UUID(int=number) for number in range(16)]
MOST = 100
"""Most tokens of a micro-batch."""
THRICE = [[0, 1, 2, 3]] * 3
Planned = tuple[list[int], int, str]
"""Documents, deaths, and whether it is long or given up."""


def planned(
    pending: Sequence[int], tries: Sequence[Sequence[int]], size: int, tokens: Sequence[int]
) -> list[Planned]:
    """The micro-batches of the documents with these numbers, after tries with such documents were left behind."""
    left = [Try(try_id, [DOCUMENTS[number] for number in of]) for try_id, of in enumerate(tries)]
    counted = dict(zip(DOCUMENTS, tokens, strict=False))
    batches = plan_batches(
        [DOCUMENTS[number] for number in pending], left, size, counted, MOST if tokens else 0
    )
    return [
        (
            [document.int for document in batch.document_ids],
            batch.deaths,
            "long" * batch.is_long + "given up" * batch.is_given_up,
        )
        for batch in batches
    ]


def clean(*batches: list[int]) -> list[Planned]:
    return [(batch, 0, "") for batch in batches]


@pytest.mark.parametrize(
    ("pending", "tries", "size", "tokens", "expected"),
    [
        pytest.param(
            range(9), [], 3, (40, 30, 40, 300, 100, 1, 1, 1, 1),
            [*clean([0, 1], [2], [4], [5, 6, 7], [8]), ([3], 0, "long")], id="full by tokens or by number, long ones last",
        ),
        pytest.param(range(6), [[0, 1]], 2, (), [*clean([2, 3], [4, 5]), ([0, 1], 1, "")], id="after a death last, as it was"),
        pytest.param(range(4), THRICE, 4, (), [([0, 1], 3, ""), ([2, 3], 3, "")], id="after three halved"),
        pytest.param(
            range(4), [*THRICE, [0, 1]], 4, (), [([2], 3, ""), ([3], 3, ""), ([0], 4, ""), ([1], 4, "")],
            id="what was not tried since comes before what was",
        ),
        pytest.param([0], [[0, 1]] * 3, 4, (), [([0], 3, "")], id="three deaths, not alone yet"),
        pytest.param([0], [[0, 1], [0, 1], [0, 1], [0]], 4, (), [([0], 4, "given up")], id="killed alone, too"),
        pytest.param([0], [[0]] * 3, 1, (), [([0], 3, "given up")], id="alone three times"),
    ],
)  # fmt: skip
def test_micro_batches_are_cut_by_size_tokens_or_deaths(pending, tries, size, tokens, expected):
    assert planned(pending, tries, size, tokens) == expected


numbers = st.integers(0, 15)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(numbers, unique=True),
    st.lists(st.lists(numbers, min_size=1, max_size=4, unique=True), max_size=8),
    st.integers(1, 5),
    st.lists(st.integers(0, 120), min_size=16, max_size=16),
)
def test_every_document_is_planned_once_in_micro_batches_as_large_as_they_may_be(
    pending, tries, size, tokens
):
    batches = planned(pending, tries, size, tokens)
    assert sorted(number for documents, _, _ in batches for number in documents) == sorted(pending)
    died = {number: sum(number in of for of in tries) for number in pending}
    plain = [documents for documents, deaths, said in batches if not deaths and not said]
    assert [number for documents in plain for number in documents] == [
        number for number in pending if not died[number] and tokens[number] <= MOST
    ]
    for documents, following in zip(plain, [*plain[1:], []], strict=False):
        held = sum(tokens[number] for number in documents)
        assert len(documents) <= size
        assert held <= MOST
        assert not following or len(documents) == size or held + tokens[following[0]] > MOST
    order = [
        "plain" if not deaths and not said else "long" if not deaths else "died"
        for _, deaths, said in batches
    ]
    assert order == sorted(order, key=["plain", "long", "died"].index)
    for documents, deaths, said in batches:
        assert all((deaths > 0) == (died[number] > 0) and died[number] <= deaths for number in documents)
        assert (said == "long") == (not deaths and tokens[documents[0]] > MOST)
        if said == "given up":
            assert deaths >= 3
            assert [of for of in tries if documents[0] in of][-1] == documents


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 16), st.sets(numbers, min_size=1, max_size=4))
def test_a_document_that_kills_is_isolated_while_all_others_are_done(size, deadly):
    """A process works through its micro-batches until one holds a deadly document; then the next process follows."""
    pending, tries, given_up = list(range(16)), [], set()
    while pending:
        for documents, _, said in planned(pending, tries, size, ()):
            if said == "given up":
                given_up |= set(documents)
            elif set(documents) & deadly:
                tries.append(documents)
                break
            pending = [number for number in pending if number not in documents]
    assert given_up == deadly
    assert len(tries) <= len(deadly) * (3 + (size - 1).bit_length())
