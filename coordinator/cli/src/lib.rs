//! The command line: its commands, and the code that runs each. Every command but `serve` and `config` uses a
//! coordinator's API over HTTP, and no other information. The command `run` starts a coordinator of its own for a file
//! if none runs.

mod args;
mod batch;
mod bench;
mod bug_report;
mod by_worker;
mod chat;
mod convert;
mod doctor;
mod error;
mod files;
mod flags;
mod inspect;
mod jobs;
mod keys;
mod load;
mod logs;
mod orders;
mod paint;
mod private;
mod progress_line;
mod providers;
mod pull;
mod remove;
mod runtime;
mod say;
mod scan;
mod set_config;
mod show_config;
mod tables;
mod tasks;
mod views;
mod watch;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use error::CliError;
use error::OCCUPIED;
pub use error::ServeFailure;
use flags::SettingFlags;
use model_boss_client::Client;
use model_boss_client::lease_run::{self, LeaseCli};
use model_boss_config::Loaded;
use model_boss_host::log_filter::LogFilter;
use model_boss_host::terminal;
use model_boss_protocol::chain;
use tasks::TasksCommand;

use self::args::{ReadArgs, WatchArgs};
use self::inspect::inspect;
use self::runtime::{print, small_runtime};

/// One door, port 8210, to every model on a GPU machine.
#[derive(Debug, Parser)]
#[command(name = "model-boss", version, max_term_width = 120, after_help = EXAMPLES)]
struct Cli {
    /// The coordinator's address, for every command that uses one.
    #[arg(long, global = true, env = "MODEL_BOSS_URL", default_value = "http://127.0.0.1:8210")]
    url: String,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  model-boss serve                                  start the coordinator on 127.0.0.1:8210
  model-boss serve --port 0 --stay-warm-llm 10m     any free port; keep idle chat models ten minutes
  model-boss run guide                              chat in the terminal
  model-boss run guide \"What is a lease?\"           one question, one answer
  model-boss run ./qwen3-0.6b-q8_0.gguf \"Hello\"    a file, or a folder; needs no manifest and no coordinator
  git diff | model-boss run guide                   the question comes from a pipe
  model-boss say \"Good morning\" -o morning.opus    speech, by a voice of this machine
  model-boss paint \"a lighthouse\" -o light.png      a picture, by a model of this machine
  model-boss pull Qwen/Qwen3-0.6B-GGUF:Q8_0         a model of a hub, with resume and checksum
  model-boss ps --watch                             what is loaded, where, and until when
  model-boss queue                                  who waits, and for what
  model-boss providers                              what models elsewhere cost today, and what is left
  model-boss plan qwen3-32b --priority 2            where it would go, and who would leave for it
  model-boss move qwen3-8b cuda:1                   to another GPU, while it serves
  model-boss free cuda:0                            have a GPU for yourself; --back gives it to the models again
  model-boss doctor                                 what is wrong with this machine, and what to do
  model-boss bench guide --streams 1,8              first token and tokens a second; --against URL compares
  model-boss bench residency large                  what streaming a model takes on this machine, layer by layer
  model-boss convert index large                    its layers once more, so that streaming has nothing to arrange
  model-boss jobs submit chat body.json --wait      a request that survives a restart; its answer is printed
  model-boss batch submit in.jsonl --wait -o out    a file of requests, answered while nobody else needs the models
  model-boss tasks explain chat                     every rung of a task, and which one a request would get
  model-boss keys create anna --model guide         a key for one model; it is printed once
  model-boss config set allowCloudFallback=false    now, and after restarts
  model-boss config show --origin                   every setting and who decided it
  source <(model-boss completions bash)             completion in this shell

MODEL_BOSS_API_KEY is sent as the key where the coordinator wants one. The user who runs a coordinator needs none here.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the coordinator in the foreground until Ctrl-C; a second Ctrl-C ends it at once.
    Serve(SettingFlags),
    /// Ask a model, or chat with it. Ctrl-C stops an answer; Ctrl-D or /bye leaves.
    Run(chat::ChatArgs),
    /// List loaded models: size, device, state, and when each is unloaded.
    Ps(WatchArgs),
    /// List all models.
    List(ReadArgs),
    /// Show one model: its description, context, size and state; for a file or folder, its content.
    Show {
        /// The model's name or alias, or a path.
        #[arg(value_name = "MODEL|PATH")]
        model: String,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// List queued requests, their places, and what each waits for.
    Queue(WatchArgs),
    /// List devices: memory, its holders, and which devices are closed.
    Devices(WatchArgs),
    /// List clients: requests, tokens, limits.
    Clients(WatchArgs),
    /// List cloud providers: requests to their models, their cost, and what clients may still spend today.
    Providers(WatchArgs),
    /// Show the last decisions and their reasons.
    Decisions {
        /// The number of decisions.
        #[arg(short = 'n', long, default_value_t = 30)]
        lines: usize,
        #[command(flatten)]
        read: WatchArgs,
    },
    /// Show what loading a model would do: its device, models to evict, reasons to wait. Changes nothing.
    Plan {
        /// The model's name or alias.
        model: String,
        /// The context of the load, in tokens.
        #[arg(long, value_name = "TOKENS")]
        ctx_size: Option<u64>,
        /// The priority of the request: 0 to 9, or interactive, normal, batch.
        #[arg(long)]
        priority: Option<String>,
        /// The device of the load.
        #[arg(long)]
        device: Option<String>,
        #[command(flatten)]
        layers: orders::LayerArgs,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Load a model now and wait until it serves.
    Load(load::LoadArgs),
    /// Move a loaded model to another device. No request fails; the old copy serves until the new one does.
    Move(orders::MoveArgs),
    /// Keep a model loaded until the coordinator ends, whatever else needs its memory.
    Pin(orders::PinArgs),
    /// Mark a loaded model as stale: it is loaded anew after its requests have ended.
    Invalidate {
        /// The model's name or alias.
        model: String,
    },
    /// Reserve a device: its models are unloaded, and none is loaded there until --back.
    Free(orders::FreeArgs),
    /// Show the output of a model's workers.
    Logs(logs::LogsArgs),
    /// Speak a text by a model or program that can, into a file.
    Say(say::SayArgs),
    /// Paint a text by a model that can, into files; or a picture anew.
    Paint(paint::PaintArgs),
    /// Propose manifests for the models on this disk: caches of Hugging Face, LM Studio and Ollama, or a folder.
    Scan(scan::ScanArgs),
    /// Download a model of a hub into Hugging Face's cache, and write its manifest. Interrupted, it goes on later.
    Pull(pull::PullArgs),
    /// Remove a model's manifest, and its files in Hugging Face's cache that no other model uses.
    Rm(remove::RemoveArgs),
    /// Unload a model, as `ollama stop` does.
    Stop {
        /// The model's name or alias.
        model: String,
    },
    /// Unload a model, or all of them.
    Unload {
        /// The model's name or alias.
        #[arg(required_unless_present = "all")]
        model: Option<String>,
        /// Unload every loaded model.
        #[arg(long, conflicts_with = "model")]
        all: bool,
    },
    /// Leases of memory that training jobs and models share: run a program with one, list them.
    #[command(subcommand)]
    Lease(LeaseCli),
    /// Jobs: requests that are accepted now and answered later, also after a restart.
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Batches: files of requests, answered when nothing more important is to be done.
    #[command(subcommand)]
    Batch(batch::BatchCommand),
    /// API keys of clients: make, list, replace and end them.
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// The configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Tasks, names that stand for ladders of models: list them, explain one, check a file.
    #[command(subcommand)]
    Tasks(tasks::TasksCommand),
    /// Measure a model: time to the first token, tokens a second, with up to 32 streams, beside other servers.
    Bench(bench::BenchLine),
    /// Write a model's files in another form: its layers for streaming, or as GGUF.
    #[command(subcommand)]
    Convert(convert::ConvertCommand),
    /// Look for faults of this machine and of its settings, and say what to do. Changes nothing, and needs no
    /// coordinator. Exit code 1 if something does not work.
    Doctor(doctor::DoctorArgs),
    /// Write an archive for a report about a fault: doctor, settings, views, logs; without keys, tokens and prompts.
    BugReport(bug_report::BugReportArgs),
    /// Write the manual page of each command into a folder.
    Man {
        /// The folder, which must exist.
        folder: PathBuf,
    },
    /// Print the completion script of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show every setting, as `serve` with the same flags would use it.
    Show(show_config::ShowArgs),
    /// Show the settings that can be changed while the coordinator runs.
    Get(set_config::GetArgs),
    /// Change such a setting: now, for every coordinator of the same store, and after restarts.
    Set(set_config::SetArgs),
}

/// Runs the coordinator until a signal ends it. The binary passes this function in, since this crate does not depend on
/// the coordinator.
pub type ServeCommand = fn(Loaded, LogFilter) -> Result<ExitCode, ServeFailure>;

/// Runs the command line. Exit codes: 1 for an error or a failed check, 2 for an invalid command line, 75 where another
/// coordinator has what this one needs, 130 for an answer stopped by Ctrl-C.
pub fn run(serve: ServeCommand) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // The message repeats the arguments, which a script may have from an untrusted source.
        Err(error) if error.use_stderr() => {
            terminal::say(error.render().to_string().trim_end());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
        Err(help) => help.exit(),
    };
    match cli.command.run(&cli.url, serve) {
        Ok(code) => code,
        // The reader of this command's output has closed it, as in `model-boss list | head -1`.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&format!("model-boss: {}", chain(&error)));
            if matches!(error, CliError::Serve(ServeFailure { is_occupied: true, .. })) {
                return ExitCode::from(OCCUPIED);
            }
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(self, url: &str, serve: ServeCommand) -> Result<ExitCode, CliError> {
        let client = || Client::of_environment(url);
        match self {
            Self::Serve(flags) => {
                let loaded = flags.sources().load()?;
                let log = LogFilter::start(loaded.config.log.level, loaded.config.log.format);
                return Ok(serve(loaded, log)?);
            }
            Self::Run(args) => return chat::run(&client()?, args, &small_runtime()?),
            Self::Ps(args) => watch::show(&client()?, args, async |client| tables::ps(client, args.read.json).await)?,
            Self::Queue(args) => {
                watch::show(&client()?, args, async |client| views::queue(client, args.read.json).await)?;
            }
            Self::Devices(args) => {
                watch::show(&client()?, args, async |client| views::devices(client, args.read.json).await)?;
            }
            Self::Clients(args) => {
                watch::show(&client()?, args, async |client| views::clients(client, args.read.json).await)?;
            }
            Self::Providers(args) => {
                watch::show(&client()?, args, async |client| providers::providers(client, args.read.json).await)?;
            }
            Self::Decisions { lines, read } => {
                watch::show(&client()?, read, async |client| views::decisions(client, lines, read.read.json).await)?;
            }
            Self::Plan { model, ctx_size, priority, device, layers, read } => {
                let mut question = views::plan_question(&model, ctx_size, priority.as_deref(), device.as_deref());
                layers.add_to(&mut question);
                print(&small_runtime()?.block_on(views::plan(&client()?, &question, read.json))?)?;
            }
            Self::Move(args) => print(&small_runtime()?.block_on(orders::move_to(&client()?, &args))?)?,
            Self::Pin(args) => print(&small_runtime()?.block_on(orders::pin(&client()?, &args))?)?,
            Self::Invalidate { model } => print(&small_runtime()?.block_on(orders::invalidate(&client()?, &model))?)?,
            Self::Free(args) => print(&small_runtime()?.block_on(orders::free(&client()?, &args))?)?,
            Self::Logs(args) => small_runtime()?.block_on(logs::logs(&client()?, &args))?,
            Self::Paint(args) => print(&small_runtime()?.block_on(paint::paint(&client()?, &args))?)?,
            Self::Say(args) => print(&small_runtime()?.block_on(say::say(&client()?, &args))?)?,
            Self::Scan(args) => print(&scan::scan(&args)?)?,
            Self::Pull(args) => return pull::pull(&client()?, &args),
            Self::Rm(args) => print(&remove::remove(&args)?)?,
            Self::Stop { model } => print(&small_runtime()?.block_on(orders::unload(&client()?, Some(&model)))?)?,
            Self::List(read) => print(&small_runtime()?.block_on(tables::list(&client()?, read.json))?)?,
            Self::Show { model, read } => {
                let (client, runtime) = (client()?, small_runtime()?);
                match runtime.block_on(files::meant(&client, &model))? {
                    Some(path) => return inspect(&path, read.json),
                    None => print(&runtime.block_on(tables::show(&client, &model, read.json))?)?,
                }
            }
            Self::Load(args) => return small_runtime()?.block_on(load::load(&client()?, &args)),
            Self::Unload { model, .. } => {
                print(&small_runtime()?.block_on(orders::unload(&client()?, model.as_deref()))?)?;
            }
            Self::Lease(command) => return Ok(lease_run::run(command, url)?),
            Self::Jobs(command) => return jobs::run(&client()?, command),
            Self::Batch(command) => return batch::run(&client()?, command),
            Self::Keys(command) => print(&keys::run(command)?)?,
            Self::Config(ConfigCommand::Show(args)) => print(&show_config::show(args)?)?,
            Self::Config(ConfigCommand::Get(args)) => {
                print(&small_runtime()?.block_on(set_config::get(&client()?, &args))?)?;
            }
            Self::Config(ConfigCommand::Set(args)) => {
                print(&small_runtime()?.block_on(set_config::set(&client()?, &args))?)?;
            }
            Self::Tasks(TasksCommand::Check(args)) => {
                let checked = tasks::check::check(&args)?;
                print(&checked.text)?;
                return Ok(if checked.is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            Self::Tasks(TasksCommand::Schema { of }) => print(&of.text())?,
            Self::Tasks(TasksCommand::List(read)) => {
                print(&small_runtime()?.block_on(tasks::list(&client()?, read.json))?)?;
            }
            Self::Tasks(TasksCommand::Explain { name, priority, read }) => {
                let client = client()?;
                let explained = tasks::explain(&client, &name, priority.as_deref(), read.json);
                print(&small_runtime()?.block_on(explained)?)?;
            }
            Self::Bench(args) => return bench::bench(&client()?, args),
            Self::Convert(command) => {
                return small_runtime()?.block_on(convert::convert(&client()?, &command));
            }
            Self::BugReport(args) => return bug_report::bug_report(url, &args),
            Self::Doctor(args) => return doctor::doctor(url, &args),
            Self::Man { folder } => {
                clap_mangen::generate_to(Cli::command(), &folder).map_err(|error| CliError::Write(folder, error))?;
            }
            Self::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "model-boss", &mut script);
                print(&String::from_utf8_lossy(&script))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
