//! Speech of the fake worker: a tone for each word, as WAV or raw samples, or as events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use model_boss_protocol::{ApiError, ErrorCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::decode::Decode;

/// Samples per second.
const RATE: u32 = 24_000;

/// Samples of a word: a quarter of a second.
const OF_WORD: u32 = RATE / 4;

/// The fields of a request for speech that the fake worker reads.
#[derive(Debug, Deserialize)]
pub(crate) struct SpeechBody {
    input: Option<String>,
    #[serde(default)]
    response_format: Option<String>,
    #[serde(default)]
    stream_format: Option<String>,
}

impl SpeechBody {
    /// The text to speak.
    pub(crate) fn input(&self) -> Result<&str, ApiError> {
        let input = self.input.as_deref().filter(|input| !input.trim().is_empty());
        let input = input.ok_or_else(|| ApiError::invalid("input", "'input' is missing or empty"))?;
        match self.response_format.as_deref() {
            None | Some("wav" | "pcm") => Ok(input),
            Some(other) => {
                let message = format!("the fake worker writes wav and pcm, not {other}");
                Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("response_format"))
            }
        }
    }

    /// The media type of the answer.
    pub(crate) fn content_type(&self) -> &'static str {
        match (self.stream_format.as_deref(), self.response_format.as_deref()) {
            (Some("sse"), _) => "text/event-stream",
            (_, Some("pcm")) => "audio/pcm;rate=24000",
            _ => "audio/wav",
        }
    }

    /// Speaks the words that are decoded, one piece each.
    pub(crate) fn speak(self, mut decode: Decode, words: u64) -> mpsc::Receiver<Bytes> {
        let (frames, body) = mpsc::channel(16);
        let events = self.stream_format.as_deref() == Some("sse");
        let framed = move |bytes: Vec<u8>| -> Bytes {
            if !events {
                return bytes.into();
            }
            let told = json!({ "type": "speech.audio.delta", "audio": STANDARD.encode(bytes) });
            format!("data: {told}\n\n").into()
        };
        tokio::spawn(async move {
            let is_wav = self.response_format.as_deref() != Some("pcm");
            if is_wav && frames.send(framed(head())).await.is_err() {
                return;
            }
            loop {
                let word = tokio::select! {
                    biased;
                    () = frames.closed() => return,
                    word = decode.next() => word.map(str::len),
                };
                let Some(letters) = word else { break };
                if frames.send(framed(tone(letters))).await.is_err() {
                    return;
                }
            }
            let (_, cost) = decode.finish();
            if events {
                let usage = json!({ "input_tokens": words, "output_tokens": cost.completion_tokens,
                    "total_tokens": words + cost.completion_tokens });
                let done: Value = json!({ "type": "speech.audio.done", "usage": usage });
                _ = frames.send(format!("data: {done}\n\n").into()).await;
            }
        });
        body
    }
}

/// The head of a WAV file whose length is not known.
fn head() -> Vec<u8> {
    let mut head = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    head.extend(RATE.to_le_bytes());
    head.extend((2 * RATE).to_le_bytes());
    head.extend(b"\x02\0\x10\0data\xff\xff\xff\xff");
    head
}

/// A square tone; longer words are lower.
fn tone(letters: usize) -> Vec<u8> {
    let half = 20 + 4 * letters.min(100);
    (0..OF_WORD as usize)
        .flat_map(|at| if (at / half).is_multiple_of(2) { 4_000_i16 } else { -4_000 }.to_le_bytes())
        .collect()
}
