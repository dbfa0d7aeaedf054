//! `model-boss say`: a text as a file of sound, written while it is made.

use std::fs::File;
use std::io::{IsTerminal, Read, Write, stdin};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use model_boss_client::Client;
use model_boss_host::terminal;
use serde_json::{Value, json};

use super::error::CliError;

/// `say TEXT`.
#[derive(Clone, Debug, Args)]
pub(super) struct SayArgs {
    /// The text; standard input without it.
    text: Option<String>,
    /// The file to write; `-` is standard output.
    #[arg(short, long, default_value = "speech.wav")]
    output: PathBuf,
    /// A model that speaks [default: the only one, or the one named `default`].
    #[arg(short, long)]
    model: Option<String>,
    /// One of the model's voices; `--voices` lists them [default: the model's first].
    #[arg(long)]
    voice: Option<String>,
    /// The format [default: by the file's ending, else wav].
    #[arg(long)]
    format: Option<SayFormat>,
    /// The speed, 0.25 to 4.
    #[arg(long)]
    speed: Option<f64>,
    /// The seed of the noise that models draw: the same seed gives the same sound.
    #[arg(long)]
    seed: Option<u64>,
    /// List the voices of all models that speak, and say nothing.
    #[arg(long, conflicts_with_all = ["text", "voice", "format", "speed", "seed"])]
    voices: bool,
}

/// The formats of `POST /v1/audio/speech`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SayFormat {
    Wav,
    Flac,
    Opus,
    Pcm,
}

impl SayFormat {
    const fn name(self) -> &'static str {
        match self {
            Self::Wav => "wav",
            Self::Flac => "flac",
            Self::Opus => "opus",
            Self::Pcm => "pcm",
        }
    }
}

impl SayArgs {
    /// The format, by name or by the file's ending.
    fn format(&self) -> SayFormat {
        let ending = self.output.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        self.format.unwrap_or(match ending.as_deref() {
            Some("flac") => SayFormat::Flac,
            Some("opus" | "ogg") => SayFormat::Opus,
            Some("pcm" | "raw") => SayFormat::Pcm,
            _ => SayFormat::Wav,
        })
    }

    /// The request.
    fn body(&self, text: &str) -> Value {
        let mut body = json!({ "input": text, "response_format": self.format().name() });
        let more = [
            ("model", self.model.as_ref().map(|model| json!(model))),
            ("voice", self.voice.as_ref().map(|voice| json!(voice))),
            ("speed", self.speed.map(|speed| json!(speed))),
            ("seed", self.seed.map(|seed| json!(seed))),
        ];
        for (name, value) in more {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        body
    }
}

/// Speaks, or lists voices. Returns the text for the terminal.
pub(super) async fn say(client: &Client, args: &SayArgs) -> Result<String, CliError> {
    if args.voices {
        return voices(client, args.model.as_deref()).await;
    }
    let text = match &args.text {
        Some(text) => text.clone(),
        None if stdin().is_terminal() => return Err(CliError::NoText),
        None => {
            let mut text = String::new();
            stdin().read_to_string(&mut text).map_err(CliError::Input)?;
            text
        }
    };
    let mut pieces = client.read_answer("/v1/audio/speech", &args.body(&text)).await?;
    let to_output = args.output.as_os_str() == "-";
    let failed = |error| CliError::Write(args.output.clone(), error);
    // The file is made once there is something to write: a refusal leaves the one that is there.
    let mut file: Option<Box<dyn Write>> = None;
    let mut bytes = 0_u64;
    while let Some(piece) = pieces.next().await? {
        let file = match &mut file {
            Some(file) => file,
            None if to_output => file.insert(Box::new(terminal::out())),
            None => file.insert(Box::new(File::create(&args.output).map_err(failed)?)),
        };
        let written = file.write_all(&piece);
        written.map_err(|error| if to_output { CliError::Output(error) } else { failed(error) })?;
        bytes += piece.len() as u64;
    }
    if to_output { Ok(String::new()) } else { Ok(format!("{}: {bytes} bytes\n", args.output.display())) }
}

async fn voices(client: &Client, model: Option<&str>) -> Result<String, CliError> {
    let query = model.map(|model| format!("?model={}", model_boss_client::in_path(model))).unwrap_or_default();
    let list = client.get(&format!("/v1/audio/voices{query}")).await?;
    let text = |voice: &Value, field: &str| voice[field].as_str().unwrap_or("-").to_owned();
    let mut lines = String::new();
    for voice in list["voices"].as_array().into_iter().flatten() {
        let (id, name) = (text(voice, "id"), text(voice, "name"));
        let name = if name == id { String::new() } else { format!("  {name}") };
        lines += &format!("{:<24} {:<20} {:<8}{name}\n", text(voice, "model"), id, text(voice, "language"));
    }
    Ok(if lines.is_empty() { "no model here speaks; docs/speech.md has examples\n".to_owned() } else { lines })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        say: SayArgs,
    }

    #[test]
    fn rc_28_the_format_is_that_of_the_file() {
        let line = |words: &[&str]| Line::parse_from([&["say", "hello"], words].concat()).say;
        for (words, format) in [
            (&[][..], SayFormat::Wav),
            (&["-o", "a.FLAC"], SayFormat::Flac),
            (&["-o", "a.ogg"], SayFormat::Opus),
            (&["-o", "-"], SayFormat::Wav),
            (&["-o", "a.wav", "--format", "pcm"], SayFormat::Pcm),
        ] {
            assert_eq!(line(words).format(), format, "{words:?}");
        }
        let body = line(&["-m", "espeak", "--voice", "de", "--speed", "1.5", "--seed", "7"]).body("hello");
        let expected = json!({ "input": "hello", "response_format": "wav", "model": "espeak", "voice": "de",
            "speed": 1.5, "seed": 7 });
        assert_eq!(body, expected);
        assert_eq!(line(&[]).body("x"), json!({ "input": "x", "response_format": "wav" }));
    }
}
