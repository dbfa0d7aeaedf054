//! One prefill of 64 tokens and eight steps of decoding for each type of matrix: `scripts/instruction-counts` counts
//! their instructions. Models are random, and all work is on one thread.
//!
//! The only argument is an instruction set. Each type's line is printed before its two functions run.

use std::error::Error;
use std::fs::File;
use std::str::FromStr;

use model_boss_candle::{Synthetic, load};
use model_boss_engine::{DecoderError, KvSlot, Logits, SequenceStep, Sequences};
use model_boss_kernels::choose_instructions;
use model_boss_protocol::{DeviceId, InstructionSet};
use model_boss_weights::gguf::HeaderWriter;

const PROMPT: usize = 64;
/// Several steps, because a single one of so small a model varies by 0.4 % between runs.
const STEPS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let set = std::env::args().nth(1).ok_or("give an instruction set, e.g. avx2")?;
    choose_instructions(InstructionSet::from_str(&set)?)?;
    // Without threads of a pool, all work is inside of the functions that are counted.
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global()?;
    let folder = std::env::temp_dir().join(format!("model-boss-steps-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let counted = Synthetic::types().try_for_each(|name| {
        let path = folder.join(format!("{name}.gguf"));
        let shape = Synthetic::of(&format!("qwen3-tiny-{name}")).ok_or("a type has no shape")?;
        shape.write(1, HeaderWriter::new(), File::create(&path)?)?;
        let mut decoder = Sequences::over(load(&path, &DeviceId::Cpu, None, &mut |_| {})?);
        std::fs::remove_file(&path)?;
        println!("{name}");
        count(&mut decoder)
    });
    std::fs::remove_dir_all(&folder)?;
    counted
}

fn count(decoder: &mut Sequences) -> Result<(), Box<dyn Error>> {
    let vocabulary = u32::try_from(decoder.info().vocab_size)?;
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 7_919 + 13) % vocabulary).collect();
    let kv = decoder.open(PROMPT + STEPS)?;
    // The first step of a decoder makes tables that later ones use again.
    decoder.forward(&[SequenceStep { kv, tokens: &prompt[..1], logits: Logits::Last }])?;
    decoder.truncate(kv, 0);
    counted_prefill(decoder, kv, &prompt)?;
    counted_decode(decoder, kv, &prompt[..STEPS])?;
    decoder.close(kv);
    Ok(())
}

/// The name of this function is a pattern in `scripts/instruction-counts`.
#[inline(never)]
fn counted_prefill(decoder: &mut Sequences, kv: KvSlot, prompt: &[u32]) -> Result<(), DecoderError> {
    decoder.forward(&[SequenceStep { kv, tokens: prompt, logits: Logits::Last }]).map(drop)
}

/// The name of this function is a pattern in `scripts/instruction-counts`.
#[inline(never)]
fn counted_decode(decoder: &mut Sequences, kv: KvSlot, tokens: &[u32]) -> Result<(), DecoderError> {
    for token in tokens {
        decoder.forward(&[SequenceStep { kv, tokens: std::slice::from_ref(token), logits: Logits::Last }])?;
    }
    Ok(())
}
