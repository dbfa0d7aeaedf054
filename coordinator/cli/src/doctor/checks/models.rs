//! Manifests and tasks.

use std::path::PathBuf;

use super::super::finding::{Area, Finding};

/// How many models one line names.
const NAMED: usize = 8;

/// Manifests and tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct CatalogFacts {
    pub(crate) folder: PathBuf,
    pub(crate) models: usize,
    /// The faults of manifests.
    pub(crate) problems: Vec<String>,
    /// Models whose files are not there, with their paths.
    pub(crate) absent: Vec<String>,
    /// Models that no engine here can run, with the reason.
    pub(crate) without_engine: Vec<String>,
    /// Models whose files this user may not read.
    pub(crate) unreadable: Vec<String>,
    pub(crate) tasks_file: PathBuf,
    /// Tasks and clients in the file; `None` where there is no file.
    pub(crate) tasks: Option<(usize, usize)>,
    pub(crate) task_problems: Vec<String>,
    /// Rungs that no manifest describes.
    pub(crate) unknown_rungs: Vec<String>,
}

pub(crate) fn judge(facts: &CatalogFacts) -> Vec<Finding> {
    let area = Area::Models;
    let folder = facts.folder.display();
    let mut findings = Vec::new();
    findings.push(match facts.models {
        0 if facts.problems.is_empty() => Finding::note(area, "manifests", format!("{folder} describes no model"))
            .why("Requests can name models by path only")
            .remedy("`model-boss pull ORG/NAME`, or `model-boss scan` for models that are on this disk"),
        0 => Finding::note(area, "manifests", format!("no model of {folder} can be used")),
        1 => Finding::ok(area, "manifests", format!("{folder} describes 1 model")),
        many => Finding::ok(area, "manifests", format!("{folder} describes {many} models")),
    });
    findings.extend(facts.problems.iter().map(|problem| {
        Finding::failure(area, "manifest", problem.clone())
            .why("The model is not there for clients, or stays as it was before the edit")
            .remedy("Correct the manifest; a running coordinator reads it again by itself")
    }));
    if !facts.absent.is_empty() {
        findings.push(
            Finding::warning(area, "files", format!("files are not there: {}", some(&facts.absent)))
                .why("Requests to these models are refused, or start a pull where auto_pull is set")
                .remedy("`model-boss pull NAME` downloads those of a hub; correct `source` of the others"),
        );
    }
    if !facts.unreadable.is_empty() {
        findings.push(
            Finding::failure(area, "rights", format!("this user may not read: {}", some(&facts.unreadable)))
                .why("Workers run as this user")
                .remedy("Give it the right to read the files and to enter the folders above"),
        );
    }
    if !facts.without_engine.is_empty() {
        findings.push(
            Finding::failure(area, "engine", format!("no engine runs: {}", some(&facts.without_engine)))
                .why("A load of these models is refused")
                .remedy("docs/families.md lists what our worker runs; docs/engines.md how to add an engine"),
        );
    }
    findings.extend(tasks(facts));
    findings
}

fn tasks(facts: &CatalogFacts) -> Vec<Finding> {
    let (area, file) = (Area::Models, facts.tasks_file.display());
    if !facts.task_problems.is_empty() {
        let failure = |problem: &String| {
            Finding::failure(area, "tasks", format!("{file}: {problem}"))
                .why("A coordinator does not start with it; a running one keeps the last good version")
                .remedy("`model-boss tasks check` shows all problems")
        };
        return facts.task_problems.iter().map(failure).collect();
    }
    let Some((tasks, clients)) = facts.tasks else {
        return vec![Finding::ok(area, "tasks", format!("there is no {file}, so there are no tasks"))];
    };
    let mut findings = vec![Finding::ok(area, "tasks", format!("{file}: {tasks} tasks, {clients} clients"))];
    if !facts.unknown_rungs.is_empty() {
        findings.push(
            Finding::note(area, "rungs", format!("no manifest describes: {}", some(&facts.unknown_rungs)))
                .why("Ladders skip these rungs until there is one")
                .remedy("`model-boss tasks check` shows where they are named"),
        );
    }
    findings
}

/// The first names of a list.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_models_and_tasks_that_cannot_be_used_are_named() {
        let good = CatalogFacts { models: 2, tasks: Some((1, 1)), ..CatalogFacts::default() };
        assert_eq!(results(&judge(&good)), [("manifests", Grade::Ok), ("tasks", Grade::Ok)]);
        let one = || vec!["m".to_owned()];
        for (facts, expected) in [
            (CatalogFacts { models: 0, ..good.clone() }, ("manifests", Grade::Note)),
            (CatalogFacts { problems: one(), ..good.clone() }, ("manifest", Grade::Failure)),
            (CatalogFacts { absent: one(), ..good.clone() }, ("files", Grade::Warning)),
            (CatalogFacts { unreadable: one(), ..good.clone() }, ("rights", Grade::Failure)),
            (CatalogFacts { without_engine: one(), ..good.clone() }, ("engine", Grade::Failure)),
            (CatalogFacts { tasks: None, ..good.clone() }, ("tasks", Grade::Ok)),
            (CatalogFacts { task_problems: one(), ..good.clone() }, ("tasks", Grade::Failure)),
            (CatalogFacts { unknown_rungs: one(), ..good.clone() }, ("rungs", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        assert!(some(&names).ends_with("7; and 12 more"));
        assert_eq!(some(&names[..2]), "0; 1");
    }
}
