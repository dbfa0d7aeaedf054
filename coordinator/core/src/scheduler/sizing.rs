//! Sizes and sites: the memory that a model takes at each site, and the sites where it could run at all. A model has
//! all its layers on its devices. Where they will not all fit for longer than a moment, it streams them (RC-20,
//! RC-22, RS-11).

use model_boss_protocol::{ByteCount, DeviceId, Residency, ResidencyMode, SignedBytes};

use super::room::Ask;
use super::state::Scheduler;
use crate::catalog::ModelIndex;
use crate::device::ScheduledDevice;
use crate::layers::{self, Rooms};
use crate::need::Need;
use crate::placement::{self, PlacementCandidate, PlacementError, Site};
use crate::slot::Layers;
use crate::view::LayersView;
use crate::{SizeEstimate, SizeRule, Streaming, split};

/// The memory that a model takes at a site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sized {
    pub(super) need: Need,
    /// The rule that determined the size.
    pub(super) rule: SizeRule,
    /// Whether the model's layers are streamed.
    pub(super) stream: bool,
}

impl Scheduler {
    /// The residency of the layers that an ask would be loaded with.
    pub(super) fn residency_of(&self, ask: &Ask) -> Residency {
        ask.layers.residency(self.catalog[ask.model].description.residency)
    }

    /// The size of an ask at this site.
    pub(super) fn size_at(&self, ask: &Ask, site: &[DeviceId]) -> Sized {
        let whole = self.whole_at(ask, site);
        let stays = Sized { need: Need::of(whole.bytes), rule: whole.rule, stream: false };
        let Some(streaming) = self.streaming_at(ask, site, &whole) else { return stays };
        let (devices, beside_host) = layers::computing(site);
        let host = beside_host.then(|| self.room_of(ask, &DeviceId::Cpu).unwrap_or_default());
        if self.residency_of(ask).mode == ResidencyMode::Stream {
            // The host's part takes what is available; below the minimum, the load waits for more.
            let least = Need { bytes: whole.bytes, host: host.map(|_| streaming.ring) };
            let need = layers::within(&streaming, whole.bytes, host).unwrap_or(least);
            return Sized { need, rule: whole.rule, stream: true };
        }
        let rooms: Option<Vec<SignedBytes>> = devices.iter().map(|device| self.room_of(ask, device)).collect();
        let Some(rooms) = rooms else { return stays };
        let fits = whole.bytes.signed() <= split::spare(&rooms);
        if whole.rule == SizeRule::Manifest || (fits && !beside_host) {
            return stays;
        }
        match layers::what_there_is(&streaming, &Rooms { computing: &rooms, host }) {
            Some(need) => Sized { need, rule: SizeRule::Streamed, stream: true },
            // Streaming was chosen when there was more room; now the load waits for the minimum.
            None if beside_host => {
                let need = Need { bytes: streaming.least, host: Some(streaming.ring) };
                Sized { need, rule: SizeRule::Streamed, stream: true }
            }
            None => stays,
        }
    }

    /// The sites where the model could run at all. A model larger than their lasting memory gets a site where its
    /// layers can be streamed.
    pub(super) fn sites(&self, ask: &Ask) -> Result<Vec<Site>, PlacementError> {
        let bytes = |site: &[DeviceId]| self.whole_at(ask, site).bytes;
        let description = &self.catalog[ask.model].description;
        let wanted = PlacementCandidate { device: &ask.device, bytes: &bytes, splittable: description.splittable };
        let found = placement::sites(&wanted, &self.devices);
        let Some(streaming) = ask.estimate.streamed else { return found };
        match self.residency_of(ask).mode {
            ResidencyMode::Resident => found,
            ResidencyMode::Stream => self.behind_host(found?),
            ResidencyMode::Auto if ask.estimate.rule == SizeRule::Manifest => found,
            ResidencyMode::Auto => {
                let lasts = |site: &&Site| {
                    let rooms: Option<Vec<SignedBytes>> = site.iter().map(|device| self.room_of(ask, device)).collect();
                    rooms.is_some_and(|rooms| split::holds(&Need::of(bytes(site)), &rooms))
                };
                let lasting: Vec<Site> = found.iter().flatten().filter(lasts).cloned().collect();
                if !lasting.is_empty()
                    || matches!(found, Err(PlacementError::Absent { .. } | PlacementError::Unknown { .. }))
                {
                    return if lasting.is_empty() { found } else { Ok(lasting) };
                }
                let at =
                    |site: &[DeviceId]| self.streaming_at(ask, site, &self.whole_at(ask, site)).unwrap_or(streaming);
                let room = |device: &DeviceId| self.room_of(ask, device);
                match placement::streamed_site(&wanted, at, &self.devices, room) {
                    Some(site) => Ok(vec![site]),
                    None => found.map_err(|error| match error {
                        PlacementError::NeverFits { needs, limits, .. } => {
                            PlacementError::NeverFits { needs, streamed: Some(streaming.least), limits }
                        }
                        other => other,
                    }),
                }
            }
        }
    }

    /// Adds the host to sites of GPUs that stream layers, since it buffers them.
    fn behind_host(&self, mut sites: Vec<Site>) -> Result<Vec<Site>, PlacementError> {
        let host = DeviceId::Cpu;
        for site in sites.iter_mut().filter(|site| site.iter().all(layers::is_gpu)) {
            match self.devices.get(&host) {
                None => return Err(PlacementError::Unknown { device: host }),
                Some(device) if device.closed => return Err(PlacementError::Closed { device: host }),
                Some(ScheduledDevice { lost: Some(_), given_up, .. }) => {
                    return Err(PlacementError::Lost { device: host, given_up: *given_up });
                }
                Some(_) => site.push(host.clone()),
            }
        }
        Ok(sites)
    }

    /// The preferred site, whether or not it has room now.
    pub(super) fn first_site(&self, ask: &Ask) -> Site {
        let first = self.sites(ask).ok().and_then(|sites| sites.into_iter().next());
        first.unwrap_or_else(|| vec![ask.device.clone()])
    }

    /// The residency of the layers of a model loaded with this size.
    pub(super) fn layers_of(&self, ask: &Ask, size: &Sized) -> Layers {
        Layers { asked: self.residency_of(ask), memory: ask.layers.memory, stream: size.stream }
    }

    /// The residency of layers as text, with the reason for streaming.
    pub(super) fn layers_view(&self, ask: &Ask, site: &[DeviceId], size: &Sized) -> LayersView {
        let asked = self.residency_of(ask);
        let whole = ask.estimate.streamed.map(|streaming| self.streaming_whole(ask, site, &streaming));
        let why = match (size.stream, asked.mode) {
            (false, _) => None,
            (true, ResidencyMode::Stream) => Some("its manifest or its load says so".to_owned()),
            (true, _) => {
                let given = |device: &DeviceId| {
                    let room = self.room_of(ask, device).unwrap_or_default().clamped();
                    format!("{room} of {device}")
                };
                let (devices, _) = layers::computing(site);
                let rooms: Vec<String> = devices.iter().map(given).collect();
                Some(format!(
                    "all layers take {}, and models can have {}",
                    whole.unwrap_or(size.need.bytes),
                    rooms.join(" and ")
                ))
            }
        };
        LayersView {
            residency: asked.mode,
            window: asked.window,
            block: asked.block,
            streamed: size.stream,
            whole,
            why,
        }
    }

    /// The lasting room for the model on a device if all other unpinned models were evicted.
    pub(super) fn room_of(&self, ask: &Ask, device: &DeviceId) -> Option<SignedBytes> {
        let room = self.devices.get(device)?.lasting_room(self.now, self.settings.peak_patience)?;
        Some(room - self.pinned_on(ask.model, device))
    }

    /// The memory on a device that is certain for a model if only its own copy there is unloaded. Memory that other
    /// programs have released only recently does not count.
    pub(super) fn sure_room(
        &self,
        model: ModelIndex,
        device: &ScheduledDevice,
        name: &DeviceId,
    ) -> Option<SignedBytes> {
        let own: SignedBytes =
            device.slots.iter().filter(|slot| self.pool[**slot].model == model).map(|&s| self.bytes(s, name)).sum();
        let others = device.charged().signed() - own;
        Some(device.sure_room(self.now, self.settings.peak_patience)? - others)
    }

    fn pinned_on(&self, model: ModelIndex, name: &DeviceId) -> SignedBytes {
        let Some(device) = self.devices.get(name) else { return SignedBytes::ZERO };
        let pinned = device.slots.iter().filter(|slot| {
            let of = self.pool[**slot].model;
            of != model && self.catalog[of].is_pinned()
        });
        pinned.map(|&slot| self.bytes(slot, name)).sum()
    }

    /// The size on a site's computing devices with all layers resident and the context that the load asks for.
    pub(super) fn whole_at(&self, ask: &Ask, site: &[DeviceId]) -> SizeEstimate {
        let (devices, _) = layers::computing(site);
        let name = if let [only] = devices { only } else { &DeviceId::Auto };
        let description = &self.catalog[ask.model].description;
        let residency = self.residency_of(ask);
        let mut size = match residency.mode {
            // A learned size covers all layers.
            ResidencyMode::Stream => ask.estimate.clone(),
            _ => {
                let loaded = (ask.context, residency.kv_cache_type);
                self.footprints.size(description, loaded, name, &ask.estimate)
            }
        };
        if is_guess(size.rule) {
            size.bytes = size.bytes + layers::contexts(devices);
        }
        size
    }

    fn streaming_at(&self, ask: &Ask, site: &[DeviceId], whole: &SizeEstimate) -> Option<Streaming> {
        let streaming = whole.streamed.filter(|_| self.residency_of(ask).mode != ResidencyMode::Resident)?;
        let (devices, beside_host) = layers::computing(site);
        let streams_there = beside_host || *devices == [DeviceId::Cpu];
        // Each device has slots for streamed layers, and the host has buffers of the same size.
        let ring: ByteCount = devices.iter().map(|_| streaming.ring).sum();
        streams_there.then(|| Streaming {
            whole: self.streaming_whole(ask, site, &streaming),
            least: streaming.least + layers::contexts(devices) + ring.saturating_sub(streaming.ring),
            ring,
            ..streaming
        })
    }

    /// The size with all layers on the computing devices: measured, or computed from headers.
    fn streaming_whole(&self, ask: &Ask, site: &[DeviceId], streaming: &Streaming) -> ByteCount {
        match self.residency_of(ask).mode {
            ResidencyMode::Stream => streaming.whole + layers::contexts(layers::computing(site).0),
            _ => self.whole_at(ask, site).bytes,
        }
    }
}

/// Whether the size is neither measured nor stated. A guess does not include contexts.
fn is_guess(rule: SizeRule) -> bool {
    !matches!(rule, SizeRule::Manifest | SizeRule::Learned)
}
