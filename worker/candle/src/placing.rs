//! Which layers of a model go to which device, and reading them there. Knows bytes and the order of things; how a layer is
//! read, or comes and goes, is known elsewhere.

use std::ops::Range;

use candle_core::Device;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::plan::Needs;
use model_boss_engine::residency::split::{Ends as EndBytes, split};
use model_boss_protocol::{ByteCount, DeviceId};
use model_boss_weights::gguf::TensorType;

use crate::decoder::{Ends, SpecDecoder};
use crate::files::Files;
use crate::layer::Layer;
use crate::load::{LoadOptions, ModelError, PlaceOptions, Plan, context};
use crate::reader::{Reader, Target};
use crate::source::Resident;
use crate::spec::DecoderSpec;
use crate::stage::{Stage, Stretch};
use crate::streamed::load as streaming;
use crate::tensors::Needed;
use crate::{device, kv};

/// A device that was opened for a load.
pub(crate) struct Place {
    pub(crate) name: DeviceId,
    pub(crate) target: Target,
    /// Bytes that it may allocate there.
    pub(crate) budget: u64,
    /// Its weight among several.
    share: u64,
}

impl Place {
    /// `matrices` are the types that the model's are stored in.
    pub(crate) fn of(asked: &PlaceOptions, device: Device, matrices: &[TensorType]) -> Self {
        let free = device::free_memory(&device).unwrap_or(u64::MAX);
        let (budget, share) = room(asked, free, device::context_bytes(&device));
        Self { name: asked.device.clone(), target: device::target(device, matrices), budget, share }
    }
}

/// What may be allocated on a device, and its weight among several. Limit and share are of everything that the process takes,
/// with what it has taken before it allocates: that is no longer free, and still counts.
fn room(asked: &PlaceOptions, free: u64, context: u64) -> (u64, u64) {
    let left = |bytes: ByteCount| bytes.0.saturating_sub(context);
    let budget = asked.limit.map_or(free, |limit| left(limit).min(free));
    (budget, asked.share.or(asked.limit).map_or(budget, left))
}

/// What one device gets.
pub(crate) struct Part {
    pub(crate) place: Place,
    pub(crate) layers: Range<usize>,
    /// Bytes of its weights if all of them stay.
    pub(crate) weights: u64,
}

/// Why the model is not on a device.
pub(crate) enum Trouble {
    /// The weights are larger than what is free.
    TooSmall { needs: u64, free: u64 },
    /// There is no memory for what layers come through, on the device or on the host; in words.
    NoRoom(String),
    /// Everything else.
    Model(ModelError),
}

/// Cuts the layers for the devices; those that are too small for any get none and are not in what it gives.
pub(crate) fn cut(
    plan: &Plan,
    spec: &DecoderSpec,
    files: &Files,
    places: Vec<Place>,
    options: &LoadOptions,
) -> Result<Vec<Part>, ModelError> {
    let Some(first) = places.first() else { return Ok(Vec::new()) };
    let [embedding, norm, head] = plan.end_bytes(files, &first.target)?;
    let layers = (0..spec.layers)
        .map(|layer| plan.layer_bytes(spec, files, &first.target, layer))
        .collect::<Result<Vec<u64>, _>>()?;
    let kv = kv::bytes_of_layer(spec, &first.target, streaming::kept_tokens(spec, options));
    let kv = kv.saturating_mul(spec.layers) as u64;
    let workspace = if places.len() > 1 { streaming::workspace(spec) } else { 0 };
    let needs = Needs { layers, ends: embedding + norm + head, kv, workspace };
    // One tensor that is both is on both devices.
    let ends = EndBytes { first: embedding, last: norm + if head > 0 { head } else { embedding } };
    let shares: Vec<u64> = places.iter().map(|place| place.share).collect();
    let stretches = split(&needs, ends, &shares);
    let mut parts = Vec::new();
    for (at, place) in places.into_iter().enumerate() {
        let Some(stretch) = stretches.iter().find(|stretch| stretch.device == at) else { continue };
        // Devices of different kinds keep the same weights in different types.
        let mut weights = stretch.needs.ends;
        for layer in stretch.layers.clone() {
            weights = weights.saturating_add(plan.layer_bytes(spec, files, &place.target, layer)?);
        }
        parts.push(Part { place, layers: stretch.layers.clone(), weights });
    }
    Ok(parts)
}

/// The tensors that [`read`] reads, in about the order in which it does. None where layers come and go: those are read past
/// the page cache, and there is no memory to spare for it.
pub(crate) fn order(
    plan: &Plan,
    spec: &DecoderSpec,
    files: &Files,
    parts: &[Part],
    options: &LoadOptions,
) -> Result<Vec<String>, ModelError> {
    let mut names = Vec::new();
    if parts.iter().any(|part| streaming::wanted(spec, part, options)) {
        return Ok(names);
    }
    for (at, part) in parts.iter().enumerate() {
        names.extend(plan.ends(at == 0, at + 1 == parts.len()).into_iter().map(str::to_owned));
        for layer in part.layers.clone() {
            let place = |needed: Needed| Ok((files.extent(&needed.name)?, needed.name));
            let mut placed =
                spec.needed_by_layer(layer).into_iter().map(place).collect::<Result<Vec<_>, ModelError>>()?;
            // Somewhat out of order, and without a jump.
            placed.sort_unstable();
            names.extend(placed.into_iter().map(|(_, name)| name));
        }
    }
    Ok(names)
}

/// Reads everything to where it goes. An error comes with the number of the part it happened at.
pub(crate) fn read<'a>(
    plan: &Plan,
    spec: DecoderSpec,
    reader: &mut Reader<'a>,
    parts: &'a [Part],
    options: &LoadOptions,
) -> Result<SpecDecoder, (usize, Trouble)> {
    let (mut stages, mut embedding, mut head) = (Vec::new(), None, None);
    let streams = |part: &Part| streaming::wanted(&spec, part, options);
    let beside_host = parts.iter().filter(|part| streams(part) && !part.place.target.device.is_cpu()).count();
    let mut host = HostRoom::new(options.host_memory, beside_host);
    for (at, part) in parts.iter().enumerate() {
        let target = &part.place.target;
        let streams = streams(part);
        if !streams && part.weights > part.place.budget {
            return Err((at, Trouble::TooSmall { needs: part.weights, free: part.place.budget }));
        }
        reader.turn_to(target);
        let before = reader.bytes();
        let mut read = |reader: &mut Reader<'a>| -> Result<Stage, ModelError> {
            if at == 0 {
                embedding = Some(plan.read_embedding(reader)?);
            }
            if at + 1 == parts.len() {
                head = Some(plan.read_head(reader, &spec, embedding.as_ref().filter(|_| at == 0))?);
            }
            let (stretch, slots, host_bytes): (Box<dyn Stretch>, u64, u64) = if streams {
                let asked = streaming::Asked { spec: &spec, part, options, before, host_memory: host.share() };
                let opened = streaming::open(&asked, reader)?;
                (opened.stretch, opened.slot_bytes, opened.host_bytes)
            } else {
                let layers = part.layers.clone().map(|index| Layer::read(reader, &spec, index));
                (Box::new(Resident::new(part.layers.start, layers.collect::<Result<_, _>>()?)), 0, 0)
            };
            Ok(Stage {
                name: part.place.name.clone(),
                target: target.clone(),
                layers: part.layers.clone(),
                stretch,
                weight_bytes: reader.bytes() - before + slots,
                host_bytes,
            })
        };
        let stage = read(reader).map_err(|error| (at, trouble(part, streams, error)))?;
        if stage.host_bytes > 0 {
            host.took(stage.host_bytes);
        }
        stages.push(stage);
    }
    let (Some(embedding), Some((norm, head))) = (embedding, head) else {
        let nowhere = ModelError::Device(DecoderError::Step("no device was named".to_owned()));
        return Err((0, Trouble::Model(nowhere)));
    };
    let context = context(&spec, options.context_length);
    Ok(SpecDecoder::new(spec, context, Ends { embedding, norm, head }, stages))
}

/// The host's memory for devices that stream through it, one after the other: each may take an even share of what those
/// before it have left.
struct HostRoom {
    /// `None`: nobody has said how much there is.
    left: Option<u64>,
    devices: u64,
}

impl HostRoom {
    fn new(limit: Option<ByteCount>, devices: usize) -> Self {
        Self { left: limit.map(|limit| limit.0), devices: devices as u64 }
    }

    /// What the next device may take.
    fn share(&self) -> Option<u64> {
        self.left.map(|left| left / self.devices.max(1))
    }

    /// The next device took so much.
    fn took(&mut self, bytes: u64) {
        self.left = self.left.map(|left| left.saturating_sub(bytes));
        self.devices = self.devices.saturating_sub(1);
    }
}

fn trouble(part: &Part, streams: bool, error: ModelError) -> Trouble {
    match error {
        ModelError::Device(DecoderError::OutOfMemory(what)) if streams => Trouble::NoRoom(what),
        // Somebody else was quicker: the memory that was free is not.
        ModelError::Device(DecoderError::OutOfMemory(_)) => {
            let free = device::free_memory(&part.place.target.device).unwrap_or(0);
            Trouble::TooSmall { needs: part.weights, free }
        }
        error => Trouble::Model(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_takes_before_it_allocates_counts_against_its_limit() {
        let asked = |share: Option<u64>, limit: Option<u64>| {
            let (share, limit) = (share.map(ByteCount), limit.map(ByteCount));
            PlaceOptions { device: DeviceId::Cuda(0), share, limit }
        };
        assert_eq!(room(&asked(None, Some(100)), 500, 30), (70, 70));
        assert_eq!(room(&asked(Some(200), Some(100)), 50, 30), (50, 170), "no more than is free");
        assert_eq!(room(&asked(Some(200), None), 500, 30), (500, 170), "what is free is free beside it");
        assert_eq!(room(&asked(None, Some(20)), 500, 30), (0, 0));
        assert_eq!(device::context_bytes(&Device::Cpu), 0);
    }

    #[test]
    fn rs_11_several_devices_take_no_more_of_the_host_than_there_is() {
        let mut room = HostRoom::new(Some(ByteCount(10)), 3);
        assert_eq!(room.share(), Some(3));
        room.took(1);
        assert_eq!(room.share(), Some(4), "what the first has left");
        room.took(4);
        assert_eq!(room.share(), Some(5));
        room.took(5);
        assert_eq!((room.left, HostRoom::new(None, 2).share()), (Some(0), None));
    }
}
