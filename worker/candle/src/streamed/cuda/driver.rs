//! Copies to a GPU during its computation: candle's stream, a second one for copies, and events between them.
//!
//! candle uses one stream. Its tensors do not track their uses ([`crate::device`]), so events order the work of the two
//! streams, in the engine's order. All calls make their context current first, because two threads make them: one
//! computes and one places.

use std::sync::Arc;

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};
use candle_core::{CudaDevice, Device};
use model_boss_engine::DecoderError;
use model_boss_engine::residency::device_copy::{CopyDriver, Queue};
use model_boss_engine::residency::{Capabilities, StreamFault};
use model_boss_kernels::MatrixLayout;
use model_boss_weights::store::HostBuffer;

use super::fault::{fault, of_candle};
use super::memory::{SlotMemory, pinned};
use crate::device::failure_of_gpu;
use crate::error::ModelError;
use crate::read::reader::WeightReader;
use crate::streamed::device_copy;
use crate::streamed::request::{StreamRequest, StreamedPart};

/// Streams layers to the GPU of the request.
pub(crate) fn stream(asked: &StreamRequest<'_>, reader: &mut WeightReader<'_>) -> Result<StreamedPart, ModelError> {
    let driver = CudaDriver::new(&asked.part.place.target.device).map_err(|error| {
        let error = failure_of_gpu(&error).unwrap_or_else(|| DecoderError::Fatal(error.to_string()));
        ModelError::Device(error)
    })?;
    device_copy::open(asked, reader, &Arc::new(driver))
}

/// One GPU with a stream of its own for copies.
struct CudaDriver {
    device: Device,
    cuda: CudaDevice,
    context: Arc<CudaContext>,
    compute: Arc<CudaStream>,
    copy: Arc<CudaStream>,
}

impl CudaDriver {
    fn new(device: &Device) -> candle_core::Result<Self> {
        let cuda = device.as_cuda_device()?.clone();
        let compute = cuda.cuda_stream();
        let context = Arc::clone(compute.context());
        let copy = context.new_stream().map_err(CudaError::Cuda)?;
        Ok(Self { device: device.clone(), cuda, context, compute, copy })
    }

    fn queue(&self, queue: Queue) -> &CudaStream {
        match queue {
            Queue::Copy => &self.copy,
            Queue::Compute => &self.compute,
        }
    }
}

impl CopyDriver for CudaDriver {
    type Class = MatrixLayout;
    type Memory = SlotMemory;
    type Event = CudaEvent;

    fn capabilities(&self) -> Capabilities {
        Capabilities { pinned_host: true, ..Capabilities::default() }
    }

    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer, StreamFault> {
        pinned(&self.context, bytes)
    }

    fn allocate(&self, class: &MatrixLayout) -> Result<SlotMemory, StreamFault> {
        SlotMemory::allocate(*class, &self.device, &self.cuda).map_err(|error| of_candle(&error))
    }

    fn event(&self, timed: bool) -> Result<CudaEvent, StreamFault> {
        // A wait for an event sleeps: a copy takes milliseconds, and polling meanwhile would use a whole core.
        let flags = timed.then_some(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        self.context.new_event(flags).map_err(fault)
    }

    fn copy(&self, from: &[u8], to: &SlotMemory) -> Result<(), StreamFault> {
        if from.len() != to.bytes {
            return Err(StreamFault::Step(format!("{} bytes for a matrix of {}", from.len(), to.bytes)));
        }
        self.context.bind_to_thread().map_err(fault)?;
        // SAFETY: `to` has these bytes at its address. By the contract of this function, `to` and `from` exist until a
        // later event is reached.
        #[allow(unsafe_code)]
        unsafe { result::memcpy_htod_async(to.address, from, self.copy.cu_stream()) }.map_err(fault)
    }

    fn record(&self, event: &CudaEvent, queue: Queue) -> Result<(), StreamFault> {
        event.record(self.queue(queue)).map_err(fault)
    }

    fn wait(&self, queue: Queue, event: &CudaEvent) -> Result<(), StreamFault> {
        self.queue(queue).wait(event).map_err(fault)
    }

    fn finish(&self, event: &CudaEvent) -> Result<(), StreamFault> {
        event.synchronize().map_err(fault)
    }

    fn seconds(&self, from: &CudaEvent, to: &CudaEvent) -> Result<f64, StreamFault> {
        from.elapsed_ms(to).map(|milliseconds| f64::from(milliseconds) / 1e3).map_err(fault)
    }
}
