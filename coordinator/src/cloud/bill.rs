//! What a request to a provider costs, counted as its answer passes by. An answer that is given up in the middle is paid
//! for all the same, as far as it told its tokens; what it did not tell any more is guessed by what had come.

use std::sync::Arc;

use bytes::Bytes;
use model_boss_dialects::anthropic::ChatFromMessages;
use model_boss_dialects::sse::{self, Item, Reader};
use model_boss_dialects::{Reshape, nonsense};
use model_boss_protocol::{ApiError, ClientId};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::spend::{Spend, Used};

/// English text has about four bytes for each token.
const BYTES_PER_TOKEN: usize = 4;

/// The open bill of one request.
pub(super) struct Bill {
    pub(super) spend: Arc<Spend>,
    pub(super) client: ClientId,
    pub(super) provider: String,
    /// The provider's own name of it.
    pub(super) model: String,
    /// For a token of prompt and of answer, in US dollars; `None` where no price is known.
    pub(super) price: Option<(f64, f64)>,
    pub(super) now: u64,
}

impl Bill {
    fn close(&self, tokens: Option<(u64, u64)>) {
        let Some((prompt, answer)) = tokens else { return };
        let price = |(of_prompt, of_answer)| prompt as f64 * of_prompt + answer as f64 * of_answer;
        let used = Used {
            client: &self.client,
            provider: &self.provider,
            model: &self.model,
            tokens: (prompt, answer),
            dollars: self.price.map(price),
        };
        self.spend.used(&used, self.now);
    }
}

/// An answer of the Messages API, and its bill.
pub(super) struct BilledMessages {
    pub(super) chat: ChatFromMessages,
    pub(super) bill: Bill,
}

impl Reshape for BilledMessages {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, ApiError> {
        self.chat.whole(status, body)
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        self.chat.piece(bytes)
    }

    fn end(&mut self) -> Bytes {
        self.chat.end()
    }

    fn tokens(&self) -> Option<(u64, u64)> {
        self.chat.tokens()
    }
}

impl Drop for BilledMessages {
    fn drop(&mut self) {
        self.bill.close(self.tokens());
    }
}

/// An answer in OpenAI's own shape, and its bill.
pub(super) struct BilledChat {
    bill: Bill,
    /// The client did not ask for the last chunk, which tells the tokens.
    hide_usage: bool,
    reader: Reader,
    told: Option<(u64, u64)>,
    /// Bytes of text: of the prompt, and of the answer so far.
    text: (usize, usize),
}

impl BilledChat {
    pub(super) fn new(bill: Bill, chat: &Map<String, Value>, hide_usage: bool) -> Self {
        let prompt = chat.get("messages").or_else(|| chat.get("prompt")).map_or(0, text_in);
        Self { bill, hide_usage, reader: Reader::default(), told: None, text: (prompt, 0) }
    }

    fn count(&mut self, usage: Option<Usage>) {
        if let Some(Usage { prompt_tokens: Some(prompt), completion_tokens }) = usage {
            self.told = Some((prompt, completion_tokens.unwrap_or(0)));
        }
    }
}

/// What is read of an answer: an embedding's numbers need not be taken apart.
#[derive(Deserialize)]
struct Counted {
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// Bytes of what a model reads in messages; links and images are not text.
fn text_in(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(parts) => parts.iter().map(text_in).sum(),
        Value::Object(fields) => {
            ["content", "text", "arguments"].iter().filter_map(|name| fields.get(*name)).map(text_in).sum()
        }
        _ => 0,
    }
}

impl Reshape for BilledChat {
    fn whole(&mut self, _: u16, body: &Bytes) -> Result<Bytes, ApiError> {
        let answer: Counted = serde_json::from_slice(body).map_err(nonsense)?;
        self.count(answer.usage);
        Ok(body.clone())
    }

    fn is_document(&self) -> bool {
        false
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
            self.count(Usage::deserialize(&chunk["usage"]).ok());
            for choice in chunk["choices"].as_array().into_iter().flatten() {
                let delta = &choice["delta"];
                let said = [&delta["content"], &delta["reasoning_content"], &choice["text"]];
                self.text.1 += said.into_iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
            }
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

    fn tokens(&self) -> Option<(u64, u64)> {
        // A stream that was given up never came to its counts. Without a price nothing hangs on them.
        let guess = |bytes: usize| u64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u64::MAX);
        let begun = self.bill.price.is_some() && self.text.1 > 0;
        self.told.or_else(|| begun.then(|| (guess(self.text.0), guess(self.text.1))))
    }
}

impl Drop for BilledChat {
    fn drop(&mut self) {
        self.bill.close(self.tokens());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 20_000 * 86_400;

    fn billed(chat: &Value, hide_usage: bool, pieces: &[&str]) -> (Arc<Spend>, String) {
        let folder = tempfile::tempdir().unwrap();
        let spend = Arc::new(Spend::open(&crate::state_folder::StateFolder::new(folder.path())));
        let bill = Bill {
            spend: Arc::clone(&spend),
            client: ClientId::from("me"),
            provider: "far".into(),
            model: "m".into(),
            price: Some((1.0, 10.0)),
            now: NOW,
        };
        let mut answer = BilledChat::new(bill, chat.as_object().unwrap(), hide_usage);
        let out: Vec<u8> = pieces.iter().flat_map(|piece| answer.piece(piece.as_bytes())).collect();
        drop(answer);
        (spend, String::from_utf8(out).unwrap())
    }

    #[test]
    fn rc_27_a_stream_that_is_given_up_is_paid_for_as_far_as_it_came() {
        let chat = json!({ "messages": [
            { "role": "system", "content": "12345678" },
            { "role": "user", "content": [{ "type": "text", "text": "1234" },
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAAAAAAAAAAAAAAAAAAAAAA" } }] },
        ] });
        let said = "data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"}}]}\n\n";
        let (spend, out) = billed(&chat, true, &[said]);
        assert_eq!(out, said);
        assert_eq!(spend.of(&ClientId::from("me"), NOW), 3.0 + 2.0 * 10.0);
        // What the provider told counts, and is not shown to who did not ask.
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";
        let (spend, out) = billed(&chat, true, &[said, usage, "data: [DONE]\n\n"]);
        assert_eq!(out, format!("{said}data: [DONE]\n\n"));
        assert_eq!(spend.of(&ClientId::from("me"), NOW), 15.0);
        // Nothing came: nothing is paid.
        assert_eq!(billed(&chat, true, &[]).0.of(&ClientId::from("me"), NOW), 0.0);
    }
}
