//! Names of devices. A `DeviceId` is the human-readable name; a GPU's identity is its UUID, stored beside it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ByteCount;

/// The name of a device, or `auto` for "the best fit when the model is loaded".
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceId {
    /// Chosen at load time.
    #[default]
    Auto,
    /// The host's processor and memory.
    Cpu,
    /// A CUDA GPU by its index in PCI bus order.
    Cuda(u32),
    /// A Metal GPU by index.
    Metal(u32),
    /// A neural processing unit.
    Npu,
    /// A device that `model-boss.toml` declares under `[devices.NAME]`.
    Custom(String),
}

/// The bytes that a process is assumed to take of each GPU for its context, kernels and libraries, until they are
/// measured (RC-20). A lease counts them, and a worker that fills its lease leaves them free.
pub const GPU_CONTEXT: ByteCount = ByteCount::mib(536);

/// The text cannot name a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDeviceError {
    /// The text is empty.
    #[error("a device name is empty; write cpu, cuda:N, metal:N, npu, auto or a declared device")]
    Empty,
    /// The number is invalid: `cuda:x`, `metal:-1`.
    #[error("'{0}' does not end in a device number such as cuda:0")]
    BadNumber(String),
    /// The text has characters that device names may not have.
    #[error("'{0}' is not a device name; use letters, digits, '-', '_', '.' and ':'")]
    BadName(String),
}

impl FromStr for DeviceId {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.trim();
        if name.is_empty() {
            return Err(ParseDeviceError::Empty);
        }
        let lower = name.to_ascii_lowercase();
        let (kind, number) = match lower.split_once(':') {
            Some((kind, number)) => (kind, Some(number)),
            None => (lower.as_str(), None),
        };
        let index = |number: Option<&str>| match number {
            None => Ok(0),
            // `parse` alone would accept "+1".
            Some(n) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
                n.parse().map_err(|_| ParseDeviceError::BadNumber(text.to_owned()))
            }
            Some(_) => Err(ParseDeviceError::BadNumber(text.to_owned())),
        };
        match (kind, number) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("npu", None) => Ok(Self::Npu),
            ("cuda", number) => index(number).map(Self::Cuda),
            ("metal" | "mps", number) => index(number).map(Self::Metal),
            _ if name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b)) => {
                Ok(Self::Custom(name.to_owned()))
            }
            _ => Err(ParseDeviceError::BadName(text.to_owned())),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
            Self::Metal(n) => write!(f, "metal:{n}"),
            Self::Npu => f.write_str("npu"),
            Self::Custom(name) => f.write_str(name),
        }
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dm_1_names_parse_and_print() {
        for (text, device, printed) in [
            ("cpu", DeviceId::Cpu, "cpu"),
            ("CPU", DeviceId::Cpu, "cpu"),
            ("cuda", DeviceId::Cuda(0), "cuda:0"),
            ("cuda:3", DeviceId::Cuda(3), "cuda:3"),
            ("metal", DeviceId::Metal(0), "metal:0"),
            ("mps", DeviceId::Metal(0), "metal:0"),
            ("metal:1", DeviceId::Metal(1), "metal:1"),
            ("npu", DeviceId::Npu, "npu"),
            ("auto", DeviceId::Auto, "auto"),
            ("hailo-8", DeviceId::Custom("hailo-8".into()), "hailo-8"),
        ] {
            let parsed: DeviceId = text.parse().unwrap();
            assert_eq!(parsed, device, "{text}");
            assert_eq!(parsed.to_string(), printed);
        }
    }

    #[test]
    fn dm_1_a_bad_number_is_quoted() {
        for text in ["cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:99999999999", "metal:one"] {
            let error = text.parse::<DeviceId>().expect_err(text);
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
        assert_eq!("  ".parse::<DeviceId>(), Err(ParseDeviceError::Empty));
        assert!("a b".parse::<DeviceId>().is_err());
    }

    proptest! {
        #[test]
        fn dm_1_round_trips_through_serde(n in any::<u32>(), name in "[a-z][a-z0-9_-]{0,12}") {
            for device in [DeviceId::Cpu, DeviceId::Cuda(n), DeviceId::Metal(n), DeviceId::Npu, DeviceId::Auto,
                           name.parse::<DeviceId>().unwrap()] {
                let json = serde_json::to_string(&device).unwrap();
                prop_assert_eq!(serde_json::from_str::<DeviceId>(&json).unwrap(), device);
            }
        }
    }
}
