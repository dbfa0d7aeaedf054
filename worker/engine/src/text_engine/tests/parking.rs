//! Blocks that one engine gives out and another takes: the same answers, less computed.

use super::memory::{cached, rig, salted, text};
use super::*;
use crate::adapter::LoadedAdapter;
use crate::text_engine::parking::{NotRestored, RestoredBlocks};

/// The bodies of all blocks, the hottest first, and how many tokens they have.
fn parked(rig: &mut Rig) -> (Vec<Vec<u8>>, usize) {
    let (mut bodies, mut tokens, mut blocks) = (Vec::new(), 0, rig.engine.parked_blocks());
    while let Some((count, body)) = rig.engine.take_out(&mut blocks).unwrap() {
        bodies.push(body);
        tokens += count;
    }
    (bodies, tokens)
}

/// Puts as many of the bodies in as there is room for. Returns how many that was.
fn restore(rig: &mut Rig, bodies: &[Vec<u8>]) -> usize {
    let mut restored = RestoredBlocks::default();
    let refused = bodies.iter().find_map(|body| rig.engine.put_in(&mut restored, body).err());
    assert!(matches!(refused, None | Some(NotRestored::NoRoom)), "{refused:?}");
    let blocks = restored.blocks();
    rig.engine.settle(restored);
    assert_eq!(rig.engine.kv.usage().used, 0);
    blocks
}

fn question(number: usize, len: usize) -> Generate {
    Generate { max_tokens: Some(20), ignore_eos: true, ..prompt(&text(number, len)) }
}

#[test]
fn en_3_a_conversation_goes_on_in_another_engine_with_the_same_tokens() {
    let mut first = rig(50, 4);
    let questions = [(1, "me"), (2, "me"), (1, "you"), (3, "them")];
    for (number, caller) in questions {
        first.ask(salted(question(number, 90), caller));
    }
    let (bodies, tokens) = parked(&mut first);
    assert_eq!(tokens, 4 * 109, "the last token of an answer is not evaluated");
    let mut alone = rig(50, 4);
    let mut second = rig(50, 4);
    assert_eq!(restore(&mut second, &bodies), bodies.len());
    assert_eq!(second.engine.kv.usage().cached, first.engine.kv.usage().cached);
    // One after the other, and all at once.
    for (number, caller) in questions {
        let answer = second.ask(salted(question(number, 90), caller));
        assert_eq!((cached(&answer), &answer.text), (89, &alone.ask(question(number, 90)).text));
    }
    let stranger = second.ask(salted(question(2, 90), "you"));
    assert_eq!(cached(&stranger), 0, "another caller finds nothing");
    let mut third = rig(50, 4);
    restore(&mut third, &bodies);
    let clients = questions.map(|(number, caller)| third.submit(salted(question(number, 90), caller)));
    third.run();
    for (client, (number, _)) in clients.iter().zip(questions) {
        let answer = client.answer();
        assert_eq!((cached(&answer), &answer.text), (89, &alone.ask(question(number, 90)).text));
    }
}

#[test]
fn en_3_states_come_back_with_their_blocks() {
    let with_states = || {
        let settings = TextEngineSettings { max_concurrent: 4, ..TextEngineSettings::default() };
        Rig::over(FakeDecoder::new(Script::Hash(128), 200).with_blocks(50).with_states(), settings)
    };
    let mut first = with_states();
    let answer = first.ask(salted(question(1, 90), "me"));
    let next = |answer: &Answer| prompt(&format!("{}{}{}", text(1, 90), answer.text, text(2, 9)));
    let (bodies, _) = parked(&mut first);
    let mut second = with_states();
    restore(&mut second, &bodies);
    let (here, there) = (first.ask(salted(next(&answer), "me")), second.ask(salted(next(&answer), "me")));
    assert!(cached(&here) >= 64, "{here:?}");
    assert_eq!((cached(&there), there.text), (cached(&here), here.text));
}

#[test]
fn en_3_the_hottest_blocks_come_first_and_every_beginning_is_whole() {
    let mut first = rig(50, 4);
    for number in [1, 2, 3, 1] {
        first.ask(salted(question(number, 90), "me"));
    }
    let (bodies, _) = parked(&mut first);
    // Room for the last conversation and a half.
    let mut second = rig(6, 4);
    assert_eq!(restore(&mut second, &bodies), 6);
    second.engine.info.context_length = 200;
    let known = |rig: &mut Rig, number: usize| {
        cached(&rig.ask(Generate { max_tokens: Some(0), ..salted(question(number, 90), "me") }))
    };
    assert_eq!((known(&mut second, 1), known(&mut second, 2)), (89, 0));
    // Blocks beyond the room are dropped, and those of an interrupted row are used.
    for count in 0..bodies.len() {
        let mut third = rig(50, 4);
        assert_eq!(restore(&mut third, &bodies[..count]), count);
        assert_eq!(third.ask(salted(question(1, 90), "me")).text, first.ask(question(1, 90)).text);
    }
}

#[test]
fn en_3_nothing_is_dropped_for_parked_blocks_and_none_is_there_twice() {
    let mut first = rig(50, 4);
    first.ask(salted(question(1, 90), "me"));
    let (bodies, _) = parked(&mut first);
    let before = first.engine.kv.usage();
    assert_eq!(restore(&mut first, &bodies), bodies.len());
    assert_eq!(first.engine.kv.usage(), before, "all of them were there");
    let mut full = rig(4, 4);
    full.ask(salted(question(2, 90), "me"));
    assert_eq!(restore(&mut full, &bodies), 0, "there is no free block");
    assert_eq!(cached(&full.ask(salted(Generate { max_tokens: Some(0), ..question(2, 90) }, "me"))), 89);
    // A device with less memory than was planned.
    let mut short = rig(50, 4);
    short.control.most_blocks(2);
    assert_eq!(restore(&mut short, &bodies), 2);
}

#[test]
fn en_3_adapters_are_told_apart_by_their_files() {
    let adapter = |digest: Option<u64>| {
        let adapter = LoadedAdapter::new(Arc::new(()), 0, Vec::new());
        Arc::new(match digest {
            Some(digest) => adapter.of_files(digest),
            None => adapter,
        })
    };
    let ask = |rig: &mut Rig, adapter: &Arc<LoadedAdapter>| {
        let answer = rig.ask(salted(Generate { adapter: Some(Arc::clone(adapter)), ..question(1, 90) }, "me"));
        (cached(&answer), answer.text)
    };
    let mut first = rig(50, 4);
    let (one, unknown) = (adapter(Some(77)), adapter(None));
    let said = ask(&mut first, &one).1;
    ask(&mut first, &unknown);
    let (bodies, tokens) = parked(&mut first);
    assert_eq!(tokens, 109, "an adapter without a lasting number is not parked");
    let mut second = rig(50, 4);
    restore(&mut second, &bodies);
    assert_eq!(ask(&mut second, &adapter(Some(78))).0, 0, "other files");
    assert_eq!(ask(&mut second, &adapter(Some(77))), (89, said));
}

#[test]
fn en_3_bodies_that_make_no_sense_change_nothing() {
    let mut first = rig(50, 4);
    first.ask(salted(question(1, 90), "me"));
    let (bodies, _) = parked(&mut first);
    let mut second = rig(50, 4);
    let mut restored = RestoredBlocks::default();
    assert!(second.engine.put_in(&mut restored, &bodies[1]).is_err(), "the block before it is not there");
    assert!(second.engine.put_in(&mut restored, b"").is_err());
    let end = bodies[0].len() - 35 * 8;
    let mut unknown = bodies[0].clone();
    unknown[end - 2..end].copy_from_slice(&[9, 9]);
    let refused = second.engine.put_in(&mut restored, &unknown);
    assert_eq!(refused, Err(NotRestored::Malformed("a token is outside the vocabulary")));
    let head = &bodies[0][..end];
    assert!(matches!(second.engine.put_in(&mut restored, head), Err(NotRestored::Refused(_))));
    second.engine.settle(restored);
    assert_eq!((second.engine.kv.usage().cached, second.control.blocks()), (0, 0));
    assert_eq!(second.ask(salted(question(1, 90), "me")).text, first.ask(question(1, 90)).text);
}
