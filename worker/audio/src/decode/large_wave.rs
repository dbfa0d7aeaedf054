//! WAV files with sizes of 64 bits (RF64: EBU Tech 3306; BW64: ITU-R BS.2088), as recorders write them for files that
//! may become large. They become plain ones, which decoders read.

/// Bytes of a chunk's name and size.
const HEAD: usize = 8;

/// Makes a plain WAV file of one with sizes of 64 bits, in place. Other files stay as they are.
pub(super) fn make_plain(file: &mut [u8]) {
    let is_large = file.starts_with(b"RF64") || file.starts_with(b"BW64");
    if !is_large || file.get(8..12) != Some(b"WAVE") {
        return;
    }
    file[..4].copy_from_slice(b"RIFF");
    // Uploads are far smaller than 4 GiB, so every size fits.
    let rest = u32::try_from(file.len().saturating_sub(HEAD)).unwrap_or(u32::MAX);
    file[4..8].copy_from_slice(&rest.to_le_bytes());
    let (mut at, mut told) = (12, None);
    while let Some(head) = file.get(at..at + HEAD) {
        let (name, size) = head.split_at(4);
        let size = u32::from_le_bytes(size.try_into().unwrap_or_default());
        let (is_sizes, is_data) = (name == b"ds64", name == b"data");
        if is_data {
            if size == u32::MAX {
                // The size in `ds64`; a writer that was stopped left it at 0, and the rest of the file is sound.
                let left = file.len().saturating_sub(at + HEAD) as u64;
                let told = told.filter(|told| *told > 0).unwrap_or(left);
                let size = u32::try_from(told).unwrap_or(u32::MAX - 1);
                file[at + 4..at + HEAD].copy_from_slice(&size.to_le_bytes());
            }
            return;
        }
        if is_sizes {
            // The file's size, then that of the sound, 8 bytes each.
            let sound = file.get(at + HEAD + 8..at + HEAD + 16);
            told = sound.and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        at = at.saturating_add(HEAD).saturating_add(size).saturating_add(size % 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &[u8; 4], sound: u64, size: u32) -> Vec<u8> {
        let mut file = [&name[..], &u32::MAX.to_le_bytes(), b"WAVE"].concat();
        file.extend([&b"ds64"[..], &28_u32.to_le_bytes(), &[0; 8], &sound.to_le_bytes(), &[0; 12]].concat());
        file.extend([&b"data"[..], &size.to_le_bytes(), &[7; 20]].concat());
        file
    }

    fn sizes(file: &[u8]) -> (u32, u32) {
        let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        (number(4), number(file.len() - 24))
    }

    #[test]
    fn rc_28_sizes_of_64_bits_become_plain_ones() {
        for (name, sound, size, wanted) in [
            (b"RF64", 12, u32::MAX, 12),
            (b"BW64", 0, u32::MAX, 20),
            (b"RF64", 12, 16, 16),
            (b"RF64", 999, u32::MAX, 999),
        ] {
            let mut large = file(name, sound, size);
            make_plain(&mut large);
            assert!(large.starts_with(b"RIFF"));
            assert_eq!(sizes(&large), (large.len() as u32 - 8, wanted));
        }
        let plain = file(b"RIFF", 12, u32::MAX);
        let mut same = plain.clone();
        make_plain(&mut same);
        assert_eq!(same, plain);
        let whole = file(b"RF64", 12, u32::MAX);
        for cut in 0..whole.len() {
            make_plain(&mut whole[..cut].to_vec());
        }
    }
}
