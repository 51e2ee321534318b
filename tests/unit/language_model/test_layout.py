"""Where the new tokens of a pass write and what they see, worked by hand."""

from typing import Any

import numpy as np
import pytest

from toolformer_ops.language_model.columns import Layout, SeenRanges


def growing_texts() -> Layout:
    """Behind a prompt of 3 tokens: 2 new tokens for a text of 4, and 1 for one of 1."""
    return Layout.of(
        np.array([0, 1]),
        np.array([2, 1]),
        prompt=3,
        branches=False,
        lengths=np.array([4, 1]),
        text_of=np.array([0, 1]),
        seen=np.array([7, 4]),
        steps=np.array([0, 0]),
    )


def branching_rows(**changed: Any) -> Layout:
    """Behind a prompt of 3 tokens: texts of 4 and 2 tokens, of which three rows see 4, 2 and 2; each has added 5 of its own."""
    numbers: dict[str, Any] = {
        "prompt": 3,
        "branches": True,
        "lengths": np.array([4, 2]),
        "text_of": np.array([0, 1, 0]),
        "seen": np.array([7, 5, 5]),
        "steps": np.array([5, 5, 5]),
    }
    return Layout.of(np.array([0, 1, 2]), np.array([1, 1, 1]), **numbers | changed)


def numbers(ranges: list[SeenRanges]) -> list[tuple[list[int], list[int], list[int]]]:
    return [(kind.tokens.tolist(), kind.starts.tolist(), kind.lengths.tolist()) for kind in ranges]


def test_new_tokens_of_a_text_are_behind_its_last_one():
    layout = growing_texts()
    assert layout.positions.tolist() == [7, 8, 4]
    assert layout.columns.tolist() == [4, 5, 1]


def test_a_new_token_of_a_text_sees_itself_last():
    assert growing_texts().seen.tolist() == [8, 9, 5]


def test_only_texts_grow_by_the_columns_of_the_longest():
    layout = growing_texts()
    assert (layout.text_columns, layout.own_columns) == (6, 0)


def test_tokens_are_padded_to_the_text_with_the_most():
    three = Layout.of(
        np.array([0, 1, 2]),
        np.array([1, 2, 1]),
        prompt=0,
        branches=False,
        lengths=np.array([0, 0, 0]),
        text_of=np.array([0, 1, 2]),
        seen=np.array([0, 0, 0]),
        steps=np.array([0, 0, 0]),
    )
    assert three.width == 2
    assert three.padded_place.tolist() == [0, 2, 3, 4]
    assert three.padded_tokens.tolist() == [0, 0, 1, 2, 3, 0]


def test_the_tokens_of_one_text_are_not_padded():
    one = Layout.of(
        np.array([0]),
        np.array([3]),
        prompt=0,
        branches=False,
        lengths=np.array([0]),
        text_of=np.array([0]),
        seen=np.array([0]),
        steps=np.array([0]),
    )
    assert one.is_single
    assert one.padded_place.tolist() == [0, 1, 2]
    assert one.padded_tokens.tolist() == []


def test_a_row_writes_behind_its_own_columns():
    layout = branching_rows()
    assert layout.columns.tolist() == [5, 5, 5]
    assert (layout.text_columns, layout.own_columns) == (4, 6)


def test_a_row_is_at_what_it_sees_of_its_text_plus_its_own_tokens():
    assert branching_rows().positions.tolist() == [12, 10, 10]


def test_rows_that_see_the_same_of_a_text_come_next_to_each_other_by_range():
    layout = branching_rows(text_of=np.array([0, 1, 0]), seen=np.array([5, 5, 5]))
    assert layout.by_text.tolist() == [0, 2, 1]
    [_, of_texts] = numbers(layout.ranges(None, text_capacity=32))
    assert of_texts == ([2, 1], [0, 32], [2, 2])


def test_only_rows_in_their_places_are_written_without_an_index():
    assert branching_rows().in_step
    assert not branching_rows(steps=np.array([5, 4, 5])).in_step


def test_without_a_window_all_tokens_see_the_prompt_as_one_range():
    # By text the rows are 2, 0, 1: the first two see 2 and 4 columns of the first text.
    assert numbers(branching_rows().ranges(None, text_capacity=32)) == [
        ([3], [0], [3]),
        ([1, 1, 1], [0, 0, 32], [2, 4, 2]),
    ]


@pytest.mark.parametrize(
    ("window", "ranges"),
    [
        # Position 12 sees 1 to 12, positions 10 see all.
        (12, [([1] * 3, [1, 0, 0], [2, 3, 3]), ([1] * 3, [0, 0, 32], [2, 4, 2])]),
        # Position 12 sees from 10, positions 10 from 8: nothing of the texts.
        (3, [([1] * 3, [3] * 3, [0] * 3), ([1] * 3, [2, 4, 34], [0] * 3)]),
    ],
)  # fmt: skip
def test_ranges_begin_later_where_a_window_slides(window, ranges):
    assert numbers(branching_rows().ranges(window, text_capacity=32)) == ranges


def test_a_row_does_not_see_columns_that_only_longer_rows_have():
    hidden = branching_rows(steps=np.array([5, 2, 4])).hidden_own_columns(None)
    assert hidden.sum(axis=1).tolist() == [0, 3, 1]
    assert hidden[1].tolist() == [False, False, False, True, True, True]


def test_a_row_does_not_see_own_columns_before_its_window():
    # Position 12 sees from 10, which is its fourth own column; positions 10 from 8, which is theirs.
    assert branching_rows().hidden_own_columns(3).tolist() == [[True] * 3 + [False] * 3] * 3


def test_rows_that_are_neighbours_are_read_without_a_copy():
    assert branching_rows().first_row == 0
    some = {"prompt": 0, "branches": True, "lengths": np.array([2]), "text_of": np.zeros(4, dtype=int)}
    some |= {"seen": np.full(4, 2), "steps": np.zeros(4, dtype=int)}
    assert Layout.of(np.array([1, 2]), np.array([1, 1]), **some).first_row == 1
    assert Layout.of(np.array([0, 2]), np.array([1, 1]), **some).first_row is None


def test_the_tokens_of_a_text_are_one_run_up_to_its_last_token():
    [_, of_texts] = numbers(growing_texts().ranges(None, text_capacity=32))
    assert of_texts == ([2, 1], [0, 32], [6, 2])
