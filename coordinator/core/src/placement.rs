//! Where a model could run at all, by what the devices are, not by who holds what at the moment. Pure.

use model_boss_protocol::{ApiError, ByteCount, DeviceId, ErrorCode};

use crate::ModelDescription;
use crate::device::Devices;

/// Why a model can be placed nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlacementError {
    /// Nothing has been observed that would tell; later it may.
    #[error("the memory of {device} is not known")]
    Unknown { device: DeviceId },
    /// An operator wants it for something else; it may come back.
    #[error("{device} was freed for something else; 'model-boss free {device} --back' opens it again")]
    Closed { device: DeviceId },
    /// No such device here.
    #[error("device '{wanted}' is not there; known devices: {known}")]
    Absent { wanted: DeviceId, known: String },
    /// Too large for every device it may run on.
    #[error("it needs {needs}, and {limits}; choose a smaller model or a smaller context")]
    NeverFits { needs: ByteCount, limits: String },
}

impl PlacementError {
    /// What a client is told; `None` when waiting may help.
    pub(crate) fn refusal(&self, model: &ModelDescription) -> Option<ApiError> {
        let code = match self {
            Self::Unknown { .. } | Self::Closed { .. } => return None,
            Self::Absent { .. } => ErrorCode::DeviceNotAvailable,
            Self::NeverFits { .. } => ErrorCode::ModelNeverFits,
        };
        Some(ApiError::new(code, format!("model '{}' cannot be placed: {self}", model.id)))
    }
}

/// The devices that can hold the model when they are empty. `auto` takes accelerators when there are any large enough,
/// the host's memory otherwise; never an NPU or a declared device, which want to be named.
pub(crate) fn candidates(model: &ModelDescription, devices: &Devices) -> Result<Vec<DeviceId>, PlacementError> {
    let unknown = || Err(PlacementError::Unknown { device: model.device.clone() });
    if devices.is_empty() {
        return unknown();
    }
    if model.device != DeviceId::Auto && devices.get(&model.device).is_none() {
        let known: Vec<String> = devices.iter().map(|(name, _)| name.to_string()).collect();
        return Err(PlacementError::Absent { wanted: model.device.clone(), known: known.join(", ") });
    }
    let allowed = |name: &DeviceId| match &model.device {
        DeviceId::Auto => matches!(name, DeviceId::Cpu | DeviceId::Cuda(_) | DeviceId::Metal(_)),
        named => named == name,
    };
    let mut large_enough = Vec::new();
    let mut limits = Vec::new();
    let mut any_unknown = false;
    let mut closed = None;
    for (name, device) in devices.iter().filter(|(name, _)| allowed(name)) {
        match device.ceiling() {
            Some(ceiling) if device.closed && model.size.bytes <= ceiling => closed = Some(name.clone()),
            None => any_unknown = true,
            Some(ceiling) if model.size.bytes <= ceiling => large_enough.push(name.clone()),
            Some(ceiling) => limits.push(format!("{name} can give at most {ceiling}")),
        }
    }
    if large_enough.iter().any(|name| *name != DeviceId::Cpu) {
        large_enough.retain(|name| *name != DeviceId::Cpu);
    }
    if !large_enough.is_empty() {
        return Ok(large_enough);
    }
    if any_unknown {
        return unknown();
    }
    if let Some(device) = closed {
        return Err(PlacementError::Closed { device });
    }
    if limits.is_empty() {
        limits.push("no device is there for it".to_owned());
    }
    Err(PlacementError::NeverFits { needs: model.size.bytes, limits: limits.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{device, model};

    fn devices(list: &[(&str, u64)]) -> Devices {
        let mut devices = Devices::default();
        for (name, gib) in list {
            devices.observe(device(name, *gib));
        }
        devices
    }

    fn place(wanted: &str, gib: u64, on: &Devices) -> Result<Vec<DeviceId>, PlacementError> {
        let mut m = model("m", gib);
        m.device = wanted.parse().unwrap();
        candidates(&m, on)
    }

    #[test]
    fn dm_2_auto_takes_gpus_and_the_host_only_without_one_large_enough() {
        let both = devices(&[("cpu", 64), ("cuda:0", 8), ("cuda:1", 24), ("npu", 99)]);
        assert_eq!(place("auto", 4, &both), Ok(vec![DeviceId::Cuda(0), DeviceId::Cuda(1)]));
        assert_eq!(place("auto", 20, &both), Ok(vec![DeviceId::Cuda(1)]));
        assert_eq!(place("auto", 40, &both), Ok(vec![DeviceId::Cpu]));
        assert_eq!(place("auto", 4, &devices(&[("cpu", 8)])), Ok(vec![DeviceId::Cpu]));
        assert_eq!(place("cpu", 4, &both), Ok(vec![DeviceId::Cpu]));
        assert_eq!(place("npu", 4, &both), Ok(vec![DeviceId::Npu]));
    }

    #[test]
    fn what_never_fits_says_the_numbers() {
        let error = place("auto", 80, &devices(&[("cpu", 64), ("cuda:0", 8)])).unwrap_err();
        let refusal = error.refusal(&model("m", 80)).unwrap();
        assert_eq!(refusal.code, ErrorCode::ModelNeverFits);
        for part in ["80.0 GiB", "cpu can give at most 64.0 GiB", "cuda:0 can give at most 8.00 GiB"] {
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
    }

    #[test]
    fn dm_1_an_absent_device_lists_the_known_ones() {
        let error = place("cuda:3", 1, &devices(&[("cpu", 64), ("cuda:0", 8)])).unwrap_err();
        let refusal = error.refusal(&model("m", 1)).unwrap();
        assert_eq!(refusal.code, ErrorCode::DeviceNotAvailable);
        assert!(refusal.message.contains("cpu, cuda:0"), "{}", refusal.message);
    }

    #[test]
    fn rc_21_unknown_is_not_zero() {
        let mut on = devices(&[("cpu", 4)]);
        on.observe(DeviceObservationUnknown::of("cuda:0"));
        assert!(matches!(place("auto", 8, &on), Err(PlacementError::Unknown { .. })));
        assert_eq!(place("auto", 8, &on).unwrap_err().refusal(&model("m", 8)), None);
        assert_eq!(place("auto", 8, &Devices::default()).unwrap_err().refusal(&model("m", 8)), None);
    }

    struct DeviceObservationUnknown;
    impl DeviceObservationUnknown {
        fn of(name: &str) -> crate::DeviceObservation {
            crate::DeviceObservation { capacity: None, foreign: None, ..device(name, 0) }
        }
    }
}
