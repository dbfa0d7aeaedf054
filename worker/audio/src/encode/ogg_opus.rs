//! Opus in Ogg: packets of 20 ms in pages (RFC 6716, RFC 7845).

use ogg::{PacketWriteEndInfo, PacketWriter};
use opus_rs::{Application, OpusEncoder};

use super::error::EncodeSoundError;

const NAME: &str = "Opus";

/// Granules, which are counted at this rate whatever that of the samples is.
const GRANULES: u32 = 48_000;

/// Packets of a second.
const PACKETS: u32 = 50;

/// Packets of a page: a page is written each 200 ms.
const OF_PAGE: usize = 10;

/// Bits of a second for one channel of speech: no listener tells it from the original at this rate.
const BITRATE: i32 = 48_000;

/// The most bytes of a packet.
const LARGEST_PACKET: usize = 1_500;

/// The number of the one logical stream.
const SERIAL: u32 = 1;

/// A stream of pages.
pub(super) struct OpusStream {
    encoder: OpusEncoder,
    pages: PacketWriter<'static, Vec<u8>>,
    rate: u32,
    /// Samples that make no packet yet.
    rest: Vec<f32>,
    /// The packet that is written once it is known whether it is the last.
    held: Option<Vec<u8>>,
    /// Samples of the sound so far.
    samples: u64,
    packets: u64,
    in_page: usize,
}

impl OpusStream {
    pub(super) fn new(rate: u32) -> Result<Self, EncodeSoundError> {
        let failed = |why: &str| EncodeSoundError::of(NAME, why);
        let mut encoder = OpusEncoder::new(rate as i32, 1, Application::Audio).map_err(failed)?;
        encoder.bitrate_bps = BITRATE;
        let mut stream = Self {
            encoder,
            pages: PacketWriter::new(Vec::new()),
            rate,
            rest: Vec::new(),
            held: None,
            samples: 0,
            packets: 0,
            in_page: 0,
        };
        stream.heads()?;
        Ok(stream)
    }

    /// Samples that a decoder makes before those of the sound: the look-ahead of the encoder, 6.5 ms.
    fn ahead(&self) -> u64 {
        u64::from(self.rate) * 13 / 2_000
    }

    fn granules(&self, samples: u64) -> u64 {
        samples * u64::from(GRANULES / self.rate)
    }

    fn heads(&mut self) -> Result<(), EncodeSoundError> {
        let ahead = u16::try_from(self.granules(self.ahead())).unwrap_or(u16::MAX);
        let mut head = b"OpusHead".to_vec();
        // Version 1, one channel.
        head.extend_from_slice(&[1, 1]);
        head.extend_from_slice(&ahead.to_le_bytes());
        head.extend_from_slice(&self.rate.to_le_bytes());
        // No gain, and the plain order of channels.
        head.extend_from_slice(&[0, 0, 0]);
        let mut tags = b"OpusTags".to_vec();
        let vendor = b"model-boss";
        tags.extend_from_slice(&(vendor.len() as u32).to_le_bytes());
        tags.extend_from_slice(vendor);
        tags.extend_from_slice(&0_u32.to_le_bytes());
        // Each has a page for itself.
        for packet in [head, tags] {
            self.write(packet, PacketWriteEndInfo::EndPage, 0)?;
        }
        Ok(())
    }

    fn write(&mut self, packet: Vec<u8>, end: PacketWriteEndInfo, granule: u64) -> Result<(), EncodeSoundError> {
        self.pages.write_packet(packet, SERIAL, end, granule).map_err(|error| EncodeSoundError::of(NAME, error))
    }

    /// The pages that are complete.
    fn written(&mut self) -> Vec<u8> {
        std::mem::take(self.pages.inner_mut())
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeSoundError> {
        self.samples += samples.len() as u64;
        self.rest.extend_from_slice(samples);
        self.encode()?;
        Ok(self.written())
    }

    fn encode(&mut self) -> Result<(), EncodeSoundError> {
        let length = (self.rate / PACKETS) as usize;
        let mut at = 0;
        while self.rest.len() - at >= length {
            let mut packet = vec![0; LARGEST_PACKET];
            let frame = &self.rest[at..at + length];
            let bytes = self.encoder.encode(frame, length, &mut packet);
            packet.truncate(bytes.map_err(|why| EncodeSoundError::of(NAME, why))?);
            at += length;
            if let Some(before) = self.held.replace(packet) {
                self.packets += 1;
                self.in_page += 1;
                let end = match self.in_page.is_multiple_of(OF_PAGE) {
                    true => PacketWriteEndInfo::EndPage,
                    false => PacketWriteEndInfo::NormalPacket,
                };
                let granule = self.granules(self.packets * length as u64);
                self.write(before, end, granule)?;
            }
        }
        self.rest.drain(..at);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<u8>, EncodeSoundError> {
        // The end of the sound comes out behind the look-ahead, in whole packets.
        let length = u64::from(self.rate / PACKETS);
        let needed = (self.samples + self.ahead()).next_multiple_of(length).max(length);
        let missing = needed - self.samples;
        self.rest.resize(self.rest.len() + missing as usize, 0.0);
        self.encode()?;
        // The last granule tells where the sound ends.
        let last = self.granules(self.samples + self.ahead());
        if let Some(packet) = self.held.take() {
            self.write(packet, PacketWriteEndInfo::EndStream, last)?;
        }
        Ok(self.written())
    }
}
