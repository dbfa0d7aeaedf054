//! The log of a model's workers on disk: `NAME.log`, and `NAME.log.old` with earlier output. The size is limited for
//! each model and for all of them together. The file is written as bytes, without regard to lines.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use model_boss_lease_store::{StateFileUse, open_state_file};
use model_boss_protocol::ModelId;

use crate::model_file::model_file_name;

/// The largest log file in bytes. A file that would grow larger is renamed, over the one that was renamed before.
const MAX_LOG: u64 = 8 << 20;
/// The most bytes of all logs together: the oldest files are removed.
const MAX_BYTES: u64 = 512 << 20;
const MAX_FILES: usize = 512;

/// The path `logs/NAME.log`.
pub(crate) fn log_path(folder: &Path, model: &ModelId) -> PathBuf {
    folder.join(format!("{}.log", model_file_name(model)))
}

/// The path of the earlier part of a log.
pub(crate) fn earlier_log(log: &Path) -> PathBuf {
    log.with_extension("log.old")
}

/// Limits on the sizes of logs.
struct LogLimits {
    log: u64,
    bytes: u64,
    files: usize,
}

/// A log that is open for writing.
pub(super) struct LogFile {
    path: PathBuf,
    limits: LogLimits,
    open: Option<Open>,
}

struct Open {
    file: File,
    identity: (u64, u64),
}

impl LogFile {
    /// The log at `path`, opened on the first write.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, limits: LogLimits { log: MAX_LOG, bytes: MAX_BYTES, files: MAX_FILES }, open: None }
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends whole lines. After an error, the next call opens the file again.
    pub(super) fn add(&mut self, text: &[u8]) -> io::Result<()> {
        // Another worker of the model may write to the file too, or have renamed it.
        let there = fs::symlink_metadata(&self.path).ok();
        let same = |open: &Open| there.as_ref().is_some_and(|about| identity(about) == open.identity);
        let mut open = match self.open.take().filter(same) {
            Some(open) => open,
            None => self.reopen()?,
        };
        let size = open.file.metadata()?.len();
        if size > 0 && size + text.len() as u64 > self.limits.log {
            fs::rename(&self.path, earlier_log(&self.path))?;
            open = self.reopen()?;
        }
        open.file.write_all(text)?;
        self.open = Some(open);
        Ok(())
    }

    fn reopen(&self) -> io::Result<Open> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
            self.limits.make_room(folder, &self.path);
        }
        let file = open_state_file(&self.path, StateFileUse::Append)?;
        let identity = identity(&file.metadata()?);
        Ok(Open { file, identity })
    }
}

impl LogLimits {
    /// Removes the logs with the oldest writes, but not this one.
    fn make_room(&self, folder: &Path, log: &Path) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut logs: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let about = entry.metadata().ok().filter(Metadata::is_file)?;
                Some((about.modified().ok()?, about.len(), entry.path()))
            })
            .filter(|(.., path)| path != log)
            .collect();
        logs.sort();
        let (mut bytes, mut files) = (logs.iter().map(|(_, size, _)| size).sum::<u64>(), logs.len());
        for (_, size, path) in logs {
            if bytes + 2 * self.log <= self.bytes && files < self.files {
                return;
            }
            // A file that cannot be removed is tried again with the next log.
            let _ = fs::remove_file(path);
            (bytes, files) = (bytes - size, files - 1);
        }
    }
}

fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;

    use super::*;

    fn log(path: PathBuf, limits: LogLimits) -> LogFile {
        LogFile { path, limits, open: None }
    }

    const ROOMY: LogLimits = LogLimits { log: 100, bytes: 10_000, files: 10 };

    #[test]
    fn each_model_has_a_log_of_its_own_inside_the_folder() {
        let long = "x".repeat(300);
        let names = [
            "team/m",
            "team_m",
            "team%2Fm",
            "Team/m",
            "../../etc/x",
            ".x",
            "%2Ex",
            "ä",
            "a b",
            &long,
            &(long.clone() + "y"),
        ];
        let paths: BTreeSet<PathBuf> = names.iter().map(|name| log_path(Path::new("/l"), &(*name).into())).collect();
        assert_eq!(paths.len(), names.len(), "{paths:?}");
        for path in &paths {
            assert_eq!(path.parent(), Some(Path::new("/l")));
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(name.len() < 250 && !name.starts_with('.'), "{name}");
        }
        assert_eq!(log_path(Path::new("/l"), &"org/model-7B.Q4".into()), Path::new("/l/org%2Fmodel-7B.Q4.log"));
    }

    #[test]
    fn a_log_is_moved_aside_while_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/m.log");
        let mut first = log(path.clone(), ROOMY);
        let mut second = log(path.clone(), ROOMY);
        for number in 0..40 {
            let writer = if number % 2 == 0 { &mut first } else { &mut second };
            writer.add(format!("line {number:02}\n").as_bytes()).unwrap();
            for file in [&path, &earlier_log(&path)] {
                assert!(fs::metadata(file).map_or(0, |about| about.len()) <= 100, "after line {number}");
            }
        }
        let [before, now] = [earlier_log(&path), path].map(|file| fs::read_to_string(file).unwrap());
        let lines: Vec<String> = (before + &now).lines().map(str::to_owned).collect();
        let expected: Vec<String> = (40 - lines.len()..40).map(|number| format!("line {number:02}")).collect();
        assert_eq!(lines, expected, "the last of them, in order");
        assert!(lines.len() >= 12);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&at("pipe.log"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        fs::write(at("target"), "precious").unwrap();
        symlink("target", at("link.log")).unwrap();
        fs::create_dir(at("folder.log")).unwrap();
        for name in ["pipe.log", "link.log", "folder.log"] {
            let error = log(at(name), ROOMY).add(b"x\n").unwrap_err();
            assert!(error.to_string().contains("not a file"), "{error}");
        }
        assert_eq!(fs::read_to_string(at("target")).unwrap(), "precious");
    }

    #[test]
    fn all_logs_together_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..30 {
            let limits = LogLimits { log: 100, bytes: 600, files: 8 };
            let mut one = log(folder.path().join(format!("{number}.log")), limits);
            one.add(&[b'x'; 90]).unwrap();
            let logs: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
            let bytes: u64 = logs.iter().map(|log| log.metadata().unwrap().len()).sum();
            assert!(logs.len() <= 8 && bytes <= 600, "{} files, {bytes} bytes", logs.len());
        }
        assert!(folder.path().join("29.log").exists(), "the one that is written stays");
    }
}
