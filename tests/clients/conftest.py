"""For tests with programs that others wrote: an annotated corpus in Postgres, and its release on S3 and in a folder."""

import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow.fs import S3FileSystem

from tests.annotated_runs import AnnotatedRun, release
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.release.format import DATA
from toolformer_ops.release.hub import Described, download
from toolformer_ops.stages.run_setup import finish_run
from toolformer_ops.storage.objects.publication import ObjectStore

TEXTS = (
    "We had 520 shirts and sold 187, so 333 are left.",
    "Of 1400 people, 400 passed the test, that is 29 %.",
)
CALLS = (("520 - 187", "333", " 333"), ("400 / 1400", "0.29", " 29"))


def installed_apart(folder: Path, lock: str) -> Path:
    """The folder of the programs of a lock file, installed by its hashes into an environment of their own."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "-r", str(REPOSITORY / "requirements" / lock)], check=True)
    return folder / "bin"


@dataclass(frozen=True)
class Released:
    """A finished run with a release of two texts, each with a call."""

    settings: Settings
    run_id: str
    release_id: str
    data: str
    """The s3:// address of the folder with the release's Parquet files, as `run --json` prints it."""
    folder: Path
    """A download of the release."""

    @property
    def s3(self) -> S3FileSystem:
        """The S3 as pyarrow takes it."""
        scheme, _, host = self.settings.s3_endpoint_url.partition("://")
        return S3FileSystem(
            access_key=self.settings.s3_access_key_id.get_secret_value(),
            secret_key=self.settings.s3_secret_access_key.get_secret_value(),
            endpoint_override=host,
            scheme=scheme,
            region=self.settings.s3_region,
        )

    @property
    def s3_options(self) -> dict[str, str]:
        """The S3 as polars takes it."""
        return {
            "aws_endpoint_url": self.settings.s3_endpoint_url,
            "aws_access_key_id": self.settings.s3_access_key_id.get_secret_value(),
            "aws_secret_access_key": self.settings.s3_secret_access_key.get_secret_value(),
            "aws_region": self.settings.s3_region,
            "aws_allow_http": "true",
        }


@pytest.fixture
def released(settings, tmp_path):
    run = AnnotatedRun(settings, {"Calculator": 0.5})
    for text, (call_input, result, before) in zip(TEXTS, CALLS, strict=True):
        run.add_call("Calculator", run.add_text(text), before, call_input, result, saves=1.5)
    run.complete("Calculator")
    release_id = release(settings, run.run_id)
    finish_run(settings, run.run_id, "success")
    manifest = download(settings, release_id, tmp_path / "release", Described())
    return Released(
        settings=settings,
        run_id=run.run_id,
        release_id=release_id,
        data=ObjectStore(settings).uri(f"{manifest.folder}/{DATA}/"),
        folder=tmp_path / "release",
    )
