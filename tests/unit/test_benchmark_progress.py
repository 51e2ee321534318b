"""A benchmark that was killed continues behind the last step that ended."""

import pytest

from benchmarks.progress import Progress, Size


@pytest.fixture
def killed(tmp_path):
    """The file of a benchmark that ended its first step and was killed in its second."""
    progress = Progress(tmp_path / "progress.json")

    def ingest() -> None:
        progress.figures["ingestion"] = 1.5
        progress.sizes["documents"] = Size(rows=7, bytes=8192)

    def check() -> None:
        progress.figures["check"] = 0.25
        raise KeyboardInterrupt

    progress.step("corpus", ingest)
    with pytest.raises(KeyboardInterrupt):
        progress.step("check", check)
    return progress.file


def test_a_step_that_ended_is_not_done_again(killed):
    """Its figure is in the file."""
    progress = Progress.read(killed)
    progress.step("corpus", lambda: pytest.fail("done again"))
    assert progress.figures == {"ingestion": 1.5}


def test_sizes_are_read_again(killed):
    """As records."""
    assert Progress.read(killed).sizes == {"documents": Size(rows=7, bytes=8192)}


def test_a_step_that_was_killed_is_named_as_repeated(killed):
    """What it had measured before is lost."""
    progress = Progress.read(killed)
    progress.step("check", lambda: None)
    assert Progress.read(killed).repeated == ["check"]


def test_a_benchmark_that_was_not_killed_repeats_nothing(tmp_path):
    """The other direction."""
    progress = Progress(tmp_path / "progress.json")
    progress.step("corpus", lambda: None)
    progress.step("check", lambda: None)
    assert Progress.read(progress.file).repeated == []
