//! The life of one worker process: port → spawn → attach to the lease → start line → ready → watched → reaped.
//!
//! *Stop* preempts everything: it is polled first wherever the runner waits.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use model_boss_core::{Event, ExitReport};
use model_boss_engines::{Facts, exit_reason};
use model_boss_host::clocks::later;
use model_boss_host::guard::{Lifeline, end_orphans};
use model_boss_host::process::{StartedProgram, WorkerLaunch};
use model_boss_http::upstream::Upstream;
use model_boss_protocol::{
    ByteCount, DeviceId, SpawnToken, StreamStats, WorkerCores, WorkerExit, WorkerHealth, WorkerOrder, WorkerSpec,
};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::contract::{Contract, Sign};
use super::ended::{kill, not_started, report, shell_code, signal};
use super::engine_gate::ENGINE_GATE;
use super::order::{SpawnOrder, Tools, load_timeout_for};
use super::output::Output;
use super::ports::Port;
use super::start_line::{context_of, identity, parking_program, worker_spec};
use crate::worker::Worker;

/// The first interval between health checks: a process is up within milliseconds.
const FIRST_POLL: Duration = Duration::from_millis(5);
/// The longest interval between health checks while loading. A worker of this project answers a check when it is ready,
/// or after this time with its progress.
const SLOWEST_POLL: Duration = Duration::from_millis(100);
/// The longest health check while loading.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);
/// The most ports that are tried when a worker finds its port taken.
const MAX_PORTS: u32 = 16;
/// The task that owns the process of a [`Worker`].
pub(super) struct WorkerRunner {
    order: SpawnOrder,
    worker: Arc<Worker>,
    tools: Arc<Tools>,
}

/// Why a process is to be ended.
enum EndCause {
    Exited(std::io::Result<ExitStatus>),
    Stop,
    Kill(String),
}

/// The end of one process of this generation.
enum Ending {
    PortTaken,
    Final(ExitReport),
}

/// A worker that is ready.
struct ReadyWorker {
    /// The context that it serves.
    context_length: Option<u64>,
    /// The most memory that it will hold on each device.
    may_hold: Vec<(DeviceId, ByteCount)>,
    /// The cores that it computes with, if it computes on the host.
    cores: Option<WorkerCores>,
}

impl WorkerRunner {
    pub(super) fn new(order: SpawnOrder, worker: Arc<Worker>, tools: Arc<Tools>) -> Self {
        Self { order, worker, tools }
    }

    /// Runs until the process is reaped, and reports its end.
    pub(super) async fn run(self) {
        let exit = self.live().await;
        let slot = self.order.slot;
        self.tools.streams.gone(slot);
        self.tools.news.event(Event::WorkerExited { slot, exit });
    }

    /// Starts one process after another until one ends for a reason other than its port.
    async fn live(&self) -> ExitReport {
        for _ in 0..MAX_PORTS {
            let Some(port) = self.tools.ports.take() else {
                return not_started("no port of worker_ports is free");
            };
            match self.one_process(&port).await {
                Ending::PortTaken => tracing::info!(port = port.number(), "port is busy, trying the next one"),
                Ending::Final(exit) => return exit,
            }
        }
        not_started(&format!("{MAX_PORTS} ports in a row were taken by others in the moment of its start"))
    }

    async fn one_process(&self, port: &Port) -> Ending {
        let (token, proof) = match (secret(), secret()) {
            (Ok(token), Ok(proof)) => (token, proof),
            (Err(error), _) | (_, Err(error)) => {
                return Ending::Final(not_started(&format!("no randomness for its token: {error}")));
            }
        };
        let upstream = match Upstream::new(port.number(), &token) {
            Ok(upstream) => Arc::new(upstream),
            Err(error) => return Ending::Final(not_started(&error.to_string())),
        };
        let settings = &self.tools.settings;
        let program = match settings.programs.of(self.order.backend) {
            Ok(program) => program.clone(),
            Err(error) => return Ending::Final(not_started(&error.to_string())),
        };
        // Files and programs may be on a disk that hangs.
        let begun = tokio::select! {
            biased;
            why = self.worker.killed() => Err(not_started(why)),
            () = self.worker.stop.cancelled() => Err(not_started("it was to end before it had begun")),
            begun = self.begin(program, port.number(), token, proof) => begun,
        };
        let (contract, (mut child, guard)) = match begun {
            Ok(begun) => begun,
            Err(refusal) => return Ending::Final(refusal),
        };
        // A child that was not reaped keeps its pid.
        let pid = child.id().unwrap_or_default();
        let model = &self.worker.model;
        let output = Output::capture(&settings.state, model, pid, child.stdout.take(), child.stderr.take());
        // The pipe is held until the process is reaped: dropping it ends the lifeline.
        let mut lifeline = child.stdin.take();

        let verdict = tokio::select! {
            biased;
            why = self.worker.killed() => EndCause::Kill(why.to_owned()),
            () = self.worker.stop.cancelled() => EndCause::Stop,
            status = child.wait() => EndCause::Exited(status),
            why = self.watch(pid, port.number(), &contract, &upstream, &mut lifeline) => EndCause::Kill(why),
        };
        let (status, why) = match self.worker.note_end(verdict) {
            EndCause::Exited(status) => (status, None),
            EndCause::Stop => (self.terminate(&mut child, pid, guard, &contract).await, None),
            EndCause::Kill(why) => {
                tracing::warn!(%model, pid, "killing the worker: {why}");
                (kill(&mut child, pid, guard).await, Some(why))
            }
        };
        // Orphans exist only if a guard was killed: processes below it then became children of this process.
        if !spawn_blocking(end_orphans).await.unwrap_or(true) {
            tracing::warn!(%model, pid, "processes of this worker do not end");
        }
        if let Some(machine) = &self.tools.machine {
            machine.gone(pid);
        }
        let code = status.as_ref().ok().and_then(shell_code);
        let mut exit = report(status, why, output.last_lines().await);
        drop(lifeline);
        if let Contract::Foreign(_) = contract {
            exit.reason = self.reason_of_foreign(code, port, &exit);
        }
        tracing::info!(%model, pid, "worker ended: {}", exit.description);
        if exit.reason == Some(WorkerExit::PortInUse) && !self.worker.stop.is_cancelled() {
            return Ending::PortTaken;
        }
        Ending::Final(exit)
    }

    /// Checks the files and starts the guards. Dropping the future at any point leaves no process running.
    async fn begin(
        &self,
        program: PathBuf,
        port: u16,
        token: SpawnToken,
        proof: SpawnToken,
    ) -> Result<(Contract, StartedProgram), ExitReport> {
        let contract = self.contract(port, token, proof).await?;
        let failed = |error| not_started(&format!("{} could not be started: {error}", program.display()));
        let named = program.clone();
        let there = beside(move || named.metadata().map(drop)).await;
        there.unwrap_or_else(|| Err(std::io::ErrorKind::Interrupted.into())).map_err(failed)?;
        let argument = if self.order.backend.is_foreign() { ENGINE_GATE } else { "serve" };
        let environment = self.tools.settings.environment.clone();
        let visible_gpus = self.order.visible_gpus.clone();
        let launch = WorkerLaunch { program: program.clone(), argument, visible_gpus, environment };
        let started = self.tools.spawner.spawn(launch).await.map_err(failed)?;
        Ok((contract, started))
    }

    /// The reason of an external engine's exit. Its exit codes have other meanings than a worker's, so its last lines
    /// are interpreted.
    fn reason_of_foreign(&self, code: Option<i32>, port: &Port, exit: &ExitReport) -> Option<WorkerExit> {
        let was_ready = self.worker.upstream().is_some();
        match () {
            () if was_ready || self.worker.stop.is_cancelled() || self.worker.kill.is_cancelled() => None,
            () if exit.reason.is_none() && code.is_none() => None,
            () if !port.is_free() => Some(WorkerExit::PortInUse),
            () => exit_reason(code, &exit.last_lines),
        }
    }

    /// Passes the gate, loads the model and serves. The call returns only when the process must be killed, with the
    /// reason.
    async fn watch(
        &self,
        pid: u32,
        port: u16,
        contract: &Contract,
        upstream: &Arc<Upstream>,
        lifeline: &mut Option<ChildStdin>,
    ) -> String {
        let slot = self.order.slot;
        if let Err(reason) = self.tools.leases.attach(slot, pid).await {
            return format!("the lease ledger did not take its pid: {reason}");
        }
        if let Err(why) = write_start_line(contract, lifeline).await {
            // The exit code of a worker that ended by itself explains more than this error.
            tracing::debug!(pid, "the start line was not taken: {why}");
            return pending().await;
        }
        self.tools.news.event(Event::WorkerStarted { slot, pid, port });
        let size = || self.order.parts.iter().map(|(_, bytes)| *bytes).sum();
        let limit =
            contract.load_timeout().or(self.tools.settings.load_timeout).unwrap_or_else(|| load_timeout_for(size()));
        let check = HealthCheck { pid, port, contract, upstream };
        match timeout(limit, self.until_ready(&check)).await {
            Ok(ReadyWorker { context_length, may_hold, cores }) => {
                if let Contract::Own(_) = contract {
                    self.tools.parking.restore(&self.worker.model, upstream).await;
                }
                let _ = self.worker.upstream.set(Arc::clone(upstream));
                self.tools.leases.loaded(slot, may_hold.clone());
                self.tools.news.event(Event::WorkerReady { slot, context_length, cores });
                tokio::select! {
                    why = self.until_hung(&check, may_hold) => why,
                    never = self.pass_shares_on(lifeline) => match never {},
                    never = self.worker.adapters.follow(&self.worker.model, upstream, &self.tools.catalog) => match never {},
                }
            }
            Err(_) => format!("it was not ready within {} s", limit.as_secs_f64()),
        }
    }

    /// Waits until the worker is ready.
    async fn until_ready(&self, check: &HealthCheck<'_>) -> ReadyWorker {
        let slot = self.order.slot;
        let mut pause = FIRST_POLL;
        let mut told = 0.0;
        loop {
            let asked = Instant::now();
            if let Some(sign) = check.health((HEALTH_LIMIT, Some(SLOWEST_POLL))).await {
                self.record_health(check.pid, sign.health.as_ref());
                if sign.ready {
                    let (may_hold, cores) =
                        sign.health.map(|health| (health.may_hold, health.cores)).unwrap_or_default();
                    return ReadyWorker { context_length: sign.context_length, may_hold, cores };
                }
                if sign.progress > told {
                    told = sign.progress;
                    self.tools.news.event(Event::WorkerProgress { slot, progress: told });
                }
                if let Contract::Own(_) = check.contract {
                    // A candle worker has delayed its answer: a further check needs hardly a pause.
                    sleep_until(later(asked, SLOWEST_POLL)).await;
                    continue;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(SLOWEST_POLL);
        }
    }

    /// Waits until the worker hangs: it has work and makes no step, or does not answer its health check at all.
    async fn until_hung(&self, check: &HealthCheck<'_>, mut may_hold: Vec<(DeviceId, ByteCount)>) -> String {
        let limit = self.tools.settings.hang_timeout;
        let interval = (limit / 8).clamp(Duration::from_millis(20), Duration::from_secs(5));
        let mut last_sign = Instant::now();
        let mut last_steps = None;
        loop {
            sleep(interval).await;
            match check.health((interval, None)).await {
                Some(sign) => {
                    self.record_health(check.pid, sign.health.as_ref());
                    self.record_growth(sign.health.as_ref(), &mut may_hold);
                    let engine = sign.engine;
                    let slowest = slowest_step(sign.health.as_ref().and_then(|health| health.streaming.as_ref()));
                    let limit = limit.saturating_add(slowest).saturating_mul(self.slowdown(sign.health.as_ref()));
                    if engine.active == 0 || last_steps != Some(engine.steps) {
                        last_sign = Instant::now();
                    } else if last_sign.elapsed() >= limit {
                        return format!(
                            "hung: {} requests in work and no step for {:.1} s",
                            engine.active,
                            last_sign.elapsed().as_secs_f64()
                        );
                    }
                    last_steps = Some(engine.steps);
                }
                None if last_sign.elapsed() >= limit => {
                    return format!(
                        "hung: no answer to its health check for {:.1} s",
                        last_sign.elapsed().as_secs_f64()
                    );
                }
                None => {}
            }
        }
    }

    /// Writes each share of the cores to the worker, on the pipe of its start line. A worker that does not read is
    /// found by its health checks, and one that has ended by its exit.
    async fn pass_shares_on(&self, lifeline: &mut Option<ChildStdin>) -> Infallible {
        let mut shares = self.worker.share.subscribe();
        shares.mark_changed();
        while shares.changed().await.is_ok() {
            let Some(share) = *shares.borrow_and_update() else { continue };
            let written = match (WorkerOrder::Cpu(share).to_line(), lifeline.as_mut()) {
                (Ok(line), Some(pipe)) => pipe.write_all(line.as_bytes()).await,
                (line, _) => line.map(drop).map_err(io::Error::from),
            };
            if let Err(error) = written {
                tracing::debug!(model = %self.worker.model, "its share of the cores was not taken: {error}");
                break;
            }
        }
        pending().await
    }

    /// The factor by which the worker's steps may take longer, because it has a share of the cores only.
    fn slowdown(&self, health: Option<&WorkerHealth>) -> u32 {
        let share = *self.worker.share.borrow();
        share.zip(health.and_then(|health| health.cores)).map_or(1, |(share, cores)| share.slowdown(cores))
    }

    /// Reports the most memory that a worker will hold where that has changed: by adapters that were added or dropped.
    fn record_growth(&self, health: Option<&WorkerHealth>, may_hold: &mut Vec<(DeviceId, ByteCount)>) {
        if let Some(health) = health.filter(|health| health.may_hold != *may_hold) {
            may_hold.clone_from(&health.may_hold);
            self.tools.leases.loaded(self.order.slot, may_hold.clone());
        }
    }

    /// Records a worker's health answer. On a simulated machine, the worker's memory is taken from it.
    fn record_health(&self, pid: u32, health: Option<&WorkerHealth>) {
        let Some(health) = health else { return };
        if let Some(machine) = &self.tools.machine {
            machine.holds(pid, health.held.clone());
        }
        if let Some(stats) = &health.streaming {
            let slot = self.order.slot;
            self.tools.streams.told(slot, &self.worker.model, stats.clone());
        }
    }

    /// Ends a worker: sends SIGTERM, waits for the grace, sends SIGKILL and waits for the end.
    async fn terminate(
        &self,
        child: &mut Child,
        pid: u32,
        guard: Lifeline,
        contract: &Contract,
    ) -> std::io::Result<ExitStatus> {
        if let (Contract::Own(_), Some(upstream), Some(successor)) =
            (contract, self.worker.upstream(), self.worker.parks.get())
        {
            let (model, era) = (&self.worker.model, self.worker.era);
            tokio::select! {
                biased;
                _ = self.worker.killed() => {}
                status = child.wait() => return status,
                () = self.tools.parking.park((model, era), upstream, successor.as_ref()) => {}
            }
        }
        signal(pid, contract.stop_signal());
        tokio::select! {
            biased;
            _ = self.worker.killed() => {}
            status = child.wait() => return status,
            () = sleep(self.tools.settings.stop_grace) => {
                tracing::warn!(pid, "the worker did not end in its grace, killing it");
            }
        }
        kill(child, pid, guard).await
    }

    /// The start and the health check of this process. The model's files are read for external engines.
    async fn contract(&self, port: u16, token: SpawnToken, proof: SpawnToken) -> Result<Contract, ExitReport> {
        let catalog = Arc::clone(&self.tools.catalog);
        let (model, options) = (Arc::clone(&self.order.model), self.order.engine.clone());
        let (parts, gpus) = (self.order.parts.clone(), self.order.visible_gpus.clone());
        let (context, key, kv_cache_type) =
            (context_of(&self.order, &self.tools), token.clone(), self.order.residency.kv_cache_type);
        let foreign = beside(move || {
            let facts = Facts {
                model: &model.description.id,
                category: model.description.category,
                source: &model.source,
                parts: &parts,
                gpus: &gpus,
                port,
                token: &key,
                context,
                max_concurrent: model.description.max_concurrent,
                kv_cache_type,
            };
            catalog.check(&model).map_err(|error| error.to_string())?;
            catalog.engines().foreign(&model, &options, facts).map_err(|error| error.to_string())
        });
        match foreign.await {
            Some(Ok(None)) => {
                let program = parking_program(&self.order, &self.tools);
                let revision = self.order.model.description.revision;
                let parking = match program {
                    Some(program) => beside(move || identity(&program, revision)).await.flatten(),
                    None => None,
                };
                let spec = worker_spec(&self.order, &self.tools, (port, token, proof));
                Ok(Contract::Own(Box::new(WorkerSpec { parking, ..spec })))
            }
            Some(Ok(Some(engine))) => Ok(Contract::Foreign(Box::new(engine))),
            // The result stays the same until the files or the settings change.
            Some(Err(error)) => Err(ExitReport { reason: Some(WorkerExit::BadModel), ..not_started(&error) }),
            None => Err(not_started("its files could not be looked at")),
        }
    }
}

/// The longest step of a model whose layers come from a disk, before the worker counts as hung. A long prompt takes
/// several such steps, and a shared disk may be slower than it was during the load.
fn slowest_step(streaming: Option<&StreamStats>) -> Duration {
    const TIMES_AS_LONG: f64 = 8.0;
    let seconds = streaming
        .filter(|stats| stats.store_bytes_per_second > 0.0)
        .map_or(0.0, |stats| TIMES_AS_LONG * stats.step_bytes as f64 / stats.store_bytes_per_second);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(86_400)).min(Duration::from_secs(86_400))
}

/// The parameters of a process's health check.
struct HealthCheck<'a> {
    pid: u32,
    port: u16,
    contract: &'a Contract,
    upstream: &'a Arc<Upstream>,
}

impl HealthCheck<'_> {
    async fn health(&self, times: (Duration, Option<Duration>)) -> Option<Sign> {
        self.contract.health(self.pid, self.port, self.upstream, times).await
    }
}

async fn write_start_line(contract: &Contract, lifeline: &mut Option<ChildStdin>) -> Result<(), String> {
    let line = contract.start_line().map_err(|error| error.to_string())?;
    let pipe = lifeline.as_mut().ok_or("it has no standard input")?;
    pipe.write_all(line.as_bytes()).await.map_err(|error| error.to_string())?;
    pipe.flush().await.map_err(|error| error.to_string())
}

/// Runs work on files on a blocking thread. A shutdown does not wait for that thread, since a disk may hang. Returns
/// `None` if no thread could be started, or the work panicked.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let work = move || drop(done.send(work()));
    std::thread::Builder::new().name("files".to_owned()).spawn(work).ok()?;
    result.await.ok()
}

fn secret() -> Result<SpawnToken, getrandom::Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)?;
    Ok(SpawnToken::from_bits(u128::from_ne_bytes(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_step_is_given_the_time_its_disk_needs() {
        let stats = |step_bytes, store_bytes_per_second| StreamStats {
            step_bytes,
            store_bytes_per_second,
            ..StreamStats::default()
        };
        assert_eq!(slowest_step(None), Duration::ZERO);
        assert_eq!(slowest_step(Some(&stats(40_000_000_000, 1e9))), Duration::from_secs(320));
        assert_eq!(slowest_step(Some(&stats(1, 0.0))), Duration::ZERO, "nothing was measured");
        assert_eq!(slowest_step(Some(&stats(u64::MAX, 1e-9))), Duration::from_secs(86_400), "never for ever");
    }
}
