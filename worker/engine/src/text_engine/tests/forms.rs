//! Answers held to a form, among others: late masks, shared prefixes and lost blocks.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::memory::{cached, rig, salted, text};
use super::*;
use crate::constraint::{CompiledGrammar, Grammar, GrammarCompiler};

/// Only a failure takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&byte_vocabulary(), Arc::new(MaskThreads::start().unwrap())).unwrap()
}

fn schema() -> Grammar {
    let words =
        serde_json::json!({"type": "array", "items": {"enum": ["ab", "cde", "f"]}, "minItems": 9, "maxItems": 9});
    Grammar::JsonSchema(words.to_string())
}

fn held(work: Generate, grammar: &CompiledGrammar) -> Generate {
    Generate { grammar: Some(grammar.clone()), ..work }
}

fn alone(work: &Generate) -> Answer {
    Rig::new(Script::Hash(128), TextEngineSettings::default()).answer(work.clone())
}

fn assert_has_form(answer: &Answer) {
    let words: Vec<String> = serde_json::from_str(&answer.text).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    assert_eq!((words.len(), reason(answer)), (9, FinishReason::Stop), "{answer:?}");
}

#[test]
fn en_6_late_masks_hold_up_no_other_answer() {
    let compiler = compiler();
    let grammar = compiler.compile(&Grammar::Regex("[xy]{3}".into())).unwrap();
    let mut rig = Rig::saying("a quick brown fox");
    let late = compiler.threads().hold();
    let bound = rig.submit(held(prompt("bound"), &grammar));
    let free = rig.submit(prompt("free"));
    let mut free_answer = Answer::default();
    while free_answer.finished.is_none() {
        assert_eq!(rig.engine.step().unwrap(), Progress::Stepped);
        let more = free.answer();
        free_answer.text += &more.text;
        free_answer.finished = more.finished;
    }
    assert_eq!(free_answer.text, "a quick brown fox");
    assert_eq!(bound.answer().text, "", "it waits for its mask");
    assert!(rig.control.batches()[1..].iter().all(|batch| *batch == [1]), "{:?}", rig.control.batches());
    drop(late);
    rig.run();
    let answer = bound.answer();
    assert!(answer.text.len() == 3 && answer.text.chars().all(|c| "xy".contains(c)), "{answer:?}");
}

#[test]
fn en_6_a_mask_is_computed_while_the_decoder_runs() {
    let compiler = compiler();
    let grammar = compiler.compile(&schema()).unwrap();
    let mut decoder = FakeDecoder::new(Script::Hash(128), 200);
    let permits = decoder.gated();
    let mut rig = Rig::over(decoder, TextEngineSettings::default());
    let client = rig.submit(held(prompt("hi"), &grammar));
    let control = rig.control.clone();
    permits.send(()).unwrap();
    let engine = std::thread::spawn(move || rig.run());
    // The mask behind the first token is done before the step that evaluates the token.
    compiler.threads().wait_beyond(1, PATIENCE);
    assert!(compiler.threads().done() > 1, "no mask without a step");
    assert_eq!(control.batches().len(), 1, "the second step has not begun");
    drop(permits);
    engine.join().unwrap();
    assert_has_form(&client.answer());
}

#[test]
fn en_6_a_form_holds_behind_a_prefix_that_was_found() {
    let grammar = compiler().compile(&schema()).unwrap();
    let work = held(prompt(&text(1, 100)), &grammar);
    let (alone, mut rig) = (alone(&work), rig(50, 4));
    for known in [0, 99] {
        let answer = rig.ask(salted(work.clone(), "me"));
        assert_eq!((cached(&answer), &answer.text), (known, &alone.text));
        assert_has_form(&answer);
    }
}

#[test]
fn en_6_answers_that_lose_their_blocks_keep_to_their_form() {
    let compiler = compiler();
    let grammar = compiler.compile(&schema()).unwrap();
    let sampling = |seed| SamplingParams { seed, temperature: 1.0, ..SamplingParams::default() };
    let work = |number: usize| {
        held(Generate { sampling: sampling(number as u64), logprobs: Some(1), ..prompt(&text(number, 30)) }, &grammar)
    };
    let alone: Vec<Answer> = (0..6).map(|number| alone(&work(number))).collect();
    // A sequence takes three blocks.
    let mut rig = rig(6, 6);
    let clients: Vec<Client> = (0..6).map(|number| rig.submit(work(number))).collect();
    // Those that lost their blocks behind some tokens of their answer: the state of their form is not the first one.
    let (mut lost, prompt) = (BTreeSet::new(), work(0).prompt.len());
    while rig.engine.step().unwrap() == Progress::Stepped {
        let begun = rig.engine.waiting.iter().filter(|waiting| waiting.tokens().len() > prompt + 1);
        lost.extend(begun.map(RunningSequence::id));
    }
    rig.run();
    assert!(lost.len() > 1, "{lost:?} of {:?}", rig.engine.activity.totals());
    for (client, alone) in clients.iter().zip(&alone) {
        let answer = client.answer();
        assert_has_form(&answer);
        assert_eq!((&answer.text, &answer.logprobs), (&alone.text, &alone.logprobs));
    }
}

#[test]
fn en_6_an_answer_that_waits_for_its_mask_may_lose_its_blocks() {
    let compiler = compiler();
    let grammar = compiler.compile(&schema()).unwrap();
    let mut rig = rig(4, 4);
    let late = compiler.threads().hold();
    let free = rig.submit(Generate { max_tokens: Some(60), ignore_eos: true, ..prompt(&text(1, 30)) });
    let bound = rig.submit(held(prompt(&text(2, 40)), &grammar));
    while rig.engine.activity.totals().preempted == 0 {
        assert_eq!(rig.engine.step().unwrap(), Progress::Stepped);
    }
    assert_eq!(rig.engine.waiting.front().map(RunningSequence::id), Some(SequenceId(2)));
    drop(late);
    rig.run();
    assert_eq!(free.answer().finished.unwrap().usage.completion_tokens, 60);
    let answer = bound.answer();
    assert_has_form(&answer);
    assert_eq!(answer.text, alone(&held(prompt(&text(2, 40)), &grammar)).text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Neither neighbours nor what is cached change an answer with a form, however late its masks are.
    #[test]
    fn en_6_forms_do_not_depend_on_the_batch(
        requests in proptest::collection::vec((0_usize..3, 0_usize..70, 1_usize..40, any::<bool>(), 0_u8..3), 1..9),
        max_concurrent in 1_usize..5, blocks in 6_usize..14,
    ) {
        static GRAMMAR: LazyLock<CompiledGrammar> = LazyLock::new(|| compiler().compile(&schema()).unwrap());
        let works: Vec<Generate> = requests.iter().map(|(topic, shared, own, is_bound, caller)| {
            let words = format!("{}{}", &text(*topic, 70)[..*shared], text(own + 40, *own));
            let work = Generate { max_tokens: Some(50), ..prompt(&words) };
            let work = if *is_bound { held(work, &GRAMMAR) } else { work };
            if *caller == 0 { work } else { salted(work, if *caller == 1 { "a" } else { "b" }) }
        }).collect();
        let alone: Vec<String> = works.iter().map(|work| alone(work).text).collect();
        let mut rig = rig(blocks, max_concurrent);
        let clients: Vec<Client> = works.into_iter().map(|work| rig.submit(work)).collect();
        rig.run();
        let together: Vec<String> = clients.iter().map(|client| client.answer().text).collect();
        prop_assert_eq!(alone, together);
    }
}
