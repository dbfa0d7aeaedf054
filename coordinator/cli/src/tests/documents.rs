//! The commands, settings, manifests and tasks in documents are valid for this program.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;
use model_boss_config::Sources;
use model_boss_host::probe::SimulatedMachine;
use model_boss_protocol::Manifest;
use model_boss_tasks::{Providers, TasksFile};

use crate::Cli;

/// The documents for users, with their paths. The changelog and the decisions are left out, because they describe
/// earlier versions too.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let beside = ["README.md", "ARCHITECTURE.md", "clients/python/README.md"].map(|path| root.join(path));
    pages.chain(beside).map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The language and the text of each block of code.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect()
}

/// Command lines in blocks of shell, and those inside of sentences.
fn command_lines(text: &str) -> Vec<&str> {
    let shell = blocks(text).into_iter().filter(|(language, _)| ["sh", "bash"].contains(language));
    let in_blocks = shell.flat_map(|(_, block)| block.lines());
    let sentences = text.split("```").step_by(2).flat_map(|part| part.split('`').skip(1).step_by(2));
    in_blocks.chain(sentences).collect()
}

/// The words after `model-boss`, without a comment. A text in quotes is one word.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line.split(" # ").next()?.trim();
    let line = ["target/serve/", "target/release/"]
        .iter()
        .find_map(|folder| line.strip_prefix(folder))
        .unwrap_or(line)
        .strip_prefix("model-boss ")?;
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    Some(words)
}

#[test]
fn every_command_in_the_documents_is_one() {
    let (mut faults, mut seen) = (Vec::new(), 0);
    for (path, text) in documents() {
        for words in command_lines(&text).into_iter().filter_map(words) {
            seen += 1;
            let line = std::iter::once("model-boss".to_owned()).chain(words.iter().cloned());
            // A sentence may name a command without its arguments.
            let left_out = [ErrorKind::MissingRequiredArgument, ErrorKind::MissingSubcommand, ErrorKind::DisplayHelp];
            let more = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            if let Err(error) = Cli::try_parse_from(line)
                && !left_out.contains(&error.kind())
                && error.kind() != more
            {
                faults.push(format!("{}: model-boss {}: {error}", path.display(), words.join(" ")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 40, "only {seen} commands were found");
}

#[test]
fn every_file_in_the_documents_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("example");
    let (mut faults, mut seen) = (Vec::new(), [0; 4]);
    for (path, text) in documents() {
        for (language, block) in blocks(&text) {
            fs::write(&file, block).unwrap();
            let (kind, fault) = match language {
                "yaml" => (0, tasks_fault(block)),
                "toml" if block.contains("[cpu]") || block.contains("[[gpu]]") => {
                    (1, SimulatedMachine::read(&file, None).err().map(|error| error.to_string()))
                }
                "toml" if block.lines().any(|line| line.starts_with("name = ")) => {
                    let read = toml::from_str(block).map_err(|error| error.to_string());
                    (2, read.and_then(|manifest: Manifest| manifest.check().map_err(|error| error.to_string())).err())
                }
                "toml" => {
                    let sources = Sources { flags: Vec::new(), environment: Vec::new(), file: Some(file.clone()) };
                    (3, sources.load().err().map(|error| error.to_string()))
                }
                _ => continue,
            };
            seen[kind] += 1;
            faults.extend(fault.map(|fault| format!("{}: {block}\n{fault}", path.display())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen.iter().all(|count| *count > 0), "tasks, machines, manifests, settings: {seen:?}");
}

/// The fault of an example of tasks; clients may need the tasks of another example.
fn tasks_fault(block: &str) -> Option<String> {
    let mut text = block.to_owned();
    if !text.lines().any(|line| line.starts_with("tasks:")) {
        text.push_str("\ntasks: {chat: {ladder: [guide]}}\n");
    }
    let problems = TasksFile::read(&text, &Providers::new()).err()?;
    Some(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}
