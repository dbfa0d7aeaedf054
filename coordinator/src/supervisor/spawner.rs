//! Starts worker processes, all on one permanent OS thread.
//!
//! A parent-death signal is tied to the *thread* that forked: spawned from a pool thread, a worker would die whenever the
//! pool lets that thread go. This thread ends only with the process.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;

use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The handle of the spawning thread.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    orders: mpsc::Sender<Order>,
}

/// What to start. Standard input, output and error are pipes.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    /// The worker's program.
    pub(super) program: PathBuf,
    /// Its one argument.
    pub(super) argument: &'static str,
    /// The UUIDs of the GPUs it may see, joined by commas; empty for none (RC-16).
    pub(super) visible_gpus: String,
}

struct Order {
    command: Command,
    reply: oneshot::Sender<io::Result<Child>>,
}

impl Spawner {
    /// Starts the thread. `runtime` reaps the children.
    pub(crate) fn start(runtime: Handle) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            let _reaper = runtime.enter();
            while let Ok(order) = inbox.recv() {
                // A runner that was dropped meanwhile drops its child, which kills it.
                let _ = order.reply.send(spawn(order.command));
            }
            // Every handle is gone, but the children of this thread may not be: it must outlive them.
            loop {
                std::thread::park();
            }
        })?;
        Ok(Self { orders })
    }

    /// Starts one worker.
    pub(super) async fn spawn(&self, launch: Launch) -> io::Result<Child> {
        self.spawn_command(command(&launch)).await
    }

    /// Starts a process in a session of its own that dies with us.
    pub(crate) async fn spawn_command(&self, command: Command) -> io::Result<Child> {
        let (reply, child) = oneshot::channel();
        let ended = || io::Error::other("the thread that starts processes has ended");
        self.orders.send(Order { command, reply }).map_err(|_| ended())?;
        child.await.map_err(|_| ended())?
    }
}

fn spawn(mut command: Command) -> io::Result<Child> {
    die_with_us(command.as_std_mut());
    command.spawn()
}

fn command(launch: &Launch) -> Command {
    let mut command = Command::new(&launch.program);
    command
        .arg(launch.argument)
        .env("CUDA_VISIBLE_DEVICES", &launch.visible_gpus)
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Gives the child its own session (hence process group) and ties its life to the thread that spawns it.
pub(crate) fn die_with_us(command: &mut std::process::Command) {
    tie(command, Session::Own);
}

/// Ties the life of the child to the thread that spawns it.
pub(super) fn die_with_parent(command: &mut std::process::Command) {
    tie(command, Session::OfParent);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Session {
    Own,
    OfParent,
}

#[allow(unsafe_code)]
fn tie(command: &mut std::process::Command, session: Session) {
    use std::os::unix::process::CommandExt;

    use nix::errno::Errno;
    use nix::sys::prctl::set_pdeathsig;
    use nix::sys::signal::Signal;
    use nix::unistd::{getppid, setsid};

    let parent = std::process::id();
    let prepare = move || {
        if session == Session::Own {
            setsid()?;
        }
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above: then nobody would ever send the signal.
        if u32::try_from(getppid().as_raw()) != Ok(parent) {
            return Err(io::Error::from(Errno::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `prepare` makes three plain system calls,
    // takes no lock and allocates nothing (an error from an errno holds only the number).
    unsafe {
        command.pre_exec(prepare);
    }
}
