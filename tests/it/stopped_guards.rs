//! Guards that are stopped, by the program below them or by another process of its user. Nothing outlives its holder
//! all the same.

use model_boss_tests::{PATIENCE, until};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use crate::process_trees::{Job, Unruly, no_lease_is_left, sandbox};

#[tokio::test]
async fn a_program_that_stops_its_guards_ends_with_its_lease() {
    let sandbox = sandbox();
    let unruly = Unruly::new(&sandbox);
    let boss = sandbox.start().await;
    let outer = "$(sed 's/.*) . //; s/ .*//' /proc/$PPID/stat)";
    let go = sandbox.path("go");
    nix::unistd::mkfifo(&go, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let (tree, line) = (unruly.program.display(), go.display());
    let script = format!("'{tree}' </dev/null & kill -STOP {outer} $PPID; read -r line <'{line}'; exit 3");
    for asked in [None, Some(Signal::SIGTERM), Some(Signal::SIGKILL)] {
        let mut tree = unruly.listen();
        let mut job = Job::start(&boss, &["sh", "-c", &script]);
        tree.stands().await;
        match asked {
            Some(signal) => kill(Pid::from_raw(job.0.id().cast_signed()), signal).unwrap(),
            None => std::fs::write(&go, "now\n").unwrap(),
        }
        tree.ends().await;
        let code = until(PATIENCE, "it ends", async || job.0.try_wait().unwrap()).await.code();
        assert!(asked.is_some() || code == Some(3), "{code:?}");
        no_lease_is_left(&boss).await;
    }
    boss.finish().await;
}

/// Guards that are stopped when their holder ends are resumed by no other. The holder is stopped first, so that the
/// order is sure.
#[tokio::test]
async fn stopped_guards_that_lose_their_holder_end_with_all_below_them() {
    let sandbox = sandbox();
    let unruly = Unruly::new(&sandbox);
    let boss = sandbox.start().await;
    let program = unruly.program.to_str().unwrap();
    for stopped in [1, 2] {
        let mut tree = unruly.listen();
        let job = Job::start(&boss, &[program]);
        tree.stands().await;
        let line: Vec<Pid> =
            [job.0.id()].into_iter().chain(job.line()).map(|pid| Pid::from_raw(pid.cast_signed())).collect();
        line[..=stopped].iter().for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
        kill(line[0], Signal::SIGKILL).unwrap();
        tree.ends().await;
        no_lease_is_left(&boss).await;
    }
    boss.finish().await;
}
