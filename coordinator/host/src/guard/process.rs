//! A guard as a process: `model-boss guard PLACE LIFELINE PROGRAM …`, which is nobody's command. One thread, no runtime:
//! it waits for the end of its holder, of the other guard or of the program, and ends everything below itself.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use model_boss_lease_store::{GUARDS_VARIABLE, ProcessTree, guard_mark, this_process};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_child_subreaper, set_dumpable, set_name, set_pdeathsig};
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stdin, getpid, getppid};

use super::tie::{die_with_parent, pass_on};

/// The hidden command of this program that is a guard.
pub const GUARD: &str = "guard";
/// The guard below the holder,
pub(super) const OUTER: &str = "outer";
/// and the one above the program.
const INNER: &str = "inner";

/// The end of the parent shows by this signal, which means nothing else here.
const PARENT_ENDED: Signal = Signal::SIGUSR1;
/// Signals that ask a program to end. Each goes to the whole group, of which the program is not yet a part when they come early.
const ASKING: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP];
/// Killed processes are looked for this often at first,
const SWEEP: u8 = 2;
/// and this often once that has been done so many times: something does not end.
const SLOW_SWEEP: u8 = 200;
const SWEEPS: u32 = 500;
/// As shells have it: the program is not there, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Where a guard stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Outer,
    Inner,
}

/// How the process that a guard started has ended.
#[derive(Clone, Copy)]
enum Ended {
    With(i32),
    By(Signal),
}

/// A guard cannot do its work.
#[derive(Debug, thiserror::Error)]
enum GuardError {
    #[error("a guard is started by the coordinator and by 'model-boss lease run' only")]
    CommandLine,
    #[error("a guard cannot {0}")]
    System(&'static str, #[source] io::Error),
    #[error("{} cannot be started", .0.display())]
    Program(OsString, #[source] io::Error),
}

/// The things that a guard watches.
struct Watch {
    /// Its writing end is the holder's alone.
    lifeline: OwnedFd,
    signals: SignalFd,
    parent: Pid,
}

/// The program and everything else below this process.
struct Wards {
    main: Pid,
    ended: Option<Ended>,
}

/// Runs a guard, from the words on its command line behind its name.
pub fn run(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let place = match words.next() {
        Some(place) if place == OUTER => Place::Outer,
        Some(place) if place == INNER => Place::Inner,
        _ => return failed(1, &GuardError::CommandLine),
    };
    let lifeline = words.next().and_then(|number| number.to_str()?.parse::<RawFd>().ok());
    let (Some(lifeline), Some(program)) = (lifeline.filter(|number| *number > 2), words.next()) else {
        return failed(1, &GuardError::CommandLine);
    };
    match guard(place, lifeline, program, words.collect()) {
        Ok(Ended::With(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ok(Ended::By(signal)) => die_of(signal),
        Err(error @ GuardError::Program(..)) => {
            let missing = matches!(&error, GuardError::Program(_, error) if error.kind() == io::ErrorKind::NotFound);
            failed(if missing { NOT_FOUND } else { NOT_RUNNABLE }, &error)
        }
        Err(error) => failed(1, &error),
    }
}

fn guard(place: Place, lifeline: RawFd, program: OsString, args: Vec<OsString>) -> Result<Ended, GuardError> {
    let watch = Watch::begin(lifeline).map_err(|error| GuardError::System("watch its holder", error))?;
    let mut command = match place {
        Place::Outer => {
            let mut command = Command::new(OWN_PROGRAM);
            command.arg0(NAME).args([GUARD, INNER]).arg(lifeline.to_string()).arg(&program);
            command.env(GUARDS_VARIABLE, marks().map_err(|error| GuardError::System("know itself", error))?);
            pass_on(&mut command, lifeline);
            command
        }
        Place::Inner => Command::new(&program),
    };
    command.args(args);
    die_with_parent(&mut command);
    if let Some(asked) = watch.asked().first() {
        return Ok(Ended::By(*asked));
    }
    let child = command.spawn().map_err(|error| GuardError::Program(program, error))?;
    // The program's input is its own: a pipe that only it reads ends when it does.
    if let Ok(nothing) = File::open("/dev/null") {
        let _ = dup2_stdin(nothing);
    }
    let mut wards = Wards { main: Pid::from_raw(child.id().cast_signed()), ended: None };
    for asked in watch.asked() {
        // It came in the moment of the start: the program may have missed it.
        let _ = kill(wards.main, asked);
    }
    loop {
        // The look comes first: nothing that happened before is missed, and what happens later wakes the guard.
        wards.collect();
        if watch.is_over() {
            wards.end(&watch);
            return Ok(Ended::By(Signal::SIGKILL));
        }
        if let Some(ended) = wards.ended {
            // Its leftovers would use memory that is no longer promised to it.
            wards.end(&watch);
            return Ok(ended);
        }
        watch.wait(PollTimeout::NONE);
    }
}

/// The marks of the guards above, and this one's.
fn marks() -> io::Result<String> {
    let mark = guard_mark(&this_process().map_err(io::Error::other)?);
    let above = std::env::var(GUARDS_VARIABLE).ok().filter(|above| !above.is_empty());
    Ok(above.map_or_else(|| mark.clone(), |above| format!("{above},{mark}")))
}

impl Watch {
    #[allow(unsafe_code)]
    fn begin(lifeline: RawFd) -> io::Result<Self> {
        let parent = getppid();
        set_name(&std::ffi::CString::new(NAME)?)?;
        set_child_subreaper(true)?;
        // SAFETY: the process that started this one opened the descriptor for it; nothing else here uses the number.
        let lifeline = unsafe { OwnedFd::from_raw_fd(lifeline) };
        // The program must not have it.
        fcntl(&lifeline, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        // Signals for the group are for the program. Blocked ones, unlike ignored ones, are not inherited through std.
        SigSet::all().thread_block()?;
        let told = SigSet::from_iter([Signal::SIGCHLD, PARENT_ENDED].into_iter().chain(ASKING));
        let signals = SignalFd::with_flags(&told, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // Until here the end of the parent was the end of this process. From here on it is seen, and everything below is
        // ended first; a parent that ended in between has another number by the first look.
        set_pdeathsig(PARENT_ENDED)?;
        Ok(Self { lifeline, signals, parent })
    }

    /// Whether the holder, or the process above, is gone.
    fn is_over(&self) -> bool {
        let mut lifeline = [PollFd::new(self.lifeline.as_fd(), PollFlags::empty())];
        let cut = poll(&mut lifeline, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        cut || getppid() != self.parent
    }

    /// Waits until something happens.
    fn wait(&self, limit: PollTimeout) {
        let lifeline = PollFd::new(self.lifeline.as_fd(), PollFlags::empty());
        let mut both = [lifeline, PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        // The caller looks at everything, for each of them.
        let _ = poll(&mut both, limit);
        self.asked();
    }

    /// Takes the signals that have come, and gives those that ask for an end.
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
    /// Collects the children that have ended. Says whether there is any other.
    fn collect(&mut self) -> bool {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.main => self.ended = Some(Ended::With(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.main => self.ended = Some(Ended::By(signal)),
                Ok(WaitStatus::StillAlive) => return true,
                // A subreaper without children has no descendants.
                Err(Errno::ECHILD) => {
                    self.ended.get_or_insert(Ended::By(Signal::SIGKILL));
                    return false;
                }
                // Others; and one that a signal without a name has ended.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Ends everything below, and returns when nothing is left of it.
    fn end(&mut self, watch: &Watch) {
        let me = std::process::id();
        let mut sweeps = 0_u32;
        while self.collect() {
            for below in ProcessTree::below(me).iter().filter(|below| !below.is_zombie) {
                // One that is gone already needs no signal.
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

/// Ends as the program ended. Returns where that signal does not end a process.
#[allow(unsafe_code)]
fn die_of(ended_by: Signal) -> ExitCode {
    // The program's core says something, this one's nothing.
    let _ = set_dumpable(false);
    // SAFETY: the default action runs no code of ours.
    let _ = unsafe { signal(ended_by, SigHandler::SigDfl) };
    let _ = kill(getpid(), ended_by);
    let _ = SigSet::from_iter([ended_by]).thread_unblock();
    ExitCode::from(u8::try_from(128 + ended_by as i32).unwrap_or(1))
}

fn failed(code: u8, error: &GuardError) -> ExitCode {
    crate::terminal::say(&format!("model-boss: {}", crate::error_chain::chain(error)));
    ExitCode::from(code)
}

/// This very program, also after its file was replaced.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";

/// How guards are called: a signal to every process with our name does not mean them.
pub(super) const NAME: &str = "mb-guard";
