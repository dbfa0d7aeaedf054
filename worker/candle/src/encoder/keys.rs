//! Readings of facts about encoders that all families share.

use model_boss_engine::LabelShares;

use crate::error::ModelError;
use crate::spec::Activation;
use crate::spec::check::inconsistent;
use crate::spec::fact_error::FactError;
use crate::spec::facts::{ModelFacts, activation};

/// The activation of this name.
pub(super) fn activation_of(name: &str) -> Result<Activation, ModelError> {
    activation(name).map_err(|error| ModelError::Config(error.into()))
}

/// The labels of a classifier, and how their numbers become shares.
pub(super) type Labels = (Vec<String>, LabelShares);

/// The first of these keys that has a number.
pub(super) fn number(facts: &ModelFacts<'_>, keys: &[&str], default: usize) -> Result<usize, FactError> {
    for key in keys {
        if let Some(found) = facts.number(key, "")? {
            return Ok(found);
        }
    }
    Ok(default)
}

/// The width of a head that is an even share of all.
pub(super) fn even_share(hidden: usize, heads: usize) -> Result<usize, FactError> {
    let even = hidden.checked_div(heads).filter(|share| share * heads == hidden);
    even.ok_or_else(|| inconsistent(format!("{heads} heads do not divide a width of {hidden}")))
}

/// Refuses features of the reference that change numbers and that this program lacks.
pub(super) fn refuse(facts: &ModelFacts<'_>, keys: &[&str]) -> Result<(), FactError> {
    match keys.iter().find(|key| facts.flag(key, "").ok().flatten() == Some(true)) {
        Some(key) => Err(FactError::Unsupported(format!("{key} in an encoder"))),
        None => Ok(()),
    }
}
