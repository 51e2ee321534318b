"""How much is computed together: one table, by kind of device.

These numbers bound batches and decide no result: on a CPU a row has the same bits in every batch (but for
mixtures of experts), on a GPU it may differ by rounding. `devices.py` lowers those that fill memory to what
is there. Imports no torch: the stages plan their micro-batches by this table, and `check` looks at the free
main memory.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """The most that is worth computing together on one kind of device."""

    cached_tokens: int
    """Tokens whose keys and values are there together: texts twice, and their samples' calls.

    On a CPU more rows make no step faster. On a GPU: 64 texts of 200 tokens with the Calculator's 20
    positions and 10 samples of 27 tokens, so that a step has 12,800 rows and its weights are read seldom.
    """
    pass_tokens: int
    """Tokens of one pass. On a CPU more make nothing faster. On a GPU the matrix products of a layer then
    take several times as long as its launches: an H200 is busy for 82 % of the time with 1.5B parameters, for
    96 % with 7B."""
    logits_rows: int
    """Rows over the whole vocabulary at once, by the same measure."""
    softmax_rows: int
    """Rows of these that become probabilities at once: on a CPU in its cache, a row of a large vocabulary is
    a megabyte; on a GPU all."""
    fused_attention_tokens: int
    """From so many new tokens of a text on, torch's fused attention takes over, which does not hold all
    scores; below, on a CPU, it is the slower one."""
    long_text_tokens: int
    """A text of so many tokens, both copies counted, has a separate pass: more would hardly make the matrix
    products faster."""
    read_tokens: int
    """Tokens of the texts whose positions are found together: on a CPU two full passes; on a GPU as many as
    two passes hold in both copies, so that pruning and the start of sampling are full, too."""
    kept_text_tokens: int
    """Tokens of texts whose contexts are kept, both copies counted, until their samples need them: those of
    the texts that are read together, and a little for separators. The newest is kept always."""
    scored_passes: int
    """Passes whose hidden states are kept until they are projected: with five rows of 4,096 numbers each,
    320 MiB in bfloat16."""
    pairs: int
    """Pairs of ids whose hidden states are held together: they fill a few passes."""
    loss_windows: int
    """Windows of whole texts whose hidden states are held together: they fill a few passes; those of 2,048
    tokens and 4,096 numbers take half a gigabyte on a GPU."""
    prompts: int
    """Prompts that a model continues together, for tools; not measured on a GPU, which takes as many as a
    CPU."""
    prompt_tokens: int
    """Tokens of these prompts, from which on no further one joins."""
    written_texts: int
    """Texts that are written with tools together, those that wait for a tool included; not measured on a GPU
    either."""
    written_tokens: int
    """Tokens of these texts, from which on no further one joins."""
    training_tokens: int
    """Tokens of a training's forward pass. On a GPU fewer leave it idle: measured with 1.5B parameters on
    texts of 230 tokens, 5,900 tokens a second at 920 tokens a pass, 30,500 at 7,400 and 39,900 at 14,700. On
    a CPU more are no faster."""
    training_logits_rows: int
    """Rows over the whole vocabulary at once in a training, which holds them in float32: with a vocabulary of
    128,256 they are 1 GB."""
    micro_batch_tokens: int
    """Tokens of a micro-batch: on a CPU they fill the cache, on a GPU they are 64 texts of 1,024 tokens, the
    longest ones. More would lose more minutes of work by a kill."""
    gathered: int
    """So many micro-batches are one where float32 weights may take the place of the others: on a GPU they are
    then loaded once in 262,144 tokens, nearly always once a shard. To load a model of 8B parameters in both
    formats takes about a minute; to score texts of so many tokens takes four minutes (25 calls a text) to
    half an hour (200) by what an H200 does with 7B, which a kill loses."""


BATCH_SIZES: dict[DeviceKind, BatchSizes] = {
    "cpu": BatchSizes(
        cached_tokens=12_288,
        pass_tokens=512,
        logits_rows=128,
        softmax_rows=32,
        fused_attention_tokens=256,
        long_text_tokens=256,
        read_tokens=1_000,
        kept_text_tokens=2_048,
        scored_passes=8_192,
        pairs=64,
        loss_windows=16,
        prompts=32,
        prompt_tokens=4_096,
        written_texts=64,
        written_tokens=16_384,
        training_tokens=2_048,
        training_logits_rows=2_048,
        micro_batch_tokens=4_096,
        gathered=8,
    ),
    "cuda": BatchSizes(
        cached_tokens=393_216,
        pass_tokens=16_384,
        logits_rows=4_096,
        softmax_rows=4_096,
        fused_attention_tokens=2,
        long_text_tokens=4_096,
        read_tokens=16_384,
        kept_text_tokens=34_816,
        scored_passes=8_192,
        pairs=512,
        loss_windows=32,
        prompts=32,
        prompt_tokens=4_096,
        written_texts=64,
        written_tokens=16_384,
        training_tokens=16_384,
        training_logits_rows=2_048,
        micro_batch_tokens=65_536,
        gathered=4,
    ),
}


def device_kind(device: str) -> DeviceKind:
    """The row of the table for a device by its name, such as cpu, cuda or cuda:1."""
    return "cpu" if device == "cpu" else "cuda"


def free_main_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of main memory that this process may still take.

    It is what the machine has, or what its container's limit leaves.
    """
    free = int(psutil.virtual_memory().available)
    for group, limit, used, cache in (
        (cgroup, "memory.max", "memory.current", "inactive_file"),
        (cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        if (
            not (group / limit).is_file()
            or (most := (group / limit).read_text(encoding="ascii").strip()) == "max"
        ):
            continue
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        taken = int((group / used).read_text(encoding="ascii")) - int(
            stat.get(cache, 0)
        )  # read files count as used
        free = min(free, int(most) - taken)
    return max(0, free)
