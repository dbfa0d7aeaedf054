//! The output of workers. Each line is written to the model's log file and to the coordinator's own log. The last lines
//! are kept to explain an exit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_host::state_folder::StateFolder;
use model_boss_protocol::{ModelId, printable};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::task::JoinSet;

use super::log_file::log_path;
use super::worker_log::WorkerLog;

/// The folder of workers' logs in the state folder.
pub(crate) const LOGS: &str = "logs";

/// The lines kept to explain an exit.
const LAST_LINES: usize = 20;
/// The longest line in bytes; a longer one is cut, so that a worker that writes no newlines cannot fill the
/// coordinator's memory.
const MAX_LINE: u64 = 8 * 1024;
/// The longest wait for output after a worker's end: its descendants may keep the pipe open.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);

/// Captures one worker's standard output and error until both end.
pub(super) struct Output {
    last: Arc<Mutex<VecDeque<String>>>,
    readers: JoinSet<()>,
}

impl Output {
    /// Starts to read the output. The log's lines are marked with `pid`.
    pub(super) fn capture(
        state: &StateFolder,
        model: &ModelId,
        pid: u32,
        stdout: Option<impl AsyncRead + Unpin + Send + 'static>,
        stderr: Option<impl AsyncRead + Unpin + Send + 'static>,
    ) -> Self {
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = JoinSet::new();
        let log = WorkerLog::open(state, log_path(&state.file(LOGS), model), &mut readers);
        if let Some(stdout) = stdout {
            readers.spawn(read_lines(stdout, log.clone(), model.clone(), pid, None));
        }
        if let Some(stderr) = stderr {
            readers.spawn(read_lines(stderr, log, model.clone(), pid, Some(Arc::clone(&last))));
        }
        Self { last, readers }
    }

    /// Reads the rest of the pipes and returns the last lines of standard error.
    pub(super) async fn last_lines(mut self) -> Vec<String> {
        let _ = tokio::time::timeout(DRAIN_LIMIT, async { while self.readers.join_next().await.is_some() {} }).await;
        self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

async fn read_lines(
    pipe: impl AsyncRead + Unpin,
    log: WorkerLog,
    model: ModelId,
    pid: u32,
    keep: Option<Arc<Mutex<VecDeque<String>>>>,
) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = tokio::io::AsyncReadExt::take(&mut reader, MAX_LINE);
        match limited.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = printable(text.trim_end());
        if text.is_empty() {
            continue;
        }
        tracing::debug!(target: "worker", %model, pid, "{text}");
        log.line(pid, &text);
        if let Some(last) = &keep {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(text.into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_lines_of_stderr_are_kept_and_all_go_to_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let model = ModelId::from("team/m:1");
        let stderr: String = (0..30).map(|n| format!("line {n}\n")).collect();
        let out: &[u8] = b"hello\n";
        let state = StateFolder::new(folder.path());
        let stderr = std::io::Cursor::new(stderr.into_bytes());
        let output = Output::capture(&state, &model, 7, Some(out), Some(stderr));
        let last = output.last_lines().await;
        assert_eq!(last.len(), LAST_LINES);
        assert_eq!(last.last().map(String::as_str), Some("line 29"));
        let log = std::fs::read_to_string(folder.path().join("logs/team%2Fm%3A1.log")).unwrap();
        assert!(log.contains("[7] hello\n") && log.contains("[7] line 0\n"), "{log}");
    }

    #[tokio::test]
    async fn op_10_lines_of_engines_are_printable_in_the_log_and_in_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let lines = "\x1b]0;title\x07\u{202e}x\r\n\x1b[31m\u{9b}2J\n".as_bytes();
        let state = StateFolder::new(folder.path());
        let output = Output::capture(&state, &"m".into(), 1, Some(lines), Some(lines));
        let last = output.last_lines().await;
        assert_eq!(last, ["\\u001b]0;title\\u0007\\u202ex", "\\u001b[31m\\u009b2J"]);
        let log = std::fs::read_to_string(folder.path().join("logs/m.log")).unwrap();
        assert_eq!(log.lines().count(), 4, "{log}");
        assert!(log.chars().all(|c| c == '\n' || model_boss_protocol::is_printable(c)), "{log:?}");
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_not_collected() {
        let folder = tempfile::tempdir().unwrap();
        let endless = vec![b'x'; 3 * MAX_LINE as usize];
        let stdout: Option<&[u8]> = None;
        let state = StateFolder::new(folder.path());
        let output = Output::capture(&state, &"m".into(), 1, stdout, Some(std::io::Cursor::new(endless)));
        let last = output.last_lines().await;
        assert_eq!(last.len(), 3);
        assert!(last.iter().all(|line| line.len() as u64 <= MAX_LINE));
    }
}
