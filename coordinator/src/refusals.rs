//! Refusals of the scheduler and of the rules about names, as clients see them. This is the one place that gives each
//! reason its code, its status and its field.

use model_boss_core::{Refusal, RefusalReason, Subject};
use model_boss_dialects::responses::ResponsesRefusal;
use model_boss_protocol::{ApiError, ErrorCode};
use model_boss_tasks::Denial;

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
    ApiError { code, message, param, retry_after, status, still_on }
}

/// The error that a client gets for a name that it may not use.
pub(crate) fn denied(denial: Denial) -> ApiError {
    let code = match denial {
        Denial::UnknownTask { .. } => ErrorCode::ModelNotFound,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
