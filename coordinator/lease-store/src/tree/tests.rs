//! Constructed process trees, and a real one of this host.

use std::collections::BTreeMap;
use std::process::Command;

use super::*;

const HERE: &str = INITIAL_NAMESPACE;
const BOX: &str = "pid:[7]";

#[derive(Default)]
struct Made(BTreeMap<u32, Seen>, BTreeMap<u32, String>);

/// The stat of a process, and its namespace with its number inside.
type Seen = (Stat, Option<(&'static str, u32)>);

impl ProcessSource for Made {
    fn stat(&self, pid: u32) -> Option<Stat> {
        self.0.get(&pid).map(|(stat, _)| *stat)
    }

    fn exists(&self, pid: u32) -> bool {
        self.0.contains_key(&pid)
    }

    fn all(&self) -> Option<Vec<u32>> {
        Some(self.0.keys().copied().collect())
    }

    fn inner(&self, pid: u32) -> Option<(String, u32)> {
        self.0.get(&pid)?.1.map(|(namespace, inner)| (namespace.to_owned(), inner))
    }

    fn guards(&self, pid: u32) -> Option<String> {
        self.1.get(&pid).cloned()
    }

    /// Numbers from 1000 on belong to another user.
    fn users(&self, pid: u32) -> Option<[u32; 2]> {
        Some(if pid < 1000 { [1, 1] } else { [2, 2] })
    }
}

/// Each process is given by pid, parent, group, session and start time.
fn tree(processes: &[(u32, u32, u32, u32, u64)]) -> ProcessTree {
    marked_tree(processes, &[])
}

/// A tree of processes with marks.
fn marked_tree(processes: &[(u32, u32, u32, u32, u64)], marks: &[(u32, String)]) -> ProcessTree {
    let made = processes.iter().map(|&(pid, parent, group, session, start_time)| {
        let stat = Stat {
            state: b'S',
            parent,
            group,
            session,
            threads: 1,
            start_time,
            has_environment: true,
            named_guard: false,
        };
        (pid, (stat, Some((HERE, pid))))
    });
    let made = Made(made.collect(), marks.iter().cloned().collect());
    made_tree(made, HERE)
}

fn made_tree(made: Made, namespace: &str) -> ProcessTree {
    ProcessTree { source: Box::new(made), namespace: namespace.to_owned(), users: BTreeMap::new() }
}

fn pids(members: &[Process]) -> Vec<u32> {
    members.iter().map(|process| process.pid).collect()
}

fn process(pid: u32, start_time: u64) -> Process {
    Process { pid, start_time, pid_ns: HERE.to_owned() }
}

#[test]
fn a_line_goes_up_to_init_and_names_the_leaders() {
    let tree = tree(&[(10, 1, 10, 10, 1), (20, 10, 20, 10, 2), (30, 20, 20, 10, 3)]);
    assert_eq!(tree.lineage(30, &[]), vec![process(30, 3), process(20, 2), process(10, 1)]);
}

#[test]
fn an_orphan_belongs_to_the_session_of_its_dead_leader() {
    // The ancestors of 30 have ended: it is init's child, in group 20 and session 10.
    let tree = tree(&[(30, 1, 20, 10, 30)]);
    assert_eq!(tree.lineage(30, &[]), vec![process(30, 30)]);
    let attached = [process(10, 5), process(10, 40), process(20, 6)];
    assert_eq!(tree.lineage(30, &attached), vec![process(30, 30), process(20, 6), process(10, 5)]);
}

#[test]
fn a_process_is_gone_when_nothing_of_it_is_left() {
    let alone = tree(&[(99, 1, 99, 99, 1)]);
    assert!(alone.is_gone(&process(10, 5)));
    for left in [(30, 1, 10, 9, 30), (30, 1, 9, 10, 30), (30, 10, 9, 9, 30)] {
        assert!(!tree(&[left]).is_gone(&process(10, 5)), "{left:?}");
    }
    let reused = tree(&[(10, 1, 10, 10, 6)]);
    assert!(reused.is_gone(&process(10, 5)));
    assert!(!reused.is_gone(&process(10, 6)));
}

#[test]
fn a_session_of_its_own_belongs_to_the_tree_as_long_as_its_chain_holds() {
    let chain = [(10, 1, 10, 10, 5), (20, 10, 10, 10, 6), (30, 20, 30, 30, 7), (40, 30, 40, 40, 8), (50, 1, 50, 50, 9)];
    assert_eq!(pids(&tree(&chain).members(&process(10, 5))), [10, 20, 30, 40]);
    // The process in the middle died: 40 is a child of init in a session of its own, and only a mark identifies its
    // tree.
    let broken = [(10, 1, 10, 10, 5), (40, 1, 40, 40, 8), (41, 1, 40, 40, 9), (50, 1, 50, 50, 9)];
    assert_eq!(pids(&tree(&broken).members(&process(10, 5))), [10]);
    let marked = marked_tree(&broken, &[(40, guard_mark(&process(10, 5)))]);
    assert_eq!(pids(&marked.members(&process(10, 5))), [10, 40, 41], "and with it the session that it leads");
}

#[test]
fn a_mark_outlives_its_guard_and_the_reuse_of_its_number() {
    let mark = format!("{},{}", guard_mark(&process(7, 1)), guard_mark(&process(10, 5)));
    let left = marked_tree(&[(40, 1, 40, 40, 8)], &[(40, mark.clone())]);
    assert!(!left.is_gone(&process(10, 5)));
    assert!(!left.is_gone(&process(7, 1)), "the outer one of two guards");
    assert!(left.is_gone(&process(10, 4)), "another process with this number");
    let reused = marked_tree(&[(10, 1, 10, 10, 9), (11, 10, 10, 10, 9), (40, 1, 40, 40, 8)], &[(40, mark)]);
    assert_eq!(pids(&reused.members(&process(10, 5))), [40]);
    assert_eq!(
        reused.lineage(40, &[process(7, 1), process(10, 5)]),
        [40, 10, 7].map(|pid| match pid {
            40 => process(40, 8),
            10 => process(10, 5),
            _ => process(7, 1),
        })
    );
}

#[test]
fn le_4_a_mark_that_somebody_else_wrote_counts_for_nothing() {
    let guard = process(10, 5);
    let mark = guard_mark(&guard);
    // 40 was left by the guard; 1040 belongs to another user who found out the mark.
    let processes = [(40, 1, 40, 40, 8), (1040, 1, 1040, 1040, 8)];
    let marks = [(40, mark.clone()), (1040, mark.clone())];
    let known = marked_tree(&processes, &marks).with_users([(&guard, 1)]);
    assert_eq!((pids(&known.members(&guard)), pids(&known.marked(&guard))), (vec![40], vec![40]));
    assert!(known.lineage(40, std::slice::from_ref(&guard)).contains(&guard));
    assert!(!known.lineage(1040, std::slice::from_ref(&guard)).contains(&guard), "its memory is its own");
    let alone = marked_tree(&processes[1..], &marks).with_users([(&guard, 1)]);
    assert!(alone.is_gone(&guard), "an unrelated process keeps no lease");
    // A process older than the guard was never below it.
    let older = marked_tree(&[(40, 1, 40, 40, 4)], &[(40, mark)]).with_users([(&guard, 1)]);
    assert!(older.is_gone(&guard) && older.marked(&guard).is_empty());
}

#[test]
fn descendants_are_those_of_this_very_process() {
    let tree = tree(&[(10, 1, 10, 10, 5), (20, 10, 20, 20, 6), (30, 20, 30, 30, 7), (40, 1, 10, 10, 8)]);
    let look = tree.snapshot().unwrap();
    assert_eq!(pids(&tree.descendants(&look, &process(10, 5))), [20, 30], "40 has left, whatever its session says");
    assert!(tree.descendants(&look, &process(10, 4)).is_empty());
}

#[test]
fn a_process_whose_first_thread_ended_is_no_zombie() {
    let stat = |threads| Stat {
        state: b'Z',
        parent: 1,
        group: 10,
        session: 10,
        threads,
        start_time: 5,
        has_environment: true,
        named_guard: false,
    };
    let of = |threads| {
        let made = Made([(10, (stat(threads), Some((HERE, 10))))].into(), BTreeMap::new());
        made_tree(made, HERE)
    };
    assert!(of(1).is_gone(&process(10, 5)));
    assert!(!of(2).is_gone(&process(10, 5)));
}

#[test]
fn what_is_below_a_process_is_found_in_its_sessions() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    // The shell keeps a child that leads a session of its own, which has a child in turn.
    let script = "setsid sh -c 'tail -f /dev/null >/dev/null & echo $!; wait' & read -r line; kill -9 $!; wait";
    let mut shell =
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let deepest: u32 = line.trim().parse().unwrap();
    let below = ProcessTree::below(shell.id());
    let found = below.iter().find(|below| below.pid == deepest).copied();
    assert!(found.is_some_and(|found| found.session != shell.id() && found.parent != shell.id()), "{below:?}");
    assert!(ProcessTree::below(std::process::id()).iter().any(|below| below.pid == deepest));
    for below in below {
        // Processes that ended by themselves need no signal.
        let _ = kill(Pid::from_raw(below.pid.cast_signed()), nix::sys::signal::Signal::SIGKILL);
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
}

#[test]
fn another_namespace_is_judged_only_from_the_initial_one() {
    let inside = Process { pid: 3, start_time: 50, pid_ns: BOX.to_owned() };
    let mut made = Made::default();
    let stat = |start_time| Stat {
        state: b'S',
        parent: 1,
        group: 8,
        session: 8,
        threads: 1,
        start_time,
        has_environment: true,
        named_guard: false,
    };
    made.0.insert(500, (stat(50), Some((BOX, 3))));
    let seeing = made_tree(made, HERE);
    assert!(!seeing.is_gone(&inside));
    assert!(seeing.lineage(500, &[]).contains(&inside), "and known by its number inside");
    assert_eq!(seeing.sees([&inside]), vec![BOX.to_owned()]);

    let mut older = Made::default();
    older.0.insert(400, (stat(40), Some((BOX, 1))));
    assert!(made_tree(older, HERE).is_gone(&inside));
    let mut hidden = Made::default();
    hidden.0.insert(500, (stat(60), None));
    assert!(!made_tree(hidden, HERE).is_gone(&inside), "who knows");

    let blind = made_tree(Made::default(), "pid:[8]");
    assert!(!blind.is_gone(&inside));
    assert!(blind.sees([&inside]).is_empty());
}

#[test]
fn le_4_a_process_between_two_programs_has_its_marks() {
    for _ in 0..300 {
        // The parent goes on before the kernel gives the new program its environment.
        let mut child = Command::new("tail").args(["-f", "/dev/null"]).env(GUARDS_VARIABLE, "1-2-3").spawn().unwrap();
        let marks = Proc.guards(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(marks.as_deref(), Some("1-2-3"));
        assert_eq!(Proc.guards(child.id()), None, "it has ended");
    }
}
