//! Parked prefixes: blocks that are taken out of an engine before its process ends, and put into the engine of a later
//! process with the same model. Their way between the two is not known here.
//!
//! A block's body has its place, its tokens and its contents. The place is the salt of its sequences, or the number of
//! the block that it is behind, in the order of the blocks.

use std::collections::HashMap;
use std::vec;

use super::TextEngine;
use super::images::IMAGE_KEY;
use crate::adapter::is_lasting;
use crate::decoder::{BlockId, DecoderError};
use crate::kv::{BLOCK_TOKENS, CacheSalt, IndexedBlock, Parent};

/// The longest text of a salt.
const LONGEST_SALT: usize = 64 << 10;

const FIRST: u8 = 0;
const BEHIND: u8 = 1;

/// The blocks of an engine that are taken out, the hottest first.
#[derive(Debug)]
pub struct ParkedBlocks {
    left: vec::IntoIter<IndexedBlock>,
    /// The numbers of those that were taken out, by the numbers of their contents.
    numbers: HashMap<u64, u32>,
}

/// The blocks that are put into an engine.
#[derive(Debug, Default)]
pub struct RestoredBlocks {
    /// By their numbers: the contents' numbers here. None for one that others cannot be behind.
    places: Vec<Option<u64>>,
    held: Vec<BlockId>,
    tokens: usize,
}

/// The reason why a block was not put into an engine. Those before it stay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRestored {
    /// There is no room for more.
    #[error("there is no room for more blocks")]
    NoRoom,
    /// Its body is malformed.
    #[error("the body of a block is malformed: {0}")]
    Malformed(&'static str),
    /// The decoder refused it.
    #[error("{0}")]
    Refused(String),
}

/// The body of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockBody<'a> {
    place: BodyPlace,
    tokens: Vec<u32>,
    contents: &'a [u8],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BodyPlace {
    First(CacheSalt),
    Behind(u32),
}

impl BodyPlace {
    /// Writes everything before a block's contents.
    fn write(&self, tokens: &[u32], body: &mut Vec<u8>) {
        match self {
            Self::First(salt) => {
                let (text, adapter) = salt.parts();
                body.push(FIRST);
                body.extend_from_slice(&adapter.to_le_bytes());
                body.extend_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
                body.extend_from_slice(text.as_bytes());
            }
            Self::Behind(number) => {
                body.push(BEHIND);
                body.extend_from_slice(&number.to_le_bytes());
            }
        }
        body.push(u8::try_from(tokens.len()).unwrap_or(u8::MAX));
        tokens.iter().for_each(|token| body.extend_from_slice(&token.to_le_bytes()));
    }
}

impl<'a> BlockBody<'a> {
    fn read(body: &'a [u8]) -> Result<Self, NotRestored> {
        let mut rest = body;
        let place = match number(&mut rest)? {
            [FIRST] => {
                let adapter = u64::from_le_bytes(number(&mut rest)?);
                let length = usize::try_from(u32::from_le_bytes(number(&mut rest)?)).unwrap_or(usize::MAX);
                let text = rest.get(..length).filter(|_| length <= LONGEST_SALT);
                let text = text.and_then(|text| std::str::from_utf8(text).ok());
                let text = text.ok_or(NotRestored::Malformed("its salt is no text"))?;
                rest = &rest[length..];
                BodyPlace::First(CacheSalt::of_parts(text, adapter))
            }
            [BEHIND] => BodyPlace::Behind(u32::from_le_bytes(number(&mut rest)?)),
            _ => return Err(NotRestored::Malformed("it has no place")),
        };
        let [count] = number(&mut rest)?;
        if count == 0 || usize::from(count) > BLOCK_TOKENS {
            return Err(NotRestored::Malformed("no block has so many tokens"));
        }
        let tokens = (0..count).map(|_| Ok(u32::from_le_bytes(number(&mut rest)?)));
        let tokens = tokens.collect::<Result<_, NotRestored>>()?;
        Ok(Self { place, tokens, contents: rest })
    }
}

/// The next bytes.
fn number<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], NotRestored> {
    let (bytes, behind) = rest.split_first_chunk().ok_or(NotRestored::Malformed("it ends too early"))?;
    *rest = behind;
    Ok(*bytes)
}

impl RestoredBlocks {
    /// Tokens that were put into the engine so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Blocks that were put into the engine so far.
    pub fn blocks(&self) -> usize {
        self.held.len()
    }
}

impl TextEngine {
    /// As [`Decoder::block_layout`](crate::Decoder::block_layout).
    pub fn block_layout(&self) -> Option<String> {
        self.decoder.block_layout()
    }

    /// The blocks of prefixes that later sequences could begin with, for [`Self::take_out`].
    pub fn parked_blocks(&self) -> ParkedBlocks {
        ParkedBlocks { left: self.kv.hottest().into_iter(), numbers: HashMap::new() }
    }

    /// The body of the next block, and the number of its tokens. The block stays in the engine. Blocks with places of
    /// images are left out, with all behind them: images have other numbers in each process.
    ///
    /// # Errors
    /// The device failed; earlier bodies are good.
    pub fn take_out(&mut self, blocks: &mut ParkedBlocks) -> Result<Option<(usize, Vec<u8>)>, DecoderError> {
        for indexed in blocks.left.by_ref() {
            let place = match &indexed.parent {
                Parent::Root(salt) if is_lasting(salt.parts().1) && salt.parts().0.len() <= LONGEST_SALT => {
                    BodyPlace::First(salt.clone())
                }
                Parent::Root(_) => continue,
                Parent::Behind(contents) => match blocks.numbers.get(contents) {
                    Some(number) => BodyPlace::Behind(*number),
                    None => continue,
                },
            };
            if indexed.tokens.iter().any(|token| token & IMAGE_KEY != 0) {
                continue;
            }
            let mut body = Vec::new();
            place.write(&indexed.tokens, &mut body);
            self.decoder.read_block(indexed.block, &mut body)?;
            let number = u32::try_from(blocks.numbers.len()).unwrap_or(u32::MAX);
            blocks.numbers.insert(indexed.contents, number);
            return Ok(Some((indexed.tokens.len(), body)));
        }
        Ok(None)
    }

    /// Puts the block of the next body into the engine. Nothing is dropped for it.
    ///
    /// # Errors
    /// It was not put in. The blocks behind it are of no use then.
    pub fn put_in(&mut self, restored: &mut RestoredBlocks, body: &[u8]) -> Result<(), NotRestored> {
        let BlockBody { place, tokens, contents } = BlockBody::read(body)?;
        if tokens.iter().any(|token| *token as usize >= self.info.vocab_size) {
            return Err(NotRestored::Malformed("a token is outside the vocabulary"));
        }
        let parent = match place {
            BodyPlace::First(salt) => Parent::Root(salt),
            BodyPlace::Behind(number) => {
                let before = usize::try_from(number).ok().and_then(|number| *restored.places.get(number)?);
                Parent::Behind(before.ok_or(NotRestored::Malformed("the block before it is not there"))?)
            }
        };
        let block = self.kv.take_free().ok_or(NotRestored::NoRoom)?;
        if let Err(error) = self.decoder.write_block(block, contents) {
            self.kv.put_back(block);
            self.give_back();
            return Err(match error {
                DecoderError::OutOfMemory(_) => NotRestored::NoRoom,
                error => NotRestored::Refused(error.to_string()),
            });
        }
        let (held, contents) = self.kv.adopt(&parent, &tokens, block);
        restored.held.push(held);
        restored.places.push((tokens.len() == BLOCK_TOKENS).then_some(contents));
        restored.tokens += tokens.len();
        Ok(())
    }

    /// The last block was put in: sequences find them all, and drop them as they drop others.
    pub fn settle(&mut self, restored: RestoredBlocks) {
        self.kv.settle(restored.held);
        self.give_back();
        self.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_3_bodies_of_blocks_are_read_as_they_were_written_and_cut_ones_are_refused() {
        let places = [
            BodyPlace::First(CacheSalt::of_parts("2:me", 0)),
            BodyPlace::First(CacheSalt::of_parts("", u64::MAX)),
            BodyPlace::Behind(70_000),
        ];
        for place in places {
            for tokens in [vec![5], (0..BLOCK_TOKENS as u32).collect::<Vec<_>>()] {
                let mut body = Vec::new();
                place.write(&tokens, &mut body);
                let head = body.len();
                body.extend_from_slice(b"keys");
                let read = BlockBody::read(&body).unwrap();
                assert_eq!(read, BlockBody { place: place.clone(), tokens: tokens.clone(), contents: b"keys" });
                for length in 0..head {
                    assert!(BlockBody::read(&body[..length]).is_err(), "cut at {length} of {head}");
                }
            }
        }
        for malformed in [&[2, 0, 0][..], &[BEHIND, 0, 0, 0, 0, 0], &[BEHIND, 0, 0, 0, 0, 33]] {
            assert!(BlockBody::read(malformed).is_err());
        }
    }
}
