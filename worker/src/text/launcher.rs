//! The text launcher: a process that forks the text hosts of one worker.
//!
//! A worker starts it before it confines itself, and afterwards needs no right to start a program. The first frame says
//! for good which files the hosts load. Later orders only say that a host begins or ends, so a worker that was taken
//! over cannot have other files read.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::resource::Resource;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::dup2_stdin;

use super::forks;
use super::frame::{Frame, LARGEST_QUESTION};
use super::host;
use super::limits::limit;
use super::message::TextLoad;
use super::order::OrderStream;
use crate::terminal::say;

/// The hidden command of the worker's program that is the launcher.
pub(crate) const COMMAND: &str = "text-host";

/// Runs the launcher until its worker has ended. Only the worker sees how it ended.
pub(crate) fn run() -> ExitCode {
    match launch() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn launch() -> io::Result<()> {
    let mut control = shut_out()?;
    let Some(load) = Frame::read(&mut control, LARGEST_QUESTION)? else { return Ok(()) };
    let load: TextLoad = load.head()?;
    forks::serve(OrderStream::new(control), |stream| host::live(stream, &load))
}

/// Closes all resources of the worker, and takes the stream of orders off standard input.
fn shut_out() -> io::Result<UnixStream> {
    #[cfg(target_os = "linux")]
    {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        nix::sys::prctl::set_name(c"mb-text")?;
    }
    // These signals are for the worker, which drains: its remaining answers need their prompts. The stream's end ends
    // this process.
    let mut polite = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        polite.add(signal);
    }
    polite.thread_block()?;
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    forks::close_all_but(&control)?;
    dup2_stdin(fs::File::open("/dev/null")?)?;
    limit(Resource::RLIMIT_CORE, 0)?;
    limit(Resource::RLIMIT_FSIZE, 0)?;
    // Panics are returned as answers.
    std::panic::set_hook(Box::new(|_| ()));
    Ok(control)
}
