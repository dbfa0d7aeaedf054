//! Webhooks: where they may go, how they are signed, and when a failed one is sent again.

mod address;
mod signature;
mod state;
mod target;

pub use address::is_public;
pub use signature::{WebhookSecret, webhook_signature};
pub use state::{DeliveryState, WebhookState, delivery_pause};
pub use target::{HookPlace, HookTarget, HookUrlError, WebhookRules};
