//! The tokens that a batch's answers have cost.

use serde::{Deserialize, Serialize};

/// Tokens of answers, as their `usage` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchUsage {
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Those of them that did not have to be evaluated.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub output_tokens: u64,
    /// Those of them that are thoughts.
    pub reasoning_tokens: u64,
}

/// The part of an answer's body that counts its tokens.
#[derive(Deserialize)]
struct CountedBody {
    #[serde(default)]
    usage: Option<CountedUsage>,
}

/// `usage` in the forms of chats, completions and embeddings, and of responses and messages.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CountedUsage {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u64>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<TokenDetails>,
    #[serde(alias = "output_tokens_details")]
    completion_tokens_details: Option<TokenDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenDetails {
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

impl BatchUsage {
    /// The tokens that an answer's body counts; none where it counts none.
    pub fn of_answer(body: &str) -> Self {
        serde_json::from_str::<CountedBody>(body).map(Self::from).unwrap_or_default()
    }

    /// Adds another answer's tokens.
    pub fn add(&mut self, other: Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
    }
}

impl From<CountedBody> for BatchUsage {
    fn from(CountedBody { usage }: CountedBody) -> Self {
        let usage = usage.unwrap_or_default();
        let (input, output) = (usage.prompt_tokens_details, usage.completion_tokens_details);
        Self {
            input_tokens: usage.prompt_tokens.unwrap_or_default(),
            cached_tokens: input.and_then(|details| details.cached_tokens).unwrap_or_default(),
            output_tokens: usage.completion_tokens.unwrap_or_default(),
            reasoning_tokens: output.and_then(|details| details.reasoning_tokens).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_tokens_are_counted_in_the_forms_of_all_routes() {
        let chat = r#"{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}}"#;
        let response = r#"{"usage": {"input_tokens": 10, "output_tokens": 20, "output_tokens_details": null}}"#;
        let mut sum = BatchUsage::of_answer(chat);
        assert_eq!(sum, BatchUsage { input_tokens: 5, cached_tokens: 4, output_tokens: 3, reasoning_tokens: 2 });
        sum.add(BatchUsage::of_answer(response));
        sum.add(BatchUsage::of_answer(r#"{"usage": {"prompt_tokens": 100}}"#));
        assert_eq!(sum, BatchUsage { input_tokens: 115, cached_tokens: 4, output_tokens: 23, reasoning_tokens: 2 });
        for none in ["{}", "[]", r#"{"usage": null}"#, r#"{"usage": "much"}"#, r#"{"usage": {"prompt_tokens": -1}}"#] {
            assert_eq!(BatchUsage::of_answer(none), BatchUsage::default(), "{none}");
        }
    }
}
