//! The cloud providers, as the rest of the coordinator uses them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use hyper::body::Incoming;
use model_boss_config::secrets::without;
use model_boss_config::{JsonLimits, Provider, ProviderKind, ProviderTables};
use model_boss_dialects::anthropic::{CommandQuestion, cloud_error, counted_request};
use model_boss_dialects::{DialectFault, MESSAGES, ProviderFault, Reshape, Stamp};
use model_boss_host::state_folder::StateFolder;
use model_boss_http::memory::MemoryBudget;
use model_boss_http::offload::offload;
use model_boss_protocol::ClientId;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::bill::Bill;
use super::command::Commands;
use super::error::{CloudError, CloudUnsupported, SaidByProvider, SpendingRefusal};
use super::own::{OwnMessages, takes_messages};
use super::put::{CloudCall, Put, PutQuestion, put};
use super::spend::{Spend, Used};
use super::transport::{Answered, RequestMarks, Transport};
use crate::transport;

/// Every provider.
pub struct Clouds {
    pub(crate) providers: BTreeMap<String, Provider>,
    pub(crate) transport: Transport,
    pub(super) commands: Commands,
    pub(super) spend: Arc<Spend>,
}

/// A request to a provider.
pub struct CloudRequest<'a> {
    /// The provider, by its prefix.
    pub provider: &'a str,
    /// The provider's own name of the model, or an alias such as `opus`.
    pub model: &'a str,
    /// The path in OpenAI's API.
    pub path: &'static str,
    /// The body in OpenAI's form.
    pub body: &'a Bytes,
    /// Whether the body was translated from another API, whose client does not know the fields of chats.
    pub is_translated: bool,
    /// The public id of the request.
    pub id: &'a str,
    /// The headers of its trace context, if there is one.
    pub trace: &'a HeaderMap,
    /// The client.
    pub client: &'a ClientId,
    /// The client's limit for a day in US dollars, if there is one.
    pub daily_limit: Option<f64>,
    /// The time in seconds since 1970.
    pub now: u64,
    /// The budget from which the translated body takes its memory.
    pub memory: &'a MemoryBudget,
    /// Limits on the body's JSON.
    pub limits: JsonLimits,
    /// The request in the shape of the Messages API, where its client speaks that. A provider of that API gets it.
    pub own: Option<&'a OwnMessages>,
}

/// A prompt whose tokens are to be counted.
pub struct CountRequest<'a> {
    /// The provider, by its prefix.
    pub provider: &'a str,
    /// The provider's own name of the model, or an alias.
    pub model: &'a str,
    /// The request in the form of the Messages API.
    pub body: Map<String, Value>,
    /// The size of that request as text, in bytes.
    pub size: usize,
    /// The public id of the request.
    pub id: &'a str,
    /// The time in seconds since 1970.
    pub now: u64,
    /// The client's headers that belong to the Messages API.
    pub headers: &'a HeaderMap,
}

/// A provider's answer to a count.
pub struct Counted {
    /// The provider's headers that clients may see.
    pub headers: HeaderMap,
    /// The answer as the provider wrote it.
    pub body: Bytes,
}

/// An answer that has begun.
pub struct CloudAnswer {
    /// A status of success: errors are returned as errors.
    pub status: StatusCode,
    /// The provider's headers that clients may see.
    pub headers: HeaderMap,
    /// The part of a wish about thinking that the provider cannot follow, in words.
    pub thinking: Option<&'static str>,
    /// The bytes of the body.
    pub body: CloudBody,
    /// The translation of the body into the form of `path`.
    pub reshape: Box<dyn Reshape>,
    /// The path in whose form the answer is.
    pub path: &'static str,
}

/// The source of an answer's bytes.
pub enum CloudBody {
    /// An HTTP connection.
    Http(Incoming),
    /// A running command, which ends when this is dropped.
    Command(mpsc::Receiver<Bytes>),
    /// The whole body.
    Whole(Option<Bytes>),
}

impl Clouds {
    /// The configured providers, and `claude` if it is not among them. The state folder keeps the spending.
    pub fn new(tables: &ProviderTables, state: &StateFolder) -> Self {
        let providers = tables.with_claude().into_iter().map(|(name, spec)| {
            let provider = Provider::new(&name, spec);
            (name, provider)
        });
        let spend = Arc::new(Spend::open(state));
        Self { providers: providers.collect(), transport: Transport::new(), commands: Commands::default(), spend }
    }

    /// Whether a provider speaks Anthropic's API.
    pub fn is_anthropic(&self, provider: &str) -> bool {
        self.providers.get(provider).is_some_and(|provider| provider.kind() == ProviderKind::Anthropic)
    }

    /// Whether a provider takes requests of the Messages API as they are.
    pub fn takes_messages(&self, provider: &str) -> bool {
        self.providers.get(provider).is_some_and(takes_messages)
    }

    /// The tokens that a client with a limit used today, of models here and elsewhere.
    pub fn tokens_today(&self, client: &ClientId, now: u64) -> u64 {
        self.spend.tokens_of(client, now)
    }

    /// Counts tokens of a client with a limit.
    pub fn use_tokens(&self, client: &ClientId, tokens: u64, now: u64) {
        self.spend.use_tokens(client, tokens, now);
    }

    /// Sends one request to a provider and waits for the beginning of its answer.
    pub async fn ask(&self, request: &CloudRequest<'_>) -> Result<CloudAnswer, CloudError> {
        let provider = self.provider(request.provider)?;
        let model = provider.model(request.model);
        let price = provider.price(model);
        self.can_be_limited(request, provider, model, price)?;
        let key = provider.key()?;
        let own = request.own.filter(|_| takes_messages(provider));
        if let Some(own) = own {
            own.check_links(provider)?;
        }
        let path = if own.is_some() { MESSAGES } else { request.path };
        let stamp = Stamp {
            id: format!("chatcmpl-{}", request.id),
            model: format!("{}:{}", request.provider, request.model),
            created: request.now,
        };
        let bill = Bill {
            spend: Arc::clone(&self.spend),
            client: request.client.clone(),
            provider: request.provider.to_owned(),
            model: model.to_owned(),
            price,
            now: request.now,
            daily_limit: request.daily_limit,
            reserved: None,
        };
        let order = CloudCall {
            kind: provider.kind(),
            command: provider.command().map(Path::to_owned),
            is_own: !provider.costs(),
            is_translated: request.is_translated,
            path: request.path,
            model: model.to_owned(),
            body: request.body.clone(),
            stamp,
            bill,
            memory: request.memory.holder(),
            limits: request.limits,
            own: own.cloned(),
        };
        let Put { question, reshape, thinking, prompt } = put(order).await?;
        let given_up = GivenUp { client: request.client, prompt, dollars: price.map(|(of, _)| prompt as f64 * of) };
        let mut sent = Sent {
            spend: &self.spend,
            provider: request.provider,
            model,
            answered: false,
            given_up: Some(given_up),
            now: request.now,
        };
        let answer = match question {
            PutQuestion::Command { program, question, is_stream } => {
                let running = Box::pin(self.run((provider, &program), model, key, question, is_stream)).await;
                sent.given_up = None;
                CloudAnswer::of_command(running?, is_stream, reshape, path)
            }
            PutQuestion::Http { path: to, body } => {
                let marks = RequestMarks { id: request.id, trace: request.trace, own: own.map(|own| &own.headers) };
                let answered = self.exchange(provider, to, key.as_deref(), body, marks).await;
                sent.given_up = None;
                CloudAnswer::of_http(answered?, reshape, path)
            }
        };
        sent.answered = true;
        Ok(answer.with_thinking(thinking))
    }

    /// Runs a command for an answer, which is whole or streamed.
    async fn run(
        &self,
        (provider, program): (&Provider, &Path),
        model: &str,
        key: Option<String>,
        question: CommandQuestion,
        is_stream: bool,
    ) -> Result<CloudBody, CloudError> {
        let running = self.commands.ask((provider.name(), program), model, key, question).await?;
        Ok(if is_stream {
            CloudBody::Command(running.stream())
        } else {
            CloudBody::Whole(Some(running.whole().await?))
        })
    }

    /// The number of tokens in a prompt of the Messages API, counted by the provider. The provider does not charge for
    /// it.
    pub async fn count_tokens(&self, question: CountRequest<'_>) -> Result<Counted, CloudError> {
        let provider = self.provider(question.provider)?;
        if provider.kind() != ProviderKind::Anthropic {
            return Err(CloudUnsupported::NoCounting(question.provider.to_owned()).into());
        }
        if provider.command().is_some() {
            return Err(CloudUnsupported::CommandCounts(question.provider.to_owned()).into());
        }
        let model = provider.model(question.model);
        let mut body = question.body;
        body.insert("model".to_owned(), json!(model));
        let key = provider.key()?;
        let text = offload(question.size, move || {
            counted_request(&mut body);
            Ok::<_, CloudError>(Bytes::from(Value::Object(body).to_string()))
        });
        let text = text.await?;
        let mut sent = Sent {
            spend: &self.spend,
            provider: question.provider,
            model,
            answered: false,
            given_up: None,
            now: question.now,
        };
        let marks = RequestMarks { id: question.id, trace: &HeaderMap::new(), own: Some(question.headers) };
        let answered = self.exchange(provider, "/v1/messages/count_tokens", key.as_deref(), text, marks).await?;
        sent.answered = true;
        let headers = passed_headers(&answered.headers, true);
        let body = transport::collect(answered.body).await;
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        if !said["input_tokens"].is_u64() {
            return Err(CloudError::NoCount(question.provider.to_owned()));
        }
        Ok(Counted { headers, body })
    }

    /// Sends a translated request, once. An error answer becomes an error.
    async fn exchange(
        &self,
        provider: &Provider,
        path: &str,
        key: Option<&str>,
        body: Bytes,
        marks: RequestMarks<'_>,
    ) -> Result<Answered, CloudError> {
        let sent = self.transport.send(provider, path, key, body, marks).await;
        let answered = sent.map_err(|source| {
            let (name, why) = (provider.name(), model_boss_protocol::chain(&source));
            tracing::warn!(provider = name, "the provider cannot be reached: {why}");
            CloudError::Unreachable { provider: name.to_owned(), source }
        })?;
        if answered.status.is_success() {
            return Ok(answered);
        }
        let retry_after = retry_after(&answered.headers);
        let said = transport::collect(answered.body).await;
        let mut error = cloud_error(answered.status.as_u16(), &said, retry_after);
        let mut text = String::from_utf8_lossy(&said).into_owned();
        if let Some(key) = key {
            // Some providers repeat a rejected key. The key is the operator's secret, and clients read the error.
            error.message = without(&error.message, key);
            text = without(&text, key);
        }
        // A client's own key is not the one that was refused.
        if marks.own.is_none() || error.fault == DialectFault::Provider(ProviderFault::KeyRefused) {
            return Err(error.into());
        }
        Err(CloudError::Said(Box::new(SaidByProvider { error, status: answered.status.as_u16(), text })))
    }

    fn provider(&self, name: &str) -> Result<&Provider, CloudError> {
        self.providers.get(name).ok_or_else(|| CloudError::UnknownProvider(name.to_owned()))
    }

    /// Checks that a client with a limit uses only models with a known price. The limit itself is checked later, when
    /// the most that the request may cost is known ([`Bill::reserve`]).
    fn can_be_limited(
        &self,
        request: &CloudRequest<'_>,
        provider: &Provider,
        model: &str,
        price: Option<(f64, f64)>,
    ) -> Result<(), SpendingRefusal> {
        let Some(limit) = request.daily_limit else { return Ok(()) };
        if price.is_none() && provider.costs() {
            return Err(SpendingRefusal::NoPrice {
                client: request.client.clone(),
                limit,
                provider: request.provider.to_owned(),
                model: model.to_owned(),
            });
        }
        Ok(())
    }
}

impl CloudAnswer {
    fn with_thinking(self, thinking: Option<&'static str>) -> Self {
        Self { thinking, ..self }
    }

    fn of_http(answered: Answered, reshape: Box<dyn Reshape>, path: &'static str) -> Self {
        let Answered { status, headers, body } = answered;
        let headers = passed_headers(&headers, path == MESSAGES);
        Self { status, headers, thinking: None, body: CloudBody::Http(body), reshape, path }
    }

    fn of_command(body: CloudBody, is_stream: bool, reshape: Box<dyn Reshape>, path: &'static str) -> Self {
        let kind = if is_stream { "text/event-stream" } else { "application/json" };
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        Self { status: StatusCode::OK, headers, thinking: None, body, reshape, path }
    }
}

/// A request that was sent. It is counted when its answer begins, or when its client disconnects.
struct Sent<'a> {
    spend: &'a Spend,
    provider: &'a str,
    model: &'a str,
    answered: bool,
    /// The cost if the client leaves before an answer: the provider reads the prompt all the same.
    given_up: Option<GivenUp<'a>>,
    now: u64,
}

struct GivenUp<'a> {
    client: &'a ClientId,
    /// The estimated tokens of the prompt.
    prompt: u64,
    dollars: Option<f64>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(GivenUp { client, prompt, dollars }) = self.given_up.take().filter(|one| one.dollars.is_some()) {
            let used = Used { client, provider: self.provider, model: self.model, tokens: (prompt, 0), dollars };
            self.spend.used(&used, self.now);
        }
        self.spend.asked(self.provider, self.model, self.answered, self.now);
    }
}

/// The time after which the provider accepts the next request. A date is not parsed: it is rare, and a default wait
/// does.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok().map(|wait| wait.min(Duration::from_secs(3_600)))
}

/// The provider's id of the request, which its support requires; other headers are not passed on. Clients of the
/// provider's own API get the id under its own name as well.
fn passed_headers(headers: &HeaderMap, is_own: bool) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for name in ["request-id", "x-request-id"] {
        if let Some(id) = headers.get(name) {
            passed.insert("x-provider-request-id", id.clone());
        }
    }
    if let Some(id) = headers.get("request-id").filter(|_| is_own) {
        passed.insert("request-id", id.clone());
    }
    if let Some(kind) = headers.get(CONTENT_TYPE) {
        passed.insert(CONTENT_TYPE, kind.clone());
    }
    passed
}
