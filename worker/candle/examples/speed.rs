//! The speed of decoding and prefill on the CPU:
//! `cargo run --release -p model-boss-candle --example speed -- FOLDER`.

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use model_boss_candle::load;
use model_boss_engine::{KvSlot, Logits, SequenceStep, Sequences};
use model_boss_protocol::{ByteCount, DeviceId};

const PROMPT: usize = 256;
const STEPS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("give the folder of a model")?);
    let start = Instant::now();
    let mut decoder = Sequences::over(load(&folder, &DeviceId::Cpu, None, &mut |_| {})?);
    let (vocab, weights) = (decoder.info().vocab_size as u32, ByteCount(decoder.info().weight_bytes));
    println!("loaded {weights} in {:.2} s", start.elapsed().as_secs_f64());

    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 7_919 + 13) % vocab).collect();
    for sequences in [1, 2, 4, 8] {
        let slots = (0..sequences).map(|_| decoder.open(PROMPT + STEPS)).collect::<Result<Vec<KvSlot>, _>>()?;
        let start = Instant::now();
        for kv in &slots {
            decoder.forward(&[SequenceStep { kv: *kv, tokens: &prompt, logits: Logits::Last }])?;
        }
        let prefill = (sequences * PROMPT) as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for step in 0..STEPS {
            let tokens = [prompt[step % PROMPT]];
            let batch: Vec<_> =
                slots.iter().map(|kv| SequenceStep { kv: *kv, tokens: &tokens, logits: Logits::Last }).collect();
            decoder.forward(&batch)?;
        }
        let decode = (sequences * STEPS) as f64 / start.elapsed().as_secs_f64();
        println!("{sequences} sequences: {prefill:.0} prompt tokens/s, {decode:.0} tokens/s");
        slots.into_iter().for_each(|kv| decoder.close(kv));
    }
    Ok(())
}
