"""A writing model without a network: what it writes is a script, and it remembers what it was asked."""

from collections.abc import Callable, Sequence

from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt, WrittenText
from toolformer_ops.errors import ToolError
from toolformer_ops.language_model.perplexity import TextLoss

Script = Callable[[Prompt, DecodingSettings], tuple[str, tuple[MadeCall, ...]]]
"""The continuation without its calls, and the calls."""


def made_call(tool: str, result: str | None, reason: str | None = None) -> MadeCall:
    return MadeCall(tool, "input", result, reason, 0, 0, 0.1)


class FakeEngine:
    """One token a character, one nat a token."""

    def tokenize(self, text: str) -> str:
        return text

    def text_losses(self, texts: Sequence[str]) -> list[TextLoss]:
        return [TextLoss((1.0,) * len(text), 2 * len(text)) for text in texts]


class FakeWritingModel:
    """Writes what its script says."""

    def __init__(
        self, script: Script, identity: str = "fake@1", down: Sequence[str] = (), window: int = 1000
    ) -> None:
        self.identity = identity
        self.language_model = FakeEngine()
        self.window = window
        self.asked: list[Prompt] = []
        self.settings: list[DecodingSettings] = []
        self._script = script
        self._down = down

    def require_tools(self, barred: Sequence[str] = ()) -> None:
        down = [tool for tool in self._down if tool not in barred]
        if down:
            raise ToolError(f"{down[0]}: expected an index, found none.")

    def write(self, prompts: Sequence[Prompt], decoding: DecodingSettings) -> list[WrittenText]:
        self.asked += prompts
        self.settings.append(decoding)
        return [self._written(prompt, decoding) for prompt in prompts]

    def _written(self, prompt: Prompt, decoding: DecodingSettings) -> WrittenText:
        text, calls = self._script(prompt, decoding)
        shown = (
            "".join(f" [{call.tool}({call.input}) -> {call.result}]" for call in calls if call.result) + text
        )
        return WrittenText(prompt, shown, text, calls, (), (), 3, "length")
