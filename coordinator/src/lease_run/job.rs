//! `lease run`: waits its turn, runs the program behind the gate, and passes on what happens in both directions.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal as Incoming, SignalKind, signal};
use tokio::time::timeout;

use super::desk::{self, Granted, Revoked};
use super::guard::{OPEN, code};
use super::keeper::{Keeper, Leaving, Listener, News};
use super::{LeaseError, RunArgs, Whereabouts};
use crate::error_chain::chain;
use crate::supervisor::die_with_us;

/// The guard is this same program: it comes up at once or not at all.
const GUARD_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &RunArgs, whereabouts: &Whereabouts) -> Result<ExitCode, LeaseError> {
    let runtime =
        Builder::new_current_thread().enable_all().build().map_err(|error| LeaseError::System("start", error))?;
    let (whereabouts, wanted) = (whereabouts.clone(), args.wanted());
    let keeper = Keeper::start(move || desk::open(&whereabouts, wanted, "run"))?;
    runtime.block_on(Box::pin(run_job(args, keeper)))
}

async fn run_job(args: &RunArgs, (keeper, mut listener): (Keeper, Listener)) -> Result<ExitCode, LeaseError> {
    let mut asked = Asked::new()?;
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
    // Only after this may the program touch the device. Dropped, the guard ends before it began.
    if let Err(error) = keeper.attach(guard.pid).await {
        keeper.cancel().await;
        return Err(error);
    }
    if args.verbose {
        say(&format!("process {} may use it: CUDA_VISIBLE_DEVICES='{}'", guard.pid, granted.visible()));
    }
    guard.tell(OPEN).await;
    let ended = watch(args, &mut listener, &mut guard, &mut asked).await;
    if let Some(why) = keeper.release(Leaving::Ending).await {
        say(&format!("the memory stays counted until it is seen to be free: {why}"));
    }
    ended
}

/// Waits for the memory. The inner error is the exit code of somebody who was stopped while waiting.
async fn granted(
    args: &RunArgs,
    keeper: &Keeper,
    listener: &mut Listener,
    asked: &mut Asked,
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
                Some(News::Granted(granted)) => return Ok(Ok(granted)),
                Some(News::Waits(now)) => {
                    if now != reason {
                        say(&format!("waits, {now}"));
                        reason = now;
                    }
                }
                Some(News::Asks(source)) if args.verbose => say(&format!("asks {source}")),
                Some(News::Failed(error)) => return Err(error),
                Some(_) => {}
                None => return Err(LeaseError::Keeper),
            },
            signal = asked.next() => {
                keeper.cancel().await;
                let code = 128 + i32::from(signal);
                return Ok(Err(ExitCode::from(u8::try_from(code).unwrap_or(1))));
            }
            () = patience => {
                keeper.cancel().await;
                return Err(LeaseError::WaitedTooLong { waited: begun.elapsed(), reason });
            }
        }
    }
}

/// Until the program has ended.
async fn watch(
    args: &RunArgs,
    listener: &mut Listener,
    guard: &mut Guard,
    asked: &mut Asked,
) -> Result<ExitCode, LeaseError> {
    let mut told = false;
    loop {
        tokio::select! {
            status = guard.child.wait() => {
                return status.map(code).map_err(|error| LeaseError::System("wait for the program", error));
            }
            news = listener.recv() => match news {
                Some(News::Revoked(Revoked { remaining, wanted_by })) if remaining.is_zero() => {
                    say(&format!("{wanted_by} needs the memory and the grace is over: the program is ended"));
                    guard.end();
                }
                Some(News::Revoked(Revoked { remaining, wanted_by })) if !told => {
                    let signal = args.revoke_signal();
                    let left = remaining.as_secs();
                    say(&format!("{wanted_by} needs the memory: the program gets {signal} and has {left} s"));
                    told = true;
                    guard.signal(signal).await;
                }
                Some(News::Revoked(_) | News::Asks(_) | News::Waits(_) | News::Granted(_)) => {}
                Some(News::Lost) => {
                    say("the lease is lost: the program is ended");
                    guard.end();
                }
                Some(News::Away(why)) => say(&format!("goes on without the ledger: {why}")),
                Some(News::Back) => say("the ledger is back"),
                Some(News::Failed(error)) => {
                    say(&chain(&error));
                    guard.end();
                }
                None => {
                    guard.end();
                    // Whatever its code is: it was ended.
                    let _ = guard.child.wait().await;
                    return Err(LeaseError::Keeper);
                }
            },
            signal = asked.next() => guard.tell(signal).await,
        }
    }
}

/// The guard as its holder sees it.
struct Guard {
    child: Child,
    pid: u32,
    line: Option<UnixStream>,
}

impl Guard {
    async fn start(args: &RunArgs, granted: &Granted) -> Result<Self, LeaseError> {
        let system = |what| move |error| LeaseError::System(what, error);
        let folder = tempfile::Builder::new().prefix("model-boss-").tempdir().map_err(system("make a folder"))?;
        let socket = folder.path().join("guard.sock");
        let listener = UnixListener::bind(&socket).map_err(system("listen for the guard"))?;
        let mut command = Command::new(std::env::current_exe().map_err(system("find this program"))?);
        command.args(["lease", "guard", "--socket"]).arg(&socket).arg("--").args(&args.program);
        command.env("CUDA_VISIBLE_DEVICES", granted.visible()).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        command.env("MODEL_BOSS_LEASE", &granted.lease).kill_on_drop(true);
        die_with_us(command.as_std_mut());
        let child = command.spawn().map_err(system("start the guard"))?;
        let line = timeout(GUARD_LIMIT, listener.accept()).await;
        // It is known by its connection from here on.
        drop(folder);
        let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
        let (line, _) = line.map_err(|_| late()).and_then(|line| line).map_err(system("hear from the guard"))?;
        let pid = child.id().ok_or_else(late).map_err(system("hear from the guard"))?;
        let peer = line.peer_cred().map_err(system("know the guard"))?.pid();
        if peer.and_then(|peer| u32::try_from(peer).ok()) != Some(pid) {
            let stranger = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
            return Err(LeaseError::System("know the guard: somebody else answered", stranger));
        }
        Ok(Self { child, pid, line: Some(line) })
    }

    async fn tell(&mut self, byte: u8) {
        if let Some(line) = &mut self.line {
            // A guard that is gone is noticed by whoever waits for it.
            let _ = line.write_all(&[byte]).await;
        }
    }

    async fn signal(&mut self, signal: Signal) {
        self.tell(u8::try_from(signal as i32).unwrap_or(15)).await;
    }

    /// The guard ends everything at once.
    fn end(&mut self) {
        self.line = None;
    }
}

/// The signals that are passed on to the program.
struct Asked {
    interrupt: Incoming,
    terminate: Incoming,
    hangup: Incoming,
}

impl Asked {
    fn new() -> Result<Self, LeaseError> {
        let listen = |kind| signal(kind).map_err(|error| LeaseError::System("listen for signals", error));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hangup.recv() => 1,
        }
    }
}

fn say(text: &str) {
    eprintln!("model-boss lease: {text}");
}
