"""Speaks by `transformers`, beside which `scripts/bench speech` measures: python3 speech_peer.py FOLDER THREADS

FOLDER is a VITS model. Each line of the input is {"text"}; each line of the output has `seconds`, and `sound`, the seconds of what was spoken.
The first line of the output says the library's version. `--make FOLDER` writes a model of random weights in the sizes of facebook/mms-tts-eng,
whose symbols are some frames long.
"""

import json
import sys
import time
from pathlib import Path

import torch
import transformers

LETTERS = "<k'zyudhesw–3cp-1jmi flo0bra42nvqt65x_g"


def make(folder):
    torch.manual_seed(1)
    model = transformers.VitsModel(transformers.VitsConfig(vocab_size=len(LETTERS)))
    with torch.no_grad():
        # The logarithm of a symbol's frames is about 0.9.
        model.duration_predictor.flows[0].translate.fill_(-0.9)
        for flow in list(model.duration_predictor.flows)[1:]:
            flow.conv_proj.weight.mul_(0.01)
            flow.conv_proj.bias.fill_(0.55)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: at for at, letter in enumerate(LETTERS)}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        dict(tokenizer_class="VitsTokenizer", add_blank=True, normalize=True, phonemize=False, is_uroman=False, language="eng", pad_token="<", unk_token="_")))


def serve(folder, threads):
    torch.set_num_threads(threads)
    model = transformers.VitsModel.from_pretrained(folder).eval()
    tokenizer = transformers.VitsTokenizer.from_pretrained(folder)
    print(json.dumps({"version": f"transformers {transformers.__version__}, torch {torch.__version__}"}), flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        ids = tokenizer(json.loads(line)["text"], return_tensors="pt").input_ids
        torch.manual_seed(1)
        with torch.inference_mode():
            samples = model(ids).waveform.shape[-1]
        print(json.dumps({"seconds": time.perf_counter() - begun, "sound": samples / model.config.sampling_rate}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(Path(sys.argv[2]))
    else:
        serve(Path(sys.argv[1]), int(sys.argv[2]))
