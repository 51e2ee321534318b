"""Defaults that follow from other settings."""

import pytest

from toolformer_ops.config import Settings


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        (None, None, "float32"),
        ("cpu", None, "float32"),
        ("cuda", None, "bfloat16"),
        ("cuda:1", None, "bfloat16"),
        ("cuda", "float32", "float32"),
        ("cpu", "bfloat16", "bfloat16"),
    ],
)
def test_a_gpu_computes_in_bfloat16_unless_told_otherwise(
    device: str | None, dtype: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("DEVICE", device), ("DTYPE", dtype)):
        if value is None:
            monkeypatch.delenv(f"TOOLFORMER_{name}", raising=False)
        else:
            monkeypatch.setenv(f"TOOLFORMER_{name}", value)
    assert Settings(_env_file=None).dtype == expected  # type: ignore[call-arg]
