"""Encoders with a norm behind each part, in plain torch: those whose configurations need code of their authors, which `transformers` has
not and which cannot be fetched here. Written from the papers, the fields of the configurations and the names of the published tensors:
Nomic-BERT by GPT-2's names of fields (arXiv 2402.01613, its mixtures 2502.07972), Jina v2 (2310.19923) and its model for code, XLM-R with
rotated heads and adapters as in Jina v3 (2409.10173), and GTE's `new` (2407.19669). `encoders.py` compares it with `transformers` where
both have a model, before it makes a case.
"""

import math

import torch
from torch.nn import functional as F


def shapes(config):
    """The tensors of a model, by their names."""
    kind, (hidden, _, layers, inner) = config["model_type"], sizes(config)
    found = {"embeddings.word_embeddings.weight": (config["vocab_size"], hidden)}
    if kinds_of(config):
        found["embeddings.token_type_embeddings.weight"] = (kinds_of(config), hidden)
    if has_table(config):
        found["embeddings.position_embeddings.weight"] = (longest_of(config), hidden)
    norm = "emb_ln" if is_flash(config) or kind == "nomic_bert" else "embeddings.LayerNorm"
    found |= norm_of(norm, hidden)
    for layer in range(layers):
        found |= layer_shapes(config, layer, hidden, inner)
    prefix = config.get("prefix", "")
    found = {prefix + name: shape for name, shape in found.items()}
    if "id2label" in config:
        count = len(config["id2label"])
        if is_flash(config):
            found |= linear_of("classifier.dense", hidden, hidden) | linear_of("classifier.out_proj", count, hidden)
        else:
            found |= linear_of(f"{prefix}pooler.dense", hidden, hidden) | linear_of("classifier", count, hidden)
    return adapted(config, found)


def sizes(config):
    """Width, heads, layers, and the width within."""
    of = lambda *names: next(config[name] for name in names if name in config)
    hidden = of("hidden_size", "n_embd")
    return hidden, of("num_attention_heads", "n_head"), of("num_hidden_layers", "n_layer"), of("intermediate_size", "n_inner")


def is_flash(config):
    return config["model_type"] == "xlm-roberta"


def is_code(config):
    """Jina's model for code, which has more norms."""
    return config.get("query_norms", False)


def longest_of(config):
    return config.get("max_position_embeddings") or config["n_positions"]


def kinds_of(config):
    return config.get("type_vocab_size", 2)


def has_table(config):
    if config["model_type"] == "nomic_bert":
        return config.get("rotary_emb_fraction", 0.0) <= 0
    return config.get("position_embedding_type", "rope" if config["model_type"] == "new" else "absolute") == "absolute"


def norm_of(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def linear_of(name, outs, ins, bias=True):
    return {f"{name}.weight": (outs, ins)} | ({f"{name}.bias": (outs,)} if bias else {})


def layer_shapes(config, layer, hidden, inner):
    kind, found = config["model_type"], {}
    if kind == "nomic_bert":
        at, bias = f"encoder.layers.{layer}", config.get("qkv_proj_bias", True)
        found |= linear_of(f"{at}.attn.Wqkv", 3 * hidden, hidden, bias) | linear_of(f"{at}.attn.out_proj", hidden, hidden, bias)
        found |= norm_of(f"{at}.norm1", hidden) | norm_of(f"{at}.norm2", hidden)
        if is_mixture(config, layer):
            count = config["num_experts"]
            found[f"{at}.mlp.router.layer.weight"] = (count, hidden)
            found |= {f"{at}.mlp.experts.mlp.{part}": (count * inner, hidden) for part in ("w1", "w2")} | {f"{at}.mlp.experts.bias": (hidden,)}
            return found
        ups = ("fc11", "fc12") if config["activation_function"] in ("swiglu", "geglu") else ("fc1",)
        for up in ups:
            found |= linear_of(f"{at}.mlp.{up}", inner, hidden, config.get("mlp_fc1_bias", True))
        return found | linear_of(f"{at}.mlp.fc2", hidden, inner, config.get("mlp_fc2_bias", True))
    if is_flash(config):
        at = f"encoder.layers.{layer}"
        found |= linear_of(f"{at}.mixer.Wqkv", 3 * hidden, hidden) | linear_of(f"{at}.mixer.out_proj", hidden, hidden)
        found |= linear_of(f"{at}.mlp.fc1", inner, hidden) | linear_of(f"{at}.mlp.fc2", hidden, inner)
        return found | norm_of(f"{at}.norm1", hidden) | norm_of(f"{at}.norm2", hidden)
    at = f"encoder.layer.{layer}"
    if kind == "new":
        found |= linear_of(f"{at}.attention.qkv_proj", 3 * hidden, hidden) | linear_of(f"{at}.attention.o_proj", hidden, hidden)
        found |= linear_of(f"{at}.mlp.up_gate_proj", 2 * inner, hidden, False) | linear_of(f"{at}.mlp.down_proj", hidden, inner)
        return found | norm_of(f"{at}.attn_ln", hidden) | norm_of(f"{at}.mlp_ln", hidden)
    for part in ("query", "key", "value"):
        found |= linear_of(f"{at}.attention.self.{part}", hidden, hidden)
    found |= linear_of(f"{at}.attention.output.dense", hidden, hidden) | norm_of(f"{at}.attention.output.LayerNorm", hidden)
    if is_code(config):
        found |= norm_of(f"{at}.attention.self.layer_norm_q", hidden) | norm_of(f"{at}.attention.self.layer_norm_k", hidden)
        found |= linear_of(f"{at}.mlp.up_gated_layer", 2 * inner, hidden, False) | linear_of(f"{at}.mlp.down_layer", hidden, inner)
        return found | norm_of(f"{at}.layer_norm_1", hidden) | norm_of(f"{at}.layer_norm_2", hidden)
    if config.get("feed_forward_type", "original") == "original":
        found |= linear_of(f"{at}.intermediate.dense", inner, hidden) | linear_of(f"{at}.output.dense", hidden, inner)
        return found | norm_of(f"{at}.output.LayerNorm", hidden)
    found |= linear_of(f"{at}.mlp.gated_layers", 2 * inner, hidden, False) | linear_of(f"{at}.mlp.wo", hidden, inner)
    return found | norm_of(f"{at}.mlp.layernorm", hidden)


def is_mixture(config, layer):
    every = config.get("moe_every_n_layers") or 0
    return every > 0 and layer % every == 1


def adapted(config, found):
    """With adapters each matrix is the original of a parametrisation, beside the factors of one product for each task."""
    if not (tasks := config.get("lora_adaptations")):
        return found
    rank, more = config["lora_rank"], {}
    for name, shape in found.items():
        if len(shape) != 2 or name.startswith("classifier"):
            more[name] = shape
            continue
        path = name.removesuffix(".weight") + ".parametrizations.weight"
        more[f"{path}.original"] = shape
        # Vectors of words are added to by A B, products by B A.
        first, second = ((shape[0], rank), (rank, shape[1])) if "embeddings" in name else ((rank, shape[1]), (shape[0], rank))
        more |= {f"{path}.0.lora_A": (len(tasks), *first), f"{path}.0.lora_B": (len(tasks), *second)}
    return more


class Model:
    def __init__(self, config, tensors, task=None):
        self.config, self.tensors, self.task = config, tensors, task
        self.hidden, self.heads, self.layers, self.inner = sizes(config)
        self.prefix = config.get("prefix", "")
        self.eps = config.get("layer_norm_eps", config.get("layer_norm_epsilon", 1e-12))

    def matrix(self, name):
        if (plain := f"{name}.weight") in self.tensors:
            return self.tensors[plain]
        path = f"{name}.parametrizations.weight"
        original = self.tensors[f"{path}.original"]
        if self.task is None:
            return original
        at = self.config["lora_adaptations"].index(self.task)
        first, second = (self.tensors[f"{path}.0.lora_{part}"][at] for part in "AB")
        product = first @ second if "embeddings" in name else second @ first
        return original + product * (self.config["lora_alpha"] / self.config["lora_rank"])

    def linear(self, name, x):
        return F.linear(x, self.matrix(name), self.tensors.get(f"{name}.bias"))

    def norm(self, name, x):
        weight, bias = (self.tensors[f"{self.prefix}{name}.{part}"] for part in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)

    def rows(self, ids, kinds=None):
        """The vectors of a text's tokens."""
        count, at = len(ids), self.prefix
        x = self.matrix(f"{at}embeddings.word_embeddings")[ids]
        if kinds_of(self.config):
            x = x + self.matrix(f"{at}embeddings.token_type_embeddings")[kinds or [0] * count]
        if has_table(self.config):
            first = self.config["pad_token_id"] + 1 if is_flash(self.config) else 0
            x = x + self.matrix(f"{at}embeddings.position_embeddings")[first:first + count]
        flash = is_flash(self.config) or self.config["model_type"] == "nomic_bert"
        x = self.norm("emb_ln" if flash else "embeddings.LayerNorm", x)
        for layer in range(self.layers):
            x = self.layer(layer, x)
        return x

    def layer(self, layer, x):
        kind = self.config["model_type"]
        if kind == "nomic_bert" or is_flash(self.config):
            at, part = f"encoder.layers.{layer}", "attn" if kind == "nomic_bert" else "mixer"
            x = self.norm(f"{at}.norm1", x + self.attention(x, [f"{at}.{part}.Wqkv"], f"{at}.{part}.out_proj"))
            return self.norm(f"{at}.norm2", x + self.feed_forward(layer, f"{self.prefix}{at}.mlp", x))
        at = f"encoder.layer.{layer}"
        path = f"{self.prefix}{at}"
        if kind == "new":
            x = self.norm(f"{at}.attn_ln", x + self.attention(x, [f"{at}.attention.qkv_proj"], f"{at}.attention.o_proj"))
            up, gate = self.linear(f"{path}.mlp.up_gate_proj", x).chunk(2, -1)
            return self.norm(f"{at}.mlp_ln", x + self.linear(f"{path}.mlp.down_proj", F.gelu(gate) * up))
        names = [f"{at}.attention.self.{part}" for part in ("query", "key", "value")]
        mixed = self.norm(f"{at}.attention.output.LayerNorm", x + self.attention(x, names, f"{at}.attention.output.dense", at))
        if is_code(self.config):
            x = self.norm(f"{at}.layer_norm_1", x + mixed)
            up, gate = self.linear(f"{path}.mlp.up_gated_layer", x).chunk(2, -1)
            return self.norm(f"{at}.layer_norm_2", x + self.linear(f"{path}.mlp.down_layer", up * F.gelu(gate)))
        form = self.config.get("feed_forward_type", "original")
        if form == "original":
            inner = F.gelu(self.linear(f"{path}.intermediate.dense", mixed))
            return self.norm(f"{at}.output.LayerNorm", mixed + self.linear(f"{path}.output.dense", inner))
        gate, up = self.linear(f"{path}.mlp.gated_layers", mixed).chunk(2, -1)
        inner = (F.relu if form == "reglu" else F.gelu)(gate) * up
        return self.norm(f"{at}.mlp.layernorm", mixed + self.linear(f"{path}.mlp.wo", inner))

    def attention(self, x, names, out, norms=None):
        parts = [self.linear(self.prefix + name, x) for name in names]
        query, key, value = parts if len(parts) == 3 else parts[0].chunk(3, -1)
        if norms and is_code(self.config):
            query, key = (self.norm(f"{norms}.attention.self.layer_norm_{part}", x) for part, x in (("q", query), ("k", key)))
        count = len(x)
        query, key, value = (x.view(count, self.heads, -1).transpose(0, 1) for x in (query, key, value))
        query, key = self.turned(query), self.turned(key)
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        if self.config.get("position_embedding_type") == "alibi":
            places = torch.arange(count)
            scores = scores - torch.tensor(slopes(self.heads)).view(-1, 1, 1) * (places[None] - places[:, None]).abs()
        mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(count, -1)
        return self.linear(self.prefix + out, mixed)

    def turned(self, x):
        """Heads behind their rotation, `[heads, tokens, width]`."""
        config, count, width = self.config, x.shape[1], x.shape[2]
        kind, neighbours = config["model_type"], False
        if kind == "nomic_bert" and not has_table(config):
            width, theta = int(width * config["rotary_emb_fraction"]), config.get("rotary_emb_base", 10_000)
            factor, longest = config.get("rotary_scaling_factor"), config.get("max_trained_positions", 2048)
            if factor and count > longest:
                theta *= (factor * count / longest - (factor - 1)) ** (width / (width - 2))
            frequencies, neighbours = wavelengths(theta, width), config.get("rotary_emb_interleaved", False)
        elif kind == "new" and not has_table(config):
            theta, scaling = config.get("rope_theta", 10_000.0), config.get("rope_scaling") or {}
            factor, mixed = scaling.get("factor", 1.0), scaling.get("mixed_b")
            if not scaling:
                frequencies = wavelengths(theta, width)
            elif mixed is None:
                frequencies = wavelengths(theta * factor, width) / factor ** (2 / width)
            else:
                slope = math.log(factor) / (width / 2) ** mixed
                frequencies = wavelengths(theta, width) / (slope * torch.arange(1, width // 2 + 1) ** mixed).exp()
        elif config.get("position_embedding_type") == "rotary":
            frequencies = wavelengths(config.get("rotary_emb_base", 10_000), width)
        else:
            return x
        angles = torch.arange(count)[:, None] * frequencies[None]
        cos, sin = angles.cos(), angles.sin()
        turned, rest = x[..., :width], x[..., width:]
        one, other = (turned[..., ::2], turned[..., 1::2]) if neighbours else turned.chunk(2, -1)
        pair = one * cos - other * sin, other * cos + one * sin
        turned = torch.stack(pair, -1).flatten(-2) if neighbours else torch.cat(pair, -1)
        return torch.cat([turned, rest], -1)

    def feed_forward(self, layer, path, x):
        if is_mixture(self.config, layer):
            return self.mixture(path, x)
        if is_flash(self.config):
            return self.linear(f"{path}.fc2", F.gelu(self.linear(f"{path}.fc1", x)))
        form = self.config["activation_function"]
        if form not in ("swiglu", "geglu"):
            return self.linear(f"{path}.fc2", F.gelu(self.linear(f"{path}.fc1", x)))
        gate = (F.silu if form == "swiglu" else F.gelu)(self.linear(f"{path}.fc12", x))
        return self.linear(f"{path}.fc2", self.linear(f"{path}.fc11", x) * gate)

    def mixture(self, path, x):
        weights = F.linear(x, self.tensors[f"{path}.router.layer.weight"]).softmax(-1)
        first, second = (self.tensors[f"{path}.experts.mlp.{part}"].view(self.config["num_experts"], -1, self.hidden) for part in ("w1", "w2"))
        rows = []
        for row, shares in zip(x, weights):
            best = shares.topk(self.config["moe_top_k"])
            rows.append(sum(share * (F.gelu(first[at] @ row) @ second[at]) for share, at in zip(best.values, best.indices)))
        return torch.stack(rows) + self.tensors[f"{path}.experts.bias"]

    def labels(self, ids, kinds=None):
        """A classifier's numbers."""
        first = self.rows(ids, kinds)[0]
        dense, labels = ("classifier.dense", "classifier.out_proj") if is_flash(self.config) else (f"{self.prefix}pooler.dense", "classifier")
        return self.linear(labels, self.linear(dense, first).tanh())


def wavelengths(theta, width):
    return 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)


def slopes(heads):
    """What scores lose by distance in each head (arXiv 2108.12409)."""
    series = lambda count: [2 ** (-8 * at / count) for at in range(1, count + 1)]
    whole = 2 ** int(math.log2(heads))
    return series(whole) + series(2 * whole)[::2][:heads - whole]
