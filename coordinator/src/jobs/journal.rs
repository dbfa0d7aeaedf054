//! The thread that owns the store of records. Changes that arrive while one is written are written together, so that
//! many small jobs share one wait for the disk.

use std::sync::{Arc, mpsc};
use std::{io, thread};

use model_boss_jobs::{JobStoreError, RecordChange, RecordStore};
use model_boss_protocol::{ApiError, chain};
use tokio::sync::oneshot;

use crate::refusals::of_job_store;

/// The most orders that are written together.
const TOGETHER: usize = 256;

/// Every record by its name, or why the store could not be taken over.
pub(super) type TakenRecords = Result<Vec<(String, String)>, Arc<JobStoreError>>;

/// The handle of the thread.
#[derive(Clone, Debug)]
pub(super) struct JobJournal {
    commands: mpsc::Sender<JournalCommand>,
}

enum JournalCommand {
    TakeOver(oneshot::Sender<TakenRecords>),
    Commit(JournalEntry),
}

/// Changes that are kept together.
struct JournalEntry {
    changes: Vec<RecordChange>,
    /// The state before, which is restored by the next write where this one may or may not have been kept.
    undo: Vec<RecordChange>,
    reply: oneshot::Sender<Result<(), ApiError>>,
}

impl JobJournal {
    /// Starts the thread.
    pub(super) fn start(open: JournalOpener) -> io::Result<Self> {
        let (commands, inbox) = mpsc::channel();
        thread::Builder::new().name("jobs".to_owned()).spawn(move || JournalOwner::new(open).run(&inbox))?;
        Ok(Self { commands })
    }

    /// Takes the store over, and reads every record.
    pub(super) async fn take_over(&self) -> TakenRecords {
        let (reply, taken) = oneshot::channel();
        // The thread ends only with the last handle.
        let _ = self.commands.send(JournalCommand::TakeOver(reply));
        taken.await.unwrap_or_else(|_| Err(Arc::new(ended())))
    }

    /// Keeps changes: when this returns, they survive the end of the process.
    pub(super) async fn commit(&self, changes: Vec<RecordChange>, undo: Vec<RecordChange>) -> Result<(), ApiError> {
        let (reply, kept) = oneshot::channel();
        let _ = self.commands.send(JournalCommand::Commit(JournalEntry { changes, undo, reply }));
        kept.await.unwrap_or_else(|_| Err(of_job_store(&ended())))
    }
}

fn ended() -> JobStoreError {
    JobStoreError::BadAnswer { store: "this process".to_owned(), detail: "its thread has ended".to_owned() }
}

/// Opens the store.
pub(super) type JournalOpener = Box<dyn FnMut() -> Result<Box<dyn RecordStore>, JobStoreError> + Send>;

struct JournalOwner {
    open: JournalOpener,
    /// The store; absent until it was opened.
    store: Option<Box<dyn RecordStore>>,
    /// Records that have to be restored, because a write failed and may be kept nevertheless.
    undo: Vec<RecordChange>,
}

impl JournalOwner {
    const fn new(open: JournalOpener) -> Self {
        Self { open, store: None, undo: Vec::new() }
    }

    fn take_over(&mut self) -> Result<Vec<(String, String)>, JobStoreError> {
        let store = match self.store.take() {
            Some(store) => store,
            None => (self.open)()?,
        };
        self.store.insert(store).take_over()
    }

    fn run(mut self, inbox: &mpsc::Receiver<JournalCommand>) {
        while let Ok(command) = inbox.recv() {
            let mut entries = Vec::new();
            let mut next = Some(command);
            while let Some(command) = next.take() {
                match command {
                    JournalCommand::Commit(entry) => entries.push(entry),
                    JournalCommand::TakeOver(reply) => {
                        self.commit(std::mem::take(&mut entries));
                        // An error means that the caller is gone.
                        let _ = reply.send(self.take_over().map_err(Arc::new));
                    }
                }
                if entries.len() < TOGETHER {
                    next = inbox.try_recv().ok();
                }
            }
            self.commit(entries);
        }
    }

    fn commit(&mut self, entries: Vec<JournalEntry>) {
        if entries.is_empty() {
            return;
        }
        let mut changes = self.undo.clone();
        changes.extend(entries.iter().flat_map(|entry| entry.changes.iter().cloned()));
        let written = self.store.as_mut().map_or_else(|| Err(ended()), |store| store.commit(&changes));
        match &written {
            Ok(()) => self.undo.clear(),
            Err(error) => tracing::debug!("jobs are not kept: {}", chain(error)),
        }
        for entry in entries {
            if written.is_err() {
                self.undo.extend(entry.undo);
            }
            let kept = match &written {
                Ok(()) => Ok(()),
                Err(error) => Err(of_job_store(error)),
            };
            // An error means that the caller is gone.
            let _ = entry.reply.send(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A store whose writes fail, but are kept, while the flag is set.
    struct FlakyStore(Arc<Mutex<(bool, std::collections::BTreeMap<String, String>)>>);

    impl RecordStore for FlakyStore {
        fn take_over(&mut self) -> Result<Vec<(String, String)>, JobStoreError> {
            Ok(Vec::new())
        }

        fn commit(&mut self, changes: &[RecordChange]) -> Result<(), JobStoreError> {
            let mut state = self.0.lock().unwrap();
            for change in changes {
                match change.clone() {
                    RecordChange::Put { name, text } => _ = state.1.insert(name, text),
                    RecordChange::Delete { name } => _ = state.1.remove(&name),
                }
            }
            if state.0 { Err(ended()) } else { Ok(()) }
        }

        fn describe(&self) -> String {
            "flaky".to_owned()
        }
    }

    fn opener(state: &Arc<Mutex<(bool, std::collections::BTreeMap<String, String>)>>) -> JournalOpener {
        let state = Arc::clone(state);
        Box::new(move || Ok(Box::new(FlakyStore(Arc::clone(&state)))))
    }

    #[tokio::test]
    async fn rc_26_a_refused_job_is_not_there_after_a_restart_even_if_its_write_was_kept() {
        let state = Arc::new(Mutex::new((false, std::collections::BTreeMap::new())));
        let journal = JobJournal::start(opener(&state)).unwrap();
        assert!(journal.take_over().await.unwrap().is_empty());
        let put = |name: &str| vec![RecordChange::Put { name: name.to_owned(), text: String::new() }];
        let delete = |name: &str| vec![RecordChange::Delete { name: name.to_owned() }];
        journal.commit(put("a"), delete("a")).await.unwrap();
        state.lock().unwrap().0 = true;
        assert!(journal.commit(put("b"), delete("b")).await.is_err());
        assert!(state.lock().unwrap().1.contains_key("b"), "the store has kept it nevertheless");
        state.lock().unwrap().0 = false;
        journal.commit(put("c"), delete("c")).await.unwrap();
        assert_eq!(state.lock().unwrap().1.keys().collect::<Vec<_>>(), ["a", "c"]);
    }
}
