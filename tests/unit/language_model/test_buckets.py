"""Sequences that are attended to together on a GPU where no kernel takes any lengths."""

import pytest
import torch

from toolformer_ops.language_model.packing import buckets_of

LENGTHS = (5, 1, 7, 4, 16, 31)
CPU = torch.device("cpu")


def test_sequences_of_one_power_of_two_are_together():
    assert [tuple(bucket.tokens.shape) for bucket in buckets_of(LENGTHS, CPU)] == [(3, 7), (1, 1), (2, 31)]


def test_each_token_of_a_pass_is_in_one_bucket():
    own = torch.cat([bucket.own for bucket in buckets_of(LENGTHS, CPU)])
    assert sorted(own.tolist()) == list(range(sum(LENGTHS)))


def test_a_token_is_found_where_its_bucket_says():
    for bucket in buckets_of(LENGTHS, CPU):
        assert torch.equal(bucket.tokens.flatten()[bucket.rows], bucket.own)


@pytest.mark.parametrize("lengths", [LENGTHS, (3, 3, 3), (100, 64, 127)])
def test_padding_less_than_doubles_the_tokens_of_a_bucket(lengths):
    for bucket in buckets_of(lengths, CPU):
        assert bucket.tokens.numel() < 2 * len(bucket.own)
