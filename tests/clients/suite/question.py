"""The question that every program sends to the built-in model, and the coordinator's address."""

import os

ROOT = os.environ["MODEL_BOSS_ROOT"]
QUESTION = "Which port does model-boss listen on?"
ASKED = [{"role": "user", "content": QUESTION}]


def expect(answer):
    """Asserts that an answer of the built-in model is right."""
    assert "8210" in str(answer), answer
