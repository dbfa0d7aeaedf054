"""Makes the golden models of worker/candle: tiny, random, of the Llama family, with the answers of `transformers`.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt
    VENV/bin/python scripts/reference/make_golden.py [NAME ...]

Each case becomes worker/candle/tests/golden/NAME/ with config.json, the weights (whole or in shards) and expected.json:
prompts, the logits after each prompt (for one case after every token), and the greedy tokens that follow. Weights are drawn
from a seed. `transformers` writes all of expected.json, and no value is changed by hand. Stored f16 and bf16 weights are
converted to f32 before the model answers, because the decoder promises that arithmetic.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

GOLDEN = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "golden"
PROMPT_LENGTHS = (1, 7, 19, 40)
GREEDY_TOKENS = 16

SMALL = dict(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)


def case(config=LlamaConfig, dtype=torch.float16, write=None, drop=(), shards=None, all_positions=False, **fields):
    """The description of a case. `write` and `drop` change config.json after transformers wrote it, to test other spellings."""
    return dict(
        config=config,
        dtype=dtype,
        write=write or {},
        drop=drop,
        shards=shards,
        all_positions=all_positions,
        fields={**SMALL, **fields},
    )


def old_spelling(theta, scaling):
    """The rope fields of config.json as transformers 4 wrote them."""
    return dict(write=dict(rope_theta=theta, rope_scaling=scaling), drop=("rope_parameters",))


CASES = {
    "plain": case(dtype=torch.float32, all_positions=True),
    # Four heads of 12 over a stream of 32: the width of all heads is not the width of the stream.
    "gqa-head-dim": case(dtype=torch.float32, num_key_value_heads=2, head_dim=12),
    "mqa": case(num_key_value_heads=1),
    "f16": case(num_key_value_heads=2),
    "bf16": case(dtype=torch.bfloat16, num_key_value_heads=2),
    "tied": case(dtype=torch.float32, tie_word_embeddings=True),
    "biases": case(dtype=torch.float32, attention_bias=True, mlp_bias=True, num_key_value_heads=2),
    "theta-old": case(**old_spelling(500_000.0, None)),
    "theta-new": case(rope_parameters=dict(rope_type="default", rope_theta=1_000.0)),
    "linear-old": case(**old_spelling(10_000.0, dict(type="linear", factor=4.0))),
    "linear-new": case(rope_parameters=dict(rope_type="linear", rope_theta=20_000.0, factor=2.5)),
    "llama3-old": case(dtype=torch.float32, num_key_value_heads=2, **old_spelling(500_000.0, LLAMA3)),
    "llama3-new": case(head_dim=16, rope_parameters=dict(rope_theta=10_000.0, **LLAMA3)),
    "yarn-old": case(head_dim=16, **old_spelling(10_000.0, YARN)),
    "dynamic-old": case(**old_spelling(10_000.0, dict(type="dynamic", factor=2.0))),
    "sharded": case(dtype=torch.bfloat16, shards=3, num_key_value_heads=2),
    "gelu-eps": case(hidden_act="gelu", rms_norm_eps=1e-5),
    # The file has only the required fields; the loader must use the defaults of the others.
    "bare-config": case(
        drop=(
            "attention_bias attention_dropout bos_token_id dtype eos_token_id head_dim hidden_act initializer_range "
            "mlp_bias num_key_value_heads pad_token_id pretraining_tp rms_norm_eps rope_parameters "
            "tie_word_embeddings transformers_version use_cache"
        ).split()
    ),
    "qwen2": case(config=Qwen2Config, dtype=torch.float32, num_key_value_heads=2, all_positions=True),
    # The small models of the family are stored in this form.
    "qwen2-tied-bf16": case(
        config=Qwen2Config,
        dtype=torch.bfloat16,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        # The window is in the file but not used, as in the family's files.
        write=dict(sliding_window=16),
    ),
    "qwen2-sharded-f16": case(config=Qwen2Config, shards=2, num_key_value_heads=2),
    "qwen3": case(config=Qwen3Config, dtype=torch.float32, num_key_value_heads=2, head_dim=12, all_positions=True),
    "qwen3-tied-bf16": case(
        config=Qwen3Config, dtype=torch.bfloat16, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True
    ),
    "qwen3-biases": case(
        config=Qwen3Config, dtype=torch.float32, num_key_value_heads=2, head_dim=8, attention_bias=True, shards=2
    ),
    "mistral": case(config=MistralConfig, num_key_value_heads=2, sliding_window=None),
}


def write_model(folder, spec, seed):
    """Writes random weights, larger than a new model's, so that attention is sharp and logits differ clearly."""
    config = spec["config"](**spec["fields"])
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[1] ** 0.5)
    model = model.to(spec["dtype"])
    model.save_pretrained(folder, max_shard_size="5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if spec["shards"]:
        split(folder, spec["shards"])

    path = folder / "config.json"
    written = json.loads(path.read_text())
    written.pop("transformers_version", None)
    for key in spec["drop"]:
        written.pop(key, None)
    written.update(spec["write"])
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")


def split(folder, count):
    """Splits the weight file into `count` shards and an index, as the hub stores large models."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    whole.unlink()
    names = sorted(tensors)
    weight_map = {}
    for number in range(count):
        shard = f"model-{number + 1:05}-of-{count:05}.safetensors"
        part = {name: tensors[name] for name in names[number::count]}
        save_file(part, folder / shard, metadata={"format": "pt"})
        weight_map.update({name: shard for name in part})
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = dict(metadata=dict(total_size=size), weight_map=dict(sorted(weight_map.items())))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def expect(folder, spec, seed):
    """The answers of transformers for the model in the folder."""
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager")
    return expect_of(model.eval(), seed, spec["all_positions"], 2e-3)


def expect_of(model, seed, all_positions, least_margin):
    """The answers of a model; none where its best tokens are nearer to each other than the margin."""
    generator = torch.Generator().manual_seed(seed)
    cases = []
    for length in PROMPT_LENGTHS:
        prompt = torch.randint(3, model.config.vocab_size, (1, length), generator=generator)
        with torch.no_grad():
            logits = model(prompt, use_cache=False).logits[0]
            answer = dict(prompt=prompt[0].tolist(), last_logits=rounded(logits[-1]))
            if all_positions and length <= 7:
                answer["all_logits"] = [rounded(row) for row in logits]
            tokens, margins = prompt, []
            for _ in range(GREEDY_TOKENS):
                best = model(tokens, use_cache=False).logits[0, -1].topk(2)
                margins.append((best.values[0] - best.values[1]).item())
                tokens = torch.cat([tokens, best.indices[:1].view(1, 1)], dim=1)
            answer["greedy"] = tokens[0, length:].tolist()
        # A seed with nearly equal best tokens is refused, because it would test rounding and not the decoder.
        if min(margins) < least_margin:
            return None
        cases.append(answer)
    return cases


def rounded(row):
    return [float(f"{value:.6g}") for value in row.tolist()]


def lines_of(cases, seed):
    """The text of expected.json."""
    lines = ",\n".join(json.dumps(answer, separators=(",", ":")) for answer in cases)
    return f'{{"seed": {seed}, "cases": [\n{lines}\n]}}\n'


def make(name, spec):
    folder = GOLDEN / name
    for seed in range(len(name) * 1_000, len(name) * 1_000 + 100):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_model(folder, spec, seed)
        cases = expect(folder, spec, seed)
        if cases is not None:
            (folder / "expected.json").write_text(lines_of(cases, seed))
            return seed
    raise SystemExit(f"{name}: no seed without near ties")


def main():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        seed = make(name, CASES[name])
        size = sum(file.stat().st_size for file in (GOLDEN / name).iterdir())
        print(f"{name}: seed {seed}, {size // 1024} KiB")


if __name__ == "__main__":
    main()
