"""Makes the golden cases of LoRA adapters: the answers of `peft` on the tiny models of families.py.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt peft
    VENV/bin/python scripts/reference/lora.py [CASE ...] [--adapters DIR]

Each case becomes worker/candle/tests/lora/CASE.json with these fields:

    base            the family's case that the adapter is for, FAMILY/CASE
    peft            the version that answered
    config          the content of adapter_config.json
    seed            the seed of the adapter's tensors, by the rule of families.py
    tensors         [name, shape, mean, scale] of every tensor of adapter_model.safetensors
    prompts, logits, greedy, margin, router_margin    as in families.py

The numbers of PEFT's own start would be zeros or another machine's; all tensors are made by the rule. The adapter is then read
from its folder by PeftModel.from_pretrained, as others read it. --adapters also keeps the folders.
"""

import argparse
import json
import logging
import re
import tempfile
from pathlib import Path

import families
import peft
import torch
import transformers
from family_cases import FAMILIES
from safetensors import safe_open
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "lora"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
DENSE = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


def lora(base, lengths=(1, 9, 24), **fields):
    return base, lengths, dict(r=4, lora_alpha=8, init_lora_weights=False) | fields


CASES = {
    "plain": lora("llama/dynamic", target_modules=["q_proj", "v_proj"]),
    "rslora": lora("llama/longrope", target_modules="all-linear", use_rslora=True, r=6, lora_alpha=3),
    "dora": lora("qwen3/window", target_modules="all-linear", use_dora=True),
    "dora-bias": lora("qwen2/window", target_modules=["q_proj", "k_proj", "up_proj"], use_dora=True, use_rslora=True),
    "fused": lora("phi3/partial", target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], r=5),
    "fused-dora": lora("phi3/longrope", target_modules=["qkv_proj", "gate_up_proj"], use_dora=True),
    "patterns": lora(
        "granite/plain",
        target_modules=DENSE,
        rank_pattern={"layers.1.self_attn.q_proj": 7, "down_proj": 2, r".*\.[ko]_proj": 3},
        alpha_pattern={r"^model\.layers\.0\.mlp\.(gate|up)_proj": 20, "v_proj": 1},
    ),
    "layers": lora("gemma3/text", target_modules=DENSE, layers_to_transform=[1], layers_pattern="layers"),
    "one-layer": lora("gemma2/softcaps", target_modules=DENSE, layers_to_transform=0),
    "embedding": lora("gemma3/text", target_modules=["embed_tokens", "q_proj"]),
    "embedding-dora": lora("gemma3/pattern", target_modules=["embed_tokens", "lm_head", "v_proj"], use_dora=True),
    "head": lora("qwen3/layer-types", target_modules=["lm_head", "o_proj"], exclude_modules=r".*layers\.0\..*"),
    "replaced-head": lora("qwen3/layer-types", target_modules=["v_proj"], modules_to_save=["lm_head", "embed_tokens"]),
    "own-biases": lora("qwen2/window", target_modules=ATTENTION, lora_bias=True),
    "regex": lora("mixtral/plain", target_modules=r".*\.self_attn\.(q|v|o)_proj"),
    "experts": lora("qwen3_moe/plain", target_modules=ATTENTION, use_rslora=True),
    "latent": lora(
        "deepseek_v3/plain",
        target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
    ),
    "factors": lora("falcon_h1/multipliers-biases", target_modules=[*ATTENTION, "in_proj", "gate_proj", "down_proj"]),
    "delta-net": lora("qwen3_next/shared", target_modules=[*ATTENTION, "in_proj_qkvz", "in_proj_ba", "out_proj"]),
    "streams": lora("gemma3n/text", target_modules=[*DENSE, "per_layer_input_gate", "per_layer_projection", "linear_left"]),
    "fused-gate": lora("glm4/plain", target_modules=["q_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "convolutions": lora("lfm2/plain", target_modules=["q_proj", "out_proj", "in_proj", "w1", "w2", "w3"]),
}


def entry_of(name, shape):
    """The rule for a tensor of an adapter."""
    if re.search(r"lora_magnitude_vector", name):
        return [name, shape, 1.3, 0.5]
    if name.endswith(".bias"):
        return [name, shape, 0, 0.3]
    if "lora_embedding_A" in name:
        return [name, shape, 0, 1]
    if "embed_tokens" in name and name.endswith("embed_tokens.weight"):
        return [name, shape, 0, 0.5]
    inputs = shape[-1]
    gain = 1 if re.search(r"lora_A|lora_embedding_B", name) else 0.5 if "lora_B" in name else 2
    return [name, shape, 0, float(f"{gain * (3 / inputs) ** 0.5:.4g}")]


def base_of(name, folder):
    """The model of a family's case, and its specification."""
    family, case = name.split("/")
    spec = FAMILIES[family][case]
    stored = json.loads((families.OUT / family / f"{case}.json").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(stored["config"]))
    tensors = {entry[0]: families.tensor_of(entry, stored["seed"]) for entry in stored["tensors"]}
    return families.load(folder, spec, tensors), spec


def make(name, scratch, keep):
    base, lengths, fields = CASES[name]
    model, spec = base_of(base, scratch / "base")
    folder = (keep or scratch) / name
    config = peft.LoraConfig(task_type="CAUSAL_LM", **fields)
    peft.get_peft_model(model, config).save_pretrained(folder)
    path = folder / "adapter_model.safetensors"
    with safe_open(path, "pt") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys() if not key.endswith(".base_layer.weight")}
    entries = [entry_of(key, shape) for key, shape in sorted(shapes.items())]
    for seed in range(1, families.SEEDS):
        save_file({entry[0]: families.tensor_of(entry, seed) for entry in entries}, path, metadata={"format": "pt"})
        fresh, _ = base_of(base, scratch / "base")
        adapted = peft.PeftModel.from_pretrained(fresh, folder).eval()
        answers = families.answers_of(adapted, seed, spec | dict(lengths=lengths))
        if answers is not None:
            break
    else:
        raise SystemExit(f"{name}: no seed without near ties")
    # The folder of the model was another machine's.
    written = json.loads((folder / "adapter_config.json").read_text()) | dict(base_model_name_or_path=base)
    for key in ("target_modules", "exclude_modules"):
        if isinstance(written.get(key), list):
            written[key] = sorted(written[key])
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    head = dict(base=base, peft=peft.__version__, config=written, seed=seed, tensors=entries)
    OUT.mkdir(parents=True, exist_ok=True)
    lines = [f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in (head | answers).items()]
    (OUT / f"{name}.json").write_text("{" + ",\n".join(lines) + "}\n")
    print(f"{name}: {base}, seed {seed}, margin {answers['margin']}, {len(entries)} tensors", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--adapters", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    families.LEAST_DIFFERENT_TOKENS = 4
    for name in arguments.names or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            make(name, Path(scratch), arguments.adapters)


if __name__ == "__main__":
    main()
