#!/usr/bin/env python3
"""Writes tests/clients/lm_eval.json: lm-eval's scores of SmolLM2 by its own model `hf`, with transformers on the CPU in 32 bits.

Needs lm-eval, torch, transformers, accelerate and gguf:

    scripts/reference/lm_eval_scores.py target/models/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import pathlib
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/clients"))

import lm_eval_scores  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

model = pathlib.Path(sys.argv[1]).resolve()
with tempfile.TemporaryDirectory() as folder:
    folder = lm_eval_scores.write_tokenizer(model, pathlib.Path(folder) / "smol")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
    # A model of a GGUF file cannot be saved; one with the same weights can.
    del loaded.config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    arguments = f"pretrained={folder},dtype=float32,max_length=2048"
    found = lm_eval_scores.scores(sys.executable, "hf", arguments, CUDA_VISIBLE_DEVICES="")
versions = {package.__name__: package.__version__ for package in (torch, transformers)}
lm_eval_scores.REFERENCE.write_text(json.dumps({"versions": versions, "scores": found}, indent=1) + "\n")
