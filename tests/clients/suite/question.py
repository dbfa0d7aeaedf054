"""The question that every program asks the built-in model, and the coordinator that it asks."""

import os

ROOT = os.environ["MODEL_BOSS_ROOT"]
QUESTION = "Which port does model-boss listen on?"
ASKED = [{"role": "user", "content": QUESTION}]


def expect(answer):
    """The built-in model knows it."""
    assert "8210" in str(answer), answer
