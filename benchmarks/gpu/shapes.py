"""Models in the shapes that people annotate with, with random weights that are drawn on the device.

The same seed draws the same weights in every number format, so that formats can be compared; none is ever in main
memory.
"""

from dataclasses import dataclass
from typing import Any

import torch

WEIGHT_SPREAD = 0.02
"""Standard deviation of the weights, that of Llama's initialisation."""
BLOCK_NUMBERS = 2**26
"""Weights that are drawn at once, in float32."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A network of Llama's architecture."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    window: int = 4096

    @property
    def layer_weights(self) -> int:
        """Weights of all layers, through which every token goes."""
        kept = self.hidden * self.key_heads // self.heads
        return self.layers * (2 * self.hidden * (self.hidden + kept) + 3 * self.hidden * self.inner)

    @property
    def projection_weights(self) -> int:
        """Weights of the output projection; as many are the input embeddings."""
        return self.hidden * self.vocabulary

    @property
    def weights(self) -> int:
        """All of them."""
        return self.layer_weights + 2 * self.projection_weights

    def network(self, dtype: torch.dtype, device: torch.device) -> Any:
        """A network of transformers with these weights on the device."""
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.window,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        with device:
            network = AutoModelForCausalLM.from_config(config, dtype=dtype)
        state = torch.random.get_rng_state()
        torch.manual_seed(0)
        for parameter in network.parameters():
            if parameter.dim() < 2:
                continue  # of a norm
            rows_at_once = max(1, BLOCK_NUMBERS // parameter.shape[1])
            for rows in parameter.data.split(rows_at_once):
                drawn = torch.randn(rows.shape, device=device)
                rows.copy_(drawn.mul_(WEIGHT_SPREAD))
        torch.random.set_rng_state(state)
        return network.eval()


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name="tiny",
            hidden=64,
            inner=128,
            layers=2,
            heads=4,
            key_heads=2,
            vocabulary=3000,
        ),
        Shape(  # Llama 3.2 1B, whose embeddings are not shared with the projection here
            name="1.5B",
            hidden=2048,
            inner=8192,
            layers=16,
            heads=32,
            key_heads=8,
            vocabulary=128_256,
        ),
        Shape(  # Llama 2 7B
            name="7B",
            hidden=4096,
            inner=11_008,
            layers=32,
            heads=32,
            key_heads=32,
            vocabulary=32_000,
        ),
        Shape(  # Llama 3 8B
            name="8B",
            hidden=4096,
            inner=14_336,
            layers=32,
            heads=32,
            key_heads=8,
            vocabulary=128_256,
        ),
    )
}
