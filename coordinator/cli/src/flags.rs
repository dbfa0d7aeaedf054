//! One flag for every setting, made from the list of settings: a new setting gets its flag, its variable and its help
//! automatically.

use std::path::PathBuf;

use clap::error::Error;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use model_boss_config::{Sources, catalogue, entries, environment, flag, variable};

/// The settings on the command line, still as text. The configuration parses them together with all other sources, so
/// that all mistakes are reported at once.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingFlags {
    file: Option<PathBuf>,
    given: Vec<(String, String)>,
}

impl SettingFlags {
    /// The sources of settings: these flags, and this process's environment.
    pub(super) fn sources(self) -> Sources {
        Sources { flags: self.given, environment: environment(), file: self.file }
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("MODEL_BOSS_CONFIG")
            .value_parser(clap::value_parser!(PathBuf))
            .help("The configuration file [default: model-boss.toml here, else the installation's]");
        catalogue().into_iter().fold(command.arg(file).next_help_heading("Settings"), |command, setting| {
            let help = format!(
                "{} [default: {}] [env: {}]",
                setting.help,
                setting.value.trim_matches('"'),
                variable(&setting.path)
            );
            let arg = Arg::new(setting.path.clone()).long(flag(&setting.path)).value_name("VALUE").help(help);
            // `model-boss lease` has another name for this flag.
            let arg = if setting.path == "redis_url" { arg.visible_alias("redis") } else { arg };
            let arg = if setting.is_list { arg.action(ArgAction::Append) } else { arg };
            command.arg(arg.num_args(setting.words).allow_hyphen_values(setting.may_begin_with_dash))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        self.given = catalogue()
            .into_iter()
            .filter_map(|setting| {
                let words: Vec<&str> = matches.get_many::<String>(&setting.path)?.map(String::as_str).collect();
                let text = if setting.is_list && words.len() > 1 { entries(&words) } else { words.join(" ") };
                Some((setting.path, text))
            })
            .collect();
        Ok(())
    }
}
