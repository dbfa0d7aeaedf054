//! Answers with drafts are those without, to the bit, and take fewer steps (EN-8).

use super::memory::{salted, text};
use super::*;
use crate::constraint::{CompiledGrammar, Grammar, GrammarCompiler};

fn rig(script: Script, (blocks, at_once): (usize, usize), drafts: DraftUse) -> Rig {
    let decoder = FakeDecoder::new(script, 200).with_blocks(blocks).same_in_any_step();
    Rig::over(decoder, TextEngineSettings { max_concurrent: at_once, drafts, ..TextEngineSettings::default() })
}

pub(super) fn usage(answer: &Answer) -> TokenUsage {
    answer.finished.as_ref().unwrap_or_else(|| panic!("{answer:?}")).usage
}

#[test]
fn en_8_what_is_said_again_comes_several_tokens_at_a_time() {
    let said = "abcdefghij ".repeat(8);
    let of = |drafts| {
        let mut rig = rig(Script::Answer(words(&said)), (50, 1), drafts);
        let client = rig.submit(prompt("say"));
        rig.run();
        let totals = rig.engine.activity.totals();
        (client.answer(), rig.control.batches().len(), totals)
    };
    let (plain, steps, totals) = of(DraftUse::Never);
    assert_eq!((plain.text.as_str(), steps), (said.as_str(), said.len() + 1));
    assert_eq!((totals.drafted_tokens, usage(&plain).drafted_tokens), (0, 0));
    let (drafted, fewer, totals) = of(DraftUse::Always);
    assert_eq!(drafted.text, said);
    assert!(fewer < steps / 3, "{fewer} of {steps}");
    let used = usage(&drafted);
    assert_eq!(
        (totals.drafted_tokens, totals.accepted_tokens),
        (used.drafted_tokens as u64, used.accepted_tokens as u64)
    );
    assert!(used.accepted_tokens > said.len() / 2 && used.drafted_tokens >= used.accepted_tokens, "{used:?}");
    assert_eq!(used.completion_tokens, usage(&plain).completion_tokens);
}

#[test]
fn en_8_a_decoder_whose_logits_depend_on_a_step_gets_no_drafts() {
    let said = "abcdefghij ".repeat(4);
    let settings = TextEngineSettings { drafts: DraftUse::Always, ..TextEngineSettings::default() };
    let answer = Rig::new(Script::Answer(words(&said)), settings).answer(prompt("say"));
    assert_eq!((answer.text.as_str(), usage(&answer).drafted_tokens), (said.as_str(), 0));
}

#[test]
fn en_8_a_step_with_which_an_answer_begins_has_no_drafts() {
    let mut rig = rig(Script::Answer(words(&"abcdefghij ".repeat(8))), (50, 2), DraftUse::Always);
    rig.submit(prompt("say"));
    rig.engine.step().unwrap();
    let begun = rig.control.batches().len();
    while rig.control.batches()[begun..].iter().all(|rows| rows[0] == 1) {
        rig.engine.step().unwrap();
    }
    let before = rig.control.batches().len();
    rig.submit(prompt("say what"));
    rig.engine.step().unwrap();
    rig.engine.step().unwrap();
    let steps = &rig.control.batches()[before..];
    assert_eq!(steps[0], [1, "say what".len()]);
    assert!(steps[1][0] > 1, "the draft comes a step later: {steps:?}");
}

/// Some requests, of which each is given a number.
pub(super) fn work(number: usize, grammar: Option<&CompiledGrammar>) -> Generate {
    let sampling = match number % 3 {
        0 => SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        1 => SamplingParams { seed: number as u64, temperature: 1.0, ..SamplingParams::default() },
        _ => SamplingParams { seed: 7, frequency_penalty: 0.3, top_k: 2, ..SamplingParams::default() },
    };
    Generate {
        sampling,
        max_tokens: Some(20 + 13 * (number % 4)),
        ignore_eos: number.is_multiple_of(2),
        logprobs: (number % 4 == 1).then_some(2),
        stop: if number % 5 == 4 { vec!["\u{1}\u{2}\u{1}".to_owned()] } else { Vec::new() },
        grammar: grammar.cloned(),
        ..prompt(&text(number, 30))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Few tokens, so that drafts are right and wrong in turn; few blocks, so that sequences lose them in the middle.
    #[test]
    fn en_8_answers_with_drafts_are_those_without(
        tokens in 2_u32..5, blocks in 5_usize..14, at_once in 1_usize..5, first in 0_usize..20, cached: bool,
        form in 0_usize..3, late in 0_usize..4,
    ) {
        let compiler = GrammarCompiler::new(&byte_vocabulary(), Arc::new(MaskThreads::start().unwrap())).unwrap();
        let grammar = match form {
            0 => None,
            1 => Some(Grammar::Regex("(\\x00|\\x01\\x00?|\\x02){1,40}".into())),
            _ => Some(Grammar::JsonSchema(r#"{"type": "array", "items": {"enum": ["aab", "aba"]}, "maxItems": 6}"#.into())),
        };
        let grammar = grammar.map(|grammar| compiler.compile(&grammar).unwrap());
        let of = |drafts| {
            let script = Script::Hash(if form == 2 { 128 } else { tokens });
            let mut rig = rig(script, (blocks, at_once), drafts);
            let asked = (first..first + 6).map(|number| {
                // Where masks come late, others decode while drafts wait for theirs.
                let work = work(number, grammar.as_ref().filter(|_| late == 0 || number % 3 < 2));
                if cached { salted(work, "me") } else { work }
            });
            let clients: Vec<Client> = asked.map(|work| rig.submit(work)).collect();
            for _ in 0..12 {
                let held = (late > 0).then(|| compiler.threads().hold());
                for _ in 0..late {
                    rig.engine.step().unwrap();
                }
                drop(held);
                rig.engine.step().unwrap();
            }
            rig.run();
            let (totals, answers) = (rig.engine.activity.totals(), clients.iter().map(Client::answer));
            (answers.collect::<Vec<Answer>>(), (totals.drafted_tokens, totals.accepted_tokens))
        };
        let ((plain, _), (drafted, counted)) = (of(DraftUse::Never), of(DraftUse::Always));
        let (all, right) = drafted.iter().map(usage).fold((0, 0), |(all, right), usage| {
            (all + usage.drafted_tokens as u64, right + usage.accepted_tokens as u64)
        });
        prop_assert_eq!((all, right), counted);
        prop_assert!(drafted.iter().map(usage).all(|usage| usage.accepted_tokens <= usage.drafted_tokens));
        for (plain, drafted) in plain.iter().zip(&drafted) {
            prop_assert_eq!(&plain.failed, &None);
            prop_assert_eq!((&plain.text, &plain.logprobs), (&drafted.text, &drafted.logprobs));
            prop_assert_eq!(reason(plain), reason(drafted));
            prop_assert_eq!(usage(plain).completion_tokens, usage(drafted).completion_tokens);
        }
    }
}
