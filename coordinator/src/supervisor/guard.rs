//! The guard of an engine of others: `model-boss engine-guard`, which a worker's place is taken by. Such an engine knows
//! nothing of gates and lifelines, so its guard does: it waits for one line, starts the program that the line names, and
//! ends everything of it when the program ends or when standard input does, which means that the coordinator is gone.
//!
//! It leads the session and process group that the program runs in. A signal for the group reaches the program at once; the
//! guard itself outlives it. When the guard is killed, the program dies with it.

use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use model_boss_engines::Launch;
use model_boss_lease_store::ProcessTree;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use super::spawner::die_with_parent;

/// The hidden command of this program that is the guard.
pub(crate) const GUARD: &str = "engine-guard";
/// What is left of the session is looked for this often, so many times, after SIGKILL.
const SWEEP: Duration = Duration::from_millis(10);
const SWEEPS: u32 = 200;
/// The exit code for a program that was ended because the coordinator is gone, as a shell would give it.
const KILLED: u8 = 128 + 9;
/// As shells have it: the program is not there, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Waits for the line, runs the program, gives its exit code.
pub(crate) fn guard() -> ExitCode {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        // Whoever would have started the program is gone: nothing is wrong here.
        Ok(0) => return ExitCode::SUCCESS,
        Ok(_) => {}
        Err(error) => return failed(1, &format!("the start line cannot be read: {error}")),
    }
    let launch: Launch = match serde_json::from_str(&line) {
        Ok(launch) => launch,
        Err(error) => return failed(1, &format!("the start line is not one: {error}")),
    };
    // From here on the coordinator's end shows in the pipe: ended by a signal, the guard could end nothing.
    if let Err(error) = set_pdeathsig(None).map_err(io::Error::from).and_then(|()| outlive_signals()) {
        return failed(1, &format!("cannot prepare for signals: {error}"));
    }
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).envs(&launch.env).stdin(Stdio::null());
    if let Some(folder) = &launch.folder {
        command.current_dir(folder);
    }
    die_with_parent(&mut command);
    let mut program = match command.spawn() {
        Ok(program) => program,
        Err(error) => {
            let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
            return failed(code, &format!("{} cannot be started: {error}", launch.program.display()));
        }
    };
    let watch = std::thread::Builder::new().name("lifeline".into()).spawn(|| {
        let mut rest = [0; 64];
        while matches!(io::stdin().lock().read(&mut rest), Ok(count) if count > 0) {}
        end_session(std::process::id());
        std::process::exit(i32::from(KILLED));
    });
    if let Err(error) = watch {
        // Dropping the guard takes the program down.
        return failed(1, &format!("cannot start a thread: {error}"));
    }
    let status = program.wait();
    // What it left behind would use memory that is no longer promised to it.
    end_session(std::process::id());
    status.map_or_else(|error| failed(1, &format!("cannot wait for the program: {error}")), code)
}

/// The signals that ask a program to end do not end the guard. A handler, because what is ignored stays ignored in the
/// program.
fn outlive_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _context = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup()] {
        // Once there is a handler it stays for the life of the process.
        drop(signal(kind)?);
    }
    Ok(())
}

/// Ends every process of the session but its leader. Says whether none is left.
pub(super) fn end_session(leader: u32) -> bool {
    for _ in 0..SWEEPS {
        let left: Vec<u32> = ProcessTree::session(leader).into_iter().filter(|pid| *pid != leader).collect();
        if left.is_empty() {
            return true;
        }
        for pid in left.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
            // One that is gone already needs no signal.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::park_timeout(SWEEP);
    }
    false
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn failed(code: u8, why: &str) -> ExitCode {
    // Without standard error there is nobody to tell.
    let _ = io::stderr().write_all(format!("model-boss: {why}\n").as_bytes());
    ExitCode::from(code)
}
