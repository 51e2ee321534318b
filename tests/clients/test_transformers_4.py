"""Version 4 of transformers, which most trainers and servers have, reads what is published as version 5 does.

It is installed into a folder of its own, by the hashes of requirements/transformers4.lock, and run over the same
torch as version 5.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import GPT, GROUPED, save_tiny_model, token_ids, train_tokenizer
from toolformer_ops.config import REPOSITORY
from toolformer_ops.language_model.models.version_4 import write_for_version_4

pytestmark = pytest.mark.slow

TEXT = "The shop had 520 shirts and sold 187 of them, so it has 333 left. " * 12
HEAD = {"head_dim": 8}
WINDOW = HEAD | {"sliding_window": 24}
SCALED = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def rope(theta: float, **more: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **more}}


BY_LAYER = {
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": rope(1e6)["rope_parameters"],
        "sliding_attention": rope(2e4)["rope_parameters"],
    },
}
NEOX = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPES = {
    "llama": ("LlamaConfig", "<s>", GROUPED | rope(100000.0)),
    "llama 3.1": ("LlamaConfig", "<s>", GROUPED | {"rope_parameters": LLAMA_3}),
    "qwen2 with yarn": ("Qwen2Config", None, GROUPED | {"rope_parameters": SCALED}),
    "qwen3": ("Qwen3Config", None, GROUPED | HEAD | rope(1e6)),
    "mistral": ("MistralConfig", "<s>", GROUPED | WINDOW | rope(5e4)),
    "gemma2": ("Gemma2Config", "<bos>", GROUPED | WINDOW | {"query_pre_attn_scalar": 8} | rope(2e4)),
    "gemma3": ("Gemma3TextConfig", "<bos>", GROUPED | WINDOW | {"query_pre_attn_scalar": 8} | BY_LAYER),
    "phi": ("PhiConfig", None, GROUPED | rope(3e4, partial_rotary_factor=0.5)),
    "phi3": ("Phi3Config", "<s>", GROUPED | {"pad_token_id": 0} | rope(3e4)),
    "gpt-neox": ("GPTNeoXConfig", None, NEOX | rope(3e4, partial_rotary_factor=0.5)),
    "stablelm": ("StableLmConfig", None, GROUPED | rope(3e4, partial_rotary_factor=0.5)),
    "glm4": ("Glm4Config", None, GROUPED | HEAD | {"pad_token_id": 0} | rope(3e4, partial_rotary_factor=0.5)),
    "olmo2": ("Olmo2Config", None, GROUPED | rope(3e4)),
    "granite": ("GraniteConfig", None, GROUPED | rope(3e4)),
    "gpt2": ("GPT2Config", None, GPT),
    "gptj": ("GPTJConfig", None, GPT | {"rotary_dim": 4}),
}
"""The configuration's class, the tokenizer's start token, and the numbers, among them rotary bases that are no default."""

READ = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
text, *folders = sys.argv[1:]
for folder in folders:
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        loss = network(ids, labels=ids).loss.item()
    print("read", json.dumps({"ids": ids[0].tolist(), "loss": loss}))
"""
"""What a client does with each folder: ids of a text, and the mean loss of its tokens, nats."""

Reading = dict[str, Any]


@pytest.fixture(scope="session")
def version_4(tmp_path_factory):
    """A folder with transformers 4 and what it needs besides the packages that are installed."""
    folder = tmp_path_factory.mktemp("transformers4")
    lock = REPOSITORY / "requirements" / "transformers4.lock"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--target", str(folder), "-r", str(lock)], check=True)
    return folder


def read(folders: Sequence[Path], packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A process of its own reads models, with other packages before the installed ones."""
    environment = dict(os.environ) | ({"PYTHONPATH": str(packages)} if packages else {})
    command = [sys.executable, "-c", READ, TEXT, *map(str, folders)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def readings(folders: Sequence[Path], packages: Path | None = None) -> dict[str, Reading]:
    """What it reads of each, by the folder's name."""
    process = read(folders, packages)
    assert process.returncode == 0, process.stderr[-2000:]
    lines = [line.removeprefix("read ") for line in process.stdout.splitlines() if line.startswith("read ")]
    return {folder.name: json.loads(line) for folder, line in zip(folders, lines, strict=True)}


def save(shape: str, folder: Path) -> Path:
    """A model of a shape as a training writes it."""
    import transformers

    kind, start_token, numbers = SHAPES[shape]
    tokenizer = train_tokenizer(start_token=start_token)
    config = getattr(transformers, kind)(**numbers | token_ids(tokenizer))
    save_tiny_model(folder, config, tokenizer)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)  # as a training loads it
    return folder


@dataclass(frozen=True)
class Readings:
    """What the two versions read of a model of each shape."""

    before: dict[str, Reading]
    """Version 5, of the model as version 5 wrote it."""
    version_5: dict[str, Reading]
    """Of the model with both names."""
    version_4: dict[str, Reading]


@pytest.fixture(scope="session")
def models_read(version_4, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    models = [save(shape, folder / shape) for shape in SHAPES]
    before = readings(models)
    for model in models:
        write_for_version_4(model)
    return Readings(before=before, version_5=readings(models), version_4=readings(models, version_4))


@pytest.mark.parametrize("shape", SHAPES)
def test_version_4_reads_a_model_as_version_5_does(shape, models_read):
    ours, theirs = models_read.before[shape], models_read.version_4[shape]
    assert theirs["ids"] == ours["ids"]
    assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_version_5_reads_a_model_with_both_names_as_before(shape, models_read):
    assert models_read.version_5[shape] == models_read.before[shape]


def test_version_4_does_not_read_a_model_without_its_names(version_4, tmp_path):
    process = read([save("llama", tmp_path / "model")], version_4)
    assert process.returncode != 0
    assert "TokenizersBackend" in process.stderr
