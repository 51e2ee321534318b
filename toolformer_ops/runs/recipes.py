"""Recipes: the hash of everything that decides what a stage writes (owns the table `recipes`).

Each stage's recipe includes the one before, so that a new search index asks for new execution and scoring but not for new
sampling, and annotating again under the same recipe finds nothing to do. A keep threshold is in no recipe: it is a question to
the stored losses, which `prune_below` bounds from below.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.call_syntax import ARROW, CALL_END, CALL_START
from toolformer_ops.language_model.losses import TOKEN_WEIGHTS
from toolformer_ops.runs.choices import FilterChoices, PlaceboChoices, RunChoices
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE
from toolformer_ops.storage import database, queries
from toolformer_ops.tools.base import ToolSpec
from toolformer_ops.tools.retrieval import own_text

RECIPE_ID_CHARACTERS = 16

SAMPLING_VERSION = 6
"""Raised when the code that samples calls would give other rows for the same input, or when the recipe holds other things.

Calls of an earlier version are not used again.
"""
EXECUTION_VERSION = 1
"""Raised when the code that asks the tool would ask it otherwise."""
SCORING_VERSION = 2
"""Raised when the code that scores calls would take another of the tool's results, or give other losses."""
PLACEBO_VERSION = 2
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


@dataclass(frozen=True)
class ToolRecipes:
    """The four recipes of one tool in one run, each built on the one before."""

    filter: Recipe
    sampling: Recipe
    execution: Recipe
    scoring: Recipe

    def in_order(self) -> tuple[Recipe, Recipe, Recipe, Recipe]:
        """Parents before children."""
        return self.filter, self.sampling, self.execution, self.scoring

    @property
    def ids(self) -> dict[str, str]:
        """By column of `run_tools`."""
        return {RECIPE_OF_STAGE[recipe.stage]: recipe.recipe_id for recipe in self.in_order()}


def store_recipe(connection: Connection, recipe: Recipe) -> bool:
    """Write a recipe into `recipes`; returns whether it is new. Its parent has to be there."""
    return bool(
        database.execute(
            connection,
            queries.runs.insert_recipe,
            recipe_id=recipe.recipe_id,
            stage=recipe.stage,
            tool=recipe.tool,
            parent_recipe_id=recipe.parent_recipe_id,
            definition=json.dumps(dict(recipe.definition)),
        )
    )


def placebo_recipe(
    scoring_recipe_id: str, tool: str, choices: PlaceboChoices, sample_share: float, pool_hash: str
) -> Recipe:
    """The recipe of a tool's placebos, whose pool of results is known once all of its calls are scored.

    `pool_hash` is that of the calls and results that are drawn from, in their order. The parent decides all else: text, losses,
    `prune_below`.
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
) -> ToolRecipes:
    """The recipes of a tool in a run.

    `tool_version` names everything that decides a tool's answer (its code, index, models); `model_identity` the language
    model's weights and tokenizer. `chained_release` is the release over whose texts a run with chains goes. `proposer_identity`
    names another model that samples; the rows of sampling then name tokens of the language model, so that both decide them.
    """
    model = {"model": model_identity, "dtype": dtype}
    # A text with calls is refused, but for a run with chains over the release that holds it.
    chained = {} if chained_release is None else {"chained_release": chained_release}
    filtering = Recipe(
        stage="filter",
        tool=spec.name,
        definition={"filter_version": spec.filter_version, **chained, **choices.part(FilterChoices).deciding()},
    )
    sampling = Recipe(
        stage="sample",
        tool=spec.name,
        definition={
            "sampling_version": SAMPLING_VERSION,
            "prompt": prompt_text,
            "markers": [CALL_START, ARROW, CALL_END],
            **choices.for_tool(spec, prompt_text).deciding(),
            **model,
            **({} if proposer_identity is None else {"proposer": proposer_identity}),
        },
        parent_recipe_id=filtering.recipe_id,
    )
    execution = Recipe(
        stage="execute",
        tool=spec.name,
        definition={"execution_version": EXECUTION_VERSION, "tool_version": tool_version},
        parent_recipe_id=sampling.recipe_id,
    )
    scoring = Recipe(
        stage="score",
        tool=spec.name,
        definition={
            "scoring_version": SCORING_VERSION,
            "weights": list(TOKEN_WEIGHTS),
            "joined_by": "\n",
            **choices.deciding_losses(spec, dtype),
            "own_text_rule": own_text.RULE if spec.pass_over_own_text else None,
            **model,
        },
        parent_recipe_id=execution.recipe_id,
    )
    return ToolRecipes(filter=filtering, sampling=sampling, execution=execution, scoring=scoring)
