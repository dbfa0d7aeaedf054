//! Launches of this project's own kernels, and the addresses that they take.

use std::ffi::c_void;
use std::ptr;

use candle_core::cuda_backend::cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute};
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::{CudaDevice, CudaError};
use candle_core::{DType, Device, Result, Shape, Storage, Tensor, bail};
use half::{bf16, f16};

use crate::device::scratch;

/// The kernels of each type, as text that the driver translates when a type is first used.
pub(super) const TEXTS: [(&str, &str); 3] = [
    ("f32", include_str!(concat!(env!("OUT_DIR"), "/rows_f32.ptx"))),
    ("f16", include_str!(concat!(env!("OUT_DIR"), "/rows_f16.ptx"))),
    ("bf16", include_str!(concat!(env!("OUT_DIR"), "/rows_bf16.ptx"))),
];

/// The instruction by which kernels wait that began early. Those for GPUs before compute capability 9.0 lack it.
const BEGINS_EARLY: &str = "griddepcontrol.wait";
/// The kernels that begin early: those with weights to read, and those between them. Others would only take room from
/// the kernel before.
const BEGIN_EARLY: [&str; 3] = ["multiply", "place", "attend"];
/// Threads that run in step, as in `kernels/numbers.cuh`.
pub(super) const WARP: u32 = 32;
/// Shared memory that every kernel may use without asking, and that a kernel of pieces may ask for on every GPU of
/// compute capability 8.0 on.
pub(super) const SHARED_BYTES: usize = 48 << 10;
pub(super) const MOST_SHARED_BYTES: usize = 99 << 10;

/// The count of a GPU's multiprocessors, and the shared memory of each and of a block of threads, in bytes.
pub(super) struct GpuLimits {
    pub(super) multiprocessors: usize,
    pub(super) shared_bytes: usize,
    pub(super) shared_bytes_of_block: usize,
}

/// The device of a tensor.
pub(super) struct Gpu<'a> {
    device: &'a Device,
    cuda: &'a CudaDevice,
}

impl<'a> Gpu<'a> {
    pub(super) fn of(x: &'a Tensor) -> Result<Self> {
        Ok(Self { device: x.device(), cuda: x.device().as_cuda_device()? })
    }

    /// The GPU's limits on blocks of threads.
    pub(super) fn limits(&self) -> Result<GpuLimits> {
        let stream = self.cuda.cuda_stream();
        let of = |attribute| -> Result<usize> {
            let number = stream.context().attribute(attribute).map_err(CudaError::from)?;
            Ok(number.unsigned_abs() as usize)
        };
        Ok(GpuLimits {
            multiprocessors: of(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: of(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            shared_bytes_of_block: of(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        })
    }

    pub(super) fn cuda(&self) -> &CudaDevice {
        self.cuda
    }

    /// Memory that the next launch writes.
    pub(super) fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        // SAFETY: numbers of any bits are numbers, and the kernel that gets the address writes all that are read.
        #[allow(unsafe_code)]
        let made = |shape| unsafe { Tensor::empty(shape, dtype, self.device) };
        scratch::result(shape.into(), dtype, made)
    }

    /// Launches the kernel of this name for the type of `x`.
    pub(super) fn launch<A: DeviceRepr>(
        &self,
        kernel: &str,
        x: &Tensor,
        form: &str,
        config: LaunchConfig,
        arguments: &A,
    ) -> Result<()> {
        let of = type_name(x.dtype());
        let Some((_, text)) = TEXTS.iter().find(|(name, _)| Some(*name) == of) else {
            bail!("no kernels for {:?}", x.dtype())
        };
        let (name, module) = (format!("{kernel}_{}{form}", of.unwrap_or_default()), of.unwrap_or_default());
        self.launch_of(&name, module, text, config, arguments)
    }

    /// Launches the kernel of this name in a module, which the driver makes of the text at its first use.
    pub(super) fn launch_of<A: DeviceRepr>(
        &self,
        kernel: &str,
        module: &str,
        text: &str,
        config: LaunchConfig,
        arguments: &A,
    ) -> Result<()> {
        let (across, down, deep) = config.grid_dim;
        if [across, down, deep].contains(&0) {
            return Ok(());
        }
        let function = self.cuda.get_or_load_custom_func(kernel, module, text)?;
        if config.shared_mem_bytes as usize > SHARED_BYTES {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, config.shared_mem_bytes as i32).map_err(CudaError::from)?;
        }
        let begins_early = BEGIN_EARLY.iter().any(|early| kernel.starts_with(early));
        if scratch::is_recording() && begins_early && text.contains(BEGINS_EARLY) {
            return self.launch_early(&function, config, arguments);
        }
        let mut builder = function.builder();
        builder.arg(arguments);
        // SAFETY: the kernel of this name takes this struct. Its addresses are of tensors with the shapes that the
        // struct names, on this device. Frees and other kernels follow on the same stream.
        #[allow(unsafe_code)]
        unsafe { builder.launch(config) }.map_err(CudaError::from)?;
        Ok(())
    }

    /// Launches a kernel that may begin while the one before it runs. It waits for the other's end before it reads more
    /// than weights.
    fn launch_early<A: DeviceRepr>(&self, function: &CudaFunction, config: LaunchConfig, arguments: &A) -> Result<()> {
        let mut attributes = [sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        }];
        let ((across, down, deep), (wide, high, thick)) = (config.grid_dim, config.block_dim);
        let launch = sys::CUlaunchConfig {
            gridDimX: across,
            gridDimY: down,
            gridDimZ: deep,
            blockDimX: wide,
            blockDimY: high,
            blockDimZ: thick,
            sharedMemBytes: config.shared_mem_bytes,
            hStream: self.cuda.cuda_stream().cu_stream(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: 1,
        };
        let mut parameters = [ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        // SAFETY: as in `launch`. The driver copies attributes and parameters before it returns.
        #[allow(unsafe_code)]
        let launched = unsafe {
            sys::cuLaunchKernelEx(&launch, function.cu_function(), parameters.as_mut_ptr(), ptr::null_mut()).result()
        };
        Ok(launched.map_err(CudaError::from)?)
    }
}

/// The address of a contiguous tensor's first element.
pub(super) fn address(x: &Tensor) -> Result<u64> {
    let (storage, layout) = x.storage_and_layout();
    let (Storage::Cuda(cuda), Some((first, _))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("a kernel needs contiguous tensors of a GPU");
    };
    let stream = cuda.device.cuda_stream();
    let base = match x.dtype() {
        DType::F32 => cuda.as_cuda_slice::<f32>()?.device_ptr(&stream).0,
        DType::F16 => cuda.as_cuda_slice::<f16>()?.device_ptr(&stream).0,
        DType::BF16 => cuda.as_cuda_slice::<bf16>()?.device_ptr(&stream).0,
        DType::U8 => cuda.as_cuda_slice::<u8>()?.device_ptr(&stream).0,
        DType::U32 => cuda.as_cuda_slice::<u32>()?.device_ptr(&stream).0,
        other => bail!("no kernel for {other:?}"),
    };
    Ok(base + (first * x.dtype().size_in_bytes()) as u64)
}

/// A type as the names of kernels have it; none without kernels.
pub(super) fn type_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

pub(super) fn int(number: usize) -> Result<i32> {
    i32::try_from(number).map_err(candle_core::Error::wrap)
}
