//! A request is owned by its ticket at every stage: whenever the ticket is dropped, the scheduler gets a report of the
//! end.

use std::time::Duration;

use model_boss_core::{AdapterName, Event, Principal, RequestOutcome, RungChoice};
use model_boss_protocol::{ApiError, Category, ClientId, ErrorCode, RequestId};
use model_boss_tasks::{CloudFallback, NameQuestion, Providers, Surroundings, TaskNames, operate_machine, resolve};
use tokio::sync::oneshot;

use super::*;
use crate::refusals::of_rung;

/// A scheduling handle whose driver is the test itself.
struct Bench {
    scheduling: Scheduling,
    inbox: Inbox,
}

impl Bench {
    fn new() -> Self {
        let (news, inbox) = News::channel();
        Self { scheduling: Scheduling::new(news), inbox }
    }

    fn submit(&self) -> Ticket {
        self.scheduling.submit(Wish {
            permit: within(|around| {
                let client = ClientId::from("me");
                let question =
                    NameQuestion { model: Some("claude:opus"), task: None, client: &client, no_fallback: false };
                resolve(&question, around).unwrap().permit
            }),
            category: Category::Llm,
            priority: None,
            deadline: None,
            keep_alive: None,
            work: None,
        })
    }

    fn unload(&self) -> Ticket {
        self.scheduling.unload_all(within(|around| operate_machine(Principal::Operator, around).unwrap()))
    }

    /// The sender of the verdict on the last request.
    fn asked(&mut self) -> oneshot::Sender<Ruling> {
        match self.inbox.0.try_recv() {
            Ok(DriverInput::Ask { reply, .. }) => reply,
            _ => panic!("something is asked"),
        }
    }

    /// All reports besides requests.
    fn reported(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.inbox.0.try_recv().ok())
            .map(|message| match message {
                DriverInput::Event(event) => event,
                _ => panic!("only events are reported"),
            })
            .collect()
    }

    fn is_cancelled(&mut self, request: RequestId) -> bool {
        matches!(*self.reported(), [Event::Cancel(cancelled)] if cancelled == request)
    }
}

fn within<T>(decide: impl FnOnce(&Surroundings<'_>) -> T) -> T {
    let (names, providers) = (TaskNames::default(), Providers::new());
    let cloud_fallback = CloudFallback::Allowed;
    let (model_named, adapter_named) = (&|_: &str| None, &|_: &str| AdapterName::Other);
    decide(&Surroundings { names: &names, providers: &providers, cloud_fallback, model_named, adapter_named })
}

fn turn() -> Ruling {
    turn_with(oneshot::channel().1)
}

fn turn_with(recall: Recall) -> Ruling {
    let place = Destination::Cloud { provider: "claude".to_owned(), model: "opus".to_owned() };
    let rung = RungChoice { position: 0, reason: model_boss_core::RungReason::Only };
    Ruling::Dispatched(Dispatched { place, rung, queued: Duration::ZERO, loading: Duration::ZERO }, recall)
}

fn error(code: ErrorCode) -> ApiError {
    ApiError::new(code, "no")
}

#[test]
fn a_ticket_dropped_while_it_waits_ends_its_request() {
    let mut bench = Bench::new();
    let ticket = bench.submit();
    let request = ticket.request();
    let reply = bench.asked();
    drop(ticket);
    assert!(bench.is_cancelled(request));
    assert!(reply.send(turn()).is_err());
}

#[test]
fn a_turn_that_nobody_reads_goes_with_its_ticket() {
    let mut bench = Bench::new();
    let ticket = bench.submit();
    let request = ticket.request();
    assert!(bench.asked().send(turn()).is_ok());
    drop(ticket);
    assert!(bench.is_cancelled(request));
}

#[tokio::test]
async fn a_request_that_is_answered_ends_with_its_ticket_and_only_once() {
    let mut bench = Bench::new();
    let mut ticket = bench.submit();
    let request = ticket.request();
    assert!(bench.asked().send(turn()).is_ok());
    ticket.dispatched().await.unwrap();
    drop(ticket);
    assert!(bench.is_cancelled(request));

    let mut ticket = bench.submit();
    assert!(bench.asked().send(turn()).is_ok());
    ticket.dispatched().await.unwrap();
    ticket.finish(RequestOutcome::Answered, Some(3));
    assert!(matches!(*bench.reported(), [Event::Finished { outcome: RequestOutcome::Answered, tokens: Some(3), .. }]));
}

#[tokio::test]
async fn another_turn_that_nobody_reads_goes_with_its_ticket() {
    let again: [fn(&mut Ticket); 2] = [Ticket::lost, |ticket| ticket.rung_failed(error(ErrorCode::BackendError))];
    for again in again {
        for turn_comes in [false, true] {
            let mut bench = Bench::new();
            let mut ticket = bench.submit();
            let request = ticket.request();
            assert!(bench.asked().send(turn()).is_ok());
            ticket.dispatched().await.unwrap();
            again(&mut ticket);
            let reply = bench.asked();
            let _reply = if turn_comes { reply.send(turn()).err().map(|_| unreachable!()) } else { Some(reply) };
            drop(ticket);
            assert!(bench.is_cancelled(request));
        }
    }
}

#[tokio::test]
async fn an_order_ends_with_its_caller_and_one_that_is_done_says_nothing_more() {
    let mut bench = Bench::new();
    let order = bench.unload();
    let request = order.request();
    let _reply = bench.asked();
    drop(order);
    assert!(bench.is_cancelled(request));

    let order = bench.unload();
    assert!(bench.asked().send(Ruling::Done).is_ok());
    order.done().await.unwrap();
    assert!(bench.reported().is_empty());

    let mut refused = bench.submit();
    assert!(bench.asked().send(Ruling::Refused(of_rung(error(ErrorCode::QueueFull)))).is_ok());
    let error = refused.dispatched().await.unwrap_err();
    refused.failed(&error);
    assert!(bench.reported().is_empty());
}

/// The shell's own clock may be ahead of the scheduler's, so a request past its deadline may still be queued or
/// dispatched there.
#[test]
fn out_of_time_before_the_turn_was_read_is_an_end_too() {
    let mut bench = Bench::new();
    let ticket = bench.submit();
    assert!(bench.asked().send(turn()).is_ok());
    ticket.failed(&error(ErrorCode::DeadlineExceeded));
    let reported = bench.reported();
    assert!(matches!(*reported, [Event::Finished { outcome: RequestOutcome::DeadlineExceeded, .. }]), "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn op_2_a_running_request_ends_by_an_order_and_goes_on_without_one() {
    let mut bench = Bench::new();
    let mut ticket = bench.submit();
    let (order, recall) = oneshot::channel();
    assert!(bench.asked().send(turn_with(recall)).is_ok());
    ticket.dispatched().await.unwrap();
    let waits = tokio::time::timeout(Duration::from_secs(3_600), ticket.recalled()).await;
    assert!(waits.is_err(), "{waits:?}");
    order.send(of_rung(error(ErrorCode::RequestCancelled))).unwrap();
    let error = ticket.recalled().await;
    assert_eq!(error.code, ErrorCode::RequestCancelled);
    ticket.failed(&error);
    let reported = bench.reported();
    assert!(matches!(*reported, [Event::Finished { outcome: RequestOutcome::Cancelled, .. }]), "{reported:?}");
}

#[tokio::test(start_paused = true)]
async fn op_2_an_order_that_never_comes_ends_nothing() {
    let mut bench = Bench::new();
    let mut ticket = bench.submit();
    assert!(bench.asked().send(turn()).is_ok());
    ticket.dispatched().await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(3_600), ticket.recalled()).await.is_err());
}
