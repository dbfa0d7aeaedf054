//! Calls that begin with the tool's name, in front of arguments in JSON.

/// The spelling of such a call.
#[derive(Debug)]
pub(super) struct HeadShape {
    /// In front of the name and behind it. Prompts have the first way.
    pub(super) ways: &'static [(&'static str, &'static [&'static str])],
    /// A reader looks for the name behind this.
    pub(super) name_behind: &'static str,
    /// No part of the name.
    pub(super) prefix: &'static str,
    /// Each of these ends the name.
    pub(super) ends: &'static [&'static str],
    /// Behind the arguments.
    pub(super) close: &'static str,
    /// A number of the call is behind the name.
    pub(super) is_numbered: bool,
    /// A mark behind the name, and an expression of the call's identifier behind that mark.
    pub(super) id: Option<(&'static str, &'static str)>,
    /// The head is the header of a message in a channel.
    pub(super) in_channels: bool,
}

/// Longer texts name no tool.
const LONGEST_NAME: usize = 256;

impl HeadShape {
    /// The name alone.
    pub(super) const PLAIN: Self = Self {
        ways: &[],
        name_behind: "",
        prefix: "",
        ends: &[],
        close: "",
        is_numbered: false,
        id: None,
        in_channels: false,
    };

    /// The tool's name, from the text between the opening mark and the arguments.
    pub(super) fn name(&self, head: &str) -> Option<String> {
        let begin = head.find(self.name_behind)? + self.name_behind.len();
        let name = head[begin..].trim_start();
        let end = self.ends.iter().filter_map(|end| name.find(end)).min().unwrap_or(name.len());
        let name = name[..end].trim();
        let name = name.strip_prefix(self.prefix).unwrap_or(name);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let numbered = name.rsplit_once(':').filter(|(_, number)| self.is_numbered && is_number(number));
        let name = numbered.map_or(name, |(name, _)| name);
        let is_name = !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_whitespace);
        is_name.then(|| name.to_owned())
    }

    /// A call, which is the answer's with this index.
    pub(super) fn written(&self, index: usize, name: &str, arguments: &str) -> String {
        let (before, behind) = self.ways.first().copied().unwrap_or_default();
        let behind = behind.first().copied().unwrap_or_default();
        let number = match self.id {
            Some((mark, _)) => format!("{mark}{index:09}"),
            None if self.is_numbered => format!(":{index}"),
            None => String::new(),
        };
        format!("{before}{name}{number}{behind}{arguments}{}", self.close)
    }
}
