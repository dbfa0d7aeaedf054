//! The voices of models that speak: of a program those of its manifest, of a model those of its files.

use std::path::Path;

use model_boss_host::plain_file::{CONFIG, text_beside_weights};
use model_boss_protocol::{Manifest, SpeechVoice};
use model_boss_weights::model_folder;
use serde::Deserialize;

/// The most voices of a model's files.
const MOST_VOICES: u64 = 4096;

/// The voices in their order, the usual one first, and behind them the manifest's other names.
pub(super) fn voices_of(manifest: &Manifest, source: &Path) -> Vec<SpeechVoice> {
    let mut voices = match &manifest.speech {
        Some(program) => program.voices.clone(),
        None => of_files(source),
    };
    let named: Vec<SpeechVoice> = manifest
        .voices
        .iter()
        .filter_map(|(other, id)| {
            let of = voices.iter().find(|voice| voice.id == *id)?;
            Some(SpeechVoice { id: other.clone(), ..of.clone() })
        })
        .collect();
    voices.extend(named);
    voices
}

/// Speakers of CSM. The model knows any number, and most recordings that it heard have two.
const CSM_VOICES: u64 = 2;

/// The voices of a model: its speakers by their numbers.
fn of_files(source: &Path) -> Vec<SpeechVoice> {
    #[derive(Deserialize)]
    struct SpeakerFields {
        #[serde(default)]
        model_type: String,
        #[serde(default = "one")]
        num_speakers: u64,
        #[serde(default)]
        speaker_embedding_size: u64,
    }
    #[derive(Default, Deserialize)]
    struct LanguageField {
        language: Option<String>,
    }
    fn one() -> u64 {
        1
    }
    let folder = model_folder(source);
    let config = text_beside_weights(&folder.join("config.json"), CONFIG);
    let Some(fields) = config.and_then(|text| serde_json::from_str::<SpeakerFields>(&text).ok()) else {
        return Vec::new();
    };
    if fields.model_type == "csm" {
        let voice = |at: u64| SpeechVoice { id: at.to_string(), name: None, language: Some("en".to_owned()) };
        return (0..CSM_VOICES).map(voice).collect();
    }
    let letters = text_beside_weights(&folder.join("tokenizer_config.json"), CONFIG);
    let letters: LanguageField = letters.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let voice = |id: String| SpeechVoice { id, name: None, language: letters.language.clone() };
    if fields.num_speakers > 1 && fields.speaker_embedding_size > 0 {
        return (0..fields.num_speakers.min(MOST_VOICES)).map(|at| voice(at.to_string())).collect();
    }
    vec![voice("default".to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_voices_are_those_of_the_program_or_of_the_files_and_have_other_names() {
        let folder = tempfile::tempdir().unwrap();
        let ids = |manifest: &str| -> Vec<(String, Option<String>)> {
            let manifest: Manifest = toml::from_str(manifest).unwrap();
            manifest.check().unwrap();
            let voices = voices_of(&manifest, folder.path());
            voices.into_iter().map(|voice| (voice.id, voice.language)).collect()
        };
        let pair = |id: &str, language: Option<&str>| (id.to_owned(), language.map(str::to_owned));
        let program = "name = \"e\"\n[speech]\nline = [\"x\"]\nvoices = [\"a\", { id = \"b\", language = \"de\" }]\n";
        assert_eq!(
            ids(&format!("{program}[voices]\nalloy = \"b\"\nnova = \"gone\"")),
            [pair("a", None), pair("b", Some("de")), pair("alloy", Some("de"))]
        );
        let model = "name = \"m\"\nsource = { path = \"m\" }\ncategory = \"tts\"";
        assert!(ids(model).is_empty(), "without files nothing is known");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("config.json", r#"{"model_type":"vits"}"#);
        assert_eq!(ids(model), [pair("default", None)]);
        write("config.json", r#"{"model_type":"vits","num_speakers":2,"speaker_embedding_size":4}"#);
        write("tokenizer_config.json", r#"{"language":"eng"}"#);
        assert_eq!(ids(model), [pair("0", Some("eng")), pair("1", Some("eng"))]);
        write("config.json", r#"{"model_type":"csm"}"#);
        assert_eq!(ids(model), [pair("0", Some("en")), pair("1", Some("en"))]);
    }
}
