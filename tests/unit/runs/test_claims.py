"""How a process puts off the end of its claims."""

import uuid
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from toolformer_ops.errors import DatabaseUnreachableError
from toolformer_ops.runs.claims import Claims
from toolformer_ops.storage.postgres import database


@pytest.mark.parametrize("error", [NoConnectionFreeError("all are in use"), DatabaseUnreachableError("away")])
def test_claims_are_put_off_again_after_a_time_that_failed(monkeypatch, error):
    execute = Mock(side_effect=[error, 1])
    monkeypatch.setattr(database, "execute", execute)
    is_over: Any = Mock()
    is_over.wait.side_effect = [False, False, True]
    claims = Claims(engine=Mock(), run=Mock(), stage="score", seconds=1.0, claimer_id=uuid.uuid4())
    claims._go_on(is_over)
    assert execute.call_count == 2
