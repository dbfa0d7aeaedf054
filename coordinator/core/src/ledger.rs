//! What the scheduler knows of the lease ledger, which it shares with others (LE-3): whether memory can be leased at all,
//! what others hold, and who waits for memory.

use std::time::Duration;

use serde::Serialize;

/// Whether memory can be leased now.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LedgerState {
    /// It can.
    #[default]
    Open,
    /// The store may have lost records: nothing is granted until every holder had the time to state its own.
    Recovering {
        /// How long that takes at most.
        #[serde(rename = "left_ms", serialize_with = "crate::reason::as_millis")]
        left: Duration,
    },
    /// The store cannot be reached or used. What is loaded serves on; nothing is loaded and nobody is sent away for
    /// memory.
    Away {
        /// Why, for people.
        detail: String,
    },
}
