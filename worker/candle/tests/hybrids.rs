//! Models with states of sequences: prefixes that are shared, sequences that are truncated, steps that fail. Prefixes
//! are shared by the engine's own cache, over decoders of tiny random models.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]
#![allow(dead_code, reason = "the cases have more helpers than one test needs")]

mod family_cases;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use family_cases::{Case, alone, greedy, open, step, worst};
use model_boss_candle::{DecoderLoadOptions, load_with};
use model_boss_engine::fake::byte_vocabulary;
use model_boss_engine::sampling::SamplingParams;
use model_boss_engine::{
    Activity, CacheSalt, DecoderError, Engine, Finished, Generate, Histograms, Logits, Progress, Reply, SequenceEvent,
    SequenceId, TextEngine, TextEngineSettings, Work,
};
use model_boss_protocol::{DeviceId, Priority};

/// A case of each kind of state, with attention beside it.
const HYBRIDS: [&str; 5] =
    ["lfm2/plain", "granitemoehybrid/experts", "bamba/plain", "qwen3_next/shared", "qwen3_5/text"];

fn hybrids() -> Vec<Case> {
    let cases: Vec<Case> = Case::all().into_iter().filter(|case| HYBRIDS.contains(&case.name.as_str())).collect();
    assert!(cases.len() == HYBRIDS.len() || std::env::var_os("MODEL_BOSS_FAMILY").is_some());
    cases
}

/// Tokens that repeat nothing for a while.
fn text(case: &Case, first: usize, count: usize) -> Vec<u32> {
    let vocab = case.prompts.iter().flatten().max().copied().unwrap_or(1) as usize;
    (0..count).map(|at| ((first + at * at + 3 * at) % vocab + 1).min(vocab) as u32).collect()
}

struct Client(Sender<SequenceEvent>);

impl Reply for Client {
    fn send(&mut self, event: SequenceEvent) {
        let _ = self.0.send(event);
    }

    fn is_closed(&self) -> bool {
        false
    }
}

/// The engine over a decoder, with few blocks.
struct Rig {
    engine: TextEngine,
    next: u64,
}

/// An answer, as the text of its tokens.
#[derive(Debug, PartialEq)]
struct Answer {
    text: String,
    cached: usize,
}

impl Rig {
    fn new(case: &Case, max_concurrent: u32) -> Self {
        let options = DecoderLoadOptions { max_concurrent: Some(max_concurrent), ..DecoderLoadOptions::default() };
        let decoder = load_with(case.folder(), &DeviceId::Cpu, &options, &mut |_| {}).unwrap();
        assert!(decoder.info().state_bytes > 0);
        let settings = TextEngineSettings { max_concurrent: max_concurrent as usize, ..TextEngineSettings::default() };
        let activity = Arc::new(Activity::new(Histograms::default()));
        let engine = TextEngine::new(decoder, Arc::new(byte_vocabulary()), settings, activity);
        Self { engine, next: 0 }
    }

    /// Answers to prompts that come at the same time.
    fn ask(&mut self, prompts: &[Vec<u32>], salt: Option<&str>) -> Vec<Answer> {
        let listeners: Vec<_> = prompts
            .iter()
            .map(|prompt| {
                let (sender, events) = channel();
                self.next += 1;
                let work = Generate {
                    spelled_thoughts: false,
                    prompt: prompt.as_slice().into(),
                    images: Arc::default(),
                    max_tokens: Some(10),
                    sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
                    choice: 0,
                    stop: Vec::new(),
                    ignore_eos: true,
                    logprobs: None,
                    prompt_logprobs: false,
                    progress: false,
                    thinking: None,
                    channels: None,
                    cache: salt.map(CacheSalt::new),
                    shift: None,
                    grammar: None,
                    calls: None,
                    priority: Priority::default(),
                    adapter: None,
                };
                self.engine.submit(SequenceId(self.next), Work::Generate(work), Box::new(Client(sender)));
                events
            })
            .collect();
        while self.engine.step().unwrap() == Progress::Stepped {}
        let answer = |events: std::sync::mpsc::Receiver<SequenceEvent>| {
            let mut answer = Answer { text: String::new(), cached: 0 };
            for event in events.try_iter() {
                match event {
                    SequenceEvent::Text { text, .. } => answer.text += &text,
                    SequenceEvent::Finished(Finished { usage, .. }) => answer.cached = usage.cached_tokens,
                    SequenceEvent::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            answer
        };
        listeners.into_iter().map(answer).collect()
    }
}

#[test]
fn fa_1_a_shared_prefix_changes_no_answer_and_states_are_resumed() {
    for case in hybrids() {
        let name = &case.name;
        let beginning = text(&case, 0, 70);
        let with = |end: &[u32]| [&beginning[..], end].concat();
        let ends: Vec<Vec<u32>> = (1..5).map(|first| text(&case, first * 5, 6 + first)).collect();
        let prompts: Vec<Vec<u32>> = ends.iter().map(|end| with(end)).collect();
        let plain: Vec<String> = prompts
            .iter()
            .map(|prompt| Rig::new(&case, 4).ask(std::slice::from_ref(prompt), None).remove(0).text)
            .collect();
        let mut rig = Rig::new(&case, 4);
        let first = rig.ask(&prompts[..1], Some("me")).remove(0);
        assert_eq!((&first.text, first.cached), (&plain[0], 0), "{name}");
        // The same again begins behind the last whole block of its prompt.
        let again = rig.ask(&prompts[..1], Some("me")).remove(0);
        assert_eq!((&again.text, again.cached), (&plain[0], 64), "{name}");
        // Others part from it behind 70 tokens, and begin at the end of the block before.
        for (prompt, plain) in prompts.iter().zip(&plain).skip(1) {
            let answer = rig.ask(std::slice::from_ref(prompt), Some("me")).remove(0);
            assert_eq!((&answer.text, answer.cached), (plain, 64), "{name}");
        }
        // Several at once, and several answers to one prompt.
        let several = [prompts.clone(), vec![prompts[2].clone(); 3]].concat();
        let answers = rig.ask(&several, Some("me"));
        for (answer, plain) in answers.iter().zip(plain.iter().chain([&plain[2]; 3])) {
            assert_eq!((&answer.text, answer.cached), (plain, 64), "{name}");
        }
        let other = rig.ask(&prompts[1..2], Some("you")).remove(0);
        assert_eq!((&other.text, other.cached), (&plain[1], 0), "another caller finds nothing, {name}");
    }
}

#[test]
fn fa_1_the_next_turn_goes_on_behind_the_answer() {
    for case in hybrids() {
        let mut rig = Rig::new(&case, 2);
        let mut said = text(&case, 3, 40);
        for turn in 0..3 {
            let plain = Rig::new(&case, 2).ask(std::slice::from_ref(&said), None).remove(0).text;
            let answer = rig.ask(std::slice::from_ref(&said), Some("me")).remove(0);
            assert_eq!(answer.text, plain, "{}, turn {turn}", case.name);
            if turn > 0 {
                assert_eq!(answer.cached, said.len() - 7, "all but the new tokens and the last one of the answer");
            }
            let tokens: Vec<u32> = answer.text.bytes().map(u32::from).collect();
            assert_eq!(tokens.len(), 10, "every token of these models is a byte");
            said.extend(tokens);
            said.extend(text(&case, 50 + turn, 6));
        }
    }
}

#[test]
fn fa_1_a_truncated_sequence_goes_on_as_if_the_rest_had_never_been() {
    for case in hybrids() {
        let (prompt, logits) = (case.prompts.last().unwrap(), case.logits.last().unwrap());
        let expected = case.greedy.last().unwrap();
        for kept in [0, 1, 20, 32, 35, prompt.len() - 1] {
            let mut decoder = open(case.folder());
            let kv = decoder.open(120).unwrap();
            alone(&mut decoder, kv, prompt, Logits::None);
            alone(&mut decoder, kv, &text(&case, 9, 40), Logits::None);
            decoder.truncate(kv, kept);
            assert_eq!(decoder.len(kv), kept);
            decoder.truncate(kv, 90);
            assert_eq!(decoder.len(kv), kept, "a truncation never lengthens");
            let row = alone(&mut decoder, kv, &prompt[kept..], Logits::Last);
            assert!(worst(&row, logits) < 1e-3, "{}, {kept} tokens kept", case.name);
            assert_eq!(greedy(&mut decoder, kv, row, expected.len()), *expected, "{}, {kept} kept", case.name);
        }
    }
}

#[test]
fn fa_1_a_step_that_is_stopped_leaves_states_as_they_were() {
    for case in hybrids() {
        let mut decoder = open(case.folder());
        let (one, two) = (decoder.open(100).unwrap(), decoder.open(100).unwrap());
        let prompt = case.prompts.last().unwrap();
        for kv in [one, two] {
            alone(&mut decoder, kv, prompt, Logits::None);
        }
        let next = text(&case, 4, 5);
        let expected = alone(&mut decoder, two, &next, Logits::Last);
        for layers in 0..2 {
            let asked = AtomicUsize::new(0);
            let stop = || asked.fetch_add(1, Ordering::Relaxed) >= layers;
            let outcome = decoder.forward_until(&[step(one, &next[1..], Logits::Last)], &stop);
            assert!(matches!(outcome, Err(DecoderError::Interrupted)));
        }
        assert_eq!(alone(&mut decoder, one, &next, Logits::Last), expected, "{}", case.name);
    }
}
