//! Parked prefixes: keys and values of prompts, as a worker gives them to the coordinator before it ends and gets them
//! back after its next start. The form is a row of frames, the same on the connection, in memory and in files.
//!
//! | part of a frame | form |
//! |---|---|
//! | length of the body | 4 bytes, little-endian |
//! | kind | 1 byte: 0 head, 1 block, 2 end |
//! | body | of the head: [`MAGIC`] and JSON; of a block: the worker's own; of the end: two numbers |
//! | check | 8 bytes: XXH3 over all before in the frame, with the check of the frame before as its seed |
//!
//! A row that lacks its end, or whose frames were changed, left out or moved, is not read as a whole. Bodies of blocks
//! are not interpreted here.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::ModelId;

/// The version of this form, and of what workers write into blocks.
const VERSION: u32 = 1;
/// The first bytes of the first frame's body.
const MAGIC: &[u8] = b"model-boss parked prefixes\n";
/// The largest body: a block has 32 tokens, in all layers.
const LARGEST: usize = 1 << 30;
/// The longest head.
const LONGEST_HEAD: usize = 64 << 10;
/// The seed of the first frame's check.
const FIRST_SEED: u64 = 0x006d_6f64_656c_6276;

const LENGTH: usize = 4;
const BEFORE: usize = LENGTH + 1;
const CHECK: usize = 8;
const END: usize = 16;

const HEAD_KIND: u8 = 0;
const BLOCK_KIND: u8 = 1;
const END_KIND: u8 = 2;

/// The head of parked prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedHead {
    version: u32,
    /// The model that they are of.
    pub model: ModelId,
    /// A digest of everything that keys and values depend on. Those of another key are of no use.
    pub key: String,
}

/// The end of parked prefixes: what was before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkedCounts {
    /// Blocks.
    pub blocks: u64,
    /// Tokens in them.
    pub tokens: u64,
}

/// A worker's answer to parked prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedOutcome {
    /// Blocks that it has now.
    pub blocks: u64,
    /// Tokens in them.
    pub tokens: u64,
    /// Why the others were refused, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<ParkedRefusal>,
    /// The reason in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Why a worker did not take parked prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParkedRefusal {
    /// They are of other files, of another program, or of keys and values in another form.
    Changed,
    /// They are damaged, or no parked prefixes.
    Damaged,
    /// There was no room for more.
    NoRoom,
    /// The device failed.
    Failed,
}

impl ParkedRefusal {
    /// The name in metrics and events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Damaged => "damaged",
            Self::NoRoom => "no_room",
            Self::Failed => "failed",
        }
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParkedFrame<'a> {
    /// The first frame.
    Head(ParkedHead),
    /// The body of a block.
    Block(&'a [u8]),
    /// The last frame.
    End(ParkedCounts),
}

/// The reason why bytes are no parked prefixes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParkedFault {
    /// They do not begin as such.
    #[error("it does not begin as parked prefixes do")]
    Foreign,
    /// Another version of this program wrote them.
    #[error("it has version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// They end before the last frame.
    #[error("it ends too early")]
    Torn,
    /// A check does not agree.
    #[error("a checksum does not agree")]
    Damaged,
    /// A frame is where it cannot be, or the counts are others.
    #[error("its parts do not belong together")]
    Disorder,
}

/// Writes frames, one after the other.
#[derive(Debug)]
pub struct ParkedWriter {
    seed: u64,
    counts: ParkedCounts,
}

impl ParkedWriter {
    /// A writer, and the first frame.
    pub fn start(model: &ModelId, key: &str) -> Result<(Self, Vec<u8>), serde_json::Error> {
        let mut writer = Self { seed: FIRST_SEED, counts: ParkedCounts::default() };
        let head = serde_json::to_vec(&ParkedHead { version: VERSION, model: model.clone(), key: key.to_owned() })?;
        let frame = writer.frame(HEAD_KIND, |body| {
            body.extend_from_slice(MAGIC);
            body.extend_from_slice(&head);
        });
        Ok((writer, frame))
    }

    /// The frame of a block of so many tokens, whose body `write` appends. `None` for a body that is too large.
    pub fn block(&mut self, tokens: usize, write: impl FnOnce(&mut Vec<u8>)) -> Option<Vec<u8>> {
        let before = self.seed;
        let frame = self.frame(BLOCK_KIND, write);
        if frame.len() > BEFORE + LARGEST + CHECK {
            self.seed = before;
            return None;
        }
        self.counts.blocks += 1;
        self.counts.tokens += tokens as u64;
        Some(frame)
    }

    /// The last frame.
    pub fn end(mut self) -> Vec<u8> {
        let ParkedCounts { blocks, tokens } = self.counts;
        self.frame(END_KIND, |body| {
            body.extend_from_slice(&blocks.to_le_bytes());
            body.extend_from_slice(&tokens.to_le_bytes());
        })
    }

    /// The counts of all that was written so far.
    pub fn counts(&self) -> ParkedCounts {
        self.counts
    }

    fn frame(&mut self, kind: u8, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut frame = vec![0; BEFORE];
        write(&mut frame);
        // A longer body is refused by the caller.
        let length = u32::try_from(frame.len() - BEFORE).unwrap_or(u32::MAX);
        frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
        frame[LENGTH] = kind;
        self.seed = xxh3_64_with_seed(&frame, self.seed);
        frame.extend_from_slice(&self.seed.to_le_bytes());
        frame
    }
}

/// Reads frames in pieces, as they arrive.
#[derive(Debug)]
pub struct ParkedReader {
    seed: u64,
    /// Whether the head was read.
    begun: bool,
    ended: bool,
    blocks: u64,
}

impl Default for ParkedReader {
    fn default() -> Self {
        Self { seed: FIRST_SEED, begun: false, ended: false, blocks: 0 }
    }
}

impl ParkedReader {
    /// The frame at the beginning of `bytes` and its length; `None` while it is not whole.
    ///
    /// # Errors
    /// The bytes are no such frame, or not the next one.
    pub fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(ParkedFrame<'a>, usize)>, ParkedFault> {
        let Some((length, kind)) = bytes.first_chunk::<LENGTH>().zip(bytes.get(LENGTH)) else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        match *kind {
            HEAD_KIND if !self.begun && length <= LONGEST_HEAD => {}
            _ if !self.begun => return Err(ParkedFault::Foreign),
            BLOCK_KIND if !self.ended && length <= LARGEST => {}
            END_KIND if !self.ended && length == END => {}
            _ => return Err(ParkedFault::Disorder),
        }
        let whole = BEFORE + length;
        let Some(check) = bytes.get(whole..).and_then(<[u8]>::first_chunk::<CHECK>) else { return Ok(None) };
        let body = &bytes[BEFORE..whole];
        let head = if self.begun { None } else { Some(head_of(body)?) };
        let seed = xxh3_64_with_seed(&bytes[..whole], self.seed);
        if seed != u64::from_le_bytes(*check) {
            return Err(ParkedFault::Damaged);
        }
        self.seed = seed;
        let frame = match head {
            Some(head) => {
                self.begun = true;
                ParkedFrame::Head(head)
            }
            None if *kind == BLOCK_KIND => {
                self.blocks += 1;
                ParkedFrame::Block(body)
            }
            None => {
                self.ended = true;
                ParkedFrame::End(
                    counts_of(body).filter(|counts| counts.blocks == self.blocks).ok_or(ParkedFault::Disorder)?,
                )
            }
        };
        Ok(Some((frame, whole + CHECK)))
    }

    /// Whether the last frame was read.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

fn head_of(body: &[u8]) -> Result<ParkedHead, ParkedFault> {
    /// The part that every version has.
    #[derive(Deserialize)]
    struct AnyVersion {
        version: u32,
    }
    let json = body.strip_prefix(MAGIC).ok_or(ParkedFault::Foreign)?;
    let AnyVersion { version } = serde_json::from_slice(json).map_err(|_| ParkedFault::Foreign)?;
    if version != VERSION {
        return Err(ParkedFault::Version(version));
    }
    serde_json::from_slice(json).map_err(|_| ParkedFault::Foreign)
}

fn counts_of(body: &[u8]) -> Option<ParkedCounts> {
    let (blocks, tokens) = body.split_first_chunk::<8>()?;
    let tokens = tokens.first_chunk::<8>()?;
    Some(ParkedCounts { blocks: u64::from_le_bytes(*blocks), tokens: u64::from_le_bytes(*tokens) })
}

/// Checks parked prefixes as a whole.
///
/// # Errors
/// They are no such thing, or damaged in any byte.
pub fn check_parked(mut bytes: &[u8]) -> Result<(ParkedHead, ParkedCounts), ParkedFault> {
    let (mut reader, mut head) = (ParkedReader::default(), None);
    loop {
        let (frame, length) = reader.read(bytes)?.ok_or(ParkedFault::Torn)?;
        bytes = &bytes[length..];
        match frame {
            ParkedFrame::Head(found) => head = Some(found),
            ParkedFrame::Block(_) => {}
            ParkedFrame::End(_) if !bytes.is_empty() => return Err(ParkedFault::Disorder),
            ParkedFrame::End(counts) => return Ok((head.ok_or(ParkedFault::Disorder)?, counts)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parked(blocks: &[&[u8]]) -> Vec<u8> {
        let (mut writer, mut all) = ParkedWriter::start(&"m".into(), "k").unwrap();
        for block in blocks {
            all.extend(writer.block(3, |body| body.extend_from_slice(block)).unwrap());
        }
        all.extend(writer.end());
        all
    }

    #[test]
    fn en_3_parked_prefixes_are_read_as_they_were_written() {
        let all = parked(&[b"one", b"", &[7; 500]]);
        let (head, counts) = check_parked(&all).unwrap();
        assert_eq!((head.model, head.key.as_str()), ("m".into(), "k"));
        assert_eq!(counts, ParkedCounts { blocks: 3, tokens: 9 });
        // In pieces of any size.
        for size in [1, 2, 7, 100] {
            let (mut reader, mut waiting, mut bodies) = (ParkedReader::default(), Vec::new(), Vec::new());
            for piece in all.chunks(size) {
                waiting.extend_from_slice(piece);
                while let Some((frame, length)) = reader.read(&waiting).unwrap() {
                    if let ParkedFrame::Block(body) = frame {
                        bodies.push(body.to_vec());
                    }
                    waiting.drain(..length);
                }
            }
            assert!(reader.has_ended() && waiting.is_empty());
            assert_eq!(bodies, [b"one".to_vec(), Vec::new(), vec![7; 500]]);
        }
    }

    #[test]
    fn en_3_parked_prefixes_that_end_early_or_have_a_wrong_byte_are_refused() {
        let all = parked(&[b"one", b"two"]);
        for length in 0..all.len() {
            assert!(check_parked(&all[..length]).is_err(), "cut at {length}");
        }
        for at in 0..all.len() {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = all.clone();
                damaged[at] ^= flip;
                assert!(check_parked(&damaged).is_err(), "byte {at} ^ {flip}");
            }
        }
        assert_eq!(check_parked(&[&all[..], b"x"].concat()), Err(ParkedFault::Disorder));
        assert_eq!(check_parked(b"something else entirely"), Err(ParkedFault::Foreign));
        assert_eq!(check_parked(b""), Err(ParkedFault::Torn));
    }

    #[test]
    fn en_3_frames_that_are_left_out_moved_or_of_another_row_are_refused() {
        let frames = |blocks: &[&[u8]]| {
            let (all, mut frames, mut reader) = (parked(blocks), Vec::new(), ParkedReader::default());
            let mut rest = &all[..];
            while let Some((_, length)) = reader.read(rest).unwrap() {
                frames.push(rest[..length].to_vec());
                rest = &rest[length..];
            }
            frames
        };
        let (one, other) = (frames(&[b"a", b"b", b"c"]), frames(&[b"x", b"y", b"z"]));
        assert!(check_parked(&one.concat()).is_ok());
        let mut without = one.clone();
        without.remove(2);
        assert!(check_parked(&without.concat()).is_err());
        let mut moved = one.clone();
        moved.swap(1, 2);
        assert!(check_parked(&moved.concat()).is_err());
        let mut mixed = one;
        mixed[2].clone_from(&other[2]);
        assert!(check_parked(&mixed.concat()).is_err());
    }

    #[test]
    fn another_version_is_named() {
        let text = format!("{{\"version\":{},\"later\":true}}", VERSION + 1);
        let mut writer = ParkedWriter { seed: FIRST_SEED, counts: ParkedCounts::default() };
        let head = writer.frame(HEAD_KIND, |body| {
            body.extend_from_slice(MAGIC);
            body.extend_from_slice(text.as_bytes());
        });
        assert_eq!(check_parked(&head), Err(ParkedFault::Version(VERSION + 1)));
    }
}
