//! Capabilities: proofs of leases that guests show to a coordinator over HTTP. The ledger and every list show a
//! lease's name, which is a digest of a secret that only its holder has. So names reveal nothing, and the ledger
//! holds no secret. After the store lost a lease, no other process can take its name.

use std::fmt;

use model_boss_lease::{LeaseId, Process, Token};
use ring::{digest, hmac};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::StoreError;

/// The number of bytes of a secret.
const SECRET: usize = 16;
/// The number of bytes of a lease's name: finding another secret for a name takes 2^80 tries.
const NAME: usize = 10;

/// The proof that a guest shows for a lease. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Proof {
    /// The secret of the lease's name.
    Capability(Capability),
    /// The token of a lease that an earlier version granted. The token was the lease's name too, so the user has to
    /// match as well.
    Fence(Token),
}

/// The secret of a lease's name. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Capability([u8; SECRET]);

/// The key from which one run of a coordinator derives secrets.
pub(crate) struct CapabilityKey(hmac::Key);

impl CapabilityKey {
    pub(crate) fn random() -> Result<Self, StoreError> {
        let bytes: [u8; 32] = random()?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The secret for a request. The same request gives the same secret, so that a lost answer can be repeated.
    pub(crate) fn capability(&self, owner: &Process, request_id: &str) -> Capability {
        let Process { pid, start_time, pid_ns } = owner;
        let tag = hmac::sign(&self.0, format!("{pid} {start_time} {pid_ns} {request_id}").as_bytes());
        let mut secret = [0; SECRET];
        secret.copy_from_slice(&tag.as_ref()[..SECRET]);
        Capability(secret)
    }
}

impl Capability {
    /// The name of the lease that the secret proves.
    pub fn lease(&self) -> LeaseId {
        let digest = digest::digest(&digest::SHA256, &self.0);
        name(&digest.as_ref()[..NAME])
    }

    /// Whether the name is the digest of this secret.
    pub fn opens(&self, lease: &LeaseId) -> bool {
        self.lease() == *lease
    }
}

/// A random name for a lease whose holder uses the ledger itself.
pub(crate) fn random_name() -> Result<LeaseId, StoreError> {
    let bytes: [u8; NAME] = random()?;
    Ok(name(&bytes))
}

/// The name that an earlier version gave to a lease with this token.
pub(crate) fn earlier_name(token: Token) -> LeaseId {
    LeaseId::from(format!("lease-{}", token.0))
}

fn name(bytes: &[u8]) -> LeaseId {
    LeaseId::from(format!("lease-{}", hex(bytes)))
}

fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| StoreError::Host("random numbers"))?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(…)")
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(…)")
    }
}

impl Serialize for Proof {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Capability(Capability(secret)) => serializer.serialize_str(&hex(secret)),
            Self::Fence(token) => token.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Proof {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "the token of the lease, as it was given with the grant")]
        enum WrittenToken {
            Number(u64),
            Text(String),
        }
        match WrittenToken::deserialize(deserializer)? {
            WrittenToken::Number(number) => Ok(Self::Fence(Token(number))),
            // The text itself may be a secret with a typing error: it is not echoed.
            WrittenToken::Text(text) => parse(&text)
                .map(|secret| Self::Capability(Capability(secret)))
                .ok_or_else(|| D::Error::custom("this is no token of a lease: it has 32 hexadecimal digits")),
        }
    }
}

fn parse(text: &str) -> Option<[u8; SECRET]> {
    let mut secret = [0; SECRET];
    if text.len() != 2 * SECRET || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in secret.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(pid: u32) -> Process {
        Process { pid, start_time: 7, pid_ns: "pid:[1]".to_owned() }
    }

    #[test]
    fn a_secret_opens_its_own_name_and_is_the_same_for_the_same_request() {
        let key = CapabilityKey::random().unwrap();
        let capability = key.capability(&owner(1), "a");
        assert_eq!(capability, key.capability(&owner(1), "a"), "an answer can be given again");
        assert!(capability.opens(&capability.lease()));
        for other in [key.capability(&owner(2), "a"), key.capability(&owner(1), "b")] {
            assert!(!other.opens(&capability.lease()));
        }
        let later = CapabilityKey::random().unwrap().capability(&owner(1), "a");
        assert_ne!(later, capability, "every run of a coordinator has its own key");
    }

    #[test]
    fn a_secret_travels_as_text_and_is_never_printed() {
        let capability = CapabilityKey::random().unwrap().capability(&owner(1), "a");
        let proof = Proof::Capability(capability.clone());
        let text = serde_json::to_string(&proof).unwrap();
        assert_eq!(serde_json::from_str::<Proof>(&text).unwrap(), proof);
        assert_eq!(
            serde_json::from_str::<Proof>("1758000000000000").unwrap(),
            Proof::Fence(Token(1_758_000_000_000_000))
        );
        let secret = text.trim_matches('"');
        assert!(!capability.lease().to_string().contains(&secret[..8]));
        assert_eq!(format!("{proof:?} {capability:?}"), "Proof(…) Capability(…)");
        let error = serde_json::from_str::<Proof>("\"0123\"").unwrap_err().to_string();
        assert!(error.contains("32 hexadecimal digits") && !error.contains("0123"), "{error}");
        assert!(serde_json::from_str::<Proof>("\"+123456789012345678901234567890ab\"").is_err());
    }
}
