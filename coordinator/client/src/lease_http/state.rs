//! States are small letters in the API and capitals in the ledger.

use model_boss_lease_store::LeaseState;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(state: &LeaseState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match state {
        LeaseState::Pending => "pending",
        LeaseState::Active => "active",
        LeaseState::Revoking => "revoking",
        LeaseState::Limbo => "limbo",
        LeaseState::Other(other) => other,
    })
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LeaseState, D::Error> {
    Ok(match String::deserialize(deserializer)?.to_ascii_lowercase().as_str() {
        "pending" => LeaseState::Pending,
        "active" => LeaseState::Active,
        "revoking" => LeaseState::Revoking,
        "limbo" => LeaseState::Limbo,
        other => LeaseState::Other(other.to_owned()),
    })
}
