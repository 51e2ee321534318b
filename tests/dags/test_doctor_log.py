"""`toolformer-ops doctor --kubernetes` writes its findings to stdout and Airflow's log lines to stderr."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, structlog, sys, typer

echo = typer.echo

def log_and_echo(*words, **options):
    logging.getLogger("kubernetes").warning("line of the standard library's logger")
    structlog.get_logger("airflow").warning("line of Airflow's logger")
    echo(*words, **options)

typer.echo = log_and_echo
sys.argv = ["toolformer-ops", "doctor", "--kubernetes", "--no-pods"]
from toolformer_ops.__main__ import main
main()
"""


def test_log_lines_are_on_stderr_and_findings_on_stdout_once_airflow_is_imported(tmp_path: Path) -> None:
    environment = os.environ | {"AIRFLOW_HOME": str(tmp_path), "TOOLFORMER_KUBERNETES_IMAGE": "registry/image:1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert "template cpu: " in done.stdout
    assert "line of" not in done.stdout
    assert "line of the standard library's logger" in done.stderr
    assert "line of Airflow's logger" in done.stderr
