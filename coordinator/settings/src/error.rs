//! Reasons why a change of the runtime configuration is not stored.

use model_boss_lease_store::StoreError;
use model_boss_protocol::chain;

/// Why values were not stored.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Keys are unknown, or their values are invalid.
    #[error("{message}")]
    Invalid {
        /// The first such key.
        key: String,
        /// Every such key, with the fault of its value.
        message: String,
    },
    /// Another client has changed the values since they were read.
    #[error("the configuration is at version {version}, not {expected}; read it again and decide anew")]
    OtherVersion {
        /// The version of the stored values.
        version: u64,
        /// The version that the change was made for.
        expected: u64,
    },
    /// The stored document is of another program or a later version.
    #[error(
        "the stored runtime configuration is none that this version understands, so it is left as it is: {0}. 'If-Match: \
         *' (`model-boss config set --replace`) replaces it by the last known values and this change"
    )]
    NotUnderstood(String),
    /// The store cannot be read or written.
    #[error("the store of the runtime configuration cannot be used: {}", chain(.0))]
    Store(StoreError),
    /// The values cannot be written as JSON.
    #[error("the values cannot be written: {0}")]
    NotWritten(serde_json::Error),
    /// Other writers were faster at every try.
    #[error("others change the configuration all the time; try again")]
    Overtaken,
}
