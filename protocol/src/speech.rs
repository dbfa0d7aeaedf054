//! Voices, and programs that speak: a command line that is run for each request, with the text on its standard input.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{ParseSpanError, parse_span};

/// The longest text of one request, in characters: that of OpenAI's API.
pub const LONGEST_SPEECH: usize = 4096;

/// The range of `speed`, as OpenAI's API has it.
pub const SPEECH_SPEEDS: (f32, f32) = (0.25, 4.0);

/// The rates of sound that are accepted from programs, in samples per second.
pub const SOUND_RATES: (u32, u32) = (8_000, 192_000);

/// The time that a program has for one request unless its template says otherwise.
const USUAL_LIMIT: Duration = Duration::from_secs(120);

/// Words in a minute at the speed 1, unless the template says otherwise: espeak's own.
const USUAL_WORDS: u32 = 175;

/// A program that speaks. It is started for each request, gets the text on its standard input, and writes sound to its
/// standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SpeechProgram {
    /// The program and its arguments; [`SpeechPlace`]s in braces are filled in. No shell reads it.
    pub line: Vec<String>,
    /// Environment variables beyond those that every program of a model inherits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The form of the sound that it writes.
    #[serde(default)]
    pub output: ProgramSound,
    /// The samples per second of raw sound (`s16le`); a WAV file tells its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<u32>,
    /// The voices; the first one is the usual one.
    pub voices: Vec<SpeechVoice>,
    /// Files and folders that the program may read, beside those of the system, its own folder and the model's files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<PathBuf>,
    /// The longest time of one request (`"30s"`); two minutes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<String>,
    /// Words in a minute at the speed 1, for `{words_per_minute}`; 175 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words_per_minute: Option<u32>,
}

/// The form of a program's sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ProgramSound {
    /// A WAV file. The sizes in its head may be wrong, since the program does not know them when it begins.
    #[default]
    Wav,
    /// Samples of 16 bits of one channel, the low byte first, without a head.
    S16le,
}

/// A voice of a model or of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpeechVoice {
    /// The name in requests.
    pub id: String,
    /// The name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The language, as the program or the model names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// A place in the template of a program that speaks, written in braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeechPlace {
    /// The voice's id.
    Voice,
    /// The voice's language.
    Language,
    /// The speed, 0.25 to 4.
    Speed,
    /// The length of sounds, which is one divided by the speed.
    Slowness,
    /// The speed in words per minute.
    WordsPerMinute,
    /// The path of the model's files.
    Path,
    /// The file to write to, for programs that do not write to their standard output by themselves.
    Output,
}

/// A program that speaks cannot be used as it is described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpeechProgramError {
    /// The template names no program.
    #[error("'line' is empty: its first word is the program")]
    NoProgram,
    /// There is no such placeholder.
    #[error("'{{{0}}}' cannot be filled in; there are {all}. Write {{{{ and }}}} for braces", all = all_places())]
    Unknown(String),
    /// A brace without its counterpart.
    #[error("'{0}' has a brace without its other half; write {{{{ and }}}} for braces")]
    Unbalanced(String),
    /// The program itself depends on the request.
    #[error("the first word of 'line' is the program, and takes no part of a request")]
    ProgramPlace,
    /// Raw sound does not tell its rate.
    #[error("'sample_rate' is missing: raw sound (output = \"s16le\") does not tell it")]
    NoRate,
    /// The rate cannot be right.
    #[error("'sample_rate' is {0}; it must be from {low} to {high}", low = SOUND_RATES.0, high = SOUND_RATES.1)]
    Rate(u32),
    /// There is no voice.
    #[error("'voices' is empty: name at least one, such as voices = [\"default\"]")]
    NoVoice,
    /// The voice's name cannot be an argument.
    #[error(
        "'{0}' cannot name a voice; use letters, digits and . _ - + / and spaces, not beginning with '-', at most 100 \
         characters"
    )]
    BadVoice(String),
    /// Two voices have the same name.
    #[error("the voice '{0}' is there twice")]
    VoiceTwice(String),
    /// A voice lacks the language that the template needs.
    #[error("the voice '{0}' has no 'language', and the command line wants {{language}}")]
    NoLanguage(String),
    /// The time limit is no duration.
    #[error("'time_limit': {0}")]
    Limit(#[from] ParseSpanError),
    /// The time limit is zero.
    #[error("'time_limit' and 'words_per_minute' must be more than zero")]
    Zero,
}

impl SpeechPlace {
    /// All places with their names.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Voice, "voice"),
        (Self::Language, "language"),
        (Self::Speed, "speed"),
        (Self::Slowness, "slowness"),
        (Self::WordsPerMinute, "words_per_minute"),
        (Self::Path, "path"),
        (Self::Output, "output"),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(place, _)| place)
    }
}

fn all_places() -> String {
    let names: Vec<String> = SpeechPlace::ALL.iter().map(|(_, name)| format!("{{{name}}}")).collect();
    names.join(" ")
}

/// The values of one request for a program's template.
#[derive(Clone, Copy, Debug)]
pub struct SpeechValues<'a> {
    /// The voice.
    pub voice: &'a SpeechVoice,
    /// The speed, in [`SPEECH_SPEEDS`].
    pub speed: f32,
    /// The path of the model's files.
    pub path: &'a str,
}

impl SpeechProgram {
    /// Checks that the template can be filled in for each voice.
    pub fn check(&self) -> Result<(), SpeechProgramError> {
        let program = self.line.first().filter(|program| !program.is_empty()).ok_or(SpeechProgramError::NoProgram)?;
        if split(program)?.iter().any(Result::is_ok) {
            return Err(SpeechProgramError::ProgramPlace);
        }
        match (self.output, self.sample_rate) {
            (ProgramSound::S16le, None) => return Err(SpeechProgramError::NoRate),
            (_, Some(rate)) if !(SOUND_RATES.0..=SOUND_RATES.1).contains(&rate) => {
                return Err(SpeechProgramError::Rate(rate));
            }
            _ => {}
        }
        if self.limit()?.is_zero() || self.words_per_minute == Some(0) {
            return Err(SpeechProgramError::Zero);
        }
        if self.voices.is_empty() {
            return Err(SpeechProgramError::NoVoice);
        }
        for (at, voice) in self.voices.iter().enumerate() {
            if !voice.is_plain() {
                return Err(SpeechProgramError::BadVoice(voice.id.clone()));
            }
            if self.voices[..at].iter().any(|earlier| earlier.id == voice.id) {
                return Err(SpeechProgramError::VoiceTwice(voice.id.clone()));
            }
            self.filled(&SpeechValues { voice, speed: 1.0, path: "" })?;
        }
        Ok(())
    }

    /// The longest time of one request.
    pub fn limit(&self) -> Result<Duration, ParseSpanError> {
        self.time_limit.as_deref().map_or(Ok(USUAL_LIMIT), parse_span)
    }

    /// The program and its arguments for one request.
    pub fn filled(&self, values: &SpeechValues<'_>) -> Result<Vec<String>, SpeechProgramError> {
        self.line.iter().map(|template| self.fill(template, values)).collect()
    }

    fn fill(&self, template: &str, values: &SpeechValues<'_>) -> Result<String, SpeechProgramError> {
        let SpeechValues { voice, speed, path } = values;
        let mut text = String::new();
        for piece in split(template)? {
            match piece {
                Err(literal) => text.push_str(&literal),
                Ok(SpeechPlace::Voice) => text.push_str(&voice.id),
                Ok(SpeechPlace::Language) => {
                    let missing = || SpeechProgramError::NoLanguage(voice.id.clone());
                    text.push_str(voice.language.as_deref().ok_or_else(missing)?);
                }
                Ok(SpeechPlace::Speed) => text.push_str(&short(*speed)),
                Ok(SpeechPlace::Slowness) => text.push_str(&short(1.0 / *speed)),
                Ok(SpeechPlace::WordsPerMinute) => {
                    let words = f64::from(self.words_per_minute.unwrap_or(USUAL_WORDS)) * f64::from(*speed);
                    text.push_str(&format!("{words:.0}"));
                }
                Ok(SpeechPlace::Path) => text.push_str(path),
                Ok(SpeechPlace::Output) => text.push_str("/dev/stdout"),
            }
        }
        Ok(text)
    }
}

/// A number in few digits.
fn short(number: f32) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The pieces of a template, in order: `Err` is literal text.
fn split(template: &str) -> Result<Vec<Result<SpeechPlace, String>>, SpeechProgramError> {
    let unbalanced = || SpeechProgramError::Unbalanced(template.to_owned());
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(unbalanced());
        }
        let (name, after) = rest.split_once('}').ok_or_else(unbalanced)?;
        pieces.push(Err(std::mem::take(&mut text)));
        pieces.push(Ok(SpeechPlace::named(name).ok_or_else(|| SpeechProgramError::Unknown(name.to_owned()))?));
        rest = after;
    }
    text.push_str(rest);
    pieces.push(Err(text));
    Ok(pieces)
}

impl SpeechVoice {
    /// A voice with a name for requests alone.
    pub fn named(id: impl Into<String>) -> Self {
        Self { id: id.into(), name: None, language: None }
    }

    /// Whether the name and the language can be arguments of a program, and never options of it.
    fn is_plain(&self) -> bool {
        let plain = |text: &str| {
            let allowed = |c: char| c.is_alphanumeric() || "._-+/ ".contains(c);
            !text.is_empty() && !text.starts_with('-') && text.chars().count() <= 100 && text.chars().all(allowed)
        };
        plain(&self.id) && self.language.as_deref().is_none_or(plain)
    }
}

impl<'de> Deserialize<'de> for SpeechVoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct VoiceTable {
            id: String,
            #[serde(default)]
            name: Option<String>,
            #[serde(default)]
            language: Option<String>,
        }
        struct VoiceForms;
        impl<'de> Visitor<'de> for VoiceForms {
            type Value = SpeechVoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a voice, or a table with 'id'")
            }

            fn visit_str<E: serde::de::Error>(self, id: &str) -> Result<SpeechVoice, E> {
                Ok(SpeechVoice::named(id))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SpeechVoice, A::Error> {
                let VoiceTable { id, name, language } = VoiceTable::deserialize(MapAccessDeserializer::new(map))?;
                Ok(SpeechVoice { id, name, language })
            }
        }
        deserializer.deserialize_any(VoiceForms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> SpeechProgram {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn rc_28_a_template_is_filled_in_with_a_voice_and_a_speed() {
        let program = program(
            r#"
            line = ["espeak-ng", "-v", "{voice}", "-s", "{words_per_minute}", "--speed={speed}", "{slowness}", "{{x}}", "{language}", "{path}", "{output}"]
            voices = [{ id = "en-gb", language = "en" }, { id = "de", language = "de" }]
            "#,
        );
        program.check().unwrap();
        let values = SpeechValues { voice: &program.voices[1], speed: 1.5, path: "/m" };
        let expected = ["espeak-ng", "-v", "de", "-s", "262", "--speed=1.5", "0.667", "{x}", "de", "/m", "/dev/stdout"];
        assert_eq!(program.filled(&values).unwrap(), expected);
        assert_eq!(program.limit().unwrap(), Duration::from_secs(120));
    }

    #[test]
    fn rc_28_what_cannot_be_run_is_named() {
        let voices = "voices = [\"a\"]";
        for (text, word) in [
            (format!("line = []\n{voices}"), "'line' is empty"),
            (format!("line = [\"{{voice}}\"]\n{voices}"), "first word"),
            (format!("line = [\"x\", \"{{vioce}}\"]\n{voices}"), "'{vioce}'"),
            (format!("line = [\"x\", \"{{voice\"]\n{voices}"), "brace"),
            (format!("line = [\"x\"]\noutput = \"s16le\"\n{voices}"), "'sample_rate'"),
            (format!("line = [\"x\"]\nsample_rate = 7\n{voices}"), "from 8000"),
            (format!("line = [\"x\"]\ntime_limit = \"soon\"\n{voices}"), "soon"),
            (format!("line = [\"x\"]\ntime_limit = \"0s\"\n{voices}"), "more than zero"),
            (format!("line = [\"x\", \"{{language}}\"]\n{voices}"), "no 'language'"),
            ("line = [\"x\"]\nvoices = []".to_owned(), "'voices' is empty"),
            ("line = [\"x\"]\nvoices = [\"-f\"]".to_owned(), "'-f'"),
            ("line = [\"x\"]\nvoices = [\"a\", \"a\"]".to_owned(), "twice"),
            ("line = [\"x\"]\nvoices = [\"a;b\"]".to_owned(), "'a;b'"),
        ] {
            let error = program(&text).check().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(toml::from_str::<SpeechProgram>("line = [\"x\"]\nvoices = [7]").is_err());
    }
}
