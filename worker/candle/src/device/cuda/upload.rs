//! Bytes of files on their way to a GPU. From memory that is not page-locked the driver copies slowly, by way of a
//! buffer of its own; here all cores fill one of two page-locked buffers while the GPU copies from the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, result, sys};
use candle_core::cuda_backend::{CudaDevice, CudaError};
use candle_core::{DType, Error, Result, Tensor};
use model_boss_weights::store::HostBuffer;
use rayon::prelude::*;

use super::launch::address;
use super::pinned::pinned;

/// Bytes of each of the buffers.
const BUFFER: usize = 16 << 20;
/// Bytes that one core copies at a time.
const PIECE: usize = 256 << 10;

/// The buffers of one GPU, which live as long as the process.
#[derive(Default)]
struct Ferry {
    buffers: Vec<(HostBuffer, CudaEvent)>,
    next: usize,
}

/// Copies the bytes of a tensor's elements into a tensor that nobody has read yet; false if it is on no GPU.
pub(crate) fn upload(bytes: &[u8], to: &Tensor) -> Result<bool> {
    let Ok(cuda) = to.device().as_cuda_device() else { return Ok(false) };
    if bytes.len() != to.elem_count() * to.dtype().size_in_bytes() {
        candle_core::bail!("{} bytes are no tensor of {:?} {:?}", bytes.len(), to.shape(), to.dtype());
    }
    copy(bytes, address(to)?, cuda)?;
    Ok(true)
}

/// Copies bytes to the front of a GPU's tensor of bytes.
pub(crate) fn upload_bytes(bytes: &[u8], to: &Tensor) -> Result<()> {
    if to.dtype() != DType::U8 || bytes.len() > to.elem_count() {
        candle_core::bail!("{} bytes do not fit a tensor of {:?} {:?}", bytes.len(), to.shape(), to.dtype());
    }
    copy(bytes, address(to)?, to.device().as_cuda_device()?)
}

/// Copies bytes to an address of the GPU, behind all work before. When it returns, the bytes may change.
fn copy(bytes: &[u8], address: sys::CUdeviceptr, cuda: &CudaDevice) -> Result<()> {
    let stream = cuda.cuda_stream();
    stream.context().bind_to_thread().map_err(CudaError::from)?;
    let ferry = ferry_of(stream.context().ordinal());
    let mut ferry = locked(&ferry);
    for (at, part) in bytes.chunks(BUFFER).enumerate() {
        if ferry.buffers.len() < 2 {
            let buffer = pinned(stream.context(), BUFFER).map_err(|fault| Error::msg(format!("{fault:?}")))?;
            let event = stream.context().new_event(None).map_err(CudaError::from)?;
            event.record(&stream).map_err(CudaError::from)?;
            ferry.buffers.push((buffer, event));
        }
        let next = ferry.next % 2;
        ferry.next = (next + 1) % 2;
        let turn = next.min(ferry.buffers.len() - 1);
        let (buffer, sent) = &mut ferry.buffers[turn];
        sent.synchronize().map_err(CudaError::from)?;
        let Some(into) = buffer.get_mut(..part.len()) else { return Err(Error::msg("a buffer is too small")) };
        into.par_chunks_mut(PIECE).zip(part.par_chunks(PIECE)).for_each(|(into, from)| into.copy_from_slice(from));
        let to = address + (at * BUFFER) as sys::CUdeviceptr;
        // SAFETY: `to` has room for the part, since the address has for all bytes. The buffer lives as long as the
        // process and is not written before `sent`.
        #[allow(unsafe_code)]
        unsafe { result::memcpy_htod_async(to, into, stream.cu_stream()) }.map_err(CudaError::from)?;
        sent.record(&stream).map_err(CudaError::from)?;
    }
    Ok(())
}

fn ferry_of(ordinal: usize) -> Arc<Mutex<Ferry>> {
    static FERRIES: Mutex<Option<HashMap<usize, Arc<Mutex<Ferry>>>>> = Mutex::new(None);
    let mut ferries = locked(&FERRIES);
    Arc::clone(ferries.get_or_insert_default().entry(ordinal).or_default())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
