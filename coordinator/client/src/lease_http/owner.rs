//! Owners of leases, by their processes.

use model_boss_lease_store::{Owner, OwnerKind, Process};
use model_boss_protocol::Label;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::WrittenNamespace;

/// The process that holds a lease, that is, renews and releases it. It is identified by more than its pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnerBody {
    /// The pid.
    pub pid: u32,
    /// The start time, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
    /// The pid namespace in which `pid` is valid: the number in `/proc/PID/ns/pid`, or that whole text.
    pub pid_ns: PidNamespace,
    /// A human-readable name. Printable, at most [`Label::LIMIT`] bytes.
    #[schemars(length(min = 1, max = 128))]
    pub label: String,
}

/// A process that has passed the gate, as its holder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessBody {
    /// The pid.
    pub pid: u32,
    /// The start time, in clock ticks since boot.
    pub start_time: u64,
    /// The pid namespace in which `pid` is valid.
    pub pid_ns: PidNamespace,
}

/// A pid namespace as the kernel writes it, `pid:[4026531836]`. The number alone is accepted too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PidNamespace(
    #[serde(deserialize_with = "namespace")]
    #[schemars(with = "WrittenNamespace")]
    pub String,
);

impl OwnerBody {
    /// The body for a process of this host.
    pub fn of(process: &Process, label: impl Into<Label>) -> Self {
        let Process { pid, start_time, pid_ns } = process.clone();
        Self { pid, start_time, pid_ns: PidNamespace(pid_ns), label: label.into().to_string() }
    }

    /// The owner in the ledger's type.
    pub fn owner(&self) -> Owner {
        let Self { pid, start_time, pid_ns, label } = self.clone();
        Owner::new(Process { pid, start_time, pid_ns: pid_ns.0 }, label, OwnerKind::Job)
    }
}

impl From<Process> for ProcessBody {
    fn from(Process { pid, start_time, pid_ns }: Process) -> Self {
        Self { pid, start_time, pid_ns: PidNamespace(pid_ns) }
    }
}

impl From<ProcessBody> for Process {
    fn from(ProcessBody { pid, start_time, pid_ns }: ProcessBody) -> Self {
        Self { pid, start_time, pid_ns: pid_ns.0 }
    }
}

pub(super) fn namespace<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "the number of a pid namespace, such as 4026531836")]
    enum WrittenOwner {
        Number(u64),
        Text(String),
    }
    let number = match WrittenOwner::deserialize(deserializer)? {
        WrittenOwner::Number(number) => number,
        WrittenOwner::Text(text) => {
            let inner = text.strip_prefix("pid:[").and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
            let bad = || format!("'{text}' is no pid namespace: write the number that /proc/self/ns/pid shows");
            inner.parse().map_err(|_| serde::de::Error::custom(bad()))?
        }
    };
    Ok(format!("pid:[{number}]"))
}
