"""What can go wrong between the command line and Airflow."""

from toolformer_ops.errors import ToolformerError


class AirflowError(ToolformerError):
    """Airflow cannot be reached, or refuses a request."""


class RunFailedError(ToolformerError):
    """A DAG run did not end in success; the message names the task, its last words and where to look."""
