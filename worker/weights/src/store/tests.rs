use std::fs::OpenOptions;
use std::io::Write;

use super::*;

/// A file whose byte at `i` is told by `i`, and the same in memory.
fn file(folder: &tempfile::TempDir, len: usize) -> (PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let path = folder.path().join("weights");
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

fn pieces(len: usize) -> Vec<Extent> {
    let piece = |offset: usize, len: usize| Extent { file: 0, offset: offset as u64, len: len as u64 };
    vec![piece(len - 1_001, 1_001), piece(33, 70_000), piece(400_007, 5), piece(80_000, 4_096)]
}

#[test]
fn every_store_gives_the_same_bytes() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (path, bytes) = file(&folder, 1_234_567);
    let reads = Reads::of(&pieces(bytes.len()));
    let paths = [path];
    let direct = DirectStore::open(&paths).unwrap();
    let (mapped, memory) = (MappedStore::open(&paths).unwrap(), MemoryStore::new(vec![bytes.clone()]));
    let stores: [&dyn WeightStore; 3] = [&direct, &mapped, &memory];
    for store in stores {
        let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
        read_all(store, &reads, &mut buffer).unwrap();
        for (piece, place) in pieces(bytes.len()).iter().zip(reads.places()) {
            let expected = &bytes[piece.offset as usize..piece.end() as usize];
            assert!(buffer[place.clone()] == *expected, "{} at {}", store.name(), piece.offset);
        }
    }
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

#[test]
fn a_file_that_is_written_or_cut_is_no_longer_read() {
    let folder = tempfile::tempdir().unwrap();
    for cut in [false, true] {
        let (path, bytes) = file(&folder, 100_000);
        let stores: [Box<dyn WeightStore>; 2] = [
            Box::new(DirectStore::open(std::slice::from_ref(&path)).unwrap()),
            Box::new(MappedStore::open(std::slice::from_ref(&path)).unwrap()),
        ];
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
            assert!(matches!(error, StoreError::Changed { .. }), "{error}");
        }
    }
}

#[test]
fn what_is_not_there_is_named() {
    let error = DirectStore::open(&["/no/such/file".into()]).unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    let store = MemoryStore::new(Vec::new());
    let reads = Reads::of(&[Extent { file: 3, offset: 0, len: 1 }]);
    let mut buffer = HostBuffer::new(reads.buffer()).unwrap();
    assert!(matches!(read_all(&store, &reads, &mut buffer), Err(StoreError::NoFile { file: 3 })));
    assert!(matches!(read_all(&store, &reads, &mut []), Err(StoreError::TooShort { .. })));
}
