"""Which model annotates which texts, with which numbers: works A and B.

Work A: the GPT-2 shape with random weights, texts of 200 tokens, the Calculator's prompt, k 5, m 5, 20 new
tokens. Its samples are noise, so five calls a position are put in their place before scoring.
Work B: SmolLM2 on real text, all five tools with their default numbers and the tool's name given. The
Calculator and the Calendar are run; the others, whose answers would need an index or a translator, answer
with a fixed result of usual length.
"""

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.random_models import prompt_tokenizer, text_of_tokens
from toolformer_ops.annotation.candidates import candidates_at, given_call_start
from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.model import LanguageModel
from toolformer_ops.language_model.tokenization import AnnotationPrompt
from toolformer_ops.local.demo.corpus import own_documents, wikipedia_documents, write_kilt_records
from toolformer_ops.records import CallPosition, Document, PlacedCall, SampledContinuation
from toolformer_ops.runs.choices import RunChoices, SamplingChoices, ToolSamplingChoices
from toolformer_ops.tools.registry import get_tool, tool_names

FIXED_RESULTS = {
    "WikiSearch": "Metropolis (film) > Metropolis is a German film of 1927, directed by Fritz Lang and written by Thea von Harbou.",
    "QA": "Fritz Lang",
    "MT": "bread shared with a friend tastes better than bread eaten alone",
}
"""Replaces a tool that would need an index or a translator."""
WORK_A_TOKENS = 200
INJECTED_CALLS = 5


@dataclass(frozen=True)
class Text:
    """A text to annotate."""

    text: str
    document: Document
    seed_key: str


@dataclass(frozen=True)
class Job:
    """Texts of one tool and the numbers of their annotation."""

    tool: str
    prompt: AnnotationPrompt
    texts: tuple[Text, ...]
    choices: ToolSamplingChoices
    call_start: str
    injects_calls: bool
    """Whether made calls replace the sampled ones before scoring."""


def random_text_job(texts: int, tokens: int = WORK_A_TOKENS) -> Job:
    """Work A: `texts` texts of `tokens` tokens."""
    tokenizer = prompt_tokenizer()
    made = [text_of_tokens(tokenizer, tokens, number) for number in range(texts)]
    return Job(
        tool="Calculator",
        prompt=AnnotationPrompt("Calculator", get_tool("Calculator").prompt),
        texts=tuple(Text(text, Document.of(text), str(number)) for number, text in enumerate(made)),
        choices=sampling_choices(positions=5, samples=5, tokens=20),
        call_start=" [",
        injects_calls=True,
    )


def sampling_choices(positions: int, samples: int, tokens: int) -> ToolSamplingChoices:
    """Numbers of made texts, which are sampled at all their best positions."""
    return ToolSamplingChoices(
        max_positions=positions,
        samples_per_position=samples,
        max_call_tokens=tokens,
        sampling_threshold=0.0,
        temperature=1.0,
        top_p=1.0,
    )


def real_text_jobs(texts: int) -> list[Job]:
    """Work B: `texts` texts a tool that its filter keeps, five jobs."""
    return [
        _real_text_job(name, texts)
        for name in tool_names()
        if name in RunChoices.model_fields["tools"].default
    ]


def place_calls(
    settings: Settings,
    job: Job,
    text: Text,
    positions: Sequence[CallPosition],
    sampled: Sequence[Sequence[SampledContinuation]],
) -> list[PlacedCall]:
    """The calls of one text that are scored, with their results."""
    if job.injects_calls:
        return [
            PlacedCall(position.token, Call("Calculator", f"{left} - {right}"), str(left - right))
            for position in positions
            for left, right in ((1400 + position.token, 7 + number) for number in range(INJECTED_CALLS))
        ]
    tool = get_tool(job.tool)
    document = dataclasses.replace(text.document, text=text.text)  # a paragraph is scored by itself here
    found = [
        candidate
        for position, samples in zip(positions, sampled, strict=True)
        for candidate in candidates_at(tool, document, position, samples)[0]
    ]
    results = _answers(settings, job.tool, [candidate.effective_input for candidate in found])
    return [
        PlacedCall(candidate.position.token, candidate.call, result)
        for candidate, result in zip(found, results, strict=True)
        if result is not None
    ]


def _answers(settings: Settings, tool: str, inputs: Sequence[str]) -> list[str | None]:
    if tool in FIXED_RESULTS:
        return [FIXED_RESULTS[tool]] * len(inputs)
    outputs = get_tool(tool).open(settings, _no_model).run(inputs)
    return [output.results[0] if output.results else None for output in outputs]


def _no_model() -> LanguageModel:
    raise ModelError(
        "expected a tool that asks no language model. Give it a fixed result in benchmarks/works.py."
    )


def _real_text_job(name: str, texts: int) -> Job:
    tool = get_tool(name)
    choices = SamplingChoices(call_prefix="tool_name", temperature=1.0, top_p=1.0).for_tool(
        tool.spec, tool.prompt
    )
    return Job(
        tool=name,
        prompt=AnnotationPrompt(name, tool.prompt),
        texts=tuple(_kept_texts(name, texts)),
        choices=choices,
        call_start=given_call_start(tool, choices.call_prefix),
        injects_calls=False,
    )


def _kept_texts(name: str, texts: int) -> list[Text]:
    own = {"Calculator": "sums_in_prose", "Calendar": "dated_posts", "MT": "foreign_phrases"}
    # Filters of the two others need more words than a short summary has in a few cases: some more are looked
    # at.
    if name in own:
        documents = own_documents(own[name])
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_kilt_records(Path(folder) / "kilt.jsonl")
            documents = wikipedia_documents(Path(folder) / "kilt.jsonl", texts + 50)
    found: list[Text] = []
    for item in documents:
        document = Document.of(item.text, item.url)
        for decision in get_tool(name).filter(document):
            if decision.kept and len(found) < texts:
                text = document.text[decision.start_char : decision.end_char]
                found.append(Text(text, document, f"0|{name}|{document.document_id}|{decision.paragraph}"))
    return found
