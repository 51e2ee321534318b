"""Models with random weights in the shapes that matter, a tokenizer trained in code, and texts of an exact length.

Speed does not depend on what weights and texts say. The tokenizer learns the tools' prompts by heart, so that
a word is about a token, as in a vocabulary of 50,000; ids above its last one decode to nothing when they are
drawn, so that samples run to their full length.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch

import toolformer_ops.tools

PROMPTS = Path(toolformer_ops.tools.__path__[0]) / "prompts"
VOCABULARY = 3000
"""Entries of the tokenizer; fewer where the prompts give no more."""
END_OF_TEXT = "<|endoftext|>"


def prompt_tokenizer() -> Any:
    """A byte-level byte-pair tokenizer of transformers, trained on the tools' prompts; ` [` is one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [path.read_text(encoding="utf-8") for path in sorted(PROMPTS.glob("*.txt"))]
    backend.train_from_iterator([*texts, *(" [ " for _ in range(50))], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT)


def text_of_tokens(tokenizer: Any, tokens: int, number: int) -> str:
    """A text of exactly `tokens` tokens; another for each `number`, the same in every run.

    Raises:
        ValueError: the vocabulary does not allow it.
    """
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    # Words that are one token with the space before them.
    words = [
        word[1:]
        for word, _ in vocabulary
        if word.startswith("Ġ") and len(word) > 3 and word[1:].isalpha() and word[1:].isascii()
    ]
    digests = [hashlib.sha256(f"{number}|{place}".encode()).digest() for place in range(tokens)]
    text = " ".join(words[int.from_bytes(digest[:8], "big") % len(words)] for digest in digests)
    offsets = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).offsets
    cut = text[: offsets[tokens][0]] if len(offsets) > tokens else text
    found = len(tokenizer.backend_tokenizer.encode(cut, add_special_tokens=False).ids)
    if found != tokens:
        raise ValueError(f"expected a text of {tokens} tokens, found {found}")
    return cut


_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
_GPT = {"n_embd": 32, "n_head": 4, "n_positions": 1024}
_WINDOW = {"sliding_window": 24}
_GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8} | _WINDOW
TINY_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA | {"head_dim": 8},
    "mistral": _LLAMA | {"head_dim": 8} | _WINDOW,
    "gemma2": _LLAMA | _GEMMA,
    "gemma3_text": _LLAMA | _GEMMA,
    "phi3": _LLAMA | {"pad_token_id": 0},
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmoe": _LLAMA | {"num_experts": 8, "num_experts_per_tok": 2},
    "mixtral": _LLAMA | {"num_local_experts": 8},
    "qwen3_moe": _LLAMA
    | {"head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt2": _GPT,
    "gptj": _GPT | {"rotary_dim": 4},
}
"""Numbers of tiny models by transformers' name of the architecture: heads of 8, a window of 24 tokens where there is
one, two heads of queries for one of keys."""


def tiny_config(architecture: str, tokenizer: Any, layers: int) -> Any:
    """The configuration of a tiny model of one of `TINY_ARCHITECTURES`."""
    from transformers import AutoConfig

    numbers = TINY_ARCHITECTURES[architecture]
    depth = {"n_layer" if "n_embd" in numbers else "num_hidden_layers": layers}
    end = tokenizer.eos_token_id
    ids = {"vocab_size": len(tokenizer), "bos_token_id": end, "eos_token_id": end}
    return AutoConfig.for_model(architecture, **numbers | depth | ids)


def random_network(config: Any, seed: int = 0) -> Any:
    """The network of `config` with weights drawn from `seed`."""
    from transformers import AutoModelForCausalLM

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    network = AutoModelForCausalLM.from_config(config)
    torch.random.set_rng_state(state)
    return network


def saved_gpt2(folder: Path) -> Path:
    """A folder that loads like any model's: the GPT-2 shape, 12 layers, 768 wide, 50,257 entries, a window of 1,024."""
    from transformers import GPT2Config

    tokenizer = prompt_tokenizer()
    tokenizer.save_pretrained(folder)
    end = tokenizer.eos_token_id
    random_network(GPT2Config(bos_token_id=end, eos_token_id=end)).save_pretrained(folder)
    return folder
