//! `model-boss config show`.

use clap::Args;

use super::error::CliError;
use super::flags::SettingFlags;
use crate::config::Shown;

/// What `config show` takes.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Also who decided each value: a flag, a variable, a line of the file, or nobody.
    #[arg(long)]
    origin: bool,
    /// As JSON, with origins and explanations.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: SettingFlags,
}

/// Every setting: valid TOML, so that a file can be begun with it.
pub(super) fn show(args: ShowArgs) -> Result<String, CliError> {
    let shown = args.flags.sources().load()?.show();
    if args.json {
        let json = serde_json::to_string_pretty(&shown).map_err(CliError::Json)?;
        return Ok(format!("{json}\n"));
    }
    let line = |setting: &Shown| match setting.value.as_str() {
        "unset" => format!("# {} =", setting.path),
        value => format!("{} = {value}", setting.path),
    };
    let width = shown.iter().map(|setting| line(setting).chars().count()).max().unwrap_or_default();
    let whole = |setting: &Shown| match args.origin {
        true => format!("{:<width$}  # {}\n", line(setting), setting.origin),
        false => format!("{}\n", line(setting)),
    };
    Ok(shown.iter().map(whole).collect())
}
