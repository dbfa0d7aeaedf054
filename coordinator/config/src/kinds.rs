//! Kinds of values: how each is parsed from a value of the file or from text, and how it is printed.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::value::Value;
use model_boss_core::{ClientRules, LoadFailurePolicy, MaxLoaded};
use model_boss_protocol::{
    ByteCount, InstructionSet, KeepAlive, LlamaArgs, ParseSpanError, SandboxMode, parse_span, span_of_secs,
};

use super::provider::ProviderTables;
use super::setting::{Node, Quoted, Setting, list, quote, text, whole, whole_number};
use super::{BackendTables, DeclaredDevices, Hosts, IdleTime, LogFormat, LogLevel, ParkingPlace, RedisUrl};

macro_rules! leaf {
    ($($kind:ty),* $(,)?) => {
        $(impl Node for $kind {
            fn walk_node(&mut self, path: &str, help: &str, visit: &mut dyn FnMut(&str, &mut dyn Setting, &str)) {
                visit(path, self, help);
            }
        })*
    };
}

leaf!(
    bool,
    Hosts,
    u16,
    usize,
    PathBuf,
    Option<PathBuf>,
    Vec<PathBuf>,
    RangeInclusive<u16>,
    Vec<String>,
    Duration,
    Option<Duration>,
    Option<IdleTime>,
    Option<RedisUrl>,
    ByteCount,
    Option<ByteCount>,
    LogLevel,
    LogFormat,
    ParkingPlace,
    Option<u64>,
    LoadFailurePolicy,
    MaxLoaded,
    ClientRules,
    DeclaredDevices,
    BackendTables,
    ProviderTables,
    LlamaArgs,
    Option<InstructionSet>,
    SandboxMode,
    Option<String>,
);

impl Setting for Hosts {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let wrong = |entry: &dyn fmt::Display| {
            format!("{entry} is not an IP address; write one such as 127.0.0.1, ::1 or localhost, or a list of them")
        };
        let entries = list(value).ok_or_else(|| wrong(&Quoted(value)))?;
        let address = |entry: &String| match entry.as_str() {
            "localhost" => Ok(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
            entry => {
                let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
                bare.parse().map_err(|_| wrong(&format_args!("'{entry}'")))
            }
        };
        let addresses: Vec<IpAddr> = entries.iter().map(address).collect::<Result<_, _>>()?;
        *self = Self::new(addresses).ok_or_else(|| wrong(&Quoted(value)))?;
        Ok(())
    }

    fn show(&self) -> String {
        let addresses: Vec<String> = self.iter().map(|address| quote(&address.to_string())).collect();
        match addresses.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        }
    }

    fn is_list(&self) -> bool {
        true
    }
}

impl Setting for bool {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        *self = match (value, text(value)) {
            (Value::Bool(_, value), _) => *value,
            (_, Some("true" | "1" | "yes" | "on")) => true,
            (_, Some("false" | "0" | "no" | "off")) => false,
            _ => return Err(format!("{} does not do here; write true or false", Quoted(value))),
        };
        Ok(())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for u16 {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        *self = whole(value)
            .and_then(|n| Self::try_from(n).ok())
            .ok_or_else(|| format!("{} is not a port; write a whole number from 0 to 65535", Quoted(value)))?;
        Ok(())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for usize {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        *self = whole(value)
            .and_then(|n| Self::try_from(n).ok())
            .filter(|n| *n > 0)
            .ok_or_else(|| format!("{} does not do here; write a whole number of at least 1", Quoted(value)))?;
        Ok(())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for PathBuf {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        match text(value) {
            Some(path) if !path.is_empty() => *self = Self::from(path),
            _ => return Err(format!("{} is not a path", Quoted(value))),
        }
        Ok(())
    }

    fn show(&self) -> String {
        quote(&self.display().to_string())
    }

    fn resolve(&mut self, folder: &Path) {
        *self = folder.join(&self);
    }
}

impl Setting for Option<PathBuf> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let mut path = PathBuf::new();
        path.read(value)?;
        *self = Some(path);
        Ok(())
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "unset".to_owned(), Setting::show)
    }

    fn resolve(&mut self, folder: &Path) {
        if let Some(path) = self {
            path.resolve(folder);
        }
    }
}

impl Setting for Vec<PathBuf> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let wrong = || format!("{} is not a list of folders; write [\"/models\", \"~/models\"]", Quoted(value));
        *self = list(value).ok_or_else(wrong)?.into_iter().map(PathBuf::from).collect();
        Ok(())
    }

    fn is_list(&self) -> bool {
        true
    }

    fn show(&self) -> String {
        let paths: Vec<_> = self.iter().map(Setting::show).collect();
        format!("[{}]", paths.join(", "))
    }

    fn resolve(&mut self, folder: &Path) {
        // `~` is the home folder, also in flags and variables.
        for path in self.iter_mut().filter(|path| !path.starts_with("~")) {
            path.resolve(folder);
        }
    }
}

impl Setting for Option<u64> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let number = whole(value).ok_or_else(|| format!("{} is not a whole number", Quoted(value)))?;
        *self = Some(number);
        Ok(())
    }

    fn show(&self) -> String {
        self.map_or_else(|| "unset".to_owned(), |number| number.to_string())
    }
}

impl Setting for Option<String> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let word = text(value).filter(|word| !word.is_empty());
        *self = Some(word.ok_or_else(|| format!("{} is not a name", Quoted(value)))?.to_owned());
        Ok(())
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "unset".to_owned(), |word| quote(word))
    }
}

/// A set that this machine has.
impl Setting for Option<InstructionSet> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let word = text(value).ok_or_else(|| format!("{} is not a name", Quoted(value)))?;
        let set = word.parse().and_then(InstructionSet::checked);
        *self = Some(set.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn show(&self) -> String {
        self.map_or_else(|| "unset".to_owned(), |set| quote(set.name()))
    }
}

/// The arguments for llama-server: one text, or a list of texts.
impl Setting for LlamaArgs {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let wrong = || format!("{} is no text with arguments for llama-server", Quoted(value));
        let args = match value {
            Value::Array(_, items) => {
                let words: Option<_> = items.iter().map(|item| text(item).map(str::to_owned)).collect();
                Self::new(words.ok_or_else(wrong)?)
            }
            other => Self::from_line(text(other).ok_or_else(wrong)?),
        };
        args.check().map_err(|error| error.to_string())?;
        *self = args;
        Ok(())
    }

    fn show(&self) -> String {
        quote(&self.to_string())
    }

    fn may_begin_with_dash(&self) -> bool {
        true
    }
}

impl Setting for RangeInclusive<u16> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let ends = text(value).and_then(|text| text.split_once('-')).and_then(|(first, last)| {
            let first: u16 = first.trim().parse().ok()?;
            let last: u16 = last.trim().parse().ok()?;
            (first > 0 && first <= last).then_some(first..=last)
        });
        *self =
            ends.ok_or_else(|| format!("{} is not a range of ports; write one such as \"8300-8499\"", Quoted(value)))?;
        Ok(())
    }

    fn show(&self) -> String {
        quote(&format!("{}-{}", self.start(), self.end()))
    }
}

impl Setting for Vec<String> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let wrong = || format!("{} is not a list of names; write [\"a.example\", \"b.example\"]", Quoted(value));
        *self = list(value).ok_or_else(wrong)?;
        Ok(())
    }

    fn is_list(&self) -> bool {
        true
    }

    fn show(&self) -> String {
        let names: Vec<_> = self.iter().map(|name| quote(name)).collect();
        format!("[{}]", names.join(", "))
    }
}

impl Setting for Duration {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        *self = match text(value) {
            Some(span) => parse_span(span).map_err(|error| error.to_string())?,
            None => {
                return Err(format!(
                    "{} has no unit; write a text such as \"250ms\", \"30s\" or \"5m\"",
                    Quoted(value)
                ));
            }
        };
        Ok(())
    }

    fn show(&self) -> String {
        let (seconds, millis) = (self.as_secs(), self.as_millis());
        match () {
            () if self.subsec_millis() != 0 => format!("\"{millis}ms\""),
            () if seconds == 0 || seconds % 60 != 0 => format!("\"{seconds}s\""),
            () if seconds % 3_600 != 0 => format!("\"{}m\"", seconds / 60),
            () => format!("\"{}h\"", seconds / 3_600),
        }
    }
}

impl Setting for Option<Duration> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let mut span = Duration::ZERO;
        span.read(value)?;
        *self = Some(span);
        Ok(())
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "unset".to_owned(), Setting::show)
    }
}

impl Setting for Option<IdleTime> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let wrong =
            || format!("{} is not a time; write seconds, or a text such as \"5m\"; 0 = for ever", Quoted(value));
        let explained = |error: ParseSpanError| match error {
            ParseSpanError::Malformed(_) => wrong(),
            ParseSpanError::TooLong(_) | ParseSpanError::Negative(_) => error.to_string(),
        };
        let seconds = match value {
            Value::Num(_, number) => whole_number(*number).map(|n| n as f64).or_else(|| number.to_f64()),
            other => text(other).and_then(|text| text.parse().ok()),
        };
        let span = match (seconds, text(value)) {
            (Some(seconds), _) => span_of_secs(seconds).map_err(explained)?,
            (None, Some(span)) => parse_span(span).map_err(explained)?,
            (None, None) => return Err(wrong()),
        };
        *self = Some(IdleTime(if span.is_zero() { KeepAlive::Forever } else { KeepAlive::For(span) }));
        Ok(())
    }

    fn show(&self) -> String {
        match self {
            None => "unset".to_owned(),
            Some(IdleTime(KeepAlive::Forever)) => "0".to_owned(),
            Some(IdleTime(KeepAlive::For(span))) => span.show(),
        }
    }
}

impl Setting for Option<RedisUrl> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        // The value may hold a password, so the error does not repeat it.
        let url = text(value).ok_or("is no text; write a URL such as \"redis://127.0.0.1:6379\"")?;
        *self = if url.is_empty() { None } else { Some(RedisUrl::read(url)?) };
        Ok(())
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "unset".to_owned(), |url| quote(&url.to_string()))
    }
}

impl Setting for Option<ByteCount> {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let mut size = ByteCount::ZERO;
        size.read(value)?;
        *self = Some(size);
        Ok(())
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "unset".to_owned(), Setting::show)
    }
}

impl Setting for ByteCount {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        *self = match (whole(value), text(value)) {
            (Some(bytes), _) => Self(bytes),
            (None, Some(size)) => {
                size.parse().map_err(|error: model_boss_protocol::ParseByteCountError| error.to_string())?
            }
            (None, None) => return Err(format!("{} is not a size; write one such as \"32MiB\"", Quoted(value))),
        };
        Ok(())
    }

    fn show(&self) -> String {
        match self.0 {
            n if n > 0 && n % (1 << 30) == 0 => format!("\"{}GiB\"", n >> 30),
            n if n > 0 && n % (1 << 20) == 0 => format!("\"{}MiB\"", n >> 20),
            n if n > 0 && n % (1 << 10) == 0 => format!("\"{}KiB\"", n >> 10),
            n => n.to_string(),
        }
    }
}

macro_rules! words {
    ($kind:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl Setting for $kind {
            fn read(&mut self, value: &Value) -> Result<(), String> {
                *self = match text(value) {
                    $(Some($word) => Self::$variant,)*
                    _ => return Err(format!("{} does not do here; one of {}", Quoted(value), [$($word),*].join(", "))),
                };
                Ok(())
            }

            fn show(&self) -> String {
                quote(match self { $(Self::$variant => $word,)* })
            }
        }
    };
}

words!(LogLevel { Off = "off", Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" });

words!(LogFormat { Text = "text", Json = "json" });

words!(ParkingPlace { Memory = "memory", Files = "files", Off = "off" });

words!(SandboxMode { Auto = "auto", Off = "off", Required = "required" });

words!(LoadFailurePolicy { EvictAllAndRetry = "evict_all_and_retry", Fail = "fail" });
