//! Arguments for llama-server that operators and clients may give (MM-11). The coordinator sets the port, files,
//! keys, further routes and the sizes that the lease depends on. Only arguments on the list here are passed on.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The arguments, as one line or as a list; checked by [`LlamaArgs::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LlamaArgs(Vec<String>);

/// An argument that may not be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LlamaArgsError {
    /// The option is not on the list.
    #[error("'{0}' is not allowed; what may be given is {all}", all = allowed_names())]
    NotAllowed(String),
    /// The text has a value in place of an option.
    #[error("'{0}' belongs to no option")]
    Stray(String),
    /// An option lacks its value.
    #[error("'{0}' needs a value")]
    NoValue(String),
    /// A switch has a value.
    #[error("'{0}' takes no value")]
    NeedlessValue(String),
    /// The value is no plain word or number.
    #[error("'{1}' does not do for '{0}'; values are numbers and plain words")]
    BadValue(String, String),
}

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// The value is optional: older builds accept none, newer ones a word.
    Perhaps,
}

/// The permitted options, each with its other names. No permitted option names a file, a network address, a log or a
/// key.
const ALLOWED: &[(&[&str], Takes)] = {
    use Takes::{Nothing, Perhaps, Value};
    &[
        (&["--threads", "-t"], Value),
        (&["--threads-batch", "-tb"], Value),
        (&["--batch-size", "-b"], Value),
        (&["--ubatch-size", "-ub"], Value),
        (&["--flash-attn", "-fa"], Perhaps),
        (&["--n-gpu-layers", "--gpu-layers", "-ngl"], Value),
        (&["--n-cpu-moe", "-ncmoe"], Value),
        (&["--cpu-moe", "-cmoe"], Nothing),
        (&["--split-mode", "-sm"], Value),
        (&["--main-gpu", "-mg"], Value),
        (&["--cache-type-k", "-ctk"], Value),
        (&["--cache-type-v", "-ctv"], Value),
        (&["--cache-reuse"], Value),
        (&["--cache-ram", "-cram"], Value),
        (&["--kv-unified", "-kvu"], Nothing),
        (&["--no-kv-offload", "-nkvo"], Nothing),
        (&["--no-op-offload"], Nothing),
        (&["--defrag-thold", "-dt"], Value),
        (&["--swa-full"], Nothing),
        (&["--no-context-shift"], Nothing),
        (&["--context-shift"], Nothing),
        (&["--cont-batching", "-cb"], Nothing),
        (&["--no-cont-batching", "-nocb"], Nothing),
        (&["--mlock"], Nothing),
        (&["--no-mmap"], Nothing),
        (&["--mmap"], Nothing),
        (&["--no-repack"], Nothing),
        (&["--no-warmup"], Nothing),
        (&["--numa"], Value),
        (&["--prio"], Value),
        (&["--poll"], Value),
        (&["--rope-scaling"], Value),
        (&["--rope-scale"], Value),
        (&["--rope-freq-base"], Value),
        (&["--rope-freq-scale"], Value),
        (&["--yarn-orig-ctx"], Value),
        (&["--yarn-ext-factor"], Value),
        (&["--yarn-attn-factor"], Value),
        (&["--yarn-beta-slow"], Value),
        (&["--yarn-beta-fast"], Value),
        (&["--pooling"], Value),
        (&["--jinja"], Nothing),
        (&["--no-jinja"], Nothing),
        (&["--reasoning-format"], Value),
        (&["--reasoning-budget"], Value),
        (&["--chat-template"], Value),
        (&["--no-prefill-assistant"], Nothing),
        (&["--spm-infill"], Nothing),
        (&["--draft-max", "--draft", "--draft-n"], Value),
        (&["--draft-min", "--draft-n-min"], Value),
        (&["--draft-p-min"], Value),
        (&["--seed", "-s"], Value),
        (&["--temp"], Value),
        (&["--top-k"], Value),
        (&["--top-p"], Value),
        (&["--min-p"], Value),
        (&["--typical"], Value),
        (&["--repeat-last-n"], Value),
        (&["--repeat-penalty"], Value),
        (&["--presence-penalty"], Value),
        (&["--frequency-penalty"], Value),
        (&["--samplers"], Value),
        (&["--n-predict", "--predict", "-n"], Value),
        (&["--ignore-eos"], Nothing),
        (&["--verbose-prompt"], Nothing),
        (&["--slot-prompt-similarity", "-sps"], Value),
    ]
};

impl LlamaArgs {
    /// The arguments as a list of words.
    pub fn new(words: Vec<String>) -> Self {
        Self(words)
    }

    /// The arguments from one line, split at blanks.
    pub fn from_line(line: &str) -> Self {
        Self(line.split_whitespace().map(str::to_owned).collect())
    }

    /// The words, one for each argument.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that each argument is permitted.
    pub fn check(&self) -> Result<(), LlamaArgsError> {
        let mut words = self.0.iter().peekable();
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                return Err(LlamaArgsError::Stray(word.clone()));
            }
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let Some((_, takes)) = ALLOWED.iter().find(|(names, _)| names.contains(&name)) else {
                return Err(LlamaArgsError::NotAllowed(name.to_owned()));
            };
            let value = match (takes, joined) {
                (Takes::Nothing, Some(_)) => return Err(LlamaArgsError::NeedlessValue(name.to_owned())),
                (Takes::Nothing, None) => continue,
                (_, Some(value)) => value,
                (Takes::Perhaps, None) => match words.next_if(|next| !next.starts_with('-')) {
                    Some(value) => value.clone(),
                    None => continue,
                },
                // A negative number is a value.
                (Takes::Value, None) => match words.next_if(|next| !next.starts_with('-') || is_number(next)) {
                    Some(value) => value.clone(),
                    None => return Err(LlamaArgsError::NoValue(name.to_owned())),
                },
            };
            if !is_plain(&value) {
                return Err(LlamaArgsError::BadValue(name.to_owned(), value));
            }
        }
        Ok(())
    }

    /// Several lists merged in order: each option by its first name, with its last value. A switch and its `--no-`
    /// form are one option.
    pub fn settled<'a>(lists: impl IntoIterator<Item = &'a Self>) -> BTreeMap<String, String> {
        let mut settled = BTreeMap::new();
        let mut words = lists.into_iter().flat_map(|list| &list.0).peekable();
        while let Some(word) = words.next() {
            let (name, joined) =
                word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let known = ALLOWED.iter().find(|(names, _)| names.contains(&name));
            let value = match (known, joined) {
                (_, Some(value)) => value.to_owned(),
                (None | Some((_, Takes::Nothing)), None) => String::new(),
                (Some(_), None) => {
                    words.next_if(|next| !next.starts_with('-') || is_number(next)).cloned().unwrap_or_default()
                }
            };
            let name = known.map_or(name, |(names, _)| names[0]);
            match name.strip_prefix("--no-") {
                Some(switch) => settled.insert(format!("--{switch}"), "no".to_owned()),
                None => settled.insert(name.to_owned(), value),
            };
        }
        settled
    }

    /// Whether an option is set, by any of its names.
    pub fn sets(&self, name: &str) -> bool {
        let names = ALLOWED.iter().find(|(names, _)| names.contains(&name)).map_or(&[][..], |(names, _)| names);
        self.0.iter().any(|word| names.contains(&word.split('=').next().unwrap_or_default()))
    }
}

/// Whether a value is a number, a word or a list with commas. Paths, and texts that make a program read a file, are
/// none of these.
fn is_plain(value: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-+,;:".contains(&b);
    !value.is_empty() && value.len() <= 256 && value.bytes().all(allowed) && !value.contains("..")
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok()
}

fn allowed_names() -> String {
    let names: Vec<&str> = ALLOWED.iter().map(|(names, _)| names[0]).collect();
    names.join(" ")
}

impl fmt::Display for LlamaArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

impl Serialize for LlamaArgs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LlamaArgs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = LlamaArgs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("arguments for llama-server: one text, or a list of texts")
            }

            fn visit_str<E>(self, line: &str) -> Result<LlamaArgs, E> {
                Ok(LlamaArgs::from_line(line))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<LlamaArgs, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(LlamaArgs(words))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mm_11_what_is_on_the_list_goes_through() {
        for line in [
            "",
            "--threads 8 -b 512 --flash-attn on",
            "-fa -ngl 20",
            "--temp=0.7 --seed -1 --mlock",
            "--cache-type-k q8_0 --samplers top_k;min_p",
        ] {
            assert_eq!(LlamaArgs::from_line(line).check(), Ok(()), "{line}");
        }
    }

    #[test]
    fn rc_29_lists_that_come_to_the_same_are_known_by_it() {
        let settled = |lists: &[&str]| {
            let lists: Vec<LlamaArgs> = lists.iter().map(|line| LlamaArgs::from_line(line)).collect();
            LlamaArgs::settled(&lists)
        };
        for (a, b) in [
            (&["--threads 2 --jinja"][..], &["--jinja", "-t 2"][..]),
            (&["--threads 1", "-t=2"], &["--threads 2"]),
            (&["-fa on --mmap", "--no-mmap"], &["--no-mmap --flash-attn on"]),
            (&["--seed -1"], &["-s=-1"]),
            (&[""], &[]),
        ] {
            assert_eq!(settled(a), settled(b), "{a:?} {b:?}");
        }
        for (a, b) in [("--threads 1", "--threads 2"), ("--mmap", "--no-mmap"), ("-fa", "-fa off"), ("", "--jinja")] {
            assert_ne!(settled(&[a]), settled(&[b]), "{a} {b}");
        }
    }

    #[test]
    fn mm_11_nothing_else_does_and_the_fault_is_named() {
        for (line, word) in [
            ("--host 0.0.0.0", "'--host'"),
            ("--port=1", "'--port'"),
            ("-m /etc/passwd", "'-m'"),
            ("--log-file x", "'--log-file'"),
            ("--api-key k", "'--api-key'"),
            ("--slot-save-path x", "'--slot-save-path'"),
            ("--ctx-size 1", "'--ctx-size'"),
            ("--threads", "needs a value"),
            ("--threads --mlock", "needs a value"),
            ("--mlock=1", "takes no value"),
            ("--chat-template /etc/passwd", "'/etc/passwd'"),
            ("--numa ../x", "'../x'"),
            ("8 --threads", "'8'"),
        ] {
            let error = LlamaArgs::from_line(line).check().unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn a_line_and_a_list_say_the_same() {
        let line: LlamaArgs = serde_json::from_str("\"--threads 8\"").unwrap();
        let list: LlamaArgs = serde_json::from_str("[\"--threads\", \"8\"]").unwrap();
        assert_eq!(line, list);
        assert!(line.sets("-t") && !line.sets("-b"));
        assert!(serde_json::from_str::<LlamaArgs>("7").is_err());
    }
}
