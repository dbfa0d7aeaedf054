//! Errors that many routes share.

use model_boss_protocol::ErrorCode;

/// Errors of requests that a model answers, here or at a provider.
pub(super) const OF_INFERENCE: &[ErrorCode] = &[
    ErrorCode::ContextLengthExceeded,
    ErrorCode::TemplateFailed,
    ErrorCode::UnsupportedByModel,
    ErrorCode::InvalidDevice,
    ErrorCode::CloudNotAllowed,
    ErrorCode::ModelNotFound,
    ErrorCode::ModelNotDownloaded,
    ErrorCode::ModelPulling,
    ErrorCode::DeviceNotAvailable,
    ErrorCode::SlotsPinned,
    ErrorCode::QueueFull,
    ErrorCode::ClientLimit,
    ErrorCode::CloudRateLimited,
    ErrorCode::ModelLoadFailed,
    ErrorCode::BackendError,
    ErrorCode::WorkerCrashed,
    ErrorCode::NoCapacity,
    ErrorCode::CloudOverloaded,
    ErrorCode::Draining,
    ErrorCode::ColdStartExceedsBudget,
    ErrorCode::LeaseStoreRecovering,
    ErrorCode::LeaseStoreUnavailable,
    ErrorCode::ModelBackingOff,
    ErrorCode::DeadlineExceeded,
    ErrorCode::RequestCancelled,
    ErrorCode::ModelNeverFits,
];

/// Errors of orders about models and devices.
pub(super) const OF_ORDERS: &[ErrorCode] = &[
    ErrorCode::UnsupportedByModel,
    ErrorCode::InvalidDevice,
    ErrorCode::CloudNotAllowed,
    ErrorCode::ModelNotFound,
    ErrorCode::ModelNotDownloaded,
    ErrorCode::ModelPulling,
    ErrorCode::ModelNotLoaded,
    ErrorCode::DeviceNotAvailable,
    ErrorCode::SlotsPinned,
    ErrorCode::MigrationFailed,
    ErrorCode::QueueFull,
    ErrorCode::ClientLimit,
    ErrorCode::ModelLoadFailed,
    ErrorCode::WorkerCrashed,
    ErrorCode::NoCapacity,
    ErrorCode::Draining,
    ErrorCode::LeaseStoreRecovering,
    ErrorCode::LeaseStoreUnavailable,
    ErrorCode::ModelBackingOff,
    ErrorCode::DeadlineExceeded,
    ErrorCode::RequestCancelled,
    ErrorCode::ModelNeverFits,
];

/// Errors of an unreachable lease store.
pub(super) const OF_THE_STORE: &[ErrorCode] =
    &[ErrorCode::LeaseStoreRecovering, ErrorCode::LeaseStoreUnavailable, ErrorCode::Draining];

/// Errors of orders about leases.
pub(super) const OF_LEASES: &[ErrorCode] = &[
    ErrorCode::NotOnThisHost,
    ErrorCode::NotYourProcess,
    ErrorCode::LeaseNotFound,
    ErrorCode::LeaseLost,
    ErrorCode::LeaseNoRoom,
    ErrorCode::LeaseInUse,
    ErrorCode::DeviceNotAvailable,
    ErrorCode::ClientLimit,
    ErrorCode::LeaseStoreRecovering,
    ErrorCode::LeaseStoreUnavailable,
    ErrorCode::Draining,
    ErrorCode::LeaseNeverFits,
];
