//! The files of one revision, as the hub lists them.

use model_boss_protocol::check_hub_path;
use serde::Deserialize;

use super::digest::FileChecksum;

/// One revision of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RevisionListing {
    /// The commit that the revision means now.
    pub(crate) commit: String,
    pub(crate) files: Vec<ListedFile>,
}

/// One file of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// The path in the repository.
    pub(crate) path: String,
    /// The size in bytes and the checksum, unless the listing leaves them out.
    pub(crate) identity: Option<FileIdentity>,
}

/// The size and the checksum of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) bytes: u64,
    pub(crate) checksum: FileChecksum,
}

#[derive(Deserialize)]
struct RevisionBody {
    sha: String,
    #[serde(default)]
    siblings: Vec<SiblingBody>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SiblingBody {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LfsBody>,
}

#[derive(Deserialize)]
struct LfsBody {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

impl RevisionListing {
    /// Reads the answer about a revision. Paths that lead out of a folder are faults.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        let body: RevisionBody = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if !is_commit(&body.sha) {
            return Err(format!("'{}' is no commit", body.sha));
        }
        let files = body.siblings.into_iter().map(|sibling| {
            check_hub_path(&sibling.rfilename).map_err(|error| error.to_string())?;
            Ok(ListedFile { identity: sibling.identity(), path: sibling.rfilename })
        });
        Ok(Self { commit: body.sha, files: files.collect::<Result<_, String>>()? })
    }
}

/// Whether a text may be a commit. It becomes the name of a folder.
pub(crate) fn is_commit(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

impl SiblingBody {
    fn identity(&self) -> Option<FileIdentity> {
        let (bytes, checksum) = match &self.lfs {
            Some(lfs) => (Some(lfs.size), FileChecksum::of(&lfs.sha256)),
            None => (self.size, self.blob_id.as_deref().and_then(FileChecksum::of)),
        };
        Some(FileIdentity { bytes: bytes?, checksum: checksum? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_6_a_listing_gives_sizes_and_checksums() {
        let (sha256, sha1) = ("ab".repeat(32), "cd".repeat(20));
        let body = format!(
            r#"{{"sha":"0123","gated":"auto","siblings":[
                {{"rfilename":"a/m.gguf","size":5,"blobId":"{sha1}","lfs":{{"sha256":"{sha256}","size":5,"pointerSize":1}}}},
                {{"rfilename":"config.json","size":2,"blobId":"{sha1}"}},{{"rfilename":"x.json"}}]}}"#
        );
        let listing = RevisionListing::parse(body.as_bytes()).unwrap();
        let of = |at: usize| listing.files[at].identity.clone().map(|known| (known.bytes, known.checksum));
        assert_eq!(of(0), Some((5, FileChecksum::Sha256(sha256))));
        assert_eq!(of(1), Some((2, FileChecksum::GitSha1(sha1))));
        assert_eq!(of(2), None);
        for (bad, why) in [
            ("{}", "sha"),
            (r#"{"sha":"../x"}"#, "no commit"),
            (r#"{"sha":"1","siblings":[{"rfilename":"../../x"}]}"#, "no path inside"),
        ] {
            assert!(RevisionListing::parse(bad.as_bytes()).unwrap_err().contains(why), "{bad}");
        }
    }
}
