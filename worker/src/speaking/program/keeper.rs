//! The keeper of one program that speaks. It is the parent of all that the program starts, whatever sessions these
//! make, and ends them all.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use model_boss_sandbox::{AllowedFiles, confine_program};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::terminal;

use super::order::{ProgramEnd, ProgramOrder, frame, read};

/// The hidden command of the worker's program that is a keeper.
pub(crate) const COMMAND: &str = "speech-keeper";

/// Folders of the system that programs read and run.
const OF_SYSTEM: [&str; 11] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/etc", "/nix", "/proc", "/sys/devices/system/cpu"];

/// Devices that any program may use.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"];

/// Descriptors that a program may have.
const MOST_DESCRIPTORS: u64 = 256;

/// Bytes of a program's messages that go to the log; the rest is dropped.
const MOST_MESSAGES: u64 = 64 << 10;

/// The longest wait for the kernel to end what was killed.
const ENDING: Duration = Duration::from_secs(5);

/// Runs the keeper until its program has ended. The worker hears how.
pub(crate) fn run() -> ExitCode {
    let ended = keep();
    if ended.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn keep() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        nix::sys::prctl::set_child_subreaper(true)?;
        nix::sys::prctl::set_name(c"mb-speaks")?;
    }
    // The host blocks the signals of a stop, and the program must not.
    SigSet::all().thread_unblock()?;
    let mut orders = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let order: ProgramOrder = read(&mut orders)?;
    let end = match start(&order) {
        Ok(program) => attend(program, &order, &orders)?,
        Err(why) => ProgramEnd::NotStarted(why),
    };
    // The worker may be gone.
    let _ = orders.write_all(&frame(&end)?);
    Ok(())
}

/// Limits this process and starts the program in it.
fn start(order: &ProgramOrder) -> Result<std::process::Child, String> {
    let (name, args) = order.line.split_first().ok_or("its command line is empty")?;
    let program = find(name).ok_or_else(|| format!("the program '{name}' is not there"))?;
    let mut files = AllowedFiles::default();
    let folders = OF_SYSTEM.into_iter().map(PathBuf::from).chain(near(&program)).chain(order.reads.iter().cloned());
    folders.for_each(|folder| files.run(folder));
    DEVICES.into_iter().for_each(|device| files.write(device));
    confine_program(order.sandbox, &files).map_err(|error| error.to_string())?;
    let seconds = order.limit.as_secs().saturating_add(1).saturating_mul(4);
    let limits =
        [(Resource::RLIMIT_CORE, 0), (Resource::RLIMIT_NOFILE, MOST_DESCRIPTORS), (Resource::RLIMIT_CPU, seconds)];
    let mut command = Command::new(&program);
    command.args(args).envs(&order.env).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (resource, most) in limits {
        let limited = getrlimit(resource).and_then(|(_, hard)| setrlimit(resource, most.min(hard), most.min(hard)));
        limited.map_err(|error| format!("a limit of the program cannot be set: {error}"))?;
    }
    command.spawn().map_err(|error| format!("{}: {error}", program.display()))
}

/// The path of a program: as it is, or the first of this name on PATH.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let is_program = |path: &Path| path.is_file();
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| is_program(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| is_program(path))
}

/// The folder of a program, and the one around a `bin`: a program of Python reads its environment there. Links are
/// followed.
fn near(program: &Path) -> Vec<PathBuf> {
    let real = fs::canonicalize(program).ok();
    let mut folders = Vec::new();
    for path in [Some(program.to_owned()), real].into_iter().flatten() {
        let Some(folder) = path.parent() else { continue };
        folders.push(folder.to_owned());
        if folder.ends_with("bin") {
            folders.extend(folder.parent().filter(|around| around.parent().is_some()).map(Path::to_owned));
        }
    }
    folders
}

/// Passes text and sound on until the program has ended, or nobody wants it any more.
fn attend(mut program: std::process::Child, order: &ProgramOrder, orders: &UnixStream) -> io::Result<ProgramEnd> {
    let deadline = Instant::now() + order.limit;
    let (late, unwanted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let input = program.stdin.take().map(|mut stdin| {
        let text = order.text.clone();
        // A program that has read enough closes its end.
        thread::spawn(move || drop(stdin.write_all(text.as_bytes()).and_then(|()| stdin.write_all(b"\n"))))
    });
    let output = program.stdout.take().map(|mut stdout| {
        thread::spawn(move || {
            // Without a worker there is no reader; then the watch below ends everything.
            let mut sound = terminal::sound();
            let _ = io::copy(&mut stdout, &mut sound).and_then(|_| sound.flush());
        })
    });
    let messages = program.stderr.take().map(|mut stderr| {
        thread::spawn(move || {
            // A message that cannot be logged is lost.
            let _ = io::copy(&mut Read::by_ref(&mut stderr).take(MOST_MESSAGES), &mut terminal::messages());
            let _ = io::copy(&mut stderr, &mut io::sink());
        })
    });
    let group = Pid::from_raw(i32::try_from(program.id()).unwrap_or(i32::MAX));
    let mut watched = orders.try_clone()?;
    let marks = (Arc::clone(&late), Arc::clone(&unwanted));
    thread::spawn(move || {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let _ = watched.set_read_timeout(Some(left));
        // The worker sends nothing more: the stream ends, or the time does.
        let mark = match watched.read(&mut [0]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => &marks.0,
            _ => &marks.1,
        };
        mark.store(true, Ordering::Relaxed);
        end_group(group);
        end_children();
        if marks.1.load(Ordering::Relaxed) {
            std::process::exit(0);
        }
    });
    let status = program.wait();
    // Processes that the program has left behind hold its streams open.
    end_group(group);
    end_children();
    drop(input);
    for passed_on in [output, messages].into_iter().flatten() {
        // A panic there has no effect here.
        let _ = passed_on.join();
    }
    Ok(match status {
        _ if late.load(Ordering::Relaxed) => ProgramEnd::Late,
        Ok(status) => ended(status),
        // The watch has reaped it.
        Err(_) => ProgramEnd::Signal(Signal::SIGKILL as i32),
    })
}

fn ended(status: ExitStatus) -> ProgramEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProgramEnd::Exited(code),
        (None, signal) => ProgramEnd::Signal(signal.unwrap_or(0)),
    }
}

fn end_group(group: Pid) {
    // The group may be gone.
    let _ = nix::sys::signal::killpg(group, Signal::SIGKILL);
}

/// Ends every process below this one, and waits until the kernel has none.
fn end_children() {
    let until = Instant::now() + ENDING;
    while Instant::now() < until {
        for child in children() {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => thread::sleep(Duration::from_millis(2)),
            Ok(_) => {}
            // There is none left.
            Err(_) => return,
        }
    }
}

/// The processes whose parent this one is.
fn children() -> Vec<i32> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_thread = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    of_thread
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}
