//! One look at a device, and whoever takes it.

use std::fmt;
use std::time::Instant;

use model_boss_protocol::{ByteCount, DeviceId};
use serde::Serialize;

/// Looks at one kind of device. May block; never panics on what the system says.
pub trait Probe: Send + 'static {
    /// All its devices now. `leased` are the roots of the process trees that hold leases.
    fn sample(&mut self, leased: &[u32]) -> Vec<DeviceSample>;

    /// What is wrong with the probe itself, for people.
    fn problem(&self) -> Option<String> {
        None
    }
}

/// Why a device cannot be used now, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// What it has cannot be read at the moment.
    Unreadable(String),
    /// Its driver does not list it any more.
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
    /// Which device.
    pub device: DeviceId,
    /// What it is called.
    pub name: String,
    /// A GPU's identity.
    pub uuid: Option<String>,
    /// The memory that may be used for models in all.
    pub capacity: Option<ByteCount>,
    /// Kept free for others.
    pub reserve: ByteCount,
    /// In use by anybody.
    pub used: Option<ByteCount>,
    /// In use by each process that could be told apart; of the leased ones, all that could.
    #[serde(skip)]
    pub processes: Vec<(u32, ByteCount)>,
    /// Whether the driver says what each process uses. Some do not (WSL, some MIG, containers).
    pub told_apart: bool,
    /// What models may keep here while idle (BC-1).
    #[serde(skip)]
    pub retention: Option<ByteCount>,
    /// Why it cannot be used now.
    #[serde(skip)]
    pub trouble: Option<Trouble>,
    /// Only one model at a time may use it (MM-5).
    #[serde(skip)]
    pub exclusive: bool,
    /// When this was seen.
    #[serde(skip)]
    pub sampled_at: Instant,
}

impl DeviceSample {
    /// The same device with everything that changes unknown.
    pub(super) fn without_figures(&self, trouble: Trouble) -> Self {
        Self { used: None, processes: Vec::new(), trouble: Some(trouble), sampled_at: Instant::now(), ..self.clone() }
    }
}
