"""Settings without the address of any service."""

import pytest

from toolformer_ops.config import Settings


@pytest.fixture
def settings_of_no_service() -> Settings:
    return Settings(_env_file=None)  # type: ignore[call-arg]
