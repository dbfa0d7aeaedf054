//! Names of jobs, files and batches. They grow with time, so that the order of names is the order of creation, and
//! nobody can guess one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::time::WallTime;

/// The name of a job, such as `job-0193ab…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(String);

impl JobId {
    /// A new name. The error says that the system gives no random numbers.
    pub fn draw(now: WallTime) -> Result<Self, getrandom::Error> {
        drawn_name("job-", now).map(Self)
    }

    /// The name in this text, whether or not there is such a job.
    pub fn named(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name with this prefix: the time in twelve hexadecimal digits, and 80 random bits.
pub fn drawn_name(prefix: &str, now: WallTime) -> Result<String, getrandom::Error> {
    let mut bits = [0; 10];
    getrandom::fill(&mut bits)?;
    let random: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{prefix}{:012x}{random}", now.0 & 0xffff_ffff_ffff))
}
