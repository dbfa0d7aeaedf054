use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::Mmap;

use super::*;

/// A file with known bytes at each offset, and the same bytes in memory.
fn file(folder: &tempfile::TempDir, len: usize) -> (PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let path = folder.path().join("weights");
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

/// A temporary folder on the disk of the sources, because a temporary folder of the system may be in memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn pieces(len: usize) -> Vec<Extent> {
    let piece = |offset: usize, len: usize| Extent { file: 0, offset: offset as u64, len: len as u64 };
    vec![piece(len - 1_001, 1_001), piece(33, 70_000), piece(400_007, 5), piece(80_000, 4_096)]
}

/// A store that counts the reads which reach the store that it wraps.
struct Counting(DirectStore, AtomicUsize);

impl WeightStore for Counting {
    fn read(&self, run: &Run, into: &mut [u8]) -> Result<(), WeightStoreError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.read(run, into)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

#[test]
fn rs_4_every_store_gives_the_same_bytes() {
    for folder in [on_disk(), tempfile::tempdir().unwrap()] {
        let (path, bytes) = file(&folder, 1_234_567);
        let reads = Reads::of(&pieces(bytes.len()));
        let paths = [path];
        let direct = open(&paths, WeightStoreChoice::Auto).unwrap();
        let held = MemoryStore::holding(Arc::clone(&direct), std::slice::from_ref(&reads), &[], u64::MAX).unwrap();
        for store in [direct, open(&paths, WeightStoreChoice::Map).unwrap(), Arc::new(held)] {
            let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
            read_all(store.as_ref(), &reads, &mut buffer).unwrap();
            for (piece, place) in pieces(bytes.len()).iter().zip(reads.places()) {
                let expected = &bytes[piece.offset as usize..piece.end() as usize];
                assert!(buffer[place.clone()] == *expected, "{} at {}", store.describe(), piece.offset);
            }
        }
    }
}

#[test]
fn memory_holds_what_fits_and_leaves_the_rest_where_it_is() {
    let folder = on_disk();
    let (path, bytes) = file(&folder, 300_000);
    let piece = |offset: u64| Reads::of(&[Extent { file: 0, offset, len: 40_000 }]);
    let blocks = [piece(0), piece(100_000), piece(200_000)];
    let behind = Arc::new(Counting(DirectStore::open(&[path]).unwrap(), AtomicUsize::new(0)));
    // The limit fits any two of the blocks. A buffer is longer if its block does not begin at a page.
    let limit = blocks[1].buffer() + blocks[2].buffer();
    let store = MemoryStore::holding(Arc::clone(&behind) as Arc<dyn WeightStore>, &blocks, &[], limit as u64).unwrap();
    assert!(store.bytes() <= limit as u64);
    assert!(
        store.describe().starts_with("memory (2 of 3 blocks") || store.describe().contains("others"),
        "{}",
        store.describe()
    );
    let filled = behind.1.load(Ordering::SeqCst);
    for _ in 0..3 {
        for (offset, reads) in [0, 100_000, 200_000].into_iter().zip(&blocks) {
            let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
            read_all(&store, reads, &mut buffer).unwrap();
            assert!(buffer[reads.places()[0].clone()] == bytes[offset..offset + 40_000]);
        }
    }
    assert_eq!(behind.1.load(Ordering::SeqCst) - filled, 3, "one block comes from disk each time");
}

#[test]
fn much_is_read_in_pieces_and_a_part_that_fails_fails_all() {
    let folder = on_disk();
    let (path, bytes) = file(&folder, (20 << 20) + 777);
    let piece = |offset: u64, len: u64| Extent { file: 0, offset, len };
    let reads = Reads::of(&[piece(5, 9 << 20), piece(12 << 20, (8 << 20) + 777)]);
    assert_eq!(reads.runs().len(), 2, "far enough apart");
    let direct = open(std::slice::from_ref(&path), WeightStoreChoice::Auto).unwrap();
    let held = MemoryStore::holding(Arc::clone(&direct), std::slice::from_ref(&reads), &[], u64::MAX).unwrap();
    for store in [&*direct as &dyn WeightStore, &held] {
        let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
        read_all(store, &reads, &mut buffer).unwrap();
        assert!(buffer[reads.places()[0].clone()] == bytes[5..5 + (9 << 20)], "{}", store.describe());
        assert!(buffer[reads.places()[1].clone()] == bytes[12 << 20..(20 << 20) + 777], "{}", store.describe());
    }
    let counting = Counting(DirectStore::open(std::slice::from_ref(&path)).unwrap(), AtomicUsize::new(0));
    let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
    read_all(&counting, &reads, &mut buffer).unwrap();
    assert_eq!(counting.1.load(Ordering::SeqCst), 4);
    File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    assert!(matches!(read_all(&counting, &reads, &mut buffer), Err(WeightStoreError::Changed { .. })));
}

#[test]
fn an_unaligned_buffer_is_read_the_ordinary_way() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bytes) = file(&folder, 50_000);
    let store = DirectStore::open(&[path]).unwrap();
    let run = Run { extent: Extent { file: 0, offset: 4_096, len: 8_192 }, at: 0 };
    let mut memory = vec![0; 8_193];
    store.read(&run, &mut memory[1..]).unwrap();
    assert_eq!(memory[1..], bytes[4_096..4_096 + 8_192]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_system_in_memory_is_read_through_the_cache_that_it_is() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let (path, _) = file(&folder, 50_000);
    if super::system::file_system(&File::open(&path).unwrap()).name != "tmpfs" {
        return;
    }
    let paths = [path];
    let about = open(&paths, WeightStoreChoice::Auto).unwrap().describe();
    assert_eq!(about, "through the page cache, which forgets (tmpfs is memory)");
    let refusal = open(&paths, WeightStoreChoice::Direct).err().unwrap().to_string();
    assert!(
        refusal.contains("weights") && refusal.contains("tmpfs is memory") && refusal.contains("auto"),
        "{refusal}"
    );
}

/// The bytes of a file in the page cache, as the kernel reports them.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn cached_bytes(path: &Path) -> usize {
    let file = File::open(path).unwrap();
    // SAFETY: no process changes the file.
    let map = unsafe { Mmap::map(&file) }.unwrap();
    let mut pages = vec![0_u8; map.len().div_ceil(PAGE)];
    // SAFETY: the array has a byte for every page of the map.
    let rc = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    pages.iter().filter(|page| **page & 1 == 1).count() * PAGE
}

#[cfg(target_os = "linux")]
#[test]
fn the_page_cache_is_no_second_copy() {
    let folder = on_disk();
    let (path, bytes) = file(&folder, 24 << 20);
    let plain = File::open(&path).unwrap();
    if system::file_system(&plain).is_memory {
        return;
    }
    let reads = Reads::of(&[Extent { file: 0, offset: 0, len: bytes.len() as u64 }]);
    let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
    let clean = || {
        // A file has to be on disk before the cache can forget it.
        File::options().write(true).open(&path).unwrap().sync_all().unwrap();
        system::forget(&plain, 0, bytes.len());
    };
    let paths = [path.clone()];
    clean();
    if cached_bytes(&path) > 0 {
        // The file system ignores the advice.
        return;
    }
    std::fs::read(&path).unwrap();
    assert!(cached_bytes(&path) > bytes.len() / 2, "an ordinary read leaves a copy: this test can fail");
    let through_the_cache = DirectStore::open(&paths).unwrap().without_direct();
    let stores: [Arc<dyn WeightStore>; 3] = [
        open(&paths, WeightStoreChoice::Auto).unwrap(),
        Arc::new(through_the_cache),
        open(&paths, WeightStoreChoice::Map).unwrap(),
    ];
    for store in stores {
        clean();
        read_all(store.as_ref(), &reads, &mut buffer).unwrap();
        assert!(buffer[..bytes.len()] == bytes);
        let left = cached_bytes(&path);
        assert!(left <= bytes.len() / 10, "{} leaves {left} bytes", store.describe());
    }
}

#[test]
fn a_file_that_is_written_or_cut_is_no_longer_read() {
    let folder = tempfile::tempdir().unwrap();
    for cut in [false, true] {
        let (path, bytes) = file(&folder, 100_000);
        let stores = [WeightStoreChoice::Auto, WeightStoreChoice::Map]
            .map(|choice| open(std::slice::from_ref(&path), choice).unwrap());
        let reads = Reads::of(&pieces(bytes.len())[..1]);
        let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
        let mut written = OpenOptions::new().append(true).open(&path).unwrap();
        if cut {
            written.set_len(50_000).unwrap()
        } else {
            written.write_all(b"more").unwrap()
        }
        for store in stores {
            let error = read_all(store.as_ref(), &reads, &mut buffer).unwrap_err();
            assert!(matches!(error, WeightStoreError::Changed { .. }), "{error}");
        }
    }
}

#[test]
fn what_the_system_refuses_is_named_with_its_place() {
    let error = DirectStore::open(&["/no/such/file".into()]).unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    // A folder opens and cannot be read: the kernel's own read error.
    let folder = tempfile::tempdir().unwrap();
    let store = DirectStore::open(&[folder.path().to_owned()]).unwrap();
    let run = Run { extent: Extent { file: 0, offset: 4_096, len: 4_096 }, at: 0 };
    let mut buffer = HostBuffer::new(PAGE).unwrap();
    let folder_len = folder.path().metadata().unwrap().len();
    let run =
        if folder_len > run.extent.offset { run } else { Run { extent: Extent { offset: 0, ..run.extent }, ..run } };
    let error = store.read(&run, &mut buffer).unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, WeightStoreError::Read { .. }) && words.contains("at byte"), "{words}");
    assert!(words.contains(&folder.path().display().to_string()), "{words}");

    let store = DirectStore::open(&[]).unwrap();
    let reads = Reads::of(&[Extent { file: 3, offset: 0, len: 1 }]);
    let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
    assert!(matches!(read_all(&store, &reads, &mut buffer), Err(WeightStoreError::NoFile { file: 3 })));
    assert!(matches!(read_all(&store, &reads, &mut []), Err(WeightStoreError::TooShort { .. })));
}
