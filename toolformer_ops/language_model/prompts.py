"""The annotation prompt `P(x)` of a tool: instructions, demonstrations, and one slot for the text (appendix A.2).

The model is given the prompt with x in its slot and then x itself, token by token, to see where it would start a call. Prompt
files belong to the tools; this module only takes their text apart.
"""

from dataclasses import dataclass

from toolformer_ops.errors import PromptError

TEXT_SLOT = "{text}"


@dataclass(frozen=True)
class AnnotationPrompt:
    """A tool's prompt with its slot."""

    name: str
    """The tool's name, for messages."""
    template: str
    """The prompt's text, with `{text}` once, followed by what asks for the output (`Output:`)."""

    def __post_init__(self) -> None:
        found = self.template.count(TEXT_SLOT)
        if found != 1:
            raise PromptError(
                f"prompt of {self.name}: expected '{TEXT_SLOT}' once, found {found}. Put it after the last 'Input:'."
            )
        if not self.after_text:
            raise PromptError(
                f"prompt of {self.name}: expected words such as 'Output:' after '{TEXT_SLOT}', found none. Add them."
            )

    @property
    def before_text(self) -> str:
        """The instructions and demonstrations, up to the slot, without the spaces just before it."""
        return self.template.partition(TEXT_SLOT)[0].rstrip(" ")

    @property
    def after_text(self) -> str:
        """From the slot to the last word; white space at the end of the file is not part of the prompt."""
        return self.template.partition(TEXT_SLOT)[2].rstrip()

    @property
    def separator(self) -> str:
        """What stands between a label and the text, in the slot and again in the output: a space, as a rule."""
        return self.template.partition(TEXT_SLOT)[0][len(self.before_text) :]
