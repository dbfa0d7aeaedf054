//! Memory needs of a model with all layers resident, or with some streamed (RS-11): bytes of the computing devices, and
//! of the host beside them. The module is pure arithmetic.

use model_boss_protocol::{ByteCount, DeviceId, GPU_CONTEXT, SignedBytes};

use crate::need::Need;
use crate::{Streaming, split};

/// The bytes that devices could give a model if all evictable models were evicted; negative where others took
/// promised memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rooms<'a> {
    /// The devices that compute.
    pub(crate) computing: &'a [SignedBytes],
    /// The host, if it only buffers for the other devices.
    pub(crate) host: Option<SignedBytes>,
}

/// The share of a device's possible room that a streamed model takes. More resident layers make it faster, but other
/// programs' use changes from moment to moment.
const SHARE: (u64, u64) = (7, 8);

/// The computing devices of a site, and whether the host only buffers for them; then it is the last device.
pub(crate) fn computing(site: &[DeviceId]) -> (&[DeviceId], bool) {
    match site {
        [devices @ .., DeviceId::Cpu] if !devices.is_empty() => (devices, true),
        devices => (devices, false),
    }
}

/// The memory that the contexts take on these devices.
pub(crate) fn contexts(devices: &[DeviceId]) -> ByteCount {
    devices.iter().filter(|device| is_gpu(device)).map(|_| GPU_CONTEXT).sum()
}

pub(crate) fn is_gpu(device: &DeviceId) -> bool {
    matches!(device, DeviceId::Cuda(_) | DeviceId::Metal(_))
}

/// The need of a streamed model whose layers do not all fit. It takes most of the room, so that many layers stay
/// resident. `None` where not even the minimum fits.
pub(crate) fn what_there_is(streaming: &Streaming, rooms: &Rooms<'_>) -> Option<Need> {
    let room = split::spare(rooms.computing);
    if streaming.least.signed() > room {
        return None;
    }
    within(streaming, streaming.least.max(most_of(room)).min(streaming.whole), rooms.host)
}

/// The need of a streamed model within these bytes of the devices, as an operator set them.
pub(crate) fn within(streaming: &Streaming, bytes: ByteCount, host: Option<SignedBytes>) -> Option<Need> {
    let Some(room) = host else { return Some(Need::of(bytes)) };
    if streaming.ring.signed() > room {
        return None;
    }
    // Layers not on the device are read from the host in each step, if it can hold them, else from disk.
    let away = (streaming.whole - bytes).min(streaming.layers);
    let host = (streaming.ring + away).min(most_of(room)).max(streaming.ring);
    Some(Need { bytes, host: Some(host) })
}

fn most_of(room: SignedBytes) -> ByteCount {
    ByteCount(room.clamped().0 / SHARE.1 * SHARE.0)
}

#[cfg(test)]
mod tests {
    use crate::need::Need;
    use proptest::prelude::*;

    use super::*;

    const GIB: i128 = 1 << 30;

    fn streaming() -> Streaming {
        let gib = ByteCount::gib;
        Streaming { whole: gib(40), least: gib(4), layers: gib(38), ring: gib(1) }
    }

    #[test]
    fn rs_11_most_of_what_there_is_is_taken_and_never_more_than_the_model_needs() {
        let take = |computing: &[i128], host| {
            let computing: Vec<SignedBytes> = computing.iter().copied().map(SignedBytes::from).collect();
            what_there_is(&streaming(), &Rooms { computing: &computing, host })
        };
        assert_eq!(take(&[16 * GIB], None), Some(Need::of(ByteCount::gib(14))));
        assert_eq!(take(&[4 * GIB], None), Some(Need::of(ByteCount::gib(4))));
        assert_eq!(take(&[4 * GIB - 1], None), None);
        assert_eq!(take(&[64 * GIB], None), Some(Need::of(ByteCount::gib(40))));
        // There are two devices, each with its margin.
        let beside_margin = SignedBytes::from(8 * GIB) + split::MARGIN;
        let two = what_there_is(&streaming(), &Rooms { computing: &[beside_margin, beside_margin], host: None });
        assert_eq!(two, take(&[16 * GIB], None));
    }

    #[test]
    fn rs_11_the_host_holds_what_the_device_does_not_if_it_can_and_always_the_ring() {
        let take = |host: i128| {
            let computing = &[SignedBytes::from(16 * GIB)];
            what_there_is(&streaming(), &Rooms { computing, host: Some(host.into()) })
        };
        let host = |host| take(host).and_then(|need| need.host);
        assert_eq!(host(64 * GIB), Some(ByteCount::gib(1 + 26)), "all that does not stay");
        assert_eq!(host(16 * GIB), Some(ByteCount::gib(14)), "most of what there is");
        assert_eq!(host(GIB), Some(ByteCount::gib(1)), "the ring");
        assert_eq!(take(GIB - 1), None);
    }

    #[test]
    fn the_host_stands_beside_others_only_at_the_end() {
        let (cpu, gpu) = (DeviceId::Cpu, DeviceId::Cuda(0));
        assert_eq!(computing(std::slice::from_ref(&cpu)), (&[DeviceId::Cpu][..], false));
        assert_eq!(computing(&[gpu.clone(), cpu]), (&[DeviceId::Cuda(0)][..], true));
        assert_eq!(computing(&[gpu.clone(), DeviceId::Cuda(1)]).0.len(), 2);
        assert_eq!(contexts(&[gpu, DeviceId::Cpu]), GPU_CONTEXT);
    }

    proptest! {
        #[test]
        fn rs_11_what_is_taken_fits_and_is_enough(
            whole in 1..100_000_000_000_u64, least in 1..50_000_000_000_u64, ring in 0..4_000_000_000_u64,
            rooms in prop::collection::vec(-1_000_000_000..60_000_000_000_i128, 1..5),
            host in prop::option::of(-1_000_000_000..90_000_000_000_i128),
        ) {
            let whole = whole.max(least);
            let rooms: Vec<SignedBytes> = rooms.into_iter().map(SignedBytes::from).collect();
            let host = host.map(SignedBytes::from);
            let streaming = Streaming {
                whole: ByteCount(whole), least: ByteCount(least), layers: ByteCount(whole / 2), ring: ByteCount(ring),
            };
            let mut free = rooms.clone();
            free.extend(host);
            match what_there_is(&streaming, &Rooms { computing: &rooms, host }) {
                Some(need) => {
                    prop_assert!(need.bytes >= streaming.least && need.bytes <= streaming.whole.max(streaming.least));
                    prop_assert_eq!(need.host.is_some(), host.is_some());
                    prop_assert!(need.host.is_none_or(|host| host >= streaming.ring));
                    let parts = split::shares(&need, &free).expect("what is taken fits");
                    prop_assert_eq!(parts.iter().copied().sum::<ByteCount>(), need.total());
                }
                None => prop_assert!(
                    ByteCount(least).signed() > split::spare(&rooms)
                        || host.is_some_and(|host| ByteCount(ring).signed() > host)
                ),
            }
        }
    }
}
