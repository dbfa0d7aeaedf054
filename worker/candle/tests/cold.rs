//! A model whose file is not in the page cache: direct reads of it give the same model to the bit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]
#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use model_boss_candle::{Synthetic, load};
use model_boss_engine::{Logits, SequenceStep, Sequences};
use model_boss_protocol::DeviceId;
use model_boss_weights::gguf::{GgufModel, HeaderWriter};

/// A model on the disk of the sources, because a temporary folder of the system may be in memory. It is larger than the
/// part of a file that is requested for its header.
fn model(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("small.gguf");
    Synthetic::of("qwen3-small").unwrap().write(3, HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
    path
}

/// Whether the system has dropped the file from its page cache: some file systems ignore such advice.
fn forgotten(path: &Path) -> bool {
    let advice = ["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"];
    let dd = Command::new("dd").arg(format!("of={}", path.display())).args(advice).status();
    dd.is_ok_and(|status| status.success()) && GgufModel::open(path).unwrap().cached_share() < 0.5
}

fn logits(path: &Path) -> Vec<u32> {
    let decoder = load(path, &DeviceId::Cpu, Some(64), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let mut decoder = Sequences::over(decoder);
    let kv = decoder.open(16).unwrap();
    let rows = decoder.forward(&[SequenceStep { kv, tokens: &[5, 1, 300, 7], logits: Logits::All }]).unwrap();
    rows.iter().flat_map(|row| row.iter().map(|logit| logit.to_bits())).collect()
}

#[test]
fn a_cold_file_gives_the_same_model_and_what_is_wrong_in_it_is_named() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = model(&folder);
    let warm = logits(&path);
    if !forgotten(&path) {
        return;
    }
    assert!(logits(&path) == warm);

    // Elements with all bits set are NaN.
    let place = GgufModel::open(&path).unwrap().get("blk.1.attn_q.weight").unwrap().extent();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0xFF; place.len as usize], place.offset).unwrap();
    file.sync_all().unwrap();
    if forgotten(&path) {
        let error = load(&path, &DeviceId::Cpu, None, &mut |_| {}).err().unwrap().to_string();
        assert!(error.contains("blk.1.attn_q.weight") && error.contains("NaN"), "{error}");
    }
}
