"""Windows: every position has one owner, with text before it and the scored tokens after it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolformer_ops.language_model.tokenization import MIN_WINDOW, owner, plan_windows


@given(tokens=st.integers(1, 3000), size=st.integers(MIN_WINDOW, 600))
def test_each_position_has_one_owner_with_context_before_and_scored_tokens_after(tokens: int, size: int) -> None:
    windows = plan_windows(tokens, size)
    assert [window.owned_start for window in windows] == [0] + [window.owned_end for window in windows[:-1]]
    assert windows[-1].owned_end == tokens
    for window in windows:
        assert 0 <= window.start < window.end <= tokens
        assert window.end - window.start <= size
        for token in {window.owned_start, window.owned_end - 1}:
            assert token - window.start >= min(token, size // 2)
            assert window.end - token >= min(5, tokens - token)
            assert owner(windows, token) == window


def test_a_window_too_small_for_its_overlap_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 20 tokens, found 19"):
        plan_windows(100, 19)
