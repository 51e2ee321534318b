"""Released texts, and small releases and recipes for the tests of finetuning."""

import uuid
from collections.abc import Sequence
from pathlib import Path

from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.records import content_uuid
from toolformer_ops.release.conversations import CONTINUE, WRITE, Message
from toolformer_ops.release.format import ReleasedCall, ReleasedText, write_texts
from toolformer_ops.runs.choices import FinetuningChoices

SMALL = {
    "finetune_steps": 6,
    "finetune_batch": 4,
    "finetune_device_batch": 2,
    "finetune_length": 48,
    "finetune_learning_rate": 1e-3,
}
DEV_TEXTS = tuple(f"We met {number} people on the way, and {number + 3} in the town." for number in range(5))


def largest_difference(first: Path, second: Path) -> float:
    """Between the weights of two models."""
    from safetensors.torch import load_file

    ours, theirs = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def recipe_of(*, without_calls: bool = False, **changes: object) -> FinetuningRecipe:
    choices = FinetuningChoices(**(SMALL | changes))
    return FinetuningRecipe(
        release_id="0" * 16, base_model="tiny@1", choices=choices, without_calls=without_calls
    )


def released_call(position: int, call_input: str, result: str, tool: str = "Calculator") -> ReleasedCall:
    call_id = str(content_uuid(tool, str(position), call_input))
    return ReleasedCall(call_id, tool, call_input, result, position, 0.5, 3.0, 3.0, 1.0, 2.0, "a", "b", "c")


def released_text(plain: str, *calls: ReleasedCall) -> ReleasedText:
    return ReleasedText.of(content_uuid(plain), plain, calls, None)


def opening(messages: Sequence[Message]) -> str:
    """What the user gives of the text."""
    return messages[0]["content"].removeprefix(CONTINUE) if messages[0]["content"] != WRITE else ""


def plain_text(messages: Sequence[Message]) -> str:
    """The text of a conversation without calls."""
    return opening(messages) + "".join(
        turn["content"] for turn in messages[1:] if turn["role"] == "assistant"
    )


def write_release(folder: Path, texts: int = 6) -> Path:
    """Texts of different lengths, with one call each."""
    folder.mkdir(parents=True)
    released = []
    for number in range(texts):
        plain = (
            f"The shop had {number + 9} shirts and sold {number}, so it has 9 left." + " It is shut." * number
        )
        call = released_call(plain.index(" 9 left"), f"{number + 9} - {number}", "9")
        released.append(ReleasedText.of(uuid.UUID(int=number), plain, [call], None))
    write_texts(folder, released)
    return folder
