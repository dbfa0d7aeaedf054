//! Time per event with a long queue: 1,000 models, four GPUs with room for ten each, 100,000 requests waiting.
//!
//! `cargo bench -p model-boss-core --bench queue` prints nanoseconds by kind of event. Each of seven rounds handles
//! the same events. An event's time in its fastest round is its own work. The additional time in other rounds is due
//! to the machine, such as other processes on the same CPU. Both are printed.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use model_boss_core::{
    DeviceObservation, Effect, Event, Input, Ladder, ModelDescription, Moment, Order, RequestOutcome, Scheduler,
    Settings, Submission,
};
use model_boss_protocol::{ByteCount, Category, DeviceId, Priority, RequestId};

const MODELS: u64 = 1_000;
const QUEUED: u64 = 100_000;
const EVENTS: u64 = 400_000;
/// The number of rounds, unless `-- --rounds N` sets another.
const ROUNDS: usize = 7;

fn main() {
    let rounds =
        std::env::args().skip_while(|arg| arg != "--rounds").nth(1).and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let first = round();
    let mut least = first.times.clone();
    let mut all = first.times.clone();
    for _ in 1..rounds {
        let again = round().times;
        assert_eq!(again.len(), least.len(), "the same events give the same effects");
        for ((_, least), (_, took)) in least.iter_mut().zip(&again) {
            *least = (*least).min(*took);
        }
        all.extend(again);
    }
    println!("{MODELS} models, {} requests waiting at the end, {rounds} rounds", first.core.queued());
    table("each event in the fastest round", least);
    table("in every round", all);
}

/// Handles all events once.
fn round() -> Bench {
    let settings = Settings { max_queued_per_model: usize::MAX, max_queued: usize::MAX, ..Settings::default() };
    let mut bench = Bench {
        core: Scheduler::new(settings, Moment::START),
        now: Moment::START,
        news: BTreeMap::new(),
        running: VecDeque::new(),
        times: Vec::new(),
        measured: false,
        seed: 1,
        next: 1,
        reported: 0,
    };
    for gpu in 0..4 {
        bench.tell(
            "setup",
            Event::DeviceObserved(DeviceObservation {
                device: DeviceId::Cuda(gpu),
                capacity: Some(ByteCount::gib(80)),
                reserve: ByteCount::ZERO,
                foreign: Some(ByteCount::ZERO),
                retention: None,
                exclusive: false,
                leaking: ByteCount::ZERO,
                lost: false,
            }),
        );
    }
    bench.tell("setup", Event::Catalog((0..MODELS).map(model).collect()));
    while (bench.core.queued() as u64) < QUEUED {
        bench.submit();
        bench.hear_the_news();
    }
    bench.measured = true;
    for turn in 0..EVENTS {
        // Time passes as if 2,000 events came per second.
        bench.now = bench.now + Duration::from_micros(500);
        match turn % 10 {
            0..=4 => bench.submit(),
            5 => {
                let id = RequestId(bench.below(bench.next));
                bench.tell("cancel", Event::Cancel(id));
            }
            _ if bench.core.next_wake().is_some_and(|wake| wake <= bench.now) => bench.tell("tick", Event::Tick),
            _ => bench.finish_one(),
        }
        bench.hear_the_news();
    }
    bench
}

fn table(title: &str, times: Vec<(&'static str, u64)>) {
    println!("{title}");
    println!(
        "{:<10} {:>9} {:>8} {:>8} {:>8} {:>10} {:>11}",
        "event", "count", "p50 ns", "p99 ns", "p99.9 ns", "max ns", "over 100 us"
    );
    let mut by_kind: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for &(kind, took) in &times {
        by_kind.entry(kind).or_default().push(took);
    }
    for (kind, times) in by_kind {
        row(kind, times);
    }
    row("all", times.into_iter().map(|(_, took)| took).collect());
}

fn row(kind: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let over = times.len() - times.partition_point(|took| *took <= 100_000);
    println!(
        "{kind:<10} {:>9} {:>8} {:>8} {:>8} {:>10} {over:>11}",
        times.len(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn model(number: u64) -> ModelDescription {
    ModelDescription { max_concurrent: 4, ..ModelDescription::plain(format!("model-{number:04}"), ByteCount::gib(8)) }
}

struct Bench {
    core: Scheduler,
    now: Moment,
    /// Future reports of workers and ledger, by the moment they happen.
    news: BTreeMap<(Moment, u64), (&'static str, Event)>,
    running: VecDeque<RequestId>,
    times: Vec<(&'static str, u64)>,
    measured: bool,
    seed: u64,
    next: u64,
    reported: u64,
}

impl Bench {
    fn submit(&mut self) {
        let id = RequestId(self.next);
        self.next += 1;
        let number = (self.below(MODELS) * self.below(MODELS)) / MODELS;
        let priority = [2, 5, 5, 5, 8][self.below(5) as usize];
        self.tell(
            "submit",
            Order::Submit(Submission {
                id,
                ladder: Ladder::from(format!("model-{number:04}").as_str()),
                category: Category::Llm,
                client: format!("client-{}", id.0 % 50).into(),
                priority: Some(Priority::new(priority).unwrap_or_default()),
                deadline: None,
                keep_alive: None,
                work: None,
            }),
        );
    }

    fn finish_one(&mut self) {
        if let Some(request) = self.running.pop_front() {
            self.tell("finished", Event::Finished { request, outcome: RequestOutcome::Answered, tokens: Some(500) });
        }
    }

    fn tell(&mut self, kind: &'static str, input: impl Into<Input>) {
        let began = Instant::now();
        let effects = self.core.handle(self.now, input);
        let took = began.elapsed();
        if self.measured {
            self.times.push((kind, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)));
        }
        for effect in effects {
            match effect {
                Effect::AcquireLease { slot, .. } => {
                    self.after(1, "lease", Event::LeaseGranted { slot });
                }
                Effect::Spawn { slot, .. } => {
                    self.after(3_000, "ready", Event::WorkerReady { slot, context_length: None, cores: None });
                }
                Effect::Stop { slot, .. } => {
                    let exit = model_boss_core::ExitReport {
                        reason: None,
                        description: String::new(),
                        last_lines: Vec::new(),
                    };
                    self.after(100, "exited", Event::WorkerExited { slot, exit });
                }
                Effect::ReleaseLease { slot } => {
                    self.after(50, "released", Event::LeaseReleased { slot });
                }
                Effect::Dispatch { request, .. } | Effect::DispatchCloud { request, .. } => {
                    self.running.push_back(request)
                }
                Effect::AwaitLease { .. }
                | Effect::CancelLease { .. }
                | Effect::ShareCores { .. }
                | Effect::ForgetModel { .. }
                | Effect::Learned(_)
                | Effect::Done { .. }
                | Effect::Refuse { .. }
                | Effect::Recall { .. }
                | Effect::Drained => {}
            }
        }
    }

    fn after(&mut self, millis: u64, kind: &'static str, event: Event) {
        self.reported += 1;
        self.news.insert((self.now + Duration::from_millis(millis), self.reported), (kind, event));
    }

    fn hear_the_news(&mut self) {
        while let Some(entry) = self.news.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (kind, event) = entry.remove();
            self.tell(kind, event);
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % n.max(1)
    }
}
