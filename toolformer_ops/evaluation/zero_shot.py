"""The zero-shot prompts of appendix C: one text file each in `prompts/`, with slots, checked when they are loaded.

What is put into a slot is never searched for slots itself. White space around the whole is taken off, so that a prompt without a
context begins with its question, and no prompt ends in a space (which would keep a model from the words it knows, ` Paris`).
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.errors import PromptError

PROMPTS = Path(__file__).parent / "prompts"
SLOTS: Mapping[str, tuple[str, ...]] = {
    "complete_text": ("text",),
    "word_problem": ("context", "question"),
    "question": ("question",),
    "question_on_paragraph": ("context", "question"),
}
"""The prompts with their slots."""
_SLOT = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class ZeroShotPrompt:
    """A prompt with its slots."""

    name: str
    template: str

    def __post_init__(self) -> None:
        found = sorted(_SLOT.findall(self.template))
        expected = sorted(SLOTS.get(self.name, ()))
        if found != expected or not expected:
            raise PromptError(
                f"prompt {self.name}: expected the slots {', '.join(expected) or 'of a known prompt'} once each, found "
                f"{', '.join(found) or 'none'}. Write each as {{name}}."
            )

    def fill(self, slots: Mapping[str, str]) -> str:
        """The prompt with these texts in its slots, without white space around it."""
        return _SLOT.sub(lambda slot: slots[slot.group(1)], self.template).strip()

    def head(self, slots: Mapping[str, str]) -> str:
        """The beginning of the filled prompt up to its last slot: the instruction, and a paragraph that questions share."""
        *_, last = _SLOT.finditer(self.template)
        return _SLOT.sub(lambda slot: slots[slot.group(1)], self.template[: last.start()]).strip()


@functools.cache
def load_prompt(name: str) -> ZeroShotPrompt:
    """The prompt in `prompts/NAME.txt`.

    Raises:
        PromptError: there is no such file, or its slots are others.
    """
    path = PROMPTS / f"{name}.txt"
    try:
        return ZeroShotPrompt(name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PromptError(f"expected the prompt {path}, found {error.strerror}. Install the project again.") from error


def with_question_mark(question: str) -> str:
    """The question with a question mark at its end (appendix C.3); one of another script counts."""
    question = question.strip()
    return question if question.endswith(("?", "\uff1f", "\u061f")) else f"{question}?"
