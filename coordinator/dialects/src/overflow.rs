//! Refusals of prompts that are longer than a model's context: their recognition, and the counts in them.

use model_boss_protocol::ErrorCode;
use serde_json::Value;

/// OpenAI's words for the context of a model, which clients search for before they shorten a conversation.
pub(crate) const OPENAIS: &str = "This model's maximum context length";

/// The counts in a refusal of a prompt that is too long, as far as it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Tokens of the prompt; of several texts to embed, of one that is too long.
    pub prompt: Option<u64>,
    /// Tokens of the context.
    pub limit: Option<u64>,
}

impl Overflow {
    /// The counts of an error in OpenAI's shape, if it is about the length of a prompt.
    pub fn of_error(body: &Value) -> Option<Self> {
        let error = &body["error"];
        let is_about_length = error["code"] == ErrorCode::ContextLengthExceeded.as_str();
        is_about_length.then(|| Self::in_words(error["message"].as_str().unwrap_or_default()))
    }

    /// The counts in the words of an engine or a provider.
    pub fn in_words(message: &str) -> Self {
        let limit = number_behind(message, &["context length is ", "context length is only "])
            .or_else(|| overflow_limit(message))
            .or_else(|| number_behind(message, &["number of tokens allowed ("]));
        Self { prompt: prompt_tokens(message), limit }
    }
}

/// Whether an engine's or a provider's message says that a prompt is too long. Most say so in words only.
pub(crate) fn is_overflow(message: &str) -> bool {
    let words = [
        "maximum context length",
        "longer than the model's context length",
        "exceeds the available context size",
        "larger than the max context size",
        "too large to process",
        "prompt is too long",
        "exceeds the maximum number of tokens allowed",
    ];
    words.iter().any(|words| message.contains(words))
}

/// The longest prompt in tokens, where an engine's message gives it in words other than OpenAI's.
pub(crate) fn overflow_limit(message: &str) -> Option<u64> {
    number_behind(message, &["batch size: ", "context length (", "context size (", "tokens > "])
}

/// The tokens of the prompt. A count that includes the answer is used only where no other is given.
fn prompt_tokens(message: &str) -> Option<u64> {
    const BEFORE: [&str; 8] = [
        " in the messages",
        " input tokens",
        " tokens in the input",
        " in your prompt",
        ") is longer than",
        ") exceeds the available context size",
        ") is too large to process",
        " tokens > ",
    ];
    number_behind(message, &["the prompt has ", "resulted in ", "The input token count ("])
        .or_else(|| BEFORE.into_iter().find_map(|words| number_before(message, words)))
        .or_else(|| number_behind(message, &["you requested "]))
}

fn number_behind(message: &str, words: &[&str]) -> Option<u64> {
    words.iter().find_map(|words| {
        let (_, behind) = message.split_once(words)?;
        behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    })
}

/// The last number in front of these words, with the unit `tokens` between them or not.
fn number_before(message: &str, words: &str) -> Option<u64> {
    let (before, _) = message.split_once(words)?;
    let before = before.trim_end_matches(" tokens");
    let digits = before.len() - before.bytes().rev().take_while(u8::is_ascii_digit).count();
    before[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_are_read_from_the_words_of_every_engine() {
        for (message, prompt, limit) in [
            (
                "This model's maximum context length is 512 tokens. However, the prompt has 600 tokens; shorten it",
                Some(600),
                Some(512),
            ),
            (
                "This model's maximum context length is 4097 tokens. However, your messages resulted in 5000 tokens.",
                Some(5000),
                Some(4097),
            ),
            (
                "This model's maximum context length is 4096 tokens. However, you requested 5100 tokens (100 in the \
                 messages, 5000 in the completion).",
                Some(100),
                Some(4096),
            ),
            (
                "This model's maximum context length is 4096 tokens. However, you requested 50 output tokens and your \
                 prompt contains at least 4047 input tokens, for a total of at least 4097 tokens.",
                Some(4047),
                Some(4096),
            ),
            (
                "This model's maximum context length is 512 tokens. However, you requested 600 tokens in the input for \
                 embedding generation.",
                Some(600),
                Some(512),
            ),
            (
                "You passed 5001 input tokens and requested 0 output tokens. However, the model's context length is \
                 only 4096 tokens",
                Some(5001),
                Some(4096),
            ),
            ("request (5000 tokens) exceeds the available context size (4096 tokens), try", Some(5000), Some(4096)),
            ("the request exceeds the available context size. try increasing the context size", None, None),
            (
                "input (596 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
                Some(596),
                Some(512),
            ),
            (
                "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
                Some(5000),
                Some(4096),
            ),
            ("prompt is too long: 205000 tokens > 200000 maximum", Some(205_000), Some(200_000)),
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                Some(1_200_000),
                Some(1_048_576),
            ),
        ] {
            assert!(is_overflow(message) || message.starts_with("You passed"), "{message}");
            assert_eq!(Overflow::in_words(message), Overflow { prompt, limit }, "{message}");
        }
    }

    #[test]
    fn an_error_about_something_else_is_no_overflow() {
        let body = |code: &str| serde_json::json!({ "error": { "code": code, "message": "the prompt has 9 tokens" } });
        assert_eq!(Overflow::of_error(&body("invalid_request")), None);
        let expected = Overflow { prompt: Some(9), limit: None };
        assert_eq!(Overflow::of_error(&body("context_length_exceeded")), Some(expected));
        assert_eq!(Overflow::of_error(&Value::Null), None);
    }
}
