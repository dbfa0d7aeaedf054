//! Any bytes as a safetensors file: a file that this repository's reader accepts is sound, and the reference reader
//! accepts it too.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use model_boss_weights::TensorIndex;

fuzz_target!(|file: &[u8]| {
    let index = match TensorIndex::parse(Path::new("fuzz.safetensors"), file) {
        Ok(index) => index,
        Err(error) => {
            assert!(error.to_string().contains("fuzz.safetensors"), "{error}");
            return;
        }
    };
    let mut places = Vec::new();
    for (name, tensor) in index.iter() {
        assert_eq!(tensor.dtype.bytes_of(&tensor.shape), Some(tensor.bytes()), "{name}");
        places.push((tensor.range.start, tensor.range.end));
    }
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].1 == pair[1].0), "holes or overlaps: {places:?}");
    assert!(places.last().is_none_or(|(_, end)| *end == file.len() as u64), "does not end with the file");

    let reference = safetensors::SafeTensors::deserialize(file).expect("the reference reader refuses it");
    assert_eq!(reference.len(), index.len());
    for (name, tensor) in index.iter() {
        let theirs = reference.tensor(name).expect("the reference reader knows no such tensor");
        assert_eq!(theirs.shape(), tensor.shape, "{name}");
        let ours = usize::try_from(tensor.range.start).expect("a small file")..tensor.range.end as usize;
        assert_eq!(theirs.data(), &file[ours], "{name}");
    }
});
