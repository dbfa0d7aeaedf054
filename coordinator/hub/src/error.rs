//! Why a model of a hub is not there. Messages contain no token, and no address with one: addresses of content
//! networks are signed.

use std::io;
use std::path::PathBuf;

use model_boss_protocol::{ByteCount, HubRepo};

/// Whether a request had a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUse {
    /// A token was sent.
    Sent,
    /// There is no token.
    Absent,
}

impl TokenUse {
    /// Words for an error about access.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Sent => {
                "the token of HF_TOKEN (or `hf auth login`) has no access: ask for it with that token's account"
            }
            Self::Absent => "set HF_TOKEN to a token of an account with access (or log in by `hf auth login`)",
        }
    }
}

/// Why a model of a hub is not there.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The settings forbid connections.
    #[error(
        "{what} is not in the cache ({folder}), and HF_HUB_OFFLINE allows no connection; unset it, or copy the files there"
    )]
    Offline {
        /// The model.
        what: String,
        /// The cache.
        folder: PathBuf,
    },
    /// The address of the hub is no address.
    #[error("HF_ENDPOINT = \"{0}\" is no address of a hub; write https://HOST")]
    Endpoint(String),
    /// The repository is gated.
    #[error("{repo} is gated: ask for access at {page}, then {}", .token.remedy())]
    Gated {
        /// The repository.
        repo: HubRepo,
        /// The page on which access is requested.
        page: String,
        /// Whether a token was sent.
        token: TokenUse,
    },
    /// The repository does not exist, or is private.
    #[error("{endpoint} has no repository {repo}, or it is private; check the name, and for a private one {}", .token.remedy())]
    NoRepository {
        /// The repository.
        repo: HubRepo,
        /// The hub.
        endpoint: String,
        /// Whether a token was sent.
        token: TokenUse,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo} has no branch, tag or commit '{revision}'")]
    NoRevision {
        /// The repository.
        repo: HubRepo,
        /// The revision.
        revision: String,
    },
    /// The repository has no such file.
    #[error("{repo} has no file '{file}'; it has {there}")]
    NoFile {
        /// The repository.
        repo: HubRepo,
        /// The file.
        file: String,
        /// The files that would do.
        there: String,
    },
    /// The repository has no GGUF file of this quantisation.
    #[error("{repo} has no GGUF file of the quantisation '{wanted}'; it has {there}")]
    NoQuantisation {
        /// The repository.
        repo: HubRepo,
        /// The quantisation.
        wanted: String,
        /// The files that would do.
        there: String,
    },
    /// Several files would do.
    #[error("{repo} has several models: {there}; name one as hf://{repo}/FILE")]
    Several {
        /// The repository.
        repo: HubRepo,
        /// The files.
        there: String,
    },
    /// The repository has no weights that can be loaded.
    #[error("{repo} has no model that can be loaded: there is no .gguf, and {lacks}")]
    NoModel {
        /// The repository.
        repo: HubRepo,
        /// The missing files.
        lacks: String,
    },
    /// The hub gives no checksum for a file.
    #[error("{endpoint} tells no checksum of {file}, so it cannot be checked, and it is not used")]
    NoChecksum {
        /// The hub.
        endpoint: String,
        /// The file.
        file: String,
    },
    /// The hub refused, or failed.
    #[error("{host} answered {status} about {what}{message}")]
    Status {
        /// The host.
        host: String,
        /// The HTTP status.
        status: u16,
        /// The subject of the request.
        what: String,
        /// The server's words, after a colon.
        message: String,
    },
    /// No connection came about.
    #[error("{host} cannot be reached: {why}")]
    Unreachable {
        /// The host.
        host: String,
        /// The reason.
        why: String,
    },
    /// The answer cannot be understood.
    #[error("the answer of {host} about {what} cannot be understood: {why}")]
    Answer {
        /// The host.
        host: String,
        /// The subject of the request.
        what: String,
        /// The reason.
        why: String,
    },
    /// The connection broke again and again.
    #[error(
        "{file}: the connection broke {tries} times in a row ({why}); what came is kept, and the next pull goes on there"
    )]
    Broken {
        /// The file.
        file: String,
        /// The number of attempts without a byte.
        tries: u32,
        /// The last reason.
        why: String,
    },
    /// The file is not the one that the hub lists.
    #[error("{file} came with the checksum {found} in place of {expected}, twice; it is not used")]
    Checksum {
        /// The file.
        file: String,
        /// The listed checksum.
        expected: String,
        /// The computed checksum.
        found: String,
    },
    /// The repository changed while it was read.
    #[error("{file} of {repo} changes while it is downloaded; try again later")]
    Changed {
        /// The repository.
        repo: HubRepo,
        /// The file.
        file: String,
    },
    /// The disk has too little space.
    #[error("{needed} are needed in {folder}, and {free} are free; make room, or let HF_HOME name another disk")]
    DiskFull {
        /// The cache.
        folder: PathBuf,
        /// The bytes that are still to come.
        needed: ByteCount,
        /// The free bytes.
        free: ByteCount,
    },
    /// A file or folder cannot be read or written.
    #[error("{0}: {1}")]
    Disk(PathBuf, io::Error),
    /// The system failed.
    #[error("the download cannot start: {0}")]
    System(io::Error),
    /// The pull was cancelled.
    #[error("the pull was cancelled; what came is kept, and the next pull goes on there")]
    Cancelled,
}
