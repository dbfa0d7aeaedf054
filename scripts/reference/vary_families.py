"""Varies the cases of families at random, to find configurations that our decoder reads otherwise than `transformers`.

    VENV/bin/python scripts/reference/vary_families.py FOLDER [FAMILY ...] --seed 1 --count 2

FOLDER gets tests/families with a case for each variation that `transformers` accepts, as families.py makes them, and
log.jsonl with what was changed in each. The tests of worker/candle then run on them:

    CARGO_MANIFEST_DIR=FOLDER MODEL_BOSS_FAMILY=gemma3/ target/debug/deps/families-*
"""

import argparse
import contextlib
import copy
import io
import json
import logging
import random
import tempfile
import warnings
from pathlib import Path

import families
import torch
import transformers

# Fields that are true or false, and fields with some of their values.
SWITCHES = """tie_word_embeddings attention_bias mlp_bias use_bias use_qk_norm norm_topk_prob attention_out_bias qkv_bias
    mamba_conv_bias mamba_proj_bias conv_bias""".split()
EPSILONS = "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon norm_eps".split()
WIDTHS = "intermediate_size moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size".split()
CHOICES = dict(
    num_experts=[2, 4, 6, 7],
    num_local_experts=[2, 4, 6],
    n_routed_experts=[4, 8],
    moe_num_experts=[2, 4, 6],
    num_experts_per_tok=[1, 2, 3],
    moe_k=[1, 2, 3],
    routed_scaling_factor=[1.0, 2.5, 0.5],
    n_shared_experts=[1, 2],
    first_k_dense_replace=[0, 1, 2],
    sliding_window=[3, 5, 16, 33],
    vocab_size=[70, 97, 131],
)
HEADS = [(6, 3), (4, 1), (8, 2), (3, 3), (6, 2), (4, 4), (2, 1), (10, 5)]
LISTS = "layer_types no_rope_layers mlp_layer_types layers_block_type".split()
ACTIVATIONS = ["gelu", "relu", "silu", "gelu_pytorch_tanh"]


class Variation:
    """A case whose fields change by chance; `changed` has the new ones."""

    def __init__(self, spec: dict, chance: random.Random):
        self.spec, self.chance, self.changed = copy.deepcopy(spec), chance, {}
        whole = self.spec["fields"]
        self.fields = whole.get("text_config", whole)
        with contextlib.suppress(Exception):
            self.defaults = transformers.AutoConfig.for_model(spec["model_type"]) if self.fields is whole else None
        self.heads()
        self.layers()
        self.values()
        self.rope()

    def set(self, key, value):
        self.fields[key] = self.changed[key] = value

    def has(self, key) -> bool:
        return key in self.fields or hasattr(getattr(self, "defaults", None), key)

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def heads(self):
        if not self.maybe(0.6):
            return
        (heads, keys), width = self.chance.choice(HEADS), self.chance.choice([4, 8, 10, 12, 16, 20])
        latent = "qk_nope_head_dim" in self.fields
        self.set("num_attention_heads", heads)
        self.set("num_key_value_heads", heads if latent else keys)
        if latent:
            for key, values in dict(qk_nope_head_dim=[8, 12, 16], qk_rope_head_dim=[4, 8], v_head_dim=[8, 12, 20]).items():
                self.set(key, self.chance.choice(values))
        elif self.has("head_dim"):
            self.set("head_dim", width)
            if self.maybe(0.5):
                self.set("hidden_size", self.chance.choice([24, 36, 40, 48, 64]))
        else:
            self.set("hidden_size", heads * width)

    def layers(self):
        if not self.maybe(0.5) or "num_kv_shared_layers" in self.fields:
            return
        count = self.chance.choice([1, 2, 3, 4, 5])
        for key in LISTS:
            if isinstance(self.fields.get(key), list):
                kinds = self.fields[key]
                self.set(key, [kinds[at % len(kinds)] for at in range(count)])
        self.set("num_hidden_layers", count)

    def values(self):
        for key in WIDTHS:
            if isinstance(self.fields.get(key), int) and self.maybe(0.5):
                self.set(key, self.chance.choice([20, 28, 44, 48]))
        for key in SWITCHES:
            if self.has(key) and self.maybe(0.35):
                self.set(key, not self.fields.get(key, getattr(getattr(self, "defaults", None), key, False)))
        for key in EPSILONS:
            if self.has(key) and self.maybe(0.3):
                self.set(key, self.chance.choice([1e-5, 1e-6, 1e-3]))
        for key, values in CHOICES.items():
            # Groups of experts divide their number.
            if self.fields.get(key) and self.maybe(0.5) and not (key.startswith("n_routed") and "n_group" in self.fields):
                self.set(key, self.chance.choice(values))
        if self.has("hidden_act") and self.maybe(0.15) and self.spec["model_type"] != "gpt_oss":
            self.set("hidden_act", self.chance.choice(ACTIVATIONS))

    def rope(self):
        before = self.fields.get("rope_parameters")
        own_spelling = any("rope" in key for key in [*self.spec["drop"], *self.spec["write"]])
        if own_spelling or not self.maybe(0.5) or (before and before.get("rope_type") != "default"):
            return
        kind = self.chance.choice(["linear", "dynamic", "yarn", "llama3", "default"])
        rope = dict(rope_type=kind, rope_theta=self.chance.choice([5_000.0, 10_000.0, 500_000.0]))
        if kind != "default":
            rope["factor"] = self.chance.choice([2.0, 4.0, 8.0])
        if kind in ("yarn", "llama3"):
            rope["original_max_position_embeddings"] = 32
        if kind == "yarn":
            rope |= self.chance.choice([{}, dict(beta_fast=16.0, beta_slow=2.0), dict(attention_factor=0.9), dict(truncate=False)])
        if kind == "llama3":
            rope |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
        if kind == "dynamic":
            self.set("max_position_embeddings", 48)
        kept = {key: value for key, value in (before or {}).items() if key == "partial_rotary_factor"}
        self.set("rope_parameters", rope | kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2, help="variations of each case")
    options = parser.parse_args()
    families.OUT, families.SEEDS = options.folder / "tests" / "families", 25
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    made = 0
    with open(options.folder / "log.jsonl", "a") as log:
        for family, cases in families.FAMILIES.items():
            for case, spec in cases.items():
                # A stored form of its own belongs to its shapes.
                if (options.families and family not in options.families) or spec["loaded"]:
                    continue
                for number in range(options.count):
                    variation = Variation(spec, random.Random(f"{options.seed}-{family}-{case}-{number}"))
                    name = f"{case}-v{options.seed}x{number}"
                    outcome = "ok"
                    try:
                        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                            families.make(family, name, variation.spec, Path(folder) / "model")
                        made += 1
                    except (Exception, SystemExit) as error:  # transformers refuses it, or no seed is without near ties.
                        outcome = repr(error)[:200]
                    log.write(json.dumps([family, name, outcome, variation.changed]) + "\n")
                    log.flush()
    print(f"{made} cases in {options.folder}")


if __name__ == "__main__":
    main()
