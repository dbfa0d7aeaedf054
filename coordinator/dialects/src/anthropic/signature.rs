//! Signatures of thoughts. Anthropic's API takes only thoughts that it has signed, and many clients send back only
//! thoughts that have a signature.

use serde_json::Value;

/// The signature of thoughts of models that are not Anthropic's: `model-boss` in base64. It proves nothing, since
/// these models read any thoughts.
pub(super) const OUR_SIGNATURE: &str = "bW9kZWwtYm9zcw==";

/// Whether a thought with this signature is none of Anthropic's.
pub(super) fn is_ours(signature: &Value) -> bool {
    signature.as_str().is_none_or(|signature| signature.is_empty() || signature == OUR_SIGNATURE)
}
