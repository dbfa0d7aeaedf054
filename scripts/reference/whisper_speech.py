"""Writes what transformers hears in espeak-ng's speech with Whisper tiny.en to tests/clients/whisper.json: tokens, texts and word errors.
Run it as whisper.py, where espeak-ng and the package `pytest` are: python scripts/reference/whisper_speech.py."""

import hashlib
import io
import json
import sys
from pathlib import Path

import numpy
import soundfile
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "clients"))

import spoken  # noqa: E402
import whisper_weights  # noqa: E402


def recording(wav):
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    assert rate == 16000
    return samples


def main():
    folder = whisper_weights.tiny_en()
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    read = lambda samples, **more: extractor(samples.astype(numpy.float32), sampling_rate=16000, return_tensors="pt", **more)
    text_of = lambda tokens: tokenizer.decode([token for token in tokens if token < 50256]).strip()
    cases = []
    with torch.no_grad():
        for name, said in (("short", spoken.SHORT), *((f"sentence {at}", said) for at, said in enumerate(spoken.SENTENCES))):
            wav = spoken.at_16k(spoken.wav(said))
            samples = recording(wav)
            plain = model.generate(read(samples).input_features, do_sample=False, num_beams=1)[0].tolist()
            timed = model.generate(read(samples).input_features, return_timestamps=True, do_sample=False, num_beams=1)[0].tolist()
            plain = [token for token in plain if token not in (50256, 50257, 50362)]
            timed = [token for token in timed if token not in (50256, 50257)]
            cases.append(dict(name=name, said=said, sha256=hashlib.sha256(wav).hexdigest(), plain=plain, timed=timed, text=text_of(timed),
                              errors=spoken.word_errors(text_of(timed), said)))
        said = " ".join(spoken.SENTENCES)
        wav = spoken.at_16k(spoken.wav(said))
        features = read(recording(wav), truncation=False, padding="longest", return_attention_mask=True)
        out = model.generate(features.input_features, attention_mask=features.attention_mask, return_timestamps=True, do_sample=False, num_beams=1,
                             condition_on_prev_tokens=False, temperature=0.0)[0].tolist()
        cases.append(dict(name="meeting", said=said, sha256=hashlib.sha256(wav).hexdigest(), text=text_of(out), errors=spoken.word_errors(text_of(out), said)))
    for case in cases:
        print(case["name"], case["errors"], case["text"][:90])
    path = ROOT / "tests" / "clients" / "whisper.json"
    path.write_text(json.dumps(dict(transformers=transformers.__version__, cases=cases), indent=0) + "\n")


if __name__ == "__main__":
    main()
