"""Defaults that follow from other settings, and what is refused."""

import pytest

from toolformer_ops.config import Settings, load_settings
from toolformer_ops.errors import ConfigurationError


def test_a_gpu_computes_in_bfloat16_unless_told_otherwise():
    for device, dtype, expected in (
        ({}, {}, "float32"),
        ({"device": "cuda:1"}, {}, "bfloat16"),
        ({"device": "cuda"}, {"dtype": "float32"}, "float32"),
        ({"device": "cpu"}, {"dtype": "bfloat16"}, "bfloat16"),
    ):
        assert Settings(_env_file=None, **device, **dtype).dtype == expected  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TOOLFORMER_APPROVAL_HOURS", "many"),
        ("TOOLFORMER_TASK_HOURS", "[6]"),
        ("TOOLFORMER_TASK_HOURS", '{"check": -1}'),
    ],
)
def test_a_value_that_is_not_valid_is_refused_by_the_name_of_its_variable(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=rf"^settings: {variable}: "):
        load_settings()


def test_a_setting_that_is_no_json_is_refused_by_its_name(monkeypatch):
    monkeypatch.setenv("TOOLFORMER_TASK_HOURS", "six")
    with pytest.raises(ConfigurationError, match=r"task_hours.*it is read as JSON"):
        load_settings()
