//! Tokens of an answer of the Messages API, as its events report them.

use serde_json::Value;

/// English text has about four bytes per token.
const BYTES_PER_TOKEN: usize = 4;

/// The tokens that an answer has reported so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MessageTokens {
    /// Tokens of the prompt, and the cached ones among them.
    pub(super) prompt: (u64, u64),
    answer: u64,
    /// Bytes of a streamed answer so far; `None` before its beginning, and once it has sent its count of tokens.
    untold: Option<usize>,
}

impl MessageTokens {
    /// Reads the event of a stream.
    pub(super) fn event(&mut self, kind: &str, event: &Value) {
        match kind {
            "message_start" => {
                self.untold = Some(0);
                self.usage(&event["message"]["usage"]);
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let said = [&delta["text"], &delta["thinking"], &delta["partial_json"]];
                let bytes: usize = said.into_iter().filter_map(Value::as_str).map(str::len).sum();
                self.untold = self.untold.map(|before| before + bytes);
            }
            "message_delta" => {
                if event["usage"]["output_tokens"].is_u64() {
                    self.untold = None;
                }
                self.usage(&event["usage"]);
            }
            _ => {}
        }
    }

    /// Reads an object `usage`.
    pub(super) fn usage(&mut self, usage: &Value) {
        let number = |name: &str| usage[name].as_u64();
        if let Some(input) = number("input_tokens") {
            let cached = number("cache_read_input_tokens").unwrap_or(0);
            let written = number("cache_creation_input_tokens").unwrap_or(0);
            // The provider's numbers may be of any size, so the sum must not overflow.
            self.prompt = (input.saturating_add(cached).saturating_add(written), cached);
        }
        self.answer = number("output_tokens").unwrap_or(self.answer);
    }

    /// The answer's tokens, as reported.
    pub(super) const fn answer(&self) -> u64 {
        self.answer
    }

    /// Tokens of prompt and answer. A stream has the count of its answer only at the end; until then it is estimated
    /// from the bytes.
    pub(super) fn so_far(&self) -> Option<(u64, u64)> {
        let guess = self.untold.map_or(0, |bytes| u64::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u64::MAX));
        let (prompt, answer) = (self.prompt.0, self.answer.max(guess));
        (prompt > 0 || answer > 0).then_some((prompt, answer))
    }
}
