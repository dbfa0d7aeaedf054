//! Folders of `sentence-transformers` for judges that write text: the tokens that are their answers, and how they are
//! asked.

use std::path::Path;

use model_boss_engine::{DecoderJudge, PairForm, PairPrompt};
use model_boss_weights::model_folder;
use serde::Deserialize;
use serde_json::Value;

use super::folder_file::{bad, file, text_file};
use super::sentence_folder::{MODULES, SentenceFolder, SentenceModule, inside};
use crate::error::{LoadError, ModelError};

/// Words of the prompt of Qwen3-Reranker in a chat template.
const QWEN3: [&str; 4] = [
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided",
    "<Instruct>",
    "<Query>",
    "<Document>",
];

#[derive(Deserialize)]
struct LogitScoreConfig {
    true_token_id: u32,
    false_token_id: Option<u32>,
    module_input_name: Option<String>,
}

/// The settings of the layers.
#[derive(Default, Deserialize)]
struct LayerForms {
    #[serde(default)]
    modality_config: Value,
}

/// The templates of a tokenizer's settings.
#[derive(Default, Deserialize)]
struct OwnTemplate {
    #[serde(default)]
    chat_template: Value,
}

/// How a decoder is asked about pairs, where its folder says it in a module `LogitScore`.
pub fn decoder_judge(source: &Path) -> Result<Option<DecoderJudge>, LoadError> {
    let bad_model = |reason: ModelError| LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) };
    read(model_folder(source)).map_err(bad_model)
}

fn read(folder: &Path) -> Result<Option<DecoderJudge>, ModelError> {
    let modules: Vec<SentenceModule> = file(&folder.join(MODULES))?.unwrap_or_default();
    let Some(last) = modules.iter().find(|module| module.name() == "LogitScore") else { return Ok(None) };
    if let Some(other) = modules.iter().find(|module| !matches!(module.name(), "Transformer" | "LogitScore")) {
        return Err(bad(format!("{MODULES}: the module '{}' is not known beside LogitScore", other.name())));
    }
    let path = inside(folder, &last.path)?.join("config.json");
    let config: LogitScoreConfig = file(&path)?.ok_or_else(|| bad(format!("{} is missing", path.display())))?;
    if let Some(other) = config.module_input_name.filter(|name| name != "causal_logits") {
        return Err(bad(format!("{}: module_input_name '{other}' is not known", path.display())));
    }
    let SentenceFolder { mut prompts, mut default_prompt, .. } = SentenceFolder::plain(folder, Vec::new())?;
    let forms: LayerForms = file(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
    let pairs = match forms.modality_config.get("message") {
        None => PairForm::Joined,
        Some(_) if is_qwen3(folder)? => {
            let prompt = PairPrompt::qwen3();
            // The prompt of such a folder is the instruction.
            let instruction =
                default_prompt.take().and_then(|name| prompts.remove(&name)).unwrap_or(prompt.instruction);
            prompts.clear();
            PairForm::Prompt(PairPrompt { instruction, ..PairPrompt::qwen3() })
        }
        Some(_) => {
            return Err(bad("this judge has a chat template of its own for pairs, which is not applied".to_owned()));
        }
    };
    let (yes, no) = (config.true_token_id, config.false_token_id);
    Ok(Some(DecoderJudge { yes, no, pairs, prompts, default_prompt }))
}

/// Whether the folder's chat template is the prompt of Qwen3-Reranker.
fn is_qwen3(folder: &Path) -> Result<bool, ModelError> {
    let template = match text_file(&folder.join("chat_template.jinja"))? {
        Some(template) => template,
        None => {
            let own: OwnTemplate = file(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
            own.chat_template.as_str().unwrap_or_default().to_owned()
        }
    };
    Ok(QWEN3.iter().all(|words| template.contains(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_2_a_folder_says_how_a_decoder_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(read(folder.path()).unwrap(), None);
        write(
            "modules.json",
            r#"[{"path":"","type":"sentence_transformers.base.modules.transformer.Transformer"},
                {"path":"1_LogitScore","type":"sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}]"#,
        );
        write("1_LogitScore/config.json", r#"{"true_token_id":7,"false_token_id":null}"#);
        write(
            "config_sentence_transformers.json",
            r#"{"prompts":{"web":"Is it about this? "},"default_prompt_name":"web"}"#,
        );
        let text = r#"{"modality_config":{"text":{"method":"forward"}}}"#;
        write("sentence_bert_config.json", text);
        let judge = read(folder.path()).unwrap().unwrap();
        assert_eq!((judge.yes, judge.no, judge.pairs), (7, None, PairForm::Joined));
        assert_eq!(
            (judge.default_prompt.as_deref(), judge.prompts["web"].as_str()),
            (Some("web"), "Is it about this? ")
        );
        write("sentence_bert_config.json", &text.replace("\"text\"", "\"message\""));
        write("chat_template.jinja", "{{ messages }}");
        assert!(read(folder.path()).unwrap_err().to_string().contains("chat template"));
        write("chat_template.jinja", &QWEN3.join(" "));
        let judge = read(folder.path()).unwrap().unwrap();
        let PairForm::Prompt(prompt) = judge.pairs else { panic!("{:?}", judge.pairs) };
        assert_eq!((prompt.instruction.as_str(), judge.prompts.len()), ("Is it about this? ", 0));
        write("1_LogitScore/config.json", r#"{"true_token_id":7,"module_input_name":"odd"}"#);
        assert!(read(folder.path()).unwrap_err().to_string().contains("odd"));
    }
}
