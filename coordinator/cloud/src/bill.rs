//! The cost of a request to a provider, computed while its answer passes. An answer that is abandoned midway is charged
//! by the tokens it has reported; tokens not reported yet are estimated from its bytes.

use std::sync::Arc;

use bytes::Bytes;
use model_boss_dialects::anthropic::{ChatFromMessages, PassedAnswer};
use model_boss_dialects::sse::{SseItem, SseReader};
use model_boss_dialects::{DialectError, Reshape, nonsense};
use model_boss_protocol::ClientId;
use model_boss_protocol::sse::event;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::SpendingRefusal;
use super::spend::{Reserved, Spend, SpendRefusal, Used};

/// English text has about four bytes for each token.
const BYTES_PER_TOKEN: usize = 4;
/// The assumed longest answer of a request that states no limit, in tokens.
const USUAL_ANSWER: u64 = 16_384;
/// The most tokens of an image: providers cut images into pieces, and none uses more.
const IMAGE_TOKENS: u64 = 4_096;
/// The assumed most tokens of a document that the provider fetches or has.
const UNSEEN_TOKENS: u64 = 200_000;

/// The open bill of one request.
pub(super) struct Bill {
    pub(super) spend: Arc<Spend>,
    pub(super) client: ClientId,
    pub(super) provider: String,
    /// The provider's own name of the model.
    pub(super) model: String,
    /// US dollars for a token of prompt and of answer; `None` if the price is unknown.
    pub(super) price: Option<(f64, f64)>,
    pub(super) now: u64,
    /// The client's limit for a day in US dollars, if there is one.
    pub(super) daily_limit: Option<f64>,
    /// The reserved dollars, held until the bill is paid.
    pub(super) reserved: Option<Reserved>,
}

/// Upper bounds of a request's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Most {
    pub(super) prompt: u64,
    pub(super) answer: u64,
}

impl Most {
    /// The bounds of a request in OpenAI's form. `answer` is its limit of tokens for each choice, `None` where it
    /// states none.
    pub(super) fn of(chat: &Map<String, Value>, answer: Option<u64>) -> Self {
        let choices = chat.get("n").and_then(Value::as_u64).unwrap_or(1).max(1);
        let prompt = chat.values().map(most_tokens).fold(0, u64::saturating_add);
        Self { prompt, answer: answer.unwrap_or(USUAL_ANSWER).saturating_mul(choices) }
    }
}

impl Most {
    /// An estimate of the prompt's tokens.
    pub(super) fn guessed_prompt(self) -> u64 {
        self.prompt.div_ceil(BYTES_PER_TOKEN as u64)
    }
}

/// An upper bound of the tokens: no text has more tokens than bytes, and no image more than providers cut it into.
fn most_tokens(value: &Value) -> u64 {
    match value {
        Value::String(image) if image.starts_with("data:") => IMAGE_TOKENS,
        Value::String(text) => text.len() as u64,
        Value::Array(parts) => parts.iter().map(most_tokens).fold(0, u64::saturating_add),
        Value::Object(fields) if fields.get("type") == Some(&json!("base64")) && is_image(fields) => IMAGE_TOKENS,
        Value::Object(fields) if fields.contains_key("file_id") || is_link(fields) => UNSEEN_TOKENS,
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| most_tokens(value).saturating_add(name.len() as u64);
            fields.iter().map(field).fold(0, u64::saturating_add)
        }
        _ => 1,
    }
}

/// Whether a source in the Messages API is an image.
fn is_image(source: &Map<String, Value>) -> bool {
    source.get("media_type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("image/"))
}

/// Whether a source in the Messages API is fetched by the provider.
fn is_link(source: &Map<String, Value>) -> bool {
    source.get("type") == Some(&json!("url")) && source.contains_key("url")
}

impl Bill {
    /// Reserves the most that the request may cost, for a client with a limit. The call comes before the request is
    /// sent.
    pub(super) fn reserve(&mut self, most: Most) -> Result<(), SpendingRefusal> {
        let Some(limit) = self.daily_limit else { return Ok(()) };
        // A provider on this machine, or marked as no cloud, may have no price.
        let (of_prompt, of_answer) = self.price.unwrap_or_default();
        let dollars = most.prompt as f64 * of_prompt + most.answer as f64 * of_answer;
        let client = &self.client;
        let who = || match self.spend.counts_apart(client) {
            true => format!("client '{client}' has"),
            false => format!("client '{client}' and the other names beyond those counted apart have together"),
        };
        let reserved = self.spend.reserve(client, limit, dollars, self.now).map_err(|refused| match refused {
            SpendRefusal::Spent(spent) => SpendingRefusal::Spent { who: who(), spent, limit },
            SpendRefusal::Unknown => SpendingRefusal::NotKnown { client: client.clone(), limit },
            SpendRefusal::UnderWay(spent) => SpendingRefusal::Reserved { who: who(), spent, limit },
        })?;
        self.reserved = Some(reserved);
        Ok(())
    }

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
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        self.chat.whole(status, body)
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        self.chat.piece(bytes)
    }

    fn end(&mut self) -> Bytes {
        self.chat.end()
    }

    fn failure(&mut self) -> Option<DialectError> {
        self.chat.failure()
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

/// An answer of the Messages API that is passed on, and its bill.
pub(super) struct BilledPassed {
    pub(super) answer: PassedAnswer,
    pub(super) bill: Bill,
}

impl Reshape for BilledPassed {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        self.answer.whole(status, body)
    }

    fn is_document(&self) -> bool {
        self.answer.is_document()
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        self.answer.piece(bytes)
    }

    fn end(&mut self) -> Bytes {
        self.answer.end()
    }

    fn tokens(&self) -> Option<(u64, u64)> {
        self.answer.tokens()
    }

    fn cached_tokens(&self) -> Option<u64> {
        self.answer.cached_tokens()
    }
}

impl Drop for BilledPassed {
    fn drop(&mut self) {
        self.bill.close(self.tokens());
    }
}

/// An answer in OpenAI's own shape, and its bill.
pub(super) struct BilledChat {
    bill: Bill,
    /// Whether to drop the last chunk, with the tokens: the client did not request it.
    hide_usage: bool,
    reader: SseReader,
    reported: Option<(u64, u64)>,
    /// Bytes of text: of the prompt, and of the answer so far.
    text: (usize, usize),
}

impl BilledChat {
    pub(crate) fn new(bill: Bill, chat: &Map<String, Value>, hide_usage: bool) -> Self {
        let prompt = chat.get("messages").or_else(|| chat.get("prompt")).map_or(0, text_in);
        Self { bill, hide_usage, reader: SseReader::default(), reported: None, text: (prompt, 0) }
    }

    fn count(&mut self, usage: Option<BilledUsage>) {
        if let Some(BilledUsage { prompt_tokens: Some(prompt), completion_tokens }) = usage {
            self.reported = Some((prompt, completion_tokens.unwrap_or(0)));
        }
    }
}

/// The fields of an answer that are read: an embedding's numbers are not parsed.
#[derive(Deserialize)]
struct BilledAnswer {
    usage: Option<BilledUsage>,
}

#[derive(Deserialize)]
struct BilledUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

/// Bytes of text in messages; links and images do not count.
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
    fn whole(&mut self, _: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        let answer: BilledAnswer = serde_json::from_slice(body).map_err(nonsense)?;
        self.count(answer.usage);
        Ok(body.clone())
    }

    fn is_document(&self) -> bool {
        false
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            let SseItem::Event { data, .. } = item else {
                out.extend_from_slice(b": working\n\n");
                continue;
            };
            if data == "[DONE]" {
                out.extend_from_slice(model_boss_protocol::sse::DONE.as_bytes());
                continue;
            }
            let chunk: Value = serde_json::from_str(&data).unwrap_or_default();
            self.count(BilledUsage::deserialize(&chunk["usage"]).ok());
            for choice in chunk["choices"].as_array().into_iter().flatten() {
                let delta = &choice["delta"];
                let said = [&delta["content"], &delta["reasoning_content"], &choice["text"]];
                self.text.1 += said.into_iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
            }
            let only_usage = chunk["choices"].as_array().is_some_and(Vec::is_empty);
            if !(only_usage && self.hide_usage) {
                out.extend_from_slice(event(&data).as_bytes());
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        Bytes::new()
    }

    fn tokens(&self) -> Option<(u64, u64)> {
        // An abandoned stream never reached its counts. Without a price the counts do not matter.
        let guess = |bytes: usize| u64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u64::MAX);
        let begun = self.bill.price.is_some() && self.text.1 > 0;
        self.reported.or_else(|| begun.then(|| (guess(self.text.0), guess(self.text.1))))
    }
}

impl Drop for BilledChat {
    fn drop(&mut self) {
        self.bill.close(self.tokens());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 20_000 * 86_400;

    fn billed(chat: &Value, hide_usage: bool, pieces: &[&str]) -> (Arc<Spend>, String) {
        let folder = tempfile::tempdir().unwrap();
        let spend = Arc::new(Spend::open(&model_boss_host::state_folder::StateFolder::new(folder.path())));
        let bill = Bill {
            spend: Arc::clone(&spend),
            client: ClientId::from("me"),
            provider: "far".into(),
            model: "m".into(),
            price: Some((1.0, 10.0)),
            now: NOW,
            daily_limit: None,
            reserved: None,
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
        // The provider's counts are used, but hidden from a client that did not request them.
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n";
        let (spend, out) = billed(&chat, true, &[said, usage, "data: [DONE]\n\n"]);
        assert_eq!(out, format!("{said}data: [DONE]\n\n"));
        assert_eq!(spend.of(&ClientId::from("me"), NOW), 15.0);
        // An empty answer costs nothing.
        assert_eq!(billed(&chat, true, &[]).0.of(&ClientId::from("me"), NOW), 0.0);
    }
}
