//! The threads that compute on the CPU.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::Path;
use std::thread::available_parallelism;

use model_boss_cores::{ThreadPlan, plan, read};
use model_boss_protocol::WorkerExit;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rayon::ThreadPoolBuilder;
use tracing::{debug, info, warn};

use crate::failure::LoadFailure;

/// The variable by which rayon's users set the number of threads.
const RAYON_THREADS: &str = "RAYON_NUM_THREADS";

/// Starts the threads that products are shared by: as many as `asked` for, else as the machine's cores suggest. Returns
/// their number. It is called once, before anything computes.
pub(crate) fn start(asked: Option<NonZero<u32>>) -> Result<usize, LoadFailure> {
    let fallback = available_parallelism().map_or(1, NonZero::get);
    let (topology, warning) = read(Path::new("/"), fallback);
    if let Some(warning) = warning.filter(|_| cfg!(target_os = "linux")) {
        warn!("{warning}");
    }
    let variable = || std::env::var(RAYON_THREADS).ok()?.parse::<usize>().ok().filter(|count| *count > 0);
    let asked = asked.map(|count| count.get() as usize).or_else(variable);
    let ThreadPlan { threads, cores, warning } = plan(&topology, asked);
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    let count = threads.len();
    let place = move |thread: usize| {
        if let Some(cpus) = threads.get(thread).and_then(Option::as_ref) {
            stay_on(cpus);
        }
    };
    let pool = ThreadPoolBuilder::new().num_threads(count).thread_name(|n| format!("compute-{n}")).start_handler(place);
    pool.build_global().map_err(|error| {
        LoadFailure::message(WorkerExit::OutOfMemory, format!("cannot start {count} threads to compute on: {error}"))
    })?;
    info!(threads = count, cores, "computing on the CPU");
    Ok(count)
}

/// Keeps the calling thread on some processors. A system that refuses leaves it where it is.
fn stay_on(cpus: &BTreeSet<usize>) {
    let mut set = CpuSet::new();
    let placed = cpus.iter().try_for_each(|cpu| set.set(*cpu)).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    if let Err(error) = placed {
        debug!(?cpus, "a thread is not kept on its processors: {error}");
    }
}
