//! Errors for clients: one shape, one list of stable codes, one status for each.
//!
//! The list is documented in `docs/errors.md`; a test there compares the two.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::DeviceId;

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $kind:literal;)*) => {
        /// A stable code that programs may branch on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The text in `error.code`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The HTTP status of the code, unless the error sets another.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// The value of `error.type`, as defined by OpenAI.
            pub const fn kind(self) -> &'static str {
                match self { $(Self::$variant => $kind,)* }
            }
        }
    };
}

error_codes! {
    /// Malformed JSON, a wrong type, a value out of range.
    InvalidRequest = "invalid_request", 400, "invalid_request_error";
    /// The prompt does not fit the model's context.
    ContextLengthExceeded = "context_length_exceeded", 400, "invalid_request_error";
    /// The text names no device.
    InvalidDevice = "invalid_device", 400, "invalid_request_error";
    /// No key, or a wrong one.
    InvalidApiKey = "invalid_api_key", 401, "authentication_error";
    /// The key may not do this.
    InsufficientScope = "insufficient_scope", 403, "permission_error";
    /// The Host or Origin header names a foreign site.
    ForbiddenOrigin = "forbidden_origin", 403, "permission_error";
    /// This client or task may not use a cloud.
    CloudNotAllowed = "cloud_not_allowed", 403, "permission_error";
    /// The process is not on the coordinator's host, and leases are only for processes of that host.
    NotOnThisHost = "not_on_this_host", 403, "permission_error";
    /// The process is not the caller's own, and a lease may name only those.
    NotYourProcess = "not_your_process", 403, "permission_error";
    /// The hub gives the model only to accounts with access.
    HubAccessDenied = "hub_access_denied", 403, "permission_error";
    /// The model's manifest names a repository of a hub, and its files were not downloaded.
    ModelNotDownloaded = "model_not_downloaded", 404, "not_found_error";
    /// The pull does not exist, or ended long ago.
    PullNotFound = "pull_not_found", 404, "not_found_error";
    /// The files are not in the cache, and no connection to a hub is allowed.
    HubOffline = "hub_offline", 409, "invalid_request_error";
    /// The pull was cancelled.
    PullCancelled = "pull_cancelled", 409, "invalid_request_error";
    /// The hub cannot be reached, or its answer cannot be used.
    HubUnavailable = "hub_unavailable", 502, "server_error";
    /// The model's files are being downloaded.
    ModelPulling = "model_pulling", 503, "server_error";
    /// The disk has too little space for the model's files.
    DiskFull = "disk_full", 507, "server_error";
    /// The job does not exist, is another client's, or was kept long enough.
    JobNotFound = "job_not_found", 404, "not_found_error";
    /// The file does not exist, or is another client's.
    FileNotFound = "file_not_found", 404, "not_found_error";
    /// The batch does not exist, or is another client's.
    BatchNotFound = "batch_not_found", 404, "not_found_error";
    /// The job has no result yet.
    JobNotFinished = "job_not_finished", 409, "invalid_request_error";
    /// The idempotency key was used for another order.
    IdempotencyMismatch = "idempotency_mismatch", 409, "invalid_request_error";
    /// A batch that has not ended needs the file.
    FileInUse = "file_in_use", 409, "invalid_request_error";
    /// The host of a webhook is not allowed.
    WebhookNotAllowed = "webhook_not_allowed", 403, "permission_error";
    /// The range lies behind the end.
    RangeNotSatisfiable = "range_not_satisfiable", 416, "invalid_request_error";
    /// The store of jobs cannot be used.
    JobStoreUnavailable = "job_store_unavailable", 503, "server_error";
    /// Bodies, results and files take all the room that they may.
    StorageFull = "storage_full", 507, "server_error";
    /// The request has ended, or never was.
    RequestNotFound = "request_not_found", 404, "not_found_error";
    /// An order cancelled the request.
    RequestCancelled = "request_cancelled", 410, "invalid_request_error";
    /// The route does not exist.
    NotFound = "not_found", 404, "not_found_error";
    /// The model or task does not exist.
    ModelNotFound = "model_not_found", 404, "not_found_error";
    /// The model exists but is not loaded.
    ModelNotLoaded = "model_not_loaded", 404, "not_found_error";
    /// The route exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", 405, "invalid_request_error";
    /// The model's chat template or tokenizer exceeded a limit on this request.
    TemplateFailed = "template_failed", 400, "invalid_request_error";
    /// The model does not have the category that this route needs.
    UnsupportedByModel = "unsupported_by_model", 400, "invalid_request_error";
    /// The lease does not exist.
    LeaseNotFound = "lease_not_found", 404, "not_found_error";
    /// The lease is gone, or the token is not its present one.
    LeaseLost = "lease_lost", 409, "invalid_request_error";
    /// The lease cannot grow now.
    LeaseNoRoom = "lease_no_room", 409, "invalid_request_error";
    /// The lease is held by a process that is alive.
    LeaseInUse = "lease_in_use", 409, "invalid_request_error";
    /// The device is not present.
    DeviceNotAvailable = "device_not_available", 409, "invalid_request_error";
    /// Only the eviction of pinned models would make room.
    SlotsPinned = "slots_pinned", 409, "invalid_request_error";
    /// The move failed; the old copy still serves.
    MigrationFailed = "migration_failed", 409, "invalid_request_error";
    /// The resource was changed by another client since it was read.
    PreconditionFailed = "precondition_failed", 412, "invalid_request_error";
    /// The body is over the limit.
    RequestTooLarge = "request_too_large", 413, "invalid_request_error";
    /// The body is not JSON by its content type.
    UnsupportedMediaType = "unsupported_media_type", 415, "invalid_request_error";
    /// The queue is full.
    QueueFull = "queue_full", 429, "rate_limit_error";
    /// The client is at a limit of its own.
    ClientLimit = "client_limit", 429, "rate_limit_error";
    /// The provider accepts no further requests for now.
    CloudRateLimited = "cloud_rate_limited", 429, "rate_limit_error";
    /// A fault of this program.
    Internal = "internal_error", 500, "server_error";
    /// The model could not be loaded.
    ModelLoadFailed = "model_load_failed", 502, "server_error";
    /// The backend's answer is invalid, or it closed its connections while it runs.
    BackendError = "backend_error", 502, "server_error";
    /// The worker died while it worked on this request.
    WorkerCrashed = "worker_crashed", 502, "server_error";
    /// There is no room for the model now.
    NoCapacity = "no_capacity", 503, "server_error";
    /// The provider is overloaded.
    CloudOverloaded = "cloud_overloaded", 503, "server_error";
    /// The memory for requests in flight, or the descriptors, are used up.
    Overloaded = "overloaded", 503, "server_error";
    /// The process, the device or the model is being shut down.
    Draining = "draining", 503, "server_error";
    /// Loading would take longer than the request allows.
    ColdStartExceedsBudget = "cold_start_exceeds_budget", 503, "server_error";
    /// The lease store may have lost records: no lease is granted until the holders have reported theirs.
    LeaseStoreRecovering = "lease_store_recovering", 503, "server_error";
    /// The lease store cannot be reached.
    LeaseStoreUnavailable = "lease_store_unavailable", 503, "server_error";
    /// The model keeps failing; it is tried again later.
    ModelBackingOff = "model_backing_off", 503, "server_error";
    /// The request's time is over.
    DeadlineExceeded = "deadline_exceeded", 504, "server_error";
    /// The lease is larger than the devices it could be on.
    LeaseNeverFits = "lease_never_fits", 507, "server_error";
    /// The model fits no device of this machine.
    ModelNeverFits = "model_never_fits", 507, "server_error";
}

/// The process that found the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ErrorSource {
    /// The process on port 8210.
    Coordinator,
    /// The process that serves the model.
    Worker,
    /// A cloud provider.
    Cloud,
}

/// An error for a client: a message that includes the remedy, and a code for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The code, for programs.
    pub code: ErrorCode,
    /// The fault and its remedy, human-readable.
    pub message: String,
    /// The field of the request that was wrong.
    pub param: Option<String>,
    /// The time after which a retry makes sense.
    pub retry_after: Option<Duration>,
    /// The HTTP status, where it is not the code's own.
    pub status: Option<u16>,
    /// The device on which a model still serves after its move failed.
    pub still_on: Option<DeviceId>,
    /// The length of a prompt that does not fit, and the context.
    pub length: Option<Box<PromptLength>>,
    /// The error in the words of Anthropic's API, where a provider of it gave them: a JSON text.
    pub said: Option<Box<String>>,
}

/// The length of a prompt, and the context that it should fit, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromptLength {
    /// The prompt's tokens.
    #[serde(rename = "n_prompt_tokens")]
    pub prompt: usize,
    /// The context's tokens.
    #[serde(rename = "n_ctx")]
    pub context: usize,
}

impl ApiError {
    /// An error with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            param: None,
            retry_after: None,
            status: None,
            still_on: None,
            length: None,
            said: None,
        }
    }

    /// A 400 that names the field.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(ErrorCode::InvalidRequest, message) }
    }

    /// Adds the field that was wrong.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Adds the time after which to try again.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Sets another status than the code's own.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Adds the device on which the model still serves.
    #[must_use]
    pub fn still_on(mut self, device: DeviceId) -> Self {
        self.still_on = Some(device);
        self
    }

    /// Adds the length of a prompt that does not fit.
    #[must_use]
    pub fn with_length(mut self, length: PromptLength) -> Self {
        self.length = Some(Box::new(length));
        self
    }

    /// Adds the error as a provider of Anthropic's API wrote it.
    #[must_use]
    pub fn said_by_provider(mut self, said: String) -> Self {
        self.said = Some(Box::new(said));
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status.unwrap_or_else(|| self.code.status())
    }

    /// The JSON body of this error.
    pub fn body(&self, source: ErrorSource) -> ErrorBody {
        ErrorBody {
            error: ErrorObject {
                message: self.message.clone(),
                kind: self.code.kind().to_owned(),
                param: self.param.clone(),
                code: Some(self.code.as_str().to_owned()),
                still_on: self.still_on.clone().map(Box::new),
                length: self.length.clone(),
            },
            source: Some(source),
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code.as_str())
    }
}

impl std::error::Error for ApiError {}

/// The body `{"error": {…}, "source": "coordinator"}`: OpenAI's shape, with the origin beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    /// The error itself.
    pub error: ErrorObject,
    /// The process that found the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ErrorSource>,
}

/// The object that OpenAI's clients read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorObject {
    /// The message, human-readable.
    pub message: String,
    /// OpenAI's type of the error.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// The field that was wrong.
    #[serde(default)]
    pub param: Option<String>,
    /// The stable code.
    #[serde(default)]
    pub code: Option<String>,
    /// The device on which a model still serves after its move failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub still_on: Option<Box<DeviceId>>,
    /// The length of a prompt that does not fit, as llama-server tells it.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub length: Option<Box<PromptLength>>,
}

impl ErrorBody {
    /// The body as one line of JSON.
    pub fn to_json(&self) -> String {
        // A struct of strings always serialises; the fallback keeps the shape should that ever change.
        serde_json::to_string(self).unwrap_or_else(|_| r#"{"error":{"message":"internal error"}}"#.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_openais_shape() {
        let body = ApiError::invalid("messages", "'messages' is missing").body(ErrorSource::Coordinator).to_json();
        assert_eq!(
            body,
            r#"{"error":{"message":"'messages' is missing","type":"invalid_request_error","param":"messages","code":"invalid_request"},"source":"coordinator"}"#
        );
    }

    #[test]
    fn en_7_a_prompt_that_is_too_long_has_its_length_beside_the_message() {
        let length = PromptLength { prompt: 9, context: 8 };
        let body = ApiError::invalid("messages", "long").with_length(length).body(ErrorSource::Worker);
        let text = body.to_json();
        assert!(text.contains(r#""n_prompt_tokens":9,"n_ctx":8"#), "{text}");
        assert_eq!(serde_json::from_str::<ErrorBody>(&text).unwrap(), body);
        let plain = ApiError::invalid("messages", "short").body(ErrorSource::Worker);
        assert_eq!(serde_json::from_str::<ErrorBody>(&plain.to_json()).unwrap(), plain);
    }

    #[test]
    fn the_documented_list_is_this_list() {
        let documented: Vec<_> = include_str!("../../docs/errors.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|row| {
                let (code, rest) = row.split_once("` | ")?;
                let (status, rest) = rest.split_once(" | `")?;
                let (kind, _) = rest.split_once('`')?;
                Some((code.to_owned(), status.to_owned(), kind.to_owned()))
            })
            .collect();
        let mut listed: Vec<_> = ErrorCode::ALL
            .iter()
            .map(|c| (c.as_str().to_owned(), c.status().to_string(), c.kind().to_owned()))
            .collect();
        listed.sort_by_key(|(code, status, _)| (status.clone(), code.clone()));
        assert_eq!(documented, listed);
    }

    #[test]
    fn dm_7_errors_of_devices_and_models_have_these_codes_and_statuses() {
        for (code, name, status) in [
            (ErrorCode::InvalidDevice, "invalid_device", 400),
            (ErrorCode::DeviceNotAvailable, "device_not_available", 409),
            (ErrorCode::ModelNotFound, "model_not_found", 404),
            (ErrorCode::ModelNotLoaded, "model_not_loaded", 404),
            (ErrorCode::ModelLoadFailed, "model_load_failed", 502),
            (ErrorCode::MigrationFailed, "migration_failed", 409),
            (ErrorCode::BackendError, "backend_error", 502),
        ] {
            assert_eq!((code.as_str(), code.status()), (name, status));
        }
    }

    #[test]
    fn codes_are_distinct() {
        let mut codes: Vec<_> = ErrorCode::ALL.iter().map(|c| c.as_str()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), ErrorCode::ALL.len());
    }
}
