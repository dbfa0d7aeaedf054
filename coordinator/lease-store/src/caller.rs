//! Which processes a caller may name in a lease: its own, and none whose end would never come. A lease lives as long as
//! the processes it names, so naming a stranger's process would hold memory for as long as the stranger lives.

/// Who asks on behalf of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A user of this host, by the kernel's word. Root may name any user's processes.
    User(u32),
    /// Somebody on another host or in another network namespace, known by an API key alone.
    Remote,
    /// Somebody on this host whose user the kernel does not tell.
    Unknown,
}
