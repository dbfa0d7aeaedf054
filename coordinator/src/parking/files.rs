//! Files of parked prefixes in the state folder, one for each model. They hold prompts, so that only the user of the
//! coordinator may read them.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use model_boss_host::state_folder::StateFolder;
use model_boss_lease_store::{StateFileUse, open_state_file, replace_state_file};
use model_boss_protocol::{ModelId, ParkedFault, ParkedFrame, ParkedReader, check_parked};

use crate::model_file::model_file_name;

/// The folder in the state folder.
const FOLDER: &str = "parked";
/// The ending of the files.
const ENDING: &str = "prefixes";
/// The first bytes of a file, which have its head.
const HEAD: u64 = 64 << 10;

/// The folder of the files.
#[derive(Clone, Debug)]
pub(super) struct ParkedFiles {
    folder: PathBuf,
    state: StateFolder,
}

/// A file of an earlier process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EarlierFile {
    pub(super) model: ModelId,
    pub(super) bytes: u64,
    pub(super) at: SystemTime,
}

/// The reason why a file gives no prefixes.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParkedFileError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is damaged.
    #[error("{0}")]
    Damaged(#[from] ParkedFault),
    /// It is another model's.
    #[error("it is of model '{0}'")]
    OtherModel(ModelId),
}

impl ParkedFiles {
    pub(super) fn new(state: &StateFolder) -> Self {
        Self { folder: state.file(FOLDER), state: state.clone() }
    }

    /// The path of a model's file.
    pub(super) fn path(&self, model: &ModelId) -> PathBuf {
        self.folder.join(format!("{}.{ENDING}", model_file_name(model)))
    }

    /// Writes a model's file, as a whole or not at all. A fault is shown until the next write.
    pub(super) fn write(&self, model: &ModelId, content: &[u8]) -> io::Result<()> {
        let path = self.path(model);
        let written = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        let written = written.and_then(|()| replace_state_file(&path, content));
        match &written {
            Ok(()) => self.state.well(&path),
            Err(error) => self.state.trouble(&path, format!("prefixes cannot be parked there: {error}")),
        }
        written
    }

    /// Reads a model's file, and checks every byte of it.
    pub(super) fn read(&self, model: &ModelId) -> Result<Bytes, ParkedFileError> {
        let mut content = Vec::new();
        open_state_file(&self.path(model), StateFileUse::Read)?.read_to_end(&mut content)?;
        let (head, _) = check_parked(&content)?;
        if head.model != *model {
            return Err(ParkedFileError::OtherModel(head.model));
        }
        Ok(content.into())
    }

    /// Removes a model's file. One that is not there is no fault.
    pub(super) fn remove(&self, model: &ModelId) {
        let path = self.path(model);
        self.state.forget(&path);
        remove(&path);
    }

    /// The files of earlier processes. Everything else in the folder is removed: drafts, and files that do not begin as
    /// parked prefixes do. Returns the number of those, too.
    pub(super) fn find(&self) -> (Vec<EarlierFile>, usize) {
        let (mut found, mut removed) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match look(&path) {
                Ok(file) if self.path(&file.model) == path => found.push(file),
                Ok(_) => removed += usize::from(remove(&path)),
                Err(error) => {
                    tracing::warn!("{} is removed: {error}", path.display());
                    removed += usize::from(remove(&path));
                }
            }
        }
        (found, removed)
    }

    /// Removes all files.
    pub(super) fn clear(&self) -> usize {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter(|entry| remove(&entry.path())).count()
    }
}

fn look(path: &Path) -> Result<EarlierFile, ParkedFileError> {
    let file = open_state_file(path, StateFileUse::Read)?;
    let about = file.metadata()?;
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head)?;
    match ParkedReader::default().read(&head)? {
        Some((ParkedFrame::Head(head), _)) => {
            Ok(EarlierFile { model: head.model, bytes: about.len(), at: about.modified()? })
        }
        _ => Err(ParkedFault::Torn.into()),
    }
}

fn remove(path: &Path) -> bool {
    match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            tracing::warn!("{} holds prompts and cannot be removed: {error}", path.display());
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use model_boss_protocol::ParkedWriter;

    use super::*;

    pub(crate) fn parked(model: &ModelId) -> Vec<u8> {
        let (mut writer, mut all) = ParkedWriter::start(model, "k").unwrap();
        all.extend(writer.block(3, |body| body.extend_from_slice(b"keys and values")).unwrap());
        all.extend(writer.end());
        all
    }

    #[test]
    fn en_3_files_are_private_and_found_by_a_later_process() {
        let root = tempfile::tempdir().unwrap();
        let files = ParkedFiles::new(&StateFolder::new(root.path()));
        assert_eq!(files.find(), (Vec::new(), 0));
        for model in ["a", "org/b:Q4 ü", ".."] {
            files.write(&model.into(), &parked(&model.into())).unwrap();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&root.path().join("parked")), 0o700);
        assert_eq!(mode(&files.path(&"a".into())), 0o600);
        fs::write(root.path().join("parked/a.prefixes.new"), "a draft").unwrap();
        let (found, removed) = files.find();
        let mut names: Vec<&str> = found.iter().map(|file| file.model.as_str()).collect();
        names.sort_unstable();
        assert_eq!((names, removed), (vec!["..", "a", "org/b:Q4 ü"], 1));
        assert_eq!(files.read(&"a".into()).unwrap(), parked(&"a".into()));
        files.remove(&"a".into());
        files.remove(&"a".into());
        assert!(matches!(files.read(&"a".into()), Err(ParkedFileError::Read(_))));
        assert_eq!(files.clear(), 2);
    }

    #[test]
    fn en_3_a_damaged_file_and_one_of_another_model_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let files = ParkedFiles::new(&StateFolder::new(root.path()));
        let (model, whole) = (ModelId::from("a"), parked(&"a".into()));
        for length in 0..whole.len() {
            files.write(&model, &whole[..length]).unwrap();
            assert!(matches!(files.read(&model), Err(ParkedFileError::Damaged(_))), "cut at {length}");
        }
        files.write(&model, &parked(&"b".into())).unwrap();
        assert!(matches!(files.read(&model), Err(ParkedFileError::OtherModel(_))));
        assert_eq!(files.find(), (Vec::new(), 1), "its name is another model's");
    }
}
