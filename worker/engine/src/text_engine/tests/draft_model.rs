//! A second model writes drafts: answers are those without it, to the bit, and its right tokens save steps (EN-8).

use super::drafts::{usage, work};
use super::memory::salted;
use super::*;

/// An engine of this script whose draft model has another, and blocks of its own.
fn rig(script: Script, draft: FakeDecoder, (blocks, at_once): (usize, usize), drafts: DraftUse) -> (Rig, FakeControl) {
    let decoder = FakeDecoder::new(script, 200).with_blocks(blocks).same_in_any_step();
    let settings = TextEngineSettings { max_concurrent: at_once, drafts, ..TextEngineSettings::default() };
    let mut rig = Rig::over(decoder, settings);
    let control = draft.control();
    rig.engine = rig.engine.with_draft_model(Box::new(draft)).unwrap();
    (rig, control)
}

fn long(text: &str) -> Generate {
    Generate { max_tokens: Some(100), ignore_eos: true, ..prompt(text) }
}

#[test]
fn en_8_a_draft_model_that_is_right_saves_steps() {
    // No token of this script repeats what was before, so that all drafts are the model's.
    let draft = FakeDecoder::new(Script::Hash(200), 200);
    let (mut rig, control) = rig(Script::Hash(200), draft, (50, 2), DraftUse::Always);
    let clients = [rig.submit(long("a first")), rig.submit(long("another one"))];
    rig.run();
    let steps = rig.control.batches().len();
    for client in clients {
        let used = usage(&client.answer());
        assert_eq!(used.completion_tokens, 100);
        // All that it writes is right, which needs the same tokens in its blocks as in the first model's.
        assert_eq!(used.accepted_tokens, used.drafted_tokens, "{used:?}");
        assert!(used.accepted_tokens > 80, "{used:?}");
    }
    assert!(steps < 20, "{steps}");
    assert_eq!(control.blocks(), 0, "its blocks are free when no sequence is known by a salt");
}

#[test]
fn en_8_a_conversation_that_goes_on_is_not_read_again_by_the_draft_model() {
    let draft = FakeDecoder::new(Script::Hash(200), 200);
    let (mut rig, control) = rig(Script::Hash(200), draft, (50, 1), DraftUse::Always);
    let begin = "b".repeat(90);
    let client = rig.submit(salted(Generate { max_tokens: Some(20), ..long(&begin) }, "me"));
    rig.run();
    assert_eq!(usage(&client.answer()).completion_tokens, 20);
    let before = control.batches().len();
    let read = |from: usize| control.batches()[from..].iter().flatten().copied().max().unwrap_or_default();
    assert!(read(0) > 60);
    let client = rig.submit(salted(Generate { max_tokens: Some(20), ..long(&(begin + " and more")) }, "me"));
    rig.run();
    let used = usage(&client.answer());
    assert_eq!(used.accepted_tokens, used.drafted_tokens, "{used:?}");
    assert!(used.accepted_tokens > 10 && read(before) < 60, "{used:?} {}", read(before));
}

#[test]
fn en_8_a_draft_model_of_a_short_context_reads_the_end_alone() {
    let draft = FakeDecoder::new(Script::Answer(words("xyz")), 64);
    let (mut rig, control) = rig(Script::Hash(200), draft, (50, 1), DraftUse::Always);
    let client = rig.submit(long(&"c".repeat(95)));
    rig.run();
    let used = usage(&client.answer());
    assert!(used.completion_tokens == 100 && used.drafted_tokens > 0, "{used:?}");
    assert!(!control.batches().is_empty());
}

#[test]
fn en_8_a_draft_model_that_fails_is_left_alone_and_answers_go_on() {
    let of = |error: DecoderError| {
        let draft = FakeDecoder::new(Script::Hash(200), 200);
        let (mut rig, control) = rig(Script::Hash(200), draft, (50, 1), DraftUse::Always);
        control.fail_next(error);
        let client = rig.submit(long("fail"));
        rig.run();
        (usage(&client.answer()), control.batches().len())
    };
    let (used, asked) = of(DecoderError::Step("no".to_owned()));
    assert_eq!((used.completion_tokens, used.drafted_tokens, asked), (100, 0, 1));
    let (used, asked) = of(DecoderError::OutOfMemory("no".to_owned()));
    assert!(used.completion_tokens == 100 && used.drafted_tokens > 0 && asked > 1, "memory may be there again");
    let draft = FakeDecoder::new(Script::Hash(200), 200);
    let (mut rig, control) = rig(Script::Hash(200), draft, (50, 1), DraftUse::Always);
    control.fail_next(DecoderError::Fatal("gone".to_owned()));
    rig.submit(long("gone"));
    let ended = (0..5).find_map(|_| rig.engine.step().err());
    assert_eq!(ended, Some(EngineError::DeviceLost("the device failed: gone".to_owned())));
}

#[test]
fn en_8_models_that_cannot_draft_are_refused() {
    let engine = |decoder: FakeDecoder| Rig::over(decoder, TextEngineSettings::default()).engine;
    let plain = || FakeDecoder::new(Script::Hash(9), 200);
    assert!(engine(plain()).with_draft_model(Box::new(plain())).is_err(), "logits that depend on the step");
    let refused = engine(plain().same_in_any_step()).with_draft_model(Box::new(plain().with_states()));
    assert!(refused.err().is_some_and(|why| why.contains("states")));
}

#[test]
fn en_8_a_client_that_leaves_takes_what_the_draft_model_has_of_it() {
    let draft = FakeDecoder::new(Script::Hash(200), 200);
    let (mut rig, control) = rig(Script::Hash(200), draft, (50, 2), DraftUse::Always);
    let client = rig.submit(long("leaves"));
    let other = rig.submit(long("stays"));
    for _ in 0..4 {
        rig.engine.step().unwrap();
    }
    assert!(control.blocks() > 0);
    client.closed.store(true, Ordering::Relaxed);
    rig.run();
    assert_eq!(usage(&other.answer()).completion_tokens, 100);
    assert_eq!(control.blocks(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A draft model that is often right, few blocks for both models, and sequences that lose theirs in the middle.
    #[test]
    fn en_8_answers_with_a_draft_model_are_those_without(
        tokens in 2_u32..5, other in 2_u32..5, blocks in 5_usize..14, for_drafts in 2_usize..12, at_once in 1_usize..5,
        first in 0_usize..20, cached: bool, short in 20_usize..300,
    ) {
        let of = |drafts| {
            let draft = FakeDecoder::new(Script::Hash(other), 200).with_blocks(for_drafts).with_longest_short(short);
            let (mut rig, control) = rig(Script::Hash(tokens), draft, (blocks, at_once), drafts);
            let asked = (first..first + 6).map(|number| {
                let work = work(number, None);
                if cached { salted(work, "me") } else { work }
            });
            let clients: Vec<Client> = asked.map(|work| rig.submit(work)).collect();
            rig.run();
            (clients.iter().map(Client::answer).collect::<Vec<Answer>>(), control.batches().len())
        };
        let ((plain, unasked), (drafted, _)) = (of(DraftUse::Never), of(DraftUse::Always));
        prop_assert_eq!(unasked, 0);
        for (plain, drafted) in plain.iter().zip(&drafted) {
            prop_assert_eq!(&plain.failed, &None);
            prop_assert_eq!((&plain.text, &plain.logprobs), (&drafted.text, &drafted.logprobs));
            prop_assert_eq!(usage(plain).completion_tokens, usage(drafted).completion_tokens);
            prop_assert!(usage(drafted).accepted_tokens <= usage(drafted).drafted_tokens);
        }
    }
}
