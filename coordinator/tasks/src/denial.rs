//! Reasons why a caller may not use a name.

use model_boss_protocol::ModelId;

/// A name that cannot be used, or an order that a caller may not give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The file has no such task.
    #[error("the task '{name}' was not found; {hint}")]
    UnknownTask {
        /// The name without its prefix.
        name: String,
        /// A similar name, or the place where all are listed.
        hint: String,
    },
    /// The model has adapters, and none of this name.
    #[error("model '{model}' has no adapter '{adapter}'; it has: {known}")]
    UnknownAdapter {
        /// The model.
        model: ModelId,
        /// The name behind the model's.
        adapter: String,
        /// The adapters that there are.
        known: String,
    },
    /// The client's `allowed_models`, or those of its key, lack the model or task.
    #[error("this client may not use '{0}'; its 'allowed_models' in tasks.yaml or those of its key say what it may")]
    ModelNotAllowed(String),
    /// The order concerns every model, and the client may use only some.
    #[error(
        "this concerns every model, and this client may not use them all; its 'allowed_models' in tasks.yaml or those \
         of its key say what it may"
    )]
    MachineNotAllowed,
    /// The task is `local_only` and names only clouds.
    #[error("the task is 'local_only', and nothing on its ladder is of this machine")]
    TaskIsLocal,
    /// The client may use no cloud, and the name leads only to clouds.
    #[error("this client may not use models of clouds ('cloud: false' in tasks.yaml)")]
    ClientIsLocal,
    /// No rung is left. The guard against clouds keeps the first rung, so this does not happen.
    #[error("nothing on the ladder of '{0}' may be used")]
    NothingLeft(String),
}
