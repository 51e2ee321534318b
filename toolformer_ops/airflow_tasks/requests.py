"""Check, by DAG, whether a trigger form can become a run: in the run's first task, before its stage starts.

Airflow's form validates each field by itself and takes fields that it does not know; it has no place for what
two fields say together, or for an address with nothing behind it. And of a request that its API refuses, its
UI shows the person no reason. So such a run exists, is red within seconds, and its note says why
(`run_ends/run_outcome.py`).
"""

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from toolformer_ops.airflow_tasks.first_look import look_first
from toolformer_ops.airflow_tasks.run_ids import ANNOTATE, FINETUNE, NIGHTLY
from toolformer_ops.config import load_settings
from toolformer_ops.errors import UsageError
from toolformer_ops.runs.requests import (
    require_annotation,
    require_finetuning,
    require_known_fields,
    require_there,
)
from toolformer_ops.storage.corpora.addresses import CorpusAddress


def check_before_first_task(context: Context) -> None:
    """Check what the form holds, however the run was made, and look at what it names.

    Raises:
        AirflowFailException: the run cannot start, however often it is tried; the message says what was
        expected, what was found,
            and the remedy.
    """
    settings, dag_id, sent = load_settings(), context["dag"].dag_id, context["params"]
    try:
        if dag_id == ANNOTATE:
            look_first(context, settings, require_annotation(settings, sent))
        elif dag_id.startswith(NIGHTLY):
            require_annotation(settings, sent)
        elif dag_id == FINETUNE:
            require_finetuning(settings, sent)
        else:  # a form without choices, whose first field holds an address
            fields = list(context["dag"].params)
            require_known_fields(sent, fields)
            require_there(settings, str(sent[fields[0]]), fields[0])
            CorpusAddress.of("", sent.get("fields") or ())
    except UsageError as error:
        # Ends the group of log lines "Pre Execute": Airflow's UI folds groups, and cuts off the traceback's
        # long lines.
        context["task"].log.info("::endgroup::")
        context["task"].log.error("%s", error)
        raise AirflowFailException(str(error)) from None
