"""Rows that grow, are cut, and take in tokens say what the network says about the same tokens from scratch."""

import pytest
import torch

from tests.unit.language_model.conftest import Subject
from toolformer_ops.language_model.rows import Rows

TOLERANCE = 1e-3
PROMPT = "The shop had 520 shirts and sold 187 of them, so it has"
OTHER = "Today is the first Friday of the year"
RESULT = " [Calculator(520 - 187) -> 333]"


def plain(subject: Subject, ids: list[int]) -> torch.Tensor:
    """Log probabilities of what follows, by one pass over all tokens."""
    model = subject.model
    with torch.inference_mode():
        logits = model.network(input_ids=torch.tensor([ids])).logits[0, -1].float()
        return logits.log_softmax(-1)


def ids_of(subject: Subject, text: str) -> list[int]:
    return [*subject.tokenization.start_ids, *subject.tokenization.ids(text)]


def agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((found - expected).abs().max()) <= TOLERANCE * max(1.0, float(expected.abs().max()))


@torch.inference_mode()
def test_a_row_that_steps_is_cut_and_takes_in_a_result_equals_the_plain_pass(any_subject: Subject) -> None:
    rows = Rows(any_subject.model)
    ids = ids_of(any_subject, PROMPT)
    result = list(any_subject.tokenization.continuation(RESULT))
    [(row, logits)] = rows.begin([(ids, 0)])
    assert agree(logits, plain(any_subject, ids))
    for token in (5, 9, 17):
        [logits] = rows.step([row], [token])
    assert agree(logits, plain(any_subject, [*ids, 5, 9, 17]))
    rows.cut(row, len(ids) + 1)
    [logits] = rows.step([row], [11])
    assert agree(logits, plain(any_subject, [*ids, 5, 11]))
    [logits] = rows.insert([row], [result])
    whole = [*ids, 5, 11, *result]
    assert agree(logits, plain(any_subject, whole))
    rows.cut(row, len(whole) - 2)  # into what was inserted
    [logits] = rows.step([row], [3])
    assert agree(logits, plain(any_subject, [*whole[:-2], 3]))
    assert row.length == len(whole) - 1


@torch.inference_mode()
def test_a_row_has_the_same_bits_whatever_grows_beside_it(any_subject: Subject) -> None:
    rows = Rows(any_subject.model)
    first, second = ids_of(any_subject, PROMPT), ids_of(any_subject, OTHER)
    [(alone, logits)] = rows.begin([(first, 0)])
    expected = [logits, rows.step([alone], [7])[0], rows.step([alone], [8])[0]]
    expected += [rows.insert([alone], [[4, 5, 6]])[0], rows.step([alone], [7])[0]]
    *others, (beside, found) = rows.begin([*[(second, 0)] * 20, (first, 0)])
    company = [row for row, _ in others]
    both = [rows.step([*company, beside], [9] * 20 + [token])[-1] for token in (7, 8)]
    inserted = rows.insert([beside, *company[:9]], [[4, 5, 6], *[[1, 2, 3, 4, 5]] * 9])[0]
    again = rows.step([*company, beside], [7] * 21)[-1]
    seen = [found, *both, inserted, again]
    assert [torch.equal(left, right) for left, right in zip(expected, seen, strict=True)] == [True] * 5


@torch.inference_mode()
def test_a_shared_head_is_computed_once_and_changes_nothing(
    any_subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = any_subject.model
    rows = Rows(model)
    head = ids_of(any_subject, "Answer the following question:")
    tails = [[5, 6, 7], [8, 9], [10]]
    made = []
    branches = model.branches
    monkeypatch.setattr(model, "branches", lambda: made.append(1) or branches())
    for tail in tails:
        [(row, logits)] = rows.begin([([*head, *tail], len(head))])
        assert agree(logits, plain(any_subject, [*head, *tail]))
        [logits] = rows.step([row], [3])
        assert agree(logits, plain(any_subject, [*head, *tail, 3]))
        rows.cut(row, len(head) + len(tail))
        assert agree(rows.step([row], [4])[0], plain(any_subject, [*head, *tail, 4]))
    assert len(made) == 1
    [(row, logits)] = rows.begin([(head, len(head))])  # the last token is always the row's own
    assert agree(logits, plain(any_subject, head))


@torch.inference_mode()
def test_a_prompt_of_one_token_grows_beside_longer_ones(any_subject: Subject) -> None:
    rows = Rows(any_subject.model)
    ids = ids_of(any_subject, PROMPT)
    begun = rows.begin([(ids[:1], 0), (ids, 0)])
    assert [
        agree(logits, plain(any_subject, prompt)) for (_, logits), prompt in zip(begun, (ids[:1], ids), strict=True)
    ] == [True, True]
    short, long = (row for row, _ in begun)
    found = rows.step([short, long], [5, 9])
    assert [agree(found[0], plain(any_subject, [ids[0], 5])), agree(found[1], plain(any_subject, [*ids, 9]))] == [
        True,
        True,
    ]
    [logits] = rows.insert([short], [[3, 4]])
    assert agree(logits, plain(any_subject, [ids[0], 5, 3, 4]))
    rows.cut(short, 2)
    assert agree(rows.step([short], [7])[0], plain(any_subject, [ids[0], 5, 7]))
