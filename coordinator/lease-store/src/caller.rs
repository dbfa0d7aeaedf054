//! Processes that a caller may name in a lease: its own, and none that never ends. A lease lives as long as the
//! processes it names. So another user's process would hold memory for as long as that user wants.

/// The identity of a caller that asks on behalf of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A user of this host, as the kernel reports it. Root may name any user's processes.
    User(u32),
    /// A caller on another host or in another network namespace, known by an API key alone.
    Remote,
    /// A caller on this host whose user the kernel does not report.
    Unknown,
}
