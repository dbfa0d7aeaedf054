//! The folder for what survives a restart, and what is wrong with its files at this moment. Knows nothing of what is in them.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_lease_store::{check_state_file, replace_state_file};
use nix::sys::statvfs::statvfs;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How often the room that is left is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What could not be written is tried again after this.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// With less room than this the next write may fail.
const LITTLE: u64 = 64 << 10;

/// The state folder. Cheap to clone; all clones share what is known to be wrong.
#[derive(Clone, Debug)]
pub(crate) struct StateFolder {
    path: PathBuf,
    troubles: Arc<Mutex<BTreeMap<PathBuf, String>>>,
}

/// A file of the folder that is written as a whole, by a task of its own: a disk that hangs or is full stops nobody. It is
/// tried until it is done. Of several contents the last counts.
#[derive(Debug)]
pub(crate) struct KeptFile {
    newest: watch::Sender<Option<Arc<[u8]>>>,
}

impl KeptFile {
    /// Has this written.
    pub(crate) fn write(&self, content: Vec<u8>) {
        self.newest.send_replace(Some(content.into()));
    }
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

    /// A file that is written as a whole from now on, for as long as the value lives. `cannot` says what it means that it
    /// cannot be.
    pub(crate) fn keep(&self, name: &str, cannot: &'static str) -> KeptFile {
        let (sender, mut newest) = watch::channel(None::<Arc<[u8]>>);
        let (folder, file) = (self.clone(), self.file(name));
        tokio::spawn(async move {
            while newest.changed().await.is_ok() {
                loop {
                    let Some(content) = newest.borrow_and_update().clone() else { break };
                    let to = file.clone();
                    // A writer that panicked wrote nothing, and would again.
                    let written = spawn_blocking(move || write(&to, &content)).await.unwrap_or(Ok(()));
                    let Err(error) = written else {
                        folder.well(&file);
                        break;
                    };
                    folder.trouble(&file, format!("{cannot}: {error}"));
                    sleep(TRY_AGAIN).await;
                }
            }
        });
        KeptFile { newest: sender }
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

fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    replace_state_file(file, content)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_cannot_be_written_is_named_and_tried_until_it_is() {
        let root = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(&root.path().join("state"));
        // Something else lies in its place.
        fs::create_dir_all(folder.file("kept")).unwrap();
        let kept = folder.keep("kept", "it cannot be kept");
        let looks = async |done: &dyn Fn() -> bool| {
            while !done() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        kept.write(b"one".to_vec());
        looks(&|| folder.troubles().iter().any(|trouble| trouble.contains("it cannot be kept: it is a folder"))).await;
        kept.write(b"two".to_vec());
        fs::remove_dir(folder.file("kept")).unwrap();
        looks(&|| folder.troubles().is_empty()).await;
        assert_eq!(fs::read(folder.file("kept")).unwrap(), b"two");
        kept.write(b"three".to_vec());
        looks(&|| fs::read(folder.file("kept")).is_ok_and(|content| content == b"three")).await;
    }
}
