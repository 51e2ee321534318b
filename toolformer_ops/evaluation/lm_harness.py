"""EleutherAI's lm-evaluation-harness (`lm_eval`) with decoding with tools.

It adds the harness's `--model toolformer`, and a suite as its task. The harness finds a model by its
registry, into which the import of this module puts `ToolformerLM`; it has no entry points. So `toolformer-ops
lm-eval` imports it and hands every argument to the harness' own command line (`run_command_line`).

Texts (`generate_until`) are written as for `evaluation/running.py`: greedily, a call starts where " [" is
among the k most likely tokens, and the harness judges the continuation without its calls; without tools,
calls are disabled. A prompt that is longer than the window is not asked and its text is empty; the harness'
own models cut its beginning off. There is no score if a tool is down. Likelihoods (`loglikelihood`, multiple
choice, perplexity) are the model's plain ones: no call is made.

By default a text starts with what the tokenizer itself puts before it, as for the harness' own `hf`, so that
scores can be compared with published ones. `start=trained` puts the start token there that the model was
trained with, as everywhere else here.

Needs the extra `evaluators`.
"""

import dataclasses
import datetime
import itertools
import logging
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from toolformer_ops.config import load_settings
from toolformer_ops.decoding.model import WritingModel
from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt
from toolformer_ops.errors import EvaluationDataError, UsageError
from toolformer_ops.evaluation.data_files import DataFolder
from toolformer_ops.evaluation.records import CALENDAR_DATE
from toolformer_ops.evaluation.running import QUESTIONS_AT_ONCE, SHARE_CORRECT, fits, require_working_tools
from toolformer_ops.evaluation.session import Outcome, load_suites
from toolformer_ops.evaluation.suites import SUITES
from toolformer_ops.language_model.tokenization import Start

if TYPE_CHECKING:
    from datasets import Dataset
    from lm_eval.api.instance import Instance

logger = logging.getLogger(__name__)

MAX_GEN_TOKENS = 256
"""Most tokens of text, calls not counted, if a task says nothing: what the harness' own models write."""
GREEDY = {"until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k"}
"""What a task may say of a generation; temperature, top_p and top_k change nothing of a greedy one."""


def run_command_line(arguments: Sequence[str]) -> None:
    """Do what `lm_eval` does with these arguments; `--model toolformer` is `ToolformerLM`.

    Raises:
        ToolformerError: the model, a tool or an argument is not as `ToolformerLM` needs it.
        SystemExit: the harness refuses the arguments.
    """
    from lm_eval._cli import HarnessCLI

    sys.argv = ["lm-eval", *arguments]  # the harness reads them from there
    harness = HarnessCLI()
    harness.execute(harness.parse_args())


@register_model("toolformer")
class ToolformerLM(TemplateLM):
    """A model that may call tools while it writes, as the harness asks models."""

    def __init__(
        self,
        pretrained: str,
        tools: str | None = None,
        k: int = 10,
        calls: int = 1,
        call_tokens: int = DecodingSettings.max_call_tokens,
        date: str = CALENDAR_DATE.isoformat(),
        start: Start = "tokenizer",
        device: Any = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
        **others: Any,
    ) -> None:
        """Load a model.

        Args:
            pretrained: a folder, id@revision, or s3://bucket/models/ID.
            tools: names with + between them, such as Calculator+Calendar; none: without tools.
            k: a call starts if it is among the k most likely tokens; 0 disables calls.
            calls: most calls an input.
            call_tokens: most tokens of a call up to its arrow.
            date: what the Calendar takes for today, as 2023-02-09.
            start: tokenizer, as the harness' own hf: what the tokenizer puts before a text (SmolLM2, Qwen,
                GPT-2: nothing; Llama: its start token), and its beginning-of-text token before a text that
                follows nothing; trained: the start token that the model was trained with, as `toolformer-ops
                evaluate`.
            device: not used, since the harness says cuda:0 if none is named: the setting `device` decides.
            batch_size: not used: texts are written together, and none depends on the others.
            max_batch_size: not used.
            others: none; the harness adds what its options set, such as trust_remote_code.

        Raises:
            UsageError: an argument is unknown, or date or start is not one.
            ModelError: there is no such model.
            ToolError: there is no such tool, or it cannot be opened.
        """
        super().__init__()
        if others:
            raise UsageError(
                "--model_args: expected pretrained, tools, k, calls, call_tokens, date, start, found "
                f"{', '.join(sorted(others))}."
            )
        try:
            self._date = datetime.date.fromisoformat(str(date))
        except ValueError as error:
            raise UsageError(
                f"--model_args: expected a date such as 2023-02-09, found date={date}."
            ) from error
        if start not in (starts := get_args(Start)):
            raise UsageError(f"--model_args: expected start to be one of {', '.join(starts)}, found {start}.")
        names = [name for name in (tools or "").split("+") if name]
        self._model = WritingModel.load(load_settings(), str(pretrained), tools=names, start=start)
        self._decoding = DecodingSettings(
            call_start_rank=k if names else 0, calls_per_input=calls, max_call_tokens=call_tokens
        )
        if self._decoding.allows_calls:
            self._model.require_tools()
        self._start: list[int] = self._model.encode([""])["input_ids"][0].tolist()
        """What comes before every text."""
        self._text_has_start = start == "tokenizer"
        tokenizer = self._model.tokenizer
        self._prefix_id: int = self.eot_token_id
        if start == "trained" and self._start:
            self._prefix_id = self._start[-1]
        elif start == "tokenizer" and tokenizer.bos_token_id is not None:
            self._prefix_id = int(tokenizer.bos_token_id)

    def generate_until(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[str]:
        """The continuation of each request's prompt, in order, without its calls.

        It ends before the first of the task's stop texts.

        Raises:
            UsageError: a task asks for something else than greedy decoding.
            ToolError: a tool is down.
        """
        alike: dict[DecodingSettings, list[int]] = {}
        for number, request in enumerate(requests):
            options = normalize_gen_kwargs(request.args[1], MAX_GEN_TOKENS)
            if options["do_sample"] or not options.keys() <= GREEDY:
                raise UsageError(
                    f"generation_kwargs: expected {', '.join(sorted(GREEDY))}, and greedy decoding, found "
                    f"{request.args[1]}. Change them with --gen_kwargs, such as do_sample=False."
                )
            stops = tuple(stop for stop in options["until"] if stop)
            as_asked = dataclasses.replace(
                self._decoding, max_new_tokens=options["max_gen_toks"], stops=stops
            )
            alike.setdefault(as_asked, []).append(number)
        texts = [""] * len(requests)
        calls: list[MadeCall] = []
        for decoding, numbers in alike.items():
            for first in range(0, len(numbers), QUESTIONS_AT_ONCE):
                batch = numbers[first : first + QUESTIONS_AT_ONCE]
                fitting = [number for number in batch if fits(self._model, requests[number].args[0])]
                if len(fitting) < len(batch):
                    logger.warning(
                        "%d prompts are longer than the model's window of %d tokens and are not asked",
                        len(batch) - len(fitting), self._model.window,
                    )  # fmt: skip
                prompts = [Prompt(requests[number].args[0], self._date) for number in fitting]
                for number, written in zip(fitting, self._model.write(prompts, decoding), strict=True):
                    calls += written.calls
                    ends = (written.without_calls.partition(stop)[0] for stop in decoding.stops)
                    texts[number] = min(ends, key=len, default=written.without_calls)
                require_working_tools("the task", calls)
                for number in batch:
                    self.cache_hook.add_partial("generate_until", requests[number].args, texts[number])
        return texts

    def loglikelihood_rolling(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[float]:
        """The natural log probability of each request's text.

        It is read in windows as the harness cuts them: each token once.
        """
        sums = []
        for request in requests:
            # The harness' own hf reads what the tokenizer puts before a text as part of it, after the
            # prefix.
            ids = self.tok_encode(request.args[0], add_special_tokens=self._text_has_start)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self._model.window, context_len=1)
            pairs = [make_disjoint_window(window) for window in windows]
            sums.append(math.fsum(nats for nats, _ in self._model.language_model.id_log_probabilities(pairs)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, sums[-1])
        return sums

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        """Return each continuation's natural log probability, and whether greedy decoding would write it."""
        # As in the harness, a context that is too long loses its beginning.
        room = self._model.window + 1
        pairs = [(context[-max(1, room - len(ids)) :], ids) for _, context, ids in requests]
        answers = self._model.language_model.id_log_probabilities(pairs)
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", request[0], answer)
        return answers

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The ids of a text, after what comes before every text unless `add_special_tokens` is False."""
        return [
            *(() if add_special_tokens is False else self._start),
            *self._model.language_model.tokenize(string).ids,
        ]

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return int(self._model.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What comes before a text that follows nothing: the start token, or else the end-of-text token."""
        return self._prefix_id

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Refuse.

        Raises:
            UsageError: always; a prompt's special tokens are read as text, as in all texts.
        """
        raise UsageError(
            "expected prompts without a chat template, found --apply_chat_template. Leave it out."
        )


def suite_documents(*, suite: str, data: str, **_: Any) -> "dict[str, Dataset]":
    """Questions of a suite, such as math:gsm8k, of the data folder `data`: a task's `custom_dataset`.

    Raises:
        UsageError: there is no such suite.
        EvaluationDataError: its data are not there, or of another format.
    """
    from datasets import Dataset

    outcome = Outcome()
    loaded = load_suites(DataFolder(load_settings(), data), [suite], None, outcome)
    if outcome.failures:
        raise EvaluationDataError(" ".join(outcome.failures.values()))
    documents = []
    for name, data_sets in loaded.items():
        for question in itertools.chain.from_iterable(data_set.questions for data_set in data_sets):
            documents.append({"suite": name, "prompt": question.prompt, "answers": list(question.answers)})
    return {"test": Dataset.from_list(documents)}


def judge(document: dict[str, Any], written: Sequence[str]) -> dict[str, float]:
    """Whether the text that was written for a document is right, as its suite judges it.

    It is the task's `process_results`.
    """
    return {SHARE_CORRECT: float(SUITES[document["suite"]].metric.judge(written[0], document["answers"])[1])}
