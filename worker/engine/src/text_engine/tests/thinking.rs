//! Thoughts before an answer, and budgets that end them (RC-23).

use super::*;
use crate::text::{ChannelPlan, SPELLED_ENDING, ThinkingPlan, ThinkingTags};

/// Tokens of a text in which `{` and `}` are the tags, and `.` ends the turn.
fn tokens(text: &str) -> Vec<u32> {
    let token = |byte| match byte {
        b'{' => 260,
        b'}' => 261,
        b'.' => 259,
        byte => u32::from(byte),
    };
    text.bytes().map(token).collect()
}

fn thinking(work: Generate, budget: Option<u32>) -> Generate {
    let tags = ThinkingTags::of(&byte_tokenizer()).unwrap();
    Generate { thinking: Some(ThinkingPlan { tags, budget }), ..work }
}

fn says(script: &str, work: Generate) -> Answer {
    Rig::new(Script::Answer(tokens(script)), TextEngineSettings::default()).answer(work)
}

fn parts(answer: &Answer) -> (&str, &str) {
    (&answer.thoughts, &answer.text)
}

#[test]
fn rc_23_thoughts_come_apart_from_the_answer_without_the_white_space_between() {
    let answer = says("{\nhm hm\n}\n\nYes, é.", thinking(prompt("hi"), None));
    assert_eq!(parts(&answer), ("hm hm", "Yes, é"));
    let usage = answer.finished.unwrap().usage;
    assert_eq!((usage.completion_tokens, usage.thought_tokens), (2 + 7 + 2 + 7 + 1, 7));
    // Without a thinking plan everything is text.
    assert_eq!(parts(&says("{hm}yes.", prompt("hi"))), ("", "<think>hm</think>yes"));
}

#[test]
fn rc_23_a_used_up_budget_ends_the_thoughts_and_the_answer_follows() {
    // The decoder's script continues while four tokens are forced: a line break, the tag, an empty line.
    let answer = says("{abcdefghi.", thinking(prompt("hi"), Some(2)));
    assert_eq!(parts(&answer), ("ab", "ghi"));
    let finished = answer.finished.unwrap();
    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Stop, 1 + 2 + 4 + 3 + 1));
    assert_eq!(finished.usage.thought_tokens, 2);
    assert_eq!(parts(&says("{abcdefghi.", thinking(prompt("hi"), Some(0)))), ("", "efghi"));
    assert_eq!(parts(&says("{ab}cdefghi.", thinking(prompt("hi"), Some(3)))), ("ab", "cdefghi"));
    let cut = says("{abcdefghi.", thinking(Generate { max_tokens: Some(5), ..prompt("hi") }, Some(2)));
    assert_eq!((parts(&cut), reason(&cut)), (("ab", ""), FinishReason::Length));
}

#[test]
fn stop_strings_and_logprobs_are_about_the_answer() {
    let stop = vec!["b".to_owned(), "\n\n".to_owned()];
    let work = Generate { stop, logprobs: Some(0), ..prompt("hi") };
    let answer = says("{abcdefghib.", thinking(work, Some(2)));
    assert_eq!((parts(&answer), reason(&answer)), (("ab", "ghi"), FinishReason::Stop));
    let told: String = answer.logprobs.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(told, "ghi");
}

/// A model whose vocabulary has no tags spells them out.
fn spelled(script: &str, budget: Option<u32>, work: Generate) -> Answer {
    // The fixture has the tag as a token too.
    let plan =
        |budget| ChannelPlan { ending: SPELLED_ENDING.bytes().map(u32::from).collect(), is_named: false, budget };
    says(script, Generate { spelled_thoughts: true, channels: budget.map(plan), ..work })
}

#[test]
fn rc_23_thoughts_that_are_spelled_out_come_apart_and_keep_to_their_budget() {
    let answer = spelled("<think>\nhm hm\n</think>\n\n<response>Yes, é</response>.", None, prompt("hi"));
    assert_eq!((parts(&answer), reason(&answer)), (("hm hm", "Yes, é"), FinishReason::Stop));
    // The decoder's script goes on while eleven tokens are forced.
    let answer = spelled("<think>abcdefghijklmnop.", Some(2), prompt("hi"));
    assert_eq!((parts(&answer), reason(&answer)), (("ab", "nop"), FinishReason::Stop));
    assert_eq!(answer.finished.unwrap().usage.thought_tokens, 2);
    let work = Generate { stop: vec!["d".to_owned()], logprobs: Some(0), ..prompt("hi") };
    let answer = spelled("<think>d</think>abcd.", None, work);
    assert_eq!((parts(&answer), reason(&answer)), (("d", "abc"), FinishReason::Stop));
    assert_eq!(parts(&spelled("no <think>thoughts</think>.", None, prompt("hi"))), ("", "no <think>thoughts</think>"));
    assert_eq!(parts(&says("<think>hm</think>yes.", prompt("hi"))), ("", "<think>hm</think>yes"));
}

/// The decoder's answer depends on every token it was ever given: a forced token that it did not see, or saw twice,
/// shows.
#[test]
fn rc_23_the_model_goes_on_as_if_it_had_ended_its_thoughts_itself() {
    let rig = || Rig::new(Script::Hash(128), TextEngineSettings::default());
    let limit = |max_tokens| Some(max_tokens);
    for budget in 0..6 {
        let begun: Arc<[u32]> = tokens("hi{").into();
        let work = Generate { prompt: Arc::clone(&begun), max_tokens: limit(40), ..prompt("") };
        let forced = rig().answer(thinking(work.clone(), Some(budget)));
        let thought = rig().answer(Generate { max_tokens: limit(budget as usize), ..work.clone() });
        assert_eq!(forced.thoughts, thought.text.trim());
        let said = [&*begun, &tokens(&thought.text), &tokens("\n}\n\n")].concat();
        let rest = Generate { prompt: said.into(), max_tokens: limit(40 - budget as usize - 4), ..prompt("") };
        assert_eq!(forced.text, rig().answer(rest).text.trim_start());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rc_23_budgets_of_others_in_the_batch_change_no_answer(
        requests in proptest::collection::vec(("[a-z]{1,20}", any::<u64>(), 0_u32..12, any::<bool>()), 1..6),
        max_concurrent in 1_usize..4,
    ) {
        let works: Vec<Generate> = requests.iter().map(|(text, seed, budget, thinks)| {
            let mut prompt_tokens = tokens(text);
            prompt_tokens.extend(thinks.then_some(260));
            let sampling = SamplingParams { seed: *seed, temperature: 0.9, frequency_penalty: 0.2, ..SamplingParams::default() };
            let work = Generate { prompt: prompt_tokens.into(), sampling, max_tokens: Some(25), ..prompt("") };
            thinking(work, Some(*budget))
        }).collect();
        let told = |answer: Answer| (answer.thoughts, answer.text, answer.finished.map(|finished| finished.usage));
        // Tags are among the tokens it may choose.
        let script = || Script::Hash(262);
        let alone: Vec<_> =
            works.iter().map(|work| told(Rig::new(script(), TextEngineSettings::default()).answer(work.clone()))).collect();
        let settings = TextEngineSettings { max_concurrent, ..TextEngineSettings::default() };
        let mut rig = Rig::new(script(), settings);
        let clients: Vec<_> = works.into_iter().map(|work| rig.submit(work)).collect();
        rig.run();
        let together: Vec<_> = clients.iter().map(|client| told(client.answer())).collect();
        for ((_, _, usage), (_, _, budget, _)) in together.iter().zip(&requests) {
            prop_assert!(usage.as_ref().is_some_and(|usage| usage.thought_tokens <= *budget as usize));
        }
        prop_assert_eq!(alone, together);
    }
}
