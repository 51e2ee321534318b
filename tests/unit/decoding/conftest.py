"""A tiny model that writes calls, trained once."""

import pytest

from tests.system.writing_model import save_model_that_writes_calls


@pytest.fixture(scope="session")
def writing_model_dir(tmp_path_factory):
    """It writes calls of the Calculator and the Calendar."""
    return save_model_that_writes_calls(tmp_path_factory.mktemp("writing") / "model", results=True)
