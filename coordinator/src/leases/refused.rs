//! Refusals of guests' calls, each as an error of the API.

use std::time::Duration;

use model_boss_lease_store::{NotNamed, OpRefusal, StoreError};
use model_boss_protocol::{ApiError, ErrorCode, chain};

/// Why a guest's call was refused.
pub(super) struct GuestRefusal(pub(super) ApiError);

impl GuestRefusal {
    /// Attributes the error to a field of the body, if it is the caller's fault and names no field yet.
    pub(super) fn about(self, param: &str) -> Self {
        let Self(error) = self;
        let blames = matches!(error.code, ErrorCode::NotOnThisHost | ErrorCode::NotYourProcess);
        Self(if blames { error.with_param(param) } else { error })
    }
}

impl From<StoreError> for GuestRefusal {
    fn from(error: StoreError) -> Self {
        let text = chain(&error);
        let refused = |code| ApiError::new(code, text.clone());
        Self(match error {
            StoreError::Recovering(left) => refused(ErrorCode::LeaseStoreRecovering).retry_after(left),
            error if error.is_outage() => refused(ErrorCode::LeaseStoreUnavailable).retry_after(STORE_AGAIN),
            StoreError::Lost(_) => refused(ErrorCode::LeaseLost),
            StoreError::Undeclared(_) | StoreError::Refused(OpRefusal::UnknownDevice(_)) => {
                let message = format!("{text}; GET /api/v1/devices lists those that can be leased");
                ApiError::new(ErrorCode::DeviceNotAvailable, message).with_param("device")
            }
            StoreError::NoSuchProcess(_) | StoreError::NotNamed(NotNamed::NotSeen(_)) => {
                refused(ErrorCode::NotOnThisHost)
            }
            StoreError::NotNamed(_) => refused(ErrorCode::NotYourProcess),
            StoreError::HeldAlready(_) | StoreError::Refused(OpRefusal::AlreadyEnded(_) | OpRefusal::NotYours(_)) => {
                ApiError::invalid("request_id", text)
            }
            StoreError::Refused(OpRefusal::TooMany { .. }) => refused(ErrorCode::ClientLimit).retry_after(CROWD_AGAIN),
            StoreError::Refused(OpRefusal::BadParts) => ApiError::invalid("parts", text),
            _ => refused(ErrorCode::Internal),
        })
    }
}

/// The `Retry-After` while the store is out of reach.
const STORE_AGAIN: Duration = Duration::from_secs(5);

/// The `Retry-After` of a caller that has too many leases and must release one first.
const CROWD_AGAIN: Duration = Duration::from_secs(10);
