//! The decoder compared with `transformers`, on tiny random models under `golden/` from
//! `scripts/reference/make_golden.py`. Every case runs in every way that the engine may use: whole, in pieces, batched
//! with others, after a truncation.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::cell::Cell;
use std::path::{Path, PathBuf};

use model_boss_candle::load;
use model_boss_engine::{DecoderError, KvSlot, Logits, SequenceStep, Sequences};
use model_boss_protocol::DeviceId;
use serde::Deserialize;

/// The tolerance for models stored in f32: the largest difference of a logit from the reference.
const TOLERANCE: f32 = 1e-3;

/// The tolerance for all other models, whose keys and values are rounded to f16, as a share of the largest logit.
/// Attention of narrow random models is sharp: half as much was observed.
const ROUNDED: f32 = 2e-3;

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    last_logits: Vec<f32>,
    all_logits: Option<Vec<Vec<f32>>>,
    greedy: Vec<u32>,
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn open(folder: &Path) -> Sequences {
    Sequences::over(load(folder, &DeviceId::Cpu, None, &mut |_| {}).unwrap_or_else(|error| panic!("{error}")))
}

/// Whether a model's weights are stored in 16 bits.
fn stored_in_halves(folder: &Path) -> bool {
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "safetensors")).unwrap();
    let bytes = std::fs::read(file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    !String::from_utf8_lossy(&bytes[8..8 + header]).contains("\"F32\"")
}

/// Runs a check over every golden model.
fn for_every_model(check: impl Fn(&str, &mut Sequences, &[Case])) {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 25, "golden models are missing");
    for folder in folders {
        let expected = std::fs::read(folder.join("expected.json")).unwrap();
        let expected: Expected = serde_json::from_slice(&expected).unwrap();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        check(&name, &mut open(&folder), &expected.cases);
    }
}

fn step<'a>(kv: KvSlot, tokens: &'a [u32], logits: Logits) -> SequenceStep<'a> {
    SequenceStep { kv, tokens, logits }
}

/// Runs one sequence's part of a step alone; returns its logits.
fn alone(decoder: &mut Sequences, kv: KvSlot, tokens: &[u32], logits: Logits) -> Vec<f32> {
    decoder.forward(&[step(kv, tokens, logits)]).unwrap().remove(0)
}

fn best(logits: &[f32]) -> u32 {
    let (index, _) = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    index as u32
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
    let name = what.split([',', ':']).next().unwrap();
    let rounded = stored_in_halves(&golden().join(name));
    let largest = want.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
    let allowed = if rounded { ROUNDED * largest } else { TOLERANCE };
    assert!(worst < allowed, "{what}: off by {worst} of {largest}");
}

/// The most likely tokens after `logits`, with one sequence alone.
fn greedy(decoder: &mut Sequences, kv: KvSlot, mut logits: Vec<f32>, count: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let token = best(&logits);
        tokens.push(token);
        logits = alone(decoder, kv, &[token], Logits::Last);
    }
    tokens
}

#[test]
fn fa_1_logits_and_greedy_tokens_are_those_of_transformers() {
    for_every_model(|name, decoder, cases| {
        for case in cases {
            let what = format!("{name}, prompt of {}", case.prompt.len());
            let kv = decoder.open(decoder.info().context_length).unwrap();
            let logits = alone(decoder, kv, &case.prompt, Logits::Last);
            assert_close(&logits, &case.last_logits, &what);
            assert_eq!(greedy(decoder, kv, logits, case.greedy.len()), case.greedy, "{what}");
            decoder.close(kv);
        }
    });
}

#[test]
fn a_row_behind_every_token_when_asked() {
    let seen = Cell::new(0);
    for_every_model(|name, decoder, cases| {
        for case in cases {
            let kv = decoder.open(case.prompt.len()).unwrap();
            let all = alone(decoder, kv, &case.prompt, Logits::All);
            let vocab = decoder.info().vocab_size;
            assert_eq!(all.len(), case.prompt.len() * vocab);
            assert_close(&all[all.len() - vocab..], &case.last_logits, name);
            if let Some(rows) = &case.all_logits {
                assert_close(&all, &rows.concat(), name);
                seen.set(seen.get() + 1);
            }
        }
    });
    assert!(seen.get() > 0, "no case has rows behind every token");
}

#[test]
fn fa_1_prompts_of_different_lengths_run_together_without_changing_a_token() {
    for_every_model(|name, decoder, cases| {
        let slots: Vec<KvSlot> = cases.iter().map(|_| decoder.open(100).unwrap()).collect();
        let batch: Vec<_> = cases.iter().zip(&slots).map(|(case, kv)| step(*kv, &case.prompt, Logits::Last)).collect();
        let mut logits = decoder.forward(&batch).unwrap();
        for (case, logits) in cases.iter().zip(&logits) {
            assert_close(logits, &case.last_logits, name);
        }
        let mut answers = vec![Vec::new(); cases.len()];
        for _ in 0..16 {
            let tokens: Vec<[u32; 1]> = logits.iter().map(|row| [best(row)]).collect();
            for (answer, [token]) in answers.iter_mut().zip(&tokens) {
                answer.push(*token);
            }
            let batch: Vec<_> = slots.iter().zip(&tokens).map(|(kv, token)| step(*kv, token, Logits::Last)).collect();
            logits = decoder.forward(&batch).unwrap();
        }
        for (case, answer) in cases.iter().zip(&answers) {
            assert_eq!(*answer, case.greedy, "{name}, prompt of {}", case.prompt.len());
        }
    });
}

#[test]
fn fa_1_who_shares_a_step_changes_no_bit() {
    for_every_model(|name, decoder, cases| {
        let slots: Vec<KvSlot> = cases.iter().map(|_| decoder.open(100).unwrap()).collect();
        let copies: Vec<KvSlot> = cases.iter().map(|_| decoder.open(100).unwrap()).collect();
        for round in 0..3 {
            let tokens = |case: &Case| if round == 0 { case.prompt.clone() } else { vec![case.greedy[round - 1]] };
            let brought: Vec<Vec<u32>> = cases.iter().map(tokens).collect();
            let batch: Vec<_> =
                slots.iter().zip(&brought).map(|(kv, tokens)| step(*kv, tokens, Logits::Last)).collect();
            let together = decoder.forward(&batch).unwrap();
            for ((kv, tokens), together) in copies.iter().zip(&brought).zip(together) {
                assert_eq!(alone(decoder, *kv, tokens, Logits::Last), together, "{name}, round {round}");
            }
        }
    });
}

#[test]
fn fa_1_prefill_in_pieces_beside_a_decoding_neighbour() {
    for_every_model(|name, decoder, cases| {
        let (short, long) = (&cases[0], cases.last().unwrap());
        let neighbour = decoder.open(64).unwrap();
        let mut answer = Vec::new();
        let mut next = [best(&alone(decoder, neighbour, &short.prompt, Logits::Last))];
        let kv = decoder.open(64).unwrap();
        let mut pieces = long.prompt.chunks(7).peekable();
        let mut logits = Vec::new();
        while let Some(piece) = pieces.next() {
            let wanted = if pieces.peek().is_some() { Logits::None } else { Logits::Last };
            answer.push(next[0]);
            let batch = [step(kv, piece, wanted), step(neighbour, &next, Logits::Last)];
            let mut rows = decoder.forward(&batch).unwrap();
            next = [best(&rows.remove(1))];
            logits = rows.remove(0);
            assert_eq!(logits.is_empty(), wanted == Logits::None);
        }
        assert_close(&logits, &long.last_logits, name);
        assert_eq!(answer, short.greedy[..answer.len()], "{name}: the neighbour");
        assert_eq!(greedy(decoder, kv, logits, 16), long.greedy, "{name}");
    });
}

#[test]
fn a_truncated_sequence_goes_on_as_if_the_rest_had_never_been() {
    for_every_model(|name, decoder, cases| {
        let case = cases.last().unwrap();
        let kv = decoder.open(100).unwrap();
        alone(decoder, kv, &case.prompt, Logits::None);
        let wrong: Vec<u32> = case.prompt.iter().rev().copied().collect();
        alone(decoder, kv, &wrong, Logits::None);
        let kept = case.prompt.len() / 2;
        decoder.truncate(kv, kept);
        assert_eq!(decoder.len(kv), kept);
        decoder.truncate(kv, 90);
        assert_eq!(decoder.len(kv), kept, "a truncation never lengthens");
        let logits = alone(decoder, kv, &case.prompt[kept..], Logits::Last);
        assert_close(&logits, &case.last_logits, name);
        assert_eq!(greedy(decoder, kv, logits, 16), case.greedy, "{name}");
    });
}

#[test]
fn what_cannot_be_computed_is_refused_and_changes_nothing() {
    let mut decoder = open(&golden().join("plain"));
    let (one, two) = (decoder.open(8).unwrap(), decoder.open(8).unwrap());
    alone(&mut decoder, one, &[5, 6, 7], Logits::None);
    let before = alone(&mut decoder, two, &[9], Logits::Last);
    let closed = decoder.open(8).unwrap();
    decoder.close(closed);
    decoder.close(closed);
    let outside = [decoder.info().vocab_size as u32];
    let wrong: [&[SequenceStep<'_>]; 5] = [
        &[step(two, &[1], Logits::Last), step(one, &[1, 2, 3, 4, 5, 6], Logits::Last)],
        &[step(two, &[1], Logits::Last), step(one, &outside, Logits::Last)],
        &[step(two, &[1], Logits::Last), step(one, &[], Logits::Last)],
        &[step(two, &[1], Logits::Last), step(two, &[1], Logits::Last)],
        &[step(two, &[1], Logits::Last), step(closed, &[1], Logits::Last)],
    ];
    for batch in wrong {
        assert!(matches!(decoder.forward(batch), Err(DecoderError::Step(_))));
        assert_eq!((decoder.len(one), decoder.len(two)), (3, 1));
    }
    decoder.truncate(two, 0);
    assert_eq!(alone(&mut decoder, two, &[9], Logits::Last), before);
    assert!(decoder.open(decoder.info().context_length + 1).is_err());
    assert_eq!(decoder.forward(&[]).unwrap(), Vec::<Vec<f32>>::new());
    assert_eq!(decoder.len(closed), 0);
}

#[test]
fn a_sequence_fills_its_capacity_exactly() {
    let mut decoder = open(&golden().join("plain"));
    let whole: Vec<u32> = (0..128).map(|i| i * 37 % 128).collect();
    let (one, other) = (decoder.open(128).unwrap(), decoder.open(128).unwrap());
    let at_once = alone(&mut decoder, one, &whole, Logits::Last);
    let mut last = Vec::new();
    for token in &whole {
        last = alone(&mut decoder, other, &[*token], Logits::Last);
    }
    assert_close(&last, &at_once, "plain, token by token");
    assert!(decoder.forward(&[step(one, &[1], Logits::Last)]).is_err());
}

#[test]
fn what_a_decoder_says_of_itself_and_of_its_progress() {
    let mut shares = Vec::new();
    let decoder = load(&golden().join("sharded"), &DeviceId::Cpu, Some(50), &mut |share| shares.push(share)).unwrap();
    let info = decoder.info();
    assert_eq!((info.vocab_size, info.context_length), (128, 50));
    // The factors: keys and values, 2 layers, 2 key heads of 8, and 2 bytes of an f16.
    assert_eq!(info.kv_bytes_per_token, 2 * 2 * 2 * 8 * 2);
    let layer = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32 + 2 * 32;
    // Matrices keep their stored type bf16, and norms are f32.
    let norms = 2 * 2 * 32 + 32;
    assert_eq!(info.weight_bytes, 2 * (2 * 128 * 32 + 2 * layer + 32 - norms) + 4 * norms);
    assert!(shares.is_sorted() && shares.first() == Some(&0.0) && shares.last() == Some(&1.0), "{shares:?}");

    let folder = golden().join("plain");
    let context = |wanted| load(&folder, &DeviceId::Cpu, wanted, &mut |_| {}).unwrap().info().context_length;
    assert_eq!((context(None), context(Some(1_000_000)), context(Some(7))), (128, 128, 7));
    let by_file = load(&folder.join("model.safetensors"), &DeviceId::Cpu, None, &mut |_| {}).unwrap();
    let tied = open(&golden().join("tied"));
    assert!(tied.info().weight_bytes < by_file.info().weight_bytes, "a tied head is held once");
}
