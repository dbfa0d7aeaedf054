//! Descriptions of encoders whose heads are rotated, from `config.json`: Nomic-BERT (Nussbaum et al., 2024, arXiv
//! 2402.01613; its mixtures: Nussbaum and Duderstadt, 2025, arXiv 2502.07972), GTE (Zhang et al., 2024, arXiv
//! 2407.19669) and Jina v3 (Sturua et al., 2024, arXiv 2409.10173). Each is spelled in two ways, that of the files that
//! it was published with, and that of transformers 5.

use super::keys::{Labels, even_share, number, refuse};
use super::spec::{Adapters, Biases, EncoderExperts, EncoderSpec, HeadForm, MlpForm, TokenKinds, TokenPlaces};
use crate::spec::check::{inconsistent, positive};
use crate::spec::fact_error::FactError;
use crate::spec::facts::{ModelFacts, RopeDefaults, activation};
use crate::spec::{Activation, ExpertsSpec, NormKind, NormSpec, RopePlanes, RopeScaling, RopeSpec, RouterSpec};

/// The numbers that a class has where the file says nothing.
struct ClassDefaults {
    vocabulary: usize,
    positions: usize,
    kinds: usize,
    eps: f64,
    activation: &'static str,
}

/// The sizes of heads and texts.
struct Widths {
    hidden: usize,
    heads: usize,
    head_dim: usize,
    longest: usize,
}

impl Widths {
    fn read(facts: &ModelFacts<'_>, defaults: &ClassDefaults) -> Result<Self, FactError> {
        let hidden = number(facts, &["hidden_size", "n_embd"], 768)?;
        let heads = number(facts, &["num_attention_heads", "n_head"], 12)?;
        let head_dim = match facts.number("head_dim", "")? {
            Some(width) => width,
            None => even_share(hidden, heads)?,
        };
        let longest = number(facts, &["max_position_embeddings", "n_positions"], defaults.positions)?;
        Ok(Self { hidden, heads, head_dim, longest })
    }

    /// The rope of transformers 5.
    fn rope(&self, facts: &ModelFacts<'_>, theta: f64) -> Result<TokenPlaces, FactError> {
        let defaults = RopeDefaults { theta, ..RopeDefaults::usual(self.head_dim, self.longest) };
        facts.rope(&defaults).map(TokenPlaces::Rope)
    }
}

/// A gated encoder with biases, as the classes of transformers 5 have most facts in common.
fn usual(
    facts: &ModelFacts<'_>,
    defaults: &ClassDefaults,
    Widths { hidden, heads, head_dim, longest }: Widths,
    places: TokenPlaces,
    (labels, shares): Labels,
) -> Result<EncoderSpec, FactError> {
    refuse(facts, &["is_decoder"])?;
    Ok(EncoderSpec {
        hidden,
        heads,
        head_dim,
        layers: number(facts, &["num_hidden_layers", "n_layer"], 12)?,
        vocabulary: number(facts, &["vocab_size"], defaults.vocabulary)?,
        longest,
        places,
        kinds: TokenKinds { count: number(facts, &["type_vocab_size"], defaults.kinds)?, of_pairs: true },
        mlp: MlpForm::Gated,
        activation: activation(facts.text("hidden_act")?.unwrap_or(defaults.activation))?,
        experts: None,
        adapters: Adapters::default(),
        norm: NormSpec {
            kind: NormKind::LayerWithBias,
            eps: facts.float("layer_norm_eps", "")?.unwrap_or(defaults.eps),
        },
        biases: Biases::ALL,
        head: HeadForm::Pooler,
        labels,
        shares,
    })
}

/// Jina v3 in transformers 5.
pub(super) fn jina_v3(facts: &ModelFacts<'_>, labels: Labels) -> Result<EncoderSpec, FactError> {
    let defaults = ClassDefaults { vocabulary: 250_002, positions: 8_194, kinds: 1, eps: 1e-5, activation: "gelu" };
    let widths = Widths::read(facts, &defaults)?;
    let places = widths.rope(facts, 20_000.0)?;
    let spec = usual(facts, &defaults, widths, places, labels)?;
    Ok(EncoderSpec {
        mlp: MlpForm::Plain,
        head: HeadForm::TwoProducts,
        kinds: TokenKinds { of_pairs: false, ..spec.kinds },
        ..spec
    })
}

/// The rope of an XLM-R of Jina's own code.
pub(super) fn flash_rope(facts: &ModelFacts<'_>, head_dim: usize) -> Result<TokenPlaces, FactError> {
    let theta = positive("rotary_emb_base", facts.float("rotary_emb_base", "")?.unwrap_or(10_000.0))?;
    let (planes, scaling) = (RopePlanes::Halves, RopeScaling::None);
    Ok(TokenPlaces::Rope(RopeSpec { planes, width: head_dim, theta, scaling, axes: Vec::new() }))
}

/// GTE: `new` in the files that it was published with, `gte` in transformers 5.
pub(super) fn gte(facts: &ModelFacts<'_>, kind: &str, labels: Labels) -> Result<EncoderSpec, FactError> {
    let theta = if kind == "gte" { 160_000.0 } else { 10_000.0 };
    let defaults = ClassDefaults { vocabulary: 250_048, positions: 8_192, kinds: 1, eps: 1e-12, activation: "gelu" };
    let widths = Widths::read(facts, &defaults)?;
    let places = match (kind, facts.text("position_embedding_type")?.unwrap_or("rope")) {
        ("new", "absolute") => TokenPlaces::Table { rows: widths.longest, first: 0 },
        ("new", "rope") if facts.rope_kind()?.is_some() => ntk_rope(facts, theta, widths.head_dim)?,
        ("new", other) if other != "rope" => {
            return Err(FactError::Unsupported(format!("position_embedding_type '{}'", other.escape_debug())));
        }
        _ => widths.rope(facts, theta)?,
    };
    let mut spec = usual(facts, &defaults, widths, places, labels)?;
    if kind == "new" {
        refuse(facts, &["logn_attention_scale", "logn_attention_clip1"])?;
        spec.norm.kind = match facts.text("layer_norm_type")?.unwrap_or("layer_norm") {
            "layer_norm" => NormKind::LayerWithBias,
            "rms_norm" => NormKind::Rms,
            other => return Err(FactError::Unsupported(format!("layer_norm_type '{}'", other.escape_debug()))),
        };
    }
    spec.biases = Biases::Of { inputs: true, out: true, up: false, down: true };
    Ok(spec)
}

/// NTK scaling by a fixed factor (Su, 2023, kexue.fm/archives/9706, formula 6), or by one for each plane (13).
fn ntk_rope(facts: &ModelFacts<'_>, theta: f64, head_dim: usize) -> Result<TokenPlaces, FactError> {
    let kind = facts.rope_kind()?.unwrap_or_default();
    if kind != "ntk" {
        return Err(FactError::Unsupported(format!("rope scaling '{}' of GTE's own code", kind.escape_debug())));
    }
    let factor = facts.rope_float("factor")?.ok_or_else(|| inconsistent("rope scaling 'ntk' lacks factor"))?;
    let factor = positive("the rope factor", factor)?;
    let theta = positive("rope_theta", facts.float("rope_theta", "")?.unwrap_or(theta))?;
    let spec =
        |theta, scaling| RopeSpec { planes: RopePlanes::Halves, width: head_dim, theta, scaling, axes: Vec::new() };
    Ok(TokenPlaces::Rope(match facts.rope_float("mixed_b")? {
        // A text is always shorter than the scaled context that the code makes its tables for.
        _ if factor <= 1.0 => spec(theta, RopeScaling::None),
        None => spec(theta * factor, RopeScaling::Linear { factor: factor.powf(2.0 / head_dim as f64) }),
        Some(mixed) => {
            let planes = head_dim / 2;
            let slope = factor.ln() / (planes as f64).powf(mixed);
            let divisors = (1..=planes).map(|plane| (slope * (plane as f64).powf(mixed)).exp() as f32);
            spec(theta, RopeScaling::Factors(divisors.collect()))
        }
    }))
}

/// Nomic-BERT. Files from before transformers 5 have GPT-2's names of facts; newer ones may have both.
pub(super) fn nomic(facts: &ModelFacts<'_>, labels: Labels) -> Result<EncoderSpec, FactError> {
    let first_names = facts.number("n_embd", "")?.is_some();
    let eps = if first_names { facts.float("layer_norm_epsilon", "")?.unwrap_or(1e-5) } else { 1e-12 };
    let positions = if first_names { 1_024 } else { 2_048 };
    let defaults = ClassDefaults { vocabulary: 30_528, positions, kinds: 2, eps, activation: "silu" };
    let widths = Widths::read(facts, &defaults)?;
    if !first_names {
        let places = widths.rope(facts, 1_000.0)?;
        let spec = usual(facts, &defaults, widths, places, labels)?;
        return Ok(EncoderSpec { biases: Biases::Of { inputs: false, out: false, up: false, down: false }, ..spec });
    }
    refuse(
        facts,
        &["prenorm", "parallel_block", "use_rms_norm", "causal", "norm_mlp", "rotary_head_dim", "expert_choice_router"],
    )?;
    if facts.number("num_heads_kv", "")?.is_some_and(|shared| shared != widths.heads) {
        return Err(FactError::Unsupported("num_heads_kv in an encoder".to_owned()));
    }
    let hidden = widths.hidden;
    let places = first_places(facts, &widths)?;
    let mut spec = usual(facts, &defaults, widths, places, labels)?;
    (spec.mlp, spec.activation) = match facts.text("activation_function")?.unwrap_or("gelu") {
        "swiglu" => (MlpForm::Gated, Activation::Silu),
        "geglu" => (MlpForm::Gated, Activation::GeluErf),
        // The code takes the exact one by each of these names.
        "gelu" | "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => (MlpForm::Plain, Activation::GeluErf),
        other => return Err(FactError::Unsupported(format!("activation_function '{}'", other.escape_debug()))),
    };
    let flag = |key: &str| Ok::<_, FactError>(facts.flag(key, "")?.unwrap_or(true));
    let inputs = flag("qkv_proj_bias")?;
    spec.biases = Biases::Of { inputs, out: inputs, up: flag("mlp_fc1_bias")?, down: flag("mlp_fc2_bias")? };
    let multiple = number(facts, &["pad_vocab_size_multiple"], 1)?.max(1);
    spec.vocabulary = spec.vocabulary.next_multiple_of(multiple);
    spec.experts = experts(facts, hidden, spec.activation)?;
    Ok(spec)
}

/// The places of files with GPT-2's names.
fn first_places(facts: &ModelFacts<'_>, widths: &Widths) -> Result<TokenPlaces, FactError> {
    let share = facts.float("rotary_emb_fraction", "")?.unwrap_or(0.0);
    if share <= 0.0 {
        return Ok(TokenPlaces::Table { rows: widths.longest, first: 0 });
    }
    if facts.float("rotary_emb_scale_base", "")?.is_some() {
        return Err(FactError::Unsupported("rotary_emb_scale_base".to_owned()));
    }
    let original_max_positions = number(facts, &["max_trained_positions"], 2_048)?;
    let scaling = match facts.float("rotary_scaling_factor", "")?.filter(|factor| *factor != 0.0) {
        Some(factor) => {
            RopeScaling::Dynamic { factor: positive("rotary_scaling_factor", factor)?, original_max_positions }
        }
        None => RopeScaling::None,
    };
    let neighbours = facts.flag("rotary_emb_interleaved", "")?.unwrap_or(false);
    Ok(TokenPlaces::Rope(RopeSpec {
        planes: if neighbours { RopePlanes::Neighbours } else { RopePlanes::Halves },
        width: (widths.head_dim as f64 * share) as usize,
        theta: positive("rotary_emb_base", facts.float("rotary_emb_base", "")?.unwrap_or(10_000.0))?,
        scaling,
        axes: Vec::new(),
    }))
}

/// The experts of every second or so layer.
fn experts(facts: &ModelFacts<'_>, hidden: usize, activation: Activation) -> Result<Option<EncoderExperts>, FactError> {
    let every = number(facts, &["moe_every_n_layers"], 0)?;
    if every == 0 {
        return Ok(None);
    }
    // A number is the power of a norm that weights are divided by.
    let normalised = facts.flag("moe_normalize_expert_weights", "").unwrap_or(Some(true));
    if normalised == Some(true) || number(facts, &["num_shared_experts"], 0)? > 0 {
        return Err(FactError::Unsupported("moe_normalize_expert_weights or num_shared_experts".to_owned()));
    }
    let (count, used) = (number(facts, &["num_experts"], 8)?, number(facts, &["moe_top_k"], 2)?);
    experts_of(every, [count, used, number(facts, &["n_inner"], 4 * hidden)?], activation).map(Some)
}

/// The experts of the second of each so many layers: how many there are, how many compute, and the width within.
pub(super) fn experts_of(
    every: usize,
    [count, used, intermediate]: [usize; 3],
    activation: Activation,
) -> Result<EncoderExperts, FactError> {
    if count == 0 || count > crate::spec::check::MOST_EXPERTS || used == 0 || used > count {
        return Err(inconsistent(format!("{used} of {count} experts for each token")));
    }
    let router = RouterSpec::softmax(false);
    let spec = ExpertsSpec { count, used, intermediate, activation, gated: false, bias: false, router, shared: None };
    Ok(EncoderExperts { spec, every })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<EncoderSpec, String> {
        EncoderSpec::from_config(json.as_bytes()).map_err(|error| error.to_string())
    }

    const NOMIC: &str = r#"{"model_type":"nomic_bert","n_embd":24,"n_head":3,"n_layer":2,"n_inner":40,"n_positions":64,
        "vocab_size":90,"rotary_emb_fraction":1.0,"activation_function":"swiglu","prenorm":false}"#;

    #[test]
    fn em_1_nomic_is_read_by_the_names_of_gpt_2_and_by_those_of_transformers_5() {
        let first = of(NOMIC).unwrap();
        assert_eq!((first.hidden, first.longest, first.activation), (24, 64, Activation::Silu));
        assert_eq!(first.biases, Biases::ALL);
        let newer = r#"{"model_type":"nomic_bert","hidden_size":24,"num_attention_heads":3,"num_hidden_layers":2,
            "max_position_embeddings":32,"vocab_size":90}"#;
        let newer = of(newer).unwrap();
        assert_eq!(newer.biases, Biases::Of { inputs: false, out: false, up: false, down: false });
        let TokenPlaces::Rope(rope) = newer.places else { panic!("no rope") };
        assert_eq!((rope.theta, rope.width), (1_000.0, 8));
        for (from, to, said) in [
            ("\"prenorm\":false", "\"prenorm\":true", "prenorm"),
            ("\"prenorm\":false", "\"causal\":true", "causal"),
            ("\"prenorm\":false", "\"num_heads_kv\":1", "num_heads_kv"),
            ("\"prenorm\":false", "\"rotary_emb_scale_base\":512", "rotary_emb_scale_base"),
            ("swiglu", "glu", "'glu'"),
            (":1.0", ":0.4", "rotated"),
            ("\"prenorm\":false", "\"moe_every_n_layers\":2,\"num_experts\":2,\"moe_top_k\":3", "3 of 2 experts"),
        ] {
            let wrong = NOMIC.replace(from, to);
            assert!(of(&wrong).unwrap_err().contains(said), "{wrong}: {:?}", of(&wrong));
        }
    }

    #[test]
    fn em_1_gte_scales_wavelengths_by_a_fixed_factor() {
        let gte = r#"{"model_type":"new","hidden_size":24,"num_attention_heads":3,"num_hidden_layers":2,
            "vocab_size":90,"rope_theta":500.0,"rope_scaling":{"type":"ntk","factor":2.0}}"#;
        let TokenPlaces::Rope(rope) = of(gte).unwrap().places else { panic!("no rope") };
        assert_eq!((rope.theta, rope.scaling), (1_000.0, RopeScaling::Linear { factor: 2.0_f64.powf(0.25) }));
        let absolute = gte.replace("500.0", "500.0,\"position_embedding_type\":\"absolute\"");
        assert_eq!(of(&absolute).unwrap().places, TokenPlaces::Table { rows: 8_192, first: 0 });
        for (from, to, said) in [
            ("ntk", "yarn", "'yarn'"),
            ("\"factor\":2.0", "\"factor\":-2.0", "factor"),
            ("500.0", "500.0,\"logn_attention_scale\":true", "logn_attention_scale"),
            ("500.0", "500.0,\"layer_norm_type\":\"odd\"", "'odd'"),
        ] {
            let wrong = gte.replace(from, to);
            assert!(of(&wrong).unwrap_err().contains(said), "{wrong}");
        }
    }
}
