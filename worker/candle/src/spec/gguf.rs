//! Reads GGUF metadata into a [`DecoderSpec`]: finds the family, and refuses files with tensors that it does not use.
//! Of the tensors only the names are read.

use std::collections::HashSet;

use model_boss_protocol::GGUF_ARCHITECTURES;
use model_boss_weights::gguf::{GgufModel, GgufModelError, KeyError};

use crate::spec::DecoderSpec;
use crate::spec::check::check;
use crate::spec::config::ConfigJsonError;
use crate::spec::fact_error::FactError;
use crate::spec::facts::{GgufFacts, ModelFacts};
use crate::spec::families;
use crate::spec::part_names::{EMBEDDING, HEAD};

/// The tensor with Llama 3.1's factors for the planes' frequencies.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// NeededTensors of factors, which the spec has read already.
const READ: [&str; 3] = [ROPE_FACTORS, "rope_factors_short.weight", "rope_factors_long.weight"];

/// Tensors behind the layers of models that give vectors.
const BEHIND: [&str; 2] = ["dense_2.weight", "dense_3.weight"];

/// The reason why this decoder cannot run a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufSpecError {
    /// The header cannot be used.
    #[error(transparent)]
    File(#[from] GgufModelError),
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The numbers contradict each other, or no model can have them.
    #[error(transparent)]
    Config(#[from] ConfigJsonError),
    /// The architecture is not supported by this decoder.
    #[error(
        "the architecture '{0}' is not known; this build runs {known}; llama-server may run it",
        known = GGUF_ARCHITECTURES.join(", ")
    )]
    Architecture(String),
    /// The architecture is supported, but a feature of this model is not.
    #[error("the file asks for {0}, which this build does not have; llama-server may run it")]
    Unsupported(String),
}

impl From<FactError> for GgufSpecError {
    fn from(error: FactError) -> Self {
        match error {
            FactError::Key(error) => Self::Key(error),
            FactError::Unsupported(what) => Self::Unsupported(what),
            FactError::Malformed(what) | FactError::Inconsistent(what) => {
                Self::Config(ConfigJsonError::Inconsistent(what))
            }
        }
    }
}

fn unknown(architecture: &str) -> GgufSpecError {
    GgufSpecError::Architecture(architecture.escape_debug().to_string())
}

impl DecoderSpec {
    /// Reads the metadata of a GGUF model. A file with tensors that the spec would not use is refused, because its
    /// answers would be wrong.
    pub fn from_gguf(model: &GgufModel) -> Result<Self, GgufSpecError> {
        let header = model.header()?;
        let architecture: &str = header.need("general.architecture")?;
        // The coordinator uses the same list and sends no other architecture here.
        if !GGUF_ARCHITECTURES.contains(&architecture) {
            return Err(unknown(architecture));
        }
        let family = families::of_gguf(architecture).ok_or_else(|| unknown(architecture))?;
        let facts = ModelFacts::Gguf(GgufFacts::new(&header, model, architecture));
        let mut spec = family(&facts)?;
        if facts.flag("", "attention.causal")? == Some(false) && !spec.sees_behind() {
            if spec.attentions().any(|attention| attention.window.is_some()) {
                let what = "windows of tokens that see those behind them".to_owned();
                return Err(GgufSpecError::Unsupported(what));
            }
            spec.look_behind()?;
        }
        check(&spec)?;
        all_used(&spec, model)?;
        Ok(spec)
    }
}

/// Refuses tensors that the spec does not use.
fn all_used(spec: &DecoderSpec, model: &GgufModel) -> Result<(), GgufSpecError> {
    let mut used: HashSet<String> = [EMBEDDING, HEAD].map(|name| spec.spelling.end(name)).into();
    used.extend(spec.needed_outside().iter().map(|needed| spec.spelling.end_place(needed).stored));
    for layer in 0..spec.layers.len() {
        let needed = spec.needed_by_layer(layer);
        used.extend(needed.iter().map(|part| spec.spelling.place(layer, part.part(), &needed).stored));
        // Names of as many tensors as the file has are enough to find an unused one, even if it claims more layers.
        if used.len() > model.tensors().count() + needed.len() {
            break;
        }
    }
    used.extend(READ.map(str::to_owned));
    if spec.sees_behind() {
        used.extend(BEHIND.map(str::to_owned));
    }
    // Rope tensors that old converters stored are ignored, because their values can be computed. So are the layers that
    // predict further tokens, which come behind all others.
    let layers = spec.layers.len();
    let behind = |name: &str| {
        let number = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))?.0;
        number.parse().ok().map(|number: usize| number >= layers)
    };
    let ignored =
        |name: &str| name.ends_with(".attn_rot_embd") || name.ends_with(".rope_freqs") || behind(name) == Some(true);
    match model.tensors().find(|(name, _)| !used.contains(*name) && !ignored(name)) {
        Some((name, _)) => Err(GgufSpecError::Unsupported(format!("a use for tensor `{}`", name.escape_debug()))),
        None => Ok(()),
    }
}
