//! The order of the queue, its limits, and removal from any place; compared with a plain sorted list.

use proptest::prelude::*;

use super::*;
use crate::client::ClientStanding;
use crate::testing::s;

const STEP: Duration = Duration::from_secs(30);

fn queue() -> InferenceQueue {
    InferenceQueue::new(QueueLimits { per_model: 512, in_all: 4_096 }, STEP)
}

fn push(queue: &mut InferenceQueue, at: Moment, id: u64, model: usize, priority: u8, client: usize) -> Waiting {
    let arrival = queue.arrive(at);
    let waiting = Waiting {
        id: RequestId(id),
        model: ModelIndex::new(model),
        purpose: Purpose::Inference,
        client: ClientIndex::new(client),
        priority: Priority::new(priority).unwrap(),
        arrival,
        deadline: None,
        keep_alive: None,
        work: None,
        retries: 0,
        climb: None,
    };
    queue.push(waiting.clone());
    waiting
}

/// The models that want a load, in their order: each is set aside, so that the next is first.
fn wanting(queue: &mut InferenceQueue, now: Moment, limit: usize) -> Vec<ModelIndex> {
    let mut order = Vec::new();
    while order.len() < limit
        && let Some((_, model)) = queue.first_wanting(now)
    {
        order.push(model);
        queue.set_aside(model, true);
    }
    order.iter().for_each(|&model| queue.set_aside(model, false));
    order
}

fn drain(queue: &mut InferenceQueue, model: usize, now: Moment) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(head) = queue.best(ModelIndex::new(model), now) {
        queue.remove(head.id).unwrap();
        order.push(head.id.0);
    }
    order
}

#[test]
fn rc_4_priority_first_then_arrival() {
    let mut q = queue();
    for (id, priority) in [(1, 5), (2, 2), (3, 5), (4, 0), (5, 2)] {
        push(&mut q, s(0), id, 0, priority, usize::from(id % 2 == 0));
    }
    assert_eq!(drain(&mut q, 0, s(1)), [4, 2, 5, 1, 3]);
    assert_eq!(q.len(), 0);
}

#[test]
fn rc_4_at_equal_priority_a_resident_model_goes_first() {
    let mut q = queue();
    push(&mut q, s(0), 1, 0, 5, 0);
    push(&mut q, s(1), 2, 1, 5, 0);
    push(&mut q, s(2), 3, 0, 2, 0);
    q.set_residency(ModelIndex::new(1), LoadState::Resident);
    let order: Vec<u64> = q.in_order(s(3), 0..9).iter().map(|(_, waiting)| waiting.id.0).collect();
    assert_eq!(order, [3, 2, 1]);
}

#[test]
fn a_part_of_the_queue_is_the_same_part_of_its_whole_order() {
    let mut q = queue();
    for number in 0..40_u8 {
        push(&mut q, s(u64::from(number / 7)), number.into(), usize::from(number % 5), number % 10 * 7 % 10, 0);
    }
    let order = |places| -> Vec<u64> { q.in_order(s(60), places).iter().map(|(_, waiting)| waiting.id.0).collect() };
    let whole = order(0..usize::MAX);
    assert_eq!(whole.len(), 40);
    for start in 0..42 {
        for end in start..42 {
            assert_eq!(order(start..end), whole[start.min(40)..end.min(40)], "{start}..{end}");
        }
    }
}

#[test]
fn rc_5_aging_moves_the_old_ahead_and_never_past_zero() {
    let mut q = queue();
    push(&mut q, s(0), 1, 0, 8, 0);
    push(&mut q, s(89), 2, 0, 5, 0);
    push(&mut q, s(89), 3, 0, 0, 0);
    assert_eq!(q.best(ModelIndex::new(0), s(89)).unwrap().id, RequestId(3));
    q.remove(RequestId(3)).unwrap();
    assert_eq!(q.best(ModelIndex::new(0), s(89)).unwrap().id, RequestId(2));
    // At 90 s the batch request has aged to 5 and arrived first.
    assert_eq!(q.best(ModelIndex::new(0), s(90)).unwrap().id, RequestId(1));
    push(&mut q, s(100_000), 4, 0, 0, 0);
    assert_eq!(q.best(ModelIndex::new(0), s(200_000)).unwrap().id, RequestId(4));
}

#[test]
fn a_request_tried_again_stands_where_it_stood() {
    let mut q = queue();
    let first = push(&mut q, s(0), 1, 0, 5, 0);
    push(&mut q, s(1), 2, 0, 5, 0);
    q.remove(first.id).unwrap();
    q.push(first);
    assert_eq!(drain(&mut q, 0, s(2)), [1, 2]);
}

#[test]
fn rc_10_the_queue_is_bounded_per_model_and_in_all() {
    let mut q = InferenceQueue::new(QueueLimits { per_model: 2, in_all: 3 }, STEP);
    push(&mut q, s(0), 1, 0, 5, 0);
    push(&mut q, s(0), 2, 0, 5, 0);
    assert_eq!(q.admit(ModelIndex::new(0), Priority::NORMAL), Err(QueueFull::ForModel { limit: 2 }));
    assert_eq!(q.admit(ModelIndex::new(1), Priority::NORMAL), Ok(()));
    push(&mut q, s(0), 3, 1, 5, 0);
    assert_eq!(q.admit(ModelIndex::new(2), Priority::NORMAL), Err(QueueFull::InAll { limit: 3 }));
    q.remove(RequestId(2)).unwrap();
    assert_eq!(q.admit(ModelIndex::new(0), Priority::NORMAL), Ok(()));
}

#[test]
fn rc_10_the_last_eighth_is_for_interactive_requests_and_nobody_passes_the_bound() {
    let mut q = InferenceQueue::new(QueueLimits { per_model: 8, in_all: 16 }, STEP);
    for id in 0..7 {
        push(&mut q, s(0), id, 0, 5, 0);
    }
    let model = ModelIndex::new(0);
    assert_eq!(q.admit(model, Priority::NORMAL), Err(QueueFull::ForModel { limit: 7 }));
    assert_eq!(q.admit(model, Priority::INTERACTIVE), Ok(()));
    push(&mut q, s(0), 7, 0, 2, 0);
    assert_eq!(q.admit(model, Priority::INTERACTIVE), Err(QueueFull::ForModel { limit: 8 }));
    for id in 8..14 {
        push(&mut q, s(0), id, 1, 5, 0);
    }
    let another = ModelIndex::new(2);
    assert_eq!(q.admit(another, Priority::NORMAL), Err(QueueFull::InAll { limit: 14 }));
    push(&mut q, s(0), 14, 2, 2, 0);
    push(&mut q, s(0), 15, 2, 2, 0);
    assert_eq!(q.admit(another, Priority::HIGHEST), Err(QueueFull::InAll { limit: 16 }));
}

#[test]
fn rc_10_all_providers_together_have_the_places_of_one_model() {
    let mut q = InferenceQueue::new(QueueLimits { per_model: 4, in_all: 32 }, STEP);
    let (one, other) = (ModelIndex::new(0), ModelIndex::new(1));
    q.set_provider(one);
    q.set_provider(other);
    for id in 0..4 {
        let entry = usize::try_from(id).unwrap() % 2;
        assert_eq!(q.admit(ModelIndex::new(entry), Priority::NORMAL), Ok(()));
        push(&mut q, s(0), id, entry, 5, 0);
    }
    assert_eq!(q.admit(one, Priority::NORMAL), Err(QueueFull::Elsewhere { limit: 4 }));
    assert_eq!(q.admit(ModelIndex::new(2), Priority::NORMAL), Ok(()));
    q.remove(RequestId(1)).unwrap();
    assert_eq!(q.admit(one, Priority::NORMAL), Ok(()));
}

#[test]
fn only_absent_models_want_a_load_most_urgent_first() {
    let mut q = queue();
    push(&mut q, s(0), 1, 0, 5, 0);
    push(&mut q, s(1), 2, 1, 2, 0);
    push(&mut q, s(2), 3, 2, 5, 0);
    let (a, b, c) = (ModelIndex::new(0), ModelIndex::new(1), ModelIndex::new(2));
    assert_eq!(wanting(&mut q, s(2), usize::MAX), [b, a, c]);
    assert_eq!(wanting(&mut q, s(2), 1), [b]);
    q.set_residency(b, LoadState::Coming);
    assert_eq!(wanting(&mut q, s(2), usize::MAX), [a, c]);
    q.remove(RequestId(1)).unwrap();
    assert_eq!(wanting(&mut q, s(2), usize::MAX), [c]);
    q.set_residency(b, LoadState::Absent);
    assert_eq!(wanting(&mut q, s(2), usize::MAX), [b, c]);
    drain(&mut q, 1, s(2));
    drain(&mut q, 2, s(2));
    assert!(!q.anyone_wants_a_load());
}

#[test]
fn a_request_stands_behind_its_like_only_where_another_model_that_needs_exactly_as_much_comes_first() {
    let mut q = queue();
    let (a, b) = (ModelIndex::new(0), ModelIndex::new(1));
    push(&mut q, s(0), 1, 0, 5, 0);
    push(&mut q, s(1), 2, 1, 5, 0);
    let behind = |q: &mut InferenceQueue, id| q.is_behind_its_like(RequestId(id), s(1));
    assert!(!behind(&mut q, 2), "the memory that it needs is unknown");
    let gib = ByteCount::gib(8);
    q.set_likeness(a, 1, gib);
    q.set_likeness(b, 1, gib);
    assert!(behind(&mut q, 2) && !behind(&mut q, 1));
    push(&mut q, s(1), 3, 1, 2, 0);
    assert!(!behind(&mut q, 3), "it is the first of those that are as important");
    q.set_likeness(b, 1, gib - ByteCount::mib(1));
    assert!(!behind(&mut q, 2), "a little less may be little enough");
    q.set_likeness(b, 2, gib);
    assert!(!behind(&mut q, 2), "it may go to other places");
    q.set_likeness(b, 1, gib);
    q.doubt_likeness(b);
    assert!(!behind(&mut q, 2), "it changed");
    q.set_likeness(b, 1, gib);
    q.set_aside(a, true);
    assert!(!behind(&mut q, 2), "the other one does not stand in line");
}

#[test]
fn deadlines_come_in_order_and_leave_with_their_request() {
    let mut q = queue();
    for (id, deadline) in [(1, 20), (2, 10), (3, 30)] {
        let mut waiting = push(&mut q, s(0), id, 0, 5, 0);
        q.remove(waiting.id).unwrap();
        waiting.deadline = Some(s(deadline));
        q.push(waiting);
    }
    assert_eq!(q.next_deadline(), Some(s(10)));
    assert_eq!(q.next_expired(s(9)), None);
    assert_eq!(q.next_expired(s(10)), Some(RequestId(2)));
    q.remove(RequestId(2)).unwrap();
    assert_eq!(q.next_deadline(), Some(s(20)));
}

#[derive(Clone, Debug)]
enum Op {
    Push { model: usize, priority: u8, client: u8 },
    Remove(usize),
    Pop(usize),
    Wait(u64),
    Residency(usize, bool),
    Serve(usize, u64),
    HoldBack(usize, bool),
    Like(usize, u32),
    Aside(usize, bool),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..3usize, 0..10u8, 0..3u8).prop_map(|(model, priority, client)| Op::Push { model, priority, client }),
        1 => any::<usize>().prop_map(Op::Remove),
        2 => (0..3usize).prop_map(Op::Pop),
        1 => (0..100u64).prop_map(Op::Wait),
        1 => (0..3usize, any::<bool>()).prop_map(|(model, absent)| Op::Residency(model, absent)),
        2 => (0..3usize, 0..3u64).prop_map(|(client, steps)| Op::Serve(client, steps)),
        1 => (0..3usize, any::<bool>()).prop_map(|(client, held_back)| Op::HoldBack(client, held_back)),
        1 => (0..3usize, 0..3u32).prop_map(|(model, family)| Op::Like(model, family)),
        1 => (0..3usize, any::<bool>()).prop_map(|(model, aside)| Op::Aside(model, aside)),
    ];
    prop::collection::vec(op, 1..120)
}

#[test]
fn rc_4_at_equal_importance_the_client_that_got_less_goes_first() {
    let mut q = queue();
    for id in 1..=3 {
        push(&mut q, s(0), id, 0, 5, 0);
    }
    push(&mut q, s(1), 4, 0, 5, 1);
    push(&mut q, s(1), 5, 1, 5, 1);
    q.set_standing(ClientIndex::new(0), ClientStanding { service: 2, held_back: false });
    assert_eq!(wanting(&mut q, s(1), usize::MAX), [ModelIndex::new(0), ModelIndex::new(1)]);
    // After 30 s, all of the first client's requests are more important than the other's.
    assert_eq!(q.best(ModelIndex::new(0), s(30)).unwrap().id, RequestId(1));
    assert_eq!(drain(&mut q, 0, s(1)), [4, 1, 2, 3]);
}

#[test]
fn rc_9_requests_of_a_client_that_is_held_back_keep_their_places() {
    let mut q = queue();
    push(&mut q, s(0), 1, 0, 5, 0);
    push(&mut q, s(1), 2, 0, 5, 1);
    push(&mut q, s(2), 3, 1, 5, 0);
    let held_back = ClientStanding { service: 0, held_back: true };
    assert!(!q.set_standing(ClientIndex::new(0), held_back));
    assert_eq!(wanting(&mut q, s(2), usize::MAX), [ModelIndex::new(0)]);
    assert_eq!(q.best(ModelIndex::new(0), s(2)).unwrap().id, RequestId(2));
    assert_eq!(q.len_of(ModelIndex::new(1)), 1);
    assert!(q.set_standing(ClientIndex::new(0), ClientStanding::default()));
    assert_eq!(wanting(&mut q, s(2), usize::MAX), [ModelIndex::new(0), ModelIndex::new(1)]);
    assert_eq!(drain(&mut q, 0, s(2)), [1, 2]);
}

proptest! {
    /// For random operations, the queue has the order of a sorted list.
    #[test]
    fn rc_4_rc_5_the_queue_agrees_with_a_sorted_list(ops in ops()) {
        let mut q = queue();
        let mut list: Vec<Waiting> = Vec::new();
        let (mut absent, mut aside, mut family) = ([true; 3], [false; 3], [0; 3]);
        let mut now = s(0);
        let mut standings = [ClientStanding::default(); 3];
        let key = |w: &Waiting, now: Moment, standings: &[ClientStanding; 3]| {
            let effective = w.priority.aged(now.since(w.arrival.at).as_secs() / STEP.as_secs());
            (effective, standings[w.client.get()].service, w.arrival)
        };
        let may_start = |w: &&Waiting, standings: &[ClientStanding; 3]| !standings[w.client.get()].held_back;
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                Op::Push { model, priority, client } => {
                    list.push(push(&mut q, now, number as u64, model, priority, usize::from(client)));
                }
                Op::Remove(place) if !list.is_empty() => {
                    let gone = list.swap_remove(place % list.len());
                    prop_assert!(q.remove(gone.id).is_some());
                    prop_assert!(q.remove(gone.id).is_none());
                }
                Op::Pop(model) => {
                    let first = list
                        .iter()
                        .filter(|w| w.model == ModelIndex::new(model) && may_start(w, &standings))
                        .min_by_key(|w| key(w, now, &standings));
                    let first = first.map(|w| w.id);
                    prop_assert_eq!(q.best(ModelIndex::new(model), now).map(|head| head.id), first);
                    if let Some(id) = first {
                        q.remove(id);
                        list.retain(|w| w.id != id);
                    }
                }
                Op::Wait(seconds) => now = now + Duration::from_secs(seconds),
                Op::Residency(model, is_absent) => {
                    absent[model] = is_absent;
                    let residency = if is_absent { LoadState::Absent } else { LoadState::Resident };
                    q.set_residency(ModelIndex::new(model), residency);
                }
                Op::Serve(client, steps) => {
                    standings[client].service += steps;
                    prop_assert!(!q.set_standing(ClientIndex::new(client), standings[client]));
                }
                Op::HoldBack(client, held_back) => {
                    let freed = standings[client].held_back && !held_back;
                    standings[client].held_back = held_back;
                    prop_assert_eq!(q.set_standing(ClientIndex::new(client), standings[client]), freed);
                }
                Op::Like(model, to) => {
                    family[model] = to;
                    q.set_likeness(ModelIndex::new(model), to, ByteCount::ZERO);
                }
                Op::Aside(model, is_aside) => {
                    aside[model] = is_aside;
                    q.set_aside(ModelIndex::new(model), is_aside);
                }
                Op::Remove(_) => {}
            }
            let waits = |m: &usize| absent[*m] && list.iter().any(|w| w.model == ModelIndex::new(*m));
            let mut families: Vec<u32> = (0..3).filter(waits).map(|m| family[m]).collect();
            families.sort_unstable();
            families.dedup();
            prop_assert_eq!(q.needs().map(|(family, _)| family).collect::<Vec<_>>(), families);
            prop_assert_eq!(q.next_cold(ModelIndex::new(0)), (0..3).find(waits).map(ModelIndex::new));
            let mut expected: Vec<(_, ModelIndex)> = (0..3usize)
                .filter(|&m| absent[m] && !aside[m])
                .filter_map(|m| {
                    let first = list
                        .iter()
                        .filter(|w| w.model == ModelIndex::new(m) && may_start(w, &standings))
                        .map(|w| key(w, now, &standings))
                        .min();
                    first.map(|first| (first, ModelIndex::new(m)))
                })
                .collect();
            expected.sort_unstable();
            for kind in q.kinds().collect::<Vec<_>>() {
                let first = list
                    .iter()
                    .filter(|w| family[w.model.get()] == kind.family && w.priority == kind.base)
                    .filter(|w| absent[w.model.get()] && !aside[w.model.get()] && may_start(w, &standings))
                    .map(|w| (key(w, now, &standings), w.model))
                    .min();
                let got = q.first_alike(now, kind).map(|(key, model)| ((key.effective, key.service, key.arrival), model));
                prop_assert_eq!(got, first);
            }
            let expected: Vec<ModelIndex> = expected.into_iter().map(|(_, model)| model).collect();
            prop_assert_eq!(wanting(&mut q, now, usize::MAX), expected);
            prop_assert_eq!(q.len(), list.len());
            for model in 0..3 {
                let of_model = list.iter().filter(|w| w.model == ModelIndex::new(model)).count();
                prop_assert_eq!(q.len_of(ModelIndex::new(model)), of_model);
            }
        }
    }
}
