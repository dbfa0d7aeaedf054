//! A file system that refuses writes on command, for all files of one program below one folder. A preloaded library
//! intercepts the program's system calls, so that the program under test is unchanged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;

use crate::boss::Launch;
use crate::sandbox::Sandbox;

/// The library's source.
const LIBRARY: &str = include_str!("../faulty_disk/failing_writes.c");

/// The file system below one folder. It works until a test makes it fail.
pub struct FailingWrites {
    control: File,
    words: PathBuf,
    library: PathBuf,
    folder: PathBuf,
}

impl FailingWrites {
    /// Prepares the library for files below `folder`. Returns `None` where there is no C compiler, or no way to preload
    /// a library.
    pub fn below(sandbox: &Sandbox, folder: &Path) -> Option<Self> {
        if !cfg!(all(target_os = "linux", target_env = "gnu")) {
            return None;
        }
        let [source, library, words] = ["writes.c", "writes.so", "writes.control"].map(|name| sandbox.path(name));
        std::fs::write(&source, LIBRARY).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        let compiled = match compile.output() {
            Ok(compiled) => compiled,
            Err(error) => {
                eprintln!("skipped: there is no C compiler ({error})");
                return None;
            }
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        std::fs::write(&words, [0; size_of::<u64>()]).unwrap();
        let control = File::options().read(true).write(true).open(&words).unwrap();
        Some(Self { control, words, library, folder: folder.to_owned() })
    }

    /// Preloads the library in a coordinator.
    pub fn under(&self, launch: &mut Launch) {
        launch.command.env("LD_PRELOAD", &self.library).env("FAILING_WRITES_CONTROL", &self.words);
        launch.command.env("FAILING_WRITES_FOLDER", &self.folder);
    }

    /// Makes writes fail with this error; with `EIO` reads fail too.
    pub fn fail(&self, error: Errno) {
        self.set(error as u64);
    }

    /// Makes all calls succeed again.
    pub fn work(&self) {
        self.set(0);
    }

    fn set(&self, word: u64) {
        self.control.write_all_at(&word.to_ne_bytes(), 0).unwrap();
    }
}
