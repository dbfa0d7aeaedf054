//! The host of programs that speak: it starts keepers by the orders of its worker, and does nothing else.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use nix::sys::signal::{SigSet, Signal};

use super::keeper;
use super::order::{self, KeeperStreams};
use crate::terminal::say;

/// The hidden command of the worker's program that is the host.
pub(crate) const COMMAND: &str = "speech-host";

/// Runs the host until its worker has ended.
pub(crate) fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        nix::sys::prctl::set_name(c"mb-speech")?;
    }
    // These signals are for the worker, which lets programs finish. The stream's end ends this process.
    let mut polite = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        polite.add(signal);
    }
    polite.thread_block()?;
    let mut worker = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut keepers: Vec<Child> = Vec::new();
    while let Some(streams) = order::next(&worker)? {
        keepers.retain_mut(|keeper| matches!(keeper.try_wait(), Ok(None)));
        let started = start(streams).map(|keeper| keepers.push(keeper));
        order::started(&mut worker, &started)?;
    }
    Ok(())
}

fn start(streams: KeeperStreams) -> io::Result<Child> {
    let KeeperStreams { orders, sound, words } = streams;
    Command::new(program()?)
        .arg(keeper::COMMAND)
        .stdin(Stdio::from(orders))
        .stdout(Stdio::from(sound))
        .stderr(Stdio::from(words))
        .spawn()
}

/// This program itself, also after its file was replaced by a newer one.
pub(super) fn program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}
