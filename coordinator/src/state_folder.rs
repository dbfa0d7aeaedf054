//! The folder for what survives a restart, and what is wrong with its files at this moment. Knows nothing of what is in them.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_lease_store::check_state_file;
use nix::sys::statvfs::statvfs;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// How often the room that is left is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// With less room than this the next write may fail.
const LITTLE: u64 = 64 << 10;

/// The state folder. Cheap to clone; all clones share what is known to be wrong.
#[derive(Clone, Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
    troubles: Arc<Mutex<BTreeMap<PathBuf, String>>>,
}

impl StateFolder {
    /// The one at `path`, which need not be there yet.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), troubles: Arc::default() }
    }

    /// Something in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Refuses what lies in the place of one of these files and is none: a pipe, a link, a folder.
    pub(crate) fn check(&self, names: &[&str]) -> Result<(), (PathBuf, io::Error)> {
        names.iter().map(|name| self.file(name)).try_for_each(|path| check_state_file(&path).map_err(|why| (path, why)))
    }

    /// A file cannot be used, for a reason that is logged when it changes and shown for as long as it lasts.
    pub(crate) fn trouble(&self, file: &Path, why: String) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.get(file) != Some(&why) {
            tracing::warn!("{}: {why}", file.display());
            troubles.insert(file.to_owned(), why);
        }
    }

    /// A file can be used again.
    pub(crate) fn well(&self, file: &Path) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.remove(file).is_some() {
            tracing::info!("{} can be written again", file.display());
        }
    }

    /// A file is not used any more.
    pub(crate) fn forget(&self, file: &Path) {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).remove(file);
    }

    /// Looks for as long as the process lives whether there is room for the next write.
    pub(crate) async fn watch(self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let folder = self.clone();
            // A disk that hangs holds up a thread, and this task with it.
            if spawn_blocking(move || folder.look()).await.is_err() {
                return;
            }
        }
    }

    /// Makes it where it is not there, and looks at the room in it.
    pub(crate) fn look(&self) {
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&self.path) {
            return self.trouble(&self.path, format!("it cannot be made: {error}"));
        }
        match statvfs(&self.path) {
            Ok(about) => {
                let left = about.blocks_available().saturating_mul(about.fragment_size());
                if left < LITTLE {
                    let why =
                        "its file system is full: what has to be kept waits in memory, and no leases may be granted";
                    self.trouble(&self.path, why.to_owned());
                } else {
                    self.well(&self.path);
                }
            }
            Err(error) => self.trouble(&self.path, format!("it cannot be looked at: {error}")),
        }
    }

    /// Every trouble of this moment, for people.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.iter().map(|(file, why)| format!("{}: {why}", file.display())).collect()
    }
}
