//! Memory that a model needs on a device beside its weights, and whether its layers have to be streamed for it.

use std::ops::Range;

use candle_core::DType;
use model_boss_protocol::ResidencyMode;

use crate::layers::kv;
use crate::layers::states::StateLayout;
use crate::plan::options::DecoderLoadOptions;
use crate::plan::part::DevicePart;
use crate::spec::DecoderSpec;

/// The default context that memory is reserved for. Models with a very long context are rarely given long prompts.
const USUAL_CONTEXT: usize = 4096;
/// The most blocks between states inside of a sequence.
const FARTHEST_STATE: usize = 128;
/// Rows that a step of a long prompt computes at once in f32. Each of them needs some values of the model's width.
pub(crate) const ROWS: u64 = 512;
const ROW_VALUES: u64 = 16;
/// Bytes of threads, buffers and the allocator beside the values of a step.
const PROCESS: u64 = 32 << 20;

/// Whether layers of a part have to be streamed. Layers that fit beside one sequence are resident: further sequences
/// depend on the free memory.
pub(crate) fn wanted(spec: &DecoderSpec, part: &DevicePart, options: &DecoderLoadOptions) -> bool {
    let target = &part.place.target;
    let one = kv::bytes_of_layers(spec, part.layers.clone(), target, kept_tokens(spec, options)) as u64;
    let one = one.saturating_add(states(spec, part.layers.clone(), 1));
    match options.residency.mode {
        ResidencyMode::Stream => true,
        ResidencyMode::Resident => false,
        // Devices of other kinds cannot stream. A model that does not fit on them is refused by its size.
        ResidencyMode::Auto => {
            let needs = part.weights.saturating_add(one).saturating_add(workspace(spec));
            (target.device.is_cpu() || target.device.is_cuda()) && needs > part.place.budget
        }
    }
}

/// States that there is memory for with each sequence, beside the one that a step computes: the one behind its past,
/// the one behind its prompt, and one inside of it.
pub(crate) const STATES_OF_SEQUENCE: usize = 3;

/// Bytes of the states of some sequences in some layers.
pub(crate) fn states(spec: &DecoderSpec, layers: Range<usize>, sequences: usize) -> u64 {
    let of_each = StateLayout::new(spec).bytes(layers).saturating_mul(STATES_OF_SEQUENCE + 1);
    of_each.saturating_mul(sequences) as u64
}

/// Blocks from one state that is kept inside of a sequence to the next: states take at most a quarter of what keys and
/// values take. `block` are the bytes of those.
pub(crate) fn state_distance(spec: &DecoderSpec, block: usize) -> usize {
    let state = StateLayout::new(spec).bytes(0..spec.layers.len());
    state.saturating_mul(4).div_ceil(block.max(1)).clamp(1, FARTHEST_STATE)
}

/// Tokens of a sequence that memory is reserved for.
pub(crate) fn kept_tokens(spec: &DecoderSpec, options: &DecoderLoadOptions) -> usize {
    let context = context(spec, options.context_length);
    options.context_length.map_or(context.min(USUAL_CONTEXT), |_| context)
}

/// Bytes of the intermediate values of a step.
pub(crate) fn workspace(spec: &DecoderSpec) -> u64 {
    let values = (ROWS * ROW_VALUES).saturating_mul(spec.hidden as u64).saturating_add(2 * spec.vocab as u64);
    values.saturating_mul(size_of::<f32>() as u64).saturating_add(PROCESS)
}

/// The most rows of a step whose values these bytes are, on a device that computes in this type.
pub(crate) fn step_rows(dtype: DType) -> usize {
    ROWS as usize * size_of::<f32>() / dtype.size_in_bytes().max(1)
}

/// The longest sequence that is served, in tokens.
pub(crate) fn context(spec: &DecoderSpec, wanted: Option<u64>) -> usize {
    let wanted = wanted.and_then(|tokens| usize::try_from(tokens).ok()).unwrap_or(usize::MAX);
    wanted.clamp(1, spec.max_positions)
}
