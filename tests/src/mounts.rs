//! A mount namespace for one test, in which it may mount file systems anywhere. It ends with its processes, so no mount
//! is left.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::unistd::geteuid;

use crate::boss::Launch;

/// The namespace, and the process that keeps it.
pub struct Mounts {
    keeper: Child,
    enter: Vec<OsString>,
}

impl Mounts {
    /// Creates a mount namespace and runs `script` in it with a shell. Returns `None`, and prints the reason, if the
    /// system forbids it.
    pub fn with(script: &str) -> Option<Self> {
        let own = if geteuid().is_root() { ["-m"].as_slice() } else { ["-U", "-r", "-m"].as_slice() };
        let spawned = Command::new("unshare")
            .args(own)
            .args(["sh", "-c", &format!("{script}\necho ready; exec cat >/dev/null")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut keeper) = spawned else {
            eprintln!("skipped: there is no program 'unshare'");
            return None;
        };
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.trim() != "ready" {
            eprintln!("skipped: this system lets nobody mount in a namespace of their own");
            keeper.wait().unwrap();
            return None;
        }
        let mut enter: Vec<OsString> = ["nsenter", "-t", &keeper.id().to_string(), "-m"].map(Into::into).into();
        if !geteuid().is_root() {
            enter.extend(["-U", "--preserve-credentials"].map(Into::into));
        }
        Some(Self { keeper, enter })
    }

    /// The given command, run in the namespace with its folder and its environment, and as another user if one is
    /// given.
    pub fn command(&self, command: &Command, user: Option<u32>) -> Command {
        let mut inside = Command::new(&self.enter[0]);
        inside.args(&self.enter[1..]);
        if let Some(user) = user {
            inside.args([format!("-S{user}"), format!("-G{user}")]);
        }
        inside.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]);
        inside.arg(command.get_current_dir().unwrap_or(Path::new("/"))).arg(command.get_program());
        inside.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Starts a coordinator in the namespace.
    pub fn hold(&self, launch: &mut Launch, user: Option<u32>) {
        launch.command = self.command(&launch.command, user);
        launch.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// A path of the namespace, as seen from outside.
    pub fn path(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
