"""How much is measured: the full form, which takes five minutes on a card of a data centre, and the small one."""

from dataclasses import dataclass

from benchmarks.random_models import TINY_ARCHITECTURES


@dataclass(frozen=True, kw_only=True)
class Work:
    """How much is annotated."""

    text_tokens: int
    new_tokens: int
    """Of each sampled call."""
    tools: dict[str, tuple[int, int, int]]
    """By tool: positions, samples, and the most texts."""
    verified_texts: int
    verified_calls: int
    """Of each of these texts."""
    cube: int
    """Side of the cube whose product is the peak."""


@dataclass(frozen=True, kw_only=True)
class TrainingWork:
    """How much is trained."""

    text_tokens: int
    batch: int
    """Texts of a step."""
    steps: int
    """Timed ones."""
    device_batches: tuple[int | None, ...]
    """Texts of a pass, a row each; None: as many as the default has."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    architectures: tuple[str, ...]
    shapes: tuple[str, ...]
    trained: str
    """Shape that is finetuned."""
    work: Work
    training: TrainingWork


FULL = Size(
    architectures=tuple(TINY_ARCHITECTURES),
    shapes=("1.5B", "7B"),
    trained="1.5B",
    work=Work(
        text_tokens=200,
        new_tokens=27,
        tools={"Calculator": (20, 10, 64), "QA": (5, 5, 128)},
        verified_texts=4,
        verified_calls=16,
        cube=8192,
    ),
    training=TrainingWork(text_tokens=230, batch=128, steps=2, device_batches=(None, 4)),
)
SMALL = Size(
    architectures=("llama", "gemma2"),
    shapes=("tiny",),
    trained="tiny",
    work=Work(
        text_tokens=24,
        new_tokens=4,
        tools={"Calculator": (2, 2, 2)},
        verified_texts=1,
        verified_calls=4,
        cube=64,
    ),
    training=TrainingWork(text_tokens=24, batch=4, steps=1, device_batches=(None, 2)),
)
