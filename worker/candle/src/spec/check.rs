//! Values that no tensor's shape would reveal as wrong, and that no model can have.

use crate::spec::fact_error::FactError;
use crate::spec::{
    AttentionSpec, DecoderSpec, DeltaNetSpec, ExpertsSpec, FeedForward, LatentSpec, LayerSpec, MambaSpec, Mixer,
    MlpSpec, RopeScaling,
};

/// The largest accepted width, count or vocabulary. It keeps the product of any two of them far from overflow.
const LARGEST: usize = 1 << 24;

/// The largest accepted number of heads with states, and width of each; and of the tokens that a convolution sees.
const MOST_HEADS: usize = 1 << 14;
const MOST_TAPS: usize = 1 << 8;

/// The largest accepted number of layers, and of experts in each. Real models have some hundred of either.
pub(crate) const MOST_LAYERS: usize = 1 << 12;
pub(crate) const MOST_EXPERTS: usize = 1 << 12;

/// Refuses values that no tensor shape would reveal as wrong, and keeps later arithmetic in range.
pub(crate) fn check(spec: &DecoderSpec) -> Result<(), FactError> {
    size("num_hidden_layers", spec.layers.len(), MOST_LAYERS)?;
    size("hidden_size", spec.hidden, LARGEST)?;
    size("vocab_size", spec.vocab, LARGEST)?;
    if spec.max_positions == 0 || u32::try_from(spec.max_positions).is_err() {
        return Err(inconsistent(format!("the model is for {} positions", spec.max_positions)));
    }
    if !(spec.norm.eps.is_finite() && spec.norm.eps >= 0.0) {
        return Err(inconsistent(format!("the norm's epsilon is {}", spec.norm.eps)));
    }
    let factors = spec.factors;
    for (name, factor) in
        [("embeddings", factors.embedding), ("residuals", factors.residual), ("logits", factors.logits)]
    {
        if !factor.is_finite() {
            return Err(inconsistent(format!("the factor on {name} is {factor}")));
        }
    }
    if let Some((name, factor)) = spec.matrix_factors.iter().find(|(_, factor)| !factor.is_finite()) {
        return Err(inconsistent(format!("the factor on {name} is {factor}")));
    }
    for rope in &spec.ropes {
        positive("rope_theta", rope.theta)?;
        if let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. } = rope.scaling {
            positive("low_freq_factor", low_freq_factor)?;
            positive("high_freq_factor", high_freq_factor)?;
            if low_freq_factor == high_freq_factor {
                return Err(inconsistent("low_freq_factor and high_freq_factor are the same"));
            }
        }
    }
    if let Some(streams) = &spec.streams {
        size("altup_num_inputs", streams.count, 64)?;
        size("hidden_size_per_layer_input", streams.layer_input, LARGEST)?;
        size("vocab_size_per_layer_input", streams.layer_vocab, LARGEST)?;
        size("laurel_rank", streams.laurel_rank, LARGEST)?;
        if streams.active >= streams.count {
            return Err(inconsistent(format!("stream {} of {}", streams.active, streams.count)));
        }
    }
    spec.layers.iter().try_for_each(|layer| check_layer(spec, layer))
}

fn check_layer(spec: &DecoderSpec, layer: &LayerSpec) -> Result<(), FactError> {
    match &layer.mixer {
        Mixer::Attention(attention) => check_attention(spec, attention)?,
        Mixer::Latent(latent) => check_latent(spec, latent)?,
        Mixer::ShortConv(conv) => {
            size("the width of a convolution", conv.width, LARGEST)?;
            size("the taps of a convolution", conv.taps, MOST_TAPS)?;
        }
        Mixer::DeltaNet(net) => check_delta_net(net)?,
        Mixer::Mamba(mamba) => check_mamba(mamba)?,
        Mixer::Both(attention, mamba) => {
            check_attention(spec, attention)?;
            check_mamba(mamba)?;
        }
        Mixer::None => {}
    }
    match &layer.feed_forward {
        FeedForward::Gated(mlp) | FeedForward::Plain(mlp) => check_mlp(mlp),
        FeedForward::Experts(experts) => check_experts(experts),
        FeedForward::None => Ok(()),
    }
}

fn check_attention(spec: &DecoderSpec, attention: &AttentionSpec) -> Result<(), FactError> {
    let AttentionSpec { heads, kv_heads, head_dim, rope, window, .. } = *attention;
    size("num_attention_heads", heads, LARGEST)?;
    size("num_key_value_heads", kv_heads, LARGEST)?;
    size("head_dim", head_dim, LARGEST)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(inconsistent(format!(
            "{heads} attention heads cannot share {kv_heads} key and value heads evenly"
        )));
    }
    if window == Some(0) {
        return Err(inconsistent("a window of 0 tokens"));
    }
    check_softcap("attention", attention.softcap)?;
    check_scale(attention.scale)?;
    rope.map_or(Ok(()), |rope| check_rope(spec, rope, head_dim))
}

fn check_latent(spec: &DecoderSpec, latent: &LatentSpec) -> Result<(), FactError> {
    let LatentSpec { heads, query_rank, rank, plain_dim, rope_dim, value_dim, .. } = *latent;
    for (name, value) in [
        ("num_attention_heads", heads),
        ("q_lora_rank", query_rank.unwrap_or(1)),
        ("kv_lora_rank", rank),
        ("qk_nope_head_dim", plain_dim),
        ("qk_rope_head_dim", rope_dim),
        ("v_head_dim", value_dim),
    ] {
        size(name, value, LARGEST)?;
    }
    check_scale(latent.scale)?;
    check_rope(spec, latent.rope, rope_dim)
}

fn check_delta_net(net: &DeltaNetSpec) -> Result<(), FactError> {
    let DeltaNetSpec { key_heads, value_heads, key_dim, value_dim, taps, .. } = *net;
    for (name, value) in [
        ("linear_num_key_heads", key_heads),
        ("linear_num_value_heads", value_heads),
        ("linear_key_head_dim", key_dim),
        ("linear_value_head_dim", value_dim),
    ] {
        size(name, value, MOST_HEADS)?;
    }
    size("linear_conv_kernel_dim", taps, MOST_TAPS)?;
    if !value_heads.is_multiple_of(key_heads) {
        return Err(inconsistent(format!("{value_heads} value heads cannot share {key_heads} key heads evenly")));
    }
    Ok(())
}

fn check_mamba(mamba: &MambaSpec) -> Result<(), FactError> {
    let MambaSpec { heads, head_dim, groups, state_dim, taps, .. } = *mamba;
    for (name, value) in
        [("mamba_n_heads", heads), ("mamba_d_head", head_dim), ("mamba_n_groups", groups), ("mamba_d_state", state_dim)]
    {
        size(name, value, MOST_HEADS)?;
    }
    size("mamba_d_conv", taps, MOST_TAPS)?;
    if !heads.is_multiple_of(groups) {
        return Err(inconsistent(format!("{heads} heads cannot be in {groups} groups evenly")));
    }
    let steps = [mamba.least_step, mamba.most_step];
    if steps.iter().any(|step| step.is_nan()) || steps[0] > steps[1] {
        return Err(inconsistent(format!("steps of time from {} to {}", steps[0], steps[1])));
    }
    Ok(())
}

fn check_rope(spec: &DecoderSpec, rope: usize, head_dim: usize) -> Result<(), FactError> {
    let Some(rope) = spec.ropes.get(rope) else { return Err(inconsistent("a layer's rope is missing")) };
    // Of an odd width the last plane has an element more.
    if rope.width.next_multiple_of(2) > head_dim {
        return Err(inconsistent(format!(
            "{} of a head's {head_dim} elements cannot be rotated in planes",
            rope.width
        )));
    }
    let planes = rope.width.div_ceil(2);
    let fits = |factors: &Vec<f32>| {
        factors.len() == planes && factors.iter().all(|factor| factor.is_finite() && *factor > 0.0)
    };
    match &rope.scaling {
        RopeScaling::Factors(factors) if !fits(factors) => {
            Err(inconsistent(format!("{} rope factors for {planes} planes", factors.len())))
        }
        RopeScaling::Long { short, long, .. } if !(fits(short) && fits(long)) => {
            let (short, long) = (short.len(), long.len());
            Err(inconsistent(format!("{short} short and {long} long rope factors for {planes} planes")))
        }
        _ => Ok(()),
    }
}

fn check_mlp(mlp: &MlpSpec) -> Result<(), FactError> {
    size("intermediate_size", mlp.intermediate, LARGEST)
}

fn check_experts(experts: &ExpertsSpec) -> Result<(), FactError> {
    let ExpertsSpec { count, used, intermediate, .. } = *experts;
    size("the number of experts", count, MOST_EXPERTS)?;
    size("the width of an expert", intermediate, LARGEST)?;
    if used == 0 || used > count {
        return Err(inconsistent(format!("{used} of {count} experts for each token")));
    }
    if let Some(groups) = experts.router.groups {
        let whole = groups.count > 0 && count.is_multiple_of(groups.count);
        if !whole || groups.used == 0 || groups.used > groups.count || groups.used * (count / groups.count) < used {
            let (some, all) = (groups.used, groups.count);
            return Err(inconsistent(format!("{used} experts of {some} of {all} groups among {count}")));
        }
    }
    if !experts.router.scale.is_finite() {
        return Err(inconsistent(format!("the factor on experts is {}", experts.router.scale)));
    }
    experts.shared.as_ref().map_or(Ok(()), |shared| check_mlp(&shared.mlp))
}

fn check_scale(scale: f64) -> Result<(), FactError> {
    if scale.is_finite() { Ok(()) } else { Err(inconsistent(format!("the factor on scores is {scale}"))) }
}

fn check_softcap(of: &str, softcap: Option<f64>) -> Result<(), FactError> {
    softcap.map_or(Ok(()), |bound| positive(&format!("the bound of {of}"), bound).map(|_| ()))
}

fn size(name: &str, value: usize, most: usize) -> Result<(), FactError> {
    if value == 0 || value > most { Err(inconsistent(format!("{name} is {value}"))) } else { Ok(()) }
}

/// The value, if it is a number above 0.
pub(crate) fn positive(name: &str, value: f64) -> Result<f64, FactError> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(inconsistent(format!("{name} is {value}"))) }
}

pub(crate) fn inconsistent(what: impl Into<String>) -> FactError {
    FactError::Inconsistent(what.into())
}
