"""How a benchmark's command line runs: its log, and a known error as one sentence."""

import logging
import sys

import typer

from toolformer_ops.errors import ToolformerError, exit_code

logger = logging.getLogger("benchmarks")


def run_app(app: typer.Typer) -> None:
    """Run; a known error is one sentence and an exit status."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        app()
    except ToolformerError as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - the message is the remedy
        sys.exit(exit_code(error))
