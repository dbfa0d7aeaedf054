//! Landlock: files, TCP ports, abstract sockets and signals.

use std::fs::File;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::files::AllowedFiles;

/// The newest rights that are taken away. Those that the kernel does not know are left out.
const NEWEST: ABI = ABI::V10;

/// Limits the calling thread to these files, and to no network at all. Returns the version of the kernel's interface,
/// or the reason why there is none.
pub(crate) fn limit(files: &AllowedFiles) -> Result<u32, String> {
    let status = rules(files).and_then(RulesetCreated::restrict_self);
    let status = status.map_err(|error| format!("Landlock refuses: {error}"))?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) | (_, LandlockStatus::NotImplemented) => {
            Err("this kernel has no Landlock".to_owned())
        }
        (_, LandlockStatus::NotEnabled) => Err("Landlock is not enabled in this kernel".to_owned()),
        (_, LandlockStatus::Available { effective_abi, .. }) => Ok((effective_abi as i32).unsigned_abs()),
    }
}

fn rules(files: &AllowedFiles) -> Result<RulesetCreated, RulesetError> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let read = |folder: bool| if folder { AccessFs::ReadFile | AccessFs::ReadDir } else { AccessFs::ReadFile.into() };
    for path in &files.read {
        rules = allow(rules, path, read)?;
    }
    for path in &files.run {
        let folder = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
        rules =
            allow(rules, path, |is_folder| if is_folder { folder } else { AccessFs::ReadFile | AccessFs::Execute })?;
    }
    for path in &files.write {
        rules = allow(rules, path, |_| AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate)?;
    }
    Ok(rules)
}

/// Adds a rule. A path that is not there has none, and whoever reads it reports that.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    rights: impl Fn(bool) -> BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(opened) = File::options().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path) else {
        return Ok(rules);
    };
    let folder = opened.metadata().is_ok_and(|about| about.is_dir());
    let rules = rules.add_rule(PathBeneath::new(opened.as_fd(), rights(folder)))?;
    if path.starts_with("/proc") {
        // The rule belongs to the file's inode. Files of /proc get another inode when the kernel drops an unused one
        // from its caches, as it does when memory is short, so this one stays in use.
        let _ = opened.into_raw_fd();
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};
    use std::net::{TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::*;

    /// Runs something on a thread that Landlock alone limits; `None` where the kernel has none of this version.
    fn limited<T: Send + 'static>(from: u32, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let run = move || limit(&AllowedFiles::default()).is_ok_and(|abi| abi >= from).then(run);
        std::thread::spawn(run).join().unwrap()
    }

    fn kind<T>(tried: io::Result<T>) -> Option<ErrorKind> {
        tried.err().map(|error| error.kind())
    }

    #[test]
    fn op_5_landlock_alone_keeps_files_closed() {
        assert!(File::open("/etc/passwd").is_ok());
        if let Some(tried) = limited(1, || kind(File::open("/etc/passwd"))) {
            assert_eq!(tried, Some(ErrorKind::PermissionDenied));
        }
    }

    #[test]
    fn op_5_landlock_alone_keeps_ports_closed_from_abi_4_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(TcpStream::connect(address).is_ok());
        let tried = limited(4, move || (kind(TcpStream::connect(address)), kind(TcpListener::bind("127.0.0.1:0"))));
        if let Some(tried) = tried {
            assert_eq!(tried, (Some(ErrorKind::PermissionDenied), Some(ErrorKind::PermissionDenied)));
        }
    }

    #[test]
    fn op_5_landlock_alone_keeps_abstract_sockets_closed_from_abi_6_on() {
        let name = format!("model-boss-landlock-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        assert!(UnixStream::connect_addr(&address).is_ok());
        if let Some(tried) = limited(6, move || kind(UnixStream::connect_addr(&address))) {
            assert_eq!(tried, Some(ErrorKind::PermissionDenied));
        }
    }
}
