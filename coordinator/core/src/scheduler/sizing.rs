//! How much memory a model takes where, and where it could run at all: with all its layers on the devices that compute, or,
//! where they will not fit for longer than a moment, with layers that come and go (RC-20, RC-22, RS-11).

use model_boss_protocol::{ByteCount, DeviceId, Residency, ResidencyMode};

use super::room::Ask;
use super::state::Scheduler;
use crate::catalog::ModelIndex;
use crate::device::Device;
use crate::layers::{self, Rooms};
use crate::need::Need;
use crate::placement::{self, PlacementError, Site, Wanted};
use crate::slot::Layers;
use crate::view::LayersView;
use crate::{SizeEstimate, SizeRule, Streaming, split};

/// What a model takes of a site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sized {
    pub(super) need: Need,
    /// Which rule says so.
    pub(super) rule: SizeRule,
    /// Its layers come and go.
    pub(super) stream: bool,
}

impl Scheduler {
    /// How the layers of what is asked for are to live.
    pub(super) fn residency_of(&self, ask: &Ask) -> Residency {
        ask.layers.residency(self.catalog[ask.model].description.residency)
    }

    /// What is asked for takes so much of this site.
    pub(super) fn size_at(&self, ask: &Ask, site: &[DeviceId]) -> Sized {
        let whole = self.whole_at(ask, site);
        let stays = Sized { need: Need::of(whole.bytes), rule: whole.rule, stream: false };
        let Some(streaming) = self.streaming_at(ask, site, &whole) else { return stays };
        let (devices, beside_host) = layers::computing(site);
        let host = beside_host.then(|| self.room_of(ask, &DeviceId::Cpu).unwrap_or(0));
        if self.residency_of(ask).mode == ResidencyMode::Stream {
            // The host's part is what can be had; where it is too small, it is waited for.
            let least = Need { bytes: whole.bytes, host: host.map(|_| streaming.ring) };
            let need = layers::within(&streaming, whole.bytes, host).unwrap_or(least);
            return Sized { need, rule: whole.rule, stream: true };
        }
        let rooms: Option<Vec<i128>> = devices.iter().map(|device| self.room_of(ask, device)).collect();
        let Some(rooms) = rooms else { return stays };
        let fits = i128::from(whole.bytes.0) <= split::spare(&rooms);
        if whole.rule == SizeRule::Manifest || (fits && !beside_host) {
            return stays;
        }
        match layers::what_there_is(&streaming, &Rooms { computing: &rooms, host }) {
            Some(need) => Sized { need, rule: SizeRule::Streamed, stream: true },
            // Chosen when there was more; now it waits for the least.
            None if beside_host => {
                let need = Need { bytes: streaming.least, host: Some(streaming.ring) };
                Sized { need, rule: SizeRule::Streamed, stream: true }
            }
            None => stays,
        }
    }

    /// The sites where it could run at all. What is larger than what lasts of them goes where its layers can come and go.
    pub(super) fn sites(&self, ask: &Ask) -> Result<Vec<Site>, PlacementError> {
        let bytes = |site: &[DeviceId]| self.whole_at(ask, site).bytes;
        let description = &self.catalog[ask.model].description;
        let wanted = Wanted { device: &ask.device, bytes: &bytes, splittable: description.splittable };
        let found = placement::sites(&wanted, &self.devices);
        let Some(streaming) = ask.estimate.streamed else { return found };
        match self.residency_of(ask).mode {
            ResidencyMode::Resident => found,
            ResidencyMode::Stream => self.behind_host(found?),
            ResidencyMode::Auto if ask.estimate.rule == SizeRule::Manifest => found,
            ResidencyMode::Auto => {
                let lasts = |site: &&Site| {
                    let rooms: Option<Vec<i128>> = site.iter().map(|device| self.room_of(ask, device)).collect();
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

    /// Behind GPUs whose layers come and go stands the host.
    fn behind_host(&self, mut sites: Vec<Site>) -> Result<Vec<Site>, PlacementError> {
        let host = DeviceId::Cpu;
        for site in sites.iter_mut().filter(|site| site.iter().all(layers::is_gpu)) {
            match self.devices.get(&host) {
                None => return Err(PlacementError::Unknown { device: host }),
                Some(device) if device.closed => return Err(PlacementError::Closed { device: host }),
                Some(Device { lost: Some(_), given_up, .. }) => {
                    return Err(PlacementError::Lost { device: host, given_up: *given_up });
                }
                Some(_) => site.push(host.clone()),
            }
        }
        Ok(sites)
    }

    /// Where it would go first, as far as anybody knows.
    pub(super) fn first_site(&self, ask: &Ask) -> Site {
        let first = self.sites(ask).ok().and_then(|sites| sites.into_iter().next());
        first.unwrap_or_else(|| vec![ask.device.clone()])
    }

    /// How the layers live of what is loaded with this size.
    pub(super) fn layers_of(&self, ask: &Ask, size: &Sized) -> Layers {
        Layers { asked: self.residency_of(ask), memory: ask.layers.memory, stream: size.stream }
    }

    /// The same for people: where they come and go, why.
    pub(super) fn layers_view(&self, ask: &Ask, site: &[DeviceId], size: &Sized) -> LayersView {
        let asked = self.residency_of(ask);
        let whole = ask.estimate.streamed.map(|streaming| self.streaming_whole(ask, site, &streaming));
        let why = match (size.stream, asked.mode) {
            (false, _) => None,
            (true, ResidencyMode::Stream) => Some("its manifest or its load says so".to_owned()),
            (true, _) => {
                let given = |device: &DeviceId| {
                    let room = self.room_of(ask, device).and_then(|room| u64::try_from(room).ok()).unwrap_or(0);
                    format!("{} of {device}", ByteCount(room))
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

    /// What a device could give the model for longer than a moment if every other model that is not pinned had left.
    pub(super) fn room_of(&self, ask: &Ask, device: &DeviceId) -> Option<i128> {
        let room = self.devices.get(device)?.lasting_room(self.now, self.settings.peak_patience)?;
        Some(room - self.pinned_on(ask.model, device))
    }

    /// What is sure to be left on a device for a model whose own copy there has left and nobody else's: memory that other
    /// programs used a moment ago is not.
    pub(super) fn sure_room(&self, model: ModelIndex, device: &Device, name: &DeviceId) -> Option<i128> {
        let own: i128 =
            device.slots.iter().filter(|slot| self.pool[**slot].model == model).map(|&s| self.bytes(s, name)).sum();
        let others = i128::from(device.charged().0) - own;
        Some(device.sure_room(self.now, self.settings.peak_patience)? - others)
    }

    fn pinned_on(&self, model: ModelIndex, name: &DeviceId) -> i128 {
        let Some(device) = self.devices.get(name) else { return 0 };
        let pinned = device.slots.iter().filter(|slot| {
            let of = self.pool[**slot].model;
            of != model && self.catalog[of].is_pinned()
        });
        pinned.map(|&slot| self.bytes(slot, name)).sum()
    }

    /// What it takes of a site's computing devices with everything there that its load asks for.
    pub(super) fn whole_at(&self, ask: &Ask, site: &[DeviceId]) -> SizeEstimate {
        let (devices, _) = layers::computing(site);
        let name = if let [only] = devices { only } else { &DeviceId::Auto };
        let description = &self.catalog[ask.model].description;
        let mut size = match self.residency_of(ask).mode {
            // What was learned is what all layers take.
            ResidencyMode::Stream => ask.estimate.clone(),
            _ => self.footprints.size(description, ask.context, name, &ask.estimate),
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
        // Each device has places of its own for what comes and goes, and on the host buffers as large.
        let ring: ByteCount = devices.iter().map(|_| streaming.ring).sum();
        streams_there.then(|| Streaming {
            whole: self.streaming_whole(ask, site, &streaming),
            least: streaming.least + layers::contexts(devices) + ring.saturating_sub(streaming.ring),
            ring,
            ..streaming
        })
    }

    /// With all layers on the devices that compute: measured, or as headers tell it.
    fn streaming_whole(&self, ask: &Ask, site: &[DeviceId], streaming: &Streaming) -> ByteCount {
        match self.residency_of(ask).mode {
            ResidencyMode::Stream => streaming.whole + layers::contexts(layers::computing(site).0),
            _ => self.whole_at(ask, site).bytes,
        }
    }
}

/// Whether nobody measured or said it: then contexts are not part of it.
fn is_guess(rule: SizeRule) -> bool {
    !matches!(rule, SizeRule::Manifest | SizeRule::Learned)
}
