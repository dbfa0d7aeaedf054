//! `model-boss config show`.

use clap::Args;
use model_boss_config::ShownSetting;
use model_boss_settings::known_in;

use super::error::CliError;
use super::flags::SettingFlags;

/// Arguments of `config show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Also show the source of each value: a flag, a variable, a line of the file, or the default.
    #[arg(long)]
    origin: bool,
    /// Print JSON, with sources and explanations.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: SettingFlags,
}

/// Every setting as valid TOML, so that the output can start a configuration file. Values stored at run time override
/// the settings, and follow as comments.
pub(super) fn show(args: ShowArgs) -> Result<String, CliError> {
    let loaded = args.flags.sources().load()?;
    let (shown, stored) = (loaded.show(), known_in(&loaded.config.own_state_dir()));
    if args.json {
        let json = serde_json::to_string_pretty(&shown).map_err(CliError::Json)?;
        return Ok(format!("{json}\n"));
    }
    let line = |setting: &ShownSetting| match setting.value.as_str() {
        "unset" => format!("# {} =", setting.path),
        value => format!("{} = {value}", setting.path),
    };
    let width = shown.iter().map(|setting| line(setting).chars().count()).max().unwrap_or_default();
    let whole = |setting: &ShownSetting| match args.origin {
        true => format!("{:<width$}  # {}\n", line(setting), setting.origin),
        false => format!("{}\n", line(setting)),
    };
    let mut text: String = shown.iter().map(whole).collect();
    if let Some(stored) = stored {
        text.push_str(
            "# stored at run time as far as this folder knows; `model-boss config get --origin` asks the coordinator\n",
        );
        stored.iter().for_each(|line| text.push_str(&format!("#   {line}\n")));
    }
    Ok(text)
}
