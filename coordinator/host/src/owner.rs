//! The owner key: it proves to a coordinator that a caller is the user who runs it. The key is in a file of the state
//! folder that only this user can read. It is drawn anew at each start, and valid for the port in the file.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use model_boss_lease_store::{StateFileUse, open_state_file};

use crate::state_folder::{KeptFile, StateFolder};

/// The header that carries the key.
pub const OWNER_KEY: &str = "x-model-boss-owner";
/// The file's name in the state folder.
const FILE: &str = "owner.key";
/// The key's length in random bytes.
const STRENGTH: usize = 32;
/// The longest valid file, in bytes: a port and the key in hexadecimal are shorter.
const LONGEST: u64 = 128;

/// The key of a running coordinator.
pub struct OwnerKey {
    key: String,
    /// The file, written until it succeeds: a disk may be full at the start.
    _file: KeptFile,
}

impl OwnerKey {
    /// Draws a key for the coordinator on this port, and writes it to the state folder.
    pub fn create(state: &StateFolder, port: u16) -> io::Result<Self> {
        let mut bits = [0; STRENGTH];
        getrandom::fill(&mut bits).map_err(|error| io::Error::other(error.to_string()))?;
        let key: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{port} {key}\n");
        let cannot = "`run PATH` is held to model_roots, its key cannot be written";
        let file = state.keep(FILE, cannot, move || Ok(line.clone().into_bytes()));
        file.changed();
        Ok(Self { key, _file: file })
    }

    /// Whether `offered` is the key. The comparison takes the same time for every text of the key's length.
    pub fn accept(&self, offered: &str) -> bool {
        let (own, offered) = (self.key.as_bytes(), offered.as_bytes());
        own.len() == offered.len() && own.iter().zip(offered).fold(0, |different, (a, b)| different | (a ^ b)) == 0
    }
}

/// The key of the coordinator on this port with that state folder. `None` where the file belongs to another user, or
/// others can read it.
pub fn key_for(state_dir: &Path, port: u16) -> Option<String> {
    let file = state_dir.join(FILE);
    let opened = open_state_file(&file, StateFileUse::Read).ok()?;
    let about = opened.metadata().ok()?;
    let is_ours = about.uid() == nix::unistd::geteuid().as_raw() && about.mode() & 0o077 == 0;
    let mut text = String::new();
    is_ours.then(|| opened.take(LONGEST).read_to_string(&mut text).ok()).flatten()?;
    let (written, key) = text.trim().split_once(' ')?;
    let is_key = key.len() == 2 * STRENGTH && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    (written.parse() == Ok(port) && is_key).then(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// Waits until the file holds a key other than `before`.
    async fn written(state: &Path, before: Option<&str>) -> String {
        loop {
            match key_for(state, 8210) {
                Some(key) if Some(key.as_str()) != before => return key,
                _ => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
    }

    #[tokio::test]
    async fn a_key_is_for_its_user_and_its_port() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let kept = StateFolder::new(&state);
        let key = OwnerKey::create(&kept, 8210).unwrap();
        let read = written(&state, None).await;
        assert!(key.accept(&read) && !key.accept("") && !key.accept(&read.replace(|c| c != 'f', "f")));
        assert_eq!(key_for(&state, 8211), None);
        assert_eq!(key_for(folder.path(), 8210), None);
        // Each start draws another key.
        let again = OwnerKey::create(&kept, 8210).unwrap();
        assert!(!again.accept(&read) && again.accept(&written(&state, Some(&read)).await));
        let file = state.join(FILE);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(key_for(&state, 8210), None, "others can read it");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&file, folder.path().join("real")).unwrap();
        symlink(folder.path().join("real"), &file).unwrap();
        assert_eq!(key_for(&state, 8210), None, "a link may lead anywhere");
    }
}
