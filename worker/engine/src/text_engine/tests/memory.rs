//! Blocks of keys and values: prefixes that are found again, and sequences that share too few blocks.

use super::*;
use crate::adapter::LoadedAdapter;
use crate::kv::CacheSalt;

pub(super) fn salted(work: Generate, caller: &str) -> Generate {
    Generate { cache: Some(CacheSalt::new(caller)), ..work }
}

/// A rig with a budget of blocks; answers depend on every token before them.
pub(super) fn rig(blocks: usize, max_concurrent: usize) -> Rig {
    let settings = TextEngineSettings { max_concurrent, ..TextEngineSettings::default() };
    Rig::over(FakeDecoder::new(Script::Hash(128), 200).with_blocks(blocks), settings)
}

/// A text that no other number gives.
pub(super) fn text(number: usize, len: usize) -> String {
    (0..len).map(|at| char::from(b'a' + ((at * 7 + at / 26 + number * 5) % 26) as u8)).collect()
}

pub(super) fn cached(answer: &Answer) -> usize {
    answer.finished.as_ref().unwrap().usage.cached_tokens
}

impl Rig {
    /// One request by itself.
    pub(super) fn ask(&mut self, work: Generate) -> Answer {
        let client = self.submit(work);
        self.run();
        client.answer()
    }

    fn prompt_tokens(&self) -> u64 {
        self.engine.activity.totals().prompt_tokens
    }
}

#[test]
fn en_1_each_turn_of_a_conversation_evaluates_only_what_is_new() {
    let mut rig = rig(50, 4);
    let (mut said, mut evaluated) = (text(1, 90), 0);
    for turn in 0..4 {
        let work = Generate { max_tokens: Some(10), ignore_eos: true, ..prompt(&said) };
        let alone = Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work.clone());
        let answer = rig.ask(salted(work.clone(), "me"));
        assert_eq!(answer.text, alone.text, "turn {turn}");
        // The last token of an answer was sampled and never evaluated.
        let known = if turn == 0 { 0 } else { said.len() - 10 - 1 };
        assert_eq!(cached(&answer), known, "turn {turn}");
        let now = rig.prompt_tokens();
        assert_eq!(now - evaluated, (said.len() - known) as u64);
        evaluated = now;
        if answer.text.len() == 10 {
            said += &answer.text;
        } else {
            // An answer of special tokens has no text that could be sent again.
            return;
        }
        said += &text(turn + 7, 10);
    }
}

#[test]
fn en_9_keys_of_one_adapter_are_found_for_no_other() {
    // A block of another adapter fails the step, so that a right answer shows that none was used.
    let adapter = || Arc::new(LoadedAdapter::new(Arc::new(()), 0, Vec::new()));
    let (one, same_files) = (adapter(), adapter());
    let work = |adapter: Option<&Arc<LoadedAdapter>>| {
        let work = Generate { max_tokens: Some(20), ignore_eos: true, ..prompt(&text(1, 90)) };
        salted(Generate { adapter: adapter.cloned(), ..work }, "me")
    };
    let mut rig = rig(50, 4);
    let mut answers = Vec::new();
    for (adapter, known) in [(None, 0), (Some(&one), 0), (Some(&same_files), 0), (None, 89), (Some(&one), 89)] {
        let answer = rig.ask(work(adapter));
        assert_eq!(cached(&answer), known, "{adapter:?}");
        answers.push(answer.text);
    }
    assert!(answers[0] == answers[3] && answers[1] == answers[4], "{answers:?}");
    assert!(answers[0] != answers[1] && answers[1] != answers[2], "{answers:?}");
    // Together as alone, also where one computes a prompt that the others begin with.
    let together = [None, Some(&one), None, Some(&same_files), Some(&one)].map(|adapter| rig.submit(work(adapter)));
    rig.run();
    for (client, at) in together.iter().zip([0, 1, 0, 2, 1]) {
        assert_eq!(client.answer().text, answers[at]);
    }
}

#[test]
fn fa_1_a_sequence_is_computed_again_where_its_length_gets_another_class() {
    // A block of the other class fails the step, so that a right answer shows that none was used.
    let settings = TextEngineSettings { max_concurrent: 3, ..TextEngineSettings::default() };
    let decoder = FakeDecoder::new(Script::Hash(128), 400).with_longest_short(100);
    let mut rig = Rig::over(decoder, settings);
    let work = |len: usize| Generate { max_tokens: Some(40), ignore_eos: true, ..prompt(&text(1, len)) };
    let alone = |len| Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work(len)).text;
    // Over the border within the answer, on the long side from the beginning, and never.
    for (len, known) in [(80, 0), (120, 80), (50, 49), (90, 80), (120, 119)] {
        let answer = rig.ask(salted(work(len), "me"));
        assert_eq!((answer.text.clone(), cached(&answer)), (alone(len), known), "{len}");
    }
    let together = [70, 90, 130].map(|len| (len, rig.submit(salted(work(len), "you"))));
    rig.run();
    for (len, client) in together {
        assert_eq!(client.answer().text, alone(len), "{len}");
    }
}

#[test]
fn fa_1_prefixes_are_resumed_where_there_is_a_state() {
    let stateful = || FakeDecoder::new(Script::Hash(128), 200).with_states();
    let mut rig = Rig::over(stateful(), TextEngineSettings::default());
    let work = |len: usize| Generate { max_tokens: Some(8), ignore_eos: true, ..prompt(&text(1, len)) };
    let alone = |len| Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work(len)).text;
    // A fake without the state behind a sequence's past fails the step. The last whole block of a prompt has one, and
    // so has the end of it, which is no use to the same prompt.
    for (len, known) in [(100, 0), (100, 96), (110, 100), (90, 0), (95, 90), (60, 0), (99, 96)] {
        let answer = rig.ask(salted(work(len), "me"));
        assert_eq!((answer.text.clone(), cached(&answer)), (alone(len), known), "{len}");
    }
    let together = [100, 70, 100, 100, 130, 65].map(|len| (len, rig.submit(salted(work(len), "you"))));
    rig.run();
    for (len, client) in together {
        assert_eq!(client.answer().text, alone(len), "{len}");
    }
}

#[test]
fn fa_1_a_sequence_whose_state_is_gone_is_computed_again() {
    let decoder = FakeDecoder::new(Script::Hash(128), 200).with_states();
    let mut rig = Rig::over(decoder, TextEngineSettings { max_concurrent: 3, ..TextEngineSettings::default() });
    let work = |len: usize| Generate { max_tokens: Some(30), ignore_eos: true, ..prompt(&text(1, len)) };
    let clients = [40, 70, 45, 33].map(|len| (len, rig.submit(salted(work(len), "me"))));
    for round in 0.. {
        if rig.engine.step().unwrap() != Progress::Stepped {
            break;
        }
        if round % 7 == 3 {
            rig.control.lose_states();
        }
    }
    for (len, client) in clients {
        let alone = Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work(len));
        assert_eq!(client.answer().text, alone.text, "{len}");
    }
}

#[test]
fn en_1_a_prefix_serves_its_own_caller_until_the_request_says_no() {
    let mut rig = rig(50, 4);
    let work = || Generate { max_tokens: Some(5), ..prompt(&text(1, 100)) };
    let first = rig.ask(salted(work(), "me"));
    assert_eq!((cached(&first), rig.control.copies()), (0, 0));
    let again = rig.ask(salted(work(), "me"));
    assert_eq!((cached(&again), again.text), (99, first.text.clone()));
    assert_eq!(rig.control.copies(), 1, "the block with the last token is its own");
    assert_eq!(cached(&rig.ask(salted(work(), "you"))), 0);
    let alone = rig.ask(work());
    assert_eq!((cached(&alone), alone.text), (0, first.text));
    let logprobs = salted(Generate { prompt_logprobs: true, logprobs: Some(0), ..work() }, "me");
    let answer = rig.ask(logprobs);
    assert_eq!((cached(&answer), answer.prompt_logprobs.len()), (0, 100), "every row was computed");
}

#[test]
fn en_1_several_answers_to_one_prompt_evaluate_it_once() {
    let mut rig = rig(50, 4);
    let work = |choice| {
        let sampling = SamplingParams { seed: 7, ..SamplingParams::default() };
        salted(Generate { choice, sampling, max_tokens: Some(8), ..prompt(&text(1, 150)) }, "me")
    };
    let alone: Vec<String> = (0..4)
        .map(|choice| Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work(choice)).text)
        .collect();
    let clients: Vec<Client> = (0..4).map(|choice| rig.submit(work(choice))).collect();
    rig.run();
    let answers: Vec<Answer> = clients.iter().map(Client::answer).collect();
    assert_eq!(rig.prompt_tokens(), 150 + 3, "one token each for the logits");
    for (answer, (alone, found)) in answers.iter().zip(alone.iter().zip([0, 149, 149, 149])) {
        assert_eq!((&answer.text, cached(answer)), (alone, found));
    }
}

#[test]
fn en_1_what_a_cancelled_sequence_computed_is_found() {
    let mut rig = rig(50, 1);
    let client = rig.submit(salted(prompt(&text(1, 100)), "me"));
    rig.engine.step().unwrap();
    client.closed.store(true, Ordering::Relaxed);
    rig.run();
    assert_eq!(cached(&rig.ask(salted(Generate { max_tokens: Some(1), ..prompt(&text(1, 120)) }, "me"))), 100);
    let client = rig.submit(salted(prompt(&text(2, 100)), "me"));
    rig.engine.step().unwrap();
    rig.engine.cancel(SequenceId(rig.next));
    drop(client);
    assert_eq!(cached(&rig.ask(salted(Generate { max_tokens: Some(1), ..prompt(&text(2, 120)) }, "me"))), 100);
}

#[test]
fn en_2_eight_requests_with_blocks_for_two_end_as_if_alone() {
    let work = |number: usize| Generate {
        sampling: SamplingParams { seed: number as u64, frequency_penalty: 0.4, ..SamplingParams::default() },
        max_tokens: Some(70),
        ignore_eos: true,
        logprobs: Some(1),
        ..prompt(&text(number, 30))
    };
    let alone: Vec<Answer> =
        (0..8).map(|number| Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work(number))).collect();
    for shares in [false, true] {
        // A sequence of 100 tokens takes four blocks.
        let mut rig = rig(8, 8);
        let submit = |number| if shares { salted(work(number), "me") } else { work(number) };
        let clients: Vec<Client> = (0..8).map(|number| rig.submit(submit(number))).collect();
        while rig.engine.step().unwrap() == Progress::Stepped {
            let totals = rig.engine.activity.totals();
            assert!(rig.control.blocks() <= 8 && totals.kv_used_blocks + totals.kv_cached_blocks <= 8, "{totals:?}");
        }
        for (client, alone) in clients.iter().zip(&alone) {
            let answer = client.answer();
            assert_eq!((&answer.text, &answer.failed), (&alone.text, &None));
            assert_eq!(answer.logprobs, alone.logprobs);
            assert_eq!(answer.finished.as_ref().unwrap().reason, FinishReason::Length);
        }
        assert!(rig.engine.activity.totals().preempted > 0, "blocks were short");
        assert_eq!(rig.engine.kv.usage().used, 0);
    }
}

#[test]
fn en_2_the_sequence_that_came_last_gives_its_blocks_back() {
    let mut rig = rig(5, 4);
    let work = |number| Generate { max_tokens: Some(60), ignore_eos: true, ..prompt(&text(number, 40)) };
    let (first, last) = (rig.submit(work(1)), rig.submit(work(2)));
    while rig.engine.activity.totals().preempted == 0 {
        assert_eq!(rig.engine.step().unwrap(), Progress::Stepped);
    }
    let stats = rig.engine.activity.stats();
    assert_eq!((stats.active, stats.waiting), (1, 1));
    assert_eq!(rig.engine.running[0].id(), SequenceId(1));
    // A third one waits behind the one that was sent back.
    let third = rig.submit(work(3));
    assert_eq!(rig.engine.waiting.iter().map(RunningSequence::id).collect::<Vec<_>>(), [SequenceId(2), SequenceId(3)]);
    rig.run();
    for client in [first, last, third] {
        assert_eq!(client.answer().finished.unwrap().usage.completion_tokens, 60);
    }
}

#[test]
fn en_2_a_prompt_that_can_never_fit_is_refused_with_the_true_limit() {
    let mut rig = rig(3, 4);
    assert_eq!(rig.engine.info().context_length, 96);
    let refused = rig.ask(prompt(&text(1, 96))).failed;
    assert_eq!(refused, Some(WorkError::ContextLengthExceeded { prompt: 96, context: 96 }));
    let full = rig.ask(Generate { ignore_eos: true, ..prompt(&text(1, 90)) });
    assert_eq!(full.finished.unwrap().usage.completion_tokens, 6);
}

#[test]
fn en_2_log_probabilities_of_a_prompt_survive_lost_blocks() {
    let step_budget = StepBudget { prefill_alone: 16, prefill_beside_decode: 8 };
    let settings = TextEngineSettings { step_budget, ..TextEngineSettings::default() };
    let asked = Generate { prompt_logprobs: true, logprobs: Some(1), max_tokens: Some(3), ..prompt(&text(2, 90)) };
    let alone = Rig::new(Script::Hash(128), settings).answer(asked.clone());
    let decoder = FakeDecoder::new(Script::Hash(128), 200).with_blocks(6);
    let mut rig = Rig::over(decoder, settings);
    let greedy = rig.submit(Generate { max_tokens: Some(150), ignore_eos: true, ..prompt(&text(1, 30)) });
    let client = rig.submit(asked);
    while rig.engine.activity.totals().preempted == 0 && rig.engine.step().unwrap() == Progress::Stepped {}
    rig.run();
    let answer = client.answer();
    assert_eq!((answer.prompt_logprobs, answer.text), (alone.prompt_logprobs, alone.text));
    assert_eq!(greedy.answer().finished.unwrap().usage.completion_tokens, 150);
}

#[test]
fn en_2_less_memory_than_planned_slows_sequences_down_and_fails_none() {
    let mut rig = rig(50, 4);
    let work = |number| Generate { max_tokens: Some(40), ignore_eos: true, ..prompt(&text(number, 40)) };
    assert_eq!(cached(&rig.ask(salted(work(9), "me"))), 0);
    assert!(rig.control.blocks() > 0, "something is kept");
    rig.control.most_blocks(4);
    let clients: Vec<Client> = (0..4).map(|number| rig.submit(work(number))).collect();
    rig.run();
    for client in clients {
        assert_eq!(client.answer().finished.unwrap().usage.completion_tokens, 40);
    }
    assert!(rig.engine.activity.totals().preempted > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Shared prefixes, small budgets and cancelled neighbours change no answer.
    #[test]
    fn en_1_answers_do_not_depend_on_what_is_cached(
        requests in proptest::collection::vec((0_usize..3, 0_usize..70, 1_usize..60, 1_usize..40, 0_u8..4), 1..12),
        max_concurrent in 1_usize..5, blocks in 7_usize..20, prefill_alone in 1_usize..80,
    ) {
        let works: Vec<Generate> = requests.iter().map(|(topic, shared, own, max_tokens, caller)| {
            // Prompts that begin alike, and turn off at different places.
            let words = format!("{}{}", &text(*topic, 70)[..*shared], text(own + 40, *own));
            let work = Generate { max_tokens: Some(*max_tokens), ..prompt(&words) };
            if *caller == 0 { work } else { salted(work, if *caller == 1 { "a" } else { "b" }) }
        }).collect();
        let alone: Vec<String> = works.iter().map(|work| {
            Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work.clone()).text
        }).collect();
        let step_budget = StepBudget { prefill_alone, prefill_beside_decode: prefill_alone.div_ceil(2) };
        let settings = TextEngineSettings { max_concurrent, step_budget, ..TextEngineSettings::default() };
        let mut rig = Rig::over(FakeDecoder::new(Script::Hash(128), 200).with_blocks(blocks), settings);
        let mut clients = Vec::new();
        for (index, work) in works.into_iter().enumerate() {
            let gone = rig.submit(work.clone());
            clients.push(rig.submit(work));
            for _ in 0..index {
                rig.engine.step().unwrap();
            }
            gone.closed.store(true, Ordering::Relaxed);
        }
        rig.run();
        let together: Vec<String> = clients.iter().map(|client| client.answer().text).collect();
        prop_assert_eq!(alone, together);
    }
}
