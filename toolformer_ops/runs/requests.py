"""Whether a requested run can start: asked before it exists, when its form is received, and by its first task.

Reads no table and loads no model: it answers within a second. What only the run itself can find (a corpus
without a usable record, a model without weights) `stages/run_setup.py` finds.
"""

import concurrent.futures
import logging
from collections.abc import Collection, Mapping
from typing import Any

from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError, UsageError, did_you_mean
from toolformer_ops.language_model.endpoint.endpoint_file import read_endpoint
from toolformer_ops.runs.choices import FINETUNING_FIELDS, THRESHOLD_OF, RunChoices
from toolformer_ops.runs.recipes import require_proposing_tools
from toolformer_ops.storage.corpora.addresses import normal_uri
from toolformer_ops.storage.corpora.local_paths import described, local_path

logger = logging.getLogger(__name__)

FILES = ("s3://", "file://", "/", ".", "~")
"""How the address of a model begins that is no hub id; the hub is not asked here."""
SECONDS_FOR_A_LOOK = 5.0
"""How long a look at an address may take. A look that takes longer proves nothing: then the run starts, and
its first task says."""


def require_known_fields(sent: Collection[str], fields: Collection[str]) -> None:
    """Refuse names that no field has.

    Raises:
        UsageError: names each unknown field, and the field that may be meant.
    """
    problems = []
    for name in sorted(set(sent) - set(fields)):
        similar = did_you_mean(name, fields)
        problems.append(f"{name} ({similar})" if similar else name)
    if problems:
        raise UsageError(
            f"expected the fields of the form, found {', '.join(problems)}. `toolformer-ops parameters` "
            "prints them."
        )


def require_annotation(settings: Settings, sent: Mapping[str, Any]) -> RunChoices:
    """The choices of a run that annotates a corpus, if it can start.

    Raises:
        UsageError: a field is unknown or out of its bounds, suites or `decontaminate` have no data, a
        threshold is below `prune_below`, a tool is to propose calls and cannot, or nothing is at the address
        of the corpus, the model or the evaluation data.
        ConfigurationError: there is no such proposer behind an endpoint, or its file cannot be used.
        ToolError: a tool is not registered.
    """
    # A run that is cleared may give a threshold for a tool that is gone: `kept_from` says that it is.
    require_known_fields(
        [name for name in sent if not name.startswith(THRESHOLD_OF)], RunChoices.model_fields
    )
    choices = RunChoices.parse(sent)
    choices.kept_from()
    require_there(settings, choices.corpus, "corpus")
    if choices.model.startswith(FILES):
        require_there(settings, choices.model, "model")
    require_proposing_tools(choices)
    if choices.endpoint:
        read_endpoint(settings, choices.endpoint)
    if address := choices.compared_with():
        require_there(settings, address, "decontaminate")
    if choices.evaluation_suites and choices.evaluation_data:
        require_there(settings, choices.evaluation_data, "evaluation_data")
    return choices


def require_finetuning(settings: Settings, sent: Mapping[str, Any]) -> RunChoices:
    """The choices of a run that finetunes on a release, if they fit together.

    Corpus and model are the release's, and empty here.

    Raises:
        UsageError: as `require_annotation`.
    """
    require_known_fields(sent, ("release", *FINETUNING_FIELDS))
    chosen = {name: value for name, value in sent.items() if name != "release"}
    choices = RunChoices.parse({**chosen, "corpus": "-", "model": "-"})  # those of the release
    if choices.evaluation_suites and choices.evaluation_data:
        require_there(settings, choices.evaluation_data, "evaluation_data")
    return choices


def require_there(settings: Settings, address: str, name: str) -> None:
    """Refuse an address with nothing behind it, or that may not be read, as far as this process can see it.

    A path is looked for only if stages run on this machine: pods have other folders. `name` is the field's.

    Raises:
        CorpusError: it is no address of files.
        UsageError: there is nothing, or this deployment allows no reading there.
    """
    uri = normal_uri(address)
    if not uri.startswith("s3://") and settings.runner != "local":
        return
    path = None if uri.startswith("s3://") else local_path(settings, address, name)

    def look() -> bool:
        if path:
            return path.exists()
        from toolformer_ops.storage.objects.publication import ObjectStore

        return ObjectStore(settings).is_there(uri)

    looking = concurrent.futures.ThreadPoolExecutor(1)
    try:
        there = looking.submit(look).result(SECONDS_FOR_A_LOOK)
    except (TimeoutError, OSError, ToolformerError) as error:
        # The process that looks may lack what the stages have, such as keys.
        logger.info("%s: whether there is something at %s is not known: %s", name, address, error)
        return
    finally:
        looking.shutdown(wait=False)
    if not there:
        raise UsageError(
            f"{name}: expected files at {described(address)}, found nothing. Correct it, or put the files "
            "there."
        )
