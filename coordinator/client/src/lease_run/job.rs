//! `lease run`: waits for the memory, runs the program behind the gate, and passes signals and revocations on to it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use model_boss_host::environment::ChildEnvironment;
use model_boss_host::guard::{Guarded, Lifeline, end_orphans};
use model_boss_host::hangup::{self, Hangup};
use model_boss_lease_store::ProcessTree;
use model_boss_protocol::chain;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Child;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal as Incoming, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::args::RunArgs;
use super::desk::{Granted, RevokeNotice};
use super::error::LeaseError;
use super::gate::{OPEN, code};
use super::keeper::{Keeper, LeaseEvent, LeaseEvents, Leaving};
use super::whereabouts::Whereabouts;
use crate::lease_run::opening;

/// The longest wait for the gate, which is this same program and starts at once or not at all.
const GATE_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for the guards' end: they end everything within milliseconds.
const END_LIMIT: Duration = Duration::from_secs(2);

pub(super) fn run(args: &RunArgs, whereabouts: &Whereabouts) -> Result<ExitCode, LeaseError> {
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(|error| LeaseError::System("start", error))?;
    let (whereabouts, wanted) = (whereabouts.clone(), args.wanted());
    let keeper = Keeper::start(move || opening::open(&whereabouts, wanted, "run"))?;
    runtime.block_on(Box::pin(run_job(args, keeper)))
}

async fn run_job(args: &RunArgs, (keeper, mut listener): (Keeper, LeaseEvents)) -> Result<ExitCode, LeaseError> {
    let mut asked = PassedSignals::new()?;
    let granted = match granted(args, &keeper, &mut listener, &mut asked).await? {
        Ok(granted) => granted,
        Err(stopped) => return Ok(stopped),
    };
    say(&format!("{} holds {}", granted.lease, granted.describe()));
    let mut guard = match Guard::start(args, &granted).await {
        Ok(guard) => guard,
        Err(error) => {
            keeper.cancel().await;
            return Err(error);
        }
    };
    // Only after attaching may the program touch the device. Dropping the guard ends it before it began.
    if let Err(error) = keeper.attach(guard.pid).await {
        drop(guard);
        // The ledger may have recorded the process although the answer was lost.
        keeper.release(Leaving::Ending).await;
        return Err(error);
    }
    if args.verbose {
        say(&format!("process {} may use it: CUDA_VISIBLE_DEVICES='{}'", guard.pid, granted.visible()));
    }
    guard.open().await;
    let ended = watch(args, &mut listener, &mut guard, &mut asked).await;
    // Orphans exist only if a guard was killed: processes below it then became children of this process.
    if !spawn_blocking(end_orphans).await.unwrap_or(true) {
        say("some of its processes do not end");
    }
    if let Some(why) = keeper.release(Leaving::Ending).await {
        say(&format!("the memory stays counted until it is seen to be free: {why}"));
    }
    ended
}

/// Waits for the memory. The inner error is the exit code of a command that was stopped while waiting.
async fn granted(
    args: &RunArgs,
    keeper: &Keeper,
    listener: &mut LeaseEvents,
    asked: &mut PassedSignals,
) -> Result<Result<Granted, ExitCode>, LeaseError> {
    let begun = Instant::now();
    let mut reason = String::new();
    loop {
        let patience = async {
            match args.wait {
                Some(wait) => tokio::time::sleep(wait.saturating_sub(begun.elapsed())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            news = listener.recv() => match news {
                Some(LeaseEvent::Granted(granted)) => return Ok(Ok(granted)),
                Some(LeaseEvent::Waits(now)) => {
                    if now != reason {
                        say(&format!("waits, {now}"));
                        reason = now;
                    }
                }
                Some(LeaseEvent::Asks(source)) if args.verbose => say(&format!("asks {source}")),
                Some(LeaseEvent::Failed(error)) => return Err(error),
                Some(_) => {}
                None => return Err(LeaseError::Keeper),
            },
            signal = asked.next() => {
                keeper.cancel().await;
                let code = 128 + signal as i32;
                return Ok(Err(ExitCode::from(u8::try_from(code).unwrap_or(1))));
            }
            () = patience => {
                keeper.cancel().await;
                return Err(LeaseError::WaitedTooLong { waited: begun.elapsed(), reason });
            }
        }
    }
}

/// Follows the program and its lease until the program has ended.
async fn watch(
    args: &RunArgs,
    listener: &mut LeaseEvents,
    guard: &mut Guard,
    asked: &mut PassedSignals,
) -> Result<ExitCode, LeaseError> {
    let mut told = false;
    loop {
        let ended = guard.ended;
        tokio::select! {
            status = guard.child.wait() => {
                return status.map(code).map_err(|error| LeaseError::System("wait for the program", error));
            }
            news = listener.recv() => match news {
                Some(LeaseEvent::Revoked(RevokeNotice { remaining, wanted_by })) if remaining.is_zero() => {
                    say(&format!("{wanted_by} needs the memory and the grace is over: the program is ended"));
                    guard.end();
                }
                Some(LeaseEvent::Revoked(RevokeNotice { remaining, wanted_by })) if !told => {
                    let signal = args.revoke_signal();
                    let left = remaining.as_secs();
                    say(&format!("{wanted_by} needs the memory: the program gets {signal} and has {left} s"));
                    told = true;
                    guard.signal(signal);
                }
                Some(LeaseEvent::Revoked(_) | LeaseEvent::Asks(_) | LeaseEvent::Waits(_) | LeaseEvent::Granted(_)) => {}
                Some(LeaseEvent::Lost) => {
                    say("the lease is lost: the program is ended");
                    guard.end();
                }
                Some(LeaseEvent::Away(why)) => say(&format!("goes on without the ledger: {why}")),
                Some(LeaseEvent::Back) => say("the ledger is back"),
                Some(LeaseEvent::Failed(error)) => {
                    say(&chain(&error));
                    guard.end();
                }
                None => {
                    guard.end();
                    // The program's own exit code does not count: it was ended.
                    let _ = guard.child.wait().await;
                    return Err(LeaseError::Keeper);
                }
            },
            signal = asked.next() => guard.signal(signal),
            () = late(ended) => guard.kill(),
        }
    }
}

/// The outer guard of the program, with the lifeline and the gate's socket.
struct Guard {
    child: Child,
    pid: u32,
    /// The lifeline; `None` once the program is to be ended.
    lifeline: Option<Lifeline>,
    /// The time at which the lifeline was dropped.
    ended: Option<Instant>,
    gate: UnixStream,
}

impl Guard {
    async fn start(args: &RunArgs, granted: &Granted) -> Result<Self, LeaseError> {
        let system = |what| move |error| LeaseError::System(what, error);
        let folder = tempfile::Builder::new().prefix("model-boss-").tempdir().map_err(system("make a folder"))?;
        let socket = folder.path().join("gate.sock");
        let listener = UnixListener::bind(&socket).map_err(system("listen for the gate"))?;
        let own = std::env::current_exe().map_err(system("find this program"))?;
        let mut guarded = Guarded::new(own, &ChildEnvironment::everything()).map_err(system("make a lifeline"))?;
        let command = guarded.command();
        command.args(["lease", "gate", "--socket"]).arg(&socket).arg("--").args(&args.program);
        command.env("CUDA_VISIBLE_DEVICES", granted.visible()).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        command.env("MODEL_BOSS_LEASE", &granted.lease);
        let (child, lifeline) = guarded.spawn().map_err(system("start the guards"))?;
        let gate = timeout(GATE_LIMIT, listener.accept()).await;
        // The gate is connected by now, so the socket's folder is not needed any more.
        drop(folder);
        let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
        let (gate, _) = gate.map_err(|_| late()).and_then(|gate| gate).map_err(system("hear from the gate"))?;
        let pid = child.id().ok_or_else(late).map_err(system("hear from the gate"))?;
        let peer = gate.peer_cred().map_err(system("know the gate"))?.pid().and_then(|peer| u32::try_from(peer).ok());
        if !ProcessTree::below(pid).iter().any(|below| Some(below.pid) == peer) {
            let stranger = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
            return Err(LeaseError::System("know the gate: somebody else answered", stranger));
        }
        Ok(Self { child, pid, lifeline: Some(lifeline), ended: None, gate })
    }

    async fn open(&mut self) {
        // An error means that the gate has ended, which the end of its guards shows.
        let _ = self.gate.write_all(&[OPEN]).await;
    }

    /// Passes a signal on to the program. Its guards are in the same group, but block the signal.
    fn signal(&self, signal: Signal) {
        // A child that was not reaped keeps its pid.
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            let _ = killpg(Pid::from_raw(pid), signal);
        }
    }

    /// Ends the program and everything below it at once.
    fn end(&mut self) {
        if self.lifeline.take().is_some() {
            self.ended = Some(Instant::now());
        }
    }

    fn kill(&mut self) {
        self.ended = None;
        self.signal(Signal::SIGKILL);
    }
}

/// Waits until [`END_LIMIT`] after `ended`, by which time the guards should have ended. A stopped guard ends late.
async fn late(ended: Option<Instant>) {
    match ended {
        Some(ended) => tokio::time::sleep(END_LIMIT.saturating_sub(ended.elapsed())).await,
        None => std::future::pending().await,
    }
}

/// The signals that are passed on to the program.
struct PassedSignals {
    interrupt: Incoming,
    terminate: Incoming,
    hangup: Option<Hangup>,
}

impl PassedSignals {
    fn new() -> Result<Self, LeaseError> {
        let listen = |kind| signal(kind).map_err(|error| LeaseError::System("listen for signals", error));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: hangup::listen().map_err(|error| LeaseError::System("listen for signals", error))?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
            () = hangup::next(&mut self.hangup) => Signal::SIGHUP,
        }
    }
}

fn say(text: &str) {
    model_boss_host::terminal::say(&format!("model-boss lease: {text}"));
}
