"""The names of transformers 4 beside those of 5; tests/clients/test_transformers_4.py reads models with version 4 itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolformer_ops.language_model.models.version_4 import write_for_version_4

PLAIN = {"rope_type": "default", "rope_theta": 100000.0}
SCALED = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 256}
OF_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


def written(folder: Path, configuration: dict[str, Any], tokenizer: dict[str, Any]) -> tuple[Any, Any]:
    """Both files after the names of version 4 are in them."""
    files = (folder / "config.json", folder / "tokenizer_config.json")
    for file, fields in zip(files, (configuration, tokenizer), strict=True):
        file.write_text(json.dumps(fields))
    write_for_version_4(folder)
    return json.loads(files[0].read_text()), json.loads(files[1].read_text())


@pytest.mark.parametrize(
    ("fields", "names_of_4"),
    [
        ({"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}),
        ({"rope_parameters": PLAIN}, {"rope_theta": 100000.0, "rope_scaling": None}),
        ({"rope_parameters": SCALED}, {"rope_theta": 1e6, "rope_scaling": OF_YARN}),
        (
            {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}},
            {"rope_theta": 100000.0, "partial_rotary_factor": 0.5, "rope_scaling": None},
        ),
        (
            {"model_type": "gpt_neox", "rope_parameters": PLAIN | {"partial_rotary_factor": 0.25}},
            {"rotary_emb_base": 100000.0, "rotary_pct": 0.25, "rope_scaling": None},
        ),
        (
            {"rope_parameters": {"full_attention": SCALED, "sliding_attention": PLAIN}},
            {"rope_theta": 1e6, "rope_scaling": OF_YARN, "rope_local_base_freq": 100000.0},
        ),
        ({"n_positions": 1024}, {}),
        ({"rope_parameters": None}, {}),
    ],
)
def test_fields_of_a_model_have_the_names_of_version_4_too(tmp_path, fields, names_of_4):
    configuration, _ = written(tmp_path, fields, {})
    assert configuration == fields | names_of_4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tokenizer_class": "TokenizersBackend"}, {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ({"tokenizer_class": "Qwen2Tokenizer"}, {"tokenizer_class": "Qwen2Tokenizer"}),
        ({"extra_special_tokens": ["<a>"]}, {"additional_special_tokens": ["<a>"]}),
        ({"extra_special_tokens": {"a": "<a>"}}, {"extra_special_tokens": {"a": "<a>"}}),
    ],
)
def test_fields_of_a_tokenizer_have_the_names_of_version_4(tmp_path, fields, expected):
    _, tokenizer = written(tmp_path, {}, fields)
    assert tokenizer == expected


def test_writing_them_twice_changes_nothing_more(tmp_path):
    once = written(tmp_path, {"rope_parameters": SCALED}, {"tokenizer_class": "TokenizersBackend"})
    write_for_version_4(tmp_path)
    again = (tmp_path / "config.json", tmp_path / "tokenizer_config.json")
    assert tuple(json.loads(file.read_text()) for file in again) == once
