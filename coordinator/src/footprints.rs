//! What models were seen to use, kept from one life of the process to the next (RC-20). One thread owns the file, because
//! writing it waits for the disk. Knows nothing of how footprints come about.

use std::path::Path;
use std::sync::mpsc;

use model_boss_core::Footprint;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::error_chain::chain;

/// Beside the ledger.
const FILE: &str = "footprints.redb";
/// By model, revision, context, parallelism and device; the value is the footprint as JSON.
const FOOTPRINTS: TableDefinition<'static, &str, &str> = TableDefinition::new("footprints");

/// Takes what is learned. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Footprints(Option<mpsc::Sender<Footprint>>);

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
enum FootprintError {
    #[error("cannot be opened")]
    Open(#[from] redb::DatabaseError),
    #[error("cannot be read or written")]
    Storage(#[from] redb::StorageError),
    #[error("cannot be read or written")]
    Table(#[from] redb::TableError),
    #[error("cannot be read or written")]
    Transaction(#[from] Box<redb::TransactionError>),
    #[error("cannot be written")]
    Commit(#[from] redb::CommitError),
    #[error("cannot be written")]
    Json(#[from] serde_json::Error),
}

impl From<redb::TransactionError> for FootprintError {
    fn from(error: redb::TransactionError) -> Self {
        Self::Transaction(Box::new(error))
    }
}

impl Footprints {
    /// Opens the file in `folder` and gives what is in it. A file that cannot be used is reported and done without: sizes
    /// are then learned again.
    pub(crate) fn open(folder: &Path) -> (Self, Vec<Footprint>) {
        let path = folder.join(FILE);
        match open(&path) {
            Ok((database, known)) => {
                let (sender, inbox) = mpsc::channel();
                let started = std::thread::Builder::new()
                    .name("footprints".into())
                    .spawn(move || write_all(&database, &path, &inbox));
                match started {
                    Ok(_) => (Self(Some(sender)), known),
                    Err(error) => {
                        tracing::warn!(%error, "what models use cannot be kept: no thread");
                        (Self(None), known)
                    }
                }
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), "learned sizes are not used: {}", chain(&error));
                (Self(None), Vec::new())
            }
        }
    }

    /// Keeps a footprint; those of other revisions of its model go.
    pub(crate) fn learn(&self, footprint: Footprint) {
        if let Some(sender) = &self.0 {
            // The thread lives as long as the sender.
            let _ = sender.send(footprint);
        }
    }
}

fn open(path: &Path) -> Result<(Database, Vec<Footprint>), FootprintError> {
    let database = Database::create(path)?;
    let write = database.begin_write()?;
    write.open_table(FOOTPRINTS)?;
    write.commit()?;
    let mut known = Vec::new();
    let read = database.begin_read()?;
    for entry in read.open_table(FOOTPRINTS)?.iter()? {
        let (_, value) = entry?;
        // One that a later version wrote says nothing to this one.
        known.extend(serde_json::from_str::<Footprint>(value.value()).ok());
    }
    Ok((database, known))
}

fn write_all(database: &Database, path: &Path, inbox: &mpsc::Receiver<Footprint>) {
    while let Ok(footprint) = inbox.recv() {
        if let Err(error) = write(database, &footprint) {
            tracing::warn!(path = %path.display(), "a learned size is lost: {}", chain(&error));
        }
    }
}

fn write(database: &Database, footprint: &Footprint) -> Result<(), FootprintError> {
    let text = serde_json::to_string(footprint)?;
    let write = database.begin_write()?;
    {
        let mut table = write.open_table(FOOTPRINTS)?;
        let mut outdated = Vec::new();
        for entry in table.iter()? {
            let (key, value) = entry?;
            let old = serde_json::from_str::<Footprint>(value.value());
            if old.is_ok_and(|old| old.model == footprint.model && old.revision != footprint.revision) {
                outdated.push(key.value().to_owned());
            }
        }
        for key in outdated {
            table.remove(key.as_str())?;
        }
        table.insert(key(footprint).as_str(), text.as_str())?;
    }
    write.commit()?;
    Ok(())
}

fn key(footprint: &Footprint) -> String {
    let Footprint { model, revision, context, max_concurrent, device, .. } = footprint;
    let context = context.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
    format!("{model} {revision:x} {context} {max_concurrent} {device}")
}

#[cfg(test)]
mod tests {
    use model_boss_protocol::{ByteCount, DeviceId};

    use super::*;

    fn footprint(revision: u64, device: DeviceId, gib: u64) -> Footprint {
        let (model, bytes) = ("team/m:1".into(), ByteCount::gib(gib));
        Footprint { model, revision, context: None, max_concurrent: 8, device, bytes }
    }

    #[test]
    fn rc_20_what_is_learned_is_known_in_the_next_life() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let (database, known) = open(&path).unwrap();
        assert!(known.is_empty());
        write(&database, &footprint(1, DeviceId::Cpu, 1)).unwrap();
        write(&database, &footprint(1, DeviceId::Cuda(0), 2)).unwrap();
        write(&database, &footprint(1, DeviceId::Cuda(0), 3)).unwrap();
        drop(database);
        let (database, known) = open(&path).unwrap();
        assert_eq!(known, [footprint(1, DeviceId::Cpu, 1), footprint(1, DeviceId::Cuda(0), 3)]);
        write(&database, &footprint(2, DeviceId::Cpu, 4)).unwrap();
        drop(database);
        assert_eq!(open(&path).unwrap().1, [footprint(2, DeviceId::Cpu, 4)]);
    }

    #[test]
    fn a_file_that_is_none_is_done_without() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "not a database at all").unwrap();
        let (footprints, known) = Footprints::open(folder.path());
        assert!(known.is_empty());
        footprints.learn(footprint(1, DeviceId::Cpu, 1));
    }
}
