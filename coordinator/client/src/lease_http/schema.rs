//! JSON schemas of what the ledger's types and texts look like in bodies.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The owner of a lease, as the ledger writes it.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(super) struct LeaseOwner {
    /// The pid.
    pid: u32,
    /// The start time, in clock ticks since boot.
    start_time: u64,
    /// The pid namespace.
    pid_ns: String,
    /// The purpose, human-readable.
    label: String,
    /// The kind of program.
    kind: String,
    /// The user of the request on this host, if known.
    #[schemars(skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
}

/// A duration: seconds, or a text with its unit.
pub(super) struct LeaseSpan;

/// The token of a lease.
pub(super) struct LeaseToken;

/// A pid namespace: its number, or the text that the kernel writes.
pub(super) struct WrittenNamespace;

impl JsonSchema for LeaseSpan {
    fn schema_name() -> Cow<'static, str> {
        "LeaseSpan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Seconds, or a text with a unit.",
            "anyOf": [
                { "type": "number", "minimum": 0 },
                { "type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$", "examples": ["60s", "10m", "1500ms"] },
            ],
        })
    }
}

impl JsonSchema for LeaseToken {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LeaseToken".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The token of a lease.",
            "anyOf": [{ "type": "string", "pattern": "^[0-9a-fA-F]{32}$" }, { "type": "integer", "minimum": 0 }],
        })
    }
}

impl JsonSchema for WrittenNamespace {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "WrittenNamespace".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": r"^(pid:\[[0-9]+\]|[0-9]+)$" },
            ],
        })
    }
}
