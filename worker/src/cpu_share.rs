//! The threads that each step of the engine runs on: all of the process, or the share that the coordinator gives it
//! while other models compute on the same cores (FA-5).

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use model_boss_protocol::CpuShare;
use rayon::ThreadPool;
use tracing::{debug, warn};

use crate::gate::ShareOrders;
use crate::threads::ComputeThreads;

/// The file in which Linux keeps the priority of the process's session.
pub(crate) const AUTOGROUP: &str = "/proc/self/autogroup";

/// The threads of the next step, by the coordinator's last order.
pub(crate) struct StepThreads {
    threads: ComputeThreads,
    shares: ShareOrders,
    /// The share that steps run with; `None`: all threads.
    now: Option<CpuShare>,
    /// The last pool that was smaller than all threads, kept for the next request of another model.
    part: Option<(CpuShare, ThreadPool)>,
    session: WorkerSession,
}

impl StepThreads {
    pub(crate) fn new(threads: ComputeThreads, shares: ShareOrders) -> Self {
        Self {
            threads,
            shares,
            now: None,
            part: None,
            session: WorkerSession { nice: 0, file: Some(AUTOGROUP.into()) },
        }
    }

    /// All threads that products are shared by.
    pub(crate) fn count(&self) -> usize {
        self.whole().threads.get() as usize
    }

    /// Runs a step. Products in it are shared by the threads of the present share.
    pub(crate) fn run<R: Send>(&mut self, step: impl FnOnce() -> R + Send) -> R {
        let ordered = *self.shares.borrow_and_update();
        if let Some(share) = ordered {
            self.session.set(share.group_nice);
        }
        self.now = ordered.filter(|share| *share != CpuShare { group_nice: share.group_nice, ..self.whole() });
        match self.now.and_then(|share| self.pool(share)) {
            Some(pool) => pool.install(step),
            None => step(),
        }
    }

    fn whole(&self) -> CpuShare {
        CpuShare::whole(self.threads.as_cores())
    }

    /// The pool of this share; `None` if the system has no threads left, so that all share the step as before.
    fn pool(&mut self, share: CpuShare) -> Option<&ThreadPool> {
        let fits = |part: &(CpuShare, _)| part.0.threads == share.threads && part.0.nice == share.nice;
        if !self.part.as_ref().is_some_and(fits) {
            debug!(threads = share.threads, nice = share.nice, "computing with a share of the cores");
            match self.threads.pool(share) {
                Ok(pool) => self.part = Some((share, pool)),
                Err(error) => {
                    warn!("cannot start {} threads for a share of the cores: {error}", share.threads);
                    return None;
                }
            }
        }
        self.part.as_ref().map(|(_, pool)| pool)
    }
}

/// The priority of the process's session, which a worker has for itself. Linux with `autogroup` divides a core between
/// sessions before it looks at threads.
struct WorkerSession {
    nice: u8,
    /// The file to write; `None` where the system has none.
    file: Option<PathBuf>,
}

impl WorkerSession {
    /// Sets the priority, which needs no rights. The system takes few changes in a second: after a refusal the next
    /// step tries again.
    fn set(&mut self, nice: u8) {
        if nice == self.nice {
            return;
        }
        let Some(file) = &self.file else { return };
        match fs::write(file, nice.to_string()) {
            Ok(()) => self.nice = nice,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                debug!("the session keeps its priority: {error}");
                self.file = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use tokio::sync::watch;

    use super::*;

    fn share(threads: u32, nice: u8) -> CpuShare {
        CpuShare { threads: NonZero::new(threads).unwrap(), nice, group_nice: 0 }
    }

    #[test]
    fn fa_5_each_step_runs_with_the_threads_of_the_last_order() {
        let (order, shares) = watch::channel(None);
        let mut threads = StepThreads::new(ComputeThreads::anywhere(4), shares);
        // In a pool, the number of its threads and their priority; outside, nothing.
        let mut look = || {
            threads.run(|| {
                let nice = || rustix::process::getpriority_process(None).unwrap();
                rayon::current_thread_index().map(|_| (rayon::current_num_threads(), nice()))
            })
        };
        let usual = rustix::process::getpriority_process(None).unwrap();
        assert_eq!(look(), None, "no order yet");
        for (threads, nice) in [(3, 0), (1, 0), (1, 7), (2, 0)] {
            order.send_replace(Some(share(threads, nice)));
            let nice = if cfg!(target_os = "linux") { (usual + i32::from(nice)).min(19) } else { usual };
            assert_eq!(look(), Some((threads as usize, nice)));
            assert_eq!(look(), Some((threads as usize, nice)), "the pool stays");
        }
        order.send_replace(Some(share(9, 0)));
        assert_eq!(look(), Some((4, usual)), "never more threads than the worker has");
        order.send_replace(Some(share(4, 0)));
        assert_eq!(look(), None, "all threads are those that serve without a share");
        drop(order);
        assert_eq!(look(), None, "the last order stays");
    }

    #[test]
    fn fa_5_a_session_without_a_priority_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("autogroup");
        let read = || fs::read_to_string(&file).unwrap_or_default();
        let mut session = WorkerSession { nice: 0, file: Some(file.clone()) };
        session.set(0);
        assert!(!file.exists(), "nothing to change");
        session.set(9);
        assert_eq!(read(), "9");
        session.set(0);
        assert_eq!(read(), "0");
        let mut none = WorkerSession { nice: 0, file: Some(folder.path().join("absent/autogroup")) };
        none.set(9);
        assert!(none.file.is_none() && none.nice == 0);
    }
}
