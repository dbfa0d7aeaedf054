//! All keys of a file, prepared for lookups.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::file::KeyFile;
use crate::record::KeyRecord;
use crate::secret::KeyDigest;

/// Every key by its digest. Nothing of a key can be learned from the time of a lookup: what is compared is a digest,
/// which a caller cannot choose.
#[derive(Clone, Default)]
pub struct KeySet {
    unnamed: Vec<KeyDigest>,
    named: HashMap<KeyDigest, Arc<KeyRecord>>,
    records: Vec<Arc<KeyRecord>>,
}

/// Whose key it is.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyHolder {
    /// The key has no name. It permits everything, to any client.
    Unnamed,
    /// The key is this client's.
    Client(Arc<KeyRecord>),
}

impl KeySet {
    /// The keys of a file.
    pub fn new(file: &KeyFile) -> Self {
        let records: Vec<Arc<KeyRecord>> = file.records().cloned().map(Arc::new).collect();
        let of = |record: &Arc<KeyRecord>| {
            let record = Arc::clone(record);
            record.secrets.clone().into_iter().map(move |secret| (secret.sha256, Arc::clone(&record)))
        };
        Self {
            unnamed: file.unnamed().map(KeyDigest::of).collect(),
            named: records.iter().flat_map(of).collect(),
            records,
        }
    }

    /// The holder of a key that is valid at this time, in seconds since 1970.
    pub fn holder(&self, offered: &str, now: u64) -> Option<KeyHolder> {
        let digest = KeyDigest::of(offered);
        if let Some(record) = self.named.get(&digest).filter(|record| record.has(&digest, now)) {
            return Some(KeyHolder::Client(Arc::clone(record)));
        }
        self.unnamed.contains(&digest).then_some(KeyHolder::Unnamed)
    }

    /// Every client with a key, in the order of the file.
    pub fn records(&self) -> &[Arc<KeyRecord>] {
        &self.records
    }

    /// The number of keys without a name.
    pub fn unnamed(&self) -> usize {
        self.unnamed.len()
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({} clients, {} keys without a name)", self.records.len(), self.unnamed.len())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::record::{KeyLimits, KeyRecordError};
    use crate::scope::KeyScope;
    use crate::secret::{KeySecret, draw_key};
    use crate::{KeyFile, KeyFileError};

    fn secret(key: &str, expires: Option<u64>) -> KeySecret {
        KeySecret { sha256: KeyDigest::of(key), created: 10, expires }
    }

    fn record(name: &str, key: &str) -> KeyRecord {
        let limits = KeyLimits { daily_tokens: Some(5), ..KeyLimits::default() };
        KeyRecord::new(name.into(), [KeyScope::Inference].into(), limits, secret(key, Some(100)))
    }

    fn client(holder: Option<KeyHolder>) -> Option<String> {
        match holder? {
            KeyHolder::Client(record) => Some(record.name.to_string()),
            KeyHolder::Unnamed => Some("-".to_owned()),
        }
    }

    #[test]
    fn op_5_a_key_is_found_by_its_digest_until_it_expires() {
        let (anna, bert) = (draw_key().unwrap(), draw_key().unwrap());
        let mut file = KeyFile::parse(Path::new("keys"), "# mine\n0123456789abcdef\n").unwrap();
        file.add(record("anna", &anna));
        file.add(record("bert", &bert));
        let set = KeySet::new(&file);
        assert_eq!(client(set.holder(&anna, 99)), Some("anna".to_owned()));
        assert_eq!(client(set.holder(&anna, 100)), None, "it has expired");
        assert_eq!(client(set.holder(&bert, 5)), Some("bert".to_owned()));
        assert_eq!(client(set.holder("0123456789abcdef", 5)), Some("-".to_owned()));
        assert_eq!(client(set.holder("", 5)), None);
        assert!(!format!("{set:?} {file:?}", file = file.records().collect::<Vec<_>>()).contains(&anna));
    }

    #[test]
    fn op_5_a_new_key_takes_the_place_of_an_old_one_while_both_are_valid() {
        let mut anna = record("anna", "old");
        anna.rotate(secret("new", None), 60, 20);
        let valid = |key: &str, now| anna.has(&KeyDigest::of(key), now);
        assert!(valid("old", 59) && !valid("old", 60) && valid("new", 59) && valid("new", 1_000));
        anna.rotate(secret("newest", None), 200, 61);
        assert_eq!(anna.secrets.len(), 2, "the first one has ended");
        assert!(!anna.permits(KeyScope::Manage) && anna.permits(KeyScope::Inference));
        anna.scopes.insert(KeyScope::Admin);
        assert!(anna.permits(KeyScope::Manage));
    }

    #[test]
    fn op_5_a_file_keeps_its_comments_and_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/keys");
        let key = draw_key().unwrap();
        let mut file = KeyFile::parse(&path, "# for the notebook\n\n0123456789abcdef\n").unwrap();
        file.add(record("anna", &key));
        file.write(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# for the notebook\n\n0123456789abcdef\n{\"name\":\"anna\"") && !text.contains(&key));
        let mut again = KeyFile::read(&path).unwrap();
        assert_eq!(again.records().next(), Some(&record("anna", &key)));
        assert!(again.remove(&"anna".into()) && !again.remove(&"anna".into()) && !again.is_empty());
        assert!(again.record_mut(&"anna".into()).is_none());
    }

    #[test]
    fn op_5_what_is_wrong_with_a_file_is_said_by_line() {
        let good = serde_json::to_string(&record("anna", "key")).unwrap();
        let wrong = |text: &str| KeyFile::parse(Path::new("keys"), text).err().map(|error| error.to_string());
        for (text, part) in [
            ("\nshort\n".to_owned(), "keys:2: the key is shorter than 16"),
            (format!("{good}\n{good}\n"), "keys:2: 'anna' has keys in an earlier line"),
            (good.replace("inference", "boss"), "keys:1: unknown variant `boss`"),
            (good.replace("[\"inference\"]", "[]"), "no scope"),
            (good.replace("\"daily_tokens\":5", "\"daily_spend_usd\":-1.0"), "0 or more"),
            (good.replace("anna", "default"), "stands for clients without a key"),
            (good.replace("anna", "\\u0007"), "printable"),
            (good.replace("created", "made"), "keys:1: unknown field `made`"),
        ] {
            let told = wrong(&text);
            assert!(told.as_ref().is_some_and(|told| told.contains(part)), "{text}: {told:?}");
        }
        let mut many = record("anna", "key");
        many.secrets = vec![many.secrets[0].clone(); 9];
        assert_eq!(many.check(), Err(KeyRecordError::Secrets("anna".to_owned())));
        assert!(matches!(KeyFile::read(Path::new("/nothing/here")), Err(KeyFileError::Read(..))));
    }
}
