//! A disk that fails on command, for the reads of one file by one program. A preloaded library intercepts the program's
//! system calls, so that the program under test is unchanged.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::binary;
use crate::sandbox::Sandbox;
use crate::wait::{PATIENCE, until};

/// The library's source.
const LIBRARY: &str = include_str!("../faulty_disk/faulty_disk.c");

/// The positions of the control file's words, as the library reads them.
const MODE: u64 = 0;
const FROM: u64 = 1;
const TIMES: u64 = 2;
const MET: u64 = 3;

/// The fault of a positioned read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The read fails as on a broken disk.
    Fails = 1,
    /// The read hangs until the disk works again.
    Hangs = 2,
    /// The read returns fewer bytes than requested.
    ReadsShort = 3,
}

/// The file system's handling of reads past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectReads {
    /// Direct reads have the result of the real file system.
    AsItIs,
    /// The file system refuses direct reads.
    Refused,
}

/// The disk of one program. It works until a test makes it fail.
pub struct FaultyDisk {
    control: File,
    program: PathBuf,
}

impl FaultyDisk {
    /// Preloads the library in the program `name` for the reads of the existing `file`. Returns `None` where there is
    /// no C compiler, or no way to preload a library.
    pub fn under(sandbox: &Sandbox, name: &str, file: &Path, direct: DirectReads) -> Option<Self> {
        if !cfg!(all(target_os = "linux", target_env = "gnu")) {
            return None;
        }
        let [source, library, words, program] =
            ["disk.c", "disk.so", "disk.control", "worker-on-disk"].map(|name| sandbox.path(name));
        std::fs::write(&source, LIBRARY).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        let compiled = match compile.output() {
            Ok(compiled) => compiled,
            Err(error) => {
                eprintln!("passed over: there is no C compiler ({error})");
                return None;
            }
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        std::fs::write(&words, [0; 4 * size_of::<u64>()]).unwrap();
        let refused = if direct == DirectReads::Refused { "FAULTY_DISK_NO_DIRECT=1 " } else { "" };
        let script = format!(
            "#!/bin/sh\nFAULTY_DISK_CONTROL='{}' FAULTY_DISK_FILE='{}' {refused}LD_PRELOAD='{}' exec '{}' \"$@\"\n",
            words.display(),
            file.display(),
            library.display(),
            binary(name).display(),
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let control = File::options().read(true).write(true).open(&words).unwrap();
        Some(Self { control, program })
    }

    /// The path of the program with the library.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Makes the next `times` reads at or after the byte `from` have this trouble.
    pub fn gets(&self, trouble: Trouble, from: u64, times: u64) {
        self.works();
        self.write(FROM, from);
        self.write(TIMES, times);
        self.write(MET, 0);
        self.write(MODE, trouble as u64);
    }

    /// Makes all reads succeed again; reads that hang continue.
    pub fn works(&self) {
        self.write(MODE, 0);
    }

    /// Waits until a read has had the trouble.
    pub async fn is_met(&self) {
        until(PATIENCE, "a read meets the trouble", async || (self.read(MET) > 0).then_some(())).await;
    }

    fn write(&self, word: u64, value: u64) {
        self.control.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
    }

    fn read(&self, word: u64) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, word * 8).unwrap();
        u64::from_ne_bytes(bytes)
    }
}
