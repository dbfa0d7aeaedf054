"""lm-eval, unchanged, gets the same scores from this server as from `transformers` with the same weights (EN-7).

scripts/reference/lm_eval_scores.py wrote the reference. Only MODEL_BOSS_TEST_CLIENTS=all runs this: lm-eval takes minutes to install.
"""

import json
import os

import lm_eval_scores
import log_probabilities
import pytest
from conftest import coordinator
from test_suite import PROGRAMS

ALL = os.environ.get("MODEL_BOSS_TEST_CLIENTS") == "all"


@pytest.fixture(scope="module")
def python():
    """Python with lm-eval: that of the suite's program."""
    (program,) = [program for program in PROGRAMS if program.name == "lm_eval"]
    return program.install()[0]


@pytest.fixture(scope="module")
def url(smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm_eval")
    (folder / "manifests").mkdir()
    # In 16 bits the arithmetic is that of the reference. In 4 bits single tokens differ by some tenths, though their mean does not.
    weights = log_probabilities.stored_as(smollm2, "F16", folder)
    manifest = f'name = "smol"\nsource = {{ path = "{weights}" }}\ncontext_length = 2048\n'
    (folder / "manifests/smol.toml").write_text(manifest)
    with coordinator(folder, "model-boss-worker") as url:
        yield url


# One prompt in a request, and several of different lengths.
@pytest.mark.parametrize("batch", [1, 4] if ALL else [])
def test_en_7_lm_eval_scores_as_with_transformers(batch, python, smollm2, url, tmp_path):
    tokenizer = lm_eval_scores.write_tokenizer(smollm2, tmp_path / "smol")
    arguments = f"model=smol,base_url={url}/completions,tokenizer={tokenizer},max_length=2048,num_concurrent=2"
    ours = lm_eval_scores.scores(python, "local-completions", arguments, batch)
    reference = json.loads(lm_eval_scores.REFERENCE.read_text())
    for name, theirs in reference["scores"].items():
        for sample, (said, expected) in enumerate(zip(ours[name], theirs, strict=True)):
            assert close(said, expected), (name, sample, said, expected)


def close(said, expected):
    """Whether two answers are the same, but for small differences of numbers."""
    if isinstance(expected, list):
        return len(said) == len(expected) and all(map(close, said, expected))
    try:
        # Numbers are kept as texts.
        return abs(float(said) - float(expected)) <= lm_eval_scores.TOLERANCE * max(1.0, abs(float(expected)))
    except (TypeError, ValueError):
        return said == expected
