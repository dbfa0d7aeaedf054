//! What a request to a provider costs, counted as its answer passes by. An answer that is given up in the middle is paid for
//! as far as it told its tokens.

use std::sync::Arc;

use bytes::Bytes;
use model_boss_dialects::Reshape;
use model_boss_dialects::anthropic::ChatFromMessages;
use model_boss_dialects::sse::{self, Item, Reader};
use model_boss_protocol::ClientId;
use serde_json::Value;

use super::Spend;

/// The open bill of one request.
pub(super) struct Bill {
    pub(super) spend: Arc<Spend>,
    pub(super) client: ClientId,
    /// For a token of prompt and of answer, in US dollars; `None` where no price is known.
    pub(super) price: Option<(f64, f64)>,
    pub(super) now: u64,
}

impl Bill {
    fn used(&self, (prompt, answer): (u64, u64)) {
        if let Some((of_prompt, of_answer)) = self.price
            && prompt + answer > 0
        {
            self.spend.add(&self.client, self.now, prompt as f64 * of_prompt + answer as f64 * of_answer);
        }
    }
}

/// An answer of the Messages API, and its bill.
pub(super) struct BilledMessages {
    pub(super) chat: ChatFromMessages,
    pub(super) bill: Bill,
}

impl Reshape for BilledMessages {
    fn whole(&mut self, status: u16, body: &[u8]) -> Bytes {
        self.chat.whole(status, body)
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        self.chat.piece(bytes)
    }

    fn end(&mut self) -> Bytes {
        self.chat.end()
    }
}

impl Drop for BilledMessages {
    fn drop(&mut self) {
        self.bill.used(self.chat.tokens());
    }
}

/// An answer in OpenAI's own shape, and its bill.
pub(super) struct BilledChat {
    pub(super) bill: Bill,
    /// The client did not ask for the last chunk, which tells the tokens.
    pub(super) hide_usage: bool,
    pub(super) reader: Reader,
    pub(super) tokens: (u64, u64),
}

impl BilledChat {
    fn count(&mut self, answer: &Value) {
        let number = |name: &str| answer["usage"][name].as_u64();
        if let Some(prompt) = number("prompt_tokens") {
            self.tokens = (prompt, number("completion_tokens").unwrap_or(0));
        }
    }
}

impl Reshape for BilledChat {
    fn whole(&mut self, _: u16, body: &[u8]) -> Bytes {
        self.count(&serde_json::from_slice(body).unwrap_or_default());
        Bytes::copy_from_slice(body)
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            let Item::Event { data, .. } = item else {
                out.extend_from_slice(b": working\n\n");
                continue;
            };
            if data == "[DONE]" {
                out.extend_from_slice(sse::DONE);
                continue;
            }
            let chunk: Value = serde_json::from_str(&data).unwrap_or_default();
            self.count(&chunk);
            let only_usage = chunk["choices"].as_array().is_some_and(Vec::is_empty);
            if !(only_usage && self.hide_usage) {
                out.extend_from_slice(format!("data: {data}\n\n").as_bytes());
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        Bytes::new()
    }
}

impl Drop for BilledChat {
    fn drop(&mut self) {
        self.bill.used(self.tokens);
    }
}
