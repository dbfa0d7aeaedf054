//! How much shorter a text becomes by compression: a text that repeats itself becomes very short.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// Bytes of a text by those of its compressed form.
pub(super) fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    let squeezed = written.map_or(0, |bytes| bytes.len());
    text.len() as f32 / squeezed.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_repetition_is_seen() {
        assert!(compression_ratio("The lighthouse at the end of the harbour had not been lit.") < 1.5);
        assert!(compression_ratio(&"thank you. ".repeat(20)) > 2.4);
        assert!(compression_ratio("") < 1.0);
    }
}
