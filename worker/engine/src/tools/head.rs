//! Calls that begin with the tool's name, in front of arguments in JSON.

use super::format::ToolFormat;

/// The tool's name, from the text between the opening mark and the arguments.
pub(super) fn name(format: ToolFormat, head: &str) -> Option<String> {
    let name = match format {
        ToolFormat::MistralNamed => head.split("[ARGS]").next()?.split("[CALL_ID]").next()?,
        ToolFormat::DeepSeekFenced => head.split("<｜tool▁sep｜>").nth(1)?.split("```").next()?,
        ToolFormat::DeepSeek => head.split("<｜tool▁sep｜>").next()?,
        ToolFormat::Harmony => {
            let to = head.split("to=").nth(1)?;
            let name = to.split(|c: char| c.is_whitespace() || c == '<').next()?;
            name.strip_prefix("functions.").unwrap_or(name)
        }
        _ => return None,
    };
    let name = name.trim();
    (!name.is_empty() && name.len() <= 256 && !name.contains(char::is_whitespace)).then(|| name.to_owned())
}
