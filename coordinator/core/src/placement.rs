//! The sites where a model could run at all, by the devices' properties and not by their present use. The module has no
//! state.

use std::cmp::Reverse;

use model_boss_protocol::{ByteCount, DeviceId, ModelId, SignedBytes};

use crate::device::{Devices, ScheduledDevice};
use crate::layers::{self, Rooms, is_gpu};
use crate::need::Need;
use crate::refusal::{Refusal, RefusalReason};
use crate::{Streaming, split};

/// The reason why a model can be placed nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlacementError {
    /// The observations so far do not suffice for a decision; later ones may.
    #[error("the memory of {device} is not known")]
    Unknown { device: DeviceId },
    /// An operator closed the device; it may be opened again.
    #[error("{device} was freed for something else")]
    Closed { device: DeviceId },
    /// The driver does not list the device any more; requests wait for its return until it is given up.
    #[error("{device} is gone: its driver does not list it any more; it is used again once it is seen")]
    Lost { device: DeviceId, given_up: bool },
    /// The wanted device does not exist on this machine.
    #[error("device '{wanted}' is not there; known devices: {known}")]
    Absent { wanted: DeviceId, known: String },
    /// The model is too large for every device it may run on.
    #[error("it needs {needs}{}, and {limits}; choose a smaller model or a smaller context", or_streamed(*.streamed))]
    NeverFits {
        needs: ByteCount,
        /// The bytes the model needs when streamed, if it may be.
        streamed: Option<ByteCount>,
        limits: String,
    },
}

impl PlacementError {
    /// The error for a client; `None` when waiting may help.
    pub(crate) fn refusal(&self, model: &ModelId) -> Option<Refusal> {
        let code = match self {
            Self::Unknown { .. } | Self::Closed { .. } | Self::Lost { given_up: false, .. } => return None,
            Self::Absent { .. } | Self::Lost { given_up: true, .. } => RefusalReason::DeviceUnavailable,
            Self::NeverFits { .. } => RefusalReason::NeverFits,
        };
        Some(Refusal::new(code, format!("model '{model}' cannot be placed: {self}")))
    }
}

fn or_streamed(least: Option<ByteCount>) -> String {
    least.map(|least| format!(" ({least} if its layers come and go)")).unwrap_or_default()
}

/// Devices that a model is loaded onto together: one, or several that share it (RC-22). A site that streams layers to
/// GPUs ends with the host, which buffers them (RS-11).
pub(crate) type Site = Vec<DeviceId>;

/// A model to be placed.
pub(crate) struct PlacementCandidate<'a> {
    /// The wanted device; `auto` lets the placement choose.
    pub(crate) device: &'a DeviceId,
    /// The memory the model needs in all, by site.
    pub(crate) bytes: &'a dyn Fn(&[DeviceId]) -> ByteCount,
    /// Whether the model can be spread over several devices.
    pub(crate) splittable: bool,
}

/// The sites that can hold the model when they are empty. `auto` prefers accelerators that are each large enough.
/// After them come several of one kind together, then the host's memory. NPUs and declared devices are used only when
/// named.
pub(crate) fn sites(wanted: &PlacementCandidate<'_>, devices: &Devices) -> Result<Vec<Site>, PlacementError> {
    if devices.is_empty() {
        return Err(PlacementError::Unknown { device: wanted.device.clone() });
    }
    if *wanted.device != DeviceId::Auto && devices.get(wanted.device).is_none() {
        let known: Vec<String> = devices.iter().map(|(name, _)| name.to_string()).collect();
        return Err(PlacementError::Absent { wanted: wanted.device.clone(), known: known.join(", ") });
    }
    let open = holding(wanted, devices, ScheduledDevice::is_open);
    if !open.is_empty() {
        return Ok(open);
    }
    let allowed = || devices.iter().filter(|(name, _)| is_allowed(wanted.device, name));
    if allowed().any(|(_, device)| device.is_open() && device.ceiling().is_none()) {
        return Err(PlacementError::Unknown { device: wanted.device.clone() });
    }
    let not_open: Site = holding(wanted, devices, |_| true).into_iter().flatten().collect();
    let not_open = || not_open.iter().filter_map(|name| Some((name, devices.get(name)?)));
    if let Some((name, _)) = not_open().find(|(_, device)| device.closed) {
        return Err(PlacementError::Closed { device: name.clone() });
    }
    if let Some((name, device)) = not_open().min_by_key(|(_, device)| device.given_up) {
        return Err(PlacementError::Lost { device: name.clone(), given_up: device.given_up });
    }
    let mut limits: Vec<String> =
        allowed().filter_map(|(name, device)| Some(format!("{name} can give at most {}", device.ceiling()?))).collect();
    if limits.is_empty() {
        limits.push("no device is there for it".to_owned());
    }
    if wanted.splittable && *wanted.device == DeviceId::Auto && allowed().filter(|(name, _)| is_gpu(name)).count() > 1 {
        limits.push("it is too large for the GPUs together".to_owned());
    }
    // This is the minimum on any single device.
    let alone = |name: &DeviceId| (wanted.bytes)(std::slice::from_ref(name));
    let needs = allowed().map(|(name, _)| alone(name)).min().unwrap_or_else(|| alone(wanted.device));
    Err(PlacementError::NeverFits { needs, streamed: None, limits: limits.join(", ") })
}

/// The sites of `usable` devices that can hold the model when they are empty.
fn holding(wanted: &PlacementCandidate<'_>, devices: &Devices, usable: impl Fn(&ScheduledDevice) -> bool) -> Vec<Site> {
    let usable = || devices.iter().filter(|(name, device)| is_allowed(wanted.device, name) && usable(device));
    let large_enough = |&(name, device): &(&DeviceId, &ScheduledDevice)| {
        device.ceiling().is_some_and(|ceiling| (wanted.bytes)(std::slice::from_ref(name)) <= ceiling)
    };
    let mut alone: Vec<Site> = usable().filter(large_enough).map(|(name, _)| vec![name.clone()]).collect();
    let is_host = |site: &Site| site[..] == [DeviceId::Cpu];
    if alone.iter().any(|site| !is_host(site)) {
        alone.retain(|site| !is_host(site));
        return alone;
    }
    if *wanted.device == DeviceId::Auto && wanted.splittable {
        let together: Vec<Site> = KINDS
            .into_iter()
            .flat_map(|kind| spreads(wanted.bytes, usable().filter(|(name, _)| kind(name)).collect()))
            .collect();
        if !together.is_empty() {
            return together;
        }
    }
    alone
}

/// The kinds of GPUs: those of one kind can share a model.
const KINDS: [fn(&DeviceId) -> bool; 2] =
    [|name| matches!(name, DeviceId::Cuda(_)), |name| matches!(name, DeviceId::Metal(_))];

/// The site for a streamed model that no site can hold whole. These are GPUs with the host as buffer: all of one kind
/// if the model can be split, else the one that can give most. Without GPUs it is the host. `room` is the memory that
/// a device could give.
pub(crate) fn streamed_site(
    wanted: &PlacementCandidate<'_>,
    streaming: impl Fn(&[DeviceId]) -> Streaming,
    devices: &Devices,
    room: impl Fn(&DeviceId) -> Option<SignedBytes>,
) -> Option<Site> {
    let open = |name: &DeviceId| devices.get(name).filter(|device| device.is_open()).and_then(|_| room(name));
    let allowed = || devices.iter().map(|(name, _)| name).filter(|name| is_allowed(wanted.device, name));
    let holds = |site: &[DeviceId], host: Option<SignedBytes>| {
        let rooms: Option<Vec<SignedBytes>> = site.iter().map(&open).collect();
        // The need depends on the site, including the host beside it.
        let whole: Site = site.iter().cloned().chain(host.map(|_| DeviceId::Cpu)).collect();
        rooms.is_some_and(|rooms| {
            layers::what_there_is(&streaming(&whole), &Rooms { computing: &rooms, host }).is_some()
        })
    };
    if let Some(host) = open(&DeviceId::Cpu) {
        for kind in KINDS {
            let mut gpus: Vec<(SignedBytes, &DeviceId)> =
                allowed().filter(|name| kind(name)).filter_map(|name| Some((open(name)?, name))).collect();
            gpus.sort_by_key(|&(room, name)| (Reverse(room), name));
            let spare = gpus.iter().filter(|(room, _)| *room > split::MARGIN).count();
            let together = if wanted.splittable && *wanted.device == DeviceId::Auto { spare } else { 1 };
            for count in [together, 1] {
                let mut site: Site = gpus.iter().take(count).map(|&(_, name)| name.clone()).collect();
                site.sort_unstable();
                if !site.is_empty() && holds(&site, Some(host)) {
                    site.push(DeviceId::Cpu);
                    return Some(site);
                }
            }
        }
    }
    let host = allowed().any(|name| *name == DeviceId::Cpu).then_some(vec![DeviceId::Cpu])?;
    holds(&host, None).then_some(host)
}

/// The emptiest devices that hold a model together: as few as possible, then one more, up to all of them.
fn spreads(bytes: &dyn Fn(&[DeviceId]) -> ByteCount, mut devices: Vec<(&DeviceId, &ScheduledDevice)>) -> Vec<Site> {
    devices.retain(|(_, device)| device.ceiling().is_some());
    devices.sort_by_key(|(name, device)| (Reverse(device.balance()), (*name).clone()));
    let ceilings: Vec<SignedBytes> =
        devices.iter().map(|(_, device)| device.ceiling().unwrap_or_default().signed()).collect();
    (2..=devices.len())
        .filter_map(|count| {
            let mut site: Site = devices[..count].iter().map(|(name, _)| (*name).clone()).collect();
            site.sort_unstable();
            split::holds(&Need::of(bytes(&site)), &ceilings[..count]).then_some(site)
        })
        .collect()
}

fn is_allowed(wanted: &DeviceId, name: &DeviceId) -> bool {
    match wanted {
        DeviceId::Auto => *name == DeviceId::Cpu || is_gpu(name),
        named => named == name,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Moment;
    use crate::testing::device;

    fn devices(list: &[(&str, u64)]) -> Devices {
        let mut devices = Devices::default();
        for (name, gib) in list {
            devices.observe(device(name, *gib), Moment::START, Duration::ZERO);
        }
        devices
    }

    fn place(wanted: &str, gib: u64, on: &Devices) -> Result<Vec<DeviceId>, PlacementError> {
        let found = sites_of(wanted, gib, false, on)?;
        Ok(found.into_iter().map(|site| site[0].clone()).collect())
    }

    fn sites_of(wanted: &str, gib: u64, splittable: bool, on: &Devices) -> Result<Vec<Site>, PlacementError> {
        let device = wanted.parse().unwrap();
        sites(&PlacementCandidate { device: &device, bytes: &|_| ByteCount::gib(gib), splittable }, on)
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
    fn rc_22_only_what_is_larger_than_one_gpu_is_spread_over_as_few_as_can() {
        let cuda = |n: &[u32]| n.iter().map(|&n| DeviceId::Cuda(n)).collect::<Site>();
        let four = devices(&[("cpu", 99), ("cuda:0", 24), ("cuda:1", 8), ("cuda:2", 24), ("cuda:3", 12)]);
        assert_eq!(sites_of("auto", 24, true, &four), Ok(vec![cuda(&[0]), cuda(&[2])]));
        // Two GPUs of 24 GiB hold the model beside their margins; so do three and four.
        assert_eq!(sites_of("auto", 47, true, &four), Ok(vec![cuda(&[0, 2]), cuda(&[0, 2, 3]), cuda(&[0, 1, 2, 3])]));
        assert_eq!(sites_of("auto", 48, true, &four), Ok(vec![cuda(&[0, 2, 3]), cuda(&[0, 1, 2, 3])]));
        assert_eq!(sites_of("auto", 80, true, &four), Ok(vec![vec![DeviceId::Cpu]]));
        assert_eq!(sites_of("auto", 40, false, &four), Ok(vec![vec![DeviceId::Cpu]]));
        assert!(matches!(sites_of("cuda:0", 40, true, &four), Err(PlacementError::NeverFits { .. })));
    }

    #[test]
    fn rs_11_layers_come_to_all_gpus_together_to_the_largest_alone_and_to_the_host_without_any() {
        let gib = ByteCount::gib;
        let streaming = |_: &[DeviceId]| Streaming { whole: gib(200), least: gib(20), layers: gib(190), ring: gib(1) };
        let site = |wanted: &str, splittable, on: &[(&str, u64)]| {
            let (device, on) = (wanted.parse().unwrap(), devices(on));
            let wanted = PlacementCandidate { device: &device, bytes: &|_| gib(200), splittable };
            let site = streamed_site(&wanted, streaming, &on, |name| on.get(name)?.room_for_models())?;
            Some(site.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        let machine = [("cpu", 64), ("cuda:0", 24), ("cuda:1", 40), ("npu", 999)];
        assert_eq!(site("auto", true, &machine).unwrap(), "cuda:0 cuda:1 cpu");
        assert_eq!(site("auto", false, &machine).unwrap(), "cuda:1 cpu");
        assert_eq!(site("cuda:0", true, &machine).unwrap(), "cuda:0 cpu");
        assert_eq!(site("cpu", true, &machine).unwrap(), "cpu");
        assert_eq!(site("auto", true, &[("cpu", 64), ("cuda:0", 8)]).unwrap(), "cpu", "the GPU holds no window");
        assert_eq!(site("auto", true, &[("cpu", 0), ("cuda:0", 24)]), None, "the host holds no ring");
        assert_eq!(site("auto", true, &[("cpu", 64), ("cuda:0", 12), ("cuda:1", 12)]).unwrap(), "cuda:0 cuda:1 cpu");
        assert_eq!(site("cuda:0", true, &[("cpu", 64), ("cuda:0", 12)]), None);
    }

    #[test]
    fn rc_30_a_closed_device_is_passed_over_and_waited_for_when_nothing_else_holds_it() {
        let mut on = devices(&[("cpu", 16), ("cuda:0", 24)]);
        on.get_mut(&DeviceId::Cuda(0)).unwrap().closed = true;
        assert_eq!(place("auto", 8, &on), Ok(vec![DeviceId::Cpu]));
        for (wanted, gib) in [("auto", 20), ("cuda:0", 8)] {
            let error = place(wanted, gib, &on).unwrap_err();
            assert_eq!(error, PlacementError::Closed { device: DeviceId::Cuda(0) });
            assert_eq!(error.refusal(&"m".into()), None);
        }
        assert!(matches!(place("auto", 30, &on), Err(PlacementError::NeverFits { .. })));
    }

    #[test]
    fn what_never_fits_says_the_numbers() {
        let error = place("auto", 80, &devices(&[("cpu", 64), ("cuda:0", 8)])).unwrap_err();
        let refusal = error.refusal(&"m".into()).unwrap();
        assert_eq!(refusal.reason, RefusalReason::NeverFits);
        for part in ["80.0 GiB", "cpu can give at most 64.0 GiB", "cuda:0 can give at most 8.00 GiB"] {
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
    }

    #[test]
    fn dm_1_an_absent_device_lists_the_known_ones() {
        let error = place("cuda:3", 1, &devices(&[("cpu", 64), ("cuda:0", 8)])).unwrap_err();
        let refusal = error.refusal(&"m".into()).unwrap();
        assert_eq!(refusal.reason, RefusalReason::DeviceUnavailable);
        assert!(refusal.message.contains("cpu, cuda:0"), "{}", refusal.message);
    }

    #[test]
    fn rc_21_unknown_is_not_zero() {
        let mut on = devices(&[("cpu", 4)]);
        on.observe(DeviceObservationUnknown::of("cuda:0"), Moment::START, Duration::ZERO);
        assert!(matches!(place("auto", 8, &on), Err(PlacementError::Unknown { .. })));
        assert_eq!(place("auto", 8, &on).unwrap_err().refusal(&"m".into()), None);
        assert_eq!(place("auto", 8, &Devices::default()).unwrap_err().refusal(&"m".into()), None);
    }

    struct DeviceObservationUnknown;
    impl DeviceObservationUnknown {
        fn of(name: &str) -> crate::DeviceObservation {
            crate::DeviceObservation { capacity: None, foreign: None, ..device(name, 0) }
        }
    }
}
