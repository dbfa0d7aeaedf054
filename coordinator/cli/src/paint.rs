//! `model-boss paint`: a text as files of pictures.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use model_boss_client::Client;
use model_boss_host::terminal;
use serde_json::{Value, json};

use super::error::CliError;

/// `paint PROMPT`.
#[derive(Clone, Debug, Args)]
pub(super) struct PaintArgs {
    /// The text.
    prompt: String,
    /// The file to write, whose ending is the format: png, jpg or webp; `-` is standard output. Several pictures get a
    /// number behind their name.
    #[arg(short, long, default_value = "picture.png")]
    output: PathBuf,
    /// A model that paints [default: the only one, or the one named `default`].
    #[arg(short, long)]
    model: Option<String>,
    /// Width and height in pixels, such as 512x768 [default: the model's].
    #[arg(long)]
    size: Option<String>,
    /// How many pictures, of which each has the seed behind that of the one before.
    #[arg(short, long)]
    n: Option<u64>,
    /// The seed of the first picture: the same seed gives the same picture.
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of the model [default: the model's].
    #[arg(long)]
    steps: Option<u64>,
    /// The weight of the prompt [default: the model's].
    #[arg(long)]
    guidance: Option<f64>,
    /// A text of what shall not be seen.
    #[arg(long)]
    negative: Option<String>,
    /// The scheduler: a class of diffusers, with `+karras` behind it for Karras' spacing [default: the model's].
    #[arg(long)]
    scheduler: Option<String>,
    /// A picture to begin with.
    #[arg(long)]
    image: Option<PathBuf>,
    /// A picture that is transparent, or white, where the first one is painted anew.
    #[arg(long, requires = "image")]
    mask: Option<PathBuf>,
    /// How much of the picture is painted anew, from 0 to 1.
    #[arg(long, requires = "image")]
    strength: Option<f64>,
}

impl PaintArgs {
    /// The format, by the file's ending.
    fn format(&self) -> &'static str {
        let ending = self.output.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match ending.as_deref() {
            Some("jpg" | "jpeg") => "jpeg",
            Some("webp") => "webp",
            _ => "png",
        }
    }

    /// The route and the request.
    fn request(&self) -> Result<(&'static str, Value), CliError> {
        let mut body = json!({ "prompt": self.prompt, "output_format": self.format() });
        let file = |path: &Option<PathBuf>| path.as_deref().map(url).transpose();
        let more = [
            ("model", self.model.clone().map(Value::from)),
            ("size", self.size.clone().map(Value::from)),
            ("n", self.n.map(Value::from)),
            ("seed", self.seed.map(Value::from)),
            ("steps", self.steps.map(Value::from)),
            ("guidance_scale", self.guidance.map(Value::from)),
            ("negative_prompt", self.negative.clone().map(Value::from)),
            ("scheduler", self.scheduler.clone().map(Value::from)),
            ("image", file(&self.image)?),
            ("mask", file(&self.mask)?),
            ("strength", self.strength.map(Value::from)),
        ];
        for (name, value) in more {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        Ok((if self.image.is_some() { "/v1/images/edits" } else { "/v1/images/generations" }, body))
    }

    /// The file of a picture, of so many.
    fn file(&self, at: usize, count: usize) -> PathBuf {
        if count == 1 {
            return self.output.clone();
        }
        let stem = self.output.file_stem().unwrap_or_default().to_string_lossy();
        let ending = self.output.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
        self.output.with_file_name(format!("{stem}-{}{ending}", at.saturating_add(1)))
    }
}

/// A file as a URL that has it in itself.
fn url(path: &Path) -> Result<Value, CliError> {
    let file = std::fs::read(path).map_err(|error| CliError::Read(path.to_owned(), error))?;
    Ok(Value::from(format!("data:;base64,{}", STANDARD.encode(file))))
}

/// Paints, and writes the files. Returns the text for the terminal.
pub(super) async fn paint(client: &Client, args: &PaintArgs) -> Result<String, CliError> {
    let (path, body) = args.request()?;
    let mut pieces = client.read_answer(path, &body).await?;
    let mut answer = Vec::new();
    while let Some(piece) = pieces.next().await? {
        answer.extend_from_slice(&piece);
    }
    let answer: Value = serde_json::from_slice(&answer).map_err(|_| CliError::CutOff)?;
    let pictures: Vec<(Vec<u8>, &Value)> = answer["data"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|data| Some((STANDARD.decode(data["b64_json"].as_str()?).ok()?, &data["seed"])))
        .collect();
    if pictures.is_empty() {
        return Err(CliError::CutOff);
    }
    let (to_output, count, mut lines) = (args.output.as_os_str() == "-", pictures.len(), String::new());
    for (at, (picture, seed)) in pictures.iter().enumerate() {
        if to_output {
            terminal::out().write_all(picture).map_err(CliError::Output)?;
            continue;
        }
        let path = args.file(at, count);
        let written = File::create(&path).and_then(|mut file| file.write_all(picture));
        written.map_err(|error| CliError::Write(path.clone(), error))?;
        let size = answer["size"].as_str().unwrap_or("?");
        lines += &format!("{}: {size}, seed {seed}, {} bytes\n", path.display(), picture.len());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct PaintLine {
        #[command(flatten)]
        paint: PaintArgs,
    }

    fn line(words: &[&str]) -> PaintArgs {
        PaintLine::parse_from([&["paint", "a cat"], words].concat()).paint
    }

    #[test]
    fn rc_25_the_format_is_that_of_the_file_and_several_pictures_have_numbers() {
        for (words, format) in [(&[][..], "png"), (&["-o", "a.JPG"], "jpeg"), (&["-o", "b/a.webp"], "webp")] {
            assert_eq!(line(words).format(), format);
        }
        let several = line(&["-o", "b/a.webp", "-n", "2"]);
        assert_eq!([0, 1].map(|at| several.file(at, 2)), ["b/a-1.webp", "b/a-2.webp"].map(PathBuf::from));
        assert_eq!(several.file(0, 1), PathBuf::from("b/a.webp"));
    }

    #[test]
    fn rc_25_a_picture_to_begin_with_makes_the_request_an_edit() {
        let (path, body) = line(&["-m", "sd", "--size", "64x64", "--seed", "7", "--steps", "4"]).request().unwrap();
        assert_eq!(path, "/v1/images/generations");
        let expected = json!({ "prompt": "a cat", "output_format": "png", "model": "sd", "size": "64x64", "seed": 7,
            "steps": 4 });
        assert_eq!(body, expected);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.png");
        std::fs::write(&file, "abc").unwrap();
        let (path, body) = line(&["--image", file.to_str().unwrap(), "--strength", "0.5"]).request().unwrap();
        assert_eq!(
            (path, &body["image"], &body["strength"]),
            ("/v1/images/edits", &json!("data:;base64,YWJj"), &json!(0.5))
        );
        let gone = line(&["--image", "/nowhere/a.png"]).request().unwrap_err();
        assert!(gone.to_string().contains("/nowhere/a.png"), "{gone}");
    }
}
