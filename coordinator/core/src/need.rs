//! The memory that a model takes of the devices at its place.

use model_boss_protocol::{ByteCount, DeviceId};

/// What a model takes of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Of the devices that compute, together.
    pub(crate) bytes: ByteCount,
    /// Of the host beside them; `None` where the host has no part in it, or is what computes.
    pub(crate) host: Option<ByteCount>,
}

impl Need {
    /// Bytes of the computing devices alone.
    pub(crate) const fn of(bytes: ByteCount) -> Self {
        Self { bytes, host: None }
    }

    /// Everything, wherever it is.
    pub(crate) fn total(&self) -> ByteCount {
        self.bytes + self.host.unwrap_or_default()
    }
}

/// How much on which device.
pub(crate) type Parts = Vec<(DeviceId, ByteCount)>;
