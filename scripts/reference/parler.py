"""Makes the golden cases of Parler-TTS: tiny random models of several shapes with the codes and the sound of `parler_tts`.

The package needs an older `transformers` than the other scripts, which is put before the environment's own:

    VENV/bin/pip install --target OLD --no-deps parler-tts==0.2.3 transformers==4.46.1 tokenizers==0.20.3 huggingface_hub==0.36.2 descript-audio-codec==1.0.0
    PYTHONPATH=OLD VENV/bin/python scripts/reference/parler.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/parler/CASE.json with these fields:

    case, transformers, torch
    files      the texts of the folder's files beside the weights, by their paths
    weights    the weight files by their paths: a seed and [name, shape, mean, scale] of every tensor, by families.py's rule
    spoken     texts and their descriptions: text, instructions, frames (the codes of each that is heard), and the samples

--models also writes DIR/CASE, a folder that the package loads.
"""

import importlib.machinery
import json
import logging
import sys
import types
from pathlib import Path

import torch


def stub(name, **fields):
    """An empty module in the place of one that only its name is needed of."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(fields)
    sys.modules[name] = module
    return module


# Other scripts, whose parts are used here, need this one, which is too new for the older package.
stub("sentence_transformers", **{name: object for name in ("CrossEncoder", "SentenceTransformer")})
# The older codec reads and writes files by a library that is not used here.
stub("audiotools", AudioSignal=object, STFTParams=object, ml=stub("audiotools.ml", BaseModel=type("BaseModel", (torch.nn.Module,), dict(INTERN=[], EXTERN=[]))))

import transformers

transformers.logging.set_verbosity_error()
logging.disable(logging.WARNING)
from encoders import put
from families import entry_of, tensor_of
from parler_tts import ParlerTTSConfig, ParlerTTSForConditionalGeneration
from safetensors import safe_open
from safetensors.torch import save_file
from vits import FIXED, make_all, make_by_seed, short

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "parler"
SPEC = dict(zero_centred=None, rules={
    r"alpha$": FIXED(1, 0.3), r"norm\.weight$": FIXED(1, 0.2), r"bias$": FIXED(0, 0.1), r"relative_attention_bias": FIXED(0, 0.5), r"(shared|embed_\w+|codebook)\.": FIXED(0, 0.8),
    r"embed_positions": (None, dict(gain=1)), r"lm_heads": (None, dict(gain=3.0)), r"conv_t1\.weight$": FIXED(0, 0.25), r"weight$": (None, dict(gain=1.2)),
})
LETTERS = ["<pad>", "</s>"] + list("abcdefghijklmnopqrstuvwxyz .,'?")
TEXT = dict(model_type="t5", vocab_size=40, d_model=12, d_kv=4, d_ff=20, num_layers=2, num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=20,
            feed_forward_proj="gated-gelu", pad_token_id=0, eos_token_id=1, is_encoder_decoder=False)
CODEC = dict(model_type="dac", n_codebooks=3, codebook_size=8, codebook_dim=4, hidden_size=8, decoder_hidden_size=16, encoder_hidden_size=4, upsampling_ratios=[4, 2],
             downsampling_ratios=[2, 4], sampling_rate=800)
DECODER = dict(model_type="parler_tts_decoder", vocab_size=10, num_codebooks=3, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128,
               pad_token_id=8, eos_token_id=8, bos_token_id=9)


def case(texts=(("hello there.", "a calm voice"), ("it's late", "she speaks fast, and the room is loud."))
         , text={}, codec={}, decoder={}, most=40, least=6, ends=False, **fields):
    generation = dict(do_sample=False, max_length=most, min_new_tokens=least, bos_token_id=9, decoder_start_token_id=9, eos_token_id=8, pad_token_id=8)
    return dict(texts=texts, text=TEXT | text, codec=CODEC | codec, decoder=DECODER | decoder, generation=generation, ends=ends, fields=dict(vocab_size=40) | fields)


CASES = {
    "plain": case(ends=True),
    "turned": case(text=dict(d_model=16, feed_forward_proj="relu", relative_attention_num_buckets=32, relative_attention_max_distance=128, layer_norm_epsilon=1e-3),
                   decoder=dict(rope_embeddings=True, rope_theta=500.0, num_key_value_heads=2, num_cross_attention_key_value_heads=1, use_fused_lm_heads=True, activation_function="relu"),
                   prompt_cross_attention=True, most=30),
    "odd": case(codec=dict(upsampling_ratios=[3, 2, 5], downsampling_ratios=[5, 2, 3], n_codebooks=4), decoder=dict(num_codebooks=4), most=24, ends=True),
    "long": case(texts=[("a text of some length, that is said in many frames", "quick")], codec=dict(upsampling_ratios=[2, 2], downsampling_ratios=[2, 2]), decoder=dict(max_position_embeddings=256), most=120, least=118),
}


def write_folder(folder, spec, seed):
    torch.manual_seed(0)
    config = ParlerTTSConfig(text_encoder=dict(spec["text"]), audio_encoder=dict(spec["codec"]), decoder=dict(spec["decoder"]), **spec["fields"])
    model = ParlerTTSForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(**spec["generation"])
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    # The encoder makes codes of sound, and is not used here. Sines are computed.
    skipped = lambda name: any(part in name for part in ("audio_encoder.encoder", "in_proj", "embed_positions"))
    entries = [entry_of(name, list(tensor.shape), SPEC) for name, tensor in sorted(tensors.items()) if not skipped(name)]
    made = {entry[0]: tensor_of(entry, seed) for entry in entries}
    save_file({name: tensor for name, tensor in tensors.items() if skipped(name)} | made, path, metadata={"format": "pt"})
    vocabulary = {letter: at for at, letter in enumerate(LETTERS)}
    added = [dict(id=at, content=mark, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for at, mark in enumerate(LETTERS[:2])]
    end = dict(type="TemplateProcessing", single=[dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id="</s>", type_id=0))],
               pair=[dict(Sequence=dict(id="A", type_id=0)), dict(Sequence=dict(id="B", type_id=0))], special_tokens={"</s>": dict(id="</s>", ids=[1], tokens=["</s>"])})
    put(folder / "tokenizer.json", dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=None, post_processor=end, decoder=None,
                                        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, vocab=vocabulary, merges=[])))
    texts = {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return texts, {"model.safetensors": dict(seed=seed, tensors=entries)}


def spoken(folder, spec):
    model = ParlerTTSForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    heard = []
    decode = model.audio_encoder.decode
    model.audio_encoder.decode = lambda audio_codes, **fields: heard.append(audio_codes[0].T.tolist()) or decode(audio_codes=audio_codes, **fields)
    answers = []
    for text, instructions in spec["texts"]:
        of = lambda text: torch.tensor([tokenizer(text).input_ids])
        description, prompt = of(instructions), of(text)
        with torch.no_grad():
            sound = model.generate(input_ids=description, attention_mask=torch.ones_like(description), prompt_input_ids=prompt, prompt_attention_mask=torch.ones_like(prompt))[0]
        if len(heard) <= len(answers):
            return None
        frames = heard[-1]
        print(f"  {text!r}: {len(frames)} frames, {len(sound)} samples, {sound.std():.3f}, {frames[:3]}")
        most = spec["generation"]["max_length"] - spec["decoder"]["num_codebooks"]
        if sound.std() < 0.01 or len({tuple(frame) for frame in frames}) < min(len(frames) / 2, 8) or len(frames) < 4 or (spec["ends"] and len(frames) > most - 4):
            return None
        answers.append(dict(text=text, instructions=instructions, frames=frames, samples=short(sound.tolist())))
    return answers


def make(name, spec, folder):
    make_by_seed(name, spec, folder, (write_folder, spoken), OUT, "frames that differ")


if __name__ == "__main__":
    make_all(sys.argv[1:], CASES, make)
