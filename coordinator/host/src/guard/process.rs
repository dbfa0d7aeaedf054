//! A guard as a process: `model-boss guard PLACE LIFELINE PROGRAM …`, a hidden command. It has one thread and no
//! runtime. It waits for the end of its holder, of the other guard or of the program, and then ends everything below
//! itself.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use model_boss_lease_store::{GUARD_NAME, GUARDS_VARIABLE, ProcessTree, guard_mark, this_process};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_child_subreaper, set_dumpable, set_name, set_pdeathsig};
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stdin, getpid, getppid};

use super::tie::{die_with_parent, pass_on};

/// The name of the hidden command that runs a guard.
pub const GUARD: &str = "guard";
/// The argument of the guard below the holder.
pub(super) const OUTER: &str = "outer";
/// The argument of the guard above the program.
const INNER: &str = "inner";

/// The signal by which the kernel reports the parent's end. It is used for nothing else here.
const PARENT_ENDED: Signal = Signal::SIGUSR1;
/// Signals that request the end of a program. Each is sent to the whole group, but an early signal may arrive before
/// the program is part of it.
const ASKING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP];
/// The pause between checks for killed processes, in milliseconds.
const SWEEP: u8 = 2;
/// The pause in milliseconds after [`SWEEPS`] checks: a process that is still alive does not end soon.
const SLOW_SWEEP: u8 = 200;
const SWEEPS: u32 = 500;
/// The exit codes of shells for a program that does not exist, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// The position of a guard in the chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GuardPosition {
    Outer,
    Inner,
}

/// The end of the process that a guard started.
#[derive(Clone, Copy)]
enum ChildEnd {
    With(i32),
    By(Signal),
}

/// Why a guard cannot do its work.
#[derive(Debug, thiserror::Error)]
enum GuardError {
    #[error("a guard is started by the coordinator and by 'model-boss lease run' only")]
    CommandLine,
    #[error("a guard cannot {0}")]
    System(&'static str, #[source] io::Error),
    #[error("{} cannot be started", .0.display())]
    Program(OsString, #[source] io::Error),
}

/// The descriptors that a guard watches.
struct Watch {
    /// The reading end of a pipe whose writing end only the holder has.
    lifeline: OwnedFd,
    signals: SignalFd,
    parent: Pid,
}

/// The program and everything else below this process.
struct Wards {
    main: Pid,
    place: GuardPosition,
    ended: Option<ChildEnd>,
}

/// Runs a guard; `words` are the arguments after the command's name.
pub fn run(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let place = match words.next() {
        Some(place) if place == OUTER => GuardPosition::Outer,
        Some(place) if place == INNER => GuardPosition::Inner,
        _ => return failed(1, &GuardError::CommandLine),
    };
    let lifeline = words.next().and_then(|number| number.to_str()?.parse::<RawFd>().ok());
    let (Some(lifeline), Some(program)) = (lifeline.filter(|number| *number > 2), words.next()) else {
        return failed(1, &GuardError::CommandLine);
    };
    match guard(place, lifeline, program, words.collect()) {
        Ok(ChildEnd::With(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ok(ChildEnd::By(signal)) => die_of(signal),
        Err(error @ GuardError::Program(..)) => {
            let missing = matches!(&error, GuardError::Program(_, error) if error.kind() == io::ErrorKind::NotFound);
            failed(if missing { NOT_FOUND } else { NOT_RUNNABLE }, &error)
        }
        Err(error) => failed(1, &error),
    }
}

fn guard(
    place: GuardPosition,
    lifeline: RawFd,
    program: OsString,
    args: Vec<OsString>,
) -> Result<ChildEnd, GuardError> {
    let watch = Watch::begin(lifeline).map_err(|error| GuardError::System("watch its holder", error))?;
    let mut command = match place {
        GuardPosition::Outer => {
            let mut command = Command::new(OWN_PROGRAM);
            command.arg0(GUARD_NAME).args([GUARD, INNER]).arg(lifeline.to_string()).arg(&program);
            command.env(GUARDS_VARIABLE, marks().map_err(|error| GuardError::System("know itself", error))?);
            pass_on(&mut command, lifeline);
            command
        }
        GuardPosition::Inner => Command::new(&program),
    };
    command.args(args);
    die_with_parent(&mut command);
    if let Some(asked) = watch.asked().first() {
        return Ok(ChildEnd::By(*asked));
    }
    let child = command.spawn().map_err(|error| GuardError::Program(program, error))?;
    // The program alone holds the reading end of its input, so that the pipe breaks when the program ends.
    if let Ok(nothing) = File::open("/dev/null") {
        let _ = dup2_stdin(nothing);
    }
    let mut wards = Wards { main: Pid::from_raw(child.id().cast_signed()), place, ended: None };
    for asked in watch.asked() {
        // The signal arrived during the start, so the program may have missed it.
        let _ = kill(wards.main, asked);
    }
    loop {
        // Ends are collected before the wait: earlier ends are not missed, and later ends wake the guard.
        wards.collect();
        if watch.is_over() {
            wards.end(&watch);
            return Ok(ChildEnd::By(Signal::SIGKILL));
        }
        if let Some(ended) = wards.ended {
            // Leftovers of the program would use memory that is no longer promised to it.
            wards.end(&watch);
            return Ok(ended);
        }
        watch.wait(PollTimeout::NONE);
    }
}

/// The environment marks of the guards above and of this one.
fn marks() -> io::Result<String> {
    let mark = guard_mark(&this_process().map_err(io::Error::other)?);
    let above = std::env::var(GUARDS_VARIABLE).ok().filter(|above| !above.is_empty());
    Ok(above.map_or_else(|| mark.clone(), |above| format!("{above},{mark}")))
}

impl Watch {
    #[allow(unsafe_code)]
    fn begin(lifeline: RawFd) -> io::Result<Self> {
        let parent = getppid();
        set_name(&std::ffi::CString::new(GUARD_NAME)?)?;
        set_child_subreaper(true)?;
        // SAFETY: the process that started this one opened the descriptor for it; nothing else here uses the number.
        let lifeline = unsafe { OwnedFd::from_raw_fd(lifeline) };
        // The program must not inherit the lifeline.
        fcntl(&lifeline, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        // Signals to the group are meant for the program. Blocked signals, unlike ignored ones, are not inherited
        // through std.
        SigSet::all().thread_block()?;
        let told = SigSet::from_iter([Signal::SIGCHLD, PARENT_ENDED].into_iter().chain(ASKING));
        let signals = SignalFd::with_flags(&told, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // Until here the parent's end killed this process. From here on the guard notices that end and first ends all
        // processes below it. A parent that ended in between is noticed by its changed pid at the first check.
        set_pdeathsig(PARENT_ENDED)?;
        Ok(Self { lifeline, signals, parent })
    }

    /// Whether the parent, which is the holder or the outer guard, has ended.
    fn is_over(&self) -> bool {
        let mut lifeline = [PollFd::new(self.lifeline.as_fd(), PollFlags::empty())];
        let cut = poll(&mut lifeline, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        cut || getppid() != self.parent
    }

    /// Waits for a signal, the end of the lifeline, or `limit`.
    fn wait(&self, limit: PollTimeout) {
        let lifeline = PollFd::new(self.lifeline.as_fd(), PollFlags::empty());
        let mut both = [lifeline, PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        // The caller checks every cause, whichever of them woke it.
        let _ = poll(&mut both, limit);
        self.asked();
    }

    /// Collects the pending signals, and returns those that request the end.
    fn asked(&self) -> Vec<Signal> {
        let mut asked = Vec::new();
        while let Ok(Some(told)) = self.signals.read_signal() {
            let signal = i32::try_from(told.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            asked.extend(signal.filter(|signal| ASKING.contains(signal)));
        }
        asked
    }
}

impl Wards {
    /// Reaps the children that have ended. Returns whether other children are left.
    fn collect(&mut self) -> bool {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.main => self.ended = Some(ChildEnd::With(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.main => self.ended = Some(ChildEnd::By(signal)),
                Ok(WaitStatus::StillAlive) => return true,
                // A stopped guard ends nothing. A stopped program is left stopped, as its owner wanted.
                Ok(WaitStatus::Stopped(pid, _)) if pid == self.main && self.place == GuardPosition::Outer => {
                    let _ = kill(pid, Signal::SIGCONT);
                }
                // A subreaper without children has no descendants.
                Err(Errno::ECHILD) => {
                    self.ended.get_or_insert(ChildEnd::By(Signal::SIGKILL));
                    return false;
                }
                // Another child ended, or one was ended by a signal that `Signal` does not have.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Kills everything below, and returns when nothing is left.
    fn end(&mut self, watch: &Watch) {
        let me = std::process::id();
        let mut sweeps = 0_u32;
        while self.collect() {
            for below in ProcessTree::below(me).iter().filter(|below| !below.is_zombie) {
                // A signal to a process that has ended fails, which does no harm.
                let _ = kill(Pid::from_raw(below.pid.cast_signed()), Signal::SIGKILL);
            }
            sweeps = sweeps.saturating_add(1);
            let pause = if sweeps < SWEEPS { SWEEP } else { SLOW_SWEEP };
            let signals = &mut [PollFd::new(watch.signals.as_fd(), PollFlags::POLLIN)];
            let _ = poll(signals, PollTimeout::from(pause));
            watch.asked();
        }
    }
}

/// Ends this process by the signal that ended the program. Returns where the signal does not end a process.
#[allow(unsafe_code)]
fn die_of(ended_by: Signal) -> ExitCode {
    // The program's core dump is useful; the guard's own is not.
    let _ = set_dumpable(false);
    // SAFETY: the default action runs no code of this program.
    let _ = unsafe { signal(ended_by, SigHandler::SigDfl) };
    let _ = kill(getpid(), ended_by);
    let _ = SigSet::from_iter([ended_by]).thread_unblock();
    ExitCode::from(u8::try_from(128 + ended_by as i32).unwrap_or(1))
}

fn failed(code: u8, error: &GuardError) -> ExitCode {
    crate::terminal::say(&format!("model-boss: {}", model_boss_protocol::chain(error)));
    ExitCode::from(code)
}

/// The path of this very program, which stays valid after its file was replaced.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";
