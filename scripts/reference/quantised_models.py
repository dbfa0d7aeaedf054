#!/usr/bin/env python3
"""Writes worker/candle/tests/quantised/NAME: tiny models of Qwen2 and DeepSeek V3 whose matrices are quantised, with the answers
of `transformers` on the floats that the formats' own packages make of them.

Packages and arguments are those of quantised_matrices.py, which makes the matrices.
"""

import json
import shutil
from pathlib import Path

import quantised_matrices as matrices
import torch
from make_golden import expect_of, lines_of
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, Qwen2Config

OUT = Path(__file__).resolve().parents[2] / "worker/candle/tests/quantised"
CONFIG = dict(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    architectures=["Qwen2ForCausalLM"],
    dtype="float32",
)
# Latent attention: each head has rows of one matrix for keys, whose columns are turned into rows, and for values.
LATENT = CONFIG | dict(
    num_key_value_heads=4,
    first_k_dense_replace=2,
    q_lora_rank=32,
    kv_lora_rank=64,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    architectures=["DeepseekV3ForCausalLM"],
)


def near_middle(*shape) -> torch.Tensor:
    """Zeros of 6 to 9, so that weights have a mean of about 0."""
    nibbles = torch.randint(6, 10, (*shape, 8), generator=matrices.GENERATOR)
    words = sum(nibbles[..., place] << (4 * place) for place in range(8))
    return words.to(torch.int64).where(words < 2**31, words - 2**32).to(torch.int32)


def cases() -> dict:
    ct = lambda **weights: {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    four = dict(num_bits=4, type="int", strategy="group", group_size=32)
    eight = dict(num_bits=8, type="int", strategy="channel", symmetric=True)
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    return {
        "gptq": (gptq, lambda rows, columns: matrices.gptq(4, 32, False, rows, columns)),
        "gptq-act-order": (gptq | {"desc_act": True}, lambda rows, columns: matrices.gptq(4, 32, True, rows, columns)),
        "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, matrices.awq),
        "packed-4": (
            ct(**four),
            lambda rows, columns: matrices.compressed("pack-quantized", torch.float16, rows, columns, symmetric=True, **four),
        ),
        "bytes-8": (
            ct(**eight),
            lambda rows, columns: matrices.compressed("int-quantized", torch.float32, rows, columns, **eight),
        ),
        "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 192]}, matrices.fp8_blocks),
        "gptq-act-order-latent": (
            gptq | {"desc_act": True},
            lambda rows, columns: matrices.gptq(4, 32, True, rows, columns),
        ),
    }


def main() -> None:
    matrices.zeros = near_middle
    matrices.scales = lambda *shape, dtype=torch.float16: (
        torch.rand(shape, generator=matrices.GENERATOR) * 0.02 + 0.02
    ).to(dtype)
    for name, (about, make) in cases().items():
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        torch.manual_seed(7)
        config = LATENT if name.endswith("latent") else CONFIG
        kind = DeepseekV3Config if config is LATENT else Qwen2Config
        model = AutoModelForCausalLM.from_config(kind(**config)).eval()
        stored = {}
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                quantised = path.endswith("proj.weight")
                if quantised:
                    parts, floats = make(*parameter.shape)
                    stored |= {f"{path.removesuffix('.weight')}.{part}": tensor.contiguous() for part, tensor in parts.items()}
                    parameter.copy_(floats)
                    continue
                scale = 0.5 if "embed" in path or "lm_head" in path else 0.2
                parameter.copy_(torch.randn_like(parameter) * scale + ("norm" in path))
                stored[path] = parameter.detach().clone().contiguous()
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)
        (folder / "config.json").write_text(
            json.dumps(model.config.to_dict() | config | {"quantization_config": about}, indent=1, sort_keys=True) + "\n"
        )
        (folder / "expected.json").write_text(lines_of(expect_of(model, 7, False, 0.0), 7))


if __name__ == "__main__":
    main()
