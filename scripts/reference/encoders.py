"""Makes the golden cases of encoders: tiny random models with the vectors of `sentence-transformers`, and classifiers with the
numbers of `transformers`.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt sentence-transformers
    VENV/bin/python scripts/reference/encoders.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/encoders/CASE.json with these fields:

    case, transformers, sentence_transformers
    files      the texts of the folder's files beside the weights, by their paths
    weights    the weight files by their paths: a seed and [name, shape, mean, scale] of every tensor, by families.py's rule
    texts      four lists of token ids
    seconds    of classifiers: the first token of each pair's second text
    answers    of models that write text: the tokens whose logits are compared
    vectors    the vector of each, computed by itself; of classifiers a number for each label; else the first answer's logit less
               the second one's

--models also writes DIR/CASE, a folder that both packages load.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import sentence_transformers
import torch
import transformers
from families import entry_of, tensor_of
from safetensors import safe_open
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "encoders"
LENGTHS = (1, 3, 12, 37)
SHAPE = dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=2, intermediate_size=40, vocab_size=90)
DISTIL = dict(dim=24, n_heads=3, n_layers=2, hidden_dim=40, vocab_size=90)
DECODER = dict(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=2, intermediate_size=40, vocab_size=90)
QWEN2 = {name: value for name, value in DECODER.items() if name != "head_dim"}
MODERN = dict(hidden_size=24, num_attention_heads=3, num_hidden_layers=4, intermediate_size=20, vocab_size=90, pad_token_id=0, bos_token_id=1,
              eos_token_id=2, cls_token_id=1, sep_token_id=2)
SPEC = dict(rules={}, zero_centred=None)


def case(model_type, pooling=None, dense=None, normalise=True, wrapped=False, **fields):
    """`wrapped`: the weights have the prefix of a model with a head. `pooling` none: a folder of transformers alone. Fields with
    `id2label` make a classifier."""
    return dict(model_type=model_type, pooling=pooling, dense=dense, normalise=normalise, wrapped=wrapped, fields=fields)


CASES = {
    "bert-mean": case("bert", ["mean"], max_position_embeddings=64, **SHAPE),
    "bert-cls": case("bert", ["cls"], normalise=False, max_position_embeddings=40, hidden_act="gelu_new", **SHAPE),
    "bert-wrapped": case("bert", wrapped=True, max_position_embeddings=64, **SHAPE),
    "bert-dense": case("bert", ["cls", "max", "mean"], dense=(16, True, "Tanh"), max_position_embeddings=64, **SHAPE),
    "roberta-last": case("roberta", ["lasttoken"], max_position_embeddings=66, pad_token_id=1, **SHAPE),
    "xlm-roberta": case("xlm-roberta", ["cls"], max_position_embeddings=66, pad_token_id=1, **SHAPE),
    "distilbert": case("distilbert", ["max"], dense=(9, False, "Identity"), max_position_embeddings=64, **DISTIL),
    "mpnet": case("mpnet", ["mean_sqrt_len_tokens"], max_position_embeddings=202, relative_attention_num_buckets=32, **SHAPE),
    "modernbert": case("modernbert", ["mean"], max_position_embeddings=64, local_attention=8, **MODERN),
    "modernbert-biases": case("modernbert", wrapped=True, max_position_embeddings=64, local_attention=6, norm_bias=True, attention_bias=True,
                              mlp_bias=True, global_rope_theta=1000.0, local_rope_theta=50.0, **MODERN),
    "judge-modernbert": case("modernbert", max_position_embeddings=64, local_attention=8, classifier_pooling="mean", id2label={0: "a", 1: "b"}, **MODERN),
    "judge-modernbert-cls": case("modernbert", max_position_embeddings=64, local_attention=8, classifier_bias=True, id2label={0: "LABEL_0"}, **MODERN),
    "decoder-qwen3": case("qwen3", ["lasttoken"], max_position_embeddings=64, **DECODER),
    "decoder-llama-dense": case("llama", ["mean"], dense=(11, False, "Identity"), normalise=False, max_position_embeddings=64, **DECODER),
    "decoder-gemma3-both-ways": case("gemma3_text", ["mean"], dense=[(32, False, "Identity"), (24, False, "Identity")], max_position_embeddings=64,
                                     use_bidirectional_attention=True, sliding_window=8, sliding_window_pattern=2, query_pre_attn_scalar=10,
                                     **DECODER),
    "decoder-qwen2-both-ways": case("qwen2", ["lasttoken"], is_causal=False, max_position_embeddings=64, **QWEN2),
    "decoder-mistral-both-ways": case("mistral", ["mean"], is_causal=False, sliding_window=6, max_position_embeddings=64, **DECODER),
    "judge-bert": case("bert", max_position_embeddings=64, id2label={0: "relevant"}, **SHAPE),
    "judge-bert-labels": case("bert", max_position_embeddings=64, id2label={0: "no", 1: "perhaps", 2: "yes"}, **SHAPE),
    "judge-roberta": case("roberta", max_position_embeddings=66, pad_token_id=1, type_vocab_size=1, id2label={0: "a", 1: "b"},
                          problem_type="multi_label_classification", **SHAPE),
    "judge-xlm-roberta": case("xlm-roberta", max_position_embeddings=66, pad_token_id=1, type_vocab_size=1, id2label={0: "LABEL_0"}, **SHAPE),
    "judge-distilbert": case("distilbert", max_position_embeddings=64, id2label={0: "bad", 1: "good"}, **DISTIL),
    "judge-mpnet": case("mpnet", max_position_embeddings=66, relative_attention_num_buckets=32, id2label={0: "LABEL_0"}, **SHAPE),
    "judge-qwen3": case("qwen3", max_position_embeddings=64, tie_word_embeddings=True, **DECODER),
    "mpnet-weighted": case("mpnet", ["weightedmean"], normalise=False, max_position_embeddings=64, **SHAPE),
}
ANSWERS = (17, 40)
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
NAMES = dict(zip(MODES, ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")))


def write_folder(folder, spec, seed):
    """Writes the whole folder; answers its texts and its weight files by their paths."""
    config = transformers.AutoConfig.for_model(spec["model_type"], **spec["fields"])
    model_of(spec).from_config(config).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    weights = {"model.safetensors": rewrite(folder / "model.safetensors", seed)}
    if spec["pooling"]:
        weights |= write_modules(folder, spec, seed)
    paths = sorted(path for path in folder.rglob("*.json"))
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths}, weights


def model_of(spec):
    """The class of the package that has the parts of a case."""
    if spec["model_type"] == "qwen3" and not spec["pooling"]:
        return transformers.AutoModelForCausalLM
    if "id2label" in spec["fields"]:
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForMaskedLM if spec["wrapped"] else transformers.AutoModel


def judgements_of(folder, spec, texts, seconds):
    """The numbers of a classifier, or of a model that is asked for a word."""
    model = model_of(spec).from_pretrained(folder, attn_implementation="eager").eval()
    answers = []
    with torch.no_grad():
        for ids, second in zip(texts, seconds):
            inputs = dict(input_ids=torch.tensor([ids]))
            if spec["model_type"] == "bert":
                inputs["token_type_ids"] = torch.tensor([[int(at >= second) for at in range(len(ids))]])
            logits = model(**inputs).logits[0]
            yes, no = ANSWERS
            answers.append([float(logits[-1, yes] - logits[-1, no])] if logits.dim() == 2 else logits.tolist())
    return answers


def write_modules(folder, spec, seed):
    width = (config_width := spec["fields"].get("hidden_size") or spec["fields"]["dim"]) * len(spec["pooling"])
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    put(folder / "1_Pooling/config.json", dict(word_embedding_dimension=config_width)
        | {f"pooling_mode_{mode}": name in spec["pooling"] for mode, name in NAMES.items()})
    weights = {}
    for at, (out, bias, activation) in enumerate(dense_of(spec), 2):
        path = f"{at}_Dense"
        modules.append((path, "Dense"))
        kind = "linear.Identity" if activation == "Identity" else "activation.Tanh"
        put(folder / path / "config.json", dict(in_features=width, out_features=out, bias=bias, activation_function=f"torch.nn.modules.{kind}"))
        layer = torch.nn.Linear(width, out, bias=bias)
        save_file({f"linear.{name}": value.detach() for name, value in layer.named_parameters()}, folder / path / "model.safetensors")
        weights[f"{path}/model.safetensors"] = rewrite(folder / path / "model.safetensors", seed + at - 2)
        width = out
    if spec["normalise"]:
        modules.append(("3_Normalize", "Normalize"))
        (folder / "3_Normalize").mkdir()
    named = [dict(idx=at, name=str(at), path=path, type=f"sentence_transformers.models.{kind}") for at, (path, kind) in enumerate(modules)]
    put(folder / "modules.json", named)
    put(folder / "sentence_bert_config.json", dict(max_seq_length=60 if spec["fields"]["max_position_embeddings"] > 60 else 38, do_lower_case=False))
    return weights


def dense_of(spec):
    """The products behind the pooling."""
    return spec["dense"] if isinstance(spec["dense"], list) else [spec["dense"]] if spec["dense"] else []


def put(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def rewrite(path, seed):
    """Gives every tensor of a file its numbers by the rule."""
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    entries = [entry_of(name, shape, SPEC) for name, shape in sorted(shapes.items())]
    save_file({entry[0]: tensor_of(entry, seed) for entry in entries}, path, metadata={"format": "pt"})
    return dict(seed=seed, tensors=entries)


def vectors_of(folder, spec, texts):
    """The vectors by the package that reads such folders."""
    with torch.no_grad():
        if not spec["pooling"]:
            model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
            of = lambda ids: torch.nn.functional.normalize(model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0), dim=0)
            return [of(ids).tolist() for ids in texts]
        # The layers read the folder without a tokenizer; the other modules are the package's own.
        from sentence_transformers.models import Dense, Normalize, Pooling

        layers = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        modules = [Pooling.load(str(folder / "1_Pooling"))]
        modules += [Dense.load(str(folder / f"{at}_Dense")) for at, _ in enumerate(dense_of(spec), 2)]
        modules += [Normalize()] if spec["normalise"] else []
        answers = []
        for ids in texts:
            mask = torch.ones(1, len(ids), dtype=torch.long)
            features = dict(token_embeddings=layers(input_ids=torch.tensor([ids])).last_hidden_state, attention_mask=mask)
            for module in modules:
                features = module(features)
            answers.append(features["sentence_embedding"][0].tolist())
        return answers


def make(name, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files, weights = write_folder(folder, spec, seed=1)
    generator = torch.Generator().manual_seed(len(name))
    texts = [torch.randint(3, 90, (length,), generator=generator).tolist() for length in LENGTHS]
    judges = name.startswith("judge-")
    more = dict(seconds=[(len(ids) + 1) // 2 for ids in texts]) if judges else {}
    if name == "judge-qwen3":
        more["answers"] = ANSWERS
    found = judgements_of(folder, spec, texts, more["seconds"]) if judges else vectors_of(folder, spec, texts)
    vectors = [[float(f"{number:.7g}") for number in vector] for vector in found]
    fields = dict(case=name, transformers=transformers.__version__, sentence_transformers=sentence_transformers.__version__,
                  files=files, weights=weights, texts=texts, **more, vectors=vectors)
    OUT.mkdir(parents=True, exist_ok=True)
    lines = [f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in fields.items()]
    (OUT / f"{name}.json").write_text("{" + ",\n".join(lines) + "}\n")
    print(name, (OUT / f"{name}.json").stat().st_size, "bytes", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--models", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name, spec in CASES.items():
        if arguments.names and name not in arguments.names:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            make(name, spec, (arguments.models or Path(scratch)) / name)


if __name__ == "__main__":
    main()
