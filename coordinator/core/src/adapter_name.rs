//! The meaning of a name that is no model's own: an adapter of a model, as `MODEL:ADAPTER`.

use model_boss_protocol::ModelId;

/// The meaning of a name that is no model's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterName {
    /// An adapter of a model.
    Known {
        /// The model.
        model: ModelId,
        /// The adapter.
        adapter: String,
    },
    /// A model that has adapters, and none of this name.
    Unknown {
        /// The model.
        model: ModelId,
        /// The name behind the model's.
        adapter: String,
        /// The names of its adapters.
        known: Vec<String>,
    },
    /// Neither.
    Other,
}
