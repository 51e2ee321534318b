"""How fast the network works: tokens a second, and the share of the card's peak that it reaches.

The share counts the operations of its matrix products. A token costs two operations for each weight that it
is multiplied with, six where all weights are trained: two in the forward pass, two for the gradients of what
the layer read, and two for those of the weights, which frozen weights do not have. Attention, and activations
that are computed twice, are not counted. The peak is the maker's for products in bfloat16 without sparsity,
so that passes in float32 have small shares. Of mixtures of experts, whose tokens meet a part of the weights,
and of cards that are not in the table no share is said. Imports no torch.
"""

import re
from dataclasses import dataclass
from typing import Any

from toolformer_ops.config import Settings

PEAKS: tuple[tuple[str, float], ...] = (
    # nvidia.com/en-us/data-center/h200: 1,979 TFLOP/s with sparsity, 1,671 of the NVL.
    (r"H200 NVL", 835.5e12),
    (r"G?H200", 989.5e12),
    # nvidia.com/en-us/data-center/h100: 1,979 with sparsity, 1,671 of the NVL; the PCIe card 1,513 (its
    # product brief).
    (r"H100 NVL", 835.5e12),
    (r"H100 PCIe", 756.5e12),
    (r"H100", 989.5e12),
    # nvidia.com/en-us/data-center/a100
    (r"A100", 312e12),
    # nvidia.com/en-us/data-center/l40s: 733 with sparsity; l40: 362; l4: 242.
    (r"L40S", 366.5e12),
    (r"L40", 181e12),
    (r"L4", 121e12),
    # Data sheets of A10, A30 and A40.
    (r"A10", 125e12),
    (r"A30", 165e12),
    (r"A40", 149.7e12),
    # Blackwell datasheet: 4.5 PFLOP/s with sparsity.
    (r"B200", 2250e12),
)
"""Operations a second in bfloat16 by a word of the card's name; the first row that matches counts."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names that configurations give the number of experts."""
FORWARD, TRAINED, FROZEN = 2, 6, 4
"""Operations of a token for each weight: of a pass, and of a training for weights that change and that do
not."""


@dataclass(frozen=True)
class Cards:
    """The devices on which a network computes."""

    name: str
    """The card's, such as "NVIDIA H200", or cpu."""
    count: int = 1

    @property
    def peak(self) -> float | None:
        """Operations a second of all of them in bfloat16; None if it is not known, such as of a MIG slice."""
        if " MIG " in self.name:
            return None
        peaks = (peak for word, peak in PEAKS if re.search(rf"\b{word}\b", self.name))
        card_peak = next(peaks, None)
        return None if card_peak is None else self.count * card_peak

    def __str__(self) -> str:
        return self.name if self.count == 1 else f"{self.count} {self.name}"


@dataclass(frozen=True)
class Throughput:
    """What a network did in some seconds."""

    tokens: float
    seconds: float
    operations: float | None
    """Operations of its matrix products; None if they are not known."""
    cards: Cards

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second."""
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def share(self) -> float | None:
        """The share of the cards' peak; None if it is not known."""
        if self.operations is None or self.cards.peak is None:
            return None
        return self.operations / max(self.seconds, 1e-9) / self.cards.peak

    def __str__(self) -> str:
        """In words: tokens a second, and on a GPU their share of the peak, or why none is said."""
        speed = f"{self.tokens_per_second:,.0f} tokens/s"
        if self.cards.name == "cpu":
            return speed
        if self.cards.peak is None:
            return f"{speed} (the peak of {self.cards} is not known)"
        if self.share is None:
            return f"{speed} (no share of the peak is known of a mixture of experts)"
        return f"{speed}, {self.share:.1%} of the peak of {self.cards}"


@dataclass
class NetworkWork:
    """What the networks of this process have computed; a stage takes what was added meanwhile."""

    tokens: int = 0
    """Read by a network, each as often as it was read."""
    operations: float | None = 0.0
    """None once a network with unknown operations has run."""

    def add_tokens(self, tokens: int, operations_a_token: float | None) -> None:
        """Add a pass over so many tokens."""
        self.tokens += tokens
        self.add_rows(tokens, operations_a_token)

    def add_rows(self, rows: int, operations_a_row: float | None) -> None:
        """Add products with so many rows."""
        if self.operations is None or operations_a_row is None:
            self.operations = None
        else:
            self.operations += rows * operations_a_row

    def add(self, other: "NetworkWork") -> None:
        """Add what was computed elsewhere or at another time."""
        self.add_rows(1, other.operations)
        self.tokens += other.tokens

    def since(self, before: "NetworkWork") -> "NetworkWork":
        """What was computed since a copy was taken."""
        operations = None
        if self.operations is not None and before.operations is not None:
            operations = self.operations - before.operations
        return NetworkWork(self.tokens - before.tokens, operations)

    def in_seconds(self, seconds: float, cards: Cards) -> Throughput:
        """The work as a speed."""
        return Throughput(self.tokens, seconds, self.operations, cards)


WORK = NetworkWork()
"""The work of this process."""


def has_experts(config: Any) -> bool:
    """Whether a token meets a part of the weights alone."""
    return any((getattr(config, name, None) or 0) > 1 for name in EXPERTS)


def training_operations(network: Any, trained: Any) -> float | None:
    """Operations of a token in a step: `trained` is the network, or holds it with its adapters.

    None for a mixture of experts.
    """
    if has_experts(network.config.get_text_config(decoder=True)):
        return None
    embeddings, head = network.get_input_embeddings().weight, network.get_output_embeddings()
    is_tied = head is not None and head.weight is embeddings
    operations = 0
    for weight in trained.parameters():
        if weight is not embeddings or is_tied:
            operations += _numbers(weight) * (TRAINED if weight.requires_grad else FROZEN)
    return float(operations)


def pass_operations(network: Any) -> tuple[float | None, float | None]:
    """Operations of a token in a pass of the decoder, and of a row of logits.

    None for a mixture of experts.
    """
    if has_experts(network.config.get_text_config(decoder=True)):
        return None, None
    embeddings, head = network.get_input_embeddings().weight, network.get_output_embeddings().weight
    decoder = sum(
        _numbers(weight) for weight in network.parameters() if weight is not embeddings and weight is not head
    )
    return FORWARD * float(decoder), FORWARD * float(_numbers(head))


def _numbers(weight: Any) -> int:
    """How many numbers a weight has, in all processes together if DeepSpeed has divided it."""
    return int(getattr(weight, "ds_numel", 0) or weight.numel())


def cards_of(settings: Settings, *, processes: int = 1) -> Cards:
    """The cards on which a network computes: all that its layers are spread over, or one for each process."""
    if settings.device == "cpu":
        return Cards("cpu", processes)
    import torch

    is_spread = settings.device == "cuda" and settings.model_parallel != "off"
    name = torch.cuda.get_device_name(torch.device(settings.device))
    return Cards(name, torch.cuda.device_count() if is_spread and processes == 1 else processes)
