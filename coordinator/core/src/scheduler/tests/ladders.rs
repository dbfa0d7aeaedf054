//! Requests with several rungs (TR-2): the choice, its reasons, and the next rung after a failure.

use model_boss_protocol::{ApiError, ErrorCode, WorkerExit};

use super::*;
use crate::refusal::{Refusal, RefusalReason};
use crate::{Ladder, PlanQuestion, Rung, Target};

fn ladder(names: &[&str]) -> Ladder {
    let mut rungs = names.iter().enumerate().map(|(position, name)| {
        let target = match name.split_once(':') {
            Some((provider, model)) => Target::Cloud { provider: provider.into(), model: model.into() },
            None => Target::Local((*name).into()),
        };
        Rung { target, position }
    });
    let first = rungs.next().unwrap();
    Ladder { rest: rungs.collect(), ..Ladder { first, ..Ladder::from("") } }
}

fn submit(world: &mut World, names: &[&str]) -> RequestId {
    let ladder = ladder(names);
    world.submit_with(names[0], 5, |submission| {
        submission.ladder = ladder;
        submission.category = Category::Llm;
    })
}

/// The model that answered the request, the number of its rung and the reason for the choice.
fn served(world: &World, request: RequestId) -> (String, usize, String) {
    let dispatch = world.log.iter().rev().find_map(|(_, effect)| match effect {
        Effect::Dispatch { request: id, slot, rung, .. } if *id == request => Some((slot.id.to_string(), rung)),
        Effect::DispatchCloud { request: id, provider, model, rung, .. } if *id == request => {
            Some((format!("{provider}:{model}"), rung))
        }
        _ => None,
    });
    let (place, rung) = dispatch.unwrap_or_else(|| panic!("request {request} was not dispatched"));
    (place, rung.position, rung.reason.to_string())
}

fn rung(world: &World, request: RequestId) -> (usize, String) {
    let (_, position, reason) = served(world, request);
    (position, reason)
}

/// Makes a load time of 20 s known for `model`, by one load and unload.
fn slow_load(world: &mut World, model: &str) {
    world.behaviour.load = (20 * SECOND, 20 * SECOND);
    world.submit(model, 5);
    world.run_for(30 * SECOND);
    world.unload(Some(model));
    world.run_for(SECOND);
    world.behaviour.load = (3 * SECOND, 3 * SECOND);
}

#[test]
fn rc_10_what_waits_for_providers_is_bounded_too_and_keeps_nobody_from_a_model() {
    let mut world = World::calm(8, vec![model("m", 4)]);
    let mut settings = Settings { max_queued_per_model: 4, max_queued: 16, ..Settings::default() };
    settings.clients.default.max_concurrent = Some(1);
    world.tell(Event::Settings(Box::new(settings)));
    let of = |world: &mut World, client: &str, name: &str| {
        let ladder = ladder(&[name]);
        world.submit_with(name, 5, |submission| {
            (submission.client, submission.ladder, submission.category) = (client.into(), ladder, Category::Llm);
        })
    };
    let asked: Vec<RequestId> =
        (0..40).map(|n| of(&mut world, "greedy", ["claude:x", "openai:y", "other:z"][n % 3])).collect();
    let refused = asked.iter().filter(|request| matches!(world.fate(**request), Fate::Refused(_))).count();
    // One request is dispatched. The others wait, in the number that may wait for one model.
    assert_eq!((refused, world.core.queued()), (35, 4));
    let error = world.refusal(asked[39]);
    assert_eq!(error.reason, RefusalReason::QueueFull);
    assert!(error.retry_after.is_some());
    let local = of(&mut world, "modest", "m");
    world.run_for(60 * SECOND);
    assert_eq!(world.fate(local), &Fate::Answered);
    assert_eq!(world.core.queued(), 0);
    // A ladder skips a provider whose concurrent requests are all in use.
    let both = ladder(&["claude:x", "m"]);
    for _ in 0..5 {
        of(&mut world, "greedy", "claude:x");
    }
    let climbs =
        world.submit_with("claude:x", 5, |s| (s.client, s.ladder, s.category) = ("modest".into(), both, Category::Llm));
    assert_eq!(served(&world, climbs).1, 1);
}

#[test]
fn tr_2_a_warm_lower_rung_is_taken_unless_the_primary_is_pinned_to() {
    let mut world = World::calm(16, vec![model("big", 8), model("small", 4)]);
    slow_load(&mut world, "big");
    world.submit("small", 5);
    world.run_for(10 * SECOND);
    let request = submit(&mut world, &["big", "small"]);
    world.run_for(10 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);
    assert_eq!(rung(&world, request), (1, "sooner; big is not loaded (20.0 s)".into()));
    let decision = world.core.decisions().rev().find(|decision| decision.what == Verdict::Rung).unwrap();
    assert_eq!((decision.model.as_str(), decision.request), ("small", Some(request)));
    let pinned = world.submit_with("big", 5, |submission| {
        submission.ladder = Ladder { pin_primary: true, ..ladder(&["big", "small"]) };
    });
    world.run_for(30 * SECOND);
    assert_eq!(rung(&world, pinned), (0, "preferred; pin_primary".into()));
}

#[test]
fn tr_2_a_cold_primary_that_is_soon_there_is_waited_for() {
    let mut world = World::calm(16, vec![model("big", 4), model("small", 4)]);
    world.submit("small", 5);
    world.run_for(10 * SECOND);
    let request = submit(&mut world, &["big", "small"]);
    world.run_for(10 * SECOND);
    assert_eq!(rung(&world, request), (0, "preferred".into()));
}

#[test]
fn tr_2_a_load_that_fails_leads_to_the_next_rung_at_once() {
    let mut world = World::calm(16, vec![model("big", 4), model("small", 4)]);
    let request = submit(&mut world, &["big", "small"]);
    let second = submit(&mut world, &["big", "small"]);
    let plain = world.submit("big", 5);
    world.run_for(SECOND);
    world.exit("big", Some(WorkerExit::BadModel));
    assert!(matches!(world.fate(plain), Fate::Refused(_)));
    world.run_for(20 * SECOND);
    for request in [request, second] {
        assert_eq!(world.fate(request), &Fate::Answered);
        let (position, reason) = rung(&world, request);
        assert_eq!(position, 1);
        assert!(reason.starts_with("fallback; big: model 'big' could not be loaded"), "{reason}");
    }
    // A later request skips that rung at once.
    let late = submit(&mut world, &["big", "small"]);
    world.run_for(3 * SECOND);
    assert_eq!(rung(&world, late).0, 1);
}

#[test]
fn a_load_that_may_work_the_next_time_is_not_waited_for_where_another_rung_works() {
    let mut world = World::calm(16, vec![model("big", 4), model("small", 4)]);
    let plain = world.submit("big", 5);
    let request = submit(&mut world, &["big", "small"]);
    world.run_for(SECOND);
    world.exit("big", None);
    world.run_for(20 * SECOND);
    assert_eq!((world.fate(plain), world.fate(request)), (&Fate::Answered, &Fate::Answered));
    assert_eq!(rung(&world, request).0, 1);
}

#[test]
fn a_crash_before_any_byte_leads_to_the_next_rung() {
    let mut world = World::calm(16, vec![model("big", 4), model("small", 4)]);
    world.submit("big", 5);
    world.run_for(10 * SECOND);
    for _ in 0..20 {
        let request = submit(&mut world, &["big", "small"]);
        world.run_for(SECOND);
        if !matches!(world.fate(request), Fate::Running(..)) {
            world.run_for(60 * SECOND);
            continue;
        }
        world.kill("big");
        world.run_for(20 * SECOND);
        if *world.fate(request) == Fate::Answered {
            let (position, reason) = rung(&world, request);
            assert_eq!(position, 1, "{reason}");
            assert!(reason.contains("went away"), "{reason}");
            return;
        }
    }
    panic!("no request was lost before its answer");
}

#[test]
fn a_rung_that_is_unknown_or_cannot_do_it_is_passed_over_and_all_are_named_when_none_is_left() {
    let mut embedder = model("embedder", 1);
    embedder.category = Category::Embedding;
    let mut world = World::calm(16, vec![model("small", 4), embedder]);
    let request = submit(&mut world, &["nobody", "embedder", "small"]);
    world.run_for(10 * SECOND);
    let (position, reason) = rung(&world, request);
    assert_eq!(position, 2);
    assert!(reason.starts_with("fallback; nobody: the model 'nobody' was not found"), "{reason}");
    let refused = submit(&mut world, &["nobody", "embedder"]);
    let error = world.refusal(refused);
    assert_eq!(error.reason, RefusalReason::UnknownModel);
    assert!(error.message.contains("nor can 'embedder': model 'embedder' is of category"), "{}", error.message);
}

#[test]
fn rc_13_a_rung_that_would_be_too_late_gives_way_to_a_warm_one() {
    let mut world = World::calm(16, vec![model("big", 8), model("small", 4)]);
    slow_load(&mut world, "big");
    world.submit("small", 5);
    world.run_for(10 * SECOND);
    let deadline = world.now + 5 * SECOND;
    let in_time = world.submit_with("big", 5, |submission| {
        submission.ladder = ladder(&["big", "small"]);
        submission.deadline = Some(deadline);
    });
    world.run_for(4 * SECOND);
    assert_eq!(world.fate(in_time), &Fate::Answered);
    let (position, reason) = rung(&world, in_time);
    assert_eq!(position, 1);
    assert!(reason.contains("a load is expected to take 20.0 s"), "{reason}");
}

#[test]
fn a_provider_takes_what_comes_without_a_slot_and_its_failure_leads_on() {
    let mut world = World::calm(16, vec![model("small", 4)]);
    let request = submit(&mut world, &["claude:opus", "small"]);
    assert_eq!(world.fate(request), &Fate::Elsewhere("claude".into()));
    assert_eq!(served(&world, request), ("claude:opus".into(), 0, "preferred".into()));
    assert_eq!(world.core.slots().len(), 0);
    assert_eq!(world.core.models().len(), 1, "a provider is no model");
    world.run_for(5 * SECOND);
    assert_eq!(world.fate(request), &Fate::Answered);

    let failed = submit(&mut world, &["claude:opus", "small"]);
    world.fates.insert(failed, Fate::Waiting);
    let busy = ApiError::new(ErrorCode::BackendError, "the provider is busy").retry_after(30 * SECOND);
    let busy = Refusal::of_rung(busy, true);
    world.tell(Event::RungFailed { request: failed, error: busy.clone() });
    world.run_for(10 * SECOND);
    assert_eq!(world.fate(failed), &Fate::Answered);
    assert_eq!(rung(&world, failed), (1, "fallback; claude:opus: the provider is busy".into()));
    let decision = world.core.decisions().rev().find(|decision| decision.what == Verdict::Refuse).unwrap();
    assert_eq!((decision.model.as_str(), decision.request), ("claude", Some(failed)));
    assert_eq!(decision.reasons, ["the provider is busy", "it is asked nothing for 30 s"]);

    // The provider's answer stated the earliest time of the next request. Until then it gets no requests, and a request
    // without another rung is refused.
    let meanwhile = submit(&mut world, &["claude:opus", "small"]);
    assert_eq!(rung(&world, meanwhile).0, 1);
    let alone = submit(&mut world, &["claude:opus"]);
    assert_eq!(world.refusal(alone).message, "the provider is busy");
    world.run_for(30 * SECOND);
    let later = submit(&mut world, &["claude:opus", "small"]);
    assert_eq!(world.fate(later), &Fate::Elsewhere("claude".into()));
}

#[test]
fn rc_9_a_clients_limit_holds_for_providers_too() {
    let mut world = World::calm(16, vec![model("small", 4)]);
    let mut settings = Settings::default();
    settings.clients.default.max_concurrent = Some(1);
    world.tell(Event::Settings(Box::new(settings)));
    let first = submit(&mut world, &["claude:opus"]);
    let second = submit(&mut world, &["claude:opus"]);
    assert_eq!(world.fate(first), &Fate::Elsewhere("claude".into()));
    assert_eq!(world.fate(second), &Fate::Waiting);
    assert!(matches!(world.core.why(second), Some(WaitReason::ClientLimit { .. })));
    world.run_for(10 * SECOND);
    assert_eq!((world.fate(first), world.fate(second)), (&Fate::Answered, &Fate::Answered));
}

#[test]
fn a_plan_says_which_rung_and_how_all_of_them_stand() {
    let mut world = World::calm(16, vec![model("big", 8), model("small", 4)]);
    slow_load(&mut world, "big");
    world.submit("small", 5);
    world.run_for(10 * SECOND);
    let question =
        crate::PlanQuestion { ladder: ladder(&["big", "small", "claude:opus", "nobody"]), ..Default::default() };
    let plan = world.core.plan(world.now, &question).unwrap();
    assert_eq!((plan.model.as_str(), plan.rung.position), ("small", 1));
    let states: Vec<String> = plan.ladder.iter().map(|rung| format!("{} {}", rung.model, rung.state)).collect();
    assert_eq!(states[0], "big is not loaded (20.0 s)");
    assert!(states[3].starts_with("nobody the model 'nobody' was not found"), "{}", states[3]);
    assert_eq!(plan.ladder[1].expected, Some(Duration::ZERO));
    let elsewhere = crate::PlanQuestion { ladder: ladder(&["claude:opus"]), ..Default::default() };
    let plan = world.core.plan(world.now, &elsewhere).unwrap();
    assert_eq!(plan.step, crate::PlannedStep::Elsewhere { provider: "claude".into() });
}

#[test]
fn a_request_that_waits_for_room_goes_to_a_rung_that_was_loaded_meanwhile() {
    let mut world = World::calm(8, vec![model("busy", 6), model("big", 6), model("small", 2)]);
    world.behaviour.answer = (600 * SECOND, 600 * SECOND);
    world.submit("busy", 0);
    world.run_for(10 * SECOND);
    world.behaviour.answer = (2 * SECOND, 2 * SECOND);
    // Loading the small model is not worth it by itself. The big one's lack of room costs 120 s; the small one's load
    // takes 3 s more than the patience.
    let patience = 125 * SECOND;
    let request = world.submit_with("big", 5, |submission| {
        submission.ladder = Ladder { patience, ..ladder(&["big", "small"]) };
    });
    let pinned = world.submit_with("big", 5, |submission| {
        submission.ladder = Ladder { patience, pin_primary: true, ..ladder(&["big", "small"]) };
    });
    world.run_for(20 * SECOND);
    assert_eq!((world.fate(request), world.fate(pinned)), (&Fate::Waiting, &Fate::Waiting));
    world.submit("small", 5);
    world.run_for(20 * SECOND);
    assert_eq!((world.fate(request), world.fate(pinned)), (&Fate::Answered, &Fate::Waiting));
    assert_eq!(rung(&world, request), (1, "sooner; big is not loaded and has no room".into()));
}

#[test]
fn rc_27_embeddings_go_to_providers_that_give_them_and_else_down_the_ladder() {
    let settings = Settings { embedding_providers: ["lan".to_owned()].into(), ..Settings::default() };
    let mut world = World::new(settings, Behaviour::default(), 1);
    world.tell(Event::DeviceObserved(device("cpu", 16)));
    world.catalog(vec![ModelDescription { category: Category::Embedding, ..model("own", 1) }]);
    let ask = |world: &mut World, names: &[&str], category| {
        let ladder = ladder(names);
        world.submit_with(names[0], 5, |submission| (submission.ladder, submission.category) = (ladder, category))
    };
    let vectors = ask(&mut world, &["lan:bge"], Category::Embedding);
    assert_eq!(served(&world, vectors).0, "lan:bge");
    let chat = ask(&mut world, &["lan:m"], Category::Llm);
    assert_eq!(served(&world, chat).0, "lan:m");
    for (names, category, word) in [
        (["claude:opus"], Category::Embedding, "asked for chats"),
        (["lan:bge"], Category::Reranking, "asked for chats and embeddings"),
    ] {
        let refused = ask(&mut world, &names, category);
        let error = world.refusal(refused);
        assert_eq!(error.reason, RefusalReason::WrongKind);
        assert!(error.message.ends_with(word), "{}", error.message);
    }
    let own = ask(&mut world, &["claude:opus", "own"], Category::Embedding);
    world.run_for(10 * SECOND);
    assert_eq!(rung(&world, own).0, 1);
}

#[test]
fn rc_27_a_ladder_of_providers_is_planned_for_what_it_is_asked_for() {
    let settings = Settings { embedding_providers: ["lan".to_owned()].into(), ..Settings::default() };
    let world = World::new(settings, Behaviour::default(), 1);
    let plan = |names: &[&str], category| {
        world.core.plan(world.now, &PlanQuestion { ladder: ladder(names), category, ..PlanQuestion::default() })
    };
    let model = |category| plan(&["claude:opus", "lan:bge"], category).unwrap().model.to_string();
    assert_eq!(model(Some(Category::Embedding)), "lan:bge", "as a request for vectors would go");
    assert_eq!((model(None).as_str(), model(Some(Category::Llm)).as_str()), ("claude:opus", "claude:opus"));
    let refused = plan(&["claude:opus"], Some(Category::Embedding)).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::WrongKind, "{refused}");
}
