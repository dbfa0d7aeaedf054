//! Time and allocations of resolving a request's names: 1,000 models with an alias each, 100 tasks with five rungs,
//! 200 clients.
//!
//! `cargo bench -p model-boss-tasks --bench resolve` prints nanoseconds and allocations by kind of request.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use model_boss_core::AdapterName;
use model_boss_protocol::{ClientId, ModelId};
use model_boss_tasks::{CloudFallback, NameQuestion, Providers, Surroundings, TaskNames, TasksFile, resolve};

const MODELS: usize = 1_000;
const TASKS: usize = 100;
const CLIENTS: usize = 200;
/// The number of requests in a round, and of rounds; the median of the rounds counts.
const REQUESTS: usize = 20_000;
const ROUNDS: usize = 9;

/// An allocator that counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[allow(unsafe_code, reason = "an allocator is unsafe by its trait; every call goes to the system's as it is")]
// SAFETY: every method passes its arguments to `System`, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn file() -> TasksFile {
    let task = |n: usize| {
        let ladder: Vec<String> = (0..5).map(|rung| format!("\"alias-{}\"", (n * 7 + rung) % MODELS)).collect();
        format!(
            "  task-{n}: {{ladder: [{}], params: {{temperature: 0.2, max_tokens: 300, top_p: 0.9}}, budget_s: 30}}\n",
            ladder.join(", ")
        )
    };
    let client = |n: usize| {
        format!("  client-{n}: {{models: {{\"gpt-4o\": \"task:task-{}\"}}, allowed_models: [\"task:*\"]}}\n", n % TASKS)
    };
    let tasks: String = (0..TASKS).map(task).collect();
    let clients: String = (0..CLIENTS).map(client).collect();
    let text = format!("tasks:\n{tasks}clients:\n  default: {{max_concurrent: 8}}\n{clients}");
    TasksFile::read(&text, &Providers::new()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn main() {
    let models: HashMap<String, ModelId> = (0..MODELS)
        .flat_map(|n| {
            let id = ModelId::from(format!("model-{n}").as_str());
            [(format!("model-{n}"), id.clone()), (format!("alias-{n}"), id)]
        })
        .collect();
    let names = TaskNames::new(file());
    let providers = Providers::new();
    let model_named = |name: &str| models.get(name).cloned();
    let around = Surroundings {
        names: &names,
        providers: &providers,
        cloud_fallback: CloudFallback::Off,
        model_named: &model_named,
        adapter_named: &|_| AdapterName::Other,
    };
    let (anybody, known) = (ClientId::from("anybody"), ClientId::from("client-77"));
    let cases = [
        ("a model by its name", Some("model-500"), &anybody),
        ("a model by its alias", Some("alias-500"), &anybody),
        ("a task of five rungs", Some("task:task-50"), &anybody),
        ("a client's own name for a task", Some("gpt-4o"), &known),
    ];
    println!("{MODELS} models, {TASKS} tasks, {CLIENTS} clients; median of {ROUNDS} rounds");
    for (what, model, client) in cases {
        let question = NameQuestion { model, task: None, client, no_fallback: false };
        let mut rounds: Vec<(u128, u64)> = (0..ROUNDS)
            .map(|_| {
                let (before, began) = (ALLOCATIONS.load(Ordering::Relaxed), Instant::now());
                for _ in 0..REQUESTS {
                    let resolved = resolve(black_box(&question), black_box(&around));
                    drop(black_box(resolved));
                }
                let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
                (began.elapsed().as_nanos() / REQUESTS as u128, allocations / REQUESTS as u64)
            })
            .collect();
        rounds.sort_unstable();
        let (nanoseconds, allocations) = rounds[ROUNDS / 2];
        println!("{what:32} {nanoseconds:>6} ns {allocations:>4} allocations");
    }
}
