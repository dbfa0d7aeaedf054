//! API keys: what each key permits, whose requests carry it, and the file in which keys lie as digests (OP-5).
//!
//! A key is a client: requests with it count as those of the client that it names, and no field of a request changes
//! that. HTTP and the rules of tasks are not part of this crate.

mod file;
mod record;
mod scope;
mod secret;
mod set;

pub use file::{KeyFile, KeyFileError};
pub use record::{KeyLimits, KeyRecord, KeyRecordError};
pub use scope::{KeyScope, UnknownScope};
pub use secret::{KeyDigest, KeySecret, draw_key};
pub use set::{KeyHolder, KeySet};
