"""Which calls a tool proposes by itself, and how a tool says that it can."""

from toolformer_ops.config import Settings
from toolformer_ops.records import Document
from toolformer_ops.tools.base import ProposedCall, ProposedCalls, Tool, ToolOutput, ToolSpec


class Echo(Tool):
    """A tool that proposes nothing."""

    spec = ToolSpec(name="Echo", purpose="Repeats.", prompt_file="prompts/calculator.txt")

    def run(self, inputs):
        return [ToolOutput.of(item) for item in inputs]


class EchoOfTheFirstWord(Echo):
    """A tool that proposes one call a text."""

    def proposals(self, document):
        return ProposedCalls([ProposedCall(0, document.text.split()[0])])


def test_a_tool_without_proposals_cannot_propose():
    assert not Echo().can_propose


def test_a_tool_that_overrides_proposals_can_propose():
    assert EchoOfTheFirstWord().can_propose


def test_a_tool_that_needs_nothing_open_is_its_own_proposer():
    proposer = EchoOfTheFirstWord().open_proposer(Settings())
    assert proposer.proposals(Document.of("One two")).calls == [ProposedCall(0, "One")]


def test_the_version_of_a_proposer_names_the_tool_with_its_code():
    assert EchoOfTheFirstWord().proposer_version(Settings()) == "echo-1"
