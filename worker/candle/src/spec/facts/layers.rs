//! ModelFacts that differ from layer to layer: windows, and the kinds of layers.

use super::both_formats::ModelFacts;
use crate::spec::check::inconsistent;
use crate::spec::fact_error::FactError;

impl ModelFacts<'_> {
    /// The window of attention, before it is known which layers have it. `default` is that of a `config.json` without
    /// the key; `null` is no window.
    pub(crate) fn window(&self, default: Option<usize>) -> Result<Option<usize>, FactError> {
        match self.number("sliding_window", "attention.sliding_window")? {
            Some(0) => Ok(None),
            Some(window) => Ok(Some(window)),
            None if self.is_gguf() || self.is_null("sliding_window") => Ok(None),
            None => Ok(default),
        }
    }

    /// Each layer's window: of those that the files list, else of those that the family says.
    pub(crate) fn windows(
        &self,
        layers: usize,
        window: Option<usize>,
        usual: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, FactError> {
        let sliding = self.sliding(layers, usual)?;
        Ok(sliding.into_iter().map(|sliding| window.filter(|_| sliding)).collect())
    }

    /// Which layers are of the sliding kind: those that the files list, else those that the family says.
    pub(crate) fn sliding(&self, layers: usize, usual: impl Fn(usize) -> bool) -> Result<Vec<bool>, FactError> {
        if let Some(types) = self.layer_types("layer_types")? {
            return per_layer(types, layers, "layer_types")
                .map(|types| types.iter().map(|kind| kind == "sliding_attention").collect());
        }
        match self.numbers("", "attention.sliding_window_pattern")? {
            Some(flags) => per_layer(flags, layers, "attention.sliding_window_pattern")
                .map(|flags| flags.into_iter().map(|flag| flag != 0).collect()),
            None => Ok((0..layers).map(usual).collect()),
        }
    }
}

/// A list with an entry for each layer.
pub(crate) fn per_layer<T>(list: Vec<T>, layers: usize, key: &str) -> Result<Vec<T>, FactError> {
    if list.len() == layers {
        return Ok(list);
    }
    Err(inconsistent(format!("{key} has {} entries for {layers} layers", list.len())))
}

/// Whether a layer is not the last of its group, where the groups' last layers see everything.
pub(crate) fn all_but_each(group: usize) -> impl Fn(usize) -> bool {
    move |layer| !(layer + 1).is_multiple_of(group.max(1))
}
