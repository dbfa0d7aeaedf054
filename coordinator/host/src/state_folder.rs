//! The folder of files that survive a restart, and the current faults of these files. Their content is not interpreted
//! here.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use model_boss_lease_store::{check_state_file, replace_state_file};
use nix::sys::statvfs::statvfs;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// The interval between checks of the free space.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before a failed write is repeated.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// The longest wait for last writes: a disk that hangs must not hold up a shutdown.
const LAST_WRITE: Duration = Duration::from_secs(2);
/// Free bytes below which the next write may fail.
const LITTLE: u64 = 64 << 10;

/// The state folder. The handle is cheap to clone, and all clones share the known faults.
#[derive(Clone, Debug)]
pub struct StateFolder {
    path: PathBuf,
    troubles: Arc<Mutex<BTreeMap<PathBuf, String>>>,
    unwritten: Arc<UnwrittenCount>,
}

/// A change that is in memory and not in its file yet, until the value is dropped.
#[derive(Debug)]
pub struct UnwrittenChange(Arc<UnwrittenCount>);

/// The number of changes that are not in their files yet.
#[derive(Debug, Default)]
struct UnwrittenCount {
    changes: Mutex<usize>,
    fell: Condvar,
}

impl UnwrittenCount {
    fn changes(&self) -> MutexGuard<'_, usize> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>) -> UnwrittenChange {
        *self.changes() += 1;
        UnwrittenChange(Arc::clone(self))
    }
}

impl Drop for UnwrittenChange {
    fn drop(&mut self) {
        *self.0.changes() -= 1;
        self.0.fell.notify_all();
    }
}

/// A file of the state folder that is always written as a whole. It has a thread of its own, so that a disk that hangs
/// or is full blocks no caller. Failed writes are repeated; changes that arrive meanwhile are merged into one write.
/// Dropping the value waits for the last write, up to a limit.
#[derive(Debug)]
pub struct KeptFile(Arc<WriterShared>);

/// The state that a file's owner shares with the file's writing thread.
#[derive(Debug, Default)]
struct WriterShared {
    state: Mutex<WriterState>,
    changed: Condvar,
    unwritten: Arc<UnwrittenCount>,
}

#[derive(Debug, Default)]
struct WriterState {
    /// Present if the content has changed since the last write.
    changed: Option<UnwrittenChange>,
    /// Whether the owner was dropped: no more changes follow.
    over: bool,
    /// Whether the writer's thread has ended.
    ended: bool,
}

impl KeptFile {
    /// Reports that the content has changed. The writing thread will read it and write it soon.
    pub fn changed(&self) {
        self.0.state().changed.get_or_insert_with(|| self.0.unwritten.add());
        self.0.changed.notify_all();
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.over = true;
        self.0.changed.notify_all();
        drop(self.0.changed.wait_timeout_while(state, LAST_WRITE, |state| !state.ended));
    }
}

impl WriterShared {
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes every change until the owner is dropped. The last write is tried once.
    fn write(&self, mut try_to: impl FnMut() -> bool) {
        loop {
            let state = self.state();
            let idle = |state: &mut WriterState| state.changed.is_none() && !state.over;
            let mut state = self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            let Some(change) = state.changed.take() else { return };
            let over = state.over;
            drop(state);
            if try_to() {
                continue;
            }
            let mut state = self.state();
            state.changed = Some(change);
            if over {
                return;
            }
            drop(self.changed.wait_timeout_while(state, TRY_AGAIN, |state| !state.over));
        }
    }
}

/// Reports the end of the thread, also after a panic.
struct WriterEnd(Arc<WriterShared>);

impl Drop for WriterEnd {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}

impl StateFolder {
    /// The state folder at `path`, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), troubles: Arc::default(), unwritten: Arc::default() }
    }

    /// Counts a change as unwritten until the value is dropped, for files that are not written as a whole.
    pub fn unwritten(&self) -> UnwrittenChange {
        self.unwritten.add()
    }

    /// Waits until every change is in its file, up to a limit, and blocks the thread meanwhile. A process calls this
    /// before it ends: its end does not wait for the writing threads, nor for tasks that own kept files.
    pub fn finish(&self) {
        let waiting = self.unwritten.fell.wait_timeout_while(self.unwritten.changes(), LAST_WRITE, |left| *left > 0);
        let (left, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        if *left > 0 {
            tracing::warn!("{} changes of the state folder are lost: the disk did not take them", *left);
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Keeps a file that is written as a whole after every change, until the returned value is dropped. Arguments:
    /// `content` gives the file's text, or the reason why that is not known yet; `cannot` is the message of a failed
    /// write.
    pub fn keep(
        &self,
        name: &str,
        cannot: &'static str,
        content: impl Fn() -> Result<Vec<u8>, String> + Send + 'static,
    ) -> KeptFile {
        let (folder, file) = (self.clone(), self.file(name));
        let unwritten = Arc::clone(&self.unwritten);
        let shared = Arc::new(WriterShared { unwritten, ..WriterShared::default() });
        let done = WriterEnd(Arc::clone(&shared));
        let write_all = move || {
            let cannot = |error: io::Error| format!("{cannot}: {error}");
            let written = content().and_then(|content| write(&file, &content).map_err(cannot));
            match &written {
                Ok(()) => folder.well(&file),
                Err(why) => folder.trouble(&file, why.clone()),
            }
            written.is_ok()
        };
        let writer = thread::Builder::new().name(name.to_owned()).spawn(move || done.0.write(write_all));
        if let Err(error) = writer {
            self.trouble(&self.file(name), format!("{cannot}: there is no thread for it: {error}"));
        }
        KeptFile(shared)
    }

    /// Refuses a path of one of these files that is no regular file but a pipe, a link or a folder.
    pub fn check(&self, names: &[&str]) -> Result<(), (PathBuf, io::Error)> {
        names.iter().map(|name| self.file(name)).try_for_each(|path| check_state_file(&path).map_err(|why| (path, why)))
    }

    /// Records that a file cannot be used. The reason is logged when it changes, and shown for as long as it lasts.
    pub fn trouble(&self, file: &Path, why: String) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.get(file) != Some(&why) {
            tracing::warn!("{}: {why}", file.display());
            troubles.insert(file.to_owned(), why);
        }
    }

    /// Records that a file can be used again.
    pub fn well(&self, file: &Path) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.remove(file).is_some() {
            tracing::info!("{} can be written again", file.display());
        }
    }

    /// Drops the record of a file that is no longer used.
    pub fn forget(&self, file: &Path) {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).remove(file);
    }

    /// Checks the space for the next write, as long as the process runs.
    pub async fn watch(self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let folder = self.clone();
            // A disk that hangs blocks the thread of the check, and this task with it.
            if spawn_blocking(move || folder.look()).await.is_err() {
                return;
            }
        }
    }

    /// Creates the folder if it is absent, and checks its free space.
    pub fn look(&self) {
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

    /// Every current fault, as human-readable text.
    pub fn troubles(&self) -> Vec<String> {
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

    fn until(done: impl Fn() -> bool) {
        while !done() {
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_tried_until_it_is() {
        let root = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(&root.path().join("state"));
        // The path of the file is a folder.
        fs::create_dir_all(folder.file("kept")).unwrap();
        let says = Arc::new(Mutex::new(Err("nothing is known".to_owned())));
        let newest = Arc::clone(&says);
        let kept = folder.keep("kept", "it cannot be kept", move || newest.lock().unwrap().clone());
        let says = |content: &str| {
            *says.lock().unwrap() = Ok(content.as_bytes().to_vec());
            kept.changed();
        };
        let troubled = |why: &str| folder.troubles().iter().any(|trouble| trouble.contains(why));
        kept.changed();
        until(|| troubled("nothing is known"));
        says("one");
        until(|| troubled("it cannot be kept: it is a folder"));
        says("two");
        fs::remove_dir(folder.file("kept")).unwrap();
        until(|| folder.troubles().is_empty());
        assert_eq!(fs::read(folder.file("kept")).unwrap(), b"two");
        says("three");
        drop(kept);
        assert_eq!(fs::read(folder.file("kept")).unwrap(), b"three", "what is dropped has been written");
    }

    #[test]
    fn the_end_of_a_file_waits_no_longer_than_a_disk_may_hang() {
        let root = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(root.path());
        let (hung, disk) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        let disk = Mutex::new(disk);
        let kept = folder.keep("kept", "it cannot be kept", move || {
            begun.send(()).unwrap();
            // Blocks as a disk that hangs does, until the other end is dropped.
            let _ = disk.lock().unwrap().recv();
            Ok(Vec::new())
        });
        kept.changed();
        begins.recv().unwrap();
        let began = std::time::Instant::now();
        drop(kept);
        assert!(began.elapsed() >= LAST_WRITE, "it was not waited for");
        drop(hung);
    }

    #[test]
    fn the_end_of_a_process_waits_for_what_is_not_written_yet() {
        let root = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(root.path());
        let (goes_on, disk) = std::sync::mpsc::channel::<()>();
        let disk = Mutex::new(disk);
        let kept = folder.keep("kept", "it cannot be kept", move || {
            disk.lock().unwrap().recv().unwrap();
            Ok(b"spent".to_vec())
        });
        kept.changed();
        let line = folder.unwritten();
        let ended = thread::spawn({
            let folder = folder.clone();
            move || folder.finish()
        });
        goes_on.send(()).unwrap();
        until(|| folder.file("kept").exists());
        assert!(!ended.is_finished(), "a line of another file is not written yet");
        drop(line);
        ended.join().unwrap();
        assert_eq!(fs::read(folder.file("kept")).unwrap(), b"spent");
        // Its owner is still there: a task of a runtime that ends in the background.
        drop(kept);
    }
}
