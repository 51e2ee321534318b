"""Recipes: the hash of everything that decides what a stage writes (owns the table `recipes`).

Each stage's recipe includes the one before, so that a new search index asks for new execution and scoring but
not for new sampling, and annotating again under the same recipe finds nothing to do. A keep threshold is in
no recipe: it is a question to the stored losses, which `prune_below` bounds from below.

The choice `proposer` says who proposes a run's calls: the language model, a server, or the tools. With `tool`
each tool has to be able to propose. With `tool+model` or `tool-or-model` the calls of a tool that cannot are
sampled, so that its recipe is that of a run without the choice. With `tool-or-model` no model is asked for
the calls of the others.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.call_syntax import ARROW, CALL_END, CALL_START
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.language_model.endpoint.endpoint_file import read_endpoint
from toolformer_ops.language_model.losses import PROBABILITY_TOKENS, TOKEN_WEIGHTS
from toolformer_ops.runs.choices import (
    TOOL_OR_MODEL_PROPOSES,
    TOOL_PROPOSES,
    FilterChoices,
    PlaceboChoices,
    RunChoices,
)
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.tools.base import Tool, ToolSpec
from toolformer_ops.tools.registry import get_tool, tool_names
from toolformer_ops.tools.retrieval import own_text

RECIPE_ID_CHARACTERS = 16

PIECES_VERSION = 2
"""Raised when the code would decide otherwise which pieces of a long text are annotated."""
SAMPLING_VERSION = 8
"""Raised when the code that samples calls would give other rows for the same input, or when the recipe holds
other things.

Calls of an earlier version are not used again.
"""
PROPOSING_VERSION = 1
"""Raised when the code would place the calls that a tool proposes otherwise."""
RECORD_VERSION = 1
"""Raised when the code that samples would give other rows for a tool that reads url and date, and no other."""
EXECUTION_VERSION = 1
"""Raised when the code that asks the tool would ask it otherwise."""
SCORING_VERSION = 3
"""Raised when the code that scores calls would take another of the tool's results, or give other losses."""
PLACEBO_VERSION = 3
"""Raised when the code would draw other placebos from the same pool, or give other losses."""


def id_of_content(content: Mapping[str, Any]) -> str:
    """The id of a recipe, or of the model with this definition: 16 hex digits of the SHA-256 of the canonical JSON."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:RECIPE_ID_CHARACTERS]


@dataclass(frozen=True)
class Recipe:
    """What a stage does, in full, and the name that follows from it."""

    stage: str
    tool: str
    definition: Mapping[str, Any]
    parent_recipe_id: str | None = None

    @property
    def recipe_id(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON of all the fields."""
        content = {"stage": self.stage, "tool": self.tool, "parent": self.parent_recipe_id, **self.definition}
        return id_of_content(content)


def store_recipe(connection: Connection, recipe: Recipe) -> None:
    """Write a recipe into `recipes`, if it is not there. Its parent has to be there."""
    database.execute(connection, queries.runs.insert_recipe, recipe_id=recipe.recipe_id, **vars(recipe))


def placebo_recipe(
    scoring_recipe_id: str, tool: str, choices: PlaceboChoices, sample_share: float, pool_hash: str
) -> Recipe:
    """The recipe of a tool's placebos, whose pool of results is known once all of its calls are scored.

    `pool_hash` is that of the calls and results that are drawn from, in their order. The parent decides all
    else: text, losses, `prune_below`.
    """
    return Recipe(
        stage="placebo",
        tool=tool,
        definition={
            "placebo_version": PLACEBO_VERSION,
            **choices.deciding(),
            "sample_share": sample_share,
            "pool": pool_hash,
        },
        parent_recipe_id=scoring_recipe_id,
    )


def tool_recipes(
    spec: ToolSpec,
    prompt_text: str,
    tool_version: str,
    model_identity: str,
    dtype: str,
    choices: RunChoices,
    chained_release: str | None = None,
    proposer_identity: str | None = None,
) -> list[Recipe]:
    """The recipes of a tool in a run: of its four stages, each built on the one before.

    `tool_version` names everything that decides a tool's answer (its code, index, models); `model_identity`
    the language model's weights and tokenizer. `chained_release` is the release over whose texts a run with
    chains goes. `proposer_identity` names another model that samples, or the tool that proposes; the rows of
    sampling then name tokens of the language model, so that both decide them. Where the tool alone proposes,
    no number of sampling decides any.
    """
    model = {"model": model_identity, "dtype": dtype}
    # What the rule reads decides what is pruned; the rule itself is a field of the choices.
    read_by_rule = {} if choices.keep_rule == "paper" else {"probability_tokens": PROBABILITY_TOKENS}
    proposer: dict[str, Any] = {} if proposer_identity is None else {"proposer": proposer_identity}
    if choices.tool_proposes and proposer:
        proposer["proposing_version"] = PROPOSING_VERSION
    sampling: dict[str, Any] = {
        "sampling_version": SAMPLING_VERSION,
        **({"record_version": RECORD_VERSION} if spec.reads_record else {}),
        "prompt": prompt_text,
        "markers": [CALL_START, ARROW, CALL_END],
        **choices.for_tool(spec, prompt_text).deciding(),
        **read_by_rule,
        **model,
        **proposer,
    }
    if proposer and choices.tool_proposes_alone:
        sampling = {"markers": sampling["markers"], "model": model_identity, **proposer}
    # A text with calls is refused, but for a run with chains over the release that holds it.
    chained = {} if chained_release is None else {"chained_release": chained_release}
    definitions: dict[str, Mapping[str, Any]] = {
        "filter": {
            "filter_version": spec.filter_version,
            "pieces_version": PIECES_VERSION,
            **chained,
            **choices.part(FilterChoices).filter_for(spec).deciding(),
        },
        "sample": sampling,
        "execute": {"execution_version": EXECUTION_VERSION, "tool_version": tool_version},
        "score": {
            "scoring_version": SCORING_VERSION,
            "weights": list(TOKEN_WEIGHTS),
            "joined_by": "\n",
            **choices.deciding_losses(spec, dtype),
            **read_by_rule,
            "own_text_rule": own_text.RULE if spec.pass_over_own_text else None,
            **model,
        },
    }
    recipes: list[Recipe] = []
    for stage, definition in definitions.items():
        parent = recipes[-1].recipe_id if recipes else None
        recipes.append(Recipe(stage=stage, tool=spec.name, definition=definition, parent_recipe_id=parent))
    return recipes


def require_proposing_tools(choices: RunChoices) -> None:
    """Refuse a run whose tools are to propose all calls, if one of them cannot.

    Raises:
        UsageError: names the tools that cannot, and those that can.
    """
    if choices.model_proposes:
        return
    unable = [name for name in choices.tools if not get_tool(name).can_propose]
    if unable:
        able = [name for name in tool_names() if get_tool(name).can_propose]
        raise UsageError(
            f"proposer: expected tools that can propose calls ({', '.join(able)}), found "
            f"{', '.join(unable)}. Leave them out, or choose the proposer {TOOL_OR_MODEL_PROPOSES}, which "
            "samples their calls."
        )


def tool_proposes(choices: RunChoices, tool: Tool) -> bool:
    """Whether the tool itself proposes calls in a run with these choices."""
    return choices.tool_proposes and tool.can_propose


def model_proposes(choices: RunChoices, tool: Tool) -> bool:
    """Whether a model is asked for the places and calls of the tool in a run with these choices."""
    return not (choices.tool_proposes_alone and tool.can_propose)


def proposer_identity(settings: Settings, choices: RunChoices, tool: Tool) -> str | None:
    """The identity of who proposes a tool's calls, for recipes; None if the language model alone does.

    Raises:
        ConfigurationError: the file of an endpoint cannot be read.
        ToolError: what the tool makes its proposals from is not there.
    """
    if tool_proposes(choices, tool):
        proposer = TOOL_PROPOSES if choices.tool_proposes_alone else choices.proposer
        return f"{proposer}:{tool.proposer_version(settings)}"
    return None if choices.endpoint is None else read_endpoint(settings, choices.endpoint).identity
