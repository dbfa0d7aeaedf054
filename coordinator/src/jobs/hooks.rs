//! Webhooks: jobs that have ended are told to the place that their order named.

use std::fs;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use model_boss_http::outbound::{OutboundPost, post_once};
use model_boss_jobs::{HookPlace, JobId, JobRecord, JobState, WebhookSecret, is_public, webhook_signature};
use model_boss_lease_store::{StateFileUse, open_state_file, replace_state_file};
use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use super::book::put_job;
use super::desk::{Jobs, on_disk};
use super::view::JobObject;
use super::wall::now;

/// The longest time between two looks at deliveries that are due.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The longest delivery, from the name's lookup to the receiver's status.
const DELIVERY_LIMIT: Duration = Duration::from_secs(20);
/// Deliveries at once.
const AT_ONCE: usize = 8;
/// The longest file of a secret.
const MAX_SECRET: u64 = 1 << 10;

impl Jobs {
    /// Reads the secret, or draws it. Without one there are no webhooks.
    pub(super) async fn open_secret(&self) {
        if self.webhooks.hosts.is_empty() && self.webhooks.private_hosts.is_empty() {
            return;
        }
        let (path, is_drawn) = (self.secret_file(), self.settings.webhook_secret_file.is_none());
        let read = on_disk(move || match open_state_file(&path, StateFileUse::Read) {
            Ok(file) => {
                let mut text = String::new();
                file.take(MAX_SECRET).read_to_string(&mut text)?;
                WebhookSecret::parse(&text)
                    .ok_or_else(|| io::Error::other("it holds no secret: whsec_ and 24 to 64 bytes in Base64"))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_drawn => {
                let secret = WebhookSecret::draw().map_err(io::Error::other)?;
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder)?;
                }
                replace_state_file(&path, format!("{}\n", secret.reveal()).as_bytes())?;
                Ok(secret)
            }
            Err(error) => Err(error),
        });
        match read.await {
            // The secret is read once.
            Ok(secret) => _ = self.secret.set(secret),
            Err(error) => self.state.trouble(&self.secret_file(), error.message),
        }
    }

    /// Delivers webhooks until the coordinator drains. What is due then is delivered after the next start.
    pub(super) async fn deliver_webhooks(self: Arc<Self>) {
        let mut changes = self.revision.subscribe();
        loop {
            if self.secret.get().is_some() {
                let due = self.due_webhooks();
                let mut deliveries = tokio::task::JoinSet::new();
                for record in due.into_iter().take(AT_ONCE) {
                    let jobs = Arc::clone(&self);
                    deliveries.spawn(async move { jobs.deliver(record).await });
                }
                let any = !deliveries.is_empty();
                while deliveries.join_next().await.is_some() {}
                if any && !self.draining.is_cancelled() {
                    continue;
                }
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep(LOOK_EVERY) => {}
                () = self.draining.cancelled() => return,
            }
        }
    }

    fn due_webhooks(&self) -> Vec<JobRecord> {
        let at = now();
        let book = self.book();
        let is_due =
            |record: &&JobRecord| record.webhook.as_ref().and_then(|hook| hook.due).is_some_and(|due| due <= at);
        book.table.newest_first().map(|entry| &entry.record).filter(is_due).cloned().collect()
    }

    async fn deliver(self: Arc<Self>, before: JobRecord) {
        let result = match timeout(DELIVERY_LIMIT, self.send_webhook(&before)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer came within {} s", DELIVERY_LIMIT.as_secs())),
        };
        if let Err(why) = &result {
            tracing::info!(job = %before.id, "a webhook was not delivered: {why}");
        }
        let mut record = before.clone();
        if let Some(hook) = &mut record.webhook {
            hook.tried(result, now());
        }
        // A delivery that cannot be recorded is repeated: receivers know it by its id.
        if self.journal.commit(vec![put_job(&record)], vec![put_job(&before)]).await.is_ok() {
            let id = record.id.clone();
            let mut book = self.book();
            if book.table.get(&id).is_some() {
                book.table.update(record);
            }
            drop(book);
            self.changed(&id);
        }
    }

    /// Sends one webhook. The error says why the receiver did not take it.
    async fn send_webhook(&self, record: &JobRecord) -> Result<(), String> {
        let Some(hook) = &record.webhook else { return Ok(()) };
        let place = self.webhooks.place(&hook.target).map_err(|error| error.to_string())?;
        let addresses = addresses(&place).await?;
        let secret = self.secret.get().ok_or("there is no secret to sign with")?;
        let body = self.webhook_body(&record.id, record);
        let (id, timestamp) = (format!("msg_{}", record.id), now().whole_seconds());
        let header = |text: &str| HeaderValue::from_str(text).map_err(|_| "a header cannot be written".to_owned());
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (USER_AGENT, HeaderValue::from_static(concat!("model-boss/", env!("CARGO_PKG_VERSION")))),
            (HeaderName::from_static("webhook-id"), header(&id)?),
            (HeaderName::from_static("webhook-timestamp"), header(&timestamp.to_string())?),
            (HeaderName::from_static("webhook-signature"), header(&webhook_signature(secret, &id, timestamp, &body))?),
        ];
        let HookPlace { host, port, is_tls, path, .. } = place;
        let post = OutboundPost { addresses, host, port, is_tls, path, headers: headers.into(), body: body.into() };
        let status = post_once(post).await.map_err(|error| model_boss_protocol::chain(&error))?;
        // A redirect is no success: the place was allowed, and not where it points.
        if status.is_success() { Ok(()) } else { Err(format!("the receiver answered with status {}", status.as_u16())) }
    }

    fn webhook_body(&self, id: &JobId, record: &JobRecord) -> Vec<u8> {
        let kind = match record.state {
            JobState::Succeeded => "job.succeeded",
            JobState::Failed => "job.failed",
            JobState::Cancelled => "job.cancelled",
            JobState::Queued => "job.queued",
        };
        let view = self.book().table.get(id).map(|entry| JobObject::of(entry, None, None).kept_for(self.settings.keep));
        let timestamp = record.ended.unwrap_or_else(now).seconds();
        serde_json::json!({ "type": kind, "timestamp": timestamp, "data": view }).to_string().into_bytes()
    }
}

/// The addresses of a place. Each must be one of the internet, unless the host is allowed to have others: a name that
/// leads into the network of this machine is refused whole, because the connection goes to these addresses and no
/// others.
async fn addresses(place: &HookPlace) -> Result<Vec<std::net::SocketAddr>, String> {
    let found = lookup_host((place.host.as_str(), place.port)).await;
    let found: Vec<_> = found.map_err(|error| format!("'{}' has no address: {error}", place.host))?.collect();
    let private = found.iter().find(|address| !place.may_be_private && !is_public(address.ip()));
    match private {
        None if found.is_empty() => Err(format!("'{}' has no address", place.host)),
        None => Ok(found),
        Some(_) => Err(format!(
            "'{}' has an address of a private network; jobs.webhook_private_hosts may allow it",
            place.host
        )),
    }
}
