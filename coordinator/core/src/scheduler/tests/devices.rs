//! GPUs that their driver does not list for a while.

use super::*;
use crate::DeviceObservation;
use crate::refusal::RefusalReason;

const GPU: DeviceId = DeviceId::Cuda(0);

fn seen(name: &str, lost: bool) -> Event {
    let there = device(name, 8);
    let foreign = there.foreign.filter(|_| !lost);
    Event::DeviceObserved(DeviceObservation { foreign, lost, ..there })
}

#[test]
fn rc_21_a_lost_gpu_ends_its_slots_and_its_requests_go_to_another() {
    let mut world = World::calm(8, vec![on(model("bound", 4), "cuda:0"), model("free", 4)]);
    world.tell(seen("cuda:1", false));
    let running = world.submit("bound", 5);
    let other = world.submit("free", 5);
    world.run_until(s(4));
    assert!(matches!(world.fate(running), Fate::Running(..)));
    world.tell(seen("cuda:0", true));
    assert!(world.core.devices()[0].lost);
    assert_eq!(world.core.devices()[0].free, None);
    let bound = world.submit("bound", 5);
    world.run_for(20 * SECOND);
    assert!(!matches!(world.fate(running), Fate::Running(..)));
    assert_eq!(world.fate(other), &Fate::Answered);
    // A request bound to the lost device waits for it, and gives that reason.
    assert_eq!(world.core.why(bound), Some(WaitReason::DeviceLost { device: GPU }));
    let more = world.submit("free", 5);
    world.run_for(20 * SECOND);
    assert_eq!(world.fate(more), &Fate::Answered);
    assert!(world.core.slots().iter().all(|slot| slot.parts.iter().all(|(device, _)| *device != GPU)));
    let moved = world.move_to("free", "cuda:0", false, 2);
    assert_eq!(world.refusal(moved).reason, RefusalReason::DeviceUnavailable);
    world.tell(seen("cuda:0", false));
    world.run_for(20 * SECOND);
    assert_eq!(world.fate(bound), &Fate::Answered);
}

#[test]
fn rc_21_a_gpu_that_stays_lost_is_waited_for_no_longer_than_its_patience() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.tell(seen("cuda:0", true));
    let waiting = world.submit("m", 5);
    for _ in 0..29 {
        world.run_for(SECOND);
        world.tell(seen("cuda:0", true));
        assert_eq!(world.fate(waiting), &Fate::Waiting);
    }
    world.run_for(2 * SECOND);
    world.tell(seen("cuda:0", true));
    let error = world.refusal(waiting);
    assert_eq!(error.reason, RefusalReason::DeviceUnavailable);
    assert!(error.message.contains("cuda:0 is gone"), "{error}");
    let later = world.submit("m", 5);
    assert_eq!(world.refusal(later).reason, RefusalReason::DeviceUnavailable);
    // No load is tried while the device is lost.
    assert_eq!(world.loads(), 0);
    world.tell(seen("cuda:0", false));
    let served = world.submit("m", 5);
    world.run_for(20 * SECOND);
    assert_eq!(world.fate(served), &Fate::Answered);
}

#[test]
fn rc_21_without_its_gpu_a_model_for_any_device_goes_to_the_host() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.tell(Event::DeviceObserved(device("cpu", 16)));
    let first = world.submit("m", 5);
    world.run_until(s(4));
    world.tell(seen("cuda:0", true));
    world.run_for(20 * SECOND);
    assert_eq!(world.fate(first), &Fate::Answered);
    let slots = world.core.slots();
    assert_eq!(slots[0].parts, [(DeviceId::Cpu, ByteCount::gib(4))]);
}

#[test]
fn rc_21_a_load_on_a_gpu_that_goes_away_is_ended_and_begins_again_where_it_can() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    let request = world.submit("m", 5);
    for moment in [50, 500, 1_500] {
        world.run_until(ms(moment));
        world.tell(seen("cuda:0", true));
        world.tell(seen("cuda:0", false));
    }
    world.run_for(20 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
    assert!(world.core.devices()[0].charged == ByteCount::gib(4));
}
