//! Letting sequences into the batch.

use super::TextEngine;
use super::turns::{can_go_on, computes_prefix_of, fatal, is_bulk};
use crate::activity::End;
use crate::decoder::BlockId;
use crate::engine::{EngineError, WorkError};
use crate::kv::{BLOCK_TOKENS, KvCache};

impl TextEngine {
    /// Lets waiting sequences into the batch, in order, while there is room.
    pub(super) fn admit(&mut self) -> Result<(), EngineError> {
        let mut at = 0;
        self.short_of_memory &= !self.running.is_empty();
        while !self.short_of_memory {
            let Some(sequence) = self.waiting.get(at) else { break };
            if self.running.len() >= self.info.max_concurrent {
                // Bulk work gives its place to what is more important.
                if !is_bulk(sequence) && self.running.iter().any(is_bulk) {
                    self.preempt();
                    continue;
                }
                break;
            }
            if self.running.iter().any(|running| computes_prefix_of(running, sequence)) {
                at += 1;
                continue;
            }
            // Others in the batch will soon need another block each.
            let spare = self.running.iter().filter(|running| running.may_grow()).count();
            let class = self.decoder.length_class(sequence.tokens().len());
            let salt = sequence.salt().filter(|_| class <= 1).map(|salt| salt.of_length_class(class));
            let decoder = &self.decoder;
            let resumable = |blocks: &[BlockId], tokens: usize| decoder.resumable(blocks, tokens);
            let admitted = self.kv.admit_behind(salt.as_ref(), sequence.keys(), spare, &resumable);
            match (admitted, self.running.is_empty()) {
                (Some(mut admission), _) => {
                    if let Some((from, to)) = admission.copy {
                        let copied = self.decoder.copy(from, to);
                        self.kv.copied(from);
                        if let Err(error) = copied {
                            fatal(&error)?;
                            KvCache::copy_failed(&mut admission.table);
                            if !can_go_on(&*self.decoder, &admission.table) {
                                // As if nothing had been found.
                                self.kv.withdraw(admission.table);
                                let Some(sequence) = self.waiting.get(at) else { break };
                                let Some(alone) = self.kv.admit(None, sequence.keys(), spare) else { break };
                                admission = alone;
                            }
                        }
                    }
                    let Some(mut sequence) = self.waiting.remove(at) else { break };
                    self.activity.found(admission.table.len());
                    sequence.admit(admission.table, class);
                    self.running.push(sequence);
                }
                // Bulk work gives its blocks to what is more important.
                (None, false) if !is_bulk(sequence) && self.running.iter().any(is_bulk) => {
                    self.preempt();
                }
                // Running sequences will end and free blocks.
                (None, false) => break,
                (None, true) => {
                    let Some(mut sequence) = self.waiting.remove(at) else { break };
                    let held = self.kv.usage().limit.saturating_mul(BLOCK_TOKENS);
                    let why = format!("{} tokens, and there is memory for {held}", sequence.tokens().len());
                    sequence.fail(WorkError::OutOfMemory(why));
                    self.activity.ended(End::Failed);
                }
            }
        }
        Ok(())
    }
}
