//! Claims of devices: a process records for its host which ledger counts a device, so that two ledgers never promise
//! the same memory.
//!
//! A claim is a file that its process has locked before another process could open it, with that process's number and
//! start time. It counts while the lock is held and that process of the file's owner is alive. No other user can
//! therefore make a dead claim look alive, take the name of a claim, or keep its owner from making another.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use model_boss_lease::{DeviceKey, Process};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::node::may_use;
use crate::place::{FoundFile, HostFolders, Published};
use crate::{StoreError, host};

/// The number of tries. Two claims that begin at the same moment both withdraw, and try again after different pauses.
const TRIES: u32 = 6;
const PAUSE: Duration = Duration::from_millis(10);
/// The most bytes shown of another user's text.
const LONGEST_SHOWN: usize = 256;

/// The scope of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClaimScope {
    /// Only this process uses the ledger; the text identifies it.
    Alone(String),
    /// All processes that use this ledger.
    Shared(String),
}

/// The content of a claim's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ClaimRecord {
    process: Process,
    claim: ClaimScope,
}

/// A claimed device. The claim ends with this value, or with the process.
#[derive(Debug)]
pub(crate) struct DeviceClaim {
    device: DeviceKey,
    prefix: String,
    record: ClaimRecord,
    files: Vec<Published>,
}

impl DeviceClaim {
    /// Claims a device for this host's ledger. `name` is for messages.
    pub(crate) fn take(
        place: &HostFolders,
        device: &DeviceKey,
        name: &str,
        claim: &ClaimScope,
    ) -> Result<Self, StoreError> {
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let key: String = device.as_str().chars().map(safe).collect();
        let prefix = format!("model-boss-device-{key}.");
        let record = ClaimRecord { process: host::this_process()?, claim: claim.clone() };
        let mut tries = 1;
        loop {
            // Every process publishes its claim before it searches for others, so at least one of two finds the other.
            let files = publish(place, &prefix, &record)?;
            let own = Self { device: device.clone(), prefix: prefix.clone(), record: record.clone(), files };
            let Some(holder) = own.rival(place) else { return Ok(own) };
            drop(own);
            if tries == TRIES {
                let what = format!("device {name}");
                let advice = "stop it, or use the same ledger: two would promise the same memory twice";
                return Err(StoreError::InUse { what, holder, advice });
            }
            std::thread::park_timeout(host::jittered(PAUSE * tries));
            tries += 1;
        }
    }

    /// Publishes the claim again if it was removed: the end of a session may remove its user's files.
    pub(crate) fn keep(&mut self, place: &HostFolders) -> Result<(), StoreError> {
        if self.files.iter().all(Published::is_in_place) {
            return Ok(());
        }
        self.files = publish(place, &self.prefix, &self.record)?;
        Ok(())
    }

    /// A living claim in conflict with this one, in words.
    fn rival(&self, place: &HostFolders) -> Option<String> {
        place.find(&self.prefix).into_iter().find_map(|found| {
            if self.files.iter().any(|own| own.id == found.id) {
                return None;
            }
            let record = serde_json::from_str(&found.text).ok().filter(|record| is_alive(&found, record));
            let record = record.filter(|_| may_use(&self.device, found.uid));
            match record {
                Some(record) => self.record.claim.conflicts(&record.claim).then(|| record.describe(found.uid)),
                None => {
                    if found.uid == geteuid().as_raw() && is_unlocked(&found.file) {
                        // A killed process of this user left the file.
                        let _ = std::fs::remove_file(&found.path);
                    }
                    None
                }
            }
        })
    }
}

impl Drop for DeviceClaim {
    fn drop(&mut self) {
        self.files.iter().for_each(Published::remove);
    }
}

impl ClaimScope {
    fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(one), Self::Shared(two)) => one != two,
            _ => true,
        }
    }
}

impl ClaimRecord {
    fn describe(&self, uid: u32) -> String {
        let pid = self.process.pid;
        let whose = if uid == geteuid().as_raw() { String::new() } else { format!(" of user {uid}") };
        let text = match &self.claim {
            ClaimScope::Alone(what) => format!("process {pid}{whose} ({what})"),
            ClaimScope::Shared(ledger) => format!("the {ledger} (process {pid}{whose})"),
        };
        text.chars().filter(|c| !c.is_control()).take(LONGEST_SHOWN).collect()
    }
}

fn publish(place: &HostFolders, prefix: &str, record: &ClaimRecord) -> Result<Vec<Published>, StoreError> {
    let text = serde_json::to_vec(record).map_err(StoreError::Encode)?;
    place.publish(prefix, |mut file: &File| {
        file.try_lock().map_err(io::Error::from)?;
        file.write_all(&text)
    })
}

/// Whether no process holds the lock.
fn is_unlocked(file: &File) -> bool {
    file.try_lock_shared().is_ok_and(|()| file.unlock().is_ok())
}

/// Whether a claim belongs to a living process of the file's owner. A lock alone proves nothing, since any process
/// may lock the file of a dead one.
fn is_alive(found: &FoundFile, record: &ClaimRecord) -> bool {
    !is_unlocked(&found.file) && host::may_be(&record.process, found.uid)
}
