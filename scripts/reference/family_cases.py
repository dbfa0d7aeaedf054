"""The cases of families.py: small configurations that between them use every part in which a family differs from Llama."""

import re

import torch

PROMPT_LENGTHS = (1, 7, 19, 40)

SMALL = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
YARN = dict(rope_type="yarn", rope_theta=10_000.0, factor=4.0, original_max_position_embeddings=32)


def case(
    model_type,
    *,
    model=None,
    gguf=False,
    write=None,
    drop=(),
    rules=None,
    zero_centred=None,
    lengths=PROMPT_LENGTHS,
    store=lambda entries: entries,
    loaded=None,
    base=SMALL,
    **fields,
):
    """The description of a case.

    `gguf` marks the one case of a family that is kept as GGUF. `model` is a class of transformers if the one for causal language models is not meant. `write` and `drop` change
    config.json after transformers wrote it, to test other spellings; a dot in a key goes into an object. `rules` holds
    {pattern: (axis of inputs, rule)} before those of families.py. Norms whose names match `zero_centred` have a mean of 0,
    because the family adds 1. `store` changes the list of stored tensors, and `loaded` turns stored tensors into those that
    transformers reads. A field of None in `base` is left out.
    """
    return dict(
        model_type=model_type,
        model=model,
        gguf=gguf,
        write=write or {},
        drop=tuple(drop.split()) if isinstance(drop, str) else drop,
        rules=rules or {},
        zero_centred=zero_centred,
        lengths=lengths,
        store=store,
        loaded=loaded,
        fields={**base, **(dict(intermediate_size=32, vocab_size=64) if gguf else {}), **fields},
    )


def rope(kind="default", theta=10_000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


def old_rope(theta, scaling=None, **more):
    """The rope fields of config.json as the hub has them from transformers 4."""
    return dict(write=dict(rope_theta=theta, rope_scaling=scaling, **more), drop="rope_parameters")


# Gemma multiplies the embedding by the root of the width; with the usual scale, layers would hardly change the stream.
GEMMA = dict(zero_centred="norm", rules={r"embed_tokens\.weight": (None, dict(mean=0, scale=0.2))})


def ramp(count, first, step):
    return [round(first + step * i, 3) for i in range(count)]


YARN_OLD = dict(type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=32, beta_slow=1)
# The norm inside of a gated delta net has weights about 1; all other norms of these families add 1 to theirs.
NOT_GATED = r"(layernorm|[qk]_norm|model\.norm)\.weight$"
DELTA_NET = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_conv_kernel_dim=4,
)
MAMBA_2 = dict(
    mamba_n_heads=4,
    mamba_d_head=16,
    mamba_expand=2,
    mamba_n_groups=2,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_chunk_size=16,
)
NEMOTRON_MAMBA = dict(
    ssm_state_size=16,
    mamba_num_heads=8,
    mamba_head_dim=8,
    n_groups=2,
    conv_kernel=4,
    expand=2,
    chunk_size=16,
    use_mamba_kernels=False,
)
QWEN_VISION = dict(
    depth=1,
    hidden_size=8,
    intermediate_size=8,
    num_heads=2,
    patch_size=4,
    spatial_merge_size=1,
    temporal_patch_size=1,
    out_hidden_size=32,
    num_position_embeddings=4,
)
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def store_fused(entries):
    """Replaces the matrices of single experts by one tensor for all gates and ups, and one for all downs."""
    stored = {}
    for name, shape, *rest in entries:
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if not found:
            stored[name] = [name, shape, *rest]
            continue
        start, expert, part = found.groups()
        fused = f"{start}.down_proj" if part == "down" else f"{start}.gate_up_proj"
        rows = shape[0] if part == "down" else 2 * shape[0]
        if fused not in stored or int(expert) >= stored[fused][1][0]:
            stored[fused] = [fused, [int(expert) + 1, rows, shape[1]], *rest]
    return list(stored.values())


def store_mxfp4(entries):
    """Replaces the experts' matrices by blocks of 32 numbers of 4 bits, and one exponent for each block."""
    stored = []
    for name, shape, *rest in entries:
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored.append([name, shape, *rest])
            continue
        experts, inputs, outputs = shape
        stored.append([f"{name}_blocks", [experts, outputs, inputs // 32, 16], 0, 256, "u8"])
        stored.append([f"{name}_scales", [experts, outputs, inputs // 32], 122, 3, "u8"])
    return stored


def load_mxfp4(stored):
    """The matrices of the blocks. The low half of a byte comes first; the exponent's bias is 127; rows become columns."""
    values = torch.tensor(FP4_VALUES + tuple(-value for value in FP4_VALUES))
    loaded = {}
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            exponents = stored[name.removesuffix("_blocks") + "_scales"].int() - 127
            halves = torch.stack([tensor & 15, tensor >> 4], dim=-1).flatten(-2)
            matrix = torch.ldexp(values[halves.long()], exponents[..., None]).flatten(-2)
            loaded[name.removesuffix("_blocks")] = matrix.transpose(1, 2).contiguous()
        elif not name.endswith("_scales"):
            loaded[name] = tensor
    return loaded


FAMILIES = {
    "mistral": {
        "window": case("mistral", head_dim=12, sliding_window=8),
        "no-window": case(
            "mistral", sliding_window=None, gguf=True, head_dim=16, tie_word_embeddings=True, **old_rope(1_000_000.0)
        ),
    },
    "ministral": {
        "layers": case(
            "ministral",
            gguf=True,
            num_hidden_layers=3,
            head_dim=16,
            sliding_window=8,
            layer_types=["full_attention", "sliding_attention", "full_attention"],
        ),
        "all-window": case("ministral", head_dim=12, sliding_window=8, drop="layer_types"),
    },
    "llama": {
        "dynamic": case(
            "llama", max_position_embeddings=32, rope_parameters=rope("dynamic", factor=3.0), tie_word_embeddings=True
        ),
        "longrope": case(
            "llama",
            head_dim=16,
            rope_parameters=rope(
                "longrope",
                short_factor=ramp(8, 1.0, 0.1),
                long_factor=ramp(8, 1.5, 0.7),
                original_max_position_embeddings=32,
                factor=4.0,
            ),
        ),
    },
    "qwen2": {
        "window": case(
            "qwen2",
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=1,
            drop="layer_types",
        ),
    },
    "qwen3": {
        "window": case(
            "qwen3",
            num_hidden_layers=3,
            head_dim=16,
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=2,
            tie_word_embeddings=True,
            attention_bias=True,
        ),
        "layer-types": case(
            "qwen3",
            num_hidden_layers=3,
            head_dim=12,
            use_sliding_window=True,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
    },
    "gemma2": {
        "softcaps": case(
            "gemma2",
            gguf=True,
            **GEMMA,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=8,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=6.0,
            drop="layer_types",
        ),
        "no-softcaps": case(
            "gemma2",
            **GEMMA,
            head_dim=12,
            query_pre_attn_scalar=20,
            sliding_window=8,
            layer_types=["full_attention", "sliding_attention"],
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            attention_bias=True,
            tie_word_embeddings=False,
        ),
    },
    "gemma3": {
        "text": case(
            "gemma3_text",
            gguf=True,
            # GGUF files do not say which layers have a window; readers know that it is five of six.
            num_hidden_layers=6,
            **GEMMA,
            head_dim=8,
            query_pre_attn_scalar=8,
            sliding_window=8,
            rope_parameters=dict(
                full_attention=rope("linear", 1_000_000.0, factor=8.0), sliding_attention=rope("default", 10_000.0)
            ),
            drop="layer_types",
        ),
        # The hub's spelling: a pattern for the layers, and two bases of which the second is for windowed layers.
        "pattern": case(
            "gemma3_text",
            **GEMMA,
            num_hidden_layers=4,
            head_dim=12,
            query_pre_attn_scalar=20,
            sliding_window=8,
            final_logit_softcapping=6.0,
            write=dict(
                sliding_window_pattern=2,
                rope_theta=500_000.0,
                rope_local_base_freq=5_000.0,
                rope_scaling=dict(rope_type="linear", factor=4.0),
            ),
            drop="layer_types rope_parameters _sliding_window_pattern",
        ),
        "wrapper": case(
            "gemma3",
            model="Gemma3ForConditionalGeneration",
            **GEMMA,
            base={},
            text_config=SMALL
            | dict(num_hidden_layers=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=8, model_type="gemma3_text")
            | dict(layer_types=["sliding_attention", "full_attention"]),
            vision_config=dict(
                model_type="siglip_vision_model",
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                image_size=8,
                patch_size=4,
                vision_use_head=False,
            ),
            mm_tokens_per_image=1,
            image_token_index=95,
            boi_token_index=94,
            eoi_token_index=93,
        ),
    },
    "phi3": {
        "full": case("phi3", sliding_window=8),
        "partial": case(
            "phi3",
            gguf=True,
            tie_word_embeddings=True,
            write=dict(rope_theta=10_000.0, rope_scaling=None, partial_rotary_factor=0.75),
            drop="rope_parameters",
            rope_parameters=rope(partial_rotary_factor=0.75),
        ),
        "longrope": case(
            "phi3",
            hidden_size=64,
            intermediate_size=32,
            original_max_position_embeddings=32,
            rope_parameters=rope(
                "longrope",
                partial_rotary_factor=0.75,
                short_factor=ramp(6, 1.0, 0.1),
                long_factor=ramp(6, 1.5, 0.7),
                original_max_position_embeddings=32,
            ),
            write=dict(
                rope_theta=10_000.0,
                partial_rotary_factor=0.75,
                rope_scaling=dict(type="longrope", short_factor=ramp(6, 1.0, 0.1), long_factor=ramp(6, 1.5, 0.7)),
            ),
            drop="rope_parameters",
        ),
        # The third prompt's answer passes the border, from where on all positions use the other factors.
        "longrope-crossing": case(
            "phi3",
            original_max_position_embeddings=24,
            max_position_embeddings=96,
            rope_parameters=rope(
                "longrope",
                short_factor=ramp(4, 1.1, 0.1),
                long_factor=ramp(4, 2.0, 1.5),
                original_max_position_embeddings=24,
            ),
        ),
    },
    "olmo2": {
        "plain": case("olmo2", gguf=True),
        "biases": case(
            "olmo2", hidden_size=64, intermediate_size=32, attention_bias=True, num_key_value_heads=1, **old_rope(500_000.0)
        ),
    },
    "olmo3": {
        "yarn": case(
            "olmo3",
            num_hidden_layers=4,
            intermediate_size=32,
            sliding_window=8,
            rope_parameters=dict(
                full_attention=YARN | dict(attention_factor=1.2, beta_fast=8.0, beta_slow=1.0), sliding_attention=rope()
            ),
            drop="layer_types",
        ),
        # The hub's spelling; the scaling is for layers without window only.
        "yarn-old": case(
            "olmo3",
            gguf=True,
            num_key_value_heads=1,
            sliding_window=8,
            layer_types=["full_attention", "sliding_attention"],
            **old_rope(500_000.0, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
        ),
    },
    "granite": {
        "plain": case(
            "granite",
            gguf=True,
            embedding_multiplier=3.0,
            logits_scaling=2.5,
            residual_multiplier=0.7,
            attention_multiplier=0.25,
            tie_word_embeddings=True,
        ),
        "biases": case(
            "granite",
            num_key_value_heads=1,
            attention_bias=True,
            mlp_bias=True,
            residual_multiplier=0.5,
            attention_multiplier=0.4,
            drop="embedding_multiplier logits_scaling",
        ),
    },
    "granitemoe": {
        "plain": case(
            "granitemoe",
            intermediate_size=32,
            num_local_experts=3,
            num_experts_per_tok=2,
            embedding_multiplier=3.0,
            logits_scaling=1.5,
            residual_multiplier=0.7,
            attention_multiplier=0.25,
            tie_word_embeddings=True,
        ),
        "biases": case(
            "granitemoe", intermediate_size=20, num_local_experts=3, attention_bias=True, attention_multiplier=0.35
        ),
    },
    "granitemoeshared": {
        "shared": case(
            "granitemoeshared",
            gguf=True,
            intermediate_size=32,
            shared_intermediate_size=32,
            num_local_experts=3,
            num_experts_per_tok=2,
            embedding_multiplier=3.0,
            logits_scaling=1.5,
            residual_multiplier=0.7,
            attention_multiplier=0.25,
        ),
    },
    "smollm3": {
        "default-layers": case(
            "smollm3",
            gguf=True,
            num_hidden_layers=4,
            intermediate_size=32,
            drop="no_rope_layers layer_types",
            tie_word_embeddings=True,
        ),
        "layers": case(
            "smollm3",
            num_hidden_layers=3,
            no_rope_layers=[0, 1, 0],
            use_sliding_window=True,
            sliding_window=8,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
        ),
    },
    "cohere": {
        "plain": case("cohere", gguf=True, logit_scale=0.5),
        "qk-norm": case("cohere", use_qk_norm=True, logit_scale=0.25, attention_bias=True, tie_word_embeddings=False),
    },
    "cohere2": {
        "layers": case(
            "cohere2",
            gguf=True,
            num_hidden_layers=4,
            intermediate_size=32,
            sliding_window=8,
            logit_scale=0.5,
            drop="layer_types",
            write=dict(rotary_pct=1.0),
        ),
        "pattern": case(
            "cohere2",
            num_hidden_layers=3,
            sliding_window=8,
            attention_bias=True,
            tie_word_embeddings=False,
            logit_scale=0.75,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            write=dict(sliding_window_pattern=2, rope_theta=50_000.0),
            drop="layer_types rope_parameters",
        ),
    },
    "starcoder2": {
        "window": case("starcoder2", sliding_window=8),
        "no-window": case("starcoder2", gguf=True),
        "no-bias": case(
            "starcoder2", use_bias=False, tie_word_embeddings=False, num_key_value_heads=1, **old_rope(100_000.0)
        ),
    },
    "exaone4": {
        "hybrid": case("exaone4", num_hidden_layers=4, intermediate_size=32, sliding_window=8, drop="layer_types"),
        "no-window": case(
            "exaone4",
            gguf=True,
            sliding_window=None,
            layer_types=["full_attention"] * 2,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=10_000.0,
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
    },
    "ernie4_5": {
        "biases": case("ernie4_5", head_dim=12, use_bias=True),
        "plain": case("ernie4_5", gguf=True, head_dim=8, tie_word_embeddings=False, rope_parameters=rope(theta=500_000.0)),
    },
    "ernie4_5_moe": {
        "shared": case(
            "ernie4_5_moe",
            gguf=True,
            num_hidden_layers=2,
            moe_intermediate_size=32,
            moe_k=2,
            moe_num_experts=3,
            moe_num_shared_experts=1,
            intermediate_size=64,
        ),
        "interval": case(
            "ernie4_5_moe",
            num_hidden_layers=4,
            intermediate_size=32,
            moe_intermediate_size=16,
            moe_k=2,
            moe_num_experts=5,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_interval=2,
            use_bias=True,
            tie_word_embeddings=False,
        ),
    },
    "hunyuan_v1_dense": {
        "alpha": case(
            "hunyuan_v1_dense",
            gguf=True,
            head_dim=8,
            tie_word_embeddings=True,
            # The converter of llama.cpp knows only the hub's values.
            max_position_embeddings=32768,
            rope_parameters=dict(rope_type="dynamic", rope_theta=10_000.0, alpha=1000.0, factor=1.0),
        ),
        "plain": case("hunyuan_v1_dense", head_dim=12, attention_bias=True, rope_parameters=rope()),
    },
    "seed_oss": {
        "biases": case("seed_oss", gguf=True, head_dim=8),
        "out-bias": case("seed_oss", head_dim=12, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True),
    },
    "glm": {
        "plain": case("glm", gguf=True, head_dim=8, rms_norm_eps=1e-5),
        "no-bias": case(
            "glm",
            head_dim=12,
            attention_bias=False,
            tie_word_embeddings=True,
            write=dict(partial_rotary_factor=0.5, rope_theta=10_000.0),
            drop="rope_parameters",
        ),
    },
    "glm4": {
        "plain": case("glm4", gguf=True, head_dim=8),
        "no-bias": case(
            "glm4",
            head_dim=16,
            attention_bias=False,
            num_key_value_heads=1,
            rope_parameters=rope(partial_rotary_factor=0.25),
        ),
    },
    "qwen2_moe": {
        "shared": case(
            "qwen2_moe",
            gguf=True,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
        ),
        "sparse-step": case(
            "qwen2_moe",
            num_hidden_layers=4,
            intermediate_size=20,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=16,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            norm_topk_prob=True,
            tie_word_embeddings=True,
            drop="layer_types",
        ),
    },
    "qwen3_moe": {
        "plain": case(
            "qwen3_moe",
            gguf=True,
            head_dim=8,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
        "no-norm-topk": case(
            "qwen3_moe",
            num_hidden_layers=3,
            head_dim=12,
            intermediate_size=20,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            mlp_only_layers=[1],
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=8,
            tie_word_embeddings=True,
        ),
    },
    "mixtral": {
        "window": case(
            "mixtral", sliding_window=8, head_dim=12, intermediate_size=20, num_local_experts=5, num_experts_per_tok=2
        ),
        "plain": case(
            "mixtral", gguf=True, intermediate_size=32, num_local_experts=3, num_experts_per_tok=2, **old_rope(1_000_000.0)
        ),
    },
    "gpt_oss": {
        "floats": case(
            "gpt_oss",
            gguf=True,
            head_dim=8,
            intermediate_size=32,
            num_local_experts=3,
            num_experts_per_tok=2,
            sliding_window=8,
            rope_parameters=rope(
                "yarn",
                150_000.0,
                factor=4.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=32,
            ),
            rules={r"experts\.(gate_up|down)_proj$": (1, dict(gain=1.2))},
        ),
        "mxfp4": case(
            "gpt_oss",
            num_hidden_layers=3,
            head_dim=12,
            intermediate_size=32,
            num_local_experts=5,
            num_experts_per_tok=2,
            sliding_window=8,
            drop="layer_types rope_parameters",
            write=dict(
                rope_theta=150_000.0,
                rope_scaling=dict(
                    rope_type="yarn",
                    factor=4.0,
                    beta_fast=32.0,
                    beta_slow=1.0,
                    truncate=False,
                    original_max_position_embeddings=32,
                ),
                quantization_config=dict(
                    quant_method="mxfp4",
                    modules_to_not_convert=[
                        "model.layers.*.self_attn",
                        "model.layers.*.mlp.router",
                        "model.embed_tokens",
                        "lm_head",
                    ],
                ),
            ),
            store=store_mxfp4,
            loaded=load_mxfp4,
        ),
    },
    "glm4_moe": {
        "groups": case(
            "glm4_moe",
            head_dim=12,
            num_hidden_layers=3,
            intermediate_size=20,
            moe_intermediate_size=12,
            n_routed_experts=6,
            n_shared_experts=2,
            num_experts_per_tok=3,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.5,
            use_qk_norm=True,
            attention_bias=True,
            first_k_dense_replace=1,
            num_mtp_layers=0,
        ),
        "no-qk-norm": case(
            "glm4_moe",
            gguf=True,
            head_dim=8,
            moe_intermediate_size=32,
            n_routed_experts=3,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            first_k_dense_replace=1,
            attention_bias=True,
            num_mtp_layers=0,
        ),
    },
    "deepseek_v2": {
        "greedy": case(
            "deepseek_v2",
            gguf=True,
            num_key_value_heads=4,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=8,
            n_routed_experts=3,
            n_shared_experts=1,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            topk_method="greedy",
            **old_rope(10_000.0, YARN_OLD | dict(mscale=0.707, mscale_all_dim=0.707)),
        ),
        "groups-yarn": case(
            "deepseek_v2",
            num_key_value_heads=4,
            intermediate_size=20,
            q_lora_rank=None,
            kv_lora_rank=16,
            qk_nope_head_dim=12,
            qk_rope_head_dim=8,
            v_head_dim=10,
            n_routed_experts=6,
            n_shared_experts=2,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            first_k_dense_replace=1,
            topk_method="group_limited_greedy",
            n_group=3,
            topk_group=2,
            routed_scaling_factor=4.0,
            **old_rope(10_000.0, YARN_OLD | dict(mscale=0.707, mscale_all_dim=0.9)),
        ),
    },
    "deepseek_v3": {
        "groups-yarn": case(
            "deepseek_v3",
            num_hidden_layers=3,
            num_key_value_heads=4,
            intermediate_size=20,
            q_lora_rank=12,
            kv_lora_rank=16,
            qk_nope_head_dim=12,
            qk_rope_head_dim=8,
            v_head_dim=10,
            n_routed_experts=6,
            n_shared_experts=1,
            num_experts_per_tok=3,
            moe_intermediate_size=12,
            first_k_dense_replace=1,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=2.5,
            attention_bias=True,
            num_mtp_layers=0,
            **old_rope(10_000.0, YARN_OLD | dict(mscale=1.0, mscale_all_dim=1.0)),
        ),
        "plain": case(
            "deepseek_v3",
            gguf=True,
            num_key_value_heads=4,
            q_lora_rank=32,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=8,
            n_routed_experts=3,
            n_shared_experts=1,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=1.5,
            num_mtp_layers=0,
            # Fields of the hub that transformers does not read, but the converter does.
            write=dict(scoring_func="sigmoid", topk_method="noaux_tc"),
        ),
        "no-q-lora": case(
            "deepseek_v3",
            num_key_value_heads=4,
            intermediate_size=20,
            q_lora_rank=None,
            kv_lora_rank=16,
            qk_nope_head_dim=12,
            qk_rope_head_dim=8,
            v_head_dim=10,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            first_k_dense_replace=0,
            n_group=2,
            topk_group=1,
            norm_topk_prob=False,
            rope_interleave=False,
            num_mtp_layers=0,
        ),
    },
    "phimoe": {
        "biases": case(
            "phimoe",
            intermediate_size=20,
            num_local_experts=5,
            attention_bias=True,
            lm_head_bias=True,
            sliding_window=8,
        ),
        "longrope": case(
            "phimoe",
            gguf=True,
            intermediate_size=32,
            num_local_experts=3,
            rope_parameters=rope(
                "longrope",
                short_factor=ramp(4, 1.0, 0.1),
                long_factor=ramp(4, 1.5, 0.7),
                short_mscale=1.1,
                long_mscale=1.3,
                original_max_position_embeddings=32,
            ),
        ),
    },
    "olmoe": {
        "plain": case("olmoe", gguf=True, num_key_value_heads=4, intermediate_size=32, num_experts=3, num_experts_per_tok=2),
        "clip": case(
            "olmoe",
            intermediate_size=12,
            num_experts=5,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            clip_qkv=0.9,
            attention_bias=True,
        ),
    },
    "hunyuan_v1_moe": {
        # The hub's spelling has lists with a number for each layer.
        "lists": case(
            "hunyuan_v1_moe",
            gguf=True,
            head_dim=8,
            num_experts=3,
            moe_topk=2,
            tie_word_embeddings=True,
            write=dict(moe_topk=[2, 2], num_shared_expert=[1, 1], moe_intermediate_size=[32, 32]),
        ),
        "alpha": case(
            "hunyuan_v1_moe",
            head_dim=12,
            intermediate_size=12,
            num_experts=5,
            moe_topk=2,
            attention_bias=True,
            rope_parameters=dict(rope_type="dynamic", rope_theta=10_000.0, alpha=1000.0, factor=1.0),
        ),
    },
    "lfm2": {
        "plain": case(
            "lfm2",
            gguf=True,
            num_hidden_layers=3,
            block_auto_adjust_ff_dim=False,
            layer_types=["conv", "full_attention", "conv"],
        ),
        "adjusted": case(
            "lfm2",
            num_hidden_layers=3,
            intermediate_size=100,
            block_multiple_of=12,
            block_ffn_dim_multiplier=0.9,
            full_attn_idxs=[0, 2],
            conv_bias=True,
            conv_L_cache=4,
            tie_word_embeddings=False,
            drop="layer_types",
        ),
    },
    "lfm2_moe": {
        "bias": case(
            "lfm2_moe",
            gguf=True,
            num_hidden_layers=3,
            moe_intermediate_size=32,
            num_dense_layers=2,
            num_experts=3,
            num_experts_per_tok=2,
            layer_types=["conv", "full_attention", "conv"],
        ),
        "no-bias": case(
            "lfm2_moe",
            intermediate_size=20,
            moe_intermediate_size=12,
            num_dense_layers=0,
            num_experts=5,
            num_experts_per_tok=2,
            use_expert_bias=False,
            norm_topk_prob=False,
            routed_scaling_factor=1.7,
            tie_word_embeddings=False,
            layer_types=["full_attention", "conv"],
        ),
    },
    "qwen3_next": {
        "shared": case(
            "qwen3_next",
            gguf=True,
            zero_centred=NOT_GATED,
            num_hidden_layers=2,
            head_dim=8,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            layer_types=["linear_attention", "full_attention"],
            **DELTA_NET,
        ),
        "dense-layers": case(
            "qwen3_next",
            zero_centred=NOT_GATED,
            num_hidden_layers=4,
            head_dim=12,
            intermediate_size=20,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            shared_expert_intermediate_size=16,
            mlp_only_layers=[0, 2],
            norm_topk_prob=False,
            rope_parameters=rope(partial_rotary_factor=0.5),
            tie_word_embeddings=True,
            write=dict(full_attention_interval=2),
            layer_types=["linear_attention", "full_attention"] * 2,
            drop="layer_types",
            linear_num_key_heads=1,
            linear_num_value_heads=3,
            linear_key_head_dim=12,
            linear_value_head_dim=10,
            linear_conv_kernel_dim=3,
        ),
    },
    "qwen3_5": {
        "text": case(
            "qwen3_5_text",
            gguf=True,
            zero_centred=NOT_GATED,
            head_dim=8,
            intermediate_size=32,
            # The converter gets no names of layers, only the interval.
            layer_types=["linear_attention", "full_attention"],
            write=dict(full_attention_interval=2),
            drop="layer_types",
            rope_parameters=rope(partial_rotary_factor=0.5, mrope_section=[1, 1, 0], mrope_interleaved=True),
            **DELTA_NET,
        ),
        "wrapper": case(
            "qwen3_5",
            model="Qwen3_5ForConditionalGeneration",
            zero_centred=NOT_GATED,
            base={},
            text_config=SMALL
            | DELTA_NET
            | dict(model_type="qwen3_5_text", head_dim=16, tie_word_embeddings=True)
            | dict(layer_types=["linear_attention", "full_attention"])
            | dict(rope_parameters=rope(partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)),
            vision_config=QWEN_VISION,
            tie_word_embeddings=True,
            image_token_id=95,
            video_token_id=94,
            vision_start_token_id=93,
            vision_end_token_id=92,
        ),
    },
    "qwen3_5_moe": {
        "text": case(
            "qwen3_5_moe_text",
            gguf=True,
            zero_centred=NOT_GATED,
            num_hidden_layers=2,
            head_dim=8,
            num_experts=3,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            layer_types=["linear_attention", "full_attention"],
            rope_parameters=rope(partial_rotary_factor=0.5, mrope_section=[1, 1, 0], mrope_interleaved=True),
            **DELTA_NET,
        ),
        "wrapper": case(
            "qwen3_5_moe",
            model="Qwen3_5MoeForConditionalGeneration",
            zero_centred=NOT_GATED,
            # The form of the hub's files; `transformers` writes single experts.
            store=store_fused,
            base={},
            text_config=SMALL
            | DELTA_NET
            | dict(model_type="qwen3_5_moe_text", head_dim=16, num_experts=3, num_experts_per_tok=2)
            | dict(moe_intermediate_size=12, shared_expert_intermediate_size=16)
            | dict(layer_types=["linear_attention", "full_attention"])
            | dict(rope_parameters=rope(partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)),
            vision_config=QWEN_VISION,
            image_token_id=95,
            video_token_id=94,
            vision_start_token_id=93,
            vision_end_token_id=92,
        ),
    },
    "granitemoehybrid": {
        "experts": case(
            "granitemoehybrid",
            gguf=True,
            num_hidden_layers=2,
            intermediate_size=32,
            shared_intermediate_size=32,
            num_local_experts=3,
            num_experts_per_tok=2,
            embedding_multiplier=3.0,
            logits_scaling=1.5,
            residual_multiplier=0.7,
            attention_multiplier=0.25,
            position_embedding_type="nope",
            layer_types=["linear_attention", "full_attention"],
            **MAMBA_2,
            drop="time_step_limit",
            write=dict(layer_types=["mamba", "attention"]),
        ),
        "dense-rope": case(
            "granitemoehybrid",
            num_hidden_layers=3,
            shared_intermediate_size=40,
            num_local_experts=0,
            num_experts_per_tok=0,
            attention_multiplier=0.3,
            position_embedding_type="rope",
            layer_types=["full_attention", "linear_attention", "linear_attention"],
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_expand=2,
            mamba_n_groups=1,
            mamba_d_state=12,
            mamba_d_conv=3,
            mamba_chunk_size=16,
            mamba_proj_bias=True,
            mamba_conv_bias=False,
            drop="time_step_limit",
            write=dict(layer_types=["attention", "mamba", "mamba"]),
        ),
    },
    "bamba": {
        "plain": case(
            "bamba",
            num_hidden_layers=3,
            attn_layer_indices=[1],
            rope_parameters=rope(partial_rotary_factor=0.5),
            write=dict(attn_rotary_emb=4),
            **MAMBA_2,
            drop="time_step_limit",
        ),
    },
    "falcon_h1": {
        "multipliers": case(
            "falcon_h1",
            gguf=True,
            head_dim=8,
            lm_head_multiplier=0.8,
            embedding_multiplier=2.5,
            mlp_multipliers=[1.3, 0.7],
            key_multiplier=0.9,
            attention_out_multiplier=0.8,
            attention_in_multiplier=1.2,
            ssm_multipliers=[0.7, 1.3, 0.8, 1.2, 0.9],
            ssm_in_multiplier=1.1,
            ssm_out_multiplier=0.6,
            mamba_d_ssm=32,
            **(MAMBA_2 | dict(mamba_d_head=8)),
            drop="time_step_limit",
        ),
        "norm": case(
            "falcon_h1",
            head_dim=12,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            mamba_d_ssm=48,
            mamba_n_heads=6,
            mamba_d_head=8,
            mamba_n_groups=2,
            mamba_d_state=12,
            mamba_d_conv=3,
            mamba_chunk_size=16,
            mamba_conv_bias=False,
            attention_bias=True,
            mlp_bias=True,
            mamba_proj_bias=True,
            projectors_bias=True,
            tie_word_embeddings=True,
            drop="time_step_limit",
        ),
    },
    "nemotron_h": {
        "dense": case(
            "nemotron_h",
            gguf=True,
            base=SMALL | dict(num_hidden_layers=4),
            head_dim=8,
            layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"],
            **NEMOTRON_MAMBA,
            # The spelling of the family's older files, which know no experts.
            write=dict(hybrid_override_pattern="M-*-", num_hidden_layers=4),
            drop="""time_step_limit layers_block_type mtp_layers_block_type n_routed_experts n_shared_experts moe_intermediate_size
                moe_shared_expert_intermediate_size moe_latent_size moe_shared_expert_overlap num_experts_per_tok
                routed_scaling_factor n_group topk_group norm_topk_prob num_nextn_predict_layers output_router_logits""",
        ),
        "experts": case(
            "nemotron_h",
            base=SMALL | dict(num_hidden_layers=4),
            head_dim=12,
            intermediate_size=40,
            layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
            n_routed_experts=6,
            n_shared_experts=1,
            moe_intermediate_size=12,
            moe_shared_expert_intermediate_size=16,
            num_experts_per_tok=2,
            n_group=3,
            topk_group=2,
            routed_scaling_factor=1.5,
            **NEMOTRON_MAMBA,
            drop="time_step_limit",
        ),
    },
    "jamba": {
        "plain": case(
            "jamba",
            gguf=True,
            num_hidden_layers=2,
            intermediate_size=32,
            num_experts=3,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=2,
            attn_layer_offset=1,
            use_mamba_kernels=False,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=4,
        ),
    },
    "gemma3n": {
        "text": case(
            "gemma3n_text",
            gguf=True,
            rules=GEMMA["rules"],
            num_hidden_layers=4,
            head_dim=8,
            intermediate_size=32,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            vocab_size_per_layer_input=64,
            hidden_size_per_layer_input=8,
            laurel_rank=4,
            altup_num_inputs=4,
            num_kv_shared_layers=2,
            final_logit_softcapping=6.0,
            activation_sparsity_pattern=[0.95, 0.5, 0.0, 0.0],
        ),
    },
    "gemma4": {
        "text": case(
            "gemma4_text",
            gguf=True,
            rules=GEMMA["rules"],
            num_hidden_layers=4,
            head_dim=8,
            global_head_dim=16,
            # The hub has the widths of full layers in fields of their own.
            write=dict(global_head_dim=16),
            drop="per_layer_config",
            intermediate_size=32,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            vocab_size_per_layer_input=64,
            hidden_size_per_layer_input=8,
            num_kv_shared_layers=2,
            use_double_wide_mlp=True,
            final_logit_softcapping=6.0,
        ),
        "experts": case(
            "gemma4_text",
            rules=GEMMA["rules"],
            num_hidden_layers=3,
            head_dim=8,
            global_head_dim=12,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            intermediate_size=20,
            sliding_window=8,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=5,
            top_k_experts=2,
            moe_intermediate_size=12,
        ),
    },
}


def like(family, of, **changed):
    """The case of a family with some fields changed; it is not kept as GGUF."""
    known = FAMILIES[family][of]
    return {**known, "gguf": False, "fields": {**known["fields"], **changed}}


# Properties that few models have, and that a reader of configurations easily leaves out.
FAMILIES["deepseek_v2"]["biases"] = like("deepseek_v2", "groups-yarn", mlp_bias=True, n_shared_experts=1)
FAMILIES["falcon_h1"]["out-bias"] = like("falcon_h1", "norm", mamba_proj_bias=False, mamba_conv_bias=True)
FAMILIES["gemma3n"]["biases"] = like("gemma3n", "text", attention_bias=True)
FAMILIES["nemotron_h"]["biases"] = like("nemotron_h", "experts", mlp_bias=True, use_bias=True, attention_bias=True)
# 15 of a head's 20 elements turn, as eight planes.
FAMILIES["phi3"]["odd"] = like("phi3", "partial", hidden_size=80)
FAMILIES["seed_oss"]["out-bias-alone"] = like("seed_oss", "out-bias", attention_bias=False)
FAMILIES["bamba"]["gelu"] = like("bamba", "plain", hidden_act="gelu")
FAMILIES["falcon_h1"]["multipliers-biases"] = like(
    "falcon_h1", "multipliers", attention_bias=True, mlp_bias=True, mamba_proj_bias=True, projectors_bias=True
)
FAMILIES["qwen3_5"]["gelu-tanh"] = like("qwen3_5", "text", hidden_act="gelu_pytorch_tanh")
# Whether the head is the embedding is said by the whole, whatever its text says.
FAMILIES["qwen3_5"]["wrapper-tied"] = like("qwen3_5", "wrapper")
FAMILIES["qwen3_5"]["wrapper-tied"]["write"] = FAMILIES["qwen3_5"]["wrapper"]["write"] | {"text_config.tie_word_embeddings": False}
