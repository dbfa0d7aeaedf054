//! The reasons why a grammar cannot bind an answer.

/// The reason why a grammar cannot bind an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The grammar has a fault, or asks for more than can be held to. The message names the keyword.
    #[error("{0}")]
    Unusable(String),
    /// The vocabulary cannot be used with any grammar.
    #[error("this model's vocabulary cannot be used with grammars: {0}")]
    Vocabulary(String),
}

/// The library's words, without its dump of the grammar.
pub(super) fn first_words(words: &str) -> String {
    let words = words.split("\n<").next().unwrap_or(words).trim();
    words
        .replace("Unimplemented keys:", "these keywords cannot be held to:")
        .replace(
            "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
            "'oneOf' cannot be held to where several of its schemas may be met; use 'anyOf'",
        )
        .replace("NoExtensionBias", "no text meets it")
        // The library names the value alone.
        .replace("Reference segment", "'$ref': the segment")
        .replace("Unknown format: ", "'format': nothing is known of ")
        .replace(
            "min/maxProperties only supported when all keys listed in \"properties\" are required",
            "'minProperties' and 'maxProperties' cannot be held to where some 'properties' are not 'required'",
        )
        .replace("Invalid type: ", "'type' is no type of JSON: ")
}
