//! The memory that a model needs of the devices of its site.

use model_boss_protocol::{ByteCount, DeviceId};

/// The memory that a model needs at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Bytes of the computing devices, together.
    pub(crate) bytes: ByteCount,
    /// Bytes of the host beside the bytes of devices; `None` where the host has no part, or is the computing device.
    pub(crate) host: Option<ByteCount>,
}

impl Need {
    /// A need of the computing devices alone.
    pub(crate) const fn of(bytes: ByteCount) -> Self {
        Self { bytes, host: None }
    }

    /// The sum over computing devices and host.
    pub(crate) fn total(&self) -> ByteCount {
        self.bytes + self.host.unwrap_or_default()
    }
}

/// Bytes by device.
pub(crate) type Parts = Vec<(DeviceId, ByteCount)>;
