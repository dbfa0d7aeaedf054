//! Programs that start sessions of their own, fork twice, clear their environment and ignore SIGTERM. They run behind a
//! worker, an engine and `lease run`. None of their processes outlives its holder, whichever process is killed, and no
//! lease is released before all processes of its holder have ended.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use model_boss_tests::{
    Behaviour, Boss, Dice, GONE_WITHIN, PATIENCE, Processes, Sandbox, amount, binary, until, within,
};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

const MACHINE: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\n";
/// The number of processes that [`Unruly`] leaves running.
const MEMBERS: usize = 5;

/// A program that starts processes which are hard to end. One is in a session of its own, and one in a group of its
/// own. One is a daemon (two forks, one session, no environment), and one ends a deep chain whose middle has ended.
/// Each of them holds a pipe, which ends when all of them are gone.
pub(crate) struct Unruly {
    pub(crate) program: PathBuf,
    fifo: PathBuf,
}

impl Unruly {
    pub(crate) fn new(sandbox: &Sandbox) -> Self {
        let (program, fifo) = (sandbox.path("unruly"), sandbox.path("unruly.fifo"));
        nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let script = format!(
            "#!/bin/sh\n\
             exec 9>'{}' >/dev/null 2>&1\n\
             trap '' TERM INT HUP\n\
             stay='trap \"\" TERM INT HUP; echo up >&9; exec tail -f /dev/null'\n\
             setsid sh -c \"$stay\" &\n\
             (env -i \"PATH=$PATH\" setsid sh -c \"($stay) &\" &)\n\
             (setsid sh -c \"setsid sh -c '($stay) &' &\" &)\n\
             sh -m -c \"($stay) &\"\n\
             eval \"$stay\"\n",
            fifo.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Self { program, fifo }
    }

    /// Opens the pipe for reading, without blocking, so that each writer finds a reader.
    pub(crate) fn listen(&self) -> Tree {
        let pipe = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&self.fifo).unwrap();
        Tree { pipe }
    }

    /// A command line that starts the unruly program and then becomes `program`.
    fn before(&self, sandbox: &Sandbox, program: &std::path::Path) -> PathBuf {
        let script =
            format!("#!/bin/sh\n'{}' </dev/null &\nexec '{}' \"$@\"\n", self.program.display(), program.display());
        let both = sandbox.path("unruly-worker");
        std::fs::write(&both, script).unwrap();
        std::fs::set_permissions(&both, Permissions::from_mode(0o755)).unwrap();
        both
    }
}

/// The living processes of an unruly program, observed through the pipe that they hold.
pub(crate) struct Tree {
    pipe: File,
}

impl Tree {
    /// Waits until all the program's processes run.
    pub(crate) async fn stands(&mut self) {
        let all = self.all_stand();
        within(PATIENCE, "the whole tree stands", all).await;
    }

    /// Completes when all the program's processes run.
    pub(crate) async fn all_stand(&mut self) {
        let mut seen = Vec::new();
        let all = async || {
            let _ = self.pipe.read_to_end(&mut seen);
            (seen.iter().filter(|byte| **byte == b'\n').count() == MEMBERS).then_some(())
        };
        until(2 * PATIENCE, "the whole tree stands", all).await;
    }

    /// Whether any process of the program is alive.
    fn lives(&mut self) -> bool {
        // Without a writer, a read returns the end of the file; with one, it would block.
        !matches!(self.pipe.read(&mut [0; 64]), Ok(0))
    }

    /// Waits until all processes of the program are gone.
    pub(crate) async fn ends(mut self) {
        until(GONE_WITHIN, "no process of the tree is left", async || (!self.lives()).then_some(())).await;
    }
}

/// `model-boss lease run` with an unruly program, or another one.
pub(crate) struct Job(pub(crate) Child, File);

impl Job {
    pub(crate) fn start(boss: &Boss, program: &[&str]) -> Self {
        let mut command = Command::new(binary("model-boss"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
            command.env_remove(name);
        }
        // The job's priority is above that of all requests in the tests. The ledger's order does not age, and many
        // requests would delay the job forever.
        command.args(["lease", "run", "--vram", "1GiB", "--priority", "2", "--"]).args(program);
        command.env("MODEL_BOSS_URL", format!("http://{}", boss.client().address()));
        let errors = tempfile::tempfile().unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone().unwrap());
        Self(command.spawn().unwrap(), errors)
    }

    /// The messages of the lease command, and its exit status if it has ended, for a failed test.
    pub(crate) fn report(&mut self) -> String {
        let mut said = String::new();
        let read = self.1.rewind().and_then(|()| self.1.read_to_string(&mut said));
        format!("{:?}, {read:?}: {said}", self.0.try_wait())
    }

    pub(crate) fn unruly(boss: &Boss, unruly: &Unruly) -> Self {
        Self::start(boss, &[unruly.program.to_str().unwrap()])
    }

    /// The pids of the guards between the lease and the program, and of the program.
    pub(crate) fn line(&self) -> Vec<u32> {
        guards_and_program(self.0.id())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The two guards below a holder, and the program.
fn guards_and_program(holder: u32) -> Vec<u32> {
    Processes::line_below(holder).into_iter().take(3).collect()
}

/// Kills the processes at once: all are stopped first, so that none can react to the end of another.
pub(crate) fn kill_at_once(pids: &[u32]) {
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for pid in pids {
            // The process may have ended together with an earlier one.
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }
}

pub(crate) fn sandbox() -> Sandbox {
    let mut sandbox = Sandbox::new().with_config("leases.term = \"3s\"\nleases.heartbeat = \"500ms\"\n");
    sandbox.simulate(MACHINE);
    sandbox
}

pub(crate) async fn no_lease_is_left(boss: &Boss) {
    let none = async || {
        let leases = boss.read("/api/v1/leases").await["leases"].as_array().cloned();
        leases.is_some_and(|leases| leases.is_empty()).then_some(())
    };
    until(PATIENCE, "no lease is left", none).await;
}

#[tokio::test]
async fn le_4_a_leased_program_ends_with_all_its_sessions() {
    let sandbox = sandbox();
    let unruly = Unruly::new(&sandbox);
    let boss = sandbox.start().await;
    let mut tree = unruly.listen();
    let go = sandbox.path("go");
    nix::unistd::mkfifo(&go, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let script = format!("'{}' </dev/null & read -r line <'{}'; exit 3", unruly.program.display(), go.display());
    let mut job = Job::start(&boss, &["sh", "-c", &script]);
    tree.stands().await;
    std::fs::write(go, "now\n").unwrap();
    tree.ends().await;
    let code = until(PATIENCE, "it ends", async || job.0.try_wait().unwrap()).await.code();
    assert_eq!(code, Some(3));
    no_lease_is_left(&boss).await;
    boss.finish().await;
}

/// Processes to kill, of holder (0), outer guard (1), inner guard (2) and program (3).
pub(crate) const VICTIMS: [&[usize]; 7] = [&[0], &[1], &[2], &[3], &[0, 1], &[0, 2], &[1, 2]];

#[tokio::test]
async fn a_leased_program_ends_whoever_of_its_line_is_killed() {
    let sandbox = sandbox();
    let unruly = Unruly::new(&sandbox);
    let boss = sandbox.start().await;
    for victims in VICTIMS {
        cycle(&boss, &unruly, victims).await;
    }
    no_lease_is_left(&boss).await;
    boss.finish().await;
}

async fn cycle(boss: &Boss, unruly: &Unruly, victims: &[usize]) {
    let mut tree = unruly.listen();
    let job = Job::unruly(boss, unruly);
    tree.stands().await;
    let line: Vec<u32> = [job.0.id()].into_iter().chain(job.line()).collect();
    assert!(line.len() >= 4, "holder, two guards and the program: {line:?}");
    kill_at_once(&victims.iter().map(|place| line[*place]).collect::<Vec<_>>());
    tree.ends().await;
}

/// The tests run a fixed number; `MODEL_BOSS_LEASE_CYCLES=10000` runs more.
#[tokio::test]
async fn many_leased_programs_are_killed_and_nothing_is_left() {
    let cycles = amount("MODEL_BOSS_LEASE_CYCLES", 12);
    let sandbox = sandbox();
    let unruly = Unruly::new(&sandbox);
    let boss = sandbox.start().await;
    let mut dice = Dice::new(amount("MODEL_BOSS_LEASE_CYCLES_SEED", 1));
    for _ in 0..cycles {
        cycle(&boss, &unruly, dice.one_of::<&[usize]>(&VICTIMS)).await;
        let leases = boss.read("/api/v1/leases").await;
        assert!(leases["leases"].as_array().is_some_and(|leases| leases.len() < 20), "leases pile up: {leases:#}");
    }
    no_lease_is_left(&boss).await;
    boss.finish().await;
}

/// A program that leaves a session and a daemon of two forks, each of which holds the pipe `left.fifo`.
fn leaving_sessions(sandbox: &Sandbox) -> (String, Tree) {
    let fifo = sandbox.path("left.fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let pipe = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo).unwrap();
    let stay = "trap \"\" TERM INT HUP; echo up >&9; exec tail -f /dev/null";
    let script = format!(
        "exec 9>'{}' >/dev/null; setsid sh -c '{stay}' & (setsid sh -c '({stay}) &' &); exec 9>&-; wait; \
         exec tail -f /dev/null",
        fifo.display()
    );
    (script, Tree { pipe })
}

#[tokio::test]
async fn le_4_what_outlived_its_holder_and_all_guards_is_ended_and_counted_until_then() {
    for victims in [&[0, 1, 2][..], &[0, 1, 2, 3]] {
        let sandbox = sandbox();
        let boss = sandbox.start().await;
        let (script, mut tree) = leaving_sessions(&sandbox);
        let job = Job::start(&boss, &["sh", "-c", &script]);
        let mut seen = Vec::new();
        let up = async || {
            let _ = tree.pipe.read_to_end(&mut seen);
            (seen.len() == 6).then_some(())
        };
        until(PATIENCE, "both sessions stand", up).await;
        let line: Vec<u32> = [job.0.id()].into_iter().chain(job.line()).collect();
        kill_at_once(&victims.iter().map(|place| line[*place]).collect::<Vec<_>>());
        let ended = async || {
            let leases = boss.read("/api/v1/leases").await["leases"].as_array().map(Vec::len);
            let lives = tree.lives();
            assert!(!lives || leases == Some(1), "the lease is given back while its processes live");
            (!lives).then_some(())
        };
        // The coordinator checks once a second.
        until(PATIENCE, "no process of the tree is left", ended).await;
        no_lease_is_left(&boss).await;
        boss.finish().await;
    }
}

#[tokio::test]
async fn le_4_a_forged_mark_of_another_users_guard_keeps_no_lease_and_ends_nobody() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    let sandbox = sandbox();
    let boss = sandbox.start().await;
    let job = Job::start(&boss, &["tail", "-f", "/dev/null"]);
    let line = until(PATIENCE, "its line stands", async || Some(job.line()).filter(|line| line.len() == 3)).await;
    let of_program = async || {
        let environment = std::fs::read(format!("/proc/{}/environ", line[2])).ok()?;
        let mut entries = environment.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into_owned());
        entries.find_map(|entry| entry.strip_prefix("MODEL_BOSS_GUARDS=").map(str::to_owned))
    };
    let marks = until(PATIENCE, "the program bears its marks", of_program).await;
    let mut command = Command::new("tail");
    command.args(["-f", "/dev/null"]).env("MODEL_BOSS_GUARDS", marks);
    let mut stranger = std::os::unix::process::CommandExt::uid(&mut command, 65_534).spawn().unwrap();
    kill_at_once(&[job.0.id()]);
    no_lease_is_left(&boss).await;
    assert!(stranger.try_wait().unwrap().is_none(), "it was nobody's to end");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    boss.finish().await;
}

/// A coordinator whose model "alpha" has an unruly program below its worker, or below its engine.
async fn with_unruly_worker(sandbox: &mut Sandbox, unruly: &Unruly, is_engine: bool) -> (Boss, Tree) {
    let fake = binary("model-boss-fake-worker");
    let mut tree = unruly.listen();
    let behaviour = Behaviour { ignore_sigterm: false, ..Behaviour::default() };
    let boss = if is_engine {
        let engine = sandbox.fake_engine();
        let engine = unruly.before(sandbox, &engine);
        let line = format!(
            "command = {{ line = [\"{}\", \"--model\", \"{{path}}/weights.gguf\", \"--alias\", \"{{model}}\", \"--port\", \
             \"{{port}}\", \"--ctx-size\", \"64\", \"--parallel\", \"1\"], env = {{ LLAMA_API_KEY = \"{{token}}\" }} }}",
            engine.display()
        );
        let _model = sandbox.gguf_model("alpha", &line, behaviour);
        let boss = sandbox.launch(&fake).start().await;
        assert!(boss.chat("alpha", "?").await.status.is_success());
        boss
    } else {
        let _model = sandbox.fake_model("alpha", behaviour);
        let boss = sandbox.launch(&unruly.before(sandbox, &fake)).start().await;
        assert!(boss.chat("alpha", "?").await.status.is_success());
        boss
    };
    tree.stands().await;
    (boss, tree)
}

#[tokio::test]
async fn dm_6_a_worker_ends_with_all_its_sessions_before_its_memory_is_free() {
    for is_engine in [false, true] {
        let mut sandbox = Sandbox::new();
        let unruly = Unruly::new(&sandbox);
        let (boss, mut tree) = with_unruly_worker(&mut sandbox, &unruly, is_engine).await;
        let unloaded = boss.client().post("/api/v1/unload", &serde_json::json!({ "model_name": "alpha" })).await;
        assert!(unloaded.status.is_success(), "{unloaded:?}");
        let empty = async || {
            let leases = boss.read("/api/v1/leases").await["leases"].as_array().is_some_and(Vec::is_empty);
            leases.then_some(())
        };
        until(PATIENCE, "its lease is given back", empty).await;
        assert!(!tree.lives(), "its memory is free while its processes live");
        boss.finish().await;
    }
}

/// Processes to kill, of coordinator (0), outer guard (1), inner guard (2) and worker (3).
#[tokio::test]
async fn a_worker_ends_with_all_its_sessions_whoever_of_its_line_is_killed() {
    for is_engine in [false, true] {
        for victims in VICTIMS {
            let mut sandbox = Sandbox::new();
            let unruly = Unruly::new(&sandbox);
            let (boss, tree) = with_unruly_worker(&mut sandbox, &unruly, is_engine).await;
            let slot = boss.read("/api/v1/slots").await["slots"][0]["pid"].as_u64().unwrap();
            let slot = u32::try_from(slot).unwrap();
            let line: Vec<u32> =
                [boss.pid(), slot].into_iter().chain(guards_and_program(slot).into_iter().take(2)).collect();
            kill_at_once(&victims.iter().map(|place| line[*place]).collect::<Vec<_>>());
            tree.ends().await;
            if victims.contains(&0) {
                boss.exit().await;
                continue;
            }
            // The next request works, on a new worker.
            assert!(boss.chat("alpha", "?").await.status.is_success());
            boss.finish().await;
        }
    }
}

#[tokio::test]
async fn what_a_coordinator_left_with_all_its_guards_is_ended_by_the_next_one() {
    let sandbox = Sandbox::new();
    let fifo = sandbox.path("left.fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let script = format!(
        "#!/bin/sh\n(exec 9>'{}'; exec setsid sh -c 'echo up >&9; exec tail -f /dev/null') </dev/null >/dev/null 2>&1 &\n\
         exec '{}' \"$@\"\n",
        fifo.display(),
        binary("model-boss-fake-worker").display()
    );
    let worker = sandbox.path("worker-with-a-session");
    std::fs::write(&worker, script).unwrap();
    std::fs::set_permissions(&worker, Permissions::from_mode(0o755)).unwrap();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let pipe = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo).unwrap();
    let mut tree = Tree { pipe };
    let boss = sandbox.launch(&worker).start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    until(PATIENCE, "its session stands", async || (tree.pipe.read(&mut [0; 8]).ok() == Some(3)).then_some(())).await;
    let slot = u32::try_from(boss.read("/api/v1/slots").await["slots"][0]["pid"].as_u64().unwrap()).unwrap();
    let line: Vec<u32> = [boss.pid(), slot].into_iter().chain(guards_and_program(slot).into_iter().take(2)).collect();
    kill_at_once(&line);
    boss.is_killed().await;
    assert!(tree.lives(), "nobody was left that could end it");
    let next = sandbox.launch(&binary("model-boss-fake-worker")).start().await;
    tree.ends().await;
    no_lease_is_left(&next).await;
    assert!(next.chat("alpha", "?").await.status.is_success());
    next.finish().await;
}

#[tokio::test]
async fn a_bomb_of_forks_ends_with_its_lease() {
    let sandbox = sandbox();
    let boss = sandbox.start().await;
    let fifo = sandbox.path("bomb.fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    // Each process starts a successor in a session of its own and ends: 2,000 generations, in four chains at once.
    let hop = "n=$1; [ $n -gt 0 ] || exec tail -f /dev/null; setsid sh \"$0\" $((n-1)) & exit";
    std::fs::write(sandbox.path("hop"), format!("{hop}\n")).unwrap();
    let hops = format!("exec 9>'{}'; cd '{}'; ", fifo.display(), sandbox.path("").display())
        + "for line in 1 2 3 4; do setsid sh ./hop 2000 & done; echo up >&9; exec tail -f /dev/null";
    let pipe = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo).unwrap();
    let mut tree = Tree { pipe };
    let mut job = Job::start(&boss, &["sh", "-c", &hops]);
    until(PATIENCE, "the bomb goes off", async || (tree.pipe.read(&mut [0; 8]).ok() == Some(3)).then_some(())).await;
    job.0.kill().unwrap();
    within(PATIENCE, "nothing of it is left", tree.ends()).await;
    no_lease_is_left(&boss).await;
    boss.finish().await;
}

/// PyTorch's launcher starts each rank in a session of its own. The test uses the real launcher, from
/// `MODEL_BOSS_TORCHRUN` or PATH.
#[tokio::test]
async fn ranks_of_torchrun_end_with_their_lease() {
    let named = std::env::var_os("MODEL_BOSS_TORCHRUN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("torchrun")).find(|file| file.is_file());
    let Some(torchrun) = named.or(found) else {
        eprintln!("skipped: there is no torchrun; MODEL_BOSS_TORCHRUN names one");
        return;
    };
    const RANK: &str = "import os, signal, sys, torch.distributed as d, torch\n\
        d.init_process_group('gloo')\n\
        t = torch.ones(1); d.all_reduce(t)\n\
        assert t.item() == 2.0 and os.getsid(0) == os.getpid()\n\
        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        pipe = open(sys.argv[1], 'w'); pipe.write('up\\n'); pipe.flush()\n\
        while True: signal.pause()\n";
    let sandbox = sandbox();
    let boss = sandbox.start().await;
    let (fifo, rank) = (sandbox.path("ranks.fifo"), sandbox.path("rank.py"));
    nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    std::fs::write(&rank, RANK).unwrap();
    let (torchrun, rank, at) = (torchrun.to_str().unwrap(), rank.to_str().unwrap(), fifo.to_str().unwrap());
    for victim in [0, 1, 3] {
        let pipe = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&fifo).unwrap();
        let mut tree = Tree { pipe };
        let job = Job::start(&boss, &[torchrun, "--standalone", "--nproc-per-node", "2", rank, at]);
        let mut seen = Vec::new();
        let up = async || {
            let _ = tree.pipe.read_to_end(&mut seen);
            (seen.len() == 6).then_some(())
        };
        until(PATIENCE * 4, "both ranks have met", up).await;
        let line: Vec<u32> = [job.0.id()].into_iter().chain(job.line()).collect();
        kill_at_once(&[line[victim]]);
        tree.ends().await;
    }
    no_lease_is_left(&boss).await;
    boss.finish().await;
}
