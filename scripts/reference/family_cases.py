"""The cases of families.py: small configurations that between them use every part in which a family differs from Llama."""

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

    `model` is a class of transformers if the one for causal language models is not meant. `write` and `drop` change
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
        fields={**base, **fields},
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


FAMILIES = {
    "mistral": {
        "window": case("mistral", gguf=True, head_dim=16, sliding_window=8),
        "no-window": case("mistral", sliding_window=None, head_dim=12, tie_word_embeddings=True, **old_rope(1_000_000.0)),
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
        "dynamic": case("llama", max_position_embeddings=32, rope_parameters=rope("dynamic", factor=3.0), tie_word_embeddings=True),
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
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=1,
            drop="layer_types",
            gguf=True,
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
            num_hidden_layers=3,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=8,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=6.0,
            drop="layer_types",
        ),
        "no-softcaps": case(
            "gemma2",
            **GEMMA,
            head_dim=12,
            query_pre_attn_scalar=8,
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
            **GEMMA,
            num_hidden_layers=3,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=8,
            rope_parameters=dict(
                full_attention=rope("linear", 1_000_000.0, factor=8.0), sliding_attention=rope("default", 10_000.0)
            ),
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        # The hub's spelling: a pattern for the layers, and two bases of which the second is for windowed layers.
        "pattern": case(
            "gemma3_text",
            **GEMMA,
            num_hidden_layers=4,
            head_dim=12,
            query_pre_attn_scalar=12,
            sliding_window=8,
            final_logit_softcapping=6.0,
            attn_logit_softcapping=5.0,
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
        "full": case("phi3", gguf=True, sliding_window=8),
        "partial": case(
            "phi3",
            hidden_size=64,
            intermediate_size=32,
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
        "biases": case("olmo2", hidden_size=64, intermediate_size=32, attention_bias=True, num_key_value_heads=1, **old_rope(500_000.0)),
    },
    "olmo3": {
        "yarn": case(
            "olmo3",
            gguf=True,
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
            gguf=True,
            intermediate_size=32,
            num_local_experts=5,
            num_experts_per_tok=2,
            embedding_multiplier=3.0,
            logits_scaling=1.5,
            residual_multiplier=0.7,
            attention_multiplier=0.25,
            tie_word_embeddings=True,
        ),
        "biases": case("granitemoe", intermediate_size=20, num_local_experts=3, attention_bias=True, attention_multiplier=0.35),
    },
    "granitemoeshared": {
        "shared": case(
            "granitemoeshared",
            gguf=True,
            intermediate_size=32,
            shared_intermediate_size=32,
            num_local_experts=5,
            num_experts_per_tok=2,
            embedding_multiplier=3.0,
            logits_scaling=1.5,
            residual_multiplier=0.7,
            attention_multiplier=0.25,
        ),
    },
    "smollm3": {
        "default-layers": case(
            "smollm3", gguf=True, num_hidden_layers=4, intermediate_size=32, drop="no_rope_layers layer_types", tie_word_embeddings=True
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
        "layers": case("cohere2", gguf=True, num_hidden_layers=4, intermediate_size=32, sliding_window=8, logit_scale=0.5, drop="layer_types"),
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
        "window": case("starcoder2", gguf=True, sliding_window=8),
        "no-bias": case("starcoder2", use_bias=False, tie_word_embeddings=False, num_key_value_heads=1, **old_rope(100_000.0)),
    },
    "exaone4": {
        "hybrid": case("exaone4", gguf=True, num_hidden_layers=4, intermediate_size=32, sliding_window=8, drop="layer_types"),
        "no-window": case(
            "exaone4",
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
        "biases": case("ernie4_5", head_dim=16, use_bias=True),
        "plain": case("ernie4_5", gguf=True, head_dim=16, tie_word_embeddings=False, rope_parameters=rope(theta=500_000.0)),
    },
    "ernie4_5_moe": {
        "shared": case(
            "ernie4_5_moe",
            gguf=True,
            num_hidden_layers=2,
            moe_intermediate_size=32,
            moe_k=2,
            moe_num_experts=5,
            moe_num_shared_experts=2,
        ),
        "interval": case(
            "ernie4_5_moe",
            num_hidden_layers=4,
            intermediate_size=32,
            moe_intermediate_size=16,
            moe_k=2,
            moe_num_experts=3,
            moe_num_shared_experts=0,
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
            head_dim=16,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="dynamic", rope_theta=10_000.0, alpha=1000.0, factor=1.0),
        ),
        "plain": case("hunyuan_v1_dense", head_dim=12, attention_bias=True, rope_parameters=rope()),
    },
    "seed_oss": {
        "biases": case("seed_oss", gguf=True, head_dim=16),
        "out-bias": case("seed_oss", head_dim=12, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=True),
    },
    "glm": {
        "plain": case("glm", gguf=True, head_dim=16),
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
        "plain": case("glm4", gguf=True, head_dim=16),
        "no-bias": case("glm4", head_dim=8, attention_bias=False, num_key_value_heads=1, rope_parameters=rope(partial_rotary_factor=0.25)),
    },
}
