//! Families with states in place of keys and values have much in common: the kinds of layers, and Mamba-2's keys and
//! names.

use crate::spec::fact_error::FactError;
use crate::spec::facts::{Base, ModelFacts, per_layer};
use crate::spec::spelling::TensorSpelling;
use crate::spec::{GatedNorm, MambaSpec, StoredDecay};

/// Whether each layer has attention, where files list the kinds of layers or the heads of each.
pub(super) fn attends(facts: &ModelFacts<'_>, layers: usize) -> Result<Option<Vec<bool>>, FactError> {
    if let Some(heads) = facts.numbers("", "attention.head_count_kv")? {
        let heads = per_layer(heads, layers, "attention.head_count_kv")?;
        return Ok(Some(heads.into_iter().map(|heads| heads > 0).collect()));
    }
    for key in ["layer_types", "layers_block_type"] {
        if let Some(kinds) = facts.layer_types(key)? {
            let attends = |kind: String| kind == "full_attention" || kind == "attention";
            return Ok(Some(per_layer(kinds, layers, key)?.into_iter().map(attends).collect()));
        }
    }
    Ok(None)
}

/// Mamba-2 by the keys of Granite 4 and Bamba, whose defaults are the same.
pub(super) fn mamba(facts: &ModelFacts<'_>, base: &Base) -> Result<MambaSpec, FactError> {
    let number =
        |config: &str, gguf: &str, default: usize| Ok::<_, FactError>(facts.number(config, gguf)?.unwrap_or(default));
    let heads = number("mamba_n_heads", "ssm.time_step_rank", 128)?;
    let expanded = number("mamba_expand", "", 2)?.saturating_mul(base.hidden);
    let inner = number("mamba_d_ssm", "ssm.inner_size", expanded)?;
    let bias = facts.config_flag("mamba_proj_bias", facts.gguf_has_any("ssm_in.bias", base.layers))?.unwrap_or(false);
    Ok(MambaSpec {
        heads,
        head_dim: inner.checked_div(heads).unwrap_or(0),
        groups: number("mamba_n_groups", "ssm.group_count", 1)?,
        state_dim: number("mamba_d_state", "ssm.state_size", 256)?,
        taps: number("mamba_d_conv", "ssm.conv_kernel", 4)?,
        conv_bias: facts
            .config_flag("mamba_conv_bias", facts.gguf_has_any("ssm_conv1d.bias", base.layers))?
            .unwrap_or(true),
        activation: base.activation,
        bias,
        out_bias: if facts.is_gguf() { facts.gguf_has_any("ssm_out.bias", base.layers) } else { bias },
        least_step: 0.0,
        most_step: f32::INFINITY,
        norm: GatedNorm::GateFirst,
        norm_eps: base.eps,
        decay: decay(facts),
        factors: [1.0; 5],
    })
}

/// The form in which files store decays.
pub(super) fn decay(facts: &ModelFacts<'_>) -> StoredDecay {
    if facts.is_gguf() { StoredDecay::Plain } else { StoredDecay::Log }
}

/// Names of Mamba-2 in GGUF; those of safetensors are ours.
pub(super) fn spelled(spelling: TensorSpelling, facts: &ModelFacts<'_>) -> TensorSpelling {
    if !facts.is_gguf() {
        return spelling;
    }
    spelling.renaming(&[
        ("mamba.in_proj", "ssm_in"),
        ("mamba.out_proj", "ssm_out"),
        ("mamba.conv1d", "ssm_conv1d"),
        ("mamba.norm", "ssm_norm"),
        ("mamba.A_log", "ssm_a"),
        ("mamba.D", "ssm_d"),
        ("mamba.dt_bias", "ssm_dt.bias"),
    ])
}
