//! The memory used for an invented header is never more than a small multiple of the file's own size.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use model_boss_weights::gguf::Header;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; counting touches plain cells only.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get() + layout.size();
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn peak_of_parsing(file: &[u8]) -> usize {
    HELD.set(0);
    PEAK.set(0);
    let _ = Header::parse(file);
    PEAK.get()
}

fn header(tensors: u64, keys: u64) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend(tensors.to_le_bytes());
    file.extend(keys.to_le_bytes());
    file
}

#[test]
fn counts_cost_nothing_until_their_bytes_are_there() {
    for file in [header(u64::MAX, 0), header(0, u64::MAX), header(1 << 30, 1 << 30)] {
        assert!(peak_of_parsing(&file) < 1024);
    }
    // The header has a count that the file's size would allow, and no entries.
    let mut file = header(40_000, 0);
    file.resize(1 << 20, 0xff);
    assert!(peak_of_parsing(&file) < 4096);
    // The header has an array of 100,000 empty strings.
    let mut file = header(0, 1);
    file.extend(1_u64.to_le_bytes());
    file.extend(b"k\x09\0\0\0\x08\0\0\0");
    file.extend(100_000_u64.to_le_bytes());
    file.resize(file.len() + 800_000, 0);
    assert!(Header::parse(&file).is_ok());
    assert!(peak_of_parsing(&file) < 1024);
}

#[test]
fn the_densest_header_costs_a_small_multiple_of_its_size() {
    let mut file = header(0, 30_000);
    for key in 0..30_000_u32 {
        let name = format!("{key:05}");
        file.extend((name.len() as u64).to_le_bytes());
        file.extend(name.as_bytes());
        file.extend(0_u32.to_le_bytes());
        file.push(0);
    }
    assert!(Header::parse(&file).is_ok());
    let peak = peak_of_parsing(&file);
    assert!(peak < 16 * file.len(), "{peak} bytes held for {}", file.len());
}
