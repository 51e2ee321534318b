"""How micro-batches are cut after processes have died at them: down to the one document that kills, and no other."""

import uuid
from collections.abc import Sequence

import pytest

from toolformer_ops.runs.tries import PlannedBatch, Try, plan_batches

DOCUMENTS = [uuid.UUID(int=number) for number in range(16)]


def numbers(batches: Sequence[PlannedBatch]) -> list[list[int]]:
    return [[document.int for document in batch.document_ids] for batch in batches]


def left(*tries: Sequence[int]) -> list[Try]:
    """Tries that were left behind, with the documents of these numbers."""
    return [Try(try_id, [DOCUMENTS[number] for number in of]) for try_id, of in enumerate(tries)]


def test_documents_without_a_death_are_cut_in_their_order() -> None:
    assert numbers(plan_batches(DOCUMENTS[:7], [], 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert plan_batches([], left([1, 2]), 3) == []


def test_a_micro_batch_is_full_at_so_many_tokens_or_documents() -> None:
    lengths = (40, 30, 40, 300, 100, 1, 1, 1, 1)
    tokens = dict(zip(DOCUMENTS, lengths, strict=False))
    batches = plan_batches(DOCUMENTS[: len(lengths)], [], 3, tokens, 100)
    assert numbers(batches) == [[0, 1], [2], [4], [5, 6, 7], [8], [3]]  # what is longer than a micro-batch comes last
    assert [batch.is_long for batch in batches] == [False] * 5 + [True]
    exactly = dict(zip(DOCUMENTS, (40, 60, 1), strict=False))
    assert numbers(plan_batches(DOCUMENTS[:3], [], 3, exactly, 100)) == [[0, 1], [2]]


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_micro_batch_at_which_a_process_died_comes_last_as_it_was(deaths: int) -> None:
    batches = plan_batches(DOCUMENTS[:6], left(*[[0, 1]] * deaths), 2)
    assert numbers(batches) == [[2, 3], [4, 5], [0, 1]]
    assert [batch.deaths for batch in batches] == [0, 0, deaths]
    assert not any(batch.is_given_up for batch in batches)


def test_after_three_deaths_it_is_halved_and_after_each_further_one_again() -> None:
    thrice = [[0, 1, 2, 3]] * 3
    assert numbers(plan_batches(DOCUMENTS[:4], left(*thrice), 4)) == [[0, 1], [2, 3]]
    # the first half was done, the second killed
    assert numbers(plan_batches(DOCUMENTS[2:4], left(*thrice, [2, 3]), 4)) == [[2], [3]]
    # the first half was killed: what was not tried since comes before what was
    assert numbers(plan_batches(DOCUMENTS[:4], left(*thrice, [0, 1]), 4)) == [[2], [3], [0], [1]]


def test_documents_that_died_together_are_halved_as_soon_as_one_of_them_has_died_three_times() -> None:
    batches = plan_batches(DOCUMENTS[:2], left([0], [0], [0, 1]), 2)
    assert [(*numbers([batch]), batch.deaths) for batch in batches] == [([0], 3), ([1], 3)]


def test_a_document_is_given_up_once_it_has_killed_alone() -> None:
    not_alone_yet = plan_batches(DOCUMENTS[:1], left(*[[0, 1]] * 3), 4)
    assert [(batch.deaths, batch.is_given_up) for batch in not_alone_yet] == [(3, False)]
    alone = plan_batches(DOCUMENTS[:1], left(*[[0, 1]] * 3, [0]), 4)
    assert [(batch.deaths, batch.is_given_up) for batch in alone] == [(4, True)]
    three_times_alone = plan_batches(DOCUMENTS[:1], left([0], [0]), 1) + plan_batches(
        DOCUMENTS[:1], left(*[[0]] * 3), 1
    )
    assert [batch.is_given_up for batch in three_times_alone] == [False, True]


@pytest.mark.parametrize("size", [1, 3, 5, 16])
@pytest.mark.parametrize("deadly", [{0}, {7}, {15}, {2, 3}, {1, 8, 14}])
def test_whoever_kills_is_found_and_all_others_are_done(size: int, deadly: set[int]) -> None:
    """A process works through its micro-batches until one holds a deadly document; then the next process follows."""
    pending, tries, given_up, deaths = list(DOCUMENTS), [], set(), 0
    while pending:
        for batch in plan_batches(pending, tries, size):
            of = {document.int for document in batch.document_ids}
            if batch.is_given_up:
                given_up |= of
            elif of & deadly:
                tries.append(Try(deaths, list(batch.document_ids)))
                deaths += 1
                break
            pending = [document for document in pending if document.int not in of]
    assert given_up == deadly
    assert deaths <= len(deadly) * (3 + (size - 1).bit_length())
