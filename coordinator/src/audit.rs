//! The audit log: who gave which order, and what came of it, as lines of JSON in `audit/` of the state folder. Orders
//! are those about models, settings, devices and leases; views and requests to models are not among them.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use model_boss_config::secrets::hidden_if_secret;
use model_boss_host::clocks::unix_time;
use model_boss_host::state_folder::{StateFolder, UnwrittenChange};
use model_boss_lease_store::{StateFileUse, open_state_file};
use serde::Serialize;
use serde_json::{Map, Value};

/// The folder in the state folder.
const FOLDER: &str = "audit";
/// The file that is written.
const FILE: &str = "audit.jsonl";
/// The largest file in bytes. A file that would grow larger is renamed to `audit.1.jsonl`, and older ones move on.
const MAX_FILE: u64 = 8 << 20;
/// The number of renamed files that are kept.
const KEPT: u32 = 9;
/// The entries that may wait for the disk. Further ones are counted, and the next entry tells their number.
const MAX_WAITING: usize = 4_096;
/// The pause before a failed write is repeated.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// The longest text of a field that is kept, in characters.
const LONGEST_TEXT: usize = 200;
/// The most fields of an order that are kept.
const MOST_FIELDS: usize = 32;

/// The handle of the log. It is cheap to clone, and never waits for the disk.
#[derive(Clone, Debug)]
pub(crate) struct AuditLog {
    entries: SyncSender<AuditLine>,
    lost: Arc<AtomicU64>,
    state: StateFolder,
}

/// A line on its way to the file.
#[derive(Debug)]
struct AuditLine {
    text: String,
    _unwritten: UnwrittenChange,
}

/// One order, which is written when the value is dropped.
#[derive(Debug)]
pub(crate) struct AuditedOrder {
    log: AuditLog,
    entry: AuditEntry,
}

/// An order, as its request's head tells it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct OrderHead {
    /// The client that the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<String>,
    /// The sender's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) request_id: String,
}

/// An entry as it is written.
#[derive(Debug, Default, Serialize)]
struct AuditEntry {
    /// The time of the answer, in seconds since 1970.
    at: f64,
    /// The sender: the name of a key, `owner`, `anyone`; absent where no valid key came.
    who: Option<String>,
    #[serde(flatten)]
    head: OrderHead,
    /// The fields of the order. Values that may be secret, and long ones, are shortened.
    #[serde(skip_serializing_if = "Map::is_empty")]
    order: Map<String, Value>,
    /// The HTTP status; absent where the sender left before the answer.
    status: Option<u16>,
    /// The error's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The number of entries before this one that were lost, because the disk took none.
    #[serde(skip_serializing_if = "is_zero")]
    lost_before: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl AuditLog {
    /// The log in this state folder, with the thread that writes it.
    pub(crate) fn start(state: &StateFolder) -> Self {
        let (entries, waiting) = sync_channel(MAX_WAITING);
        let writer = AuditWriter {
            path: state.file(FOLDER).join(FILE),
            state: state.clone(),
            open: None,
            largest: MAX_FILE,
            waiting: VecDeque::new(),
        };
        // Without a thread, entries are counted as lost.
        let spawned = thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(&waiting));
        if let Err(error) = spawned {
            tracing::error!(%error, "no audit log is written");
        }
        Self { entries, lost: Arc::default(), state: state.clone() }
    }

    /// Begins the entry of an order.
    pub(crate) fn order(&self, head: OrderHead) -> AuditedOrder {
        AuditedOrder { log: self.clone(), entry: AuditEntry { head, ..AuditEntry::default() } }
    }

    fn write(&self, entry: &mut AuditEntry) {
        entry.at = unix_time();
        entry.lost_before = self.lost.swap(0, Ordering::Relaxed);
        let line = serde_json::to_string(entry)
            .map(|text| AuditLine { text: text + "\n", _unwritten: self.state.unwritten() });
        if line.is_err() || line.is_ok_and(|line| self.entries.try_send(line).is_err()) {
            self.lost.fetch_add(entry.lost_before + 1, Ordering::Relaxed);
        }
    }
}

impl AuditedOrder {
    /// Records the sender.
    pub(crate) fn sent_by(&mut self, who: &str) {
        self.entry.who = Some(who.to_owned());
    }

    /// Records the answer.
    pub(crate) fn answered(&mut self, status: u16, code: Option<&'static str>) {
        (self.entry.status, self.entry.code) = (Some(status), code);
    }

    /// Records the fields of the order's body.
    pub(crate) fn asks(&mut self, body: &[u8]) {
        self.entry.order = fields(body);
    }
}

impl Drop for AuditedOrder {
    fn drop(&mut self) {
        self.log.write(&mut self.entry);
    }
}

/// The fields of an order that are worth keeping: numbers, words and lists of them.
fn fields(body: &[u8]) -> Map<String, Value> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(body) else { return Map::new() };
    let kept = fields.into_iter().take(MOST_FIELDS).map(|(name, value)| {
        let value = match hidden_if_secret(&name) {
            Some(hidden) => hidden.into(),
            None => shortened(value),
        };
        (name.chars().take(LONGEST_TEXT).collect(), value)
    });
    kept.collect()
}

fn shortened(value: Value) -> Value {
    match value {
        Value::String(text) => text.chars().take(LONGEST_TEXT).collect::<String>().into(),
        Value::Array(_) | Value::Object(_) => {
            let text = value.to_string();
            if text.chars().count() <= LONGEST_TEXT { value } else { "…".into() }
        }
        plain => plain,
    }
}

/// Writes the entries, on a thread of its own.
struct AuditWriter {
    path: PathBuf,
    state: StateFolder,
    open: Option<File>,
    largest: u64,
    waiting: VecDeque<AuditLine>,
}

impl AuditWriter {
    fn run(mut self, entries: &Receiver<AuditLine>) {
        loop {
            let next = match self.waiting.is_empty() {
                true => entries.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => entries.recv_timeout(TRY_AGAIN),
            };
            match next {
                Ok(line) => self.waiting.push_back(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.write();
                    return;
                }
            }
            // While the disk takes nothing, entries wait in the channel.
            while self.waiting.len() < MAX_WAITING {
                match entries.try_recv() {
                    Ok(line) => self.waiting.push_back(line),
                    Err(_) => break,
                }
            }
            self.write();
        }
    }

    fn write(&mut self) {
        while let Some(line) = self.waiting.front() {
            let text = line.text.clone();
            if let Err(error) = self.add(text.as_bytes()) {
                // The file is opened again: it may have been removed with its folder.
                self.open = None;
                self.state.trouble(&self.path, format!("orders cannot be written, and wait: {error}"));
                return;
            }
            self.waiting.pop_front();
            self.state.well(&self.path);
        }
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        let mut file = match self.open.take() {
            Some(file) if file.metadata()?.nlink() > 0 => file,
            _ => self.reopen()?,
        };
        let mut size = file.metadata()?.len();
        if size > 0 && size + line.len() as u64 > self.largest {
            rotate(&self.path)?;
            file = self.reopen()?;
            size = file.metadata()?.len();
        }
        if let Err(error) = file.write_all(line) {
            // A part of a line would damage the next one.
            let _ = file.set_len(size);
            return Err(error);
        }
        self.open = Some(file);
        Ok(())
    }

    fn reopen(&self) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        open_state_file(&self.path, StateFileUse::Append)
    }
}

/// Renames `audit.jsonl` to `audit.1.jsonl`, that to `audit.2.jsonl`, and so on; the last one is overwritten.
fn rotate(path: &Path) -> io::Result<()> {
    let earlier = |number: u32| path.with_extension(format!("{number}.jsonl"));
    for number in (1..KEPT).rev() {
        match fs::rename(earlier(number), earlier(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, earlier(1))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn lines(folder: &Path) -> Vec<Value> {
        let mut files: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().map(|f| f.unwrap().path()).collect();
        // The oldest is the one with the highest number; the one without a number is the newest.
        files.sort_by_key(|path| std::cmp::Reverse(path.file_name().unwrap().to_owned()));
        files.sort_by_key(|path| path.ends_with(FILE));
        let text: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn until(what: &dyn Fn() -> bool) {
        let started = Instant::now();
        while !what() {
            assert!(started.elapsed() < Duration::from_secs(20));
            thread::yield_now();
        }
    }

    #[test]
    fn op_5_an_order_is_written_with_its_sender_and_what_came_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        let log = AuditLog::start(&state);
        let mut order = log.order(OrderHead { path: "/api/v1/load".to_owned(), ..OrderHead::default() });
        order.sent_by("anna");
        let long = "x".repeat(1_000);
        let body = serde_json::json!({ "model_name": "guide", "secret": "hush", "text": long, "pids": [1, 2] });
        order.asks(body.to_string().as_bytes());
        order.answered(403, Some("insufficient_scope"));
        drop(order);
        drop(log.order(OrderHead::default()));
        until(&|| lines(&folder.path().join(FOLDER)).len() == 2);
        let written = lines(&folder.path().join(FOLDER));
        assert_eq!((&written[0]["who"], &written[0]["status"]), (&"anna".into(), &403.into()));
        assert_eq!(written[0]["code"], "insufficient_scope");
        let order = &written[0]["order"];
        assert_eq!((&order["model_name"], &order["secret"]), (&"guide".into(), &"***".into()));
        assert_eq!((order["text"].as_str().unwrap().len(), &order["pids"]), (200, &serde_json::json!([1, 2])));
        assert_eq!(written[1]["status"], Value::Null, "the sender left");
        let mode = fs::metadata(folder.path().join(FOLDER).join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn op_5_files_are_renamed_when_they_are_full_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let state = StateFolder::new(folder.path());
        let mut writer = AuditWriter { path, state, open: None, largest: 100, waiting: VecDeque::new() };
        for number in 0..60 {
            let text = format!("{{\"n\":\"{number:020}\"}}\n");
            writer.waiting.push_back(AuditLine { text, _unwritten: writer.state.unwritten() });
            writer.write();
        }
        assert!(writer.waiting.is_empty());
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1 + KEPT as usize, "{files:?}");
        assert!(files.iter().all(|file| fs::metadata(file).unwrap().len() <= 100));
        let numbers: Vec<u64> =
            lines(folder.path()).iter().map(|line| line["n"].as_str().unwrap().parse().unwrap()).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1) && numbers.last() == Some(&59), "{numbers:?}");
    }

    #[test]
    fn op_5_entries_wait_for_a_disk_that_takes_none() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        fs::write(folder.path().join(FOLDER), "in the way").unwrap();
        let log = AuditLog::start(&state);
        drop(log.order(OrderHead::default()));
        until(&|| state.troubles().iter().any(|trouble| trouble.contains("orders cannot be written")));
        fs::remove_file(folder.path().join(FOLDER)).unwrap();
        until(&|| lines(&folder.path().join(FOLDER)).len() == 1 && state.troubles().is_empty());
    }
}
