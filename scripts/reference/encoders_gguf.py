"""Makes the golden cases of encoders in GGUF: the models of `encoders.py` in other sizes, by the names that the package `gguf` has for
their tensors, with the keys that llama.cpp's converter writes. The vectors are those of the model that was converted, so a case shows
that names, orders and keys are read as they are meant.

Run it as `encoders.py`, with the package `gguf` beside the others:

    VENV/bin/python scripts/reference/encoders_gguf.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/encoders/CASE.json with the fields of `encoders.py`, and in place of files and weights:

    seed, keys    the metadata: key, type and value
    tensors       by name: the entries that it is made of, one behind the other, by families.py's rule; its shape; the first row of the
                  entry that is taken; and whether each row's matrix is turned over

--models also writes DIR/CASE.gguf.
"""

from pathlib import Path

import cases
import encoders
import gguf
import sentence_transformers
import torch
import transformers
from families import tensor_of
from safetensors.torch import load_file, save_file

SHAPE = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=64, vocab_size=96)
NOMIC = encoders.NOMIC | dict(n_embd=32, n_head=4, n_inner=64, vocab_size=96)
DECODER = encoders.DECODER | dict(hidden_size=32, intermediate_size=64, vocab_size=96)
MODERN = encoders.MODERN | dict(hidden_size=32, num_attention_heads=4, intermediate_size=32, vocab_size=96)
LONG = encoders.LONG
CASES = {
    "gguf-bert": ("bert", "MEAN", encoders.case("bert", ["mean"], **LONG, **SHAPE)),
    "gguf-distilbert": ("bert", "CLS", encoders.case("distilbert", ["cls"], dim=32, n_heads=4, n_layers=2, hidden_dim=64, vocab_size=96, **LONG)),
    "gguf-xlm-roberta": ("bert", "CLS", encoders.case("xlm-roberta", ["cls"], max_position_embeddings=66, pad_token_id=1, type_vocab_size=1, **SHAPE)),
    "gguf-nomic": ("nomic-bert", "MEAN", encoders.case("nomic_bert", ["mean"], **LONG, **SHAPE)),
    "gguf-nomic-experts": ("nomic-bert-moe", "MEAN", encoders.own("nomic_bert", ["mean"], activation_function="gelu", moe_every_n_layers=2,
                                                                  num_experts=4, moe_top_k=2, **NOMIC)),
    "gguf-jina-v2": ("jina-bert-v2", "MEAN", encoders.own("bert", ["mean"], feed_forward_type="geglu", **encoders.JINA, **SHAPE)),
    "gguf-jina-v2-code": ("jina-bert-v2", "MEAN", encoders.own("bert", ["mean"], query_norms=True, feed_forward_type="geglu", **encoders.JINA,
                                                               **SHAPE)),
    "gguf-jina-v3": ("jina-bert-v3", "MEAN", encoders.case("jina_embeddings_v3", ["mean"], **LONG, **SHAPE)),
    "gguf-modernbert": ("modern-bert", "CLS", encoders.case("modernbert", ["cls"], local_attention=8, **LONG, **MODERN)),
    "decoder-gguf-gemma3": ("gemma-embedding", "MEAN", encoders.case("gemma3_text", ["mean"], dense=[(64, False, "Identity"), (32, False, "Identity")],
                                                                     use_bidirectional_attention=True, sliding_window=8,
                                                                     query_pre_attn_scalar=8, **LONG, **DECODER | dict(num_hidden_layers=6))),
    "judge-gguf-bert": ("bert", "RANK", encoders.case("bert", id2label={0: "LABEL_0"}, **LONG, **SHAPE)),
    "judge-gguf-xlm-roberta": ("bert", "RANK", encoders.case("xlm-roberta", max_position_embeddings=66, pad_token_id=1, type_vocab_size=1,
                                                             id2label={0: "LABEL_0"}, **SHAPE)),
    "judge-gguf-modernbert": ("modern-bert", "RANK", encoders.case("modernbert", local_attention=8, classifier_pooling="mean",
                                                                   id2label={0: "no", 1: "yes", 2: "perhaps"}, **LONG, **MODERN)),
}
POOLING = dict(MEAN=1, CLS=2, RANK=4)


def keys_of(arch, pooling, spec):
    """The metadata: key, type and value."""
    fields = spec["fields"]
    hidden = next(fields[name] for name in ("hidden_size", "dim", "n_embd") if name in fields)
    first = 1 + fields["pad_token_id"] if spec["model_type"] == "xlm-roberta" else 0
    of = lambda *names: next(fields[name] for name in names if name in fields)
    keys = [("block_count", "u32", of("num_hidden_layers", "n_layers", "n_layer")), ("context_length", "u32", of("max_position_embeddings", "n_positions") - first),
            ("embedding_length", "u32", hidden), ("feed_forward_length", "u32", of("intermediate_size", "hidden_dim", "n_inner")),
            ("attention.head_count", "u32", of("num_attention_heads", "n_heads", "n_head")), ("pooling_type", "u32", POOLING[pooling])]
    if arch == "gemma-embedding":
        keys += [("attention.layer_norm_rms_epsilon", "f32", 1e-6), ("attention.head_count_kv", "u32", fields["num_key_value_heads"]),
                 ("attention.key_length", "u32", fields["head_dim"]), ("attention.value_length", "u32", fields["head_dim"]),
                 ("attention.sliding_window", "u32", fields["sliding_window"]), ("rope.freq_base", "f32", 1e6)]
    else:
        eps = 1e-5 if arch in ("jina-bert-v3", "modern-bert") else 1e-12
        keys += [("attention.layer_norm_epsilon", "f32", eps), ("attention.causal", "bool", False)]
    if arch in ("nomic-bert", "nomic-bert-moe"):
        keys.append(("rope.freq_base", "f32", 1000.0))
    if arch == "jina-bert-v3":
        keys.append(("rope.freq_base", "f32", 20000.0))
    if arch == "modern-bert":
        keys += [("rope.freq_base", "f32", 160000.0), ("rope.freq_base_swa", "f32", 10000.0), ("attention.sliding_window", "u32", fields["local_attention"])]
    if "moe_every_n_layers" in fields:
        keys += [("moe_every_n_layers", "u32", fields["moe_every_n_layers"]), ("expert_count", "u32", fields["num_experts"]),
                 ("expert_used_count", "u32", fields["moe_top_k"])]
    if len(labels := fields.get("id2label", {})) > 1:
        keys.append(("classifier.output_labels", "texts", list(labels.values())))
    return [("general.architecture", "text", arch)] + [(f"{arch}.{key}", kind, value) for key, kind, value in keys]


def tensors_of(arch, spec, weights):
    """The file's tensors, made of the entries of the model's."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[arch], 8)
    found = {}
    for path, entries in weights.items():
        for entry in entries["tensors"]:
            name, shape = entry[0], list(entry[1])
            plain = name.removeprefix("bert.").removeprefix("roberta.").removeprefix("distilbert.")
            if arch == "modern-bert":
                plain = plain.removeprefix("model.")
            if path != "model.safetensors":
                plain = plain.replace("linear", "dense_2" if path.startswith("2_") else "dense_3")
            if "pooler.dense" in plain or "lm_head" in plain or plain.startswith("cls.") or plain.endswith("experts.bias"):
                continue
            if plain.startswith("classifier.") and spec["model_type"] in ("bert", "modernbert"):
                plain = plain.replace("classifier.", "classifier.out_proj.")
            first, turned = 0, False
            if plain == "embeddings.position_embeddings.weight" and spec["model_type"] == "xlm-roberta":
                first = spec["fields"]["pad_token_id"] + 1
                shape[0] -= first
            if ".experts.mlp." in plain:
                count = spec["fields"]["num_experts"]
                shape, turned = [count, shape[0] // count, shape[1]], plain.endswith("w2")
                plain += ".weight"
            if plain.startswith(("layers.", "embed_tokens", "norm.")) and arch == "gemma-embedding":
                plain = "model." + plain
            mapped = names.get_name(plain, try_suffixes=(".weight", ".bias"))
            assert mapped, plain
            if turned:
                shape = [shape[0], shape[2], shape[1]]
            # The converter stores the weights of Gemma's norms whole.
            more = 1.0 if arch == "gemma-embedding" and "norm" in plain else 0.0
            found[mapped] = dict(parts=[[entry, entries["seed"]]], shape=shape, first=first, turned=turned, more=more)
    return found


def values_of(tensor):
    (entry, seed), = tensor["parts"]
    values = tensor_of(entry, seed) + tensor["more"]
    values = values[tensor["first"]:]
    if tensor["turned"]:
        count, outs, ins = tensor["shape"]
        values = values.reshape(count, ins, outs).transpose(1, 2).contiguous()
    return values.reshape(tensor["shape"])


def write(path, arch, keys, tensors):
    """The file as the package writes it."""
    writer = gguf.GGUFWriter(path, arch)
    add = dict(u32=writer.add_uint32, f32=writer.add_float32, bool=writer.add_bool, text=writer.add_string, texts=writer.add_array)
    for key, kind, value in keys[1:]:
        add[kind](key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, values_of(tensor).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def plain_judgements(folder, spec, texts, seconds):
    """Those of a BERT whose pooler is not part of the file, as llama.cpp's converter leaves it out."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    answers = []
    with torch.no_grad():
        for ids, second in zip(texts, seconds):
            kinds = torch.tensor([[int(at >= second) for at in range(len(ids))]])
            rows = model.bert(input_ids=torch.tensor([ids]), token_type_ids=kinds).last_hidden_state
            answers.append(model.classifier(rows[0, 0]).tolist())
    return answers


def without_expert_biases(path):
    """The converter leaves out the bias behind the experts of a mixture: it is 0 here."""
    tensors = load_file(path)
    save_file({name: value * 0 if name.endswith("experts.bias") else value for name, value in tensors.items()}, path, metadata={"format": "pt"})


def make(name, folder, models):
    arch, pooling, spec = CASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    _, weights = encoders.write_folder(folder, spec, seed=1)
    without_expert_biases(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(len(name))
    texts = [torch.randint(3, 90, (length,), generator=generator).tolist() for length in encoders.LENGTHS]
    judges = name.startswith("judge-")
    more = dict(seconds=[(len(ids) + 1) // 2 for ids in texts]) if judges else {}
    if judges:
        judge = plain_judgements if spec["model_type"] == "bert" else encoders.judgements_of
        found = judge(folder, spec, texts, more["seconds"])
    else:
        found = encoders.vectors_of(folder, spec, texts)
    keys, tensors = keys_of(arch, pooling, spec), tensors_of(arch, spec, weights)
    if models:
        models.mkdir(parents=True, exist_ok=True)
        write(models / f"{name}.gguf", arch, keys, tensors)
    vectors = [[float(f"{number:.7g}") for number in vector] for vector in found]
    listed = [[name, [entry for entry, _ in tensor["parts"]], tensor["parts"][0][1], tensor["shape"], tensor["first"], tensor["turned"],
               tensor["more"]] for name, tensor in tensors.items()]
    fields = dict(case=name, transformers=transformers.__version__, sentence_transformers=sentence_transformers.__version__,
                  keys=keys, tensors=listed, texts=texts, **more, vectors=vectors)
    cases.write(encoders.OUT, name, fields)


if __name__ == "__main__":
    cases.run(CASES, make)
