//! A file system that takes nothing when it is told to, for everything that one program does below one folder: a library
//! between the program and the system. Nothing of it is in the program under test.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;

use crate::boss::Launch;
use crate::sandbox::Sandbox;

/// The library.
const LIBRARY: &str = include_str!("../faulty_disk/failing_writes.c");

/// The file system below one folder. It works until it is told otherwise.
pub struct FailingWrites {
    control: File,
    words: PathBuf,
    library: PathBuf,
    folder: PathBuf,
}

impl FailingWrites {
    /// For what is below `folder`. None where there is no C compiler, or no way to stand between.
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

    /// Puts it under a coordinator.
    pub fn under(&self, launch: &mut Launch) {
        launch.command.env("LD_PRELOAD", &self.library).env("FAILING_WRITES_CONTROL", &self.words);
        launch.command.env("FAILING_WRITES_FOLDER", &self.folder);
    }

    /// From now on writes fail with this error; with `EIO` reads do too.
    pub fn fail(&self, error: Errno) {
        self.set(error as u64);
    }

    /// From now on all is well.
    pub fn work(&self) {
        self.set(0);
    }

    fn set(&self, word: u64) {
        self.control.write_all_at(&word.to_ne_bytes(), 0).unwrap();
    }
}
