//! The store of states against steps of a layer that counts.

use super::*;
use model_boss_engine::Logits;

/// A state of two numbers: the sum of all tokens, and how many there were.
struct World {
    store: StateStore,
}

impl World {
    fn new(most: usize, every: usize) -> Self {
        let layout = StateLayout { layers: vec![0..0, 0..2], len: 2 };
        Self { store: StateStore::new(layout, StateLimits { most, every }) }
    }

    fn begin<'a>(&mut self, steps: &[DecoderStep<'a>]) -> Result<StepStates, DecoderError> {
        let mut states = self.store.begin(steps)?;
        assert!(states.layer(0).is_empty());
        for (mut state, step) in states.layer(1).into_iter().zip(steps) {
            state.run(step.tokens.len(), |rows, state| {
                state[0] += step.tokens[rows.clone()].iter().sum::<u32>() as f32;
                state[1] += rows.len() as f32;
            });
        }
        Ok(states)
    }

    fn run(&mut self, steps: &[DecoderStep<'_>]) {
        let states = self.begin(steps).unwrap();
        self.store.commit(states);
    }

    /// The state behind tokens.
    fn held(&self, blocks: &[BlockId], tokens: usize) -> Vec<f32> {
        let (block, count) = place(blocks, tokens).unwrap();
        self.store.kept[&block][&count].values.to_vec()
    }

    fn has(&self, blocks: &[BlockId], tokens: usize) -> bool {
        self.store.resumable(blocks, tokens) == tokens
    }
}

fn blocks(numbers: &[u32]) -> Vec<BlockId> {
    numbers.iter().map(|number| BlockId(*number)).collect()
}

fn step<'a>(blocks: &'a [BlockId], past: usize, tokens: &'a [u32], length: usize) -> DecoderStep<'a> {
    DecoderStep { blocks, past, length, shared: 0, tokens, images: &[], adapter: None, logits: Logits::Last }
}

#[test]
fn a_state_goes_from_step_to_step_and_only_the_last_is_kept() {
    let mut world = World::new(usize::MAX, 100);
    let own = blocks(&[3, 7, 1]);
    let ones = [1; 50];
    world.run(&[step(&own, 0, &ones[..40], 90)]);
    world.run(&[step(&own, 40, &ones[..50], 90)]);
    assert_eq!(world.held(&own, 90), [90.0, 90.0]);
    assert!(world.has(&own, 64), "the last end of a block in the prompt");
    assert_eq!(world.store.resumable(&own, 89), 64);
    assert_eq!(world.store.resumable(&own, 63), 0);
    for at in 90..96 {
        world.run(&[step(&own, at, &[2], at + 1)]);
    }
    assert!(world.has(&own, 90) && world.has(&own, 96), "the end of the prompt stays");
    assert_eq!((world.store.resumable(&own, 95), world.store.len()), (90, 3));
    assert_eq!(world.held(&own, 96), [102.0, 96.0]);
    world.store.free(&own);
    assert_eq!((world.store.len(), world.store.kept.len(), world.store.spare.len()), (0, 0, 0));
}

#[test]
fn a_step_that_fails_leaves_all_as_it_was() {
    let mut world = World::new(usize::MAX, 1);
    let own = blocks(&[0, 1]);
    world.run(&[step(&own, 0, &[1; 20], 20)]);
    let failed = world.begin(&[step(&own, 20, &[5; 30], 50)]).unwrap();
    world.store.abandon(failed);
    assert_eq!(world.held(&own, 20), [20.0, 20.0]);
    assert_eq!(world.store.resumable(&own, 50), 20);
    assert!(world.begin(&[step(&own, 19, &[1], 20)]).is_err(), "there is no state in the middle");
    world.run(&[step(&own, 20, &[5], 21)]);
    assert_eq!(world.held(&own, 21), [25.0, 21.0]);
}

#[test]
fn two_sequences_go_on_from_one_state() {
    let mut world = World::new(usize::MAX, 1);
    let (one, two) = (blocks(&[0, 1]), blocks(&[0, 2]));
    world.run(&[step(&one, 0, &[1; 32], 40)]);
    world.run(&[step(&one, 32, &[2; 4], 36), step(&two, 32, &[3; 4], 36)]);
    assert_eq!((world.held(&one, 36), world.held(&two, 36)), (vec![40.0, 36.0], vec![44.0, 36.0]));
    // A copy of a block has its states up to any of its tokens, and drops those behind when it is written.
    world.store.copy(BlockId(1), BlockId(9));
    let third = blocks(&[0, 9]);
    world.run(&[step(&third, 32, &[7; 2], 34)]);
    assert_eq!((world.held(&third, 34), world.has(&third, 36)), (vec![46.0, 34.0], false));
    assert!(world.has(&one, 36));
}

#[test]
fn a_sequence_that_waits_finds_the_state_that_another_has_left() {
    let mut world = World::new(usize::MAX, 100);
    let (one, two) = (blocks(&[0, 1]), blocks(&[0, 2]));
    world.run(&[step(&one, 0, &[1; 16], 40)]);
    world.run(&[step(&one, 16, &[1; 16], 100)]);
    // The other begins behind it as well, one step later.
    world.run(&[step(&one, 32, &[1], 33)]);
    assert!(world.has(&two, 32));
    world.run(&[step(&one, 33, &[1], 34), step(&two, 32, &[1], 33)]);
    world.run(&[step(&one, 34, &[1], 35), step(&two, 33, &[1], 34)]);
    assert_eq!((world.has(&one, 32), world.store.len()), (false, 2));
}

#[test]
fn states_are_kept_where_sequences_part_and_by_distance() {
    let mut world = World::new(usize::MAX, 3);
    let own: Vec<BlockId> = (0..10).map(BlockId).collect();
    let part = DecoderStep { shared: 150, ..step(&own, 0, &[1; 300], 1_000) };
    world.run(&[part]);
    let there: Vec<usize> = (1..=9).map(|block| block * 32).filter(|tokens| world.has(&own, *tokens)).collect();
    assert_eq!(there, [96, 128, 192, 288]);
}

#[test]
fn too_many_states_leave_in_the_order_of_their_last_use() {
    let mut world = World::new(2, 1);
    let all: Vec<Vec<BlockId>> = (0..3).map(|at| blocks(&[at])).collect();
    for own in &all {
        world.run(&[step(own, 0, &[1; 8], 8)]);
    }
    assert_eq!(world.store.resumable(&all[0], 8), 0);
    assert!(world.has(&all[1], 8) && world.has(&all[2], 8));
    assert_eq!(world.store.len(), 2);
    world.run(&[step(&all[1], 8, &[1], 9)]);
    world.run(&[step(&all[0], 0, &[1; 8], 8)]);
    assert_eq!((world.has(&all[1], 9), world.has(&all[2], 8)), (true, false), "the one that was used stays");
    // Blocks that hold the same share them.
    world.store.merge(BlockId(0), BlockId(5));
    assert!(world.has(&blocks(&[5]), 8));
}
