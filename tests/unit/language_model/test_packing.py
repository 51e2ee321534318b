"""Which sequences go into one pass, and which tokens they share in it."""

import pytest

from toolformer_ops.language_model.packing import PackedSequences, fill_passes, padded_parts


@pytest.mark.parametrize(
    ("sequences", "tokens"),
    [
        ([[1, 2, 3], [1, 2, 4]], [1, 2, 3, 4]),
        ([[1, 2, 3, 4], [1, 2]], [1, 2, 3, 4, 2]),  # one token of its own is left to the shorter one
        ([[1, 2], [1, 2, 3, 4]], [1, 2, 3, 4]),  # all of the shorter one is shared
        ([[5, 6], [7, 8]], [5, 6, 7, 8]),
    ],
)
def test_tokens_with_which_two_sequences_begin_are_in_a_pass_once(sequences, tokens):
    assert PackedSequences(sequences, share=True).ids.tolist() == tokens


def test_without_sharing_every_token_is_in_the_pass():
    assert PackedSequences([[1, 2, 3], [1, 2, 4]], share=False).ids.tolist() == [1, 2, 3, 1, 2, 4]


def test_each_sequence_is_in_one_pass():
    sequences = [[number, *range(10, 10 + number)] for number in range(1, 8)]
    batches = list(fill_passes(sequences, 12, share=True))
    assert sorted(index for batch in batches for index in batch) == list(range(7))


def test_no_pass_of_several_sequences_is_longer_than_it_may_be():
    sequences = [[number, *range(10, 10 + number)] for number in range(1, 8)]
    sizes = [
        sum(len(sequences[index]) for index in batch) for batch in fill_passes(sequences, 12, share=False)
    ]
    assert max(sizes) <= 12


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([3, 3, 3, 3], [[0, 1, 2], [3]]),  # three times three
        ([1, 1, 5, 5, 1], [[0, 1], [2], [3], [4]]),  # a long one pads the others
        ([12, 1], [[0], [1]]),  # one that is too long alone
        ([], []),
    ],
)
def test_a_padded_part_is_no_larger_than_it_may_be(lengths, parts):
    assert padded_parts(lengths, 9) == parts
