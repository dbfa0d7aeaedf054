//! The file that a worker's lines go to. Whoever reads the worker never waits for the disk: a task of its own writes, and
//! keeps what a failing disk does not take until it takes it again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model_boss_lease_store::{StateFileUse, open_state_file};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::state_folder::StateFolder;

/// Lines that wait for the disk; more are counted and not kept.
const KEPT_LINES: usize = 512;
/// A disk that failed is tried again after this.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// A log file that grew past this is moved aside once, so that a model's logs stay under twice this size.
const MAX_LOG: u64 = 8 << 20;

/// Takes lines for a log file. Cheap to clone; the last clone ends the log.
#[derive(Clone)]
pub(super) struct WorkerLog {
    lines: mpsc::Sender<String>,
    dropped: Arc<AtomicU64>,
}

impl WorkerLog {
    /// Starts the task, among `tasks`. A file that cannot be opened is named in the health of the process, and tried again.
    pub(super) fn open(state: &StateFolder, path: PathBuf, tasks: &mut JoinSet<()>) -> Self {
        let (sender, lines) = mpsc::channel(KEPT_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let file = LogFile { state: state.clone(), path, file: None, torn: false };
        tasks.spawn(write_lines(file, lines, Arc::clone(&dropped)));
        Self { lines: sender, dropped }
    }

    /// Keeps a line. Never waits.
    pub(super) fn line(&self, pid: u32, text: &str) {
        if self.lines.try_send(format!("[{pid}] {text}\n")).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn write_lines(file: LogFile, mut lines: mpsc::Receiver<String>, dropped: Arc<AtomicU64>) {
    let (mut writer, mut batch) = (Some(file), Vec::new());
    // A file that is none is named when the worker starts, and not at its first line.
    batch.push(String::new());
    loop {
        if batch.is_empty() && lines.recv_many(&mut batch, KEPT_LINES).await == 0 {
            return;
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        let mut text = batch.concat();
        if lost > 0 {
            text.push_str(&format!("({lost} lines could not be written)\n"));
        }
        let Some(mut file) = writer.take() else { return };
        let written = spawn_blocking(move || {
            let written = file.write(text.as_bytes());
            (file, written)
        });
        // One that panicked has nothing left to write with.
        let Ok((file, written)) = written.await else { return };
        match written {
            Ok(()) => {
                file.state.well(&file.path);
                batch.clear();
            }
            Err(error) => {
                let why = format!("a worker's lines cannot be written and wait in memory: {error}");
                file.state.trouble(&file.path, why);
                dropped.fetch_add(lost, Ordering::Relaxed);
                // The worker is gone: its end does not wait for a disk.
                if lines.is_closed() {
                    return;
                }
                sleep(TRY_AGAIN).await;
            }
        }
        writer = Some(file);
    }
}

/// The file, opened when it is needed.
struct LogFile {
    state: StateFolder,
    path: PathBuf,
    file: Option<File>,
    /// The last write may have ended in the middle of a line.
    torn: bool,
}

impl Drop for LogFile {
    fn drop(&mut self) {
        // Of a file that is not written any more nothing is known.
        self.state.forget(&self.path);
    }
}

impl LogFile {
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let torn = self.torn;
        let written = self.opened().and_then(|file| {
            if torn {
                file.write_all(b"\n")?;
            }
            file.write_all(text)
        });
        self.torn = written.is_err();
        if written.is_err() {
            self.file = None;
        }
        written
    }

    fn opened(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                if let Some(folder) = self.path.parent() {
                    fs::create_dir_all(folder)?;
                }
                if fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_file() && found.len() > MAX_LOG) {
                    fs::rename(&self.path, self.path.with_extension("log.old"))?;
                }
                open_state_file(&self.path, StateFileUse::Append)?
            }
        };
        Ok(self.file.insert(file))
    }
}
