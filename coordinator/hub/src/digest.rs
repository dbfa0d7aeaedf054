//! The identities of files: SHA-256 for large ones, and git's SHA-1 for small ones, as the hub names them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ring::digest::{Context, Digest, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use tokio_util::sync::CancellationToken;

/// The bytes that are read and digested at a time.
const PIECE: usize = 1 << 20;

/// The checksum of a file, by which the cache names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileChecksum {
    /// The SHA-256 of the content, for files of git's large file storage.
    Sha256(String),
    /// The SHA-1 that git gives the content.
    GitSha1(String),
}

impl FileChecksum {
    /// The checksum with these hexadecimal digits, by their number.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let text = text.trim_matches('"').to_ascii_lowercase();
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text.len() {
            64 if is_hex => Some(Self::Sha256(text)),
            40 if is_hex => Some(Self::GitSha1(text)),
            _ => None,
        }
    }

    /// The name of the file in the cache.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::GitSha1(text) => text,
        }
    }

    /// Whether both are of one kind and differ.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self != other
    }

    /// Computes the checksum of the same kind of a file. `None` means that it was cancelled.
    pub(crate) fn computed(&self, path: &Path, cancel: &CancellationToken) -> io::Result<Option<String>> {
        let mut file = File::open(path)?;
        let mut context = match self {
            Self::Sha256(_) => Context::new(&SHA256),
            Self::GitSha1(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", file.metadata()?.len()).as_bytes());
                context
            }
        };
        let mut piece = vec![0; PIECE];
        loop {
            if cancel.is_cancelled() {
                return Ok(None);
            }
            match file.read(&mut piece)? {
                0 => return Ok(Some(hex(&context.finish()))),
                read => context.update(piece.get(..read).unwrap_or_default()),
            }
        }
    }
}

impl fmt::Display for FileChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn hex(digest: &Digest) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_6_checksums_are_those_of_git_and_of_its_large_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "hello\n").unwrap();
        let cancel = CancellationToken::new();
        for known in [
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
            "ce013625030ba8dba906f756967f9e9ca394464a",
        ] {
            let checksum = FileChecksum::of(&format!("\"{known}\"")).unwrap();
            assert_eq!(checksum.computed(&file, &cancel).unwrap().as_deref(), Some(known));
        }
        assert_eq!(FileChecksum::of("abc-5"), None);
        assert_eq!(FileChecksum::of(&"../".repeat(14)[..40]), None);
        cancel.cancel();
        assert_eq!(FileChecksum::of(&"0".repeat(64)).unwrap().computed(&file, &cancel).unwrap(), None);
    }
}
