//! The threads that compute on the CPU.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use model_boss_cores::{ThreadPlan, plan, read};
use model_boss_protocol::{CpuShare, WorkerCores, WorkerExit};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use tracing::{debug, info, warn};

use crate::failure::LoadFailure;

/// The variable by which rayon's users set the number of threads.
const RAYON_THREADS: &str = "RAYON_NUM_THREADS";

/// The threads of this process that compute on the CPU.
#[derive(Clone, Debug)]
pub(crate) struct ComputeThreads {
    /// The processors that each thread may run on; `None`: all.
    places: Arc<[Option<BTreeSet<usize>>]>,
    /// The physical cores that a process may use on this machine, within its quota.
    cores: usize,
}

impl ComputeThreads {
    /// Threads that may run anywhere, on a machine with a core for each.
    #[cfg(test)]
    pub(crate) fn anywhere(count: usize) -> Self {
        Self { places: vec![None; count].into(), cores: count }
    }

    /// The number of threads.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// The threads and cores as the coordinator learns them.
    pub(crate) fn as_cores(&self) -> WorkerCores {
        let number = |count| u32::try_from(count).ok().and_then(NonZero::new).unwrap_or(NonZero::<u32>::MIN);
        WorkerCores { threads: number(self.count()), cores: number(self.cores) }
    }

    /// A pool of this share of the threads. A thread of a share runs where one of all threads would: models that share
    /// the cores would otherwise all crowd on the first ones.
    pub(crate) fn pool(&self, share: CpuShare) -> Result<ThreadPool, ThreadPoolBuildError> {
        let count = (share.threads.get() as usize).min(self.count());
        let places = Arc::clone(&self.places);
        let start = move |thread: usize| {
            place(&places, thread);
            step_back(share.nice);
        };
        ThreadPoolBuilder::new().num_threads(count).thread_name(|n| format!("share-{n}")).start_handler(start).build()
    }
}

/// Plans the threads that products are shared by: as many as `asked` for, else as the machine's cores suggest.
pub(crate) fn plan_for(asked: Option<NonZero<u32>>) -> ComputeThreads {
    let fallback = available_parallelism().map_or(1, NonZero::get);
    let (topology, warning) = read(Path::new("/"), fallback);
    if let Some(warning) = warning.filter(|_| cfg!(target_os = "linux")) {
        warn!("{warning}");
    }
    let variable = || std::env::var(RAYON_THREADS).ok()?.parse::<usize>().ok().filter(|count| *count > 0);
    let asked = asked.map(|count| count.get() as usize).or_else(variable);
    let ThreadPlan { threads, warning, .. } = plan(&topology, asked);
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    ComputeThreads { places: threads.into(), cores: plan(&topology, None).threads.len() }
}

/// Starts these threads. It is called once, before anything computes.
pub(crate) fn start(threads: &ComputeThreads) -> Result<(), LoadFailure> {
    let (count, cores) = (threads.count(), threads.cores);
    let places = Arc::clone(&threads.places);
    let start = move |thread: usize| place(&places, thread);
    let pool = ThreadPoolBuilder::new().num_threads(count).thread_name(|n| format!("compute-{n}")).start_handler(start);
    pool.build_global().map_err(|error| {
        LoadFailure::message(WorkerExit::OutOfMemory, format!("cannot start {count} threads to compute on: {error}"))
    })?;
    info!(threads = count, cores, "computing on the CPU");
    Ok(())
}

/// Keeps the calling thread on the processors of its place. A system that refuses leaves it where it is.
fn place(places: &[Option<BTreeSet<usize>>], thread: usize) {
    let Some(cpus) = places.get(thread).and_then(Option::as_ref) else { return };
    let mut set = CpuSet::new();
    let placed = cpus.iter().try_for_each(|cpu| set.set(*cpu)).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    if let Err(error) = placed {
        debug!(?cpus, "a thread is not kept on its processors: {error}");
    }
}

/// Gives the calling thread a priority lower by so much than the process has, for good: without rights no thread can
/// raise its own again. Elsewhere than on Linux the call is about the whole process, so it is left out.
fn step_back(nice: u8) {
    use rustix::process::{getpriority_process, setpriority_process};
    if nice == 0 || !cfg!(target_os = "linux") {
        return;
    }
    let lower = getpriority_process(None).and_then(|now| setpriority_process(None, (now + i32::from(nice)).min(19)));
    if let Err(error) = lower {
        debug!(nice, "a thread keeps its priority: {error}");
    }
}
