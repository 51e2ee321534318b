"""What a user chooses for one annotation run: the one home of names, defaults, bounds and descriptions.

The trigger form of the DAG `annotate_corpus` is generated from this model, Airflow's API and `start-run` validate against it, and
`annotation_runs.parameters` stores it. A field that is None takes the tool's own value (`tools/base.py: ToolSpec`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from toolformer_ops.errors import ParameterError

TOOL_NAMES = ("Calculator", "Calendar", "WikiSearch", "QA", "MT")
"""The paper's five tools; a tool from a user's own package is accepted by its registered name."""

SUITES_OF_FILES = ("lama", "math", "qa", "mlqa", "perplexity")
"""Suites that read nothing but files; `temporal` can make its DATESET."""

Threshold = Annotated[float, Field(ge=0.0, le=20.0)]


class RunParameters(BaseModel):
    """Parameters of one annotation run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str = Field(
        min_length=1,
        max_length=2000,
        title="Corpus",
        description="JSON Lines, optionally .gz or .zst: a path, file:// or s3:// address of a file or a folder.",
        json_schema_extra={"section": "Corpus"},
    )
    document_limit: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        title="Document limit",
        description="Annotate only the first documents of the corpus; empty means all.",
        json_schema_extra={"section": "Corpus"},
    )
    tools: tuple[str, ...] = Field(
        default=TOOL_NAMES,
        min_length=1,
        title="Tools",
        description="Tools whose calls are sampled. A tool that fails does not stop the others.",
        json_schema_extra={"section": "Tools", "choices": list(TOOL_NAMES)},
    )
    keep_thresholds: dict[str, Threshold] = Field(
        default_factory=dict,
        title="Keep thresholds (tau_f)",
        description='Nats from which a call is kept, by tool, as {"Calculator": 0.5}; others keep their own. At least prune_below.',
        json_schema_extra={"section": "Tools"},
    )
    model: str = Field(
        min_length=1,
        max_length=1000,
        title="Language model",
        description="A folder with safetensors, or a hub id with its commit as id@revision.",
        json_schema_extra={"section": "Language model"},
    )
    call_prefix: Literal["free", "tool_name"] = Field(
        default="free",
        title="Call prefix",
        description="free: the model writes the whole call (the paper); tool_name: the tool's name is given, as small models need.",
        json_schema_extra={"section": "Sampling"},
    )
    max_positions: int | None = Field(
        default=None,
        ge=1,
        le=200,
        title="Positions a text (k)",
        description="Most call positions a text; empty means the tool's own (5; Calculator and MT 20).",
        json_schema_extra={"section": "Sampling"},
    )
    samples_per_position: int | None = Field(
        default=None,
        ge=1,
        le=100,
        title="Calls a position (m)",
        description="Calls sampled at each position; empty means the tool's own (5; Calculator and MT 10).",
        json_schema_extra={"section": "Sampling"},
    )
    sampling_threshold: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        title="Sampling threshold (tau_s)",
        description='A position is taken where p(" [") is above this; empty means the tool\'s own (0.05; Calculator and MT 0).',
        json_schema_extra={"section": "Sampling"},
    )
    max_call_tokens: int = Field(
        default=40,
        ge=4,
        le=256,
        title="Call length",
        description="Most tokens of a sampled call; a call that does not end by then is dropped and counted.",
        json_schema_extra={"section": "Sampling"},
    )
    temperature: float = Field(
        default=1.0,
        gt=0.0,
        le=2.0,
        title="Temperature",
        description="Temperature of sampling; 1 samples from the model's own distribution.",
        json_schema_extra={"section": "Sampling"},
    )
    top_p: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        title="Top p",
        description="Sample only from the most likely tokens that together have this probability; 1 means from all.",
        json_schema_extra={"section": "Sampling"},
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        title="Seed",
        description="Another seed samples other calls from the same texts.",
        json_schema_extra={"section": "Sampling"},
    )
    prune_below: float = Field(
        default=0.5,
        ge=0.0,
        le=20.0,
        title="Prune below",
        description="What provably saves less than so many nats is not computed; no keep threshold may be lower. 0 turns it off.",
        json_schema_extra={"section": "Scoring"},
    )
    scoring_context_tokens: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        title="Scoring context",
        description="Tokens of text before a position that its call is scored with; empty means all (the paper).",
        json_schema_extra={"section": "Scoring"},
    )
    min_kept_texts: int = Field(
        default=0,
        ge=0,
        title="Fewest kept texts a tool",
        description="The check of a tool fails where fewer texts than this have a kept call.",
        json_schema_extra={"section": "Quality"},
    )
    max_kept_share: float = Field(
        default=1.0,
        ge=0.0,
        le=1.0,
        title="Largest kept share",
        description="The check of a tool fails where a larger share of its scored calls is kept: results would be leaking.",
        json_schema_extra={"section": "Quality"},
    )
    max_examples_per_tool: int = Field(
        default=25_000,
        ge=1,
        le=10_000_000,
        title="Examples a tool",
        description="Most texts a tool in the release (appendix B: 25,000).",
        json_schema_extra={"section": "Release"},
    )
    finetune: bool = Field(
        default=True,
        title="Finetune",
        description="Finetune the language model on the release and publish it.",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_steps: int = Field(
        default=2000,
        ge=1,
        le=1_000_000,
        title="Steps",
        description="Most optimiser steps (appendix B: 2,000).",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_batch: int = Field(
        default=128,
        ge=1,
        le=4096,
        title="Effective batch",
        description="Texts an optimiser step (appendix B: 128).",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_device_batch: int = Field(
        default=4,
        ge=1,
        le=1024,
        title="Device batch",
        description="Texts in one forward pass; gradients are accumulated up to the effective batch.",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_length: int = Field(
        default=1024,
        ge=16,
        le=131_072,
        title="Sequence length",
        description="Tokens a training text is cut into (appendix B: 1,024).",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_learning_rate: float = Field(
        default=1e-5,
        gt=0.0,
        le=1.0,
        title="Learning rate",
        description="Peak learning rate (section 4.1: 1e-5).",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_warmup: float = Field(
        default=0.1,
        ge=0.0,
        le=1.0,
        title="Warm-up",
        description="Share of the steps with a linearly rising learning rate (section 4.1: 0.1).",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_dev_documents: int = Field(
        default=1000,
        ge=0,
        le=1_000_000,
        title="Development documents",
        description="Documents of the corpus outside the release, whose perplexity chooses the checkpoint (appendix B: 1,000).",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_eval_steps: int = Field(
        default=500,
        ge=1,
        le=1_000_000,
        title="Steps between evaluations",
        description="Optimiser steps between two development perplexities (appendix B: 500).",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_checkpoint_steps: int = Field(
        default=100,
        ge=1,
        le=1_000_000,
        title="Steps between checkpoints",
        description="Optimiser steps that a killed training loses at most; each checkpoint is three times the model's size.",
        json_schema_extra={"section": "Finetuning"},
    )
    finetune_baseline: bool = Field(
        default=False,
        title="Finetune the baseline",
        description="Also finetune on the same texts without calls: the paper's second baseline.",
        json_schema_extra={"section": "Finetuning"},
    )
    evaluation_suites: tuple[Literal["lama", "math", "qa", "mlqa", "temporal", "perplexity"], ...] = Field(
        default=(),
        title="Suites",
        description="What the models are evaluated on, and the language model beside them; see docs/evaluation.md.",
        json_schema_extra={
            "section": "Evaluation",
            "choices": ["lama", "math", "qa", "mlqa", "temporal", "perplexity"],
        },
    )
    evaluation_data: str = Field(
        default="",
        max_length=2000,
        title="Evaluation data",
        description="A folder or s3:// address that holds one folder a data set, with its files as they are published.",
        json_schema_extra={"section": "Evaluation"},
    )
    evaluation_inputs: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        title="Inputs a data set",
        description="Ask only the first inputs of each data set; empty means all.",
        json_schema_extra={"section": "Evaluation"},
    )

    @field_validator("tools")
    @classmethod
    def _each_tool_once(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tools)) != len(tools):
            raise ValueError(f"each tool once, found {', '.join(tools)}")
        return tools

    @model_validator(mode="after")
    def _suites_have_data(self) -> "RunParameters":
        lacking = [suite for suite in self.evaluation_suites if suite in SUITES_OF_FILES]
        if lacking and not self.evaluation_data.strip():
            raise ValueError(f"evaluation_data must name the folder of the data sets that {', '.join(lacking)} read")
        return self


def parse_run_parameters(values: dict[str, Any]) -> RunParameters:
    """Validated parameters.

    Raises:
        ParameterError: names each wrong field, what was found, and what is allowed.
    """
    try:
        return RunParameters.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'parameters'}: {item['msg']} (found {item['input']!r:.80})"
            for item in error.errors()
        )
        raise ParameterError(f"run parameters are not valid: {problems}. See `toolformer-ops parameters`.") from error
