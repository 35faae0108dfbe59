"""What each dialect adds to a request."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.dialects.trunkline import Trunkline
from gateway.request import Intent, Kind

TOKENS = np.array([3, 1, 2], np.int32)


def test_own_replicas_get_the_tokens() -> None:
    assert Trunkline().members(Intent(Kind.COMPLETION, {"prompt": "a"}), TOKENS) == (b'"prompt_token_ids":[3,1,2]',)
    assert Trunkline().members(Intent(Kind.CHAT, {"messages": []}), TOKENS) == (b'"prompt_token_ids":[3,1,2]',)


@pytest.mark.parametrize("fields", [{"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"prompt": [1]}, {"prompt_token_ids": [1]}])
def test_tokens_of_several_prompts_are_not_sent_in_their_place(fields: dict[str, object]) -> None:
    """FC-24: a batch is routed on its common start and forwarded unchanged."""
    assert Trunkline().members(Intent(Kind.COMPLETION, fields), TOKENS) == ()


def test_no_tokens_add_nothing() -> None:
    assert Trunkline().members(Intent(Kind.COMPLETION, {"prompt": "a"}), None) == ()
