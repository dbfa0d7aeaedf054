//! Work on rows that do not see each other: each core does all of it with some of the rows, so that numbers between two
//! operations stay in its cache, and cores wait for each other only at the end.

use std::array;

use candle_core::{DType, Result, Storage, Tensor, bail};
use model_boss_kernels::alone;
use rayon::prelude::*;

use super::family::Pause;
use crate::matrix::all_of;
use crate::matrix::tensor_products::contiguous;

/// Most rows of a part. The widest numbers of a feed-forward part stay in the second cache, beside a piece of a matrix.
const MOST: usize = 66;

/// Least rows of a part. With fewer it costs more that each core reads all matrices than to divide each product.
const LEAST: usize = 36;

/// Some of the rows, and where their results go.
struct RowPart<'o, const OUTS: usize> {
    first: usize,
    rows: usize,
    outs: [&'o mut [f32]; OUTS],
}

impl<const OUTS: usize> RowPart<'_, OUTS> {
    fn run<const INS: usize>(
        &mut self,
        inputs: [&Tensor; INS],
        work: impl Fn([&Tensor; INS]) -> Result<[Tensor; OUTS]>,
    ) -> Result<()> {
        let here: Vec<Tensor> = inputs.iter().map(|x| x.narrow(0, self.first, self.rows)).collect::<Result<_>>()?;
        let results = work(array::from_fn(|at| &here[at]))?;
        for (out, result) in self.outs.iter_mut().zip(results) {
            let (storage, layout) = result.storage_and_layout();
            let Storage::Cpu(storage) = &*storage else { bail!("results of rows have left the memory of the CPU") };
            let values = contiguous(storage, layout)?;
            if values.len() != out.len() {
                bail!("{} rows have {} results, not {}", self.rows, values.len(), out.len());
            }
            out.copy_from_slice(values);
        }
        Ok(())
    }
}

/// Runs work on inputs `[rows, …]`, f32 or numbers of rows, in parts where that is faster. It returns tensors
/// `[rows, width]` of these widths. Where cores have several parts each, there is a pause between them.
pub(crate) fn in_parts<const INS: usize, const OUTS: usize>(
    inputs: [&Tensor; INS],
    widths: [usize; OUTS],
    pause: Pause<'_>,
    work: impl Fn([&Tensor; INS]) -> Result<[Tensor; OUTS]> + Sync,
) -> Result<[Tensor; OUTS]> {
    let (rows, cores) = (inputs[0].dim(0)?, rayon::current_num_threads());
    let count = rows.div_ceil(cores * MOST).max(1) * cores;
    let is_here = |x: &&Tensor| x.device().is_cpu() && matches!(x.dtype(), DType::F32 | DType::U32);
    if rows / count < LEAST || !inputs.iter().all(is_here) {
        return work(inputs);
    }
    let mut all = widths.map(|width| vec![0.0; rows * width]);
    let mut rest = all.each_mut().map(Vec::as_mut_slice);
    let mut parts = Vec::with_capacity(count);
    for part in 0..count {
        let first = rows * part / count;
        let rows = rows * (part + 1) / count - first;
        let outs = array::from_fn(|at| {
            let (here, behind) = std::mem::take(&mut rest[at]).split_at_mut(rows * widths[at]);
            rest[at] = behind;
            here
        });
        parts.push(RowPart { first, rows, outs });
    }
    for (round, parts) in parts.chunks_mut(cores).enumerate() {
        if round > 0 {
            pause();
        }
        parts.par_iter_mut().with_max_len(1).try_for_each(|part| alone(|| part.run(inputs, &work)))?;
    }
    let device = inputs[0].device();
    let tensors = all.into_iter().zip(widths).map(|(values, width)| Tensor::from_vec(values, (rows, width), device));
    all_of(tensors.collect::<Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::Device;

    use super::*;

    /// Runs work that sees which rows it has, on so many cores; returns the results, the parts and the pauses.
    fn run(rows: usize, cores: usize) -> ([Vec<Vec<f32>>; 2], usize, usize) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
        let numbers: Vec<f32> = (0..rows * 3).map(|at| at as f32).collect();
        let x = Tensor::from_vec(numbers, (rows, 3), &Device::Cpu).unwrap();
        let places = Tensor::arange(0.0_f32, rows as f32, &Device::Cpu).unwrap().reshape((rows, 1)).unwrap();
        let (parts, pauses) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let pause = || {
            pauses.fetch_add(1, Ordering::Relaxed);
        };
        let work = |[x, places]: [&Tensor; 2]| {
            parts.fetch_add(1, Ordering::Relaxed);
            Ok([(x * 2.0)?, (places + 1.0)?])
        };
        let results = pool.install(|| in_parts([&x, &places], [3, 1], &pause, work)).unwrap();
        (results.map(|result| result.to_vec2().unwrap()), parts.into_inner(), pauses.into_inner())
    }

    #[test]
    fn em_5_each_row_has_its_result_in_any_number_of_parts() {
        for (rows, cores, parts, pauses) in [(1, 2, 1, 0), (71, 2, 1, 0), (73, 2, 2, 0), (257, 2, 4, 1), (300, 3, 6, 1)]
        {
            let ([doubled, counted], ran, paused) = run(rows, cores);
            assert_eq!((ran, paused), (parts, pauses), "{rows} rows, {cores} cores");
            assert!(doubled.iter().flatten().enumerate().all(|(at, number)| *number == 2.0 * at as f32));
            assert!(counted.iter().flatten().enumerate().all(|(at, number)| *number == 1.0 + at as f32));
            assert_eq!((doubled.len(), counted.len()), (rows, rows));
        }
    }

    #[test]
    fn work_that_fails_or_gives_too_little_is_an_error() {
        let x = Tensor::zeros((400, 2), DType::F32, &Device::Cpu).unwrap();
        let failed = in_parts([&x], [2], &|| {}, |_| bail!("no"));
        assert!(failed.is_err_and(|error| error.to_string().contains("no")));
        let short = in_parts([&x], [2], &|| {}, |[x]| Ok([x.narrow(1, 0, 1)?.contiguous()?]));
        assert!(short.is_err_and(|error| error.to_string().contains("results, not")));
    }
}
