"""Embeds texts by a library, beside which `scripts/bench embed` measures: python3 embed_peer.py LIBRARY FOLDER THREADS

LIBRARY is onnxruntime, torch or torch-bf16; FOLDER is a sentence-transformers folder of a BERT model with mean pooling. Each line of the
input is {"texts", "at_once", "vectors"?}; each line of the output has the seconds of all calls, those of each, and the vectors if asked for.
The first line of the output says the library's version. torch comes as `transformers` runs it, onnxruntime from torch's own exporter.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch
import transformers
from tokenizers import Tokenizer

LONGEST = 256


def tokenizer(folder):
    read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    read.enable_padding()
    read.enable_truncation(LONGEST)

    def tokens(texts):
        encoded = read.encode_batch(texts)
        return numpy.array([one.ids for one in encoded]), numpy.array([one.attention_mask for one in encoded])

    return tokens


def pooled(rows, mask):
    weights = mask[..., None].astype(numpy.float32)
    vectors = (rows * weights).sum(1) / weights.sum(1)
    return vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True)


class Rows(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).last_hidden_state


def with_onnxruntime(folder, threads):
    import onnxruntime

    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = torch.ones(2, 8, dtype=torch.long)
    axes = {name: {0: "texts", 1: "tokens"} for name in [*names, "rows"]}
    with tempfile.TemporaryDirectory() as scratch:
        path = str(Path(scratch) / "model.onnx")
        torch.onnx.export(Rows(model), (example, example, example * 0), path, input_names=names, output_names=["rows"], dynamic_axes=axes,
                          opset_version=17, dynamo=False)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    tokens = tokenizer(folder)

    def embed(texts):
        ids, mask = tokens(texts)
        return pooled(session.run(None, dict(input_ids=ids, attention_mask=mask, token_type_ids=ids * 0))[0], mask)

    return embed, f"onnxruntime {onnxruntime.__version__}, f32"


def with_torch(folder, threads, kind):
    torch.set_num_threads(threads)
    model = transformers.AutoModel.from_pretrained(folder, dtype=kind).eval()
    tokens = tokenizer(folder)

    def embed(texts):
        ids, mask = tokens(texts)
        with torch.inference_mode():
            rows = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
        return pooled(rows.float().numpy(), mask)

    return embed, f"torch {torch.__version__}, transformers {transformers.__version__}, {kind}".replace("torch.", "")


def main():
    library, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if library == "onnxruntime":
        embed, version = with_onnxruntime(folder, threads)
    else:
        embed, version = with_torch(folder, threads, torch.bfloat16 if library == "torch-bf16" else torch.float32)
    embed(["warm"])
    print(json.dumps(dict(version=version)), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        each, vectors = [], []
        for first in range(0, len(asked["texts"]), asked["at_once"]):
            begun = time.perf_counter()
            some = embed(asked["texts"][first : first + asked["at_once"]])
            each.append(time.perf_counter() - begun)
            if asked.get("vectors"):
                vectors.extend(some.tolist())
        print(json.dumps(dict(seconds=sum(each), each=each, vectors=vectors)), flush=True)


if __name__ == "__main__":
    main()
