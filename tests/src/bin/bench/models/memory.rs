//! The read bandwidth of the machine's memory. It is the upper limit of decoding, which reads all weights for each
//! token.

use std::hint::black_box;
use std::time::Instant;

/// The bytes that each thread reads: more than any cache holds.
const BYTES: usize = 512 << 20;

/// Bytes per second that `threads` threads read together, each from its own memory.
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

/// Eight sums in parallel, so that the additions never delay the reads.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0_u64; 8];
    for eight in words.as_chunks::<8>().0 {
        for (sum, word) in sums.iter_mut().zip(eight) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
