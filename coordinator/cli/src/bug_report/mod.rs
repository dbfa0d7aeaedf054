//! `model-boss bug-report`: what a person who looks for a fault needs, in one archive, without secrets and prompts.

mod archive;
mod collect;
mod redaction;
mod secrets;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use model_boss_host::clocks::unix_seconds;
use nix::unistd::{User, geteuid};

use self::archive::BundleFile;
use self::collect::BundleContent;
use self::redaction::Redaction;
use super::doctor::{self, ReadSettings};
use super::error::CliError;
use super::flags::SettingFlags;
use super::runtime::{print, small_runtime};

/// Arguments of `bug-report`.
#[derive(Debug, Args)]
pub(super) struct BugReportArgs {
    /// The archive to write [default: model-boss-bug-report-TIME.tar.gz, here].
    #[arg(value_name = "FILE.tar.gz")]
    file: Option<PathBuf>,
    /// A file with the coordinator's log, which it writes to standard error; may be given several times. Without one,
    /// the journal of the service model-boss is asked.
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// The last lines of each log.
    #[arg(short = 'n', long, default_value_t = 500)]
    lines: usize,
    #[command(flatten)]
    flags: SettingFlags,
}

/// Writes the bundle, and says what is in it.
pub(super) fn bug_report(url: &str, args: &BugReportArgs) -> Result<ExitCode, CliError> {
    let (settings, now) = (ReadSettings::new(&args.flags), unix_seconds());
    let path = args.file.clone().unwrap_or_else(|| format!("model-boss-bug-report-{now}.tar.gz").into());
    let home = std::env::home_dir().unwrap_or_default();
    let user = User::from_uid(geteuid()).ok().flatten().map(|user| user.name);
    let redaction = Redaction::new(secrets::of_this_machine(&settings.loaded.config), &home, user);
    let mut content = BundleContent { redaction: &redaction, lines: args.lines, files: Vec::new() };
    let (coordinator, has_log) = small_runtime()?.block_on(collect(url, &settings, args, &mut content))?;
    let mut files = content.files;
    let readme = redaction.text(&readme(&files, &coordinator, has_log));
    files.insert(0, BundleFile { name: "README.txt".to_owned(), content: readme });
    let folder = format!("model-boss-bug-report-{now}");
    archive::write(&path, &folder, &files, now).map_err(|error| CliError::Write(path.clone(), error))?;
    let names: String = files.iter().map(|file| format!("  {}\n", file.name)).collect();
    let state = coordinator.err().map(|why| format!("No coordinator's view is in it: {why}.\n")).unwrap_or_default();
    print(&format!(
        "{} has\n{names}{state}Keys, tokens, passwords and prompts were removed. Read it before you send it: tar xzf {}\n",
        path.display(),
        path.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Collects everything. Returns why there is no coordinator, and whether there is a log of one.
async fn collect(
    url: &str,
    settings: &ReadSettings,
    args: &BugReportArgs,
    content: &mut BundleContent<'_>,
) -> Result<(Result<(), String>, bool), CliError> {
    let client = settings.client(url)?;
    let (text, json) = doctor::examined(&client, settings).await;
    content.report("doctor.txt", &text);
    content.json("doctor.json", &json);
    content.text("version.txt", &format!("model-boss {}\n", env!("CARGO_PKG_VERSION")));
    content.settings(&settings.loaded, &settings.problems);
    content.worker_logs(&settings.loaded.config);
    for (number, log) in args.log.iter().enumerate() {
        content.log_file(&format!("logs/coordinator-{number}.log"), log);
    }
    let has_log = !args.log.is_empty() || content.journal().await;
    Ok((content.coordinator(&client).await, has_log))
}

fn readme(files: &[BundleFile], coordinator: &Result<(), String>, has_log: bool) -> String {
    let mut text = "This is a bundle for a report about a fault of model-boss. Read it before you send it.\n\n\
                    Removed: keys, tokens, passwords, user names in addresses, prompts and answers, lines of logs that may have \
                    one, the path of the home folder and the name of the user. Texts that look like none of these stay: names of \
                    models, clients, devices, hosts and files.\n\n"
        .to_owned();
    match coordinator {
        Ok(()) => text += "A coordinator answered; its views are in coordinator/.\n",
        Err(why) => text += &format!("No coordinator answered, so there are no views of one: {why}.\n"),
    }
    if !has_log {
        text += "There is no log of the coordinator: it writes to standard error. --log FILE adds one.\n";
    }
    text += "\nFiles:\n";
    text.extend(files.iter().map(|file| format!("  {} ({} bytes)\n", file.name, file.content.len())));
    text
}
