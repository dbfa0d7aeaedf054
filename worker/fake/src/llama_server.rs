//! The fake worker as llama-server: `model-boss-fake-worker llama-server --model … --port …`. Words, behaviour file
//! and control socket are the same. The command line, the key's variable, the health route and a few answers differ.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_boss_protocol::{ApiError, Category, DeviceId, Generation, SandboxMode, SpawnToken, Speculation, WorkerSpec};
use serde_json::{Value, json};

/// The first argument, which selects this mode.
pub(crate) const NAME: &str = "llama-server";
/// The variable from which llama-server reads its key.
const KEY: &str = "LLAMA_API_KEY";

/// Options without a value, among those that the coordinator may give.
const SWITCHES: [&str; 9] = [
    "--jinja",
    "--embeddings",
    "--reranking",
    "--mlock",
    "--no-mmap",
    "--no-warmup",
    "--no-repack",
    "--kv-unified",
    "--no-kv-offload",
];

/// A command line that llama-server would refuse.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandLineError {
    #[error("error: invalid argument: {0}")]
    Invalid(String),
    #[error("error: {0} is required")]
    Missing(&'static str),
    #[error("error loading model: {0} cannot be read")]
    NoModel(PathBuf),
}

/// The command line's options as a start line.
pub(crate) fn spec(args: &[String]) -> Result<WorkerSpec, CommandLineError> {
    let mut given: BTreeMap<&str, &str> = BTreeMap::new();
    let mut words = args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let invalid = || CommandLineError::Invalid(word.to_owned());
        if !word.starts_with('-') {
            return Err(invalid());
        }
        let value = if SWITCHES.contains(&word) { "" } else { words.next().ok_or_else(invalid)? };
        given.insert(word, value);
    }
    let need = |name: &'static str| given.get(name).copied().ok_or(CommandLineError::Missing(name));
    let number = |name: &'static str| need(name)?.parse().map_err(|_| CommandLineError::Invalid(name.to_owned()));
    let model = PathBuf::from(need("--model")?);
    if !model.is_file() {
        return Err(CommandLineError::NoModel(model));
    }
    let category = match () {
        () if given.contains_key("--embeddings") => Category::Embedding,
        () if given.contains_key("--reranking") => Category::Reranking,
        () => Category::Llm,
    };
    let sequences: u64 = number("--parallel")?;
    let token = std::env::var(KEY).ok().and_then(|key| serde_json::from_value(json!(key)).ok());
    Ok(WorkerSpec {
        model: need("--alias")?.into(),
        category,
        source: model.parent().unwrap_or(Path::new("/")).to_owned(),
        device: if given.get("--device") == Some(&"none") { DeviceId::Cpu } else { DeviceId::Cuda(0) },
        parts: Vec::new(),
        port: u16::try_from(number("--port")?).map_err(|_| CommandLineError::Invalid("--port".to_owned()))?,
        generation: Generation(0),
        token: token.unwrap_or_else(|| SpawnToken::from_bits(0)),
        proof: SpawnToken::from_bits(0),
        context_length: Some(number("--ctx-size")? / sequences.max(1)),
        max_concurrent: u32::try_from(sequences).unwrap_or(u32::MAX),
        residency: Default::default(),
        params: BTreeMap::new(),
        chat_template: given.get("--chat-template").map(|text| (*text).to_owned()),
        thinking: None,
        settings: BTreeMap::from([("args".to_owned(), json!(args))]),
        text: Default::default(),
        cpu_features: None,
        threads: None,
        speculation: Speculation::default(),
        draft: None,
        speech: None,
        voices: Default::default(),
        sandbox: SandboxMode::default(),
        parking: None,
    })
}

/// llama-server's answer to a health check.
pub(crate) fn health(ready: bool) -> Value {
    if ready {
        json!({ "status": "ok" })
    } else {
        json!({ "error": { "code": 503, "message": "Loading model", "type": "unavailable_error" } })
    }
}

/// llama-server's shape of an error: the status is the code.
pub(crate) fn error(error: &ApiError) -> Value {
    json!({ "error": { "code": error.status(), "message": error.message, "type": error.code.kind() } })
}

/// llama-server's refusal of a prompt that its context cannot hold.
pub(crate) fn overflow(tokens: u64, limit: u64) -> Value {
    let message = format!("the request exceeds the available context size ({limit} tokens), try increasing it");
    json!({ "error": {
        "code": 400, "message": message, "type": "exceed_context_size_error", "n_prompt_tokens": tokens, "n_ctx": limit,
    } })
}

/// llama-server's refusal of a text to embed that its physical batch cannot hold.
pub(crate) fn batch_overflow(tokens: u64, limit: u64) -> Value {
    let message = format!(
        "input ({tokens} tokens) is too large to process. increase the physical batch size (current batch size: {limit})"
    );
    json!({ "error": { "code": 500, "message": message, "type": "server_error" } })
}

/// The words of the longest text to embed.
pub(crate) fn longest(body: &Value) -> u64 {
    texts(body).iter().map(words).max().unwrap_or(0)
}

/// A token for each word of a text.
pub(crate) fn tokens(body: &Value, _: &str) -> Value {
    json!({ "tokens": (0..words(&body["content"])).collect::<Vec<_>>() })
}

fn texts(body: &Value) -> Vec<Value> {
    match &body["input"] {
        Value::Array(texts) if !texts.iter().all(Value::is_number) => texts.clone(),
        one => vec![one.clone()],
    }
}

fn words(text: &Value) -> u64 {
    text.as_str().map_or(1, |text| text.split_whitespace().count() as u64)
}

/// A vector of three numbers for each text, or list of token ids. The first is the number of words.
pub(crate) fn embeddings(body: &Value, model: &str) -> Value {
    let texts = texts(body);
    let vector = |text: &Value| json!([words(text) as f64, 0.5, -1.0]);
    let data = texts
        .iter()
        .enumerate()
        .map(|(index, text)| json!({ "object": "embedding", "index": index, "embedding": vector(text) }));
    let data: Vec<Value> = data.collect();
    json!({ "object": "list", "model": model, "data": data, "usage": { "prompt_tokens": texts.len(), "total_tokens": texts.len() } })
}

/// Longer documents are more relevant.
pub(crate) fn rerank(body: &Value, model: &str) -> Value {
    let documents = body["documents"].as_array().cloned().unwrap_or_default();
    let score = |document: &Value| document.as_str().map_or(0, str::len) as f64;
    let results: Vec<Value> = documents
        .iter()
        .enumerate()
        .map(|(index, document)| json!({ "index": index, "relevance_score": score(document) }))
        .collect();
    json!({ "object": "list", "model": model, "results": results, "usage": { "prompt_tokens": 1, "total_tokens": 1 } })
}
