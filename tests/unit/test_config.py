"""Defaults that follow from other settings."""

from toolformer_ops.config import Settings


def test_a_gpu_computes_in_bfloat16_unless_told_otherwise() -> None:
    for device, dtype, expected in (
        ({}, {}, "float32"),
        ({"device": "cuda:1"}, {}, "bfloat16"),
        ({"device": "cuda"}, {"dtype": "float32"}, "float32"),
        ({"device": "cpu"}, {"dtype": "bfloat16"}, "bfloat16"),
    ):
        assert Settings(_env_file=None, **device, **dtype).dtype == expected  # type: ignore[call-arg, arg-type]
