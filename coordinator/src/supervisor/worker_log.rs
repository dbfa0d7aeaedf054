//! The log file of a worker's lines. The reader of the worker's output never waits for the disk: a task of its own
//! writes. It keeps the lines that a failing disk refuses.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model_boss_host::state_folder::StateFolder;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::log_file::LogFile;

/// The most lines that wait for the disk; further lines are only counted.
const KEPT_LINES: usize = 512;
/// The pause before a failed disk is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// A handle that takes lines for a log file. It is cheap to clone; dropping the last clone ends the log.
#[derive(Clone)]
pub(super) struct WorkerLog {
    lines: mpsc::Sender<String>,
    dropped: Arc<AtomicU64>,
}

impl WorkerLog {
    /// Starts the writing task in `tasks`. A file that cannot be opened is reported in the process's health, and tried
    /// again.
    pub(super) fn open(state: &StateFolder, path: PathBuf, tasks: &mut JoinSet<()>) -> Self {
        let (sender, lines) = mpsc::channel(KEPT_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let file = LogState { state: state.clone(), log: LogFile::new(path), torn: false };
        tasks.spawn(write_lines(file, lines, Arc::clone(&dropped)));
        Self { lines: sender, dropped }
    }

    /// Queues a line, without waiting.
    pub(super) fn line(&self, pid: u32, text: &str) {
        if self.lines.try_send(format!("[{pid}] {text}\n")).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn write_lines(file: LogState, mut lines: mpsc::Receiver<String>, dropped: Arc<AtomicU64>) {
    let (mut writer, mut batch) = (Some(file), Vec::new());
    // Writing an empty text opens the file, so that a fault shows when the worker starts, not at its first line.
    batch.push(String::new());
    loop {
        if batch.is_empty() && lines.recv_many(&mut batch, KEPT_LINES).await == 0 {
            if dropped.load(Ordering::Relaxed) == 0 {
                return;
            }
            batch.push(String::new());
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
        // A write that panicked has lost the file.
        let Ok((file, written)) = written.await else { return };
        match written {
            Ok(()) => {
                file.state.well(file.log.path());
                batch.clear();
            }
            Err(error) => {
                let why = format!("a worker's lines cannot be written and wait in memory: {error}");
                file.state.trouble(file.log.path(), why);
                dropped.fetch_add(lost, Ordering::Relaxed);
                // The worker has ended, and its end must not wait for a disk.
                if lines.is_closed() {
                    return;
                }
                sleep(TRY_AGAIN).await;
            }
        }
        writer = Some(file);
    }
}

/// The log file, and its faults, which the state folder reports.
struct LogState {
    state: StateFolder,
    log: LogFile,
    /// Whether the last write may have ended in the middle of a line.
    torn: bool,
}

impl Drop for LogState {
    fn drop(&mut self) {
        // Faults of a file that is no longer written are dropped.
        self.state.forget(self.log.path());
    }
}

impl LogState {
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let written = if self.torn { self.log.add(&[b"\n", text].concat()) } else { self.log.add(text) };
        self.torn = written.is_err();
        written
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn lines_wait_for_a_disk_that_takes_none_and_their_reader_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let (state, logs) = (StateFolder::new(folder.path()), folder.path().join("logs"));
        // The path of the folder is a file, so no log can be opened in it.
        fs::write(&logs, "").unwrap();
        let mut tasks = JoinSet::new();
        let log = WorkerLog::open(&state, logs.join("m.log"), &mut tasks);
        log.line(7, "one");
        let named =
            || state.troubles().iter().any(|trouble| trouble.contains("m.log: a worker's lines cannot be written"));
        while !named() {
            tokio::task::yield_now().await;
        }
        for number in 0..2 * KEPT_LINES {
            log.line(7, &number.to_string());
        }
        fs::remove_file(&logs).unwrap();
        while !state.troubles().is_empty() {
            tokio::task::yield_now().await;
        }
        let text = || fs::read_to_string(logs.join("m.log")).unwrap();
        while !text().contains(&format!("[7] {}\n", KEPT_LINES - 2)) {
            tokio::task::yield_now().await;
        }
        log.line(7, "last");
        drop(log);
        tasks.join_all().await;
        let text = text();
        assert!(text.contains("[7] one\n") && text.contains("[7] 0\n[7] 1\n"), "{text}");
        assert!(text.contains(" lines could not be written)\n") && text.ends_with("[7] last\n"), "{text}");
    }
}
