"""Makes the golden cases of encoders: tiny random models with the vectors of `sentence-transformers`, and classifiers with the
numbers of `transformers`. Where a configuration needs code of its authors, which is not at hand, they are those of `post_norm.py`.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install -r scripts/reference/requirements.txt sentence-transformers
    VENV/bin/python scripts/reference/encoders.py [CASE ...] [--models DIR]

Each case becomes worker/candle/tests/encoders/CASE.json with these fields:

    case, transformers, sentence_transformers
    files      the texts of the folder's files beside the weights, by their paths
    weights    the weight files by their paths: a seed, the type if it is not F32, and [name, shape, mean, scale] of every tensor, by
               families.py's rule
    texts      four lists of token ids
    seconds    of classifiers: the first token of each pair's second text
    task       of models with adapters: that whose adapters are used
    answers    of models that write text: the tokens whose logits are compared
    vectors    the vector of each, computed by itself; of classifiers a number for each label; else the first answer's logit less
               the second one's

--models also writes DIR/CASE, a folder that both packages load.
"""

import json
import shutil
from pathlib import Path

import cases
import post_norm
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
LONG = dict(max_position_embeddings=64)
NOMIC = dict(n_embd=24, n_head=3, n_layer=2, n_inner=40, vocab_size=90, n_positions=64, layer_norm_epsilon=1e-12, rotary_emb_base=1000,
             rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None, prenorm=False, causal=False, type_vocab_size=2)
NO_BIASES = dict(qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False)
JINA = dict(position_embedding_type="alibi", type_vocab_size=2, **LONG)
FLASH = dict(position_embedding_type="rotary", rotary_emb_base=20000.0, type_vocab_size=1, pad_token_id=1, layer_norm_eps=1e-5)
ADAPTERS = dict(lora_adaptations=["retrieval.query", "separation"], lora_rank=2, lora_alpha=3)
GTE = dict(position_embedding_type="rope", rope_theta=500.0, layer_norm_type="layer_norm", pack_qkv=True, hidden_act="gelu", **LONG)


def case(model_type, pooling=None, dense=None, normalise=True, wrapped=False, renamed=False, stored="F32", **fields):
    """`wrapped`: the weights have the prefix of a model with a head. `pooling` none: a folder of transformers alone. Fields with
    `id2label` make a classifier. `renamed`: the tensors have the names of transformers 5, else those that a family was published
    with. `stored`: the type of the floats."""
    return dict(model_type=model_type, pooling=pooling, dense=dense, normalise=normalise, wrapped=wrapped, renamed=renamed, stored=stored,
                fields=fields)


def own(model_type, pooling=None, **fields):
    """A case whose configuration `transformers` does not know. `task`: the adapters that are used."""
    task, query_norms = fields.pop("task", None), fields.pop("query_norms", False)
    return case(model_type, pooling, **fields) | dict(own=True, task=task, query_norms=query_norms)


CASES = {
    "bert-mean": case("bert", ["mean"], max_position_embeddings=64, **SHAPE),
    "bert-cls": case("bert", ["cls"], normalise=False, max_position_embeddings=40, hidden_act="gelu_new", **SHAPE),
    "bert-f16": case("bert", ["mean"], dense=(16, True, "Tanh"), stored="F16", max_position_embeddings=64, **SHAPE),
    "modernbert-bf16": case("modernbert", ["mean"], stored="BF16", max_position_embeddings=64, local_attention=8, **MODERN),
    "mpnet-bf16": case("mpnet", ["cls"], stored="BF16", max_position_embeddings=202, relative_attention_num_buckets=32, **SHAPE),
    "judge-xlm-roberta-f16": case("xlm-roberta", stored="F16", max_position_embeddings=66, pad_token_id=1, type_vocab_size=1,
                                  id2label={0: "LABEL_0"}, **SHAPE),
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
    "nomic": case("nomic_bert", ["mean"], **LONG, **SHAPE),
    "nomic-renamed": case("nomic_bert", ["cls"], wrapped=True, renamed=True, head_dim=10, hidden_act="gelu", type_vocab_size=1,
                          rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=700.0), **LONG, **SHAPE),
    "nomic-dynamic": own("nomic_bert", ["mean"], activation_function="swiglu", rotary_scaling_factor=2.0, max_trained_positions=20, **NO_BIASES,
                         **NOMIC),
    "nomic-biases": own("nomic_bert", activation_function="geglu", **NOMIC | dict(rotary_emb_fraction=0.5, rotary_emb_interleaved=True)),
    "nomic-table": own("nomic_bert", activation_function="gelu", mlp_fc2_bias=False, **NOMIC | dict(rotary_emb_fraction=0.0)),
    "nomic-experts": own("nomic_bert", ["mean"], activation_function="gelu", moe_every_n_layers=2, num_experts=4, moe_top_k=2,
                         moe_normalize_expert_weights=False, **NOMIC | dict(n_layer=3, type_vocab_size=1)),
    "gte": case("gte", ["cls"], **LONG, **SHAPE),
    "gte-renamed": case("gte", renamed=True, type_vocab_size=0, rope_parameters=dict(rope_type="default", rope_theta=300.0), **LONG, **SHAPE),
    "gte-ntk": own("new", ["cls"], rope_scaling=dict(type="ntk", factor=2.0), type_vocab_size=0, **GTE, **SHAPE),
    "gte-ntk-mixed": own("new", prefix="new.", rope_scaling=dict(type="ntk", factor=4.0, mixed_b=0.625), type_vocab_size=1, **GTE, **SHAPE),
    "gte-table": own("new", ["mean"], type_vocab_size=2, **GTE | dict(position_embedding_type="absolute"), **SHAPE),
    "jina-v2": own("bert", ["mean"], feed_forward_type="geglu", **JINA, **SHAPE),
    "jina-v2-six-heads": own("bert", prefix="bert.", feed_forward_type="reglu", **JINA, **SHAPE | dict(num_attention_heads=6)),
    "jina-v2-plain": own("bert", **JINA, **SHAPE),
    "jina-v2-code": own("bert", ["mean"], query_norms=True, feed_forward_type="geglu", **JINA, **SHAPE),
    "jina-v3": case("jina_embeddings_v3", ["mean"], **LONG, **SHAPE),
    "jina-v3-renamed": case("jina_embeddings_v3", wrapped=True, renamed=True, **LONG, **SHAPE),
    "jina-v3-flash": own("xlm-roberta", ["mean"], prefix="roberta.", **FLASH, **ADAPTERS, **LONG, **SHAPE),
    "jina-v3-adapted": own("xlm-roberta", ["mean"], task="separation", prefix="roberta.", **FLASH, **ADAPTERS, **LONG, **SHAPE),
    "judge-nomic": case("nomic_bert", id2label={0: "LABEL_0"}, **LONG, **SHAPE),
    "judge-gte": case("gte", type_vocab_size=2, id2label={0: "a", 1: "b"}, **LONG, **SHAPE),
    "judge-gte-new": own("new", prefix="new.", rope_scaling=dict(type="ntk", factor=2.0), type_vocab_size=1, id2label={0: "LABEL_0"}, **GTE, **SHAPE),
    "judge-jina-v2": own("bert", prefix="bert.", feed_forward_type="geglu", id2label={0: "LABEL_0"}, **JINA, **SHAPE),
    "judge-jina-v3": case("jina_embeddings_v3", renamed=True, id2label={0: "LABEL_0"}, **LONG, **SHAPE),
    "judge-jina-flash": own("xlm-roberta", prefix="roberta.", id2label={0: "LABEL_0"},
                            **FLASH | dict(position_embedding_type="absolute"), **LONG, **SHAPE),
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
TYPES = dict(F32=torch.float32, F16=torch.float16, BF16=torch.bfloat16)
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
NAMES = dict(zip(MODES, ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")))


def write_folder(folder, spec, seed):
    """Writes the whole folder; answers its texts and its weight files by their paths."""
    if spec.get("own"):
        save_own(folder, spec)
    else:
        config = transformers.AutoConfig.for_model(spec["model_type"], **spec["fields"])
        model_of(spec).from_config(config).save_pretrained(folder, save_original_format=not spec["renamed"])
    (folder / "generation_config.json").unlink(missing_ok=True)
    weights = {"model.safetensors": rewrite(folder / "model.safetensors", seed, spec["stored"])}
    if spec["pooling"]:
        weights |= write_modules(folder, spec, seed)
    paths = sorted(path for path in folder.rglob("*.json"))
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in paths}, weights


def own_config(spec):
    """The configuration of a model that `post_norm` computes."""
    return dict(model_type=spec["model_type"], query_norms=spec["query_norms"], **spec["fields"])


def save_own(folder, spec):
    config = own_config(spec)
    put(folder / "config.json", {key: value for key, value in config.items() if key not in ("prefix", "query_norms")})
    save_file({name: torch.zeros(shape) for name, shape in post_norm.shapes(config).items()}, folder / "model.safetensors")


def own_model(folder, spec):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return post_norm.Model(own_config(spec), {name: file.get_tensor(name) for name in file.keys()}, spec["task"])


def model_of(spec):
    """The class of the package that has the parts of a case."""
    if spec["model_type"] == "qwen3" and not spec["pooling"]:
        return transformers.AutoModelForCausalLM
    if "id2label" in spec["fields"]:
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForMaskedLM if spec["wrapped"] else transformers.AutoModel


def judgements_of(folder, spec, texts, seconds):
    """The numbers of a classifier, or of a model that is asked for a word."""
    if spec.get("own"):
        model = own_model(folder, spec)
        kinds = lambda ids, second: [int(at >= second and post_norm.kinds_of(model.config) > 1) for at in range(len(ids))]
        with torch.no_grad():
            return [model.labels(ids, kinds(ids, second)).tolist() for ids, second in zip(texts, seconds)]
    model = model_of(spec).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    answers = []
    with torch.no_grad():
        for ids, second in zip(texts, seconds):
            inputs = dict(input_ids=torch.tensor([ids]))
            if spec["model_type"] in ("bert", "nomic_bert", "gte"):
                inputs["token_type_ids"] = torch.tensor([[int(at >= second) for at in range(len(ids))]])
            logits = model(**inputs).logits[0]
            yes, no = ANSWERS
            answers.append([float(logits[-1, yes] - logits[-1, no])] if logits.dim() == 2 else logits.tolist())
    return answers


def write_modules(folder, spec, seed):
    fields = spec["fields"]
    config_width = next(fields[name] for name in ("hidden_size", "dim", "n_embd") if name in fields)
    width = config_width * len(spec["pooling"])
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
        weights[f"{path}/model.safetensors"] = rewrite(folder / path / "model.safetensors", seed + at - 2, spec["stored"])
        width = out
    if spec["normalise"]:
        modules.append(("3_Normalize", "Normalize"))
        (folder / "3_Normalize").mkdir()
    named = [dict(idx=at, name=str(at), path=path, type=f"sentence_transformers.models.{kind}") for at, (path, kind) in enumerate(modules)]
    put(folder / "modules.json", named)
    put(folder / "sentence_bert_config.json", dict(max_seq_length=60 if post_norm.longest_of(fields) > 60 else 38, do_lower_case=False))
    return weights


def dense_of(spec):
    """The products behind the pooling."""
    return spec["dense"] if isinstance(spec["dense"], list) else [spec["dense"]] if spec["dense"] else []


def put(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def rewrite(path, seed, stored="F32"):
    """Gives every tensor of a file its numbers by the rule, in this type."""
    with safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    entries = [entry_of(name, shape, SPEC) for name, shape in sorted(shapes.items())]
    save_file({entry[0]: tensor_of(entry, seed).to(TYPES[stored]) for entry in entries}, path, metadata={"format": "pt"})
    return dict(seed=seed, **(dict(dtype=stored) if stored != "F32" else {}), tensors=entries)


def vectors_of(folder, spec, texts):
    """The vectors by the package that reads such folders."""
    with torch.no_grad():
        if spec.get("own"):
            own = own_model(folder, spec)
            rows_of = own.rows
        elif spec["pooling"]:
            # The layers read the folder without a tokenizer; the other modules are the package's own.
            layers = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
            rows_of = lambda ids: layers(input_ids=torch.tensor([ids])).last_hidden_state[0]
        if not spec["pooling"] and spec.get("own"):
            return [torch.nn.functional.normalize(rows_of(ids).mean(0), dim=0).tolist() for ids in texts]
        if not spec["pooling"]:
            model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
            of = lambda ids: torch.nn.functional.normalize(model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0), dim=0)
            return [of(ids).tolist() for ids in texts]
        from sentence_transformers.models import Dense, Normalize, Pooling

        modules = [Pooling.load(str(folder / "1_Pooling"))]
        modules += [Dense.load(str(folder / f"{at}_Dense")) for at, _ in enumerate(dense_of(spec), 2)]
        modules += [Normalize()] if spec["normalise"] else []
        answers = []
        for ids in texts:
            mask = torch.ones(1, len(ids), dtype=torch.long)
            features = dict(token_embeddings=rows_of(ids)[None], attention_mask=mask)
            for module in modules:
                features = module(features)
            answers.append(features["sentence_embedding"][0].tolist())
        return answers


def compare(name, spec, folder, texts):
    """Checks `post_norm` by a model that `transformers` has too. It has the names of the published files alone."""
    fields = {"nomic_bert": dict(activation_function="swiglu", rotary_emb_fraction=1.0, rotary_emb_base=1000, **NO_BIASES),
              "gte": dict(model_type="new", type_vocab_size=1, rope_theta=160_000.0), "jina_embeddings_v3": dict(model_type="xlm-roberta", **FLASH)}
    if spec["renamed"] or spec["wrapped"]:
        return
    config = dict(model_type=spec["model_type"]) | fields[spec["model_type"]] | spec["fields"] | dict(query_norms=False)
    config["prefix"] = {"nomic_bert": "nomic_bert.", "gte": "gte."}.get(spec["model_type"], "roberta.") if "id2label" in config else ""
    with safe_open(folder / "model.safetensors", "pt") as file:
        model = post_norm.Model(config, {name: file.get_tensor(name) for name in file.keys()})
    layers = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    for ids in texts:
        with torch.no_grad():
            theirs, ours = layers(input_ids=torch.tensor([ids])).last_hidden_state[0], model.rows(ids)
        apart = float((ours - theirs).abs().max())
        assert apart < 1e-5, f"{name}: {apart}"


def make(name, spec, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files, weights = write_folder(folder, spec, seed=1)
    generator = torch.Generator().manual_seed(len(name))
    texts = [torch.randint(3, 90, (length,), generator=generator).tolist() for length in LENGTHS]
    judges = name.startswith("judge-")
    if not spec.get("own") and spec["model_type"] in ("nomic_bert", "gte", "jina_embeddings_v3"):
        compare(name, spec, folder, texts)
    more = dict(seconds=[(len(ids) + 1) // 2 for ids in texts]) if judges else {}
    if name == "judge-qwen3":
        more["answers"] = ANSWERS
    found = judgements_of(folder, spec, texts, more["seconds"]) if judges else vectors_of(folder, spec, texts)
    vectors = [[float(f"{number:.7g}") for number in vector] for vector in found]
    fields = dict(case=name, transformers=transformers.__version__, sentence_transformers=sentence_transformers.__version__,
                  files=files, weights=weights, texts=texts, **more, **(dict(task=spec["task"]) if spec.get("task") else {}), vectors=vectors)
    cases.write(OUT, name, fields)


if __name__ == "__main__":
    cases.run(CASES, lambda name, folder, _: make(name, CASES[name], folder))
