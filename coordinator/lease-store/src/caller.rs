//! Processes that a caller may name in a lease: its own, and none that never ends. A lease lasts as long as the
//! processes that it names. Another user's process would therefore hold memory for as long as that user wants.

/// The identity of a caller that makes a request for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A user of this host, as the kernel reports it. Root may name any user's processes.
    User(u32),
    /// A caller on another host or in another network namespace, identified only by an API key.
    Remote,
    /// A caller on this host whose user the kernel does not report.
    Unknown,
}
