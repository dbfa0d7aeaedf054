//! Owners of leases, by their processes.

use model_boss_lease_store::{Owner, OwnerKind, Process};
use model_boss_protocol::Label;
use serde::{Deserialize, Serialize};

/// Who holds a lease: the process that renews and releases it, known by more than its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerBody {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
    /// The pid namespace in which `pid` has a meaning: the number in `/proc/PID/ns/pid`, or that whole text.
    pub pid_ns: PidNamespace,
    /// For people: what it is. Printable, at most [`Label::LIMIT`] bytes.
    pub label: String,
}

/// A process behind the gate, as its holder remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessBody {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
    /// Where `pid` has a meaning.
    pub pid_ns: PidNamespace,
}

/// A pid namespace as the kernel writes it, `pid:[4026531836]`. The number alone is read too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PidNamespace(#[serde(deserialize_with = "namespace")] pub String);

impl OwnerBody {
    /// This process, for the ledger.
    pub fn of(process: &Process, label: impl Into<Label>) -> Self {
        let Process { pid, start_time, pid_ns } = process.clone();
        Self { pid, start_time, pid_ns: PidNamespace(pid_ns), label: label.into().to_string() }
    }

    /// The same in the ledger's words.
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
    enum Form {
        Number(u64),
        Text(String),
    }
    let number = match Form::deserialize(deserializer)? {
        Form::Number(number) => number,
        Form::Text(text) => {
            let inner = text.strip_prefix("pid:[").and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
            let bad = || format!("'{text}' is no pid namespace: write the number that /proc/self/ns/pid shows");
            inner.parse().map_err(|_| serde::de::Error::custom(bad()))?
        }
    };
    Ok(format!("pid:[{number}]"))
}
