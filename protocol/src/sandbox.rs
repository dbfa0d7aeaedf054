//! The confinement of a worker by the kernel: the operator's choice, and what is in force.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::DeviceId;

/// The operator's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// Workers are confined by what the kernel has.
    #[default]
    Auto,
    /// Workers are not confined.
    Off,
    /// A worker that cannot be confined loads no model.
    Required,
}

impl SandboxMode {
    /// The reason why a worker on this device is not confined, whatever the kernel has.
    pub fn exempts(self, device: &DeviceId) -> Option<&'static str> {
        match (self, device) {
            (Self::Off, _) => Some("sandbox = \"off\""),
            (Self::Auto | Self::Required, DeviceId::Cpu) => None,
            (Self::Auto | Self::Required, _) => Some("not yet run on a GPU"),
        }
    }

    /// The word in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Required => "required",
        }
    }
}

/// No such choice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a sandbox: one of auto, off, required")]
pub struct ParseSandboxModeError(String);

impl std::str::FromStr for SandboxMode {
    type Err = ParseSandboxModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Off, Self::Required]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| ParseSandboxModeError(text.to_owned()))
    }
}

impl fmt::Display for SandboxMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The means of the kernel that confine a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SandboxState {
    /// The version of Landlock's interface by which files, sockets and signals are limited.
    pub landlock: Option<u32>,
    /// Whether system calls are limited to a list.
    pub seccomp: bool,
    /// The reason why one of them is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

impl SandboxState {
    /// A process without any confinement.
    pub fn off(why: impl Into<String>) -> Self {
        Self { landlock: None, seccomp: false, missing: Some(why.into()) }
    }

    /// Whether nothing is missing.
    pub fn is_whole(&self) -> bool {
        self.landlock.is_some() && self.seccomp
    }
}

impl fmt::Display for SandboxState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.landlock, self.seccomp) {
            (Some(abi), true) => write!(f, "Landlock ABI {abi}, seccomp")?,
            (Some(abi), false) => write!(f, "Landlock ABI {abi}")?,
            (None, true) => f.write_str("seccomp")?,
            (None, false) => f.write_str("off")?,
        }
        match &self.missing {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_5_a_sandbox_is_one_of_three_words_and_gpus_have_none_yet() {
        for mode in [SandboxMode::Auto, SandboxMode::Off, SandboxMode::Required] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.as_str());
        }
        assert!("on".parse::<SandboxMode>().unwrap_err().to_string().contains("auto, off, required"));
        assert_eq!(SandboxMode::Auto.exempts(&DeviceId::Cpu), None);
        assert_eq!(SandboxMode::Required.exempts(&DeviceId::Cuda(0)), Some("not yet run on a GPU"));
        assert!(SandboxMode::Off.exempts(&DeviceId::Cpu).is_some());
    }

    #[test]
    fn op_5_what_is_in_force_is_one_line() {
        let whole = SandboxState { landlock: Some(7), seccomp: true, missing: None };
        assert_eq!(whole.to_string(), "Landlock ABI 7, seccomp");
        assert!(whole.is_whole() && !SandboxState::off("x").is_whole());
        let half = SandboxState { landlock: None, missing: Some("no Landlock".to_owned()), ..whole.clone() };
        assert_eq!(half.to_string(), "seccomp: no Landlock");
        assert_eq!(SandboxState::off("not yet run on a GPU").to_string(), "off: not yet run on a GPU");
        assert_eq!(serde_json::to_string(&whole).unwrap(), r#"{"landlock":7,"seccomp":true}"#);
    }
}
