"""What a user chooses: the one home of each choice's name, default, bounds and description.

One frozen model for each set of choices. The choices of a run, `RunChoices`, inherit from all of them, so
that they stay one flat object for the trigger form of the DAG `annotate_corpus` (generated from it),
Airflow's API, the commands and the column `annotation_runs.parameters`; `RunChoices.part` returns one set. A
stage's recipe hashes all fields of its set (`runs/recipes.py`, `finetuning/recipe.py`) but those in
`DECIDE_NOTHING`, so that no choice can be forgotten there.
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from toolformer_ops.errors import UsageError, did_you_mean, expectation
from toolformer_ops.language_model.endpoint.endpoint_file import PREFIX as ENDPOINT
from toolformer_ops.language_model.losses import (
    MOST_GAIN,
    PROBABILITY_PRUNE_BELOW,
    PROBABILITY_THRESHOLD,
    KeepRule,
)
from toolformer_ops.records import VerifyInFloat32
from toolformer_ops.runs.presets import ON_ONE_MACHINE, PRESETS, Preset
from toolformer_ops.storage.corpora.addresses import CorpusAddress
from toolformer_ops.tools.base import FilterRule, ToolSpec
from toolformer_ops.tools.registry import DEFAULT_TOOLS, get_tool, tool_names

Suite = Literal["lama", "math", "qa", "mlqa", "temporal", "perplexity"]

SUITES: tuple[Suite, ...] = get_args(Suite)
"""The suites of an evaluation, in the order of the paper."""

SUITES_OF_FILES = tuple(suite for suite in SUITES if suite != "temporal")
"""Suites that read nothing but files; `temporal` can make its DATESET."""

CHOSEN_ANEW = ("finetune", "approve", "evaluation_")
"""How the names of the choices begin that may differ if a release is finetuned and evaluated with again."""

LORA = "finetune_lora_"
"""How the names of the choices begin that decide nothing unless adapters are trained."""

WARMUP_SHARE = 0.1
"""Share of the steps of a training with a linearly rising learning rate (the paper's)."""

TOOL_PROPOSES = "tool"
"""The proposer of a run whose tools propose their calls themselves."""
TOOL_AND_MODEL_PROPOSE = "tool+model"
"""The proposer of a run for which calls are sampled, too."""
TOOL_OR_MODEL_PROPOSES = "tool-or-model"
"""The proposer of a run whose tools propose their calls themselves, if they can; those of the others are
sampled."""
TOOL_PROPOSERS = (TOOL_PROPOSES, TOOL_OR_MODEL_PROPOSES, TOOL_AND_MODEL_PROPOSE)
"""The proposers with which tools that can propose do."""

Part = TypeVar("Part", bound="Choices")

Threshold = Annotated[float, Field(ge=0.0, le=20.0)]

THRESHOLD_OF = "keep_threshold_"
"""Before a tool's name: the name under which the trigger form asks for its keep threshold."""

Approve = Literal["none", "before_finetuning", "before_publishing"]

# Three choices belong to two sets each.
Seed = Annotated[
    int,
    Field(
        ge=0, le=2**31 - 1, title="Seed", description="Another seed samples other calls from the same texts."
    ),
]
PruneBelow = Annotated[
    float,
    Field(
        ge=0.0,
        le=20.0,
        title="Prune below",
        description="Calls that provably gain less are not computed; 0: off.",
    ),
]
KeepRuleChoice = Annotated[
    KeepRule,
    Field(
        title="Keep rule",
        description="paper: by the loss; probability: against a placebo.",
    ),
]


def values_in(text: str) -> dict[str, Any]:
    """The values in a JSON object, as the option `--parameters` takes it.

    Null is the default, and so is left out.

    Raises:
        UsageError: it is no JSON object.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--parameters: expected a JSON object, found {text[:80]!r} ({error}).") from error
    if not isinstance(values, dict):
        raise UsageError(f"--parameters: expected a JSON object, found {type(values).__name__}.")
    return {name: value for name, value in values.items() if value is not None}


def typed_values(text: str) -> dict[str, Any]:
    """`values_in` of what a person types for a command that does on one machine what a run does, over its preset.

    Raises:
        UsageError: it is no JSON object.
    """
    return {"preset": ON_ONE_MACHINE, **values_in(text)}


def registered_name(tool: str) -> str:
    """A tool's name as the registry spells it, found in any capitals.

    A name that no tool has is returned unchanged.
    """
    return next((name for name in tool_names() if name.lower() == tool.lower()), tool)


ToolName = Annotated[str, AfterValidator(registered_name)]


def call_budget(tool: str, prompt: str) -> int:
    """Tokens that a sampled call may have, from the calls that the tool's prompt shows: the bytes of the longest, 32 to 256.

    A token of a byte-level vocabulary holds a byte or more. So every call as long as those of the prompt ends
    within the budget, whatever the vocabulary; of English prose, with some four bytes a token, one four times
    as long.
    """
    shown = re.findall(rf"\[({re.escape(tool)}\([^\[\]]*\])", prompt)
    return min(max(32, *(len(call.encode()) for call in shown), 0), 256)


class Choices(BaseModel):
    """A set of choices: unknown names are refused, and nothing changes it.

    A field's docstring is its description.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    once_chosen: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """What a run could once choose: recipes still hold the one value that is left, and so their ids."""

    def part(self, kind: type[Part]) -> Part:
        """The choices of one set."""
        return kind(**{name: getattr(self, name) for name in kind.model_fields})

    def deciding(self) -> dict[str, Any]:
        """What a recipe or a release's id hashes: all fields, as JSON values, but those of `DECIDE_NOTHING` and `UNSAID`."""
        values = {**self.once_chosen, **self.model_dump(mode="json", exclude=set(DECIDE_NOTHING))}
        return {name: value for name, value in values.items() if value not in UNSAID.get(name, ())}


class SubjectChoices(Choices):
    """What is annotated, with which tools, by which language model."""

    corpus: str = Field(min_length=1, max_length=2000, title="Corpus")
    """JSON Lines (also .gz, .zst) or Parquet: a path or an s3:// address of a file or a folder."""
    fields: tuple[str, ...] = Field(default=(), title="Fields")
    """Names of fields, one a line: text=raw_content; or ccnet; near_duplicates=0.8 drops repeats."""
    preset: Preset = Field(default="paper", title="Preset")
    """What empty fields hold: the paper's numbers, a small model's, or those to look or preview."""
    document_limit: int | None = Field(
        default=None, ge=1, le=100_000_000, title="Document limit", json_schema_extra={"usual": "all"}
    )
    """Annotates only the first documents of the corpus."""
    until_kept: int | None = Field(
        default=None, ge=1, le=100_000_000, title="Until kept", json_schema_extra={"usual": "all texts"}
    )
    """Ends a tool's work when so many of its calls are kept."""
    tools: tuple[ToolName, ...] = Field(
        default=DEFAULT_TOOLS, min_length=1, title="Tools", json_schema_extra={"choices": list(DEFAULT_TOOLS)}
    )
    """Tools whose calls are sampled; one that fails does not stop the others."""
    keep_thresholds: dict[ToolName, Threshold] = Field(default_factory=dict, title="Keep thresholds (tau_f)")
    """Nats from which a call is kept, by tool: {"Calculator": 0.5}. Others have the usual ones of the keep
    rule."""
    model: str = Field(min_length=1, max_length=1000, title="Language model")
    """A folder with safetensors, s3://bucket/models/NAME, or a hub id with its commit, id@revision."""
    proposer: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        title="Proposer",
        json_schema_extra={"usual": "the language model"},
    )
    """tool; tool-or-model, if some cannot; tool+model: both; endpoint:NAME."""

    @field_validator("fields", mode="before")
    @classmethod
    def _one_field_is_a_list(cls, items: object) -> object:
        return (items,) if isinstance(items, str) else items

    @field_validator("fields")
    @classmethod
    def _fields_are_a_mapping(cls, items: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return CorpusAddress.of("", items).items
        except UsageError as error:
            raise ValueError(str(error)) from error

    @field_validator("proposer")
    @classmethod
    def _is_a_proposer(cls, proposer: str | None) -> str | None:
        if proposer in (None, "model"):
            return None
        if proposer not in TOOL_PROPOSERS and not proposer.startswith(ENDPOINT):
            raise ValueError(
                f"expected model, {', '.join(TOOL_PROPOSERS)} or {ENDPOINT}NAME, found {proposer!r}"
            )
        return proposer

    @property
    def endpoint(self) -> str | None:
        """The server that proposes calls, as the run names it; None if none does."""
        return None if self.tool_proposes else self.proposer

    @property
    def tool_proposes(self) -> bool:
        """Whether the tools propose calls themselves, if they can."""
        return self.proposer in TOOL_PROPOSERS

    @property
    def tool_proposes_alone(self) -> bool:
        """Whether no model is asked for the calls of a tool that can propose."""
        return self.proposer in (TOOL_PROPOSES, TOOL_OR_MODEL_PROPOSES)

    @property
    def model_proposes(self) -> bool:
        """Whether a model is asked for places and calls, of some tool at least."""
        return self.proposer != TOOL_PROPOSES

    @property
    def corpus_address(self) -> str:
        """The address of the corpus with the names of its fields, as `CorpusAddress` writes it."""
        return str(CorpusAddress.of(self.corpus, self.fields))

    @field_validator("tools")
    @classmethod
    def _each_tool_once(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tools)) != len(tools):
            raise ValueError(f"each tool once, found {', '.join(tools)}")
        return tools


class FilterChoices(Choices):
    """Which texts are annotated, and how much of one the model reads at once when it proposes calls."""

    once_chosen = MappingProxyType({"long_texts": "pieces"})

    max_text_tokens: int = Field(default=1024, ge=0, le=1_000_000, title="Longest text")
    """About how many tokens the model reads at once to propose calls; a longer text goes piece by piece; 0:
    no limit."""
    filter_rule: FilterRule = Field(default="paper", title="Filter rule")
    """sharp: fewer texts for Calculator, WikiSearch, QA (docs/method.md)."""

    def filter_for(self, spec: ToolSpec) -> "FilterChoices":
        """The choices that decide for one tool: without the rule if it has but one."""
        return self if spec.has_sharp_filter else self.model_copy(update={"filter_rule": "paper"})

    def deciding(self) -> dict[str, Any]:
        """What a recipe hashes: nothing at the defaults."""
        return {} if self == FilterChoices() else super().deciding()


class SamplingChoices(Choices):
    """How positions are found and calls are sampled. A number that is None is the tool's (`for_tool`)."""

    call_prefix: Literal["free", "tool_name"] = Field(default="free", title="Call prefix")
    """free: the model writes the whole call (the paper); tool_name: the tool's name is given."""
    max_positions: int | None = Field(
        default=None,
        ge=1,
        le=200,
        title="Positions a text (k)",
        json_schema_extra={"usual": "5, Calculator and MT 20"},
    )
    """Most call positions a text."""
    samples_per_position: int | None = Field(
        default=None,
        ge=1,
        le=100,
        title="Calls a position (m)",
        json_schema_extra={"usual": "5, Calculator and MT 10"},
    )
    """Calls sampled at each position."""
    sampling_threshold: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        title="Sampling threshold (tau_s)",
        json_schema_extra={"usual": "0.05, Calculator and MT 0"},
    )
    """Positions are where p(" [") is above this."""
    max_call_tokens: int | None = Field(
        default=None,
        ge=4,
        le=256,
        title="Call length",
        json_schema_extra={"usual": "32 to 256, as the calls of the tool's prompt need"},
    )
    """Most tokens of a sampled call; a longer one is dropped and counted."""
    temperature: float = Field(default=1.0, gt=0.0, le=2.0, title="Temperature")
    """Temperature of sampling."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, title="Top p")
    """Samples only from the most likely tokens that together have this probability; 1: from all."""
    sample_until: Literal["bracket", "arrow"] | None = Field(
        default=None,
        title="Samples end at",
        json_schema_extra={"usual": "arrow for a model that was finetuned with finetune_results mask"},
    )
    """bracket: the end of the call (the paper); arrow: before the result that a finetuned model would
    write."""
    seed: Seed = 0
    keep_rule: KeepRuleChoice = "paper"
    prune_below: PruneBelow = 0.5
    chains: bool = Field(default=False, title="Chains")
    """The corpus is a release (s3:// address): samples calls whose input holds the result of a call in its
    texts."""

    def for_tool(self, spec: ToolSpec, prompt: str) -> "ToolSamplingChoices":
        """The sampling choices with the tool's number, or that of its prompt, wherever none was chosen."""
        chosen = self.part(SamplingChoices).model_dump()
        if chosen["max_call_tokens"] is None:
            chosen["max_call_tokens"] = call_budget(spec.name, prompt)
        chosen["sample_until"] = chosen["sample_until"] or "bracket"
        for name, value in chosen.items():
            if value is None:
                chosen[name] = getattr(spec, name)
        return ToolSamplingChoices(**chosen)


class ToolSamplingChoices(SamplingChoices):
    """Sampling choices for one tool, with every number. What is sampled by, hashed and estimated with."""

    max_positions: int
    samples_per_position: int
    sampling_threshold: float
    max_call_tokens: int


class ScoringChoices(Choices):
    """How calls are scored."""

    keep_rule: KeepRuleChoice = "paper"
    prune_below: PruneBelow = 0.5
    scoring_context_tokens: int | None = Field(
        default=None, ge=0, le=4096, title="Scoring context", json_schema_extra={"usual": "all"}
    )
    """Tokens of text before a position that its call is scored with, 0 for all whatever the preset says; the
    loss without a call is then also that of the whole text, so that no call wins by what it does not see."""
    verify_in_float32: VerifyInFloat32 = Field(
        default="auto",
        title="Verify in float32",
        description="Computes losses in bfloat16 again in float32 if rounding may bring them over a threshold. auto: if the GPU "
        "has room; keep: auto, near the keep threshold alone; on: always; all: of each call that may be "
        "kept; off: never.",
    )

    @field_validator("scoring_context_tokens")
    @classmethod
    def _zero_is_all(cls, tokens: int | None) -> int | None:
        return tokens or None


class PlaceboChoices(Choices):
    """How many results of other calls are scored in a call's place (docs/placebo.md)."""

    placebos: int = Field(default=3, ge=0, le=20, title="Placebos a call (K)")
    """Results of other calls scored in the place of each call that reaches prune_below; 0: none."""
    placebo_sample: int = Field(default=2000, ge=0, le=10_000_000, title="Placebo sample")
    """Calls a tool that the false-discovery rate is estimated from, about; 0: no rate."""

    @property
    def wants_placebos(self) -> bool:
        """Whether any placebos are asked for."""
        return self.placebos > 0 or self.placebo_sample > 0


class QualityChoices(Choices):
    """Bounds on what a tool keeps, for its check."""

    min_kept_texts: int = Field(default=0, ge=0, title="Fewest kept texts a tool")
    """The check of a tool fails if fewer texts than this have a kept call."""
    max_false_discovery_rate: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        title="Largest false-discovery rate",
        json_schema_extra={"usual": "it warns above 0.2"},
    )
    """The check of a tool fails if a larger share of its kept calls is kept by chance."""


class ReleaseChoices(Choices):
    """How kept calls become a release."""

    max_examples_per_tool: int = Field(default=25_000, ge=1, le=10_000_000, title="Examples a tool")
    """Most texts a tool in the release."""
    decontaminate: Literal["off", "report", "leave_out"] = Field(
        default="off",
        title="Texts that hold evaluation data",
        description="Compares the texts with the evaluation data by word n-grams (docs/releases.md). report: names those that hold "
        "some; leave_out: the release does without them.",
    )
    require_following: bool = Field(default=False, title="Only results that follow")
    """The release does without calls whose result is a number or name that the text does not continue with
    (docs/releases.md)."""


class FinetuningChoices(Choices):
    """How a model is finetuned on a release (sections 2 and 4.1, appendix B)."""

    once_chosen = MappingProxyType({"finetune_warmup": WARMUP_SHARE, f"{LORA}targets": []})

    seed: Seed = 0
    finetune: bool = Field(default=True, title="Finetune")
    """Finetunes the language model on the release and publishes it."""
    finetune_steps: int = Field(default=2000, ge=1, le=1_000_000, title="Steps")
    """Most optimiser steps."""
    finetune_batch: int = Field(default=128, ge=1, le=4096, title="Effective batch")
    """Texts an optimiser step."""
    finetune_device_batch: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        title="Device batch",
        json_schema_extra={"usual": "16,384 tokens on a GPU, fewer where memory is short"},
    )
    """Texts in one forward pass; gradients are accumulated up to the effective batch. Empty: passes are
    counted in tokens."""
    finetune_length: int = Field(default=1024, ge=16, le=131_072, title="Sequence length")
    """Tokens that a training text is cut into."""
    finetune_learning_rate: float = Field(default=1e-5, gt=0.0, le=1.0, title="Learning rate")
    """Peak learning rate."""
    finetune_results: Literal["train", "mask"] = Field(default="train", title="Results in the loss")
    """train: the model learns to write results, too (the paper); mask: the loss leaves out what tools
    wrote."""
    finetune_method: Literal["full", "lora"] = Field(default="full", title="What is trained")
    """full: all weights (the paper); lora: low-rank adapters beside them, merged at the end, for a model
    whose full training does not fit (docs/training.md). It takes a learning rate some ten times as high."""
    finetune_lora_rank: int = Field(default=16, ge=1, le=4096, title="LoRA rank")
    """Rank of the adapter of each linear layer of the decoder, which adds twice its product; with lora."""
    finetune_optimizer: Literal["adamw", "adamw_8bit"] = Field(default="adamw", title="Optimiser")
    """adamw_8bit: Adam's moments in 8 bits, which saves 6 of 16 bytes a weight; needs bitsandbytes."""
    finetune_dev_documents: int = Field(default=1000, ge=0, le=1_000_000, title="Development documents")
    """Documents outside the release whose perplexity chooses the checkpoint."""
    finetune_eval_steps: int = Field(default=500, ge=1, le=1_000_000, title="Steps between evaluations")
    """Optimiser steps between two development perplexities."""
    finetune_checkpoint_steps: int = Field(default=100, ge=1, le=1_000_000, title="Steps between checkpoints")
    """Optimiser steps that a killed training loses at most; a checkpoint is three times the size of what is
    trained."""
    finetune_baseline: bool = Field(default=False, title="Finetune the baseline")
    """Finetunes on the same texts without calls, too: the paper's second baseline."""
    approve: Approve = Field(default="none", title="Approve")
    """Waits for a person's yes before it finetunes, or before it publishes the model."""

    @property
    def lora_alpha(self) -> int:
        """An adapter adds alpha / rank times its product."""
        return 2 * self.finetune_lora_rank

    def deciding(self) -> dict[str, Any]:
        """What a recipe hashes: of adapters nothing if all weights are trained."""
        values = super().deciding()
        if self.finetune_method == "full":
            return {name: value for name, value in values.items() if not name.startswith(LORA)}
        return {**values, f"{LORA}alpha": self.lora_alpha}


class EvaluationChoices(Choices):
    """What models are evaluated on."""

    evaluation_suites: tuple[Suite, ...] = Field(
        default=(), title="Suites", json_schema_extra={"choices": list(SUITES)}
    )
    """What the models are evaluated on, beside the language model itself (docs/evaluation.md)."""
    evaluation_data: str = Field(default="", max_length=2000, title="Evaluation data")
    """A folder or s3:// address with one folder a data set, its files as they are published."""
    evaluation_inputs: int | None = Field(
        default=None, ge=1, le=10_000_000, title="Inputs a data set", json_schema_extra={"usual": "all"}
    )
    """Inputs asked of each data set, sampled over its parts."""

    @model_validator(mode="after")
    def _suites_have_data(self) -> Self:
        lacking = [suite for suite in self.evaluation_suites if suite in SUITES_OF_FILES]
        if lacking and not self.evaluation_data.strip():
            raise ValueError(
                f"evaluation_data must name the folder of the data sets that {', '.join(lacking)} read"
            )
        return self


class RunChoices(
    # Pydantic orders the fields from the last base to the first: this is the order of the table of
    # parameters, read from below.
    EvaluationChoices,
    FinetuningChoices,
    ReleaseChoices,
    QualityChoices,
    PlaceboChoices,
    ScoringChoices,
    SamplingChoices,
    FilterChoices,
    SubjectChoices,
):
    """All choices of one annotation run."""

    @model_validator(mode="before")
    @classmethod
    def _as_sent(cls, values: Any) -> Any:
        """What was sent, with a keep threshold a tool taken into `keep_thresholds`, and what is empty filled in by the preset."""
        if not isinstance(values, Mapping):
            return values
        sent = {name: value for name, value in values.items() if value is not None}
        # 1. One field a tool.
        thresholds = sent.get("keep_thresholds", {})
        by_tool = {}
        for name in list(sent):
            if name.startswith(THRESHOLD_OF):
                by_tool[registered_name(name.removeprefix(THRESHOLD_OF))] = sent.pop(name)
        if by_tool and isinstance(thresholds, Mapping):
            if twice := sorted(set(by_tool) & set(map(registered_name, thresholds))):
                raise ValueError(
                    f"keep_thresholds and {THRESHOLD_OF}{twice[0]} both give a threshold; leave one out"
                )
            sent["keep_thresholds"] = {**thresholds, **by_tool}
        # 2. The preset. `finetune` is a switch, which is never empty: a preset that turns it off wins.
        name = sent.get("preset", "paper")
        preset = dict(PRESETS.get(name, {})) if isinstance(name, str) else {}
        if sent.get("placebos") == 0:  # nothing that a call could be compared with
            preset.pop("keep_rule", None)
        switches = {switch: False for switch, value in preset.items() if value is False}
        if sent.get("keep_rule", preset.get("keep_rule")) != "probability":
            preset.pop("prune_below", None)
        chosen = {**preset, **sent, **switches}
        # 3. What the keep rule prunes below.
        if chosen.get("keep_rule") == "probability":
            chosen.setdefault("prune_below", PROBABILITY_PRUNE_BELOW)
        return chosen

    @model_validator(mode="after")
    def _chains_are_sampled(self) -> Self:
        if self.chains and self.tool_proposes:
            raise ValueError(
                "chains needs a model as proposer: tools propose no calls that use the results of others"
            )
        return self

    @model_validator(mode="after")
    def _probability_has_placebos(self) -> Self:
        if self.keep_rule == "probability" and not self.placebos:
            raise ValueError(
                "keep_rule probability needs placebos of at least 1: a kept call gains more than a placebo"
            )
        return self

    @model_validator(mode="after")
    def _thresholds_can_be_reached(self) -> Self:
        largest = max([self.prune_below, *self.keep_thresholds.values()])
        if self.keep_rule == "probability" and largest > MOST_GAIN:
            raise ValueError(
                f"keep_thresholds and prune_below must be at most {MOST_GAIN:.1f} with keep_rule probability: "
                f"no call gains {largest:g} nats"
            )
        return self

    def compared_with(self) -> str | None:
        """The address of the evaluation data that the release is compared with.

        It is None if it is compared with none.

        Raises:
            UsageError: it is to be compared, and the run names none.
        """
        if self.decontaminate == "off":
            return None
        if address := self.evaluation_data.strip():
            return address
        raise UsageError(
            "decontaminate: expected evaluation data to compare the release with, found none. Give the run "
            "evaluation_data, or choose off."
        )

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "RunChoices":
        """Validated choices.

        Raises:
            UsageError: names each wrong field, what was found, and what is allowed.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = []
            for item in error.errors():
                if item["loc"]:
                    field = ".".join(map(str, item["loc"]))
                    problem = expectation(item)
                    if item["type"] == "extra_forbidden" and (
                        similar := did_you_mean(field, cls.model_fields)
                    ):
                        problem += f", {similar}"
                    problems.append(f"{field}: {problem} (found {item['input']!r:.80})")
                else:  # of several fields, which it names
                    problems.append(expectation(item))
            raise UsageError(
                f"run parameters are not valid: {'; '.join(problems)}. See `toolformer-ops parameters`."
            ) from error

    @classmethod
    def of_run(cls, parameters: Mapping[str, Any], **changes: Any) -> "RunChoices":
        """The choices of a registered run, with changes; what only an earlier version let it choose is passed over."""
        registered = {name: value for name, value in parameters.items() if name in cls.model_fields}
        return cls.parse({**registered, **changes})

    @classmethod
    def parse_json(cls, text: str) -> "RunChoices":
        """Validated choices from a JSON object, as Airflow and the commands hand them over.

        Raises:
            UsageError: it is no JSON object, or a choice is unknown or out of its bounds.
        """
        return cls.parse(values_in(text))

    def kept_from(self) -> dict[str, float]:
        """By chosen tool, the gain in nats from which its calls are kept.

        Raises:
            ToolError: a tool is not registered.
            UsageError: a threshold is for a tool that was not chosen, or is below `prune_below`.
        """
        if unknown := sorted(set(self.keep_thresholds) - set(self.tools)):
            raise UsageError(
                f"keep_thresholds: expected chosen tools, found {', '.join(unknown)}. Choose the tool, or "
                "leave its threshold out."
            )
        return {tool: self.keep_threshold(get_tool(tool).spec) for tool in self.tools}

    def deciding_losses(self, spec: ToolSpec, dtype: str) -> dict[str, Any]:
        """What a scoring recipe hashes.

        A network in float32 has one format; else thresholds decide which losses are float32.
        """
        deciding = self.part(ScoringChoices).deciding()
        if dtype == "float32":
            del deciding["verify_in_float32"]
        elif self.verify_in_float32 in ("auto", "on"):
            deciding["float32_near"] = sorted({self.prune_below, self.keep_threshold(spec)})
        elif self.verify_in_float32 == "keep":
            deciding["float32_near"] = [self.keep_threshold(spec)]
        return deciding

    def usual_threshold(self, spec: ToolSpec) -> float:
        """The keep threshold of a tool for which the run has none: by the rule `probability` one for all."""
        return spec.keep_threshold if self.keep_rule == "paper" else PROBABILITY_THRESHOLD

    def keep_threshold(self, spec: ToolSpec) -> float:
        """The gain from which a tool's calls are kept: the run's number if it has one, else the usual one.

        Raises:
            UsageError: it is below `prune_below`, so that calls that it would keep are not computed.
        """
        threshold = self.keep_thresholds.get(spec.name, self.usual_threshold(spec))
        if threshold < self.prune_below:
            source = "the run's" if spec.name in self.keep_thresholds else "the usual one"
            raise UsageError(
                f"expected keep thresholds of at least prune_below, {self.prune_below:g} nats, found "
                f"{threshold:g} for {spec.name} ({source}): calls between the two would be missing. Set "
                f"prune_below to {threshold:g} or lower (0 computes every call), or raise the threshold."
            )
        return threshold


FINETUNING_FIELDS = tuple(
    name for name in RunChoices.model_fields if name.startswith(CHOSEN_ANEW) and name != "finetune"
)
"""The choices of a run on a release that exists; such a run always finetunes."""

UNSAID: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "keep_rule": ("paper",),
        "filter_rule": ("paper",),
        "sample_until": (None, "bracket"),
        "chains": (False,),
        "decontaminate": ("off",),
        "require_following": (False,),
        "finetune_method": ("full",),
        "finetune_optimizer": ("adamw",),
    }
)
"""For fields that were not always there, the values that a recipe does not hold, so that it is what it was
before."""

DECIDE_NOTHING: Mapping[str, str] = MappingProxyType(
    {
        "corpus": "says which documents; each document's rows depend on its text alone",
        "fields": "says how records are read, and so which corpus; each document's rows depend on its text alone",
        "preset": "names what empty fields hold; the fields themselves decide",
        "document_limit": "says how many documents; each document's rows depend on its text alone",
        "until_kept": "says how many documents; each document's rows depend on its text alone",
        "tools": "says which recipes a run has; each recipe is one tool's, and the key of each score holds the run",
        "model": "an address; the recipes hold the identity of the weights and the tokenizer found there",
        "proposer": "a name; the recipes hold the identity of who proposes, unless it is the language model",
        "keep_thresholds": "asked of the stored losses; if they decide which losses are float32, `deciding_losses` adds them; a "
        "release's id holds the threshold of each of its tools",
        "max_false_discovery_rate": "fails a check; writes no rows of a stage",
        "min_kept_texts": "fails a check; writes no rows of a stage",
        "finetune": "says whether a model is trained, not how",
        "finetune_baseline": "says whether a second model is trained; its recipe says without_calls",
        "approve": "says whether a person is asked before the model is made or published; the model is the same",
        "finetune_device_batch": "splits a step into forward passes, which changes a model by rounding alone",
        "finetune_checkpoint_steps": "says how much work a killed training loses",
        "evaluation_suites": "says what is evaluated; the key of each score names its suite",
        "evaluation_data": "an address; the key of each score holds the hash of the files read there",
        "evaluation_inputs": "the key of each score holds the number of its inputs",
    }
)
"""Fields that are in no recipe, each with the reason. All others are, by being a field
(`tests/unit/runs/test_recipes.py`)."""
