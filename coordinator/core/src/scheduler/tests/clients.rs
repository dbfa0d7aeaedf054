//! Limits of clients and deadlines of requests (RC-3, RC-4, RC-9, RC-13).

use super::*;
use crate::refusal::RefusalReason;
use crate::{ClientRule, ClientRules, LedgerState, LoadOptions, Principal, PrincipalKind, ReadyPhase};

fn world_with(rules: ClientRules, models: Vec<ModelDescription>) -> World {
    let settings = Settings { clients: rules, ..Settings::default() };
    let mut world = World::new(settings, Default::default(), 1);
    world.tell(Event::DeviceObserved(device("cuda:0", 8)));
    world.catalog(models);
    world
}

fn everyone(rule: ClientRule) -> ClientRules {
    ClientRules { default: rule, ..ClientRules::default() }
}

fn of(client: &str) -> impl FnOnce(&mut Submission) {
    let client = client.into();
    move |submission| submission.client = client
}

fn priority_of(world: &World, request: RequestId) -> u8 {
    let queue = world.core.queue(world.now, 0..usize::MAX);
    queue.iter().find(|view| view.id == request).map(|view| view.priority.number()).unwrap()
}

#[test]
fn rc_3_only_who_may_gets_the_highest_priorities() {
    let boss = ClientRule { max_priority: Priority::HIGHEST, ..ClientRule::default() };
    let script = ClientRule { default_priority: Priority::BATCH, ..ClientRule::default() };
    let named = [("boss".into(), boss), ("script".into(), script)].into();
    let mut world = world_with(ClientRules { named, ..ClientRules::default() }, vec![model("m", 4)]);
    let plain = world.submit_with("m", 0, of("somebody"));
    let boss = world.submit_with("m", 0, of("boss"));
    let script = world.submit_with("m", 0, |submission| {
        submission.client = "script".into();
        submission.priority = None;
    });
    assert_eq!([plain, boss, script].map(|request| priority_of(&world, request)), [2, 0, 8]);
}

#[test]
fn rc_4_two_clients_share_a_model_whatever_one_of_them_sends() {
    let mut world = world_with(ClientRules::default(), vec![model("m", 4)]);
    world.tokens = Some(1_000);
    let many: Vec<RequestId> = (0..20).map(|_| world.submit_with("m", 5, of("flood"))).collect();
    world.run_for(SECOND);
    let few: Vec<RequestId> = (0..3).map(|_| world.submit_with("m", 5, of("modest"))).collect();
    world.run_until(s(22));
    assert!(few.iter().all(|&request| world.answered_at(request).is_some()), "the modest one waits behind the flood");
    let answered = many.iter().filter(|&&request| world.answered_at(request).is_some()).count();
    assert!((4..=6).contains(&answered), "{answered} of the flood");
}

#[test]
fn rc_9_a_client_at_its_limit_waits_and_holds_up_nobody() {
    let rule = ClientRule { max_concurrent: Some(1), ..ClientRule::default() };
    let mut world = world_with(everyone(rule), vec![concurrent(model("m", 4), 8), model("n", 4)]);
    let first = world.submit_with("m", 5, of("a"));
    let second = world.submit_with("m", 5, of("a"));
    let elsewhere = world.submit_with("n", 5, of("a"));
    let other = world.submit_with("m", 5, of("b"));
    world.run_until(s(4));
    assert!(matches!(world.fate(first), Fate::Running(..)));
    assert!(matches!(world.fate(other), Fate::Running(..)));
    let why = world.core.why(second).unwrap();
    assert_eq!(why.to_string(), "client a has 1 of 1 requests running");
    // A request over its client's limit causes no load (RC-9).
    assert!(world.core.slots().iter().all(|slot| slot.model.as_str() == "m"), "{:?}", world.core.slots());
    assert!(matches!(world.core.why(elsewhere), Some(WaitReason::ClientLimit { .. })));
    world.run_until(s(30));
    for request in [first, second, elsewhere, other] {
        assert_eq!(world.fate(request), &Fate::Answered);
    }
}

#[test]
fn rc_9_the_pause_between_two_requests_of_a_client() {
    let rule = ClientRule { cooldown: Duration::from_secs(4), ..ClientRule::default() };
    let mut world = world_with(everyone(rule), vec![model("m", 4)]);
    let first = world.submit_with("m", 5, of("a"));
    let second = world.submit_with("m", 5, of("a"));
    world.run_until(s(6));
    let ended = world.answered_at(first).unwrap();
    assert!(matches!(world.core.why(second), Some(WaitReason::Cooldown { .. })));
    world.run_until(s(20));
    assert_eq!(world.answered_at(second).unwrap().since(ended), Duration::from_secs(6));
}

#[test]
fn rc_9_too_many_in_a_minute_are_refused_with_a_time() {
    let rule = ClientRule { rate_per_minute: Some(2), max_queued: None, ..ClientRule::default() };
    let mut world = world_with(everyone(rule), vec![model("m", 4)]);
    world.submit_with("m", 5, of("a"));
    world.submit_with("m", 5, of("a"));
    let third = world.submit_with("m", 5, of("a"));
    let Fate::Refused(error) = world.fate(third) else { panic!("a third was taken") };
    assert_eq!(error.reason, RefusalReason::ClientLimit);
    assert_eq!(error.retry_after, Some(Duration::from_secs(30)));
    let view = world.core.clients(world.now);
    assert_eq!((view[0].id.name(), view[0].requests, view[0].refused), ("a", 2, 1));
}

#[test]
fn rc_13_a_budget_shorter_than_the_cold_start_is_told_at_once_and_the_load_begins() {
    let mut world = world_with(ClientRules::default(), vec![model("m", 4)]);
    // Without measurements no request is refused: a guess is not enough.
    let first = world.submit_with("m", 5, |submission| submission.deadline = Some(ms(3_500)));
    world.run_until(s(4));
    assert!(matches!(world.fate(first), Fate::Running(..)));
    world.run_until(s(6));
    world.unload(None);
    world.run_until(s(7));
    let late = world.submit_with("m", 5, |submission| submission.deadline = Some(s(9)));
    let Fate::Refused(error) = world.fate(late) else { panic!("taken although it cannot be in time") };
    assert_eq!(error.reason, RefusalReason::ColdStart);
    assert_eq!(error.retry_after.map(|wait| wait.as_secs()), Some(3));
    assert!(error.message.contains("a load is expected to take 3.0 s"), "{}", error.message);
    assert_eq!(world.core.model("m").unwrap().status, crate::ModelStatus::Loading);
    assert!(world.core.decisions().any(|decision| decision.what == Verdict::Load && decision.request.is_none()));
    // While the model loads, only the rest of the load counts.
    world.run_until(s(9));
    let in_time = world.submit_with("m", 5, |submission| submission.deadline = Some(s(14)));
    world.run_until(s(14));
    assert_eq!(world.fate(in_time), &Fate::Answered);
}

#[test]
fn rc_13_a_load_ahead_sends_nobody_away() {
    let mut world = world_with(ClientRules::default(), vec![model("m", 8), model("n", 8)]);
    for name in ["m", "n"] {
        let request = world.submit(name, 5);
        world.run_for(Duration::from_secs(30));
        assert_eq!(world.fate(request), &Fate::Answered);
    }
    let soon = world.now + SECOND;
    let late = world.submit_with("m", 2, |submission| submission.deadline = Some(soon));
    assert!(matches!(world.fate(late), Fate::Refused(_)));
    assert_eq!(world.core.model("n").unwrap().status, crate::ModelStatus::Loaded);
    assert_eq!(world.core.model("m").unwrap().status, crate::ModelStatus::Unloaded);
}

#[test]
fn other_settings_count_at_once() {
    let rule = ClientRule { max_concurrent: Some(1), ..ClientRule::default() };
    let mut world = world_with(everyone(rule), vec![concurrent(model("m", 4), 8)]);
    let held = [world.submit("m", 5), world.submit("m", 5)];
    world.run_until(s(4));
    assert!(matches!(world.fate(held[1]), Fate::Waiting));
    world.tell(Event::Settings(Box::new(Settings { max_queued: 1, ..Settings::default() })));
    assert!(matches!(world.fate(held[1]), Fate::Running(..)));
    for _ in 0..6 {
        world.submit("m", 5);
    }
    world.submit("m", 5);
    let refused = world.submit("m", 5);
    assert!(matches!(world.fate(refused), Fate::Refused(error) if error.reason == RefusalReason::QueueFull));
}

fn by(client: &str) -> Principal {
    Principal::Client(client.into())
}

/// A world whose client `c` has this rule.
fn ruled(rule: ClientRule, models: Vec<ModelDescription>) -> World {
    let mut world = World::calm(8, models);
    let mut settings = Settings::default();
    settings.clients.named.insert("c".into(), rule);
    world.tell(Event::Settings(Box::new(settings)));
    world
}

fn load_by(world: &mut World, caller: Principal, model: &str, priority: Option<Priority>) -> RequestId {
    let options = LoadOptions { priority, ..LoadOptions::default() };
    world.operate(|request| Order::Load { request, by: caller, model: model.into(), options: Box::new(options) })
}

fn unload_by(world: &mut World, caller: Principal, model: &str) -> RequestId {
    world.operate(|request| Order::Unload { request, by: caller, model: Some(model.into()) })
}

#[test]
fn rc_3_the_load_of_a_client_has_its_priority_and_the_operators_has_none_above_it() {
    let rule = ClientRule { max_priority: Priority::new(6).unwrap(), ..ClientRule::default() };
    let mut world = ruled(rule, vec![model("a", 4), model("b", 4), model("c", 4), model("d", 4)]);
    world.tell(Event::Ledger(LedgerState::Away { detail: "no connection".into() }));
    load_by(&mut world, by("c"), "a", Some(Priority::HIGHEST));
    load_by(&mut world, by("c"), "b", None);
    load_by(&mut world, Principal::Operator, "c", Some(Priority::HIGHEST));
    load_by(&mut world, Principal::Operator, "d", None);
    let mut queue = world.core.queue(world.now, 0..usize::MAX);
    queue.sort_by(|a, b| a.model.cmp(&b.model));
    let priorities: Vec<u8> = queue.iter().map(|waiting| waiting.priority.number()).collect();
    assert_eq!(priorities, [6, 6, 0, 2]);
}

#[test]
fn rc_9_loads_and_unloads_count_against_a_clients_limits() {
    let rule = ClientRule { rate_per_minute: Some(1), ..ClientRule::default() };
    let mut world = ruled(rule, vec![model("m", 4)]);
    load_by(&mut world, by("c"), "m", None);
    world.run_until(s(5));
    for refused in [load_by(&mut world, by("c"), "m", None), unload_by(&mut world, by("c"), "m")] {
        assert_eq!(world.refusal(refused).reason, RefusalReason::ClientLimit);
    }
    assert!(world.state_of("m").is_some());
}

#[test]
fn rc_19_a_client_unloads_no_pinned_model_and_none_that_others_use() {
    let mut world = World::calm(8, vec![pinned(model("p", 2)), model("m", 2)]);
    world.submit("p", 5);
    world.submit("m", 5);
    world.run_until(s(20));
    let refused = unload_by(&mut world, by("c"), "p");
    assert_eq!(world.refusal(refused).reason, RefusalReason::Pinned);
    let running = world.submit("m", 5);
    let done = unload_by(&mut world, by("other"), "m");
    assert_eq!(world.fate(done), &Fate::Done);
    assert!(matches!(world.state_of("m"), Some(SlotState::Ready(ReadyPhase::Serving))), "it stays for who uses it");
    world.run_for(10 * SECOND);
    assert_eq!(world.fate(running), &Fate::Answered);
    let done = unload_by(&mut world, by("other"), "m");
    world.run_for(SECOND);
    assert_eq!((world.fate(done), world.state_of("m")), (&Fate::Done, None));
    let unloaded = unload_by(&mut world, Principal::Operator, "p");
    world.run_for(SECOND);
    assert_eq!((world.fate(unloaded), world.state_of("p")), (&Fate::Done, None));
}

#[test]
fn a_clients_load_does_not_wake_a_model_that_failed_and_the_operators_does() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    world.behaviour.bad = ["m".into()].into();
    let failed = world.submit("m", 5);
    world.run_until(s(60));
    let first = world.refusal(failed).reason.clone();
    let refused = load_by(&mut world, by("c"), "m", None);
    assert_eq!(world.refusal(refused).reason, first);
    let loads = world.loads();
    load_by(&mut world, Principal::Operator, "m", None);
    world.run_for(SECOND);
    assert_eq!(world.loads(), loads + 1);
}

#[test]
fn a_client_that_calls_itself_operator_has_no_part_in_the_operators_account() {
    let mut world = World::calm(8, vec![model("m", 4), model("n", 4)]);
    let mut settings = Settings::default();
    settings.clients.default = ClientRule { max_concurrent: Some(1), cooldown: 60 * SECOND, ..ClientRule::default() };
    settings.clients.named.insert("operator".into(), ClientRule { max_queued: Some(0), ..ClientRule::default() });
    world.tell(Event::Settings(Box::new(settings)));
    world.behaviour.answer = (30 * SECOND, 30 * SECOND);
    let own = world.submit_with("m", 5, |submission| submission.client = "operator".into());
    assert_eq!(world.refusal(own).reason, RefusalReason::ClientLimit);
    world.tell(Event::Settings(Box::new(Settings {
        clients: ClientRules {
            default: ClientRule { max_concurrent: Some(1), cooldown: 60 * SECOND, ..ClientRule::default() },
            ..ClientRules::default()
        },
        ..Settings::default()
    })));
    world.submit_with("m", 5, |submission| submission.client = "operator".into());
    world.run_until(s(5));
    let load = world.load("n");
    world.run_until(s(10));
    assert_eq!(world.fate(load), &Fate::Done, "{:?}", world.core.why(load));
    let clients = world.core.clients(world.now);
    let kinds: Vec<_> = clients.iter().map(|client| (client.id.name(), client.kind, client.requests)).collect();
    assert_eq!(kinds, [("operator", PrincipalKind::Operator, 1), ("operator", PrincipalKind::Client, 1)]);
}
