"""Makes the golden cases of VITS: tiny random models of several shapes with the symbols and the sound of `transformers`.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt
    VENV/bin/python scripts/reference/vits.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/speech/CASE.json with these fields:

    case, transformers, torch
    files      the texts of the folder's files beside the weights, by their paths
    weights    the weight files by their paths: a seed and [name, shape, mean, scale] of every tensor, by families.py's rule
    spoken     for each text: text, voice, speed, seed, the symbols, and the samples

--models also writes DIR/CASE, a folder that the package loads.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from encoders import put
from families import entry_of, tensor_of
from safetensors import safe_open
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "speech"
FIXED = lambda mean, scale: (None, dict(mean=mean, scale=scale))
# Durations of some frames, and sound that is loud enough to be compared.
SPEC = dict(zero_centred=None, rules={
    r"translate$": FIXED(-1.0, 0.3), r"log_scale$": FIXED(0, 0.3), r"emb_rel": FIXED(0, 0.5), r"embed_speaker": FIXED(0, 0.8),
    r"duration_predictor\.proj\.bias": FIXED(1.0, 0.1), r"duration_predictor\.proj\.weight": (None, dict(gain=0.15)),
    r"decoder\.resblocks.*weight$": (None, dict(gain=0.5)), r"decoder\.conv_post": (None, dict(gain=0.07)), r"text_encoder\.project.weight": (None, dict(gain=0.5)), r"decoder\.conv_pre.*weight": (None, dict(gain=0.7)), r"(original0|weight_g)$": FIXED(0.8, 0.4), r"embed_tokens": FIXED(0, 0.3),
    r"norms_\d\.\d+\.weight$": FIXED(1, 0.3), r"upsampler.*weight$": (0, dict(gain=1.6)), r"bias$": FIXED(0, 0.2),
    r"layer_norm\.weight$": FIXED(1, 0.3), r"norm_\d\.weight$": FIXED(1, 0.3), r"weight$|original1$|weight_v$": (None, dict(gain=1.2)),
})
LETTERS = ["x", "k", "'", "z", "y", "u", "d", "h", "e", "s", "w", "–", "3", "c", "p", "-", "1", "j", "m", "i", " ", "f", "l", "o", "0", "b", "r", "a", "4", "2", "n", "_", "v", "q", "t", "6", "5", "ț"]
SMALL = dict(vocab_size=38, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24, flow_size=8, spectrogram_bins=5, upsample_initial_channel=16,
             upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4], resblock_kernel_sizes=[3, 5], resblock_dilation_sizes=[[1, 3], [1, 2]], duration_predictor_filter_channels=12,
             posterior_encoder_num_wavenet_layers=1, prior_encoder_num_flows=2, prior_encoder_num_wavenet_layers=2, duration_predictor_num_flows=3)
MMS = dict(add_blank=True, normalize=True, phonemize=False, is_uroman=False, language="eng")
TEXTS = [("Hello - my dog isn't CUTE!", 0, 1.0, 555), ("a", 0, 0.5, 7), ("Ten, 2 and 4.", 0, 2.0, 1)]


def case(tokenizer=MMS, texts=TEXTS, older=False, **fields):
    """`older`: lengths and directions of weights have the names of PyTorch before 2.1."""
    return dict(tokenizer=tokenizer, texts=texts, older=older, fields=SMALL | fields)


CASES = {
    "mms": case(),
    "quiet": case(noise_scale=0.0, noise_scale_duration=0.0, speaking_rate=1.6, sampling_rate=22050, duration_predictor_flow_bins=6, window_size=2),
    "plain-durations": case(use_stochastic_duration_prediction=False, hidden_act="gelu", ffn_kernel_size=4, window_size=7, num_attention_heads=4, layer_norm_eps=1e-3,
                            wavenet_kernel_size=3, depth_separable_num_layers=2),
    "speakers": case(num_speakers=4, speaker_embedding_size=6, wavenet_dilation_rate=2, older=True, leaky_relu_slope=0.2, duration_predictor_kernel_size=5,
                     texts=[("hello", 0, 1.0, 3), ("hello", 2, 1.3, 3), ("ok", 3, 1.0, 4)]),
    "speakers-plain": case(num_speakers=2, speaker_embedding_size=5, use_stochastic_duration_prediction=False, upsample_rates=[5, 3], upsample_kernel_sizes=[10, 8],
                           flow_size=6, texts=[("hello", 1, 1.0, 3)]),
    "letters": case(tokenizer=dict(add_blank=False, normalize=False, phonemize=False, language="ron", unk_token="_"), use_bias=True, texts=[("țara_ Dus", 0, 1.0, 9)]),
}


def write_folder(folder, spec):
    config = transformers.VitsConfig(**spec["fields"])
    transformers.VitsModel(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    if spec["older"]:
        names = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
        shapes = {next((name.replace(new, old) for new, old in names.items() if new in name), name): shape for name, shape in shapes.items()}
    entries = [entry_of(name, shape, SPEC) for name, shape in sorted(shapes.items())]
    save_file({entry[0]: tensor_of(entry, 1) for entry in entries}, path, metadata={"format": "pt"})
    put(folder / "vocab.json", {letter: at for at, letter in enumerate(LETTERS)})
    put(folder / "tokenizer_config.json", spec["tokenizer"] | dict(tokenizer_class="VitsTokenizer", pad_token=LETTERS[0]))
    texts = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return texts, {"model.safetensors": dict(seed=1, tensors=entries)}


def short(values):
    return [float(f"{value:.5g}") for value in values]


def spoken(folder, spec):
    model = transformers.VitsModel.from_pretrained(folder).eval()
    tokenizer = transformers.VitsTokenizer.from_pretrained(folder)
    answers = []
    for text, voice, speed, seed in spec["texts"]:
        ids = tokenizer(text, return_tensors="pt").input_ids
        transformers.set_seed(seed)
        speaker = dict(speaker_id=voice) if spec["fields"].get("num_speakers", 1) > 1 else {}
        with torch.no_grad():
            samples = model(ids, speaking_rate=model.speaking_rate * speed, **speaker).waveform[0]
        print(f"  {text!r}: {ids.shape[1]} symbols, {len(samples)} samples, {samples.std():.3f}")
        assert samples.std() > 0.01 and len(samples) < 4000
        answers.append(dict(text=text, voice=voice, speed=speed, seed=seed, symbols=ids[0].tolist(), samples=short(samples.tolist())))
    return answers


def make(name, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files, weights = write_folder(folder, spec)
    fields = dict(case=name, transformers=transformers.__version__, torch=torch.__version__, files=files, weights=weights, spoken=spoken(folder, spec))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")


def make_by_seed(name, spec, folder, parts, out, wanted):
    """Makes a case with the first seed whose random model says something. `parts`: a function that writes the folder of a seed, and
    one that gives what is said, or none."""
    write_folder, spoken = parts
    for seed in range(1, 400):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files, weights = write_folder(folder, spec, seed)
        if answers := spoken(folder, spec):
            break
    else:
        sys.exit(f"no seed gives {name} {wanted}")
    fields = dict(case=name, transformers=transformers.__version__, torch=torch.__version__, files=files, weights=weights, spoken=answers)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n")


def make_all(words, cases, make):
    """Makes the cases that the command line names, or all."""
    models = Path(words.pop(words.index("--models") + 1)) if "--models" in words else Path(tempfile.mkdtemp())
    names = [word for word in words if word != "--models"] or cases
    for name in names:
        print(name)
        make(name, cases[name], models / name)


if __name__ == "__main__":
    make_all(sys.argv[1:], CASES, make)
