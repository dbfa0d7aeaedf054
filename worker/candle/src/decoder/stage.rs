//! Stages: consecutive layers on one device, one of several that share a decoder. Activations arrive from the stage
//! before; keys and values of the layers stay on the device. The contents of sequences are not known here.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor};
use model_boss_engine::residency::Monitor;
use model_boss_engine::{DecoderError, PlaceUse};
use model_boss_protocol::DeviceId;

use crate::decoder::source::LayerSource;
use crate::decoder::step_images::StepImages;
use crate::device;
use crate::layers::kv;
use crate::layers::kv::StepKv;
use crate::layers::kv_shape::KvHome;
use crate::layers::layer::LayerMemory;
use crate::layers::states::{StateLayout, StepStates};
use crate::layers::step::StepContext;
use crate::matrix::target::WeightTarget;
use crate::spec::DecoderSpec;

/// One stage of a decoder: consecutive layers on one device.
pub(crate) struct Stage {
    /// The device by its name inside the worker.
    pub(crate) name: DeviceId,
    /// The device and the type that it computes in.
    pub(crate) target: WeightTarget,
    /// The kind of memory for its keys and values.
    pub(crate) home: KvHome,
    /// The range of the model's layers.
    pub(crate) layers: Range<usize>,
    pub(crate) stretch: Box<dyn Stretch>,
    /// Bytes of weights on the device, ends included where they are its own.
    pub(crate) weight_bytes: u64,
    /// Bytes of host memory it streams through, where that is not the device's own.
    pub(crate) host_bytes: u64,
}

impl Stage {
    /// The activations on this stage's device; a free clone where they are on it already.
    pub(crate) fn receive(&self, x: &Tensor) -> Result<Tensor> {
        device::hand_on(x, &self.target.device)?.to_dtype(self.target.dtype)
    }

    /// The stage's place as reports show it.
    pub(crate) fn place(&self, spec: &DecoderSpec) -> PlaceUse {
        let per_token = kv::bytes_per_token(spec, self.layers.clone(), &self.target);
        let state = StateLayout::new(spec).bytes(self.layers.clone());
        PlaceUse::new(self.name.clone(), self.layers.clone(), (self.weight_bytes, self.host_bytes), (per_token, state))
    }
}

/// A step, with the data that one stage needs.
pub(crate) struct StretchStep<'a, 's> {
    /// Its layers.
    pub(crate) layers: Range<usize>,
    /// The sequences, with room for the step's tokens.
    pub(crate) kv: &'a mut StepKv<'s>,
    pub(crate) states: &'a mut StepStates,
    pub(crate) context: &'a StepContext,
    pub(crate) images: &'a StepImages<'a>,
    /// Asked between layers.
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
}

/// Layers that compute one after the other, resident or streamed. A step makes one call, so that no decision is
/// repeated at each layer.
pub(crate) trait Stretch: Send {
    /// All layers over all rows: `[rows, hidden]`.
    fn forward(&mut self, x: Tensor, step: &mut StretchStep<'_, '_>) -> std::result::Result<Tensor, DecoderError>;

    /// Begins a step, on any device.
    fn begin_step(&mut self);

    /// A step has ended well, on all devices.
    fn end_step(&mut self);

    /// The report on streamed layers; none where all layers are resident.
    fn monitor(&self) -> Option<Arc<Monitor>>;
}

impl<S: LayerSource> Stretch for S {
    fn forward(&mut self, mut x: Tensor, step: &mut StretchStep<'_, '_>) -> std::result::Result<Tensor, DecoderError> {
        for index in step.layers.clone() {
            if (step.stop)() {
                return Err(DecoderError::Interrupted);
            }
            let layer = self.layer(index, &step.stop)?;
            let memory = LayerMemory { kv: step.kv.layer(index), states: step.states.layer(index) };
            let forward = layer.forward(&x, memory, step.context, step.stop);
            let forward = forward.and_then(|x| step.images.behind(index, x));
            x = forward.map_err(|error| device::failure(&error))?;
        }
        Ok(x)
    }

    fn begin_step(&mut self) {
        LayerSource::begin_step(self);
    }

    fn end_step(&mut self) {
        LayerSource::end_step(self);
    }

    fn monitor(&self) -> Option<Arc<Monitor>> {
        LayerSource::monitor(self)
    }
}

/// One monitor over all stages.
pub(crate) fn monitor_over(stages: &[Stage]) -> Option<Arc<Monitor>> {
    let mut monitors: Vec<Arc<Monitor>> = stages.iter().filter_map(|stage| stage.stretch.monitor()).collect();
    match monitors.len() {
        0 | 1 => monitors.pop(),
        _ => Some(Arc::new(Monitor::over(monitors))),
    }
}
