//! Images in prompts: their rows, the blocks that they share, and steps that do not cut them.

use super::memory::{cached, salted, text};
use super::*;
use crate::images::{ImageDigest, ImageTiles, PromptImage};
use model_boss_images::{GridLayout, ImageLayout, Resample, SightFacts};

/// The token at the places of images.
const PLACE: u32 = b'#' as u32;

fn sight(both_ways: bool) -> SightFacts {
    let grid = GridLayout { side: 1, min_pixels: 1, max_pixels: 1, resizes: false, resample: Resample::Bicubic };
    let place = "#".to_owned();
    SightFacts { both_ways, token: PLACE, mark: place.clone(), place, layout: ImageLayout::Grid(grid) }
}

fn rig(both_ways: bool, budget: StepBudget, blocks: usize) -> Rig {
    let settings = TextEngineSettings { max_concurrent: 4, step_budget: budget, ..TextEngineSettings::default() };
    let decoder = FakeDecoder::new(Script::Hash(128), 400).with_blocks(blocks).with_sight(sight(both_ways));
    Rig::over(decoder, settings)
}

fn wide(both_ways: bool) -> Rig {
    rig(both_ways, StepBudget { prefill_alone: 512, prefill_beside_decode: 128 }, 100)
}

/// A request with images of this kind and number of places, each behind some letters.
fn with_images(number: usize, images: &[(u8, usize)]) -> Generate {
    let (mut tokens, mut placed) = (Vec::new(), Vec::new());
    for (at, (kind, places)) in images.iter().enumerate() {
        tokens.extend(text(number + at, 20).bytes().map(u32::from));
        let digest = ImageDigest([u64::from(*kind), 0]);
        let picture = ImageTiles { tiles: Vec::new(), sent: [1, *places], digest };
        let (first, picture) = (tokens.len(), Arc::new(picture));
        placed.push(PromptImage { first, places: *places, grid: [1, *places], picture });
        tokens.extend(std::iter::repeat_n(PLACE, *places));
    }
    tokens.extend(text(9, 9).bytes().map(u32::from));
    let work = Generate { max_tokens: Some(6), ignore_eos: true, ..prompt("") };
    Generate { prompt: tokens.into(), images: placed.into(), ..work }
}

fn tokens(answer: &Answer) -> &str {
    assert!(answer.failed.is_none(), "{:?}", answer.failed);
    &answer.text
}

#[test]
fn em_4_an_answer_follows_the_image_and_not_its_places_alone() {
    let answer = |kind| wide(false).answer(with_images(1, &[(kind, 40)]));
    let (one, other) = (answer(1), answer(2));
    assert_ne!(tokens(&one), tokens(&other), "the same tokens, another image");
    let usage = one.finished.unwrap().usage;
    assert_eq!(usage.prompt_tokens, 20 + 40 + 9, "each place of an image counts as a token");
}

#[test]
fn em_4_blocks_are_shared_by_prompts_with_the_same_image_only() {
    let mut rig = wide(false);
    let work = |kind| salted(with_images(1, &[(kind, 150)]), "me");
    let first = rig.ask(work(1));
    let again = rig.ask(work(1));
    assert_eq!((tokens(&first), cached(&again)), (tokens(&again), 20 + 150 + 8));
    assert_eq!(rig.control.looks().len(), 1, "what is in blocks is not looked at");
    let other = rig.ask(work(2));
    assert_eq!(cached(&other), 20, "the text in front of another image");
    assert_eq!(tokens(&other), tokens(&wide(false).answer(work(2))));
    let stranger = rig.ask(salted(with_images(1, &[(1, 150)]), "you"));
    assert_eq!((cached(&stranger), rig.control.looks().len()), (0, 3), "another caller shares nothing");
}

#[test]
fn em_4_an_image_is_looked_at_once_for_several_answers() {
    let mut rig = wide(false);
    let work = |choice| Generate { choice, ..salted(with_images(1, &[(1, 100), (2, 30)]), "me") };
    let clients = [0, 1, 2].map(|choice| rig.submit(work(choice)));
    rig.run();
    let alone = wide(false).answer(work(0));
    clients.iter().for_each(|client| assert_eq!(tokens(&client.answer()), tokens(&alone)));
    assert_eq!(rig.control.looks().len(), 2);
}

#[test]
fn em_4_pieces_of_a_prompt_cut_images_where_places_see_backwards_only() {
    let small = StepBudget { prefill_alone: 16, prefill_beside_decode: 16 };
    let work = || with_images(1, &[(1, 50), (2, 50)]);
    let whole = wide(false).answer(work());
    let mut pieces = rig(false, small, 100);
    let client = pieces.submit(work());
    pieces.run();
    assert_eq!(tokens(&client.answer()), tokens(&whole));
    assert!(pieces.control.batches().iter().flatten().all(|share| *share <= 16));
    assert_eq!(pieces.control.looks().len(), 2, "once each, for all their pieces");
    // The decoder refuses a piece of an image.
    let mut both_ways = rig(true, small, 100);
    let client = both_ways.submit(work());
    both_ways.run();
    assert_eq!(tokens(&client.answer()), tokens(&whole));
    assert_eq!(both_ways.control.batches().iter().map(|batch| batch[0]).collect::<Vec<_>>()[..5], [16, 4, 50, 16, 4]);
}

#[test]
fn em_4_several_prompts_with_whole_images_take_turns() {
    let small = StepBudget { prefill_alone: 60, prefill_beside_decode: 20 };
    let mut rig = rig(true, small, 100);
    let works: Vec<Generate> = (0..4).map(|number| with_images(number, &[(number as u8, 50)])).collect();
    let clients: Vec<Client> = works.iter().map(|work| rig.submit(work.clone())).collect();
    rig.run();
    for (client, work) in clients.iter().zip(works) {
        assert_eq!(tokens(&client.answer()), tokens(&wide(true).answer(work)));
    }
    let images = |batch: &Vec<usize>| batch.iter().filter(|share| **share >= 50).count();
    assert!(rig.control.batches().iter().all(|batch| images(batch) <= 1), "{:?}", rig.control.batches());
}

#[test]
fn em_4_beside_an_answer_images_are_looked_at_one_by_one() {
    let mut rig = wide(false);
    let writer = rig.submit(Generate { max_tokens: Some(40), ignore_eos: true, ..prompt(&text(1, 30)) });
    for _ in 0..3 {
        rig.engine.step().unwrap();
    }
    let client = rig.submit(with_images(1, &[(1, 20), (2, 20), (3, 20)]));
    rig.run();
    let mut looks = rig.control.looks();
    looks.dedup();
    assert_eq!(looks.len(), 3, "the answer goes on between images");
    assert_eq!(writer.answer().finished.unwrap().usage.completion_tokens, 40);
    assert_eq!(tokens(&client.answer()), tokens(&wide(false).answer(with_images(1, &[(1, 20), (2, 20), (3, 20)]))));
}

#[test]
fn em_4_a_sequence_that_gives_its_blocks_back_finds_its_images_again() {
    // Each needs 6 blocks with its answer, and there are 9.
    let work = |number: usize| Generate { max_tokens: Some(90), ..with_images(number, &[(number as u8, 50)]) };
    let alone: Vec<String> = (1..3).map(|number| wide(true).answer(work(number)).text).collect();
    for both_ways in [false, true] {
        let mut rig = rig(both_ways, StepBudget::default(), 9);
        let clients: Vec<Client> = (1..3).map(|number| rig.submit(work(number))).collect();
        rig.run();
        assert!(rig.engine.activity.totals().preempted > 0);
        for (client, alone) in clients.iter().zip(&alone) {
            assert_eq!(tokens(&client.answer()), alone);
        }
    }
}

#[test]
fn em_4_a_client_that_goes_ends_the_look_at_its_image() {
    let mut rig = wide(false);
    let gone = rig.submit(with_images(1, &[(1, 50)]));
    let stays = rig.submit(with_images(2, &[(2, 50)]));
    gone.closed.store(true, Ordering::Relaxed);
    rig.run();
    assert_eq!(tokens(&stays.answer()), tokens(&wide(false).answer(with_images(2, &[(2, 50)]))));
    assert_eq!(rig.control.looks().len(), 1);
}

#[test]
fn em_4_an_image_that_fails_fails_its_own_request() {
    let mut rig = wide(false);
    rig.control.blind();
    let sees = rig.submit(with_images(1, &[(1, 50)]));
    let reads = rig.submit(Generate { max_tokens: Some(5), ignore_eos: true, ..prompt(&text(1, 30)) });
    rig.run();
    assert!(matches!(sees.answer().failed, Some(WorkError::Step(_))));
    assert_eq!(reads.answer().finished.unwrap().usage.completion_tokens, 5);
}

#[test]
fn em_4_images_without_places_are_refused() {
    let refused = |rig: Rig, work: Generate| assert_eq!(rig.answer(work).failed, Some(WorkError::MisplacedImages));
    let placed = with_images(1, &[(1, 50), (2, 10)]);
    refused(Rig::saying("x"), Generate { prompt: [1; 150].into(), ..placed.clone() });
    refused(wide(false), Generate { prompt: [1; 60].into(), ..placed.clone() });
    let turned: Arc<[PromptImage]> = placed.images.iter().rev().cloned().collect();
    refused(wide(false), Generate { images: turned, ..placed });
}
