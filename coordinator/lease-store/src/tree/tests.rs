//! Trees that are made up, and one of this host.

use std::collections::BTreeMap;

use super::*;

const HERE: &str = INITIAL_NAMESPACE;
const BOX: &str = "pid:[7]";

#[derive(Default)]
struct Made(BTreeMap<u32, Seen>);

/// What is seen of a process: its stat, and its namespace with its number inside.
type Seen = (Stat, Option<(&'static str, u32)>);

impl Source for Made {
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
}

/// Pid, parent, group, session, start time.
fn tree(processes: &[(u32, u32, u32, u32, u64)]) -> ProcessTree {
    let made = processes.iter().map(|(pid, parent, group, session, start_time)| {
        let stat = Stat { state: b'S', parent: *parent, group: *group, session: *session, start_time: *start_time };
        (*pid, (stat, Some((HERE, *pid))))
    });
    ProcessTree { source: Box::new(Made(made.collect())), namespace: HERE.to_owned() }
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
    // Its parents are gone: 30 is init's child, in group 20 and session 10.
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
fn another_namespace_is_judged_only_from_the_initial_one() {
    let inside = Process { pid: 3, start_time: 50, pid_ns: BOX.to_owned() };
    let mut made = Made::default();
    let stat = |start_time| Stat { state: b'S', parent: 1, group: 8, session: 8, start_time };
    made.0.insert(500, (stat(50), Some((BOX, 3))));
    let seeing = ProcessTree { source: Box::new(made), namespace: HERE.to_owned() };
    assert!(!seeing.is_gone(&inside));
    assert!(seeing.lineage(500, &[]).contains(&inside), "and known by its number inside");
    assert_eq!(seeing.sees([&inside]), vec![BOX.to_owned()]);

    let mut older = Made::default();
    older.0.insert(400, (stat(40), Some((BOX, 1))));
    assert!(ProcessTree { source: Box::new(older), namespace: HERE.to_owned() }.is_gone(&inside));
    let mut hidden = Made::default();
    hidden.0.insert(500, (stat(60), None));
    assert!(!ProcessTree { source: Box::new(hidden), namespace: HERE.to_owned() }.is_gone(&inside), "who knows");

    let blind = ProcessTree { source: Box::new(Made::default()), namespace: "pid:[8]".to_owned() };
    assert!(!blind.is_gone(&inside));
    assert!(blind.sees([&inside]).is_empty());
}
