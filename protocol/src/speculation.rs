//! Whether a worker evaluates tokens before it is known that they come.

use serde::{Deserialize, Serialize};

/// The source of tokens that probably come next. Answers are the same without them, and slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Speculation {
    /// None.
    Off,
    /// The tokens that came before behind the same ones of the prompt or the answer.
    #[default]
    Lookup,
}
