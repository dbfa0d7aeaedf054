//! Rotary position embeddings in both formats.
//!
//! `config.json` spells rope in two ways. Up to transformers 4 it is `rope_theta` beside `rope_scaling` (with `type` or
//! `rope_type`); since transformers 5 it is one `rope_parameters`, which may have a table for each kind of layer. Both
//! are read as transformers 5 does. A `rope_scaling` with values has precedence, and a theta inside the table has
//! precedence over one beside it. Of GGUF the defaults are those of llama.cpp.

use super::both_formats::ModelFacts;
use super::config_facts::ConfigFacts;
use super::gguf_facts::GgufFacts;
use crate::spec::check::{inconsistent, positive};
use crate::spec::fact_error::FactError;
use crate::spec::{RopePlanes, RopeScaling, RopeSpec};

/// A family's rope where the files do not say it.
#[derive(Clone, Copy)]
pub(crate) struct RopeDefaults<'a> {
    /// The planes of safetensors. GGUF has its own for each architecture.
    pub(crate) planes: RopePlanes,
    pub(crate) theta: f64,
    /// Width of a head.
    pub(crate) head_dim: usize,
    /// The share of a head that is rotated.
    pub(crate) partial: f64,
    pub(crate) positions: usize,
    /// The kind of layers that it is for, where kinds have ropes of their own.
    pub(crate) layer_type: Option<&'a str>,
}

impl RopeDefaults<'_> {
    /// The usual rope over a whole head.
    pub(crate) fn usual(head_dim: usize, positions: usize) -> Self {
        Self { planes: RopePlanes::Halves, theta: 10_000.0, head_dim, partial: 1.0, positions, layer_type: None }
    }
}

impl ModelFacts<'_> {
    /// Reads a rope.
    pub(crate) fn rope(&self, defaults: &RopeDefaults<'_>) -> Result<RopeSpec, FactError> {
        match self {
            Self::Config(facts) => facts.rope(defaults),
            Self::Gguf(facts) => facts.rope(defaults),
        }
    }
}

impl ConfigFacts {
    /// The tables of rope by precedence, each with values.
    fn rope_table(&self, layer_type: Option<&str>) -> Result<Option<Self>, FactError> {
        for key in ["rope_scaling", "rope_parameters"] {
            let Some(table) = self.table(key)?.filter(|table| !table.is_empty()) else { continue };
            let has_kinds = ["full_attention", "sliding_attention"].iter().any(|kind| table.get(kind).is_some());
            match layer_type {
                _ if !has_kinds => return Ok(Some(table)),
                Some(kind) => return table.table(kind),
                None => return table.table("full_attention"),
            }
        }
        Ok(None)
    }

    pub(super) fn lacks_tables_for_kinds(&self) -> Result<bool, FactError> {
        let of_kind = |table: &Self| table.get("full_attention").or(table.get("sliding_attention")).is_some();
        Ok(!self.table("rope_parameters")?.is_some_and(|table| of_kind(&table)))
    }

    pub(super) fn rope_numbers(&self, key: &str) -> Result<Option<Vec<usize>>, FactError> {
        self.rope_table(None)?.map_or(Ok(None), |table| table.numbers(key))
    }

    pub(super) fn rope_float(&self, key: &str) -> Result<Option<f64>, FactError> {
        self.rope_table(None)?.map_or(Ok(None), |table| table.float(key))
    }

    pub(super) fn rope_kind(&self) -> Result<Option<String>, FactError> {
        let Some(table) = self.rope_table(None)? else { return Ok(None) };
        Ok(table.text("rope_type")?.or(table.text("type")?).map(str::to_owned))
    }

    fn rope(&self, defaults: &RopeDefaults<'_>) -> Result<RopeSpec, FactError> {
        let table = self.rope_table(defaults.layer_type)?;
        let float = |key: &str| table.as_ref().map_or(Ok(None), |table| table.float(key));
        let text = |key: &str| table.as_ref().map_or(Ok(None), |table| table.text(key));
        let partial = match float("partial_rotary_factor")? {
            Some(partial) => Some(partial),
            None => self.float("partial_rotary_factor")?.or(self.float("rotary_pct")?),
        };
        let partial = partial.unwrap_or(defaults.partial);
        if !(partial > 0.0 && partial <= 1.0) {
            return Err(inconsistent(format!("partial_rotary_factor is {partial}")));
        }
        let width = (defaults.head_dim as f64 * partial) as usize;
        let theta = float("rope_theta")?.or(self.float("rope_theta")?).unwrap_or(defaults.theta);
        let theta = positive("rope_theta", theta)?;
        let kind = text("rope_type")?.or(text("type")?).unwrap_or("default").to_owned();
        let need = |key: &str| float(key)?.ok_or_else(|| inconsistent(format!("rope scaling '{kind}' lacks {key}")));
        let factor = || need("factor").and_then(|factor| positive("the rope factor", factor));
        let positions = defaults.positions as f64;
        let original = || -> Result<f64, FactError> {
            let key = "original_max_position_embeddings";
            positive(key, self.float(key)?.or(float(key)?).unwrap_or(positions))
        };
        let scaling = match kind.as_str() {
            "default" | "none" | "mrope" => RopeScaling::None,
            "dynamic" => match float("alpha")? {
                // Hunyuan: a longer base once and for all, in place of one that follows the length.
                Some(alpha) => return Ok(self.with_alpha(defaults, width, theta, alpha)),
                None => RopeScaling::Dynamic { factor: factor()?, original_max_positions: defaults.positions },
            },
            "linear" => RopeScaling::Linear { factor: factor()? },
            "llama3" => RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: need("low_freq_factor")?,
                high_freq_factor: need("high_freq_factor")?,
                original_max_positions: original()?,
            },
            "yarn" => {
                let original_max_positions = original()?;
                let factor = match float("factor")? {
                    Some(factor) => positive("the rope factor", factor)?,
                    None => positions / original_max_positions,
                };
                let given = |key: &str| Ok::<_, FactError>(float(key)?.filter(|value| *value != 0.0));
                let attention_factor =
                    match (float("attention_factor")?, given("mscale")?.zip(given("mscale_all_dim")?)) {
                        (Some(attention_factor), _) => attention_factor,
                        (None, Some((mscale, all_dim))) => warmth(factor, mscale) / warmth(factor, all_dim),
                        (None, None) => warmth(factor, 1.0),
                    };
                let truncate = table.as_ref().map_or(Ok(None), |table| table.flag("truncate"))?;
                RopeScaling::Yarn {
                    factor,
                    attention_factor,
                    beta_fast: given("beta_fast")?.unwrap_or(32.0),
                    beta_slow: given("beta_slow")?.unwrap_or(1.0),
                    original_max_positions,
                    truncate: truncate.unwrap_or(true),
                }
            }
            "longrope" | "su" => {
                let original = original()?;
                let factors = |key: &str| {
                    let found = table.as_ref().map_or(Ok(None), |table| table.floats(key))?;
                    found.ok_or_else(|| inconsistent(format!("rope scaling '{kind}' lacks {key}")))
                };
                let attention_factor = match float("attention_factor")? {
                    Some(given) => given,
                    None => {
                        let longer = match self.float("original_max_position_embeddings")? {
                            Some(_) => positions / original,
                            None => float("factor")?.unwrap_or(positions / original),
                        };
                        long_attention_factor(longer, original)
                    }
                };
                RopeScaling::Long {
                    short: factors("short_factor")?,
                    long: factors("long_factor")?,
                    original_max_positions: original as usize,
                    attention_factors: [attention_factor; 2],
                }
            }
            other => {
                return Err(FactError::Unsupported(format!("rope scaling '{}'", other.escape_debug())));
            }
        };
        Ok(RopeSpec { planes: defaults.planes, width, theta, scaling, axes: Vec::new() })
    }

    fn with_alpha(&self, defaults: &RopeDefaults<'_>, width: usize, theta: f64, alpha: f64) -> RopeSpec {
        let theta = if alpha > 0.0 { theta * alpha.powf(width as f64 / (width as f64 - 2.0)) } else { theta };
        RopeSpec { planes: defaults.planes, width, theta, scaling: RopeScaling::None, axes: Vec::new() }
    }
}

/// YaRN's factor on attention: `0.1 mscale ln(factor) + 1`.
pub(crate) fn warmth(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

/// LongRoPE's factor on attention, for sequences that are so many times as long as the original ones.
fn long_attention_factor(longer: f64, original: f64) -> f64 {
    if longer <= 1.0 { 1.0 } else { (1.0 + longer.ln() / original.ln()).sqrt() }
}

impl GgufFacts<'_> {
    fn rope(&self, defaults: &RopeDefaults<'_>) -> Result<RopeSpec, FactError> {
        let sliding = defaults.layer_type == Some("sliding_attention");
        let width = match self.number("rope.dimension_count")? {
            Some(width) => width,
            None => defaults.head_dim,
        };
        let theta = match sliding.then(|| self.float("rope.freq_base_swa")).transpose()?.flatten() {
            Some(theta) => theta,
            None if sliding => defaults.theta,
            None => self.float("rope.freq_base")?.unwrap_or(defaults.theta),
        };
        let scaling = if sliding { RopeScaling::None } else { self.rope_scaling(defaults.positions)? };
        Ok(RopeSpec { planes: defaults.planes, width, theta, scaling, axes: Vec::new() })
    }

    fn rope_scaling(&self, positions: usize) -> Result<RopeScaling, FactError> {
        if let Some(factors) = self.values("rope_freqs.weight")? {
            let usable = factors.iter().all(|factor| factor.is_finite() && *factor > 0.0);
            if !usable {
                return Err(FactError::Unsupported(format!("{} factors in `rope_freqs.weight`", factors.len())));
            }
            return Ok(RopeScaling::Factors(factors));
        }
        let positive = |name: &'static str| -> Result<Option<f64>, FactError> {
            match self.float(name)? {
                Some(factor) if factor.is_finite() && factor > 0.0 => Ok(Some(factor)),
                // The value 0 means that the factor is not set.
                Some(0.0) | None => Ok(None),
                Some(other) => Err(FactError::Unsupported(format!("`{}` = {other}", self.key(name)))),
            }
        };
        let original = || Ok::<_, FactError>(self.number("rope.scaling.original_context_length")?.unwrap_or(positions));
        if let (Some(short), Some(long)) =
            (self.values("rope_factors_short.weight")?, self.values("rope_factors_long.weight")?)
        {
            let original = original()?;
            let given = positive("rope.scaling.attn_factor")?;
            let longer = positions as f64 / original as f64;
            return Ok(RopeScaling::Long {
                short,
                long,
                original_max_positions: original,
                attention_factors: [given.unwrap_or_else(|| long_attention_factor(longer, original as f64)); 2],
            });
        }
        let factor = || positive("rope.scaling.factor");
        Ok(match self.find::<&str>("rope.scaling.type")? {
            // Older files, from before the key existed, have only the factor.
            None => match positive("rope.scale_linear")? {
                Some(factor) if factor != 1.0 => RopeScaling::Linear { factor },
                _ => RopeScaling::None,
            },
            Some("none") => RopeScaling::None,
            Some("linear") => match factor()?.or(positive("rope.scale_linear")?) {
                Some(factor) => RopeScaling::Linear { factor },
                None => RopeScaling::None,
            },
            Some("yarn") => {
                if positive("rope.scaling.yarn_ext_factor")?.is_some_and(|factor| factor != 1.0) {
                    return Err(FactError::Unsupported("YaRN with an extrapolation factor of its own".to_owned()));
                }
                let Some(factor) = factor()? else { return Err(self.missing("rope.scaling.factor")) };
                let given = positive("rope.scaling.attn_factor")?.or(positive("rope.scaling.yarn_attn_factor")?);
                RopeScaling::Yarn {
                    factor,
                    // llama.cpp scales attention by the paper's formula, times the file's factor.
                    attention_factor: given.unwrap_or(1.0) * warmth(factor, 1.0),
                    beta_fast: positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    original_max_positions: original()? as f64,
                    truncate: true,
                }
            }
            Some(other) => return Err(FactError::Unsupported(format!("rope scaling '{}'", other.escape_debug()))),
        })
    }
}
