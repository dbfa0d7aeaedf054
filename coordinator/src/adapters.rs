//! Adapters on their way to workers: a worker is given an adapter's files with the first request that names it, and
//! told to forget those that are gone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use model_boss_catalog::{AdapterContent, AdapterSource, LiveCatalog};
use model_boss_http::upstream::{Outgoing, Upstream, UpstreamError};
use model_boss_protocol::{ApiError, ErrorBody, ErrorCode, ModelId, headers};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The interval at which adapters that are gone are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The most bytes of a worker's answer about an adapter.
const MAX_ANSWER: usize = 64 << 10;

/// The adapters that one worker has, or is being given.
#[derive(Debug, Default)]
pub(crate) struct WorkerAdapters(Mutex<BTreeMap<String, GivenAdapter>>);

/// One adapter of a worker. The cell is full once the worker has it; requests meanwhile wait for the first one's try.
#[derive(Clone, Debug)]
struct GivenAdapter {
    source: AdapterSource,
    done: Arc<OnceCell<()>>,
}

/// The worker has not got an adapter.
#[derive(Debug)]
pub(crate) enum GiveError {
    /// The adapter cannot be used.
    Refused(ApiError),
    /// The worker was lost.
    Lost(UpstreamError),
}

impl WorkerAdapters {
    /// Has the worker of this model load an adapter, unless it has these files already.
    pub(crate) async fn give(
        &self,
        (model, upstream): (&ModelId, &Arc<Upstream>),
        name: &str,
        source: &AdapterSource,
    ) -> Result<(), GiveError> {
        let done = self.entry(name, source);
        done.get_or_try_init(|| push((model, upstream), name, source)).await.map(|_| ())
    }

    /// The cell of an adapter with these files.
    fn entry(&self, name: &str, source: &AdapterSource) -> Arc<OnceCell<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(name).filter(|given| given.source == *source) {
            Some(given) => Arc::clone(&given.done),
            None => {
                let done = Arc::new(OnceCell::new());
                all.insert(name.to_owned(), GivenAdapter { source: source.clone(), done: Arc::clone(&done) });
                done
            }
        }
    }

    /// Has the worker of this model forget adapters that the catalog has lost, for as long as it runs.
    pub(crate) async fn follow(&self, model: &ModelId, upstream: &Arc<Upstream>, catalog: &LiveCatalog) -> Infallible {
        loop {
            sleep(LOOK_EVERY).await;
            if !self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                self.keep(upstream, &catalog.adapters(model)).await;
            }
        }
    }

    /// Has the worker forget adapters that are not among these any more.
    async fn keep(&self, upstream: &Arc<Upstream>, known: &BTreeMap<String, AdapterSource>) {
        let gone: Vec<String> = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = all.keys().filter(|name| !known.contains_key(*name)).cloned().collect();
            all.retain(|name, _| known.contains_key(name));
            gone
        };
        for name in gone {
            if let Err(error) = order(upstream, Method::DELETE, &name, AdapterContent::default()).await {
                // The worker ends, or keeps a little memory until then.
                tracing::warn!(adapter = %name, "the worker did not forget an adapter: {error:?}");
            }
        }
    }
}

/// Reads an adapter's files and has the worker load them.
async fn push(
    (model, upstream): (&ModelId, &Arc<Upstream>),
    name: &str,
    source: &AdapterSource,
) -> Result<(), GiveError> {
    let refused = |why: String| {
        let message = format!("adapter '{name}' of model '{model}' cannot be used: {why}");
        GiveError::Refused(ApiError::invalid("model", message))
    };
    let reading = source.clone();
    let content = spawn_blocking(move || reading.read()).await;
    let content = content.map_err(|_| refused("its files could not be read".to_owned()))?;
    let content = content.map_err(|error| refused(error.to_string()))?;
    order(upstream, Method::PUT, name, content).await?;
    tracing::info!(%model, adapter = name, path = %source.path.display(), "adapter loaded");
    Ok(())
}

async fn order(
    upstream: &Arc<Upstream>,
    method: Method,
    name: &str,
    AdapterContent { config, weights }: AdapterContent,
) -> Result<(), GiveError> {
    let internal = |why: String| GiveError::Refused(ApiError::new(ErrorCode::Internal, why));
    let length = config.as_ref().map(Vec::len);
    let body = Outgoing::new(config.map(Bytes::from).unwrap_or_default(), Bytes::from(weights));
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = format!("/adapters/{name}").parse().map_err(|_| internal(format!("no path for '{name}'")))?;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(length) = length {
        request.headers_mut().insert(HeaderName::from_static(headers::ADAPTER_CONFIG), HeaderValue::from(length));
    }
    let (head, body) = upstream.send(request).await.map_err(GiveError::Lost)?.into_parts();
    if head.status.is_success() {
        return Ok(());
    }
    let body = Limited::new(body, MAX_ANSWER).collect().await.map(http_body_util::Collected::to_bytes);
    let told = body.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok());
    let code = |body: &ErrorBody| {
        let code = body.error.code.as_deref();
        ErrorCode::ALL.iter().copied().find(|known| Some(known.as_str()) == code)
    };
    Err(match told.and_then(|body| Some((code(&body)?, body.error))) {
        Some((code, error)) => {
            GiveError::Refused(ApiError { param: error.param, ..ApiError::new(code, error.message) })
        }
        None => internal(format!("the worker answered with status {}", head.status.as_u16())),
    })
}
