//! Checks beyond the types: invalid values, alone or in combination.

use std::collections::BTreeSet;

use model_boss_core::Target;

use crate::file::{ClientProfile, Task, TasksFile};
use crate::providers::Providers;
use crate::tree::{ParsedTasks, Problem};

/// The longest permitted duration: a week.
const MAX_SECONDS: f64 = 7.0 * 86_400.0;
/// Fields that belong to the request. A task that set such a field would change the client's question.
const NOT_PARAMS: [&str; 8] = ["model", "messages", "prompt", "input", "stream", "query", "documents", "keep_alive"];
/// The sections of the file.
const SECTIONS: [&str; 3] = ["tasks", "clients", "defaults"];

pub(crate) fn unknown_section(name: &str) -> String {
    let near = SECTIONS.iter().find(|section| strsim::jaro_winkler(section, name) > 0.8);
    match near {
        Some(section) => format!("'{name}' is no section of this file; did you mean '{section}'?"),
        None => format!("'{name}' is no section of this file; there are {}", SECTIONS.join(", ")),
    }
}

pub(crate) fn check(file: &TasksFile, document: &ParsedTasks, providers: &Providers, problems: &mut Vec<Problem>) {
    let mut check = TasksCheck { file, document, providers, problems };
    for (name, task) in &file.tasks {
        check.task(name, task);
    }
    for (name, profile) in &file.clients {
        check.client(name, profile);
    }
    check.span("defaults.budget_s", file.defaults.budget_s, Least::MoreThanNothing);
    check.span("defaults.patience_s", file.defaults.patience_s, Least::Nothing);
}

struct TasksCheck<'a> {
    file: &'a TasksFile,
    document: &'a ParsedTasks,
    providers: &'a Providers,
    problems: &'a mut Vec<Problem>,
}

enum Least {
    Nothing,
    MoreThanNothing,
}

impl TasksCheck<'_> {
    fn wrong(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let field = field.into();
        // The field itself could not be read, and that problem is reported already.
        if self.problems.iter().all(|problem| problem.field != field) {
            self.problems.push(self.document.problem(field, message));
        }
    }

    fn task(&mut self, name: &str, task: &Task) {
        let at = format!("tasks.{name}");
        let ladder = format!("{at}.ladder");
        if !is_name(name) {
            self.wrong(&at, format!("'{name}' cannot name a task; use letters, digits and . _ - / @ +"));
        }
        let unread = self.problems.iter().any(|problem| problem.field.starts_with(&ladder));
        if task.ladder.is_empty() && !unread {
            self.wrong(&ladder, "a task needs at least one model: write 'ladder: [NAME]'");
        }
        let mut seen = BTreeSet::new();
        for (place, rung) in task.ladder.iter().enumerate() {
            let field = format!("{ladder}[{place}]");
            if rung.starts_with("task:") {
                self.wrong(&field, format!("'{rung}' is a task; a ladder has models only"));
            } else if !is_model(rung) {
                self.wrong(&field, format!("'{rung}' cannot name a model"));
            } else if !seen.insert(rung) {
                self.wrong(&field, format!("'{rung}' stands on this ladder already"));
            } else if task.local_only && self.providers.is_cloud(&self.providers.target(rung)) {
                self.wrong(&field, format!("'{rung}' is elsewhere, and the task is 'local_only'"));
            }
        }
        self.span(&format!("{at}.budget_s"), task.budget_s, Least::MoreThanNothing);
        self.span(&format!("{at}.patience_s"), task.patience_s, Least::Nothing);
        for param in task.params.keys() {
            if NOT_PARAMS.contains(&param.as_str()) || param.starts_with("x_") {
                let message = format!("'{param}' is the request's own and cannot be set by a task");
                self.wrong(format!("{at}.params.{param}"), message);
            }
        }
    }

    fn client(&mut self, name: &str, profile: &ClientProfile) {
        let at = format!("clients.{name}");
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            self.wrong(&at, "a client's name has 1 to 128 printable characters");
        }
        for (asked, given) in &profile.models {
            let field = format!("{at}.models.{asked}");
            match given.strip_prefix("task:") {
                Some(task) if !self.file.tasks.contains_key(task) => {
                    let message = format!("there is no task '{task}'{}", self.nearest_task(task));
                    self.wrong(field, message);
                }
                None if !is_model(given) => self.wrong(field, format!("'{given}' cannot name a model")),
                _ => {}
            }
        }
        for (place, pattern) in profile.allowed_models.iter().flatten().enumerate() {
            let plain = pattern.strip_suffix('*').unwrap_or(pattern);
            let field = format!("{at}.allowed_models[{place}]");
            if plain.contains('*') {
                self.wrong(field, format!("'{pattern}': a '*' may only stand at the end"));
            } else if let Some(task) = pattern.strip_prefix("task:").filter(|task| !task.ends_with('*'))
                && !self.file.tasks.contains_key(task)
            {
                let message = format!("there is no task '{task}'{}", self.nearest_task(task));
                self.wrong(field, message);
            }
        }
        if let (Some(default), Some(max)) = (profile.default_priority, profile.max_priority)
            && default < max
        {
            let message = format!("{default} is more important than the client's 'max_priority' {max}");
            self.wrong(format!("{at}.default_priority"), message);
        }
        let limits = [
            ("max_concurrent", profile.max_concurrent),
            ("rate_per_minute", profile.rate_per_minute),
            ("max_queued", profile.max_queued),
        ];
        for (field, limit) in limits {
            if limit == Some(0) {
                self.wrong(format!("{at}.{field}"), "0 would let nothing through; leave it out for no limit");
            }
        }
        self.span(&format!("{at}.cooldown_s"), profile.cooldown_s, Least::Nothing);
        if profile.daily_spend_usd.is_some_and(|usd| !(0.0..=1e9).contains(&usd)) {
            self.wrong(format!("{at}.daily_spend_usd"), "must be 0 or more");
        }
    }

    fn span(&mut self, field: &str, seconds: Option<f64>, least: Least) {
        let Some(seconds) = seconds else { return };
        let enough = match least {
            Least::Nothing => seconds >= 0.0,
            Least::MoreThanNothing => seconds >= 0.001,
        };
        if !enough || seconds > MAX_SECONDS {
            let least = if matches!(least, Least::Nothing) { "0" } else { "0.001" };
            self.wrong(field, format!("{seconds} seconds; it must be from {least} to {MAX_SECONDS}"));
        }
    }

    fn nearest_task(&self, name: &str) -> String {
        nearest(name, self.file.tasks.keys()).map_or_else(String::new, |near| format!("; did you mean '{near}'?"))
    }
}

/// The known name most similar to this one, if any is similar.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let likeness = |known: &'a String| (strsim::jaro_winkler(name, known), known);
    let (likeness, known) = known.map(likeness).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness > 0.8).then_some(known)
}

/// Whether the text could be a model's name, of this machine or of a provider.
fn is_model(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@+".contains(&b);
    !name.is_empty() && name.len() <= 200 && name.bytes().all(allowed)
}

fn is_name(name: &str) -> bool {
    is_model(name) && !name.contains(':')
}

/// The names of local models in a file for which `is_known` is false. This is not an error, because a manifest may be
/// added later, but it is worth a warning.
pub fn unknown_models<'a>(
    file: &'a TasksFile,
    providers: &Providers,
    is_known: impl Fn(&str) -> bool,
) -> Vec<(String, &'a str)> {
    let local = |name: &str| matches!(providers.target(name), Target::Local(_));
    let rungs = file.tasks.iter().flat_map(|(task, what)| {
        let place = move |(place, name): (usize, &'a String)| (format!("tasks.{task}.ladder[{place}]"), name.as_str());
        what.ladder.iter().enumerate().map(place)
    });
    let maps = file.clients.iter().flat_map(|(client, profile)| {
        let field =
            move |(asked, given): (&String, &'a String)| (format!("clients.{client}.models.{asked}"), given.as_str());
        profile.models.iter().map(field)
    });
    let maps = maps.filter(|(_, name)| !name.starts_with("task:"));
    rungs.chain(maps).filter(|(_, name)| local(name) && !is_known(name)).collect()
}
