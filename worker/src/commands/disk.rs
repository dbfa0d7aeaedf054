//! The speed of the disk under a model, which is the ceiling of streaming, measured as streaming reads, by several
//! readers at a time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use model_boss_protocol::WorkerExit;
use model_boss_weights::store::{Extent, HostBuffer, Run, WeightStore, WeightStoreChoice, WeightStoreError, open};
use serde::Serialize;

use crate::failure::LoadFailure;
use crate::terminal::print;

/// `disk`'s command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Disk {
    /// A file on the disk: the model's own
    file: PathBuf,
    /// How many read at the same time, one measurement for each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    readers: Vec<usize>,
    /// MiB of each read: as large as a block of layers
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1024))]
    read: u64,
    /// MiB that each measurement reads, spread over the file
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    amount: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The result of one measurement.
#[derive(Debug, Serialize)]
struct Ceiling {
    readers: usize,
    bytes: u64,
    bytes_per_second: f64,
}

/// Reads, and prints what came.
pub(crate) fn run(asked: &Disk) -> Result<(), LoadFailure> {
    let failed = |error: WeightStoreError| LoadFailure::new(WorkerExit::BadModel, &error);
    let unreadable = |error: std::io::Error| {
        LoadFailure::message(WorkerExit::BadModel, format!("{} cannot be read: {error}", asked.file.display()))
    };
    let len = std::fs::metadata(&asked.file).map_err(unreadable)?.len();
    let store = open(std::slice::from_ref(&asked.file), WeightStoreChoice::Auto).map_err(failed)?;
    let runs = runs(len, asked.read << 20, asked.amount << 20);
    let mut measured = Vec::new();
    for readers in &asked.readers {
        measured.push(ceiling(store.as_ref(), &runs, (*readers).max(1)).map_err(failed)?);
    }
    if asked.json {
        // Numbers always have a spelling in JSON.
        print(serde_json::to_string(&measured).unwrap_or_default());
    } else {
        print(format_args!("{}: {} reads of {} MiB", store.describe(), runs.len(), asked.read));
        for ceiling in &measured {
            print(format_args!("{:>3} readers: {:.2} GB/s", ceiling.readers, ceiling.bytes_per_second / 1e9));
        }
    }
    Ok(())
}

/// Reads of whole size, evenly over the file, in its order; one that is shorter if the file is.
fn runs(len: u64, size: u64, amount: u64) -> Vec<Run> {
    let there = len / size;
    let wanted = (amount / size).clamp(1, there.max(1));
    let run = |index: u64| {
        let offset = if there == 0 { 0 } else { index * there / wanted * size };
        Run { extent: Extent { file: 0, offset, len: size.min(len) }, at: 0 }
    };
    (0..wanted).map(run).collect()
}

/// Measures with this number of threads, of which each takes the next read until none is left.
fn ceiling(store: &dyn WeightStore, runs: &[Run], readers: usize) -> Result<Ceiling, WeightStoreError> {
    let size = runs.iter().map(|run| run.extent.len as usize).max().unwrap_or(0);
    let memory = |source| WeightStoreError::Memory { bytes: size as u64, source };
    let mut buffers = (0..readers).map(|_| HostBuffer::new(size).map_err(memory)).collect::<Result<Vec<_>, _>>()?;
    // Memory that was never touched is given by the kernel during the first read, which is not the disk's time.
    buffers.iter_mut().for_each(|buffer| buffer.fill(1));
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let read = |buffer: &mut HostBuffer| -> Result<(), WeightStoreError> {
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            store.read(run, buffer)?;
        }
        Ok(())
    };
    let results: Vec<Result<(), WeightStoreError>> = thread::scope(|scope| {
        let threads: Vec<_> = buffers.iter_mut().map(|buffer| scope.spawn(|| read(buffer))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(WeightStoreError::Panicked))).collect()
    });
    results.into_iter().collect::<Result<(), _>>()?;
    let bytes = runs.iter().map(|run| run.extent.len).sum();
    Ok(Ceiling { readers, bytes, bytes_per_second: bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_spread_over_the_file_and_stay_inside() {
        const MIB: u64 = 1 << 20;
        let spread = runs(100 * MIB + 7, 8 * MIB, 32 * MIB);
        let offsets: Vec<u64> = spread.iter().map(|run| run.extent.offset / MIB).collect();
        assert_eq!(offsets, [0, 24, 48, 72]);
        assert!(spread.iter().all(|run| run.extent.end() <= 100 * MIB));
        let short = runs(5_000, 8 * MIB, 32 * MIB);
        assert_eq!((short.len(), short[0].extent.len), (1, 5_000));
    }

    #[test]
    fn every_byte_is_read_however_many_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, vec![3; 3 << 20]).unwrap();
        let store = open(&[path], WeightStoreChoice::Auto).unwrap();
        for readers in [1, 3] {
            let ceiling = ceiling(store.as_ref(), &runs(3 << 20, 1 << 20, 64 << 20), readers).unwrap();
            assert_eq!((ceiling.readers, ceiling.bytes), (readers, 3 << 20));
            assert!(ceiling.bytes_per_second > 0.0);
        }
    }
}
