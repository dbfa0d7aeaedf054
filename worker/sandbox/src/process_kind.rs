//! The kinds of processes that confine themselves.

/// The kinds of processes, each with its own list of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessKind {
    /// A worker: threads, files, and the connections that its listening socket accepts. It starts no process.
    Worker,
    /// A process that loads a chat template and a tokenizer, and forks others of its kind.
    TextHost,
    /// A program of others, whose calls are not known: some are forbidden.
    Program,
}
