//! One sample of a device, and the trait of probes that take it.

use std::fmt;
use std::time::Instant;

use model_boss_protocol::{ByteCount, DeviceId};
use serde::Serialize;

/// A probe samples one kind of device. It may block, and never panics on what the system reports.
pub trait Probe: Send + 'static {
    /// Samples all the probe's devices. `leased` are the roots of the process trees that hold leases.
    fn sample(&mut self, leased: &[u32]) -> Vec<DeviceSample>;

    /// The probe's own fault, as human-readable text.
    fn problem(&self) -> Option<String> {
        None
    }
}

/// Why a device cannot be used now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The device's figures cannot be read at the moment, for this reason.
    Unreadable(String),
    /// The device's driver no longer lists it.
    Lost,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => write!(f, "its memory is not known: {why}; nothing is placed there meanwhile"),
            Self::Lost => f.write_str(
                "it is gone, its driver does not list it any more; its models ended, and nothing is placed there until \
                 it is seen again",
            ),
        }
    }
}

/// One device at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceSample {
    /// The device's id.
    pub device: DeviceId,
    /// The device's name, human-readable.
    pub name: String,
    /// A GPU's UUID, its identity.
    pub uuid: Option<String>,
    /// The memory that models may use in all.
    pub capacity: Option<ByteCount>,
    /// The memory kept free for other programs.
    pub reserve: ByteCount,
    /// The memory in use by any process.
    pub used: Option<ByteCount>,
    /// The memory of each process, if the driver reports it. Leased processes are always among them then.
    #[serde(skip)]
    pub processes: Vec<(u32, ByteCount)>,
    /// Whether the driver reports the memory of each process. Some do not (WSL, some MIG, containers).
    pub told_apart: bool,
    /// The memory that idle models may keep here (BC-1).
    #[serde(skip)]
    pub retention: Option<ByteCount>,
    /// Why the device cannot be used now.
    #[serde(skip)]
    pub trouble: Option<Trouble>,
    /// Whether only one model at a time may use the device (MM-5).
    #[serde(skip)]
    pub exclusive: bool,
    /// The time of the sample.
    #[serde(skip)]
    pub sampled_at: Instant,
}

impl DeviceSample {
    /// Makes every changing figure of the device unknown.
    pub(super) fn without_figures(&self, trouble: Trouble) -> Self {
        Self { used: None, processes: Vec::new(), trouble: Some(trouble), sampled_at: Instant::now(), ..self.clone() }
    }
}
