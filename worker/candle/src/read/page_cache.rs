//! The page cache as the source of the next load. After direct reads of a model, its files are also read into the page
//! cache, slowly and only into spare memory. The next load then reads from memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use candle_core::Device;

use crate::device;

/// Bytes of one read.
const STEP: usize = 4 << 20;
/// Seconds of pause for each second of reading, so that requests to the model have precedence.
const REST: u32 = 3;

/// Begins to read files into the page cache, if they fill at most half of the free memory. A file that cannot be read
/// is skipped, and the next load is slower.
pub(crate) fn fill(paths: Vec<PathBuf>) {
    let bytes: u64 = paths.iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum();
    if device::free_memory(&Device::Cpu).is_some_and(|free| bytes <= free / 2) {
        let body = move || paths.iter().try_for_each(|path| read(path, |reading| thread::park_timeout(reading * REST)));
        let _ = thread::Builder::new().name("cache-fill".to_owned()).spawn(body);
    }
}

/// Reads a file from its beginning to its end; `pause` is called with the time of each step.
fn read(path: &Path, pause: impl Fn(std::time::Duration)) -> io::Result<()> {
    let (file, mut step, mut at) = (File::open(path)?, vec![0; STEP], 0);
    loop {
        let begun = Instant::now();
        match file.read_at(&mut step, at) {
            Ok(0) => return Ok(()),
            Ok(count) => at += count as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        pause(begun.elapsed());
    }
}
