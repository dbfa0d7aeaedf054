//! The state folder, and others that a coordinator writes to.

use std::path::PathBuf;

use model_boss_protocol::ByteCount;

use super::super::finding::{Area, Finding};

/// Free space below which logs and ledgers may soon not fit: the logs alone may take half of it.
const LITTLE: ByteCount = ByteCount::gib(1);
/// Free space below which the next write may fail.
const NOTHING: ByteCount = ByteCount::mib(1);
/// Free inodes below which files may soon not be made.
const FEW_INODES: u64 = 1_000;
/// File systems over a network, whose locks may not hold.
const REMOTE: [&str; 6] = ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"];

/// A folder that is written to.
#[derive(Clone, Debug, Default)]
pub(crate) struct FolderFacts {
    pub(crate) path: PathBuf,
    pub(crate) exists: bool,
    /// Whether it, or the nearest folder above that exists, may be written; else why not.
    pub(crate) denied: Option<String>,
    /// The owner's user, and whether that is the user of this process.
    pub(crate) owner: Option<(String, bool)>,
    /// The bits of its mode.
    pub(crate) mode: u32,
    pub(crate) free: Option<ByteCount>,
    /// Free inodes, and inodes in all; file systems without a fixed number give none.
    pub(crate) inodes: Option<(u64, u64)>,
    pub(crate) file_system: Option<String>,
}

pub(crate) fn judge(facts: &FolderFacts) -> Vec<Finding> {
    let area = Area::State;
    let path = facts.path.display();
    let mut findings = Vec::new();
    findings.push(match (&facts.denied, facts.exists) {
        (Some(why), true) => Finding::failure(area, "folder", format!("{path} cannot be written: {why}"))
            .why("Ledger, learned sizes and logs are kept there; a coordinator does not start without its ledger")
            .remedy("Give this user the folder, mount it writable, or set state_dir"),
        (Some(why), false) => {
            Finding::failure(area, "folder", format!("{path} does not exist and cannot be made: {why}"))
                .why("Ledger, learned sizes and logs are kept there; a coordinator does not start without its ledger")
                .remedy("Make it for this user, or set state_dir")
        }
        (None, true) => Finding::ok(area, "folder", format!("{path} can be written")),
        (None, false) => Finding::ok(area, "folder", format!("{path} does not exist yet; the first start makes it")),
    });
    if let Some((owner, false)) = &facts.owner
        && facts.exists
    {
        findings.push(
            Finding::warning(area, "owner", format!("{path} belongs to {owner}"))
                .why("A coordinator of that user may run with it; one of this user would fail on its files")
                .remedy("Run commands as that user, or set state_dir to a folder of your own"),
        );
    }
    if facts.exists && facts.mode & 0o022 != 0 {
        findings.push(
            Finding::failure(area, "mode", format!("others may write to {path} (mode {:o})", facts.mode & 0o7777))
                .why("Another user could replace the keys or the ledger")
                .remedy(format!("`chmod 700 {path}`")),
        );
    }
    findings.extend(space(facts));
    if let Some(kind) = facts.file_system.as_deref().filter(|kind| REMOTE.contains(kind)) {
        findings.push(
            Finding::warning(area, "file_system", format!("{path} is on {kind}"))
                .why("Locks of such file systems may not hold, and two coordinators could use one ledger")
                .remedy("Set state_dir to a local disk"),
        );
    } else if let Some(kind) = facts.file_system.as_deref().filter(|kind| matches!(*kind, "tmpfs" | "overlay")) {
        findings.push(
            Finding::note(area, "file_system", format!("{path} is on {kind}"))
                .why("Learned sizes, API keys and stored settings are gone after a restart of the machine or the container")
                .remedy("Set state_dir to a disk that stays; in a container, to a volume"),
        );
    }
    findings
}

fn space(facts: &FolderFacts) -> Vec<Finding> {
    let area = Area::State;
    let mut findings = Vec::new();
    if let Some(free) = facts.free {
        let found = format!("{free} are free on its disk");
        findings.push(if free < NOTHING {
            Finding::failure(area, "space", found)
                .why("Nothing can be written: no lease is granted, and settings do not last")
                .remedy("Free space on that disk, or set state_dir to another")
        } else if free < LITTLE {
            Finding::warning(area, "space", found)
                .why("Logs of models may take up to 512 MiB, and the ledger needs room for each change")
                .remedy("Free space on that disk, or set state_dir to another")
        } else {
            Finding::ok(area, "space", found)
        });
    }
    if let Some((free, all)) = facts.inodes
        && all > 0
        && free < FEW_INODES
    {
        findings.push(
            Finding::warning(area, "inodes", format!("{free} of {all} inodes are free on its disk"))
                .why("Without one no file can be made, however much space is free")
                .remedy("Remove many small files on that disk"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_a_folder_that_cannot_keep_state_is_found() {
        let good = FolderFacts {
            path: "/s".into(),
            exists: true,
            owner: Some(("me".into(), true)),
            mode: 0o40700,
            free: Some(ByteCount::gib(9)),
            inodes: Some((9_000, 10_000)),
            file_system: Some("ext4".into()),
            ..FolderFacts::default()
        };
        assert_eq!(results(&judge(&good)), [("folder", Grade::Ok), ("space", Grade::Ok)]);
        let denied = Some("read-only".to_owned());
        for (facts, expected) in [
            (FolderFacts { exists: false, ..good.clone() }, ("folder", Grade::Ok)),
            (FolderFacts { denied: denied.clone(), ..good.clone() }, ("folder", Grade::Failure)),
            (FolderFacts { denied, exists: false, ..good.clone() }, ("folder", Grade::Failure)),
            (FolderFacts { owner: Some(("root".into(), false)), ..good.clone() }, ("owner", Grade::Warning)),
            (FolderFacts { mode: 0o40777, ..good.clone() }, ("mode", Grade::Failure)),
            (FolderFacts { free: Some(ByteCount(1)), ..good.clone() }, ("space", Grade::Failure)),
            (FolderFacts { free: Some(ByteCount::mib(100)), ..good.clone() }, ("space", Grade::Warning)),
            (FolderFacts { inodes: Some((3, 10_000)), ..good.clone() }, ("inodes", Grade::Warning)),
            (FolderFacts { file_system: Some("nfs4".into()), ..good.clone() }, ("file_system", Grade::Warning)),
            (FolderFacts { file_system: Some("tmpfs".into()), ..good.clone() }, ("file_system", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
        let without_inodes = FolderFacts { inodes: Some((0, 0)), ..good };
        assert_eq!(judge(&without_inodes).len(), 2, "btrfs has no fixed number");
    }
}
