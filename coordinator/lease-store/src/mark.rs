//! Marks: records of this boot's ledgers outside of any store. A mark shows that leases were granted, and which
//! states of a ledger are the latest. So a lost or replaced ledger is not taken for a first start, whichever folder
//! or user it is opened from.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use model_boss_lease::{Ledger, Process, Token};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::place::{FoundFile, HostFolders, Published};
use crate::store::Etag;
use crate::tree::ProcessTree;
use crate::{StoreError, host};

/// The fixed size of a mark in bytes, so that overwriting it needs no further disk space.
const SIZE: usize = 8 << 10;
/// The largest number of holders that a mark can name.
const MOST_HOLDERS: usize = 64;

/// The content of a mark, about one ledger.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MarkContent {
    /// The ledger's name.
    ledger: String,
    /// The ledger's file, if it has one.
    file: Option<PathBuf>,
    /// The possible states of a ledger that one process alone writes.
    states: Vec<String>,
    /// The holders of leases in these states. The list is absent where many processes write the ledger, or where it
    /// would be too long.
    holders: Option<Vec<Process>>,
    /// The largest token in these states.
    fence: Token,
    /// The time of the mark, in microseconds since the boot.
    at: u64,
}

/// The marks of one boot as found, and this process's own.
#[derive(Debug)]
pub(crate) struct Mark {
    place: HostFolders,
    prefix: String,
    own: MarkContent,
    files: Vec<Published>,
    /// Whether a ledger of this boot had leases whose holders may be alive, by the mark of any process.
    leased: bool,
    /// Holders of earlier ledgers that may be alive. Their leases are not in the new ledger until the recovery window
    /// closes.
    living: BTreeSet<Process>,
    /// The marks that earlier processes of this user wrote.
    earlier: Vec<MarkContent>,
    /// Whether a mark of this ledger exists already.
    marked: bool,
    fence: Token,
    /// The reason why the last mark could not be written.
    pub(crate) trouble: Option<String>,
}

impl Mark {
    /// Reads the marks of this boot. `ledger` is the one being opened, in `file` if it is in one.
    pub(crate) fn open(place: &HostFolders, boot_id: &str, ledger: String, file: Option<&Path>) -> Self {
        let prefix = format!("model-boss-ledger-{boot_id}.");
        let tree = host::pid_namespace().map(ProcessTree::of_this_host);
        let may_live = |holder: &Process| tree.as_ref().map_or(true, |tree| !tree.is_gone(holder));
        let (mut leased, mut marked, mut fence, mut earlier) = (false, false, Token(0), Vec::new());
        let mut living = BTreeSet::new();
        for found in place.find(&prefix) {
            let Ok(mut content) = serde_json::from_str::<MarkContent>(&found.text) else { continue };
            let own = found.uid == geteuid().as_raw();
            if let Some(holders) = &mut content.holders {
                holders.retain(may_live);
                living.extend(holders.iter().cloned());
            }
            if own && content.is_over() {
                remove(&found);
                continue;
            }
            // Processes that share a ledger have claimed their devices, so no ledger of one process alone can exist
            // beside it.
            leased |= content.is_leased() && (file.is_none() || !content.states.is_empty());
            marked |= content.ledger == ledger;
            if own {
                fence = fence.max(content.fence);
                earlier.push(content);
            }
        }
        let file = file.map(Path::to_owned);
        let own = MarkContent { ledger, file, states: Vec::new(), holders: None, fence, at: 0 };
        let (place, files, trouble) = (place.clone(), Vec::new(), None);
        Self { place, prefix, own, files, leased, living, earlier, marked, fence, trouble }
    }

    /// Whether leases were granted in this boot: then a missing ledger was lost.
    pub(crate) fn is_leased(&self) -> bool {
        self.leased
    }

    /// Whether a ledger that one process alone writes is in an older state than before, or is not the one written
    /// last.
    pub(crate) fn is_ahead_of(&self, etag: Etag) -> bool {
        let named = |content: &MarkContent| content.states.contains(&etag.to_string());
        if !self.own.states.is_empty() {
            // This process has written to the ledger, so it has seen every state.
            return self.own.is_leased() && !named(&self.own);
        }
        let known_at = self.earlier.iter().filter(|mark| named(mark)).map(|mark| mark.at).max();
        self.earlier.iter().any(|mark| {
            mark.is_leased() && !mark.states.is_empty() && !named(mark) && known_at.is_none_or(|known| mark.at > known)
        })
    }

    /// The largest token in the marks of this user.
    pub(crate) fn fence(&self) -> Token {
        self.fence
    }

    /// Records the ledger's present state and its next one. The call comes before each swap of the ledger.
    pub(crate) fn write(&mut self, loaded: Etag, before: Option<&Ledger>, next: Etag, after: &Ledger) {
        let ledgers = before.into_iter().chain([after]);
        let leases = ledgers.flat_map(|ledger| ledger.leases.values());
        let mut holders: BTreeSet<&Process> =
            leases.flat_map(|lease| lease.pids.iter().chain([&lease.owner.process])).collect();
        if after.recovering().is_some() {
            holders.extend(&self.living);
        }
        let named = holders.len() <= MOST_HOLDERS;
        self.own.holders = named.then(|| holders.into_iter().cloned().collect());
        self.own.states = [loaded, next].iter().filter(|etag| **etag != Etag(0)).map(ToString::to_string).collect();
        self.own.fence = self.own.fence.max(after.fence);
        self.put();
    }

    /// Records once that a ledger exists which many processes write.
    pub(crate) fn begun(&mut self) {
        if !self.marked {
            self.put();
        }
    }

    fn put(&mut self) {
        self.own.at = host::time_since_boot().map_or(0, |now| now.0);
        let written =
            serde_json::to_string(&self.own).map_err(StoreError::Encode).and_then(|text| self.put_text(&text));
        self.trouble = written.err().map(|error| {
            let why = model_boss_protocol::chain(&error);
            format!("the mark that leases were granted cannot be written ({why}): a lost ledger might not be noticed")
        });
    }

    fn put_text(&mut self, text: &str) -> Result<(), StoreError> {
        let text = format!("{text:SIZE$}");
        if self.files.is_empty() || !self.files.iter().all(Published::is_in_place) {
            let files = self.place.publish(&self.prefix, |file| file.write_all_at(text.as_bytes(), 0))?;
            self.forget_earlier(&files);
            self.files = files;
            return Ok(());
        }
        for Published { path, file, .. } in &self.files {
            let failed = |source| StoreError::Io { act: "write", path: path.clone(), source };
            file.write_all_at(text.as_bytes(), 0).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes this user's earlier marks of this ledger, since one mark is enough.
    fn forget_earlier(&self, new: &[Published]) {
        for found in self.place.find(&self.prefix) {
            let same = |content: MarkContent| content.ledger == self.own.ledger;
            let own = found.uid == geteuid().as_raw() && !new.iter().any(|new| new.id == found.id);
            if own && serde_json::from_str::<MarkContent>(&found.text).is_ok_and(same) {
                remove(&found);
            }
        }
    }
}

impl MarkContent {
    /// Whether a lease may be in the ledger.
    fn is_leased(&self) -> bool {
        self.holders.as_ref().is_none_or(|holders| !holders.is_empty())
    }

    /// Whether the mark is obsolete: its ledger's file was deleted, and had no leases.
    fn is_over(&self) -> bool {
        !self.is_leased() && self.file.as_ref().is_some_and(|file| !file.exists())
    }
}

fn remove(found: &FoundFile) {
    // The file is obsolete, so a failure to remove it does no harm.
    let _ = std::fs::remove_file(&found.path);
}
