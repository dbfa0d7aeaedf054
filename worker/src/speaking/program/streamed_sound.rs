//! The sound of a program, as its bytes come: a WAV file whose sizes may be wrong, or raw samples.

use model_boss_protocol::{ProgramSound, SOUND_RATES};

/// The most bytes before the samples of a WAV file.
const LONGEST_HEAD: usize = 64 << 10;

/// Reads samples of one channel from bytes that come in pieces.
pub(super) struct StreamedSound {
    state: SoundState,
    /// Bytes that are no whole sample, or no whole head.
    rest: Vec<u8>,
}

enum SoundState {
    /// The head of a WAV file has not come yet.
    Head,
    Samples(SampleForm),
    /// Behind the samples.
    Over {
        rate: u32,
    },
}

/// The form of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampleForm {
    rate: u32,
    channels: usize,
    kind: SampleKind,
    /// Bytes that are left, if the head tells.
    left: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampleKind {
    U8,
    I16,
    I24,
    I32,
    F32,
}

impl SampleKind {
    const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I16 => 2,
            Self::I24 => 3,
            Self::I32 | Self::F32 => 4,
        }
    }

    fn sample(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::U8, [a]) => (f32::from(*a) - 128.0) / 128.0,
            (Self::I16, [a, b]) => f32::from(i16::from_le_bytes([*a, *b])) / 32_768.0,
            (Self::I24, [a, b, c]) => i32::from_le_bytes([0, *a, *b, *c]) as f32 / 2_147_483_648.0,
            (Self::I32, [a, b, c, d]) => i32::from_le_bytes([*a, *b, *c, *d]) as f32 / 2_147_483_648.0,
            (Self::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
            _ => 0.0,
        }
    }
}

impl StreamedSound {
    /// The sound of a program that writes in this form; the rate is that of raw samples.
    pub(super) fn new(form: ProgramSound, rate: Option<u32>) -> Self {
        let state = match form {
            ProgramSound::Wav => SoundState::Head,
            ProgramSound::S16le => SoundState::Samples(SampleForm {
                rate: rate.unwrap_or(SOUND_RATES.0),
                channels: 1,
                kind: SampleKind::I16,
                left: None,
            }),
        };
        Self { state, rest: Vec::new() }
    }

    /// The rate, once it is known.
    pub(super) fn rate(&self) -> Option<u32> {
        match self.state {
            SoundState::Samples(SampleForm { rate, .. }) | SoundState::Over { rate } => Some(rate),
            SoundState::Head => None,
        }
    }

    /// The samples that are complete with these bytes.
    ///
    /// # Errors
    /// The reason why the bytes are no sound.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<f32>, String> {
        self.rest.extend_from_slice(bytes);
        if let SoundState::Head = self.state {
            match head(&self.rest)? {
                Some((form, length)) => {
                    self.rest.drain(..length);
                    self.state = SoundState::Samples(form);
                }
                None if self.rest.len() > LONGEST_HEAD => return Err("its WAV file has no samples".to_owned()),
                None => return Ok(Vec::new()),
            }
        }
        let SoundState::Samples(form) = &mut self.state else {
            self.rest.clear();
            return Ok(Vec::new());
        };
        let frame = form.channels * form.kind.bytes();
        let whole = self.rest.len() / frame * frame;
        let whole =
            form.left.map_or(whole, |left| whole.min(usize::try_from(left).unwrap_or(usize::MAX) / frame * frame));
        let of_frame = |bytes: &[u8]| {
            let sum: f32 = bytes.chunks_exact(form.kind.bytes()).map(|bytes| form.kind.sample(bytes)).sum();
            let sample = sum / form.channels as f32;
            if sample.is_finite() { sample } else { 0.0 }
        };
        let samples = self.rest[..whole].chunks_exact(frame).map(of_frame).collect();
        self.rest.drain(..whole);
        if let Some(left) = &mut form.left {
            *left -= whole as u64;
            if *left < frame as u64 {
                self.state = SoundState::Over { rate: form.rate };
            }
        }
        Ok(samples)
    }
}

/// The form of samples that a head tells, and its length; none if it is not complete.
fn head(bytes: &[u8]) -> Result<Option<(SampleForm, usize)>, String> {
    let not_wav = || "it wrote no WAV file; set output = \"s16le\" if it writes raw samples".to_owned();
    if bytes.len() < 12 {
        return if b"RIFF".starts_with(&bytes[..bytes.len().min(4)]) { Ok(None) } else { Err(not_wav()) };
    }
    if !bytes.starts_with(b"RIFF") || &bytes[8..12] != b"WAVE" {
        return Err(not_wav());
    }
    let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let size = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (mut at, mut form) = (12, None);
    while bytes.len() >= at + 8 {
        let (name, length) = (&bytes[at..at + 4], size(at + 4));
        let body = at + 8;
        if name == b"data" {
            let form: SampleForm = form.ok_or("its WAV file does not tell the form of its samples")?;
            // Programs that write to a pipe leave the largest sizes, or none.
            let left = Some(u64::from(length)).filter(|length| (1..0x7fff_0000).contains(length));
            return Ok(Some((SampleForm { left, ..form }, body)));
        }
        let end = body + (length as usize).saturating_add(length as usize % 2);
        if length as usize > LONGEST_HEAD {
            return Err("its WAV file has a part that is too long before its samples".to_owned());
        }
        if bytes.len() < end {
            return Ok(None);
        }
        if name == b"fmt " && length >= 16 {
            let (channels, rate, bits) = (number(body + 2), size(body + 4), number(body + 14));
            // Of an extended form, the first bytes of its name are the plain one.
            let plain = match number(body) {
                0xfffe if length >= 26 => number(body + 24),
                plain => plain,
            };
            let kind = match (plain, bits) {
                (1, 8) => SampleKind::U8,
                (1, 16) => SampleKind::I16,
                (1, 24) => SampleKind::I24,
                (1, 32) => SampleKind::I32,
                (3, 32) => SampleKind::F32,
                _ => return Err(format!("its WAV file has samples of the kind {plain} with {bits} bits")),
            };
            if !(1..=8).contains(&channels) || !(SOUND_RATES.0..=SOUND_RATES.1).contains(&rate) {
                return Err(format!("its WAV file has {channels} channels of {rate} samples a second"));
            }
            form = Some(SampleForm { rate, channels: usize::from(channels), kind, left: None });
        }
        at = end;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wav(kind: u16, bits: u16, channels: u16, length: u32, samples: &[u8]) -> Vec<u8> {
        let mut file = b"RIFF\xff\xff\xff\xffWAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
        file.extend(kind.to_le_bytes());
        file.extend(channels.to_le_bytes());
        file.extend(22_050_u32.to_le_bytes());
        file.extend([0; 6]);
        file.extend(bits.to_le_bytes());
        file.extend(b"data");
        file.extend(length.to_le_bytes());
        file.extend(samples);
        file
    }

    fn read(file: &[u8], step: usize) -> Result<(Option<u32>, Vec<f32>), String> {
        let mut sound = StreamedSound::new(ProgramSound::Wav, None);
        let (mut samples, mut rate) = (Vec::new(), None);
        for piece in file.chunks(step) {
            samples.extend(sound.push(piece)?);
            rate = rate.or(sound.rate());
        }
        Ok((rate, samples))
    }

    #[test]
    fn rc_28_samples_are_read_as_they_come_whatever_the_head_says_of_the_length() {
        for length in [0, 4, 0x7fff_ffff, u32::MAX] {
            let file = wav(1, 16, 1, length, &[0, 0x40, 0, 0x80]);
            for step in [1, 3, 1000] {
                assert_eq!(read(&file, step), Ok((Some(22_050), vec![0.5, -1.0])), "{length} {step}");
            }
        }
        assert_eq!(read(&wav(1, 16, 1, 2, &[0, 0x40, 9, 9, 9]), 2).unwrap().1, [0.5], "what is behind is no sound");
        assert_eq!(read(&wav(1, 16, 2, 8, &[0, 0x40, 0, 0, 0, 0, 0, 0x40]), 7).unwrap().1, [0.25, 0.25]);
        assert_eq!(read(&wav(1, 8, 1, 2, &[128, 192]), 1).unwrap().1, [0.0, 0.5]);
        assert_eq!(read(&wav(1, 24, 1, 3, &[0, 0, 0x40]), 1).unwrap().1, [0.5]);
        assert_eq!(read(&wav(3, 32, 1, 8, &[0, 0, 0, 0x3f, 0, 0, 0xc0, 0x7f]), 5).unwrap().1, [0.5, 0.0]);
        for (file, word) in [
            (b"Usage: speak".to_vec(), "no WAV"),
            (wav(6, 8, 1, 1, &[1]), "kind 6"),
            (wav(1, 16, 9, 1, &[1]), "9 channels"),
            (b"RIFF\0\0\0\0WAVEdata\0\0\0\0".to_vec(), "does not tell"),
        ] {
            assert!(read(&file, 5).unwrap_err().contains(word), "{word}");
        }
    }

    proptest! {
        #[test]
        fn rc_28_no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200), step in 1_usize..50) {
            let _ = read(&bytes, step);
            let _ = read(&[&b"RIFF\0\0\0\0WAVEfmt "[..], &bytes].concat(), step);
        }
    }
}
