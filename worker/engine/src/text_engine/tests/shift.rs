//! Answers that are longer than the context.

use super::*;
use crate::engine::ContextShift;
use crate::kv::CacheSalt;

const CONTEXT: usize = 64;

fn rig(blocks: usize) -> Rig {
    let settings = TextEngineSettings { context_length: Some(CONTEXT), ..TextEngineSettings::default() };
    Rig::over(FakeDecoder::new(Script::Hash(128), 200).with_blocks(blocks), settings)
}

fn start(number: usize) -> String {
    (0..40).map(|at| char::from(b'a' + ((at * 7 + number) % 26) as u8)).collect()
}

fn work(number: usize, keep: usize, max_tokens: usize) -> Generate {
    let shift = Some(ContextShift { keep });
    Generate { shift, max_tokens: Some(max_tokens), ignore_eos: true, ..prompt(&start(number)) }
}

/// The same answer from a model with room for all, asked again for each token. Each byte is a token.
fn token_by_token(number: usize, keep: usize, max_tokens: usize) -> String {
    let (mut seen, mut answer) = (start(number), String::new());
    for _ in 0..max_tokens {
        if seen.len() > CONTEXT {
            seen.replace_range(keep..keep + (seen.len() - keep) / 2, "");
        }
        let next = Generate { max_tokens: Some(1), ignore_eos: true, ..prompt(&seen) };
        let next = Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(next).text;
        seen += &next;
        answer += &next;
    }
    answer
}

#[test]
fn en_7_an_answer_longer_than_the_context_forgets_its_oldest_tokens() {
    let alone: Vec<String> = (0..4).map(|number| token_by_token(number, 8, 150)).collect();
    assert!(alone.iter().all(|answer| answer.len() == 150));
    for (blocks, shares) in [(50, false), (50, true), (3, true)] {
        let mut rig = rig(blocks);
        let clients = [0, 1, 2, 3].map(|number| {
            let cache = shares.then(|| CacheSalt::new("me"));
            rig.submit(Generate { cache, ..work(number, 8, 150) })
        });
        rig.run();
        for (client, alone) in clients.iter().zip(&alone) {
            let answer = client.answer();
            assert_eq!((&answer.failed, &answer.text), (&None, alone), "{blocks} blocks, shared: {shares}");
            let finished = answer.finished.unwrap();
            assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Length, 150));
            assert_eq!(finished.usage.prompt_tokens, 40);
        }
    }
}

#[test]
fn en_7_an_answer_without_end_ends_at_ten_contexts() {
    let endless = Generate { max_tokens: None, ..work(0, 4, 0) };
    let answer = rig(50).answer(endless.clone());
    let finished = answer.finished.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Length, 10 * CONTEXT));
    let answer = rig(50).answer(Generate { shift: None, ..endless });
    assert_eq!(answer.finished.unwrap().usage.completion_tokens, CONTEXT - 40);
}

#[test]
fn en_7_three_quarters_of_the_context_stay_at_most() {
    let long: String = start(1) + &start(2)[..22];
    let asked = Generate { max_tokens: Some(90), ..work(1, usize::MAX, 90) };
    let mut rig = rig(50);
    let client = rig.submit(Generate { prompt: long.bytes().map(u32::from).collect(), ..asked });
    let mut lengths = Vec::new();
    while rig.engine.step().unwrap() == Progress::Stepped {
        lengths.extend(rig.engine.waiting.iter().map(|waiting| waiting.tokens().len()));
    }
    assert_eq!(client.answer().text.len(), 90);
    // 65 tokens, of which 48 stay and half of the others go.
    assert_eq!(lengths.first(), Some(&57), "{lengths:?}");
    assert!(lengths.len() <= 11, "a shift makes room for several tokens: {lengths:?}");
}
