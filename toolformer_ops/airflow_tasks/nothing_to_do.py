"""Stages that need no process and no pod if Postgres shows that they would find nothing to do.

`placebo`, whose work the task before it mostly does, `filter`, the first stage of a tool, and `check`, which
has none in a night with nothing new. Any other stage has work if its task starts: `tools_to_do` has the
scheduler skip the tools without. In a run with `until_kept` the first processes of a tool may have done all.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from airflow.sdk.exceptions import AirflowSkipException

from toolformer_ops.config import Settings

Question = Callable[[Settings, str, str, str], str | None]
"""Takes settings, a run's id, a tool and a shard. Returns why there is nothing to do, as a sentence for the
log; None if there is work."""


def why_no_placebos(settings: Settings, run_id: str, tool: str, shard: str) -> str | None:
    """Return why no placebo of the shard is left to score; None if one is."""
    from toolformer_ops.stages.placebo import why_nothing_to_do

    return why_nothing_to_do(settings, run_id, tool, shard)


def why_enough_kept(settings: Settings, run_id: str, tool: str, shard: str) -> str | None:
    """Return that a run with `until_kept` has enough kept calls of the tool; None if not."""
    from toolformer_ops.stages.annotating import why_nothing_to_do

    return why_nothing_to_do(settings, run_id, tool)


def why_no_filter(settings: Settings, run_id: str, tool: str, shard: str) -> str | None:
    """Skip a tool that was not chosen, and return why its texts are not filtered beforehand, if so.

    The task before has the scheduler skip it, unless it was no task then: a run that is cleared with the
    newest version of its DAG gets the tasks of all tools that came since.

    Raises:
        AirflowSkipException: the run did not choose this tool.
    """
    from toolformer_ops.runs.run_tools import require_run
    from toolformer_ops.storage.postgres import database

    run = require_run(database.connect(settings), run_id)
    if tool not in run.tools:
        raise AirflowSkipException(f"run {run_id} was started with {', '.join(run.tools)}, not with {tool}.")
    if until_kept := run.parameters.get("until_kept"):
        return f"texts are filtered as they are annotated, until {until_kept} calls are kept"
    return None


def why_no_checks(settings: Settings, run_id: str, tool: str, shard: str) -> str | None:
    """Return why no tool of the run is to be checked; None if one is."""
    from toolformer_ops.stages.planning import tools_to_do

    return None if tools_to_do(settings, run_id).tools else "earlier runs passed the checks of every tool"


QUESTIONS: Mapping[str, Question] = MappingProxyType(
    {
        "filter": why_no_filter,
        **dict.fromkeys(("annotate", "sample", "execute", "score"), why_enough_kept),
        "placebo": why_no_placebos,
        "check": why_no_checks,
    }
)
"""By stage."""
