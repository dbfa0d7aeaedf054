//! From the bytes of a file to a recording.

use std::io::Cursor;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::common::Limit;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

use super::error::{AudioError, Seconds};
use super::large_wave::make_plain;
use super::limits::AudioLimits;
use super::mixed::Decoded;
use super::resample::ToRate;
use super::tracks::TrackDecoder;
use crate::recording::{RATE, SoundRecording};

/// Damaged packets that a file may have beside its good ones: this many, and one in ten.
const FEW_DAMAGED: usize = 3;

/// Sound that may be missing at the end without the file being cut off, in seconds: encoders round.
const MISSING_AT_END: f64 = 0.5;

/// The same of short files, as a share of their length.
const MISSING_SHARE: f64 = 0.25;

/// Gaps between packets, in seconds, that silence takes the place of. Smaller ones are roundings; larger ones are
/// clocks that jump.
const MISSED: std::ops::Range<f64> = 0.1..60.0;

/// Bytes of pictures and texts beside the sound; more are not kept.
const MOST_BESIDE: usize = 1 << 20;

/// Sizes from here on in headers are those of writers that did not know the length: they write to a pipe.
const LENGTH_UNKNOWN: u64 = 0x7FFF_0000;

/// The places and first bytes of the formats: RIFF (WAV), FLAC, Ogg, MPEG-4, Matroska (WebM), AIFF.
const STARTS: [(usize, &[u8]); 6] =
    [(0, b"RIFF"), (0, b"fLaC"), (0, b"OggS"), (4, b"ftyp"), (0, b"\x1a\x45\xdf\xa3"), (0, b"FORM")];

/// Decodes a file: its first sound track, mixed to one channel, at [`RATE`].
pub fn decode(mut file: Vec<u8>, limits: &AudioLimits) -> Result<SoundRecording, AudioError> {
    if file.is_empty() {
        return Err(AudioError::Empty);
    }
    make_plain(&mut file);
    let is_known = STARTS.iter().any(|(at, start)| file.get(*at..).is_some_and(|file| file.starts_with(start)));
    let is_mp4 = file.get(4..8) == Some(b"ftyp");
    let stream = MediaSourceStream::new(Box::new(Cursor::new(file)), Default::default());
    let beside = MetadataOptions::default()
        .limit_tag_bytes(Limit::Maximum(MOST_BESIDE))
        .limit_visual_bytes(Limit::Maximum(MOST_BESIDE));
    let mut reader = symphonia::default::get_probe()
        .probe(&Hint::new(), stream, FormatOptions::default(), beside)
        .map_err(|error| match error {
            // Its index is behind its sound, or says more than there is.
            _ if is_mp4 => {
                AudioError::Damaged("it is an MPEG-4 file (m4a) that was cut off, or has no index".to_owned())
            }
            Error::IoError(_) if is_known => AudioError::Damaged("it ends before its sound begins".to_owned()),
            Error::Unsupported(_) | Error::IoError(_) => AudioError::UnknownFormat,
            error => AudioError::Damaged(error.to_string()),
        })?;
    let track = reader.default_track(TrackType::Audio).ok_or(AudioError::NoSound)?.clone();
    let mut decoder = TrackDecoder::new(&track)?;
    let told = told_seconds(&track, limits)?;
    let samples = samples_of(reader.as_mut(), &mut decoder, &track, limits)?;
    let heard = samples.len() as f64 / f64::from(RATE);
    if samples.is_empty() {
        return Err(AudioError::NoSound);
    }
    if let Some(told) = told.filter(|told| told - heard > MISSING_AT_END.min(told * MISSING_SHARE)) {
        return Err(AudioError::CutOff { heard: Seconds::of(heard), told: Seconds::of(told) });
    }
    Ok(SoundRecording { samples })
}

/// The length that the header tells, in seconds; none where it tells none.
fn told_seconds(track: &Track, limits: &AudioLimits) -> Result<Option<f64>, AudioError> {
    let Some(CodecParameters::Audio(sound)) = &track.codec_params else { return Ok(None) };
    let (Some(frames), Some(rate)) = (track.num_frames, sound.sample_rate.filter(|rate| *rate > 0)) else {
        return Ok(None);
    };
    let channels = sound.channels.as_ref().map_or(1, |channels| channels.count() as u64);
    let width = u64::from(sound.bits_per_coded_sample.or(sound.bits_per_sample).unwrap_or(8)).div_ceil(8);
    if frames.saturating_mul(channels * width) >= LENGTH_UNKNOWN {
        return Ok(None);
    }
    let told = frames as f64 / f64::from(rate);
    let limit = limits.longest.as_secs_f64();
    if told > limit + 1.0 {
        return Err(AudioError::TooLong { limit: Seconds::of(limit) });
    }
    Ok(Some(told))
}

/// The sound of a file so far.
struct GatheredSound {
    samples: Vec<i16>,
    /// The samples since the last change of rate.
    to_rate: Option<ToRate>,
    /// Samples since the first packet of the stream, at its rate.
    taken: u64,
    /// The time of that packet, in seconds.
    begins: Option<f64>,
    most: usize,
}

impl GatheredSound {
    /// Adds a packet's samples. Silence takes the place of what is missing before them, so that later times stay right.
    fn push(
        &mut self,
        at: Option<f64>,
        Decoded { rate, mono }: Decoded<'_>,
        longest: Seconds,
    ) -> Result<(), AudioError> {
        if self.to_rate.as_ref().is_some_and(|to_rate| to_rate.from != rate) {
            self.change_rate();
        }
        let begins = *self.begins.get_or_insert(at.unwrap_or_default());
        let to_rate = match &mut self.to_rate {
            Some(to_rate) => to_rate,
            none => none.insert(ToRate::new(rate)?),
        };
        let missing = at.map_or(0.0, |at| at - begins - self.taken as f64 / f64::from(rate));
        if MISSED.contains(&missing) {
            let silence = vec![0.0; (missing * f64::from(rate)) as usize];
            to_rate.push(&silence);
            self.taken += silence.len() as u64;
        }
        to_rate.push(mono);
        self.taken += mono.len() as u64;
        if self.samples.len() + to_rate.len() > self.most {
            return Err(AudioError::TooLong { limit: longest });
        }
        Ok(())
    }

    fn change_rate(&mut self) {
        self.samples.extend(self.to_rate.take().map(ToRate::end).unwrap_or_default());
        (self.taken, self.begins) = (0, None);
    }

    fn end(mut self) -> Vec<i16> {
        self.change_rate();
        self.samples
    }
}

fn samples_of(
    reader: &mut dyn FormatReader,
    decoder: &mut TrackDecoder,
    track: &Track,
    limits: &AudioLimits,
) -> Result<Vec<i16>, AudioError> {
    let longest = limits.longest.as_secs_f64();
    let most = (longest * f64::from(RATE)) as usize;
    let mut sound = GatheredSound { samples: Vec::new(), to_rate: None, taken: 0, begins: None, most };
    let (mut good, mut damaged, mut reason) = (0_usize, 0_usize, String::new());
    let mut id = track.id;
    let mut base = track.time_base;
    loop {
        let packet = match reader.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // The end of a file that was cut off; by how much is seen by its header.
            Err(Error::IoError(_)) => break,
            // A further stream begins (chained Ogg), as servers and recorders write them: it goes on behind this one.
            Err(Error::ResetRequired) => {
                let Some(next) = reader.default_track(TrackType::Audio) else { break };
                *decoder = TrackDecoder::new(next)?;
                (id, base) = (next.id, next.time_base);
                sound.begins = None;
                sound.taken = 0;
                continue;
            }
            Err(error) if good > 0 => {
                reason = error.to_string();
                damaged += FEW_DAMAGED + good;
                break;
            }
            Err(error) => return Err(AudioError::Damaged(error.to_string())),
        };
        if packet.track_id != id {
            continue;
        }
        let at = base.and_then(|base| base.calc_time(packet.pts)).map(|time| time.as_secs_f64());
        match decoder.decode(&packet) {
            Ok(decoded) => {
                good += 1;
                sound.push(at, decoded, Seconds::of(longest))?;
            }
            Err(AudioError::Damaged(why)) => (damaged, reason) = (damaged + 1, why),
            Err(error) => return Err(error),
        }
    }
    if damaged > FEW_DAMAGED && damaged * 10 > good {
        return Err(AudioError::Damaged(reason));
    }
    Ok(sound.end())
}
