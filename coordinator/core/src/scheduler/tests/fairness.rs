//! Cases in which simpler rules of eviction fail (RC-18), in simulated hours.

use super::*;

const HOUR: u64 = 3_600;

/// A kind of client: requests for one model at random moments, at a rate per 1,000 s.
struct Stream {
    model: &'static str,
    priority: u8,
    per_1000_s: u64,
}

/// Runs the streams for `seconds` on one GPU with room for `room` models. Returns the waits of each stream in
/// ascending order, those of unanswered requests included.
fn hammer(models: usize, room: u64, load_s: u64, streams: &[Stream], seconds: u64) -> Vec<Vec<Duration>> {
    let names = ["a", "b", "c"];
    let catalog = names[..models].iter().map(|name| concurrent(model(name, 4), 8)).collect();
    let mut world = World::calm(4 * room, catalog);
    world.behaviour.load = (Duration::from_secs(load_s), Duration::from_secs(load_s));
    world.behaviour.answer = (3 * SECOND, 9 * SECOND);
    let mut rng = Rng(7);
    let mut arrivals: Vec<(Moment, usize)> = Vec::new();
    for (number, stream) in streams.iter().enumerate() {
        let expected = stream.per_1000_s * seconds / 1_000;
        arrivals.extend((0..expected).map(|_| (ms(rng.below(seconds * 1_000)), number)));
    }
    arrivals.sort_unstable();
    let mut submitted: Vec<Vec<(RequestId, Moment)>> = streams.iter().map(|_| Vec::new()).collect();
    for (at, number) in arrivals {
        world.run_until(at);
        let request = world.submit(streams[number].model, streams[number].priority);
        submitted[number].push((request, at));
    }
    world.run_until(s(seconds));
    let wait = |(request, at): &(RequestId, Moment)| world.answered_at(*request).unwrap_or(world.now).since(*at);
    submitted
        .iter()
        .map(|requests| {
            let mut waits: Vec<Duration> = requests.iter().map(wait).collect();
            waits.sort_unstable();
            waits
        })
        .collect()
}

fn longest(waits: &[Duration]) -> u64 {
    waits.last().map_or(0, Duration::as_secs)
}

#[test]
fn rc_18_an_agent_that_alternates_two_models_gets_700_answers_an_hour() {
    let mut world = World::calm(4, vec![model("a", 4), model("b", 4)]);
    let mut answers = 0;
    for turn in 0.. {
        let request = world.submit(if turn % 2 == 0 { "a" } else { "b" }, 5);
        while world.answered_at(request).is_none() {
            world.run_for(Duration::from_millis(5));
        }
        if world.now > s(HOUR) {
            break;
        }
        answers += 1;
    }
    assert!(answers >= 700, "{answers} answers");
}

#[test]
fn rc_18_an_equal_model_without_a_gap_does_not_starve_a_rare_one() {
    let streams =
        [Stream { model: "a", priority: 5, per_1000_s: 1_000 }, Stream { model: "b", priority: 5, per_1000_s: 50 }];
    let waits = hammer(2, 1, 20, &streams, HOUR);
    assert!(longest(&waits[1]) < 250, "the rare one waited {} s", longest(&waits[1]));
    assert!(longest(&waits[0]) < 250, "the busy one waited {} s", longest(&waits[0]));
}

#[test]
fn rc_18_an_important_and_mostly_idle_model_does_not_lock_out_a_less_important_one() {
    let streams =
        [Stream { model: "a", priority: 2, per_1000_s: 10 }, Stream { model: "b", priority: 5, per_1000_s: 20 }];
    let waits = hammer(2, 1, 20, &streams, 2 * HOUR);
    let served = waits[1].iter().filter(|wait| **wait < Duration::from_secs(400)).count();
    assert!(served * 100 >= waits[1].len() * 95, "{served} of {} within 400 s", waits[1].len());
}

#[test]
fn rc_18_batch_work_against_a_busy_more_important_model_is_done_within_its_bound() {
    let streams =
        [Stream { model: "a", priority: 2, per_1000_s: 1_000 }, Stream { model: "b", priority: 8, per_1000_s: 20 }];
    let waits = hammer(2, 1, 20, &streams, 2 * HOUR);
    // The bound is `max_wait`, then the hold of the loaded model, its drain and the load.
    assert!(longest(&waits[1]) < 720, "batch waited {} s", longest(&waits[1]));
}

#[test]
fn rc_18_three_equal_models_share_room_for_two() {
    let stream = |model| Stream { model, priority: 5, per_1000_s: 300 };
    let waits = hammer(3, 2, 20, &[stream("a"), stream("b"), stream("c")], 2 * HOUR);
    for waits in &waits {
        assert!(longest(waits) < 300, "one waited {} s", longest(waits));
    }
}
