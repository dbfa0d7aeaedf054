//! Checks a backend's answer before a client sees it. A whole answer is checked at once, a stream line by line as it
//! passes. The checks change nothing, and keep at most one unfinished line of a stream.

use std::borrow::Cow;

use memchr::memchr;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::DialectError;
use crate::llama::{APPLY_TEMPLATE, COMPLETION, INFILL};
use crate::nonsense;
use crate::tokens::{DETOKENIZE, TOKENIZE};

/// Limit in bytes for a line of a stream.
const LONGEST_LINE: usize = 8 << 20;

/// The same for a picture: one of 4,096 pixels square of noise, in base64.
const LONGEST_PICTURE: usize = 96 << 20;

/// The route of speech.
pub const SPEECH: &str = "/v1/audio/speech";
/// The route of pictures of a text.
pub const PICTURES: &str = "/v1/images/generations";
/// The route of pictures that are painted anew.
pub const EDITS: &str = "/v1/images/edits";
/// The route of Anthropic's Messages.
pub const MESSAGES: &str = "/v1/messages";

/// The answer's shape, by the route of OpenAI's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// Answers of `/v1/chat/completions`.
    Chat,
    /// Answers of Anthropic's `/v1/messages`.
    Messages,
    /// Answers of `/v1/completions`.
    Completion,
    /// Answers of `/v1/embeddings`.
    Embeddings,
    /// Answers of `/v1/rerank`.
    Ranking,
    /// Answers of `/v1/score` and `/v1/classify`.
    Judgements,
    /// Answers of text-embeddings-inference's `/embed`, `/embed_all` and `/predict`.
    Lists,
    /// Answers of `/v1/audio/transcriptions` and `/v1/audio/translations` in JSON.
    Transcript,
    /// llama-server's own answers to a prompt: an object, or a list of them.
    Native,
    /// The prompt of a conversation.
    Rendered,
    /// `/tokenize`.
    Tokens,
    /// `/detokenize`.
    Text,
    /// Answers of `/v1/audio/speech`, which are events or sound.
    Speech,
    /// Answers of `/v1/images/generations` and `/v1/images/edits`.
    Pictures,
}

impl AnswerKind {
    /// The shape of the answers of `path`; a chat's for any unknown path.
    pub fn of(path: &str) -> Self {
        match path {
            "/v1/embeddings" => Self::Embeddings,
            "/v1/rerank" => Self::Ranking,
            "/v1/score" | "/v1/classify" => Self::Judgements,
            "/embed" | "/embed_all" | "/predict" => Self::Lists,
            "/v1/completions" => Self::Completion,
            MESSAGES => Self::Messages,
            "/v1/audio/transcriptions" | "/v1/audio/translations" => Self::Transcript,
            COMPLETION | INFILL => Self::Native,
            APPLY_TEMPLATE => Self::Rendered,
            TOKENIZE => Self::Tokens,
            DETOKENIZE => Self::Text,
            SPEECH => Self::Speech,
            PICTURES | EDITS => Self::Pictures,
            _ => Self::Chat,
        }
    }

    /// Whether answers of this shape can be streamed.
    pub const fn may_stream(self) -> bool {
        matches!(
            self,
            Self::Chat
                | Self::Messages
                | Self::Completion
                | Self::Native
                | Self::Speech
                | Self::Transcript
                | Self::Pictures
        )
    }

    /// The most bytes of one event of a stream. A picture is one event.
    pub const fn longest_event(self) -> usize {
        match self {
            Self::Pictures => LONGEST_PICTURE,
            _ => LONGEST_LINE,
        }
    }
}

#[derive(Deserialize)]
struct ChatAnswer {
    choices: Vec<ChatChoice>,
    #[serde(rename = "usage")]
    _usage: Option<UsageFields>,
}

#[derive(Deserialize)]
struct ChatChoice {
    #[serde(rename = "message")]
    _message: MessageFields,
}

#[derive(Deserialize)]
struct MessageFields {
    #[serde(rename = "content")]
    _content: Option<TextOnly>,
    #[serde(rename = "tool_calls")]
    _tool_calls: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct WholeMessage<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(rename = "content")]
    _content: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct CompletionAnswer {
    choices: Vec<CompletionChoice>,
    #[serde(rename = "usage")]
    _usage: Option<UsageFields>,
}

#[derive(Deserialize)]
struct CompletionChoice {
    #[serde(rename = "text")]
    _text: TextOnly,
}

#[derive(Deserialize)]
struct EmbeddingsAnswer {
    data: Vec<EmbeddingFields>,
    #[serde(rename = "usage")]
    _usage: Option<UsageFields>,
}

#[derive(Deserialize)]
struct EmbeddingFields {
    #[serde(rename = "embedding")]
    _embedding: IgnoredAny,
}

/// With `results`, or a list of its own as text-embeddings-inference has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum RankingAnswer {
    Results {
        #[serde(rename = "results")]
        _results: Vec<IgnoredAny>,
        #[serde(rename = "usage")]
        _usage: Option<UsageFields>,
    },
    List(Vec<RankFields>),
}

#[derive(Deserialize)]
struct RankFields {
    #[serde(rename = "index")]
    _index: u64,
    #[serde(rename = "score")]
    _score: f64,
}

#[derive(Deserialize)]
struct JudgementsAnswer {
    #[serde(rename = "data")]
    _data: Vec<IgnoredAny>,
    #[serde(rename = "usage")]
    _usage: Option<UsageFields>,
}

#[derive(Deserialize)]
struct PicturesAnswer {
    data: Vec<AnsweredPicture>,
}

/// A picture, or where it is.
#[derive(Deserialize)]
struct AnsweredPicture {
    b64_json: Option<TextOnly>,
    url: Option<TextOnly>,
}

#[derive(Deserialize)]
struct TranscriptAnswer {
    #[serde(rename = "text")]
    _text: TextOnly,
}

/// One answer, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum NativeAnswers {
    One {
        #[serde(rename = "content")]
        _content: String,
    },
    Several(Vec<NativeContent>),
}

#[derive(Deserialize)]
struct NativeContent {
    #[serde(rename = "content")]
    _content: TextOnly,
}

#[derive(Deserialize)]
struct RenderedAnswer {
    #[serde(rename = "prompt")]
    _prompt: TextOnly,
}

#[derive(Deserialize)]
struct TokenizedAnswer {
    #[serde(rename = "tokens")]
    _tokens: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct DetokenizedAnswer {
    #[serde(rename = "content")]
    _content: TextOnly,
}

#[derive(Deserialize)]
struct UsageFields {
    #[serde(rename = "prompt_tokens")]
    _prompt: Option<u64>,
    #[serde(rename = "completion_tokens")]
    _completion: Option<u64>,
    #[serde(rename = "total_tokens")]
    _total: Option<u64>,
}

/// A string, checked for its type and dropped.
#[derive(Deserialize)]
#[serde(from = "Cow<'_, str>")]
struct TextOnly;

impl From<Cow<'_, str>> for TextOnly {
    fn from(_: Cow<'_, str>) -> Self {
        Self
    }
}

/// Checks that `body` is a whole answer of this kind.
pub fn check_answer(kind: AnswerKind, body: &[u8]) -> Result<(), DialectError> {
    let empty = match kind {
        AnswerKind::Chat => read::<ChatAnswer>(body)?.choices.is_empty(),
        AnswerKind::Messages => {
            let answer = read::<WholeMessage<'_>>(body)?;
            if answer.kind != "message" {
                return Err(nonsense("it is no message"));
            }
            false
        }
        AnswerKind::Completion => read::<CompletionAnswer>(body)?.choices.is_empty(),
        AnswerKind::Embeddings => read::<EmbeddingsAnswer>(body)?.data.is_empty(),
        AnswerKind::Ranking => match read::<RankingAnswer>(body)? {
            RankingAnswer::Results { .. } => false,
            RankingAnswer::List(ranks) => ranks.is_empty(),
        },
        AnswerKind::Judgements => {
            read::<JudgementsAnswer>(body)?;
            false
        }
        AnswerKind::Lists => read::<Vec<IgnoredAny>>(body)?.is_empty(),
        AnswerKind::Transcript => {
            read::<TranscriptAnswer>(body)?;
            false
        }
        AnswerKind::Pictures => {
            let data = read::<PicturesAnswer>(body)?.data;
            if data.iter().any(|picture| picture.b64_json.is_none() && picture.url.is_none()) {
                return Err(nonsense("an entry of it has no picture"));
            }
            data.is_empty()
        }
        AnswerKind::Native => match read::<NativeAnswers>(body)? {
            NativeAnswers::One { .. } => false,
            NativeAnswers::Several(answers) => answers.is_empty(),
        },
        AnswerKind::Rendered => {
            read::<RenderedAnswer>(body)?;
            false
        }
        AnswerKind::Tokens => {
            read::<TokenizedAnswer>(body)?;
            false
        }
        AnswerKind::Text => {
            read::<DetokenizedAnswer>(body)?;
            false
        }
        AnswerKind::Speech => return Err(nonsense("speech is no JSON")),
    };
    if empty { Err(nonsense("there is nothing in it")) } else { Ok(()) }
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, DialectError> {
    serde_json::from_slice(body).map_err(nonsense)
}

/// Checks a stream in OpenAI's shape as it passes.
#[derive(Debug, Default)]
pub struct StreamCheck {
    /// The shape of the answers.
    kind: Option<AnswerKind>,
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    begun: bool,
    /// Whether a finish reason or an error has arrived.
    ended: bool,
}

/// The place at which a stream breaks its format, and the fault.
#[derive(Debug, PartialEq)]
pub struct BadStream {
    /// Bytes of the last piece that may still be passed on.
    pub good: usize,
    /// The fault in the stream.
    pub error: DialectError,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    /// The type of an event of a transcript.
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    choices: Option<Vec<ChunkChoice>>,
    error: Option<IgnoredAny>,
    /// Whether an event of llama-server's own shape is the last.
    stop: Option<bool>,
    #[serde(rename = "usage")]
    _usage: Option<UsageFields>,
}

#[derive(Deserialize)]
struct ChunkChoice {
    #[serde(rename = "delta")]
    _delta: Option<MessageFields>,
    #[serde(rename = "text")]
    _text: Option<TextOnly>,
    finish_reason: Option<TextOnly>,
}

/// An event of speech or of Anthropic's Messages, or an error.
#[derive(Deserialize)]
struct TypedEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
    error: Option<IgnoredAny>,
}

impl StreamCheck {
    /// The check of a stream of answers of this kind.
    pub fn of(kind: AnswerKind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    /// Checks the next piece; the error has the number of its valid bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), BadStream> {
        let mut at = 0;
        while let Some(length) = memchr(b'\n', &bytes[at..]) {
            let line = &bytes[at..at + length];
            let checked = if self.line.is_empty() {
                self.look(line)
            } else {
                self.line.extend_from_slice(line);
                let line = std::mem::take(&mut self.line);
                self.look(&line)
            };
            checked.map_err(|error| BadStream { good: at, error })?;
            at += length + 1;
        }
        if self.line.len() + bytes.len() - at > self.kind.map_or(LONGEST_LINE, AnswerKind::longest_event) {
            return Err(BadStream { good: at, error: nonsense("a line of its stream has no end") });
        }
        self.line.extend_from_slice(&bytes[at..]);
        Ok(())
    }

    /// Whether at least one chunk of an answer has arrived.
    pub const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Checks, after the connection has ended properly, that the answer is complete as well.
    pub fn end(&mut self) -> Result<(), DialectError> {
        let line = std::mem::take(&mut self.line);
        self.look(&line)?;
        match (self.begun, self.ended) {
            (true, true) => Ok(()),
            (true, false) => Err(nonsense("its stream ended in the middle")),
            (false, _) => Err(nonsense("its stream is empty")),
        }
    }

    fn look(&mut self, line: &[u8]) -> Result<(), DialectError> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(data) = line.strip_prefix(b"data:") else {
            let known = [&b":"[..], b"event:", b"id:", b"retry:"].iter().any(|field| line.starts_with(field));
            return if line.is_empty() || known { Ok(()) } else { Err(nonsense("it is no stream of events")) };
        };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.ended = true;
            return if self.begun { Ok(()) } else { Err(nonsense("its stream is empty")) };
        }
        if let Some(AnswerKind::Speech | AnswerKind::Messages | AnswerKind::Pictures) = self.kind {
            return self.look_at_typed(data);
        }
        let chunk: Chunk<'_> = read(data)?;
        if let Some(kind) = chunk.kind.as_deref().filter(|kind| kind.starts_with("transcript.text.")) {
            self.begun = true;
            self.ended |= kind == "transcript.text.done";
            return Ok(());
        }
        if self.kind == Some(AnswerKind::Native)
            && let Some(last) = chunk.stop
        {
            self.begun = true;
            self.ended |= last;
            return Ok(());
        }
        if chunk.choices.is_none() && chunk.error.is_none() {
            return Err(nonsense("an event of its stream has no 'choices'"));
        }
        self.begun = true;
        let finished = |choice: &ChunkChoice| choice.finish_reason.is_some();
        self.ended |= chunk.error.is_some() || chunk.choices.iter().flatten().any(finished);
        Ok(())
    }
}

impl StreamCheck {
    fn look_at_typed(&mut self, data: &[u8]) -> Result<(), DialectError> {
        let event: TypedEvent<'_> = read(data)?;
        if event.kind.is_none() && event.error.is_none() {
            return Err(nonsense("an event of its stream has no 'type'"));
        }
        let kind = event.kind.as_deref();
        self.begun |= kind != Some("ping");
        self.ended |= event.error.is_some() || kind.is_some_and(is_last);
        Ok(())
    }
}

/// Whether an event of this type ends a stream.
fn is_last(kind: &str) -> bool {
    matches!(kind, "speech.audio.done" | "message_stop" | "image_generation.completed" | "image_edit.completed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_25_pictures_are_whole_answers_or_events_of_which_the_last_is_whole() {
        let whole = |body: &str| check_answer(AnswerKind::of(PICTURES), body.as_bytes());
        assert_eq!(whole(r#"{"created":1,"data":[{"b64_json":"AAAA"},{"url":"data:,x"}]}"#), Ok(()));
        for wrong in [r#"{"data":[]}"#, r#"{"data":[{}]}"#, r#"{"data":[{"b64_json":7}]}"#, r#"{"choices":[]}"#] {
            assert!(whole(wrong).is_err(), "{wrong}");
        }
        let partial = "data: {\"type\":\"image_edit.partial_image\",\"b64_json\":\"AAAA\"}\n\n";
        let completed = "data: {\"type\":\"image_edit.completed\",\"b64_json\":\"AAAA\"}\n\n";
        let check = |text: &str| {
            let mut check = StreamCheck::of(AnswerKind::of(EDITS));
            check.push(text.as_bytes()).map_err(|bad| bad.error).and_then(|()| check.end())
        };
        assert_eq!(check(&format!("{partial}{completed}{completed}")), Ok(()));
        assert!(check(partial).is_err());
        let mut long = StreamCheck::of(AnswerKind::Pictures);
        assert!(long.push(&vec![b'x'; LONGEST_LINE + 1]).is_ok(), "a picture is longer than a text");
    }

    #[test]
    fn rc_28_a_stream_of_speech_ends_with_its_own_event() {
        let delta = "data: {\"type\":\"speech.audio.delta\",\"audio\":\"AAAA\"}\n\n";
        let done = "data: {\"type\":\"speech.audio.done\",\"usage\":{\"input_tokens\":1}}\n\n";
        let check = |text: &str| {
            let mut check = StreamCheck::of(AnswerKind::Speech);
            check.push(text.as_bytes()).map_err(|bad| bad.error).and_then(|()| check.end())
        };
        assert_eq!(check(&format!("{delta}{delta}{done}")), Ok(()));
        assert!(check(delta).is_err() && check("data: {\"choices\":[]}\n\n").is_err());
        assert_eq!(check(&format!("{delta}data: {{\"error\":{{}}}}\n\n")), Ok(()), "an error is an end");
    }

    #[test]
    fn answers_are_told_from_nonsense() {
        use AnswerKind::{Chat, Completion, Embeddings, Judgements, Lists, Ranking, Text, Tokens};
        for (kind, body) in [
            (Chat, r#"{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{}]}}],"usage":null}"#),
            (
                Chat,
                r#"{"choices":[{"message":{"content":"\u0041","reasoning_content":"x"}}],"usage":{"prompt_tokens":1}}"#,
            ),
            (Completion, r#"{"choices":[{"text":""}]}"#),
            (Embeddings, r#"{"data":[{"embedding":"AAAA"},{"embedding":[1,2]}]}"#),
            (Ranking, r#"{"results":[]}"#),
            (Ranking, r#"[{"index":1,"score":0.5,"text":"a"}]"#),
            (Judgements, r#"{"data":[{"score":0.5}],"usage":{"prompt_tokens":3}}"#),
            (Lists, "[[0.5,1]]"),
            (Tokens, r#"{"tokens":[]}"#),
            (Text, r#"{"content":""}"#),
        ] {
            assert_eq!(check_answer(kind, body.as_bytes()), Ok(()), "{body}");
        }
        for (kind, body) in [
            (Chat, ""),
            (Chat, "<html>"),
            (Chat, "{}"),
            (Chat, "[]"),
            (Chat, "null"),
            (Chat, r#"{"choices":[]}"#),
            (Chat, r#"{"choices":[{}]}"#),
            (Chat, r#"{"choices":[{"message":{"content":["x"]}}]}"#),
            (Chat, r#"{"choices":[{"message":{"content":"x"}}],"usage":"much"}"#),
            (Chat, r#"{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":-1}}"#),
            (Chat, r#"{"choices":[{"message":{"content":"x"}}]} and more"#),
            (Completion, r#"{"choices":[{"message":{"content":"x"}}]}"#),
            (Embeddings, r#"{"data":[]}"#),
            (Embeddings, r#"{"data":[{}]}"#),
            (Ranking, r#"{"data":[]}"#),
            (Ranking, r#"[{"index":1}]"#),
            (Judgements, r#"{"results":[]}"#),
            (Lists, "[]"),
            (Lists, r#"{"data":[]}"#),
            (Tokens, r#"{"data":[]}"#),
            (Text, r#"{"content":[]}"#),
        ] {
            assert!(check_answer(kind, body.as_bytes()).is_err(), "{kind:?}: {body}");
        }
    }

    const GOOD: &str = ": ping\n\nevent: x\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";

    fn check(pieces: &[&[u8]]) -> Result<usize, DialectError> {
        let (mut check, mut good) = (StreamCheck::default(), 0);
        for piece in pieces {
            match check.push(piece) {
                Ok(()) => good += piece.len(),
                Err(bad) => return if bad.good + good > 0 { Ok(good + bad.good) } else { Err(bad.error) },
            }
        }
        check.end().map(|()| good)
    }

    #[test]
    fn a_good_stream_is_good_however_it_is_cut() {
        for cut in 0..GOOD.len() {
            let (a, b) = GOOD.as_bytes().split_at(cut);
            assert_eq!(check(&[a, b]), Ok(GOOD.len()), "cut at {cut}");
        }
    }

    #[test]
    fn a_bad_stream_goes_on_up_to_its_first_bad_line() {
        for bad in
            ["", "data: [DONE]\n\n", "<html>\n", "data: <html>\n\n", "data: {}\n\n", "data: []\n\n", "{\"choices\":[]}"]
        {
            assert!(check(&[bad.as_bytes()]).is_err(), "{bad}");
        }
        let first = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        assert!(check(&[first.as_bytes()]).is_err(), "it ended in the middle");
        let both = format!("{first}data: {{\"choices\":7}}\n\n");
        assert_eq!(check(&[both.as_bytes()]), Ok(first.len()));
        let failed = format!("{first}data: {{\"error\":{{\"message\":\"x\"}}}}\n\n");
        assert_eq!(check(&[failed.as_bytes()]), Ok(failed.len()), "an error is an end");
    }

    #[test]
    fn a_line_without_an_end_is_given_up() {
        let (mut check, piece) = (StreamCheck::default(), vec![b'x'; 1 << 20]);
        assert!((0..LONGEST_LINE >> 20).all(|_| check.push(&piece).is_ok()));
        assert!(check.push(&piece).is_err());
    }
}
