use super::*;

mod bulk;
mod draft_model;
mod drafts;
mod forms;
mod images;
mod memory;
mod parking;
mod shift;
mod thinking;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::activity::Histograms;
use crate::engine::{FinishReason, Finished, TokenUsage};
use crate::fake::{FakeControl, FakeDecoder, Script, byte_tokenizer, byte_vocabulary, words};
use crate::sampling::{SamplingParams, TokenLogprob};
use model_boss_protocol::Priority;
use proptest::prelude::*;

struct Channel {
    events: Sender<SequenceEvent>,
    closed: Arc<AtomicBool>,
}

impl Reply for Channel {
    fn send(&mut self, event: SequenceEvent) {
        // A test that no longer listens is a client that went away.
        let _ = self.events.send(event);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

struct Client {
    events: Receiver<SequenceEvent>,
    closed: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Answer {
    thoughts: String,
    text: String,
    pieces: Vec<String>,
    evaluated: Vec<usize>,
    prompt_logprobs: Vec<TokenLogprob>,
    logprobs: Vec<TokenLogprob>,
    finished: Option<Finished>,
    failed: Option<WorkError>,
    calls: Vec<(String, String)>,
}

impl Client {
    fn answer(&self) -> Answer {
        let mut answer = Answer::default();
        for event in self.events.try_iter() {
            match event {
                SequenceEvent::Evaluating { evaluated, .. } => answer.evaluated.push(evaluated),
                SequenceEvent::Started { prompt_logprobs, .. } => answer.prompt_logprobs = prompt_logprobs,
                SequenceEvent::Thought { text, .. } => {
                    assert!(answer.text.is_empty(), "it thinks before it answers");
                    answer.thoughts += &text;
                }
                SequenceEvent::Text { text, logprobs, .. } => {
                    answer.text += &text;
                    answer.pieces.push(text);
                    answer.logprobs.extend(logprobs);
                }
                SequenceEvent::Call { index, name, arguments, .. } => {
                    if let Some(name) = name {
                        answer.calls.push((name, String::new()));
                    }
                    answer.calls[index].1.push_str(&arguments);
                }
                SequenceEvent::Finished(finished) => answer.finished = Some(finished),
                SequenceEvent::Failed(error) => answer.failed = Some(error),
            }
        }
        answer
    }
}

struct Rig {
    engine: TextEngine,
    control: FakeControl,
    next: u64,
}

impl Rig {
    fn new(script: Script, settings: TextEngineSettings) -> Self {
        Self::over(FakeDecoder::new(script, 200), settings)
    }

    fn over(decoder: FakeDecoder, settings: TextEngineSettings) -> Self {
        let control = decoder.control();
        let activity = Arc::new(Activity::new(Histograms::default()));
        let engine = TextEngine::new(Box::new(decoder), Arc::new(byte_vocabulary()), settings, activity);
        Self { engine, control, next: 0 }
    }

    fn saying(text: &str) -> Self {
        Self::new(Script::Answer(words(text)), TextEngineSettings::default())
    }

    fn submit(&mut self, work: Generate) -> Client {
        let (sender, events) = channel();
        let closed = Arc::new(AtomicBool::new(false));
        let reply = Channel { events: sender, closed: Arc::clone(&closed) };
        self.next += 1;
        self.engine.submit(SequenceId(self.next), Work::Generate(work), Box::new(reply));
        Client { events, closed }
    }

    fn run(&mut self) {
        while self.engine.step().unwrap() == Progress::Stepped {}
        assert_eq!(self.engine.kv.usage().used, 0, "every sequence gave its blocks back");
    }

    fn answer(mut self, work: Generate) -> Answer {
        let client = self.submit(work);
        self.run();
        client.answer()
    }
}

fn prompt(text: &str) -> Generate {
    Generate {
        spelled_thoughts: false,
        prompt: text.bytes().map(u32::from).collect(),
        images: Arc::default(),
        max_tokens: None,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        choice: 0,
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: None,
        prompt_logprobs: false,
        progress: false,
        thinking: None,
        channels: None,
        cache: None,
        adapter: None,
        shift: None,
        grammar: None,
        calls: None,
        priority: Priority::NORMAL,
    }
}

fn reason(answer: &Answer) -> FinishReason {
    answer.finished.as_ref().unwrap().reason
}

#[test]
fn an_answer_ends_where_the_model_ends_it() {
    let answer = Rig::saying("hello").answer(prompt("hi"));
    assert_eq!(answer.text, "hello");
    let finished = answer.finished.unwrap();
    assert_eq!(finished.reason, FinishReason::Stop);
    let usage = TokenUsage { prompt_tokens: 2, completion_tokens: 6, ..TokenUsage::default() };
    assert_eq!(finished.usage, usage, "the end of the turn was sampled too");
}

#[test]
fn max_tokens_and_the_context_end_it_too() {
    let answer = Rig::saying("hello").answer(Generate { max_tokens: Some(3), ..prompt("hi") });
    assert_eq!((answer.text.as_str(), reason(&answer)), ("hel", FinishReason::Length));
    let answer = Rig::saying("x").answer(Generate { ignore_eos: true, ..prompt(&"p".repeat(190)) });
    assert_eq!(answer.finished.as_ref().unwrap().usage.completion_tokens, 10);
    assert_eq!(reason(&answer), FinishReason::Length);
    let answer = Rig::saying("x").answer(Generate { max_tokens: Some(0), ..prompt(&"p".repeat(200)) });
    assert_eq!((answer.text.as_str(), reason(&answer)), ("", FinishReason::Length));
}

#[test]
fn what_can_never_work_is_refused_with_both_numbers() {
    let failed = |work| Rig::saying("x").answer(work).failed.unwrap();
    assert_eq!(failed(prompt(&"p".repeat(200))), WorkError::ContextLengthExceeded { prompt: 200, context: 200 });
    assert_eq!(failed(prompt("")), WorkError::EmptyPrompt);
    let unknown = Generate { prompt: [1, 999].into(), ..prompt("") };
    assert_eq!(failed(unknown), WorkError::UnknownToken { token: 999, vocab_size: 262 });
}

#[test]
fn stop_strings_are_cut_across_token_borders() {
    let stop = vec!["lo w".to_owned(), "zzz".to_owned()];
    let answer = Rig::saying("hello world").answer(Generate { stop, logprobs: Some(0), ..prompt("hi") });
    assert_eq!((answer.text.as_str(), reason(&answer)), ("hel", FinishReason::Stop));
    assert_eq!(answer.finished.as_ref().and_then(|finished| finished.stop.as_deref()), Some("lo w"));
    let tokens: String = answer.logprobs.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(tokens, "hel", "tokens of the stop string are not reported");
    let answer = Rig::saying("hello").answer(Generate { stop: vec!["lox".into()], ..prompt("hi") });
    assert_eq!(answer.text, "hello", "held back text comes out at the end");
}

#[test]
fn characters_come_whole() {
    let answer = Rig::saying("né€😀!").answer(prompt("hi"));
    assert_eq!(answer.pieces, ["n", "é", "€", "😀", "!"]);
    let cut = Rig::saying("n€").answer(Generate { max_tokens: Some(3), ..prompt("hi") });
    assert_eq!(cut.text, "n");
}

#[test]
fn logprobs_come_with_the_text_they_belong_to() {
    let answer = Rig::saying("a€").answer(Generate { logprobs: Some(2), ..prompt("hi") });
    assert_eq!(answer.logprobs.len(), 4, "one for each token, however its bytes are cut");
    assert!(answer.logprobs.iter().all(|token| token.top.len() == 2 && token.top[0].logprob >= token.top[1].logprob));
    assert_eq!(answer.logprobs[0].bytes, b"a");
    // One logit of 9 among 261 of -1.
    let expected = -(1.0 + 261.0 * (-10.0_f64).exp()).ln() as f32;
    assert!((answer.logprobs[0].logprob.unwrap() - expected).abs() < 1e-6);
}

#[test]
fn en_7_progress_tells_how_much_of_a_prompt_is_evaluated() {
    let step_budget = StepBudget { prefill_alone: 3, ..StepBudget::default() };
    let settings = || TextEngineSettings { step_budget, ..TextEngineSettings::default() };
    let answer = |progress| Rig::new(Script::Hash(50), settings()).answer(Generate { progress, ..prompt("abcdefg") });
    let told = answer(true);
    assert_eq!(told.evaluated, [0, 3, 6, 7]);
    let silent = answer(false);
    assert_eq!((silent.evaluated, silent.text), (Vec::new(), told.text));
}

#[test]
fn prompt_logprobs_are_the_same_in_pieces() {
    let of = |prefill_alone| {
        let step_budget = StepBudget { prefill_alone, ..StepBudget::default() };
        let settings = TextEngineSettings { step_budget, ..TextEngineSettings::default() };
        let work = Generate { prompt_logprobs: true, logprobs: Some(1), max_tokens: Some(2), ..prompt("abcdefg") };
        Rig::new(Script::Hash(50), settings).answer(work)
    };
    let whole = of(100);
    assert_eq!(whole.prompt_logprobs.len(), 7);
    assert_eq!(whole.prompt_logprobs[0].logprob, None);
    assert!(whole.prompt_logprobs[1..].iter().all(|token| token.logprob.is_some()));
    let pieces = of(3);
    assert_eq!(whole.prompt_logprobs, pieces.prompt_logprobs);
    assert_eq!(whole.text, pieces.text);
}

#[test]
fn rc_11_a_closed_reply_ends_the_sequence_within_one_step() {
    let settings = TextEngineSettings { max_concurrent: 1, ..TextEngineSettings::default() };
    let mut rig = Rig::new(Script::Answer(words("a long answer")), settings);
    let running = rig.submit(prompt("one"));
    let waiting = rig.submit(prompt("two"));
    rig.engine.step().unwrap();
    rig.engine.step().unwrap();
    assert_eq!(rig.control.blocks(), 1);
    running.closed.store(true, Ordering::Relaxed);
    waiting.closed.store(true, Ordering::Relaxed);
    assert_eq!(rig.engine.step().unwrap(), Progress::Idle);
    assert_eq!(rig.control.blocks(), 0);
    assert!(running.answer().finished.is_none());
    assert_eq!(rig.engine.activity.totals().cancelled, 2);
    assert_eq!(rig.engine.activity.stats().active, 0);
}

/// Records the number of active sequences whenever a reply is asked whether its client still listens.
struct Watching {
    activity: Arc<Activity>,
    seen: Arc<std::sync::Mutex<Vec<u32>>>,
}

impl Reply for Watching {
    fn send(&mut self, _event: SequenceEvent) {}

    fn is_closed(&self) -> bool {
        self.seen.lock().unwrap().push(self.activity.stats().active);
        false
    }
}

#[test]
fn a_step_is_seen_while_it_lasts_the_first_one_too() {
    let mut rig = Rig::saying("hello");
    let seen = Arc::default();
    let reply = Watching { activity: Arc::clone(&rig.engine.activity), seen: Arc::clone(&seen) };
    rig.engine.submit(SequenceId(1), Work::Generate(prompt("hi")), Box::new(reply));
    rig.engine.step().unwrap();
    // Before the step, and in it.
    assert_eq!(*seen.lock().unwrap(), [0, 1]);
}

#[test]
fn rc_11_cancel_forgets_a_sequence_wherever_it_is() {
    let settings = TextEngineSettings { max_concurrent: 1, ..TextEngineSettings::default() };
    let mut rig = Rig::new(Script::Answer(words("text")), settings);
    let first = rig.submit(prompt("one"));
    let second = rig.submit(prompt("two"));
    rig.engine.step().unwrap();
    rig.engine.cancel(SequenceId(1));
    rig.engine.cancel(SequenceId(77));
    rig.run();
    assert!(first.answer().finished.is_none());
    assert_eq!(second.answer().text, "text");
}

#[test]
fn en_2_no_memory_keeps_a_sequence_waiting_until_another_ends() {
    let mut rig = Rig::saying("ok");
    rig.control.most_blocks(1);
    let clients = [rig.submit(prompt("one")), rig.submit(prompt("two"))];
    rig.run();
    assert_eq!(clients.map(|client| client.answer().text), ["ok", "ok"]);
    rig.control.most_blocks(0);
    let alone = rig.submit(prompt("three"));
    rig.run();
    assert!(matches!(alone.answer().failed, Some(WorkError::OutOfMemory(_))));
}

#[test]
fn a_failed_step_fails_only_who_is_at_fault() {
    let mut rig = Rig::saying("fine");
    rig.control.poison(u32::from(b'!'));
    let good = rig.submit(prompt("good"));
    let bad = rig.submit(prompt("bad!"));
    rig.run();
    assert_eq!(good.answer().text, "fine");
    assert_eq!(bad.answer().failed, Some(WorkError::Step("poisoned".to_owned())));
}

#[test]
fn a_lost_device_ends_the_engine_and_everybody_is_told() {
    let settings = TextEngineSettings { max_concurrent: 1, ..TextEngineSettings::default() };
    let mut rig = Rig::new(Script::Answer(words("x")), settings);
    let clients = [rig.submit(prompt("one")), rig.submit(prompt("two"))];
    rig.control.fail_next(DecoderError::Fatal("gone".to_owned()));
    assert_eq!(rig.engine.step(), Err(EngineError::DeviceLost("gone".to_owned())));
    for client in clients {
        assert!(matches!(client.answer().failed, Some(WorkError::Step(_))));
    }
}

#[test]
fn a_long_prompt_does_not_stall_an_answer() {
    let step_budget = StepBudget { prefill_alone: 50, prefill_beside_decode: 10 };
    let settings = TextEngineSettings { step_budget, ..TextEngineSettings::default() };
    let mut rig = Rig::new(Script::Answer(words("abcdefghij")), settings);
    let short = rig.submit(prompt("s"));
    rig.engine.step().unwrap();
    let long = rig.submit(prompt(&"l".repeat(60)));
    rig.run();
    assert_eq!((short.answer().text, long.answer().text), ("abcdefghij".to_owned(), "abcdefghij".to_owned()));
    let beside: Vec<_> = rig.control.batches().into_iter().skip(1).take(6).collect();
    assert_eq!(beside, vec![vec![1, 10]; 6], "every step decoded while the prompt was evaluated");
}

#[test]
fn too_many_waiting_are_refused() {
    let settings = TextEngineSettings { max_waiting: 1, ..TextEngineSettings::default() };
    let mut rig = Rig::new(Script::Answer(words("x")), settings);
    let _first = rig.submit(prompt("one"));
    assert_eq!(rig.submit(prompt("two")).answer().failed, Some(WorkError::QueueFull(1)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Batch composition and the way prompts are cut change no answer.
    #[test]
    fn answers_do_not_depend_on_the_batch(
        requests in proptest::collection::vec(("[a-z]{1,40}", any::<u64>(), 1_usize..30, 0_u64..3), 1..7),
        max_concurrent in 1_usize..5, prefill_alone in 1_usize..60, prefill_beside_decode in 1_usize..30,
    ) {
        let works: Vec<Generate> = requests.iter().map(|(text, seed, max_tokens, choice)| Generate {
            sampling: SamplingParams {
                seed: *seed, temperature: 0.9, top_p: 0.9, frequency_penalty: 0.3, repetition_penalty: 1.1,
                ..SamplingParams::default()
            },
            max_tokens: Some(*max_tokens),
            choice: *choice,
            ..prompt(text)
        }).collect();
        let alone: Vec<String> = works.iter().map(|work| {
            Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work.clone()).text
        }).collect();
        let step_budget = StepBudget { prefill_alone, prefill_beside_decode };
        let settings = TextEngineSettings { max_concurrent, step_budget, ..TextEngineSettings::default() };
        let mut rig = Rig::new(Script::Hash(128), settings);
        let mut clients = Vec::new();
        for (index, work) in works.into_iter().enumerate() {
            clients.push(rig.submit(work));
            for _ in 0..index {
                rig.engine.step().unwrap();
            }
        }
        rig.run();
        let together: Vec<String> = clients.iter().map(|client| client.answer().text).collect();
        prop_assert_eq!(alone, together);
        prop_assert!(rig.control.batches().iter().all(|batch| batch.len() <= max_concurrent));
    }
}
