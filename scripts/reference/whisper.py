"""Makes the golden cases of models that turn speech into text: tiny random Whisper models, and the tokens that `transformers` writes for
made sounds, with times and without.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt
    VENV/bin/python scripts/reference/whisper.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/whisper/CASE.json with these fields:

    case, transformers
    files      the texts of the folder's files beside the weights, by their paths
    weights    seed and [name, shape, mean, scale] of every tensor, by families.py's rule; of a GGUF file its name alone, which lies beside
    texts      texts of one window: the sound's seed and samples, the `language`, the task, the tokens in front, whether times are wanted,
               the tokens that follow those that ask for them, and the mean logarithm of their probabilities
    detected   for each sound the language that is found
    long       sounds of several windows: seed, samples, and the segments: window's frame, tokens and times
    words      for a sound and tokens: the first column of each token by the reference's path through its heads' attention

Mel spectrograms are in worker/audio/tests/mel.json: `python whisper.py mel` writes them.
"""

import json
import shutil
import sys
from pathlib import Path

import cases
import numpy
import torch
import transformers
from families import entry_of, tensor_of
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "worker" / "candle" / "tests" / "whisper"
MEL = ROOT / "worker" / "audio" / "tests" / "mel.json"
SPEC = dict(zero_centred=None, rules={"decoder.embed_positions": (None, dict(mean=0, scale=1.5)), "encoder.embed_positions": (None, dict(mean=0, scale=0.4)),
                                        "embed_tokens": (None, dict(mean=0, scale=0.3)), "encoder_attn": (None, dict(gain=2)), "fc1|fc2": (None, dict(gain=1.8))})
# A window of a second: 100 frames, 50 places, 51 times.
WORDS, PLACES, LONGEST = 200, 50, 64
END, START = WORDS, WORDS + 1
LANGUAGES = {"<|en|>": 202, "<|de|>": 203, "<|haw|>": 204, "<|yue|>": 205}
TASKS = dict(translate=206, transcribe=207)
PREVIOUS, NO_SPEECH, NO_TIMES = 209, 210, 211
VOCABULARY = NO_TIMES + 1 + PLACES + 1
SIZES = dict(vocab_size=VOCABULARY, max_source_positions=PLACES, max_target_positions=LONGEST, decoder_start_token_id=START, eos_token_id=END, bos_token_id=END,
             pad_token_id=END, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3, d_model=24, encoder_ffn_dim=40,
             decoder_ffn_dim=40, num_mel_bins=80)


def case(many=True, generation={}, gguf=None, **fields):
    return dict(many=many, generation=generation, gguf=gguf, fields=SIZES | fields)


GGUF = dict(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, encoder_attention_heads=2, decoder_attention_heads=2)
CASES = {
    "tiny": case(),
    "english": case(many=False, generation=dict(max_initial_timestamp_index=10), num_mel_bins=80),
    "large-v3-bins": case(num_mel_bins=128, encoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=2, encoder_ffn_dim=56),
    "distil": case(encoder_layers=4, decoder_layers=2, generation=dict(alignment_heads=[[0, 1], [1, 0], [1, 2]])),
    "turbo": case(num_mel_bins=128, encoder_layers=4, decoder_layers=1, d_model=30, encoder_attention_heads=5, decoder_attention_heads=5, decoder_ffn_dim=72),
    "untied-scaled": case(tie_word_embeddings=False, scale_embedding=True, activation_function="relu", median_filter_width=3),
    "gguf-openai": case(gguf="openai", **GGUF),
    "gguf-transformers": case(gguf="transformers", **GGUF),
}


def sound(seed, samples):
    """Whole numbers only, so that a test makes the same: three sawtooth waves whose lengths change, in noise."""
    value, out = seed * 2654435761 % 2**32, []
    for at in range(samples):
        value = (value * 1664525 + 1013904223) % 2**32
        part = at // 1600 + seed
        waves = sum((at * (40 + 37 * ((part * step) % 11)) % 16000 - 8000) // (2 * step) for step in (1, 2, 3))
        out.append(max(-32768, min(32767, waves + (value >> 16) % 1201 - 600)))
    return numpy.array(out, dtype=numpy.int16)


def extractor(bins, seconds=1):
    return transformers.WhisperFeatureExtractor(feature_size=bins, chunk_length=seconds)


def features(bins, samples, **more):
    return extractor(bins)(samples.astype(numpy.float32) / 32768, sampling_rate=16000, return_tensors="pt", **more)


def generation_of(spec):
    fields = dict(no_timestamps_token_id=NO_TIMES, prev_sot_token_id=PREVIOUS, eos_token_id=END, bos_token_id=END, pad_token_id=END,
                  decoder_start_token_id=START, max_length=LONGEST, suppress_tokens=[3, 5, *range(START, NO_TIMES)], begin_suppress_tokens=[7, END],
                  is_multilingual=spec["many"], return_timestamps=False)
    if spec["many"]:
        fields |= dict(lang_to_id=LANGUAGES, task_to_id=TASKS)
    return fields | spec["generation"]


def write_folder(folder, spec):
    config = transformers.WhisperConfig(**spec["fields"])
    model = transformers.WhisperForConditionalGeneration(config)
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    entries = [entry_of(name, shape, SPEC) for name, shape in sorted(shapes.items())]
    save_file({entry[0]: tensor_of(entry, 1) for entry in entries}, path, metadata={"format": "pt"})
    (folder / "generation_config.json").write_text(json.dumps(generation_of(spec)))
    extractor(spec["fields"]["num_mel_bins"]).save_pretrained(folder)
    # The filters are computed.
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    processor.pop("mel_filters", None)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return entries


def openai_name(name):
    name = name.removeprefix("model.")
    pairs = [("encoder_attn_layer_norm", "cross_attn_ln"), ("self_attn_layer_norm", "attn_ln"), ("final_layer_norm", "mlp_ln"), ("encoder_attn.", "cross_attn."),
             ("self_attn.", "attn."), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "out"), ("fc1", "mlp.0"), ("fc2", "mlp.2"),
             ("layers.", "blocks."), ("embed_tokens", "token_embedding"), ("embed_positions.weight", "positional_embedding"),
             ("encoder.layer_norm", "encoder.ln_post"), ("decoder.layer_norm", "decoder.ln")]
    for theirs, ours in pairs:
        name = name.replace(theirs, ours)
    return name


def write_gguf(folder, spec, path):
    """Writes the folder's model as GGUF with matrices in blocks, and gives the folder the numbers that these blocks have."""
    import gguf
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    writer = gguf.GGUFWriter(path, "whisper")
    fields = spec["fields"]
    if spec["gguf"] == "openai":
        for part in ("encoder", "decoder"):
            writer.add_uint32(f"whisper.{part}.attention.head_count", fields[f"{part}_attention_heads"])
            writer.add_uint32(f"whisper.{part}.block_count", fields[f"{part}_layers"])
    for name, tensor in tensors.items():
        stored = openai_name(name) if spec["gguf"] == "openai" else name
        numbers = tensor.numpy()
        if numbers.ndim == 2 and "positions" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            blocks = gguf.quants.quantize(numbers, kind)
            writer.add_tensor(stored, blocks, raw_dtype=kind)
            tensors[name] = torch.from_numpy(gguf.quants.dequantize(blocks, kind).astype(numpy.float32).reshape(numbers.shape))
        elif numbers.ndim == 3:
            half = numbers.astype(numpy.float16)
            writer.add_tensor(stored, half)
            tensors[name] = torch.from_numpy(half.astype(numpy.float32))
        else:
            writer.add_tensor(stored, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def short(number):
    return float(f"{number:.6g}")


def one_window(model, bins, seed, samples, times, language=None, task=None, prompt=None):
    asked = dict(language=language, task=task) if language else {}
    more = dict(prompt_ids=torch.tensor([PREVIOUS, *prompt])) if prompt else {}
    if not times:
        # Random weights write times all the same, which would begin another window.
        more["force_unique_generate_call"] = True
    out = model.generate(features(bins, sound(seed, samples)).input_features, return_timestamps=times, max_new_tokens=LONGEST // 2, do_sample=False,
                         num_beams=1, return_dict_in_generate=True, output_scores=True, **asked, **more)
    if "scores" not in out:
        out = out["segments"][0][0]["result"]
    tokens, scores = out["sequences"].reshape(-1).tolist(), [score.reshape(1, -1) for score in out["scores"]]
    before = len(tokens) - len(scores)
    chosen = tokens[before:]
    logprobs = [torch.log_softmax(score[0].float(), -1)[token].item() for score, token in zip(scores, chosen)]
    said = [token for token in chosen if token != END]
    return dict(seed=seed, samples=samples, times=times, language=language, task=task, prompt=prompt or [], before=tokens[:before] if before else None,
                tokens=said, logprob=short(sum(logprobs[:len(said) + 1]) / (len(said) + 1)))


def several_windows(model, bins, seed, samples, **asked):
    read = features(bins, sound(seed, samples), truncation=False, padding="longest", return_attention_mask=True)
    out = model.generate(read.input_features, attention_mask=read.attention_mask, return_timestamps=True, return_segments=True, temperature=0.0,
                         condition_on_prev_tokens=False, max_new_tokens=LONGEST // 2, do_sample=False, num_beams=1, **asked)
    segments = [dict(tokens=[token for token in segment["tokens"].tolist() if token != END], start=short(float(segment["start"])), end=short(float(segment["end"])))
                for segment in out["segments"][0]]
    return dict(seed=seed, samples=samples, segments=segments)


def word_columns(model, config, bins, seed, tokens, heads, many):
    """The first columns of tokens by OpenAI's way: one pass over all tokens with the heads' attention."""
    before = [START, LANGUAGES["<|en|>"], TASKS["transcribe"]] if many else [START]
    ids = torch.tensor([before + [NO_TIMES] + tokens + [END]])
    out = model(input_features=features(bins, sound(seed, 16000)).input_features, decoder_input_ids=ids, output_attentions=True)
    weights = torch.stack([out.cross_attentions[layer][0, head] for layer, head in heads])
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = _median_filter((weights - mean) / std, config.median_filter_width)
    matrix = weights.mean(0)[len(before):-1]
    text, column = _dynamic_time_warping(-matrix.double().numpy())
    starts = column[numpy.pad(numpy.diff(text), (1, 0), constant_values=1).astype(bool)]
    return dict(seed=seed, tokens=tokens, columns=starts.tolist())


def make(name, folder, _):
    spec = CASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    entries = write_folder(folder, spec)
    weights = dict(seed=1, tensors=entries)
    if spec["gguf"]:
        OUT.mkdir(parents=True, exist_ok=True)
        write_gguf(folder, spec, OUT / f"{name}.gguf")
        weights = f"{name}.gguf"
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    bins, many = spec["fields"]["num_mel_bins"], spec["many"]
    english = dict(language="en", task="transcribe") if many else {}
    with torch.no_grad():
        texts = [one_window(model, bins, 1, 16000, False, **english), one_window(model, bins, 2, 16000, True, **english),
                 one_window(model, bins, 3, 9000, True, **english), one_window(model, bins, 4, 16000, True, prompt=[11, 12, 13, 14], **english)]
        if many:
            texts.append(one_window(model, bins, 5, 16000, True, language="yue", task="translate"))
        detected = []
        if many:
            for seed in (1, 2, 3):
                found = model.detect_language(features(bins, sound(seed, 16000)).input_features)
                code = next(code for code, token in LANGUAGES.items() if token == found[0].item())
                detected.append(dict(seed=seed, samples=16000, language=code.strip("<|>")))
        long = [several_windows(model, bins, seed, samples, **english) for seed, samples in ((6, 41_600), (7, 64_000))]
        heads = spec["generation"].get("alignment_heads")
        layers = spec["fields"]["decoder_layers"]
        heads = heads or [[layer, head] for layer in range(layers // 2, layers) for head in range(spec["fields"]["decoder_attention_heads"])]
        words = [word_columns(model, model.config, bins, seed, tokens, heads, many) for seed, tokens in ((1, [20, 30, 40, 50, 60]), (2, [100, 4, 9]))]
    names = ["config.json", "generation_config.json", "preprocessor_config.json"]
    if spec["gguf"] == "openai":
        names = ["generation_config.json", "preprocessor_config.json"]
    files = {name: json.loads((folder / name).read_text()) for name in names}
    fields = dict(case=name, transformers=transformers.__version__, files=files, weights=weights, texts=texts, detected=detected, long=long, words=words)
    cases.write(OUT, name, fields)


def make_mel():
    """Spectrograms of a whole window, of one with silence behind the sound, and of a window of half a minute at some frames."""
    spectrograms = []
    for bins, seconds, seed, samples in ((80, 1, 1, 16000), (80, 1, 2, 6000), (128, 1, 3, 16000), (80, 30, 4, 400_000)):
        numbers = extractor(bins, seconds)(sound(seed, samples).astype(numpy.float32) / 32768, sampling_rate=16000).input_features[0]
        frames = numbers.shape[1]
        shown = list(range(0, frames, max(1, frames // 12))) + [frames - 1]
        spectrograms.append(dict(bins=bins, frames=frames, seed=seed, samples=samples, shown=shown,
                                 numbers=[[round(float(number), 5) for number in numbers[:, frame]] for frame in shown]))
    cases.write(MEL.parent, MEL.stem, dict(transformers=transformers.__version__, spectrograms=spectrograms))


if __name__ == "__main__":
    if sys.argv[1:] == ["mel"]:
        make_mel()
    else:
        cases.run(CASES, make)
