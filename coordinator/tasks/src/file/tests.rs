//! Valid files, invalid files, and profiles that override others.

use super::*;
use crate::Providers;

fn problems(text: &str) -> Vec<String> {
    let problems = TasksFile::read(text, &Providers::new()).unwrap_err();
    problems.iter().map(|problem| format!("{}|{problem}", problem.line.unwrap_or(0))).collect()
}

#[test]
fn tr_1_the_example_at_the_top_is_valid_and_falls_back_to_no_cloud() {
    let text = include_str!("../../../../tasks.yaml");
    let file = TasksFile::read(text, &Providers::new()).unwrap();
    assert!(!file.tasks.is_empty());
    for task in file.tasks.values() {
        assert!(task.ladder.iter().all(|rung| !Providers::new().is_cloud(&Providers::new().target(rung))));
    }
    assert!(text.lines().next().unwrap().contains("docs/schema/tasks.json"), "editors find the schema");
}

#[test]
fn tr_5_everything_that_is_wrong_is_said_at_once_in_the_order_of_lines() {
    let found = problems(
        "tasks:\n  chat:\n    ladder: []\n    budget_s: -1\n    priorty: 3\n  'a b':\n    ladder: [x, x, 'task:chat']\n\
         clients:\n  c:\n    allowed_models: ['task:caht', 'a*b']\n    max_concurrent: 0\n    max_priority: 5\n    \
         default_priority: 2\ndefualts: {}\n",
    );
    let wanted = [
        "3|tasks.chat.ladder: a task needs at least one model",
        "4|tasks.chat.budget_s: -1 seconds",
        "5|tasks.chat.priorty: unknown field `priorty`",
        "6|tasks.a b: 'a b' cannot name a task",
        "7|tasks.a b.ladder[1]: 'x' stands on this ladder already",
        "7|tasks.a b.ladder[2]: 'task:chat' is a task",
        "10|clients.c.allowed_models[0]: there is no task 'caht'; did you mean 'chat'?",
        "10|clients.c.allowed_models[1]: 'a*b'",
        "11|clients.c.max_concurrent: 0 would let nothing through",
        "13|clients.c.default_priority: 2 is more important",
        "14|defualts: 'defualts' is no section of this file; did you mean 'defaults'?",
    ];
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.starts_with(wanted), "{found:?} is not {wanted:?}");
    }
}

#[test]
fn nothing_and_other_things_than_maps_are_told() {
    assert!(problems("")[0].contains("the file is empty"));
    assert!(problems("# only words\n")[0].contains("the file is empty"));
    assert!(problems("- a\n")[0].contains("must be a map"));
    assert!(problems("tasks: [a]\n")[0].contains("'tasks' must be a map of names"));
    assert!(problems("tasks:\n  a: {ladder: x}\n")[0].starts_with("2|tasks.a.ladder: invalid type"));
    assert!(problems("tasks:\n  a:\n")[0].starts_with("2|tasks.a.ladder: a task needs"));
    assert!(problems("tasks:\n")[0].starts_with("1|tasks: 'tasks' has nothing behind it"));
    assert_eq!(TasksFile::read("tasks: {}\n", &Providers::new()).unwrap(), TasksFile::default());
}

#[test]
fn what_was_expected_is_said_in_words() {
    let found = problems(
        "tasks:\n  a:\n    ladder: x\n    budget_s: soon\n    pin_primary: maybe\n    fallback: some\n    priority: 12\n",
    );
    for wanted in [
        "3|tasks.a.ladder: invalid type: the text \"x\", expected a list",
        "4|tasks.a.budget_s: invalid type: the text \"soon\", expected a number",
        "5|tasks.a.pin_primary: invalid type: the text \"maybe\", expected true or false",
        "6|tasks.a.fallback: unknown variant `some`, expected `any` or `none`",
        "7|tasks.a.priority: '12' is not a priority; write 0 (most important) to 9, or interactive, normal or batch",
    ] {
        assert!(found.contains(&wanted.to_owned()), "{wanted} is not in {found:#?}");
    }
}

proptest::proptest! {
    /// A randomly damaged file is read or refused with a line number, and never causes a panic.
    #[test]
    fn a_damaged_file_is_read_or_refused(
        edits in proptest::collection::vec((0..2_000_usize, 0..4_u8, "[a-z:{}\\[\\]&*!|>#'\", \t\n-]{0,6}"), 1..6),
    ) {
        let mut text: Vec<char> = include_str!("../../../../tasks.yaml").chars().collect();
        for (at, kind, piece) in edits {
            let at = at % text.len().max(1);
            let end = (at + piece.len()).min(text.len());
            match kind {
                0 => text.truncate(at),
                1 => drop(text.drain(at..end)),
                2 => drop(text.splice(at..at, piece.chars())),
                _ => drop(text.splice(at..end, piece.chars())),
            }
        }
        let text: String = text.into_iter().collect();
        if let Err(problems) = TasksFile::read(&text, &Providers::new()) {
            proptest::prop_assert!(!problems.is_empty());
            proptest::prop_assert!(problems.iter().all(|problem| !problem.message.is_empty()));
        }
    }
}

#[test]
fn a_local_task_cannot_have_a_cloud_on_its_ladder() {
    let found = problems("tasks:\n  a:\n    local_only: true\n    ladder: [x, claude:opus]\n");
    assert_eq!(found, ["4|tasks.a.ladder[1]: 'claude:opus' is elsewhere, and the task is 'local_only'"]);
}

#[test]
fn rc_24_a_profile_goes_over_everybodys_and_over_the_configuration() {
    let text =
        "clients:\n  default: {max_concurrent: 4, cooldown_s: 0.5}\n  phone: {max_concurrent: 1, models: {a: b}}\n";
    let file = TasksFile::read(text, &Providers::new()).unwrap();
    let base = ClientRules {
        default: ClientRule { max_queued: Some(9), max_concurrent: Some(2), ..ClientRule::default() },
        named: BTreeMap::from([("old".into(), ClientRule { rate_per_minute: Some(7), ..ClientRule::default() })]),
    };
    let rules = file.client_rules(&base);
    let half = Duration::from_millis(500);
    let everybody = rules.of(&"anybody".into());
    assert_eq!((everybody.max_concurrent, everybody.max_queued, everybody.cooldown), (Some(4), Some(9), half));
    let phone = rules.of(&"phone".into());
    assert_eq!((phone.max_concurrent, phone.max_queued, phone.cooldown), (Some(1), Some(9), half));
    assert_eq!(rules.of(&"old".into()).rate_per_minute, Some(7));
    assert_eq!(file.profile(&"phone".into()).cooldown_s, Some(0.5));
    assert_eq!(file.profile(&"phone".into()).models["a"], "b");
}
