"""Makes the golden cases of CSM: tiny random models of several shapes with the codes and the sound of `transformers`.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt
    VENV/bin/python scripts/reference/csm.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/csm/CASE.json with these fields:

    case, transformers, torch
    files      the texts of the folder's files beside the weights, by their paths
    weights    the weight files by their paths: a seed and [name, shape, mean, scale] of every tensor, by families.py's rule
    spoken     texts that one voice says one after the other: text, voice, frames (the codes of each), and the samples

--models also writes DIR/CASE, a folder that the package loads.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

transformers.logging.set_verbosity_error()
from encoders import put
from families import entry_of, tensor_of
from safetensors import safe_open
from safetensors.torch import save_file
from vits import FIXED, make_all, make_by_seed, short

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "csm"
SPEC = dict(zero_centred=None, rules={
    r"cluster_usage$": FIXED(3, 1), r"initialized$": FIXED(1, 0), r"embed_sum$": FIXED(0, 2), r"layer_scale\.scale$": FIXED(0.6, 0.3),
    r"embed.*tokens\.weight$": FIXED(0, 0.7), r"lm_head\.weight$": (None, dict(gain=2.5)), r"codebooks_head\.weight$": FIXED(0, 0.7),
    r"norm\.weight$": FIXED(1, 0.2), r"bias$": FIXED(0, 0.1), r"decoder\.layers.*conv\.weight$": (None, dict(gain=1.3)), r"upsample": FIXED(0, 0.6),
    r"weight$": (None, dict(gain=1.2)),
})
MARKS = ["<pad>", "<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>"]
LETTERS = list("[]0123456789abcdefghijklmnopqrstuvwxyz .,'?")
CODEC = dict(hidden_size=16, num_filters=4, upsampling_ratios=[4, 3], codebook_size=32, codebook_dim=8, vector_quantization_hidden_dimension=8, num_quantizers=4, num_hidden_layers=2,
             intermediate_size=24, num_attention_heads=2, num_key_value_heads=2, head_dim=8, upsample_groups=16, sliding_window=6, sampling_rate=1200)
DEPTH = dict(hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
SMALL = dict(num_codebooks=4, vocab_size=33, text_vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, pad_token_id=0, bos_token_id=1, audio_token_id=3, audio_eos_token_id=4, codebook_pad_token_id=32)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, high_freq_factor=0.5, low_freq_factor=0.125, original_max_position_embeddings=32)


def case(texts=(("hello there.", 0), ("it's a quarter past 3", 0)), codec={}, depth={}, frames=9, **fields):
    return dict(texts=texts, codec=CODEC | codec, depth=DEPTH | depth, frames=frames, fields=SMALL | fields)


CASES = {
    "plain": case(),
    "scaled-rope": case(rope_parameters=LLAMA3, depth=dict(rope_parameters=LLAMA3 | dict(original_max_position_embeddings=4)), texts=[("ok, go on?", 1)], frames=14),
    "wide": case(num_codebooks=5, head_dim=10, num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=3, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-3,
                 depth=dict(hidden_size=12, num_attention_heads=3, num_key_value_heads=3, head_dim=6, num_hidden_layers=1, attention_bias=True, mlp_bias=True),
                 codec=dict(num_quantizers=5, num_semantic_quantizers=2, upsampling_ratios=[2, 3, 2], num_residual_layers=2, residual_kernel_size=3, kernel_size=5, last_kernel_size=5,
                            hidden_size=12, upsample_groups=3, vector_quantization_hidden_dimension=12, codebook_dim=12, head_dim=4, num_attention_heads=3, num_key_value_heads=1,
                            hidden_act="gelu_pytorch_tanh", sliding_window=3, norm_eps=1e-3), texts=[("no 7", 0), ("yes", 1)]),
    "shortcut": case(codec=dict(use_conv_shortcut=True, compress=4, dilation_growth_rate=3, num_residual_layers=2, frame_rate=25.0, num_filters=8), tie_codebooks_embeddings=False,
                     texts=[("a", 0)], frames=5),
}


def write_folder(folder, spec, seed):
    transformers.set_seed(0)
    fields = dict(spec["fields"])
    depth = dict(num_codebooks=fields["num_codebooks"], vocab_size=fields["vocab_size"], backbone_hidden_size=fields["hidden_size"], max_position_embeddings=fields["num_codebooks"] + 1)
    config = transformers.CsmConfig(**fields, depth_decoder_config=depth | spec["depth"], codec_config=transformers.MimiConfig(**spec["codec"]))
    model = transformers.CsmForConditionalGeneration(config)
    model.generation_config.max_new_tokens = spec["frames"]
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    # The encoder makes codes of sound, and is not used here.
    skipped = lambda name: any(part in name for part in ("codec_model.encoder", "codec_model.downsample", "input_proj"))
    entries = [entry_of(name, shape, SPEC) for name, shape in sorted(shapes.items()) if not skipped(name)]
    save_file({entry[0]: tensor_of(entry, seed) for entry in entries}, path, metadata={"format": "pt"})
    vocabulary = {letter: at for at, letter in enumerate(MARKS + LETTERS)}
    added = [dict(id=at, content=mark, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for at, mark in enumerate(MARKS)]
    put(folder / "tokenizer.json", dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None,
                                        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, vocab=vocabulary, merges=[])))
    texts = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return texts, {"model.safetensors": dict(seed=seed, tensors=entries)}


def spoken(folder, spec):
    model = transformers.CsmForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    audio, end = model.config.audio_token_id, model.config.audio_eos_token_id
    before_ids, before_frames, answers = [], [], []
    for text, voice in spec["texts"]:
        own = tokenizer(f"<|begin_of_text|>[{voice}]{text}<|end_of_text|>", add_special_tokens=False).input_ids
        ids = torch.tensor([before_ids + own])
        with torch.no_grad():
            rows = model.embed_text_tokens(ids)
            frames = torch.tensor(before_frames, dtype=torch.long)
            if before_frames:
                rows[(ids == audio) | (ids == end)] = model.backbone_model.embed_tokens(frames[None])[0]
            made = greedy(model, rows, spec["frames"])
            sound = model.codec_model.decode(torch.tensor(made).T[None]).audio_values[0, 0]
            if not before_frames:
                # The package's own way, where nothing was said before.
                theirs = model.generate(ids, do_sample=False)[0].tolist()
                if theirs != made:
                    # It drew a code that its codec does not have; models that were trained do not.
                    return None
        print(f"  {text!r}: {len(made)} frames, {len(sound)} samples, {sound.std():.3f}, {made[:3]}")
        if sound.std() < 0.01 or len({tuple(frame) for frame in made}) < len(made) / 2:
            return None
        answers.append(dict(text=text, voice=voice, frames=made, samples=short(sound.tolist())))
        before_ids = before_ids + own + [audio] * len(made) + [end]
        before_frames = before_frames + made + [[model.config.codebook_eos_token_id] * model.config.num_codebooks]
    return answers


def greedy(model, rows, most):
    """The most likely codes behind rows of the backbone."""
    codes = model.config.codec_config.codebook_size
    frames = []
    while len(frames) < most:
        stream = model.backbone_model(inputs_embeds=rows).last_hidden_state[:, -1]
        frame = [model.lm_head(stream)[0, :codes].argmax().item()]
        while len(frame) < model.config.num_codebooks:
            ids = torch.tensor([[0] + frame])
            logits = model.depth_decoder(input_ids=ids, backbone_last_hidden_state=stream).logits[0, -1]
            frame.append(logits[:codes].argmax().item())
        frames.append(frame)
        if all(code == model.config.codebook_eos_token_id for code in frame[:-1]):
            break
        rows = torch.cat([rows, model.backbone_model.embed_tokens(torch.tensor([[frame]]))], 1)
    return frames


def make(name, spec, folder):
    make_by_seed(name, spec, folder, (write_folder, spoken), OUT, "codes that its codec has, and frames that differ")


if __name__ == "__main__":
    make_all(sys.argv[1:], CASES, make)
