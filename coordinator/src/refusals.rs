//! Errors of the crates below the API, as clients see them: of the scheduler, the rules about names, dialects, clouds
//! and settings. This is the one place that gives each reason its code, its status and its field.

use std::io;
use std::time::Duration;

use model_boss_cloud::{CloudError, SaidByProvider, SpendingRefusal};
use model_boss_core::{Refusal, RefusalReason, Subject};
use model_boss_dialects::responses::ResponsesRefusal;
use model_boss_dialects::{DialectError, DialectFault, EngineFault, Names, ProviderFault};
use model_boss_hub::HubError;
use model_boss_jobs::JobStoreError;
use model_boss_protocol::{ApiError, ErrorCode, chain};
use model_boss_settings::SettingsError;
use model_boss_tasks::Denial;

/// The time after which an order about jobs may be repeated.
const JOBS_AGAIN: Duration = Duration::from_secs(5);

/// The error that a client gets for a refusal.
pub(crate) fn api_error(refusal: Refusal) -> ApiError {
    let Refusal { reason, message, about, retry_after, still_on } = refusal;
    let code = match reason {
        RefusalReason::UnknownModel => ErrorCode::ModelNotFound,
        RefusalReason::NotLoaded => ErrorCode::ModelNotLoaded,
        RefusalReason::WrongKind => ErrorCode::UnsupportedByModel,
        RefusalReason::NoDevice => ErrorCode::InvalidDevice,
        RefusalReason::DeviceUnavailable => ErrorCode::DeviceNotAvailable,
        RefusalReason::NeverFits => ErrorCode::ModelNeverFits,
        RefusalReason::NoCapacity => ErrorCode::NoCapacity,
        RefusalReason::Pinned => ErrorCode::SlotsPinned,
        RefusalReason::QueueFull => ErrorCode::QueueFull,
        RefusalReason::ClientLimit => ErrorCode::ClientLimit,
        RefusalReason::ColdStart => ErrorCode::ColdStartExceedsBudget,
        RefusalReason::Deadline => ErrorCode::DeadlineExceeded,
        RefusalReason::Draining => ErrorCode::Draining,
        RefusalReason::LoadFailed => ErrorCode::ModelLoadFailed,
        RefusalReason::BackingOff => ErrorCode::ModelBackingOff,
        RefusalReason::WorkerCrashed => ErrorCode::WorkerCrashed,
        RefusalReason::MoveFailed { .. } => ErrorCode::MigrationFailed,
        RefusalReason::LedgerAway => ErrorCode::LeaseStoreUnavailable,
        RefusalReason::LedgerRecovering => ErrorCode::LeaseStoreRecovering,
        RefusalReason::Cancelled => ErrorCode::RequestCancelled,
        RefusalReason::UnknownRequest => ErrorCode::RequestNotFound,
        RefusalReason::NotYours => ErrorCode::InsufficientScope,
        RefusalReason::Internal => ErrorCode::Internal,
        // The rung's own error, in which the scheduler may have added words about other rungs.
        RefusalReason::RungFailed { error, .. } => return ApiError { message, retry_after, ..*error },
    };
    let param = about.map(|subject| match subject {
        Subject::Model => "model".to_owned(),
        Subject::Device => "device".to_owned(),
    });
    // A worker failed (DM-7), which is no fault of the request.
    let status = (reason == RefusalReason::MoveFailed { by_worker: true }).then_some(500);
    ApiError { code, message, param, retry_after, status, still_on, length: None, said: None }
}

/// The error that a client gets for a name that it may not use.
pub(crate) fn denied(denial: Denial) -> ApiError {
    let code = match denial {
        Denial::UnknownTask { .. } | Denial::UnknownAdapter { .. } => ErrorCode::ModelNotFound,
        Denial::ModelNotAllowed(_) | Denial::MachineNotAllowed => ErrorCode::InsufficientScope,
        Denial::TaskIsLocal | Denial::ClientIsLocal | Denial::NothingLeft(_) => ErrorCode::CloudNotAllowed,
    };
    let error = ApiError::new(code, denial.to_string());
    // An order about the whole machine names no model.
    if denial == Denial::MachineNotAllowed { error } else { error.with_param("model") }
}

/// The error that a client gets for a request of the Responses API that cannot become a chat.
pub(crate) fn of_responses(refusal: ResponsesRefusal) -> ApiError {
    match refusal {
        ResponsesRefusal::Malformed { field, message } => ApiError::invalid(field, message),
        ResponsesRefusal::NotHere { field, message } => {
            ApiError::new(ErrorCode::UnsupportedByModel, message).with_param(field)
        }
    }
}

/// The failure of a rung, in the scheduler's terms. A limit of the coordinator concerns one request or one client:
/// other clients may still use the provider.
pub(crate) fn of_rung(error: ApiError) -> Refusal {
    let by_provider = !matches!(error.code, ErrorCode::ClientLimit | ErrorCode::Overloaded);
    Refusal::of_rung(error, by_provider)
}

/// The error that a client gets for a request or an answer that cannot be translated.
pub(crate) fn of_dialect(error: DialectError) -> ApiError {
    let DialectError { fault, message, field, retry_after } = error;
    let (code, status) = match fault {
        DialectFault::Invalid => (ErrorCode::InvalidRequest, None),
        DialectFault::Unsupported => (ErrorCode::UnsupportedByModel, None),
        DialectFault::UnusableAnswer => (ErrorCode::BackendError, None),
        // An engine's own status is kept where the request is at fault.
        DialectFault::Engine { fault, status } => match fault {
            EngineFault::PromptTooLong => (ErrorCode::ContextLengthExceeded, None),
            EngineFault::InvalidRequest => (ErrorCode::InvalidRequest, Some(status)),
            EngineFault::Unsupported => (ErrorCode::UnsupportedByModel, Some(status)),
            EngineFault::TooLarge => (ErrorCode::RequestTooLarge, Some(status)),
            EngineFault::Busy => (ErrorCode::QueueFull, Some(status)),
            EngineFault::Failed => (ErrorCode::BackendError, None),
        },
        DialectFault::Provider(fault) => {
            let code = match fault {
                ProviderFault::RateLimited => ErrorCode::CloudRateLimited,
                ProviderFault::Overloaded => ErrorCode::CloudOverloaded,
                ProviderFault::PromptTooLong => ErrorCode::ContextLengthExceeded,
                ProviderFault::InvalidRequest => ErrorCode::InvalidRequest,
                ProviderFault::KeyRefused | ProviderFault::Failed => ErrorCode::BackendError,
                ProviderFault::UnknownModel => ErrorCode::ModelNotFound,
                ProviderFault::TooLarge => ErrorCode::RequestTooLarge,
            };
            (code, None)
        }
    };
    ApiError { code, message, param: field, retry_after, status, still_on: None, length: None, said: None }
}

/// The error that a client gets for a request to a cloud provider that has no answer.
pub(crate) fn of_cloud(error: CloudError) -> ApiError {
    let message = error.to_string();
    let about_model = |code, message| ApiError::new(code, message).with_param("model");
    match error {
        CloudError::Dialect(error) => of_dialect(error),
        CloudError::Said(said) => {
            let SaidByProvider { error, status, text } = *said;
            of_dialect(error).with_status(status).said_by_provider(text)
        }
        CloudError::Body(error) => error.into(),
        CloudError::Panicked(error) => error.into(),
        CloudError::UnknownProvider(_) => about_model(ErrorCode::ModelNotFound, message),
        CloudError::ModelName(_) => about_model(ErrorCode::InvalidRequest, message),
        CloudError::Unsupported(_) => about_model(ErrorCode::UnsupportedByModel, message),
        CloudError::Spending(refusal) => match refusal {
            SpendingRefusal::NoPrice { .. } | SpendingRefusal::Spent { .. } | SpendingRefusal::NotKnown { .. } => {
                about_model(ErrorCode::CloudNotAllowed, message)
            }
            SpendingRefusal::Reserved { .. } => ApiError::new(ErrorCode::ClientLimit, message).retry_after(SPEND_AGAIN),
        },
        CloudError::Key(_) | CloudError::Unreachable { .. } | CloudError::Command { .. } | CloudError::NoCount(_) => {
            ApiError::new(ErrorCode::BackendError, message)
        }
    }
}

/// The error that a client gets for a pull that failed.
pub(crate) fn of_hub(error: HubError) -> ApiError {
    let code = match error {
        HubError::Offline { .. } => ErrorCode::HubOffline,
        HubError::Gated { .. } => ErrorCode::HubAccessDenied,
        HubError::NoRepository { .. }
        | HubError::NoRevision { .. }
        | HubError::NoFile { .. }
        | HubError::NoQuantisation { .. }
        | HubError::NoModel { .. } => ErrorCode::ModelNotFound,
        HubError::Several { .. } => ErrorCode::InvalidRequest,
        HubError::DiskFull { .. } => ErrorCode::DiskFull,
        HubError::Cancelled => ErrorCode::PullCancelled,
        HubError::Endpoint(_) | HubError::Disk(..) | HubError::System(_) => ErrorCode::Internal,
        HubError::NoChecksum { .. }
        | HubError::Status { .. }
        | HubError::Unreachable { .. }
        | HubError::Answer { .. }
        | HubError::Broken { .. }
        | HubError::Checksum { .. }
        | HubError::Changed { .. } => ErrorCode::HubUnavailable,
    };
    ApiError::new(code, error.to_string())
}

/// The error that a client gets where a job cannot be kept.
pub(crate) fn of_job_store(error: &JobStoreError) -> ApiError {
    let message = chain(error);
    if error.is_full_disk() {
        return ApiError::new(ErrorCode::DiskFull, message);
    }
    let refused = ApiError::new(ErrorCode::JobStoreUnavailable, message);
    if error.is_lasting() { refused } else { refused.retry_after(JOBS_AGAIN) }
}

/// The error that a client gets where a file of a job cannot be written or read.
pub(crate) fn of_job_disk(error: &io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ApiError::new(ErrorCode::DiskFull, format!("the disk of the state folder takes no more files: {error}"))
        }
        _ => {
            let message = format!("a file of the jobs cannot be used: {error}");
            ApiError::new(ErrorCode::JobStoreUnavailable, message).retry_after(JOBS_AGAIN)
        }
    }
}

/// The error that a client gets for a change of the runtime configuration that was not stored.
pub(crate) fn of_settings(error: SettingsError) -> ApiError {
    let message = error.to_string();
    match error {
        SettingsError::Invalid { key, .. } => ApiError::invalid(key, message),
        SettingsError::OtherVersion { .. } | SettingsError::NotUnderstood(_) => {
            ApiError::new(ErrorCode::PreconditionFailed, message).with_param("If-Match")
        }
        SettingsError::Store(_) => ApiError::new(ErrorCode::LeaseStoreUnavailable, message).retry_after(SETTINGS_AGAIN),
        SettingsError::NotWritten(_) => ApiError::new(ErrorCode::Internal, message),
        SettingsError::Overtaken => ApiError::new(ErrorCode::Internal, message).retry_after(SETTINGS_AGAIN),
    }
}

/// The same error with the client's names of its fields, in place of those of the translated request.
pub(crate) fn in_client_names(names: &Names, mut error: ApiError) -> ApiError {
    names.put_back(error.code, &mut error.message, &mut error.param);
    error
}

/// The `Retry-After` while other requests reserve the rest of a client's limit in dollars.
const SPEND_AGAIN: Duration = Duration::from_secs(2);

/// The `Retry-After` while settings cannot be stored.
const SETTINGS_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use model_boss_cloud::CloudUnsupported;
    use model_boss_dialects::anthropic::cloud_error;
    use model_boss_dialects::engine_error;
    use serde_json::json;

    #[test]
    fn rc_17_errors_of_engines_have_our_codes_and_their_statuses() {
        for (status, body, code, expected) in [
            (400, r#"{"error":{"message":"no"}}"#, "invalid_request", 400),
            (400, r#"{"error":{"message":"no","type":"exceed_context_size_error"}}"#, "context_length_exceeded", 400),
            (500, r#"{"error":{"message":"input is too large to process"}}"#, "context_length_exceeded", 400),
            (422, r#"{"detail":"no"}"#, "invalid_request", 422),
            (501, r#"{"error":{"message":"no"}}"#, "unsupported_by_model", 501),
            (404, r#"{"error":{"message":"no"}}"#, "unsupported_by_model", 404),
            (413, r#"{"error":{"message":"no"}}"#, "request_too_large", 413),
            (429, r#"{"error":{"message":"no"}}"#, "queue_full", 429),
            (401, r#"{"error":{"message":"no"}}"#, "backend_error", 502),
            (500, "<html>", "backend_error", 502),
        ] {
            let error = of_dialect(engine_error(status, body.as_bytes()));
            assert_eq!((error.code.as_str(), error.status()), (code, expected), "{status} {body}");
        }
        let about = br#"{"error":{"message":"no","param":"stop"}}"#;
        assert_eq!(of_dialect(engine_error(400, about)).param.as_deref(), Some("stop"));
    }

    #[test]
    fn rc_27_errors_of_providers_have_our_codes_and_say_when_to_come_back() {
        for (status, kind, message, code, expected, comes_back) in [
            (429, "rate_limit_error", "slow down", "cloud_rate_limited", 429, true),
            (529, "overloaded_error", "busy", "cloud_overloaded", 503, true),
            (401, "authentication_error", "bad key", "backend_error", 502, false),
            (404, "not_found_error", "model: x", "model_not_found", 404, false),
            (400, "invalid_request_error", "prompt is too long: 9 > 8", "context_length_exceeded", 400, false),
            (400, "invalid_request_error", "no", "invalid_request", 400, false),
            (413, "request_too_large", "no", "request_too_large", 413, false),
            (500, "api_error", "oops", "backend_error", 502, false),
        ] {
            let body = json!({ "type": "error", "error": { "type": kind, "message": message } }).to_string();
            let error = of_cloud(cloud_error(status, body.as_bytes(), None).into());
            assert_eq!((error.code.as_str(), error.status()), (code, expected), "{error}");
            assert_eq!(error.retry_after.is_some(), comes_back, "{error}");
        }
        let told = cloud_error(429, b"", Some(Duration::from_secs(3)));
        assert_eq!(of_dialect(told).retry_after, Some(Duration::from_secs(3)));
    }

    #[test]
    fn rc_27_what_no_provider_was_asked_says_why() {
        let (provider, limit) = ("far".to_owned(), 5.0);
        for (error, code, param, message) in [
            (
                CloudError::UnknownProvider(provider.clone()),
                "model_not_found",
                Some("model"),
                "there is no provider 'far'; [providers.NAME] adds one",
            ),
            (CloudError::ModelName("-x".into()), "invalid_request", Some("model"), "'-x' is no name of a model"),
            (
                CloudUnsupported::OnlyChats("/v1/embeddings").into(),
                "unsupported_by_model",
                Some("model"),
                "Claude models answer chats, not /v1/embeddings",
            ),
            (
                SpendingRefusal::Spent { who: "client 'me' has".into(), spent: 5.25, limit }.into(),
                "cloud_not_allowed",
                Some("model"),
                "client 'me' has spent $5.25 of $5 today (UTC)",
            ),
            (
                SpendingRefusal::Reserved { who: "client 'me' has".into(), spent: 1.0, limit }.into(),
                "client_limit",
                None,
                "client 'me' has spent $1.00 of $5 today (UTC), and requests under way may use the rest; ask again when they \
                 have ended",
            ),
            (
                CloudError::NoCount(provider),
                "backend_error",
                None,
                "provider 'far' did not say how many tokens there are",
            ),
        ] {
            let error = of_cloud(error);
            assert_eq!((error.code.as_str(), error.param.as_deref(), error.message.as_str()), (code, param, message));
        }
    }

    #[test]
    fn tr_4_a_change_that_is_not_stored_says_why() {
        let invalid = SettingsError::Invalid { key: "maxQueue".into(), message: "'maxQueue' is 0".into() };
        for (error, code, param, comes_back) in [
            (invalid, "invalid_request", Some("maxQueue"), false),
            (SettingsError::OtherVersion { version: 2, expected: 1 }, "precondition_failed", Some("If-Match"), false),
            (SettingsError::NotUnderstood("x".into()), "precondition_failed", Some("If-Match"), false),
            (SettingsError::Overtaken, "internal_error", None, true),
        ] {
            let error = of_settings(error);
            assert_eq!((error.code.as_str(), error.param.as_deref()), (code, param), "{error}");
            assert_eq!(error.retry_after.is_some(), comes_back, "{error}");
        }
    }

    #[test]
    fn the_error_of_a_rung_comes_back_as_it_was() {
        for (code, by_provider) in [(ErrorCode::CloudOverloaded, true), (ErrorCode::ClientLimit, false)] {
            let error = ApiError::invalid("stop", "too many").with_status(418).retry_after(Duration::from_secs(3));
            let error = ApiError { code, ..error };
            let refusal = of_rung(error.clone());
            assert!(matches!(refusal.reason, RefusalReason::RungFailed { by_provider: by, .. } if by == by_provider));
            assert_eq!(api_error(refusal), error);
        }
    }
}
