//! The effect of the order of requests when models take turns in memory. The scheduler is compared with first come,
//! first served and least-recently-used eviction, and on small machines with the best order that a search finds. There
//! is one device, in simulated time. Counts are exact and the same on every machine.
//!
//! `cargo bench -p model-boss-core --bench swap_order`

mod optimum;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use model_boss_core::{
    DeviceObservation, Effect, Event, ExitReport, Input, Ladder, ModelDescription, Moment, Order, RequestOutcome,
    Scheduler, Settings, Submission,
};
use model_boss_protocol::{ByteCount, Category, DeviceId, Priority, RequestId};

const HOUR: Duration = Duration::from_secs(3_600);

/// A machine and its load.
struct Scenario {
    name: &'static str,
    models: usize,
    /// The number of models that fit at once.
    room: usize,
    load: Duration,
    answer: Duration,
    /// The number of concurrent requests of one model.
    at_once: usize,
    /// The number of open requests for all models together at any time. The number saturates the machine, as do users
    /// with the same number of open conversations.
    open: usize,
}

const SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "3 models, room for 2",
        models: 3,
        room: 2,
        load: Duration::from_secs(3),
        answer: Duration::from_secs(2),
        at_once: 4,
        open: 48,
    },
    Scenario {
        name: "4 models, room for 3",
        models: 4,
        room: 3,
        load: Duration::from_secs(3),
        answer: Duration::from_secs(2),
        at_once: 4,
        open: 64,
    },
    Scenario {
        name: "8 models, room for 7",
        models: 8,
        room: 7,
        load: Duration::from_secs(10),
        answer: Duration::from_secs(2),
        at_once: 4,
        open: 128,
    },
];

/// Machines that are small enough for a search, and the span of the search.
const SMALL: [Scenario; 3] = [
    Scenario {
        name: "3 models, room for 2",
        models: 3,
        room: 2,
        load: Duration::from_secs(3),
        answer: Duration::from_secs(2),
        at_once: 2,
        open: 12,
    },
    Scenario {
        name: "the same, more open",
        models: 3,
        room: 2,
        load: Duration::from_secs(3),
        answer: Duration::from_secs(2),
        at_once: 2,
        open: 18,
    },
    Scenario {
        name: "4 models, room for 3",
        models: 4,
        room: 3,
        load: Duration::from_secs(3),
        answer: Duration::from_secs(2),
        at_once: 1,
        open: 12,
    },
];
const SEARCHED: Duration = Duration::from_secs(90);

/// The results of a simulated hour.
struct Result {
    answers: usize,
    loads: usize,
    longest_wait: Duration,
}

fn main() {
    println!("One simulated hour each; arrivals interleave all models at random (seeded), equal priorities.");
    println!("{:<22} {:<34} {:>8} {:>6} {:>13} {:>7}", "machine", "order", "answers", "loads", "longest wait", "ratio");
    for scenario in &SCENARIOS {
        let strict = fifo_lru(scenario, Passing::Never);
        let passing = fifo_lru(scenario, Passing::WhenResident);
        let ours = scheduler(scenario, HOUR);
        let rows =
            [("first in, first out + LRU", &strict), ("the same, resident ones pass", &passing), ("model-boss", &ours)];
        for (order, result) in rows {
            println!(
                "{:<22} {order:<34} {:>8} {:>6} {:>11.1} s {:>6.2}x",
                scenario.name,
                result.answers,
                result.loads,
                result.longest_wait.as_secs_f64(),
                ours.answers as f64 / result.answers as f64,
            );
        }
        // The time of a turn: a hold, the longest answer, the stop and a load. It counts once for each other model
        // that shares the place.
        let turn = scenario.load.saturating_mul(2).max(Duration::from_secs(10));
        let turn = turn.saturating_add(scenario.answer).saturating_add(scenario.load);
        let bound = turn * u32::try_from(scenario.models).unwrap_or(u32::MAX);
        let held = if ours.longest_wait <= bound { "held" } else { "MISSED" };
        println!("{:<22} wait bound of {:.0} s: {held}", "", bound.as_secs_f64());
    }
    println!(
        "\n{} s of small machines, beside the best order found by a search that knows all arrivals.",
        SEARCHED.as_secs()
    );
    for scenario in &SMALL {
        let best = optimum::search(scenario, SEARCHED);
        let ours = scheduler(scenario, SEARCHED);
        println!(
            "{:<22} {} answers, the search {}{}: {:.2}",
            scenario.name,
            ours.answers,
            best.answers,
            if best.is_exact { " (exact)" } else { " (found)" },
            ours.answers as f64 / best.answers as f64,
        );
    }
}

/// A seeded random number generator (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).unwrap_or(0)
    }
}

/// Whether a request may overtake an earlier one that waits for a load.
#[derive(Clone, Copy, PartialEq)]
enum Passing {
    Never,
    WhenResident,
}

/// First come, first served; the model used longest ago is evicted. This is the policy of a simple router.
fn fifo_lru(scenario: &Scenario, passing: Passing) -> Result {
    #[derive(Clone, Copy)]
    struct Slot {
        model: usize,
        ready: Duration,
        used: Duration,
    }
    let mut dice = Dice(7);
    let mut now = Duration::ZERO;
    let mut queue: VecDeque<(usize, Duration)> = VecDeque::new();
    let mut slots: Vec<Slot> = Vec::new();
    let mut running: Vec<(Duration, usize)> = Vec::new();
    let mut result = Result { answers: 0, loads: 0, longest_wait: Duration::ZERO };
    while now < HOUR {
        while queue.len() + running.len() < scenario.open {
            queue.push_back((dice.below(scenario.models), now));
        }
        let mut place = 0;
        let mut load_waits = false;
        while place < queue.len() {
            let (model, arrived) = queue[place];
            let busy = running.iter().filter(|(_, of)| *of == model).count();
            if let Some(slot) = slots.iter_mut().find(|slot| slot.model == model) {
                if slot.ready <= now && busy < scenario.at_once {
                    slot.used = now;
                    running.push((now.saturating_add(scenario.answer), model));
                    result.longest_wait = result.longest_wait.max(now.saturating_sub(arrived));
                    queue.remove(place);
                    continue;
                }
            } else if !load_waits {
                // Loads happen one after another on a device, as in the scheduler.
                let loading = slots.iter().any(|slot| slot.ready > now);
                if !loading && slots.len() >= scenario.room {
                    let idle = |slot: &&Slot| !running.iter().any(|(_, of)| *of == slot.model);
                    let oldest = slots.iter().filter(idle).min_by_key(|slot| slot.used).map(|slot| slot.model);
                    slots.retain(|slot| Some(slot.model) != oldest);
                }
                if !loading && slots.len() < scenario.room {
                    let ready = now.saturating_add(scenario.load);
                    slots.push(Slot { model, ready, used: ready });
                    result.loads += 1;
                }
                load_waits = true;
            }
            if passing == Passing::Never {
                break;
            }
            place += 1;
        }
        let loads = slots.iter().map(|slot| slot.ready).filter(|ready| *ready > now);
        let Some(next) = running.iter().map(|(end, _)| *end).chain(loads).min() else { break };
        now = next;
        let before = running.len();
        running.retain(|(end, _)| *end > now);
        result.answers += before - running.len();
    }
    // Requests that still wait count with their waits so far.
    let oldest = queue.iter().map(|(_, arrived)| now.saturating_sub(*arrived)).max().unwrap_or_default();
    result.longest_wait = result.longest_wait.max(oldest);
    result
}

/// The same simulated span with the scheduler.
fn scheduler(scenario: &Scenario, span: Duration) -> Result {
    let settings = Settings { max_queued_per_model: usize::MAX, max_queued: usize::MAX, ..Settings::default() };
    let mut shell = Shell {
        core: Scheduler::new(settings, Moment::START),
        now: Moment::START,
        load: scenario.load,
        answer: scenario.answer,
        news: BTreeMap::new(),
        numbered: 0,
        arrived: BTreeMap::new(),
        result: Result { answers: 0, loads: 0, longest_wait: Duration::ZERO },
    };
    shell.tell(Event::DeviceObserved(DeviceObservation {
        device: DeviceId::Cuda(0),
        capacity: Some(ByteCount::gib(scenario.room as u64)),
        reserve: ByteCount::ZERO,
        foreign: Some(ByteCount::ZERO),
        retention: None,
        exclusive: false,
        leaking: ByteCount::ZERO,
        lost: false,
    }));
    shell.tell(Event::Catalog((0..scenario.models).map(|n| model(n, scenario.at_once)).collect()));
    let mut dice = Dice(7);
    let mut next = 0;
    loop {
        while shell.core.queued() + shell.core.running() < scenario.open {
            next += 1;
            shell.arrived.insert(RequestId(next), shell.now);
            shell.tell(Order::Submit(Submission {
                id: RequestId(next),
                ladder: Ladder::from(format!("model-{}", dice.below(scenario.models)).as_str()),
                category: Category::Llm,
                client: format!("client-{}", next % 8).into(),
                priority: Some(Priority::NORMAL),
                deadline: None,
                keep_alive: None,
                work: None,
            }));
        }
        if !shell.step(Moment::at(span)) {
            break;
        }
    }
    let oldest = shell.arrived.values().map(|arrived| shell.now.since(*arrived)).max().unwrap_or_default();
    shell.result.longest_wait = shell.result.longest_wait.max(oldest);
    shell.result
}

fn model(number: usize, at_once: usize) -> ModelDescription {
    ModelDescription {
        max_concurrent: u32::try_from(at_once).unwrap_or(1),
        ..ModelDescription::plain(format!("model-{number}"), ByteCount::gib(1))
    }
}

/// Carries out the scheduler's effects in simulated time, and counts.
struct Shell {
    core: Scheduler,
    now: Moment,
    load: Duration,
    answer: Duration,
    news: BTreeMap<(Moment, u64), Event>,
    numbered: u64,
    arrived: BTreeMap<RequestId, Moment>,
    result: Result,
}

impl Shell {
    /// Advances to the next event; false when there is none until the end.
    fn step(&mut self, end: Moment) -> bool {
        let news = self.news.keys().next().map(|(at, _)| *at);
        let Some(at) = [news, self.core.next_wake()].into_iter().flatten().min() else { return false };
        if at > end {
            return false;
        }
        self.now = self.now.max(at);
        let event = match self.news.first_entry().filter(|entry| entry.key().0 <= self.now) {
            Some(entry) => entry.remove(),
            None => Event::Tick,
        };
        if let Event::Finished { .. } = event {
            self.result.answers += 1;
        }
        self.tell(event);
        true
    }

    fn tell(&mut self, input: impl Into<Input>) {
        for effect in self.core.handle(self.now, input) {
            match effect {
                Effect::AcquireLease { slot, .. } => {
                    self.after(Duration::ZERO, Event::LeaseGranted { slot });
                }
                Effect::Spawn { slot, .. } => {
                    self.result.loads += 1;
                    self.after(self.load, Event::WorkerReady { slot, context_length: None, cores: None });
                }
                Effect::Stop { slot, .. } => {
                    let exit = ExitReport { reason: None, description: String::new(), last_lines: Vec::new() };
                    self.after(Duration::ZERO, Event::WorkerExited { slot, exit });
                }
                Effect::ReleaseLease { slot } => {
                    self.after(Duration::ZERO, Event::LeaseReleased { slot });
                }
                Effect::Dispatch { request, .. } => {
                    if let Some(arrived) = self.arrived.remove(&request) {
                        self.result.longest_wait = self.result.longest_wait.max(self.now.since(arrived));
                    }
                    let outcome = RequestOutcome::Answered;
                    self.after(self.answer, Event::Finished { request, outcome, tokens: Some(200) });
                }
                _ => {}
            }
        }
    }

    fn after(&mut self, span: Duration, event: Event) {
        self.numbered += 1;
        self.news.insert((self.now + span, self.numbered), event);
    }
}
