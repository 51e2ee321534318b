"""Halve a batch that does not fit into the device's memory, and go on."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from toolformer_ops.errors import DeviceMemoryError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def halving(run: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item], what: str) -> list[Result]:
    """`run(items)`; where memory is short, of the first half and then of the second, and so on. One result an item, in order.

    `run` must leave nothing behind when it fails. `what` names the items in the log.

    Raises:
        DeviceMemoryError: not even one item fits.
    """
    try:
        return run(items)
    except RuntimeError as error:  # torch.OutOfMemoryError is one; the CPU allocator raises a plain one
        if not _is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise DeviceMemoryError(
                f"expected memory for one of {what}, found too little: {str(error).splitlines()[0]}. Choose a device with more "
                f"memory, TOOLFORMER_DTYPE=bfloat16, or a smaller model."
            ) from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = len(items) // 2
    logger.warning("out of memory with %d %s at once: going on with %d", len(items), what, half)
    return halving(run, items[:half], what) + halving(run, items[half:], what)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)
