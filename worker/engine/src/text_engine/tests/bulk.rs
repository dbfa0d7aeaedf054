//! Bulk work gives its place and its steps to what is more important, and its answer stays the same.

use super::*;

const WORDS: &str = "one two three four five six seven eight nine ten";

fn of(priority: Priority, text: &str) -> Generate {
    Generate { priority, ..prompt(text) }
}

/// Steps until this client's answer is whole.
fn until_done(rig: &mut Rig, client: &Client) -> Answer {
    let mut whole = Answer::default();
    while whole.finished.is_none() && whole.failed.is_none() {
        assert_eq!(rig.engine.step().unwrap(), Progress::Stepped);
        let more = client.answer();
        whole.text += &more.text;
        (whole.finished, whole.failed) = (more.finished, more.failed);
    }
    whole
}

#[test]
fn rc_26_bulk_work_gives_its_place_and_goes_on_behind_it() {
    let settings = TextEngineSettings { max_concurrent: 1, ..TextEngineSettings::default() };
    let hashed = || Rig::new(Script::Hash(128), settings);
    let of = |priority, text: &str| Generate { max_tokens: Some(30), ignore_eos: true, ..of(priority, text) };
    let alone = |text: &str| hashed().answer(of(Priority::NORMAL, text)).text;
    let (bulk_alone, urgent_alone) = (alone("?"), alone("!"));
    let mut rig = hashed();
    let bulk = rig.submit(of(Priority::BATCH, "?"));
    for _ in 0..3 {
        rig.engine.step().unwrap();
    }
    let early = bulk.answer();
    assert!(early.finished.is_none() && !early.text.is_empty(), "it has begun: {early:?}");
    let urgent = rig.submit(of(Priority::NORMAL, "!"));
    assert_eq!(until_done(&mut rig, &urgent).text, urgent_alone);
    let meanwhile = bulk.answer();
    assert_eq!((meanwhile.text.as_str(), meanwhile.finished.is_none()), ("", true), "it has waited");
    let rest = until_done(&mut rig, &bulk);
    assert_eq!(early.text + &rest.text, bulk_alone);
    rig.run();
}

#[test]
fn rc_26_bulk_work_beside_important_work_takes_part_in_few_steps_and_in_some() {
    let settings = TextEngineSettings { max_concurrent: 2, ..TextEngineSettings::default() };
    let long = WORDS.repeat(5);
    let mut rig = Rig::new(Script::Answer(words(&long)), settings);
    let bulk = rig.submit(of(Priority::LOWEST, "?"));
    rig.engine.step().unwrap();
    let urgent = rig.submit(of(Priority::NORMAL, "!"));
    let whole = until_done(&mut rig, &urgent);
    let beside = bulk.answer();
    assert!(beside.finished.is_none(), "{beside:?}");
    let (bulk_words, urgent_words) = (beside.text.split(' ').count(), whole.text.split(' ').count());
    assert!(bulk_words * 8 < urgent_words && bulk_words > 1, "{bulk_words} of {urgent_words}");
    rig.run();
}

#[test]
fn rc_26_the_more_important_are_let_in_first() {
    let settings = TextEngineSettings { max_concurrent: 1, ..TextEngineSettings::default() };
    let mut rig = Rig::new(Script::Answer(words(WORDS)), settings);
    let first = rig.submit(of(Priority::NORMAL, "1"));
    let later = rig.submit(of(Priority::NORMAL, "2"));
    let urgent = rig.submit(of(Priority::INTERACTIVE, "3"));
    until_done(&mut rig, &urgent);
    assert!(later.answer().finished.is_none());
    until_done(&mut rig, &first);
    until_done(&mut rig, &later);
}
