//! What the machine's memory gives when it is only read: the ceiling of decoding, which reads all weights for each
//! token.

use std::hint::black_box;
use std::time::Instant;

/// Bytes each thread reads: more than any cache holds of it.
const BYTES: usize = 512 << 20;

/// Bytes per second that so many threads read together, each its own memory.
pub(super) fn read_bandwidth(threads: usize) -> f64 {
    let buffers: Vec<Vec<u64>> = (0..threads as u64).map(|salt| vec![salt | 1; BYTES / size_of::<u64>()]).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for buffer in &buffers {
            scope.spawn(|| black_box(sum(black_box(buffer))));
        }
    });
    (threads * BYTES) as f64 / begun.elapsed().as_secs_f64()
}

/// Eight sums side by side, so that adding is never what it waits for.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0_u64; 8];
    for eight in words.as_chunks::<8>().0 {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
