//! Tests of edits of the file, in the ways of editors and of faults.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use model_boss_catalog::{Engines, ModelRoots};
use model_boss_config::LogLevel;
use model_boss_core::Settings;
use model_boss_host::log_filter::LogFilter;
use model_boss_protocol::ClientId;
use model_boss_settings::{Configured, Overrides};

use super::*;

struct Rig {
    folder: tempfile::TempDir,
    live: Arc<LiveTasks>,
    models: LiveCatalog,
}

fn rig(text: Option<&str>) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tasks.yaml");
    if let Some(text) = text {
        fs::write(&file, text).unwrap();
    }
    let configured = Configured {
        settings: Settings::default(),
        allow_cloud_fallback: true,
        model_idle: None,
        log_level: LogLevel::Info,
    };
    let settings = Arc::new(LiveSettings::new(configured, LogFilter::default(), Box::new(drop)));
    settings.set_overrides(Overrides::nothing_stored());
    let live = Arc::new(LiveTasks::read(&file, false, Providers::new(), settings).unwrap());
    let models = LiveCatalog::read(folder.path(), ModelRoots::new(&[]), Engines::default(), Box::new(drop));
    Rig { folder, live, models }
}

impl Rig {
    fn file(&self) -> PathBuf {
        self.folder.path().join("tasks.yaml")
    }

    fn write(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
    }

    fn tasks(&self) -> Vec<String> {
        self.live.current().names.file().tasks.keys().cloned().collect()
    }

    fn resolves(&self, task: &str) -> bool {
        let client = ClientId::from("c");
        let question = NameQuestion { model: None, task: Some(task), client: &client, no_fallback: false };
        self.live.resolve(&question, &self.models).is_ok()
    }
}

#[test]
fn tr_5_an_edit_counts_at_the_second_look_that_agrees() {
    let rig = rig(Some("tasks: {a: {ladder: [m]}}\n"));
    assert!(rig.resolves("a") && rig.live.problems().is_empty());
    rig.write("tasks: {b: {ladder: [m]}}\n");
    rig.live.look();
    assert_eq!(rig.tasks(), ["a"]);
    rig.live.look();
    assert_eq!(rig.tasks(), ["b"]);
    assert!(!rig.resolves("a"));
    assert_eq!(rig.live.current().reloads.adopted, 2);
}

#[test]
fn tr_5_a_bad_edit_leaves_the_last_good_file_and_is_named_with_line_and_field() {
    let rig = rig(Some("tasks: {a: {ladder: [m]}}\n"));
    rig.write("tasks:\n  a:\n    ladder: [m]\n    budget: 3\n");
    rig.live.look();
    rig.live.look();
    assert_eq!(rig.tasks(), ["a"]);
    let problems = rig.live.problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].contains("tasks.yaml:4: tasks.a.budget: unknown field `budget`"), "{problems:?}");
    // The file is unchanged, so it is not judged again.
    rig.live.look();
    rig.live.look();
    assert_eq!(rig.live.current().reloads.refused, 1);
    rig.write("tasks: {c: {ladder: [m]}}\n");
    rig.live.look();
    rig.live.look();
    assert_eq!((rig.tasks(), rig.live.problems().len()), (vec!["c".to_owned()], 0));
}

#[test]
fn tr_5_a_file_that_is_deleted_takes_nothing_with_it_and_one_that_never_was_is_no_problem() {
    let without = rig(None);
    without.live.look();
    without.live.look();
    assert!(without.live.problems().is_empty() && without.tasks().is_empty());
    without.write("tasks: {a: {ladder: [m]}}\n");
    without.live.look();
    without.live.look();
    assert_eq!(without.tasks(), ["a"]);
    fs::remove_file(without.file()).unwrap();
    without.live.look();
    without.live.look();
    assert_eq!(without.tasks(), ["a"]);
    assert!(without.live.problems()[0].contains("is not there"), "{:?}", without.live.problems());
}

#[test]
fn tr_5_a_link_that_is_turned_counts_and_so_does_what_it_leads_to() {
    let rig = rig(None);
    let at = |name: &str| rig.folder.path().join(name);
    fs::write(at("one"), "tasks: {a: {ladder: [m]}}\n").unwrap();
    fs::write(at("two"), "tasks: {b: {ladder: [m]}}\n").unwrap();
    symlink("one", rig.file()).unwrap();
    rig.live.look();
    rig.live.look();
    assert_eq!(rig.tasks(), ["a"]);
    // Kubernetes and some editors replace a file in this way: a new link replaces the old one.
    symlink("two", at("new")).unwrap();
    fs::rename(at("new"), rig.file()).unwrap();
    rig.live.look();
    rig.live.look();
    assert_eq!(rig.tasks(), ["b"]);
    fs::write(at("two"), "tasks: {c: {ladder: [m]}}\n").unwrap();
    rig.live.look();
    rig.live.look();
    assert_eq!(rig.tasks(), ["c"]);
}

/// A valid file, a different one for each number.
fn version(number: u64) -> String {
    format!(
        "tasks:\n  t:\n    ladder: [m{number}]\n    params: {{seed: {number}}}\n  other:\n    ladder:\n      - x\n      \
         - y{number}\nclients:\n  default:\n    max_concurrent: {}\ndefaults: {{budget_s: {}}}\n",
        number % 7 + 1,
        number + 1
    )
}

/// Random edits while other threads resolve names. `TASKS_EDITS=10000` makes more of them.
#[test]
fn no_coordinator_begins_without_the_rules_of_a_file_that_is_there_or_was_named() {
    let read = |text: Option<&[u8]>, required| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tasks.yaml");
        text.into_iter().for_each(|text| fs::write(&file, text).unwrap());
        let configured = Configured {
            settings: Settings::default(),
            allow_cloud_fallback: true,
            model_idle: None,
            log_level: LogLevel::Info,
        };
        let settings = Arc::new(LiveSettings::new(configured, LogFilter::default(), Box::new(drop)));
        LiveTasks::read(&file, required, Providers::new(), settings).map(|_| ()).map_err(|error| error.to_string())
    };
    let broken = b"clients:\n  guest: {allowed_models: [a]}\n  other: {nonsense: 1}\n";
    for (text, required, said) in [
        (Some(&broken[..]), false, "tasks.yaml:3: clients.other.nonsense"),
        (Some(b"clients: ["), false, "tasks.yaml:"),
        (Some(b"\xff"), false, "is not a text in UTF-8"),
        (None, true, "is not there"),
    ] {
        let error = read(text, required).unwrap_err();
        assert!(error.contains(said) && error.contains("model-boss tasks check"), "{error}");
    }
    assert_eq!(read(None, false), Ok(()));
    assert_eq!(read(Some(b"clients: {guest: {allowed_models: [a]}}"), true), Ok(()));
}

#[test]
fn tr_5_no_edit_makes_a_bad_file_active_or_a_request_fail() {
    let edits: u64 = std::env::var("TASKS_EDITS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let seed = RandomState::new().hash_one(0);
    let mut dice = Dice(seed);
    let rig = rig(Some(&version(0)));
    let stop = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut asked = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        assert!(rig.resolves("t"), "a request failed; seed {seed}");
                        asked += 1;
                    }
                    asked
                })
            })
            .collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| edit(&rig, edits, &mut dice)));
        stop.store(true, Ordering::Relaxed);
        let asked: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
        done.unwrap_or_else(|_| panic!("seed {seed}"));
        asked
    });
    assert!(asked > 0);
}

fn edit(rig: &Rig, edits: u64, dice: &mut Dice) {
    let mut good = TasksFile::read(&version(0), &Providers::new()).unwrap();
    let (mut adopted, mut refused) = (0, 0);
    let clear = || {
        if fs::symlink_metadata(rig.file()).is_ok_and(|about| about.is_dir()) {
            fs::remove_dir(rig.file()).unwrap();
        }
    };
    for number in 1..=edits {
        let text = version(number);
        let cut = dice.below(text.len() as u64) as usize;
        let beside = rig.folder.path().join("beside");
        clear();
        match dice.below(10) {
            // The file is written in place, in one write, or replaced by a rename as most editors do.
            0..=2 => fs::write(rig.file(), &text).unwrap(),
            3 => {
                fs::write(&beside, &text).unwrap();
                fs::rename(&beside, rig.file()).unwrap();
            }
            // Half of the file is seen once, then all of it.
            4 => {
                fs::write(rig.file(), &text[..cut]).unwrap();
                rig.live.look();
                assert_eq!(*rig.live.current().names.file(), good, "half a file is active");
                fs::write(rig.file(), &text).unwrap();
            }
            5 => fs::write(rig.file(), &text[..cut]).unwrap(),
            6 => fs::write(rig.file(), text.replace("ladder:", "lader:")).unwrap(),
            7 => {
                let mut bytes = text.into_bytes();
                bytes[cut] = [0xff, 0, b'\t', b'{', b'&', b'*', b'!', b'\n'][dice.below(8) as usize];
                fs::write(rig.file(), bytes).unwrap();
            }
            8 => {
                let _ = fs::remove_file(rig.file());
                if dice.below(2) == 0 {
                    fs::create_dir(rig.file()).unwrap();
                }
            }
            _ => {
                fs::write(&beside, &text).unwrap();
                let _ = fs::remove_file(rig.file());
                symlink(&beside, rig.file()).unwrap();
                rig.live.look();
                fs::remove_file(rig.file()).unwrap();
                fs::rename(&beside, rig.file()).unwrap();
            }
        }
        let looks = dice.below(4);
        for _ in 0..looks {
            rig.live.look();
        }
        // The version in use is a valid one that was found by two reads.
        let stands = fs::read(rig.file()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let read = stands.and_then(|text| TasksFile::read(&text, &Providers::new()).ok());
        let current = rig.live.current();
        match read {
            Some(file) if looks >= 2 => {
                good = file;
                adopted += 1;
                assert!(current.problems.is_empty());
            }
            Some(file) if *current.names.file() == file => good = file,
            None if looks >= 2 => {
                refused += 1;
                assert!(!current.problems.is_empty(), "a bad file is there, but no problem is reported");
            }
            _ => {}
        }
        assert_eq!(*current.names.file(), good, "edit {number}");
    }
    clear();
    fs::write(rig.file(), version(edits + 1)).unwrap();
    rig.live.look();
    rig.live.look();
    assert_eq!(*rig.live.current().names.file(), TasksFile::read(&version(edits + 1), &Providers::new()).unwrap());
    assert!(adopted > 0 && refused > 0, "{adopted} adopted, {refused} refused");
}

/// A seeded source of numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n.max(1)
    }
}
