//! Tests of both spellings of rope, the defaults, and configurations that are refused.

use super::*;
use crate::spec::{
    Activation, AttentionBias, AttentionSpec, FeedForward, Mixer, MlpSpec, RopePlanes, RopeScaling, RopeSpec,
};

/// The parts of a model whose layers are all the same.
fn parts(spec: &DecoderSpec) -> (&AttentionSpec, &MlpSpec, &RopeSpec) {
    match (&spec.layers[0].mixer, &spec.layers[0].feed_forward) {
        (Mixer::Attention(attention), FeedForward::Gated(mlp)) => (attention, mlp, &spec.ropes[0]),
        other => panic!("{other:?}"),
    }
}

fn rope_of(fields: &str) -> RopeSpec {
    parts(&llama(fields).unwrap()).2.clone()
}

fn window_of(spec: &DecoderSpec) -> Option<usize> {
    parts(spec).0.window
}

fn spec(json: &str) -> Result<DecoderSpec, ConfigJsonError> {
    DecoderSpec::from_config(json.as_bytes()).map(|(spec, _)| spec)
}

/// A small Llama with additional fields.
fn llama(fields: &str) -> Result<DecoderSpec, ConfigJsonError> {
    spec(&format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
            "max_position_embeddings": 512 {fields}}}"#
    ))
}

fn refused(fields: &str) -> String {
    llama(fields).expect_err(fields).to_string()
}

#[test]
fn absent_fields_are_what_transformers_makes_them() {
    let spec = spec(r#"{"model_type": "llama"}"#).unwrap();
    let (attention, mlp, rope) = parts(&spec);
    assert_eq!((spec.layers.len(), spec.hidden), (32, 4_096));
    assert_eq!((attention.heads, attention.kv_heads, attention.head_dim), (32, 32, 128));
    assert_eq!((mlp.intermediate, spec.vocab, spec.max_positions), (11_008, 32_000, 2_048));
    let (planes, scaling) = (RopePlanes::Halves, RopeScaling::None);
    assert_eq!(*rope, RopeSpec { planes, width: 128, theta: 10_000.0, scaling, axes: Vec::new() });
    assert!(!spec.tied_head && attention.bias == AttentionBias::None && !mlp.bias);
    assert_eq!((spec.norm.eps, mlp.activation), (1e-6, Activation::Silu));
}

#[test]
fn null_is_absent() {
    let spec = llama(r#", "head_dim": null, "num_key_value_heads": null, "rope_scaling": null, "mlp_bias": null"#);
    let spec = spec.unwrap();
    let (attention, _, rope) = parts(&spec);
    assert_eq!((attention.head_dim, attention.kv_heads), (16, 4));
    assert_eq!(rope.scaling, RopeScaling::None);
}

#[test]
fn both_spellings_of_rope_say_the_same() {
    let llama3 =
        r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64"#;
    let spellings = [
        format!(r#", "rope_theta": 500000.0, "rope_scaling": {{"rope_type": "llama3", {llama3}}}"#),
        format!(r#", "rope_theta": 500000, "rope_scaling": {{"type": "llama3", {llama3}}}"#),
        format!(r#", "rope_parameters": {{"rope_type": "llama3", "rope_theta": 500000.0, {llama3}}}"#),
        format!(r#", "rope_theta": 500000.0, "rope_parameters": {{"rope_type": "llama3", {llama3}}}"#),
    ];
    for spelling in spellings {
        assert_eq!(
            rope_of(&spelling),
            RopeSpec {
                planes: RopePlanes::Halves,
                width: 16,
                theta: 500_000.0,
                scaling: RopeScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_max_positions: 64.0,
                },
                axes: Vec::new(),
            },
            "{spelling}"
        );
    }
}

#[test]
fn of_two_ropes_the_old_table_and_the_inner_theta_win() {
    let both = r#", "rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}"#;
    let rope = rope_of(both);
    assert_eq!((rope.theta, rope.scaling), (5.0, RopeScaling::Linear { factor: 2.0 }));
    let inner =
        r#", "rope_theta": 5.0, "rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}"#;
    assert_eq!(rope_of(inner).theta, 7.0);
    let absent_factor = r#", "rope_parameters": {"rope_type": "linear"}"#;
    assert!(refused(absent_factor).contains("'linear' lacks factor"));
}

#[test]
fn llama3_without_an_original_length_takes_the_models() {
    let fields =
        r#", "rope_parameters": {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4}"#;
    let RopeScaling::Llama3 { original_max_positions, .. } = rope_of(fields).scaling else { panic!("not llama3") };
    assert_eq!(original_max_positions, 512.0);
}

#[test]
fn dynamic_scaling_lengthens_the_context_by_its_factor() {
    let fields = r#", "rope_scaling": {"type": "dynamic", "factor": 2.0}"#;
    let scaling = rope_of(fields).scaling;
    assert_eq!(scaling, RopeScaling::Dynamic { factor: 2.0, original_max_positions: 512 });
    assert_eq!(llama(fields).unwrap().max_positions, 1_024);
    assert_eq!([512, 513, 514].map(|length| scaling.length_class(length)), [0, 513, 514]);
}

#[test]
fn a_part_of_a_head_may_turn() {
    for fields in [
        r#", "partial_rotary_factor": 0.5"#,
        r#", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}"#,
    ] {
        assert_eq!(rope_of(fields).width, 8, "{fields}");
    }
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    for (fields, said) in [
        (r#", "rope_scaling": {"type": "longrope", "factor": 2}"#, "rope scaling 'longrope' lacks short_factor"),
        (r#", "rope_scaling": {"type": "ntk"}"#, "rope scaling 'ntk'"),
        (r#", "partial_rotary_factor": 1.5"#, "partial_rotary_factor is 1.5"),
        (r#", "hidden_act": "quick_gelu""#, "the activation 'quick_gelu'"),
        (r#", "quantization_config": {"quant_method": "hqq", "bits": 4}"#, "not supported (quant_method `hqq`)"),
    ] {
        assert!(refused(fields).contains(said), "{fields}: {}", refused(fields));
    }
    let other = spec(r#"{"architectures": ["RwkvForCausalLM"]}"#).unwrap_err().to_string();
    assert!(other.contains("'RwkvForCausalLM'") && other.contains("LlamaForCausalLM"), "{other}");
    assert!(spec("{}").unwrap_err().to_string().contains("without 'architectures'"));
}

#[test]
fn rc_16_every_architecture_that_the_coordinator_sends_is_known() {
    for name in CONFIG_ARCHITECTURES {
        let alone = spec(&format!(r#"{{"architectures": ["{name}"]}}"#));
        assert!(!matches!(alone, Err(ConfigJsonError::Architecture(_))), "{name}: {alone:?}");
    }
}

#[test]
fn mistral_is_a_llama_with_other_defaults_and_a_window() {
    let mistral = |fields: &str| {
        spec(&format!(r#"{{"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768 {fields}}}"#))
            .unwrap()
    };
    assert_eq!(window_of(&mistral(r#", "sliding_window": null"#)), None);
    assert_eq!(window_of(&mistral(r#", "sliding_window": 8192"#)), Some(8_192));
    assert_eq!(window_of(&mistral("")), Some(4_096), "the default window");
    let spec = mistral("");
    let (attention, mlp, _) = parts(&spec);
    assert_eq!((attention.kv_heads, mlp.intermediate, spec.max_positions), (8, 14_336, 32_768));
}

#[test]
fn numbers_that_fit_no_model_are_refused() {
    for (fields, said) in [
        (r#", "num_hidden_layers": 0"#, "num_hidden_layers is 0"),
        (r#", "vocab_size": 9999999999"#, "vocab_size is 9999999999"),
        (r#", "num_key_value_heads": 3"#, "evenly"),
        (r#", "head_dim": 15"#, "planes"),
        (r#", "rms_norm_eps": -1"#, "epsilon is -1"),
        (r#", "rope_theta": 0"#, "rope_theta is 0"),
        (r#", "rope_scaling": {"type": "linear", "factor": -2}"#, "factor is -2"),
    ] {
        assert!(refused(fields).contains(said), "{fields}: {}", refused(fields));
    }
    assert!(matches!(
        spec(r#"{"model_type": "llama", "num_attention_heads": 0}"#),
        Err(ConfigJsonError::Inconsistent(_))
    ));
    assert!(matches!(spec("not json"), Err(ConfigJsonError::Malformed(_))));
    assert!(matches!(spec(r#"{"model_type": "llama", "hidden_size": -4}"#), Err(ConfigJsonError::Malformed(_))));
    assert!(matches!(spec(r#"{"model_type": "llama", "hidden_size": 4.5}"#), Err(ConfigJsonError::Malformed(_))));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*", cut in 0usize..400) {
        let _ = spec(&text);
        let whole = r#"{"architectures": ["LlamaForCausalLM"], "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32}, "rope_theta": 1e4}"#;
        let _ = spec(&whole[..cut.min(whole.len())]);
    }
}
