//! Results on their way to the host. To memory that is not page-locked the driver copies slowly, by way of a buffer of
//! its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::driver::result;
use candle_core::{DType, Error, Result, Tensor, bail};
use model_boss_weights::store::HostBuffer;

use super::launch::address;
use super::pinned::pinned;

/// Bytes of the largest buffer: the logits of 100 sequences of a large vocabulary.
const LARGEST: usize = 64 << 20;

/// The buffer of one GPU, which grows to the largest result.
type Landing = Arc<Mutex<Option<HostBuffer>>>;

/// Waits for a tensor of f32 on a GPU and reads it.
pub(crate) fn with_numbers<R>(x: &Tensor, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    if x.dtype() != DType::F32 {
        bail!("{:?} is read as f32", x.dtype());
    }
    let stream = x.device().as_cuda_device()?.cuda_stream();
    stream.context().bind_to_thread().map_err(CudaError::from)?;
    let x = x.contiguous()?;
    let bytes = x.elem_count() * size_of::<f32>();
    if bytes > LARGEST {
        return Ok(read(&x.flatten_all()?.to_vec1()?));
    }
    let landing = landing_of(stream.context().ordinal());
    let mut landing = locked(&landing);
    let buffer = match &mut *landing {
        Some(buffer) if buffer.len() >= bytes => buffer,
        small => {
            let room = bytes.max(1).next_power_of_two();
            small.insert(pinned(stream.context(), room).map_err(|fault| Error::msg(format!("{fault:?}")))?)
        }
    };
    let Some(into) = buffer.get_mut(..bytes) else { bail!("a buffer is too small") };
    // SAFETY: the tensor has as many bytes, and nothing else uses the buffer before the copy's end, which is waited
    // for.
    #[allow(unsafe_code)]
    unsafe { result::memcpy_dtoh_async(into, address(&x)?, stream.cu_stream()) }.map_err(CudaError::from)?;
    stream.synchronize().map_err(CudaError::from)?;
    // SAFETY: the buffer begins at a page, and numbers of any bits are numbers.
    #[allow(unsafe_code)]
    let (before, numbers, _) = unsafe { into.align_to::<f32>() };
    if !before.is_empty() {
        bail!("a buffer begins within a number");
    }
    Ok(read(numbers))
}

fn landing_of(ordinal: usize) -> Landing {
    static LANDINGS: Mutex<Option<HashMap<usize, Landing>>> = Mutex::new(None);
    let mut landings = locked(&LANDINGS);
    Arc::clone(landings.get_or_insert_default().entry(ordinal).or_default())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
