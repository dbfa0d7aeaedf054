//! Reading each device's layers into a stage of the decoder, and the classes of failures.

use model_boss_engine::{BLOCK_TOKENS, DecoderError};
use model_boss_protocol::ByteCount;

use crate::decoder::source::Resident;
use crate::decoder::spec_decoder::{DecoderEnds, DecoderLimits, SpecDecoder};
use crate::decoder::stage::{Stage, Stretch};
use crate::device;
use crate::error::ModelError;
use crate::layers::kv;
use crate::layers::kv_shape::KvHome;
use crate::layers::layer::Layer;
use crate::layers::states::{StateLayout, StateLimits};
use crate::layers::streams::{StreamsBefore, StreamsBehind};
use crate::plan::checked_model::CheckedModel;
use crate::plan::needs::{
    STATES_OF_SEQUENCE, context, kept_tokens, state_distance, states, step_rows, wanted, workspace,
};
use crate::plan::options::DecoderLoadOptions;
use crate::plan::part::DevicePart;
use crate::plan::tower_plan::TowerPlan;
use crate::read::reader::WeightReader;
use crate::spec::DecoderSpec;
use crate::streamed;
use crate::streamed::request::StreamRequest;

/// The reason why a part of the model could not be placed on its device.
pub(crate) enum StageFailure {
    /// The weights are larger than the free memory.
    TooSmall { needs: u64, free: u64 },
    /// No room is left for the keys and values of these few tokens beside the weights.
    NoKeys { needs: u64, given: u64, tokens: usize },
    /// Slots or buffers of streamed layers found no memory, on the device or on the host. The text is the reason.
    NoRoom(String),
    /// Another error.
    Model(ModelError),
}

/// Reads all weights to their devices. An error has the index of the part in which it happened.
pub(crate) fn read<'a>(
    (plan, sees): (&CheckedModel, Option<&dyn TowerPlan>),
    spec: DecoderSpec,
    reader: &mut WeightReader<'a>,
    parts: &'a [DevicePart],
    options: &DecoderLoadOptions,
) -> Result<SpecDecoder, (usize, StageFailure)> {
    let (mut stages, mut embedding, mut head) = (Vec::new(), None, None);
    let (mut before_layers, mut behind_layers, mut tower) = (None, None, None);
    let streams = |part: &DevicePart| wanted(&spec, part, options);
    let beside_host = parts.iter().filter(|part| streams(part) && !part.place.target.device.is_cpu()).count();
    let mut host = HostRoom::new(options.host_memory, beside_host);
    for (at, part) in parts.iter().enumerate() {
        let target = &part.place.target;
        let streams = streams(part);
        if !streams && part.weights > part.place.budget {
            return Err((at, StageFailure::TooSmall { needs: part.weights, free: part.place.budget }));
        }
        reader.turn_to(target);
        let before = reader.bytes();
        let mut read = |reader: &mut WeightReader<'a>| -> Result<Stage, ModelError> {
            if at == 0 {
                embedding = Some(plan.read_embedding(reader)?);
                before_layers = StreamsBefore::read(reader, &spec)?;
                tower = sees.map(|sees| sees.read(reader, target)).transpose()?;
            }
            if at + 1 == parts.len() {
                head = Some(plan.read_head(reader, &spec, embedding.as_ref().filter(|_| at == 0))?);
                behind_layers = StreamsBehind::read(reader, &spec)?;
            }
            let (stretch, slots, host_bytes): (Box<dyn Stretch>, u64, u64) = if streams {
                let asked = StreamRequest { spec: &spec, part, options, before, host_memory: host.share() };
                let opened = streamed::open::open(&asked, reader)?;
                (opened.stretch, opened.slot_bytes, opened.host_bytes)
            } else {
                let layers = part.layers.clone().map(|index| Layer::read(reader, &spec, index));
                (Box::new(Resident::new(part.layers.start, layers.collect::<Result<_, _>>()?)), 0, 0)
            };
            Ok(Stage {
                name: part.place.name.clone(),
                target: target.clone(),
                home: KvHome::of(target, &spec),
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
        return Err((0, StageFailure::Model(nowhere)));
    };
    let KeptMemory { blocks: kv_blocks, states, warning } = kept(&spec, parts, &stages, options)?;
    let limits = DecoderLimits {
        context_length: context(&spec, options.context_length),
        kv_blocks,
        states,
        workspace_bytes: workspace(&spec),
        step_rows: parts.iter().map(|part| step_rows(part.place.target.dtype)).min().unwrap_or(0),
        warnings: reader.files().unread().into_iter().chain(warning).collect(),
    };
    let ends = DecoderEnds { embedding, before: before_layers, behind: behind_layers, norm, head };
    let decoder = SpecDecoder::new(spec, reader.files().clone(), limits, ends, stages);
    Ok(match sees.zip(tower) {
        Some((sees, tower)) => decoder.seeing(tower, sees.facts()),
        None => decoder,
    })
}

/// Blocks without which a model would hardly answer anything. A load with memory for fewer fails.
const LEAST_BLOCKS: usize = 8;

/// The memory beside the weights, in blocks and states.
#[derive(Debug)]
struct KeptMemory {
    /// Blocks of keys and values.
    blocks: usize,
    states: StateLimits,
    /// Words for the operator, where that is less than one sequence of the usual length.
    warning: Option<String>,
}

/// The blocks of keys and values that there is memory for: as many as all sequences need, or as many as fit beside the
/// weights on every device, and never more (EN-2). Where these are fewer than one sequence of the usual length takes,
/// longer prompts are refused. States of sequences take their part of the memory, and are kept beside as many blocks;
/// where there is no room for those of all sequences, there is for those of fewer.
fn kept(
    spec: &DecoderSpec,
    parts: &[DevicePart],
    stages: &[Stage],
    options: &DecoderLoadOptions,
) -> Result<KeptMemory, (usize, StageFailure)> {
    let block = |stage: &Stage| kv::bytes_of_layers(spec, stage.layers.clone(), &stage.target, BLOCK_TOKENS);
    let every = state_distance(spec, stages.iter().map(block).sum());
    let Some(sequences) = options.max_concurrent.map(|sequences| sequences.max(1) as usize) else {
        let states = StateLimits { every, ..StateLimits::UNBOUNDED };
        return Ok(KeptMemory { blocks: usize::MAX, states, warning: None });
    };
    let one = kept_tokens(spec, options).div_ceil(BLOCK_TOKENS);
    let least = one.min(LEAST_BLOCKS);
    let of_block = |stage: &Stage| {
        let state = StateLayout::new(spec).bytes(stage.layers.clone()).div_ceil(every);
        ((block(stage) + state + moved(spec, stage)) as u64).max(1)
    };
    // A worker that shares its device has no more than its lease, whatever is free beside it.
    let given = |part: &DevicePart| part.place.budget.min(part.place.share);
    let beside = |stage: &Stage, sequences: usize| {
        let needed = stage.weight_bytes.saturating_add(workspace(spec));
        needed.saturating_add(states(spec, stage.layers.clone(), sequences))
    };
    let fits = |(part, stage): (&DevicePart, &Stage), sequences: usize| {
        let left = given(part).saturating_sub(beside(stage, sequences));
        usize::try_from(left / of_block(stage)).unwrap_or(usize::MAX)
    };
    let of_all = |sequences: usize| parts.iter().zip(stages).map(|place| fits(place, sequences)).min().unwrap_or(0);
    let with_states = (1..=sequences).rev().find(|sequences| of_all(*sequences) >= least).unwrap_or(1);
    let blocks = one.saturating_mul(sequences).min(of_all(with_states));
    if blocks < least {
        let full = |place: &(usize, (&DevicePart, &Stage))| fits(place.1, 1) < least;
        let (at, (part, stage)) =
            parts.iter().zip(stages).enumerate().find(full).unwrap_or((0, (&parts[0], &stages[0])));
        let needs = beside(stage, 1).saturating_add(of_block(stage).saturating_mul(least as u64));
        return Err((at, StageFailure::NoKeys { needs, given: given(part), tokens: least * BLOCK_TOKENS }));
    }
    let warning = (blocks < one).then(|| {
        let (has, usual) = (blocks * BLOCK_TOKENS, one * BLOCK_TOKENS);
        format!(
            "its memory leaves room for the keys and values of {has} tokens, and longer prompts are refused; a larger \
             'vram', or a kv_cache_type of \"q8_0\", makes room for the usual {usual}"
        )
    });
    let most = STATES_OF_SEQUENCE * with_states + blocks / every;
    Ok(KeptMemory { blocks, states: StateLimits { most, every }, warning })
}

/// Bytes with each block that are there twice while a layer's tensors grow, one layer after the other.
fn moved(spec: &DecoderSpec, stage: &Stage) -> usize {
    let of_layer = |layer: usize| kv::bytes_of_layers(spec, layer..layer + 1, &stage.target, BLOCK_TOKENS);
    if stage.home == KvHome::Pages { 0 } else { stage.layers.clone().map(of_layer).max().unwrap_or(0) }
}

/// The host's memory for devices that stream through it. Each device in turn may use an even share of the bytes that
/// earlier ones have left.
struct HostRoom {
    /// Bytes left; `None` without a limit.
    left: Option<u64>,
    devices: u64,
}

impl HostRoom {
    fn new(limit: Option<ByteCount>, devices: usize) -> Self {
        Self { left: limit.map(|limit| limit.0), devices: devices as u64 }
    }

    /// Bytes that the next device may use.
    fn share(&self) -> Option<u64> {
        self.left.map(|left| left / self.devices.max(1))
    }

    /// Counts the bytes that the next device used.
    fn took(&mut self, bytes: u64) {
        self.left = self.left.map(|left| left.saturating_sub(bytes));
        self.devices = self.devices.saturating_sub(1);
    }
}

fn trouble(part: &DevicePart, streams: bool, error: ModelError) -> StageFailure {
    match error {
        ModelError::Device(DecoderError::OutOfMemory(what)) if streams => StageFailure::NoRoom(what),
        // Another process has allocated the memory that was free when the load was planned.
        ModelError::Device(DecoderError::OutOfMemory(_)) => {
            let free = device::free_memory(&part.place.target.device).unwrap_or(0);
            StageFailure::TooSmall { needs: part.weights, free }
        }
        error => StageFailure::Model(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
