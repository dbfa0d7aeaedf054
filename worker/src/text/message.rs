//! The questions that a worker asks its text processes, and their answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_boss_engine::constraint::Grammar;
use model_boss_engine::text::{
    ChatTemplate, Conversation, SPELLED_ENDING, Text, TextError, ThinkingTags, spells_thoughts,
};
use model_boss_engine::tools::ToolFormat;
use model_boss_protocol::{Category, SandboxMode, TextLimits, WorkerSpec};
use model_boss_weights::{layers_folder, towers_folder};
use serde::{Deserialize, Serialize};

/// The first frame to a text launcher: which text side its hosts load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TextLoad {
    pub(crate) source: TextSource,
    pub(crate) limits: TextLimits,
    pub(crate) sandbox: SandboxMode,
    /// The files of a draft model, whose vocabulary has to be the same.
    pub(crate) draft: Option<PathBuf>,
}

impl TextLoad {
    /// The text side of a worker's model.
    pub(crate) fn of_worker(spec: &WorkerSpec) -> Self {
        let part = match spec.category {
            Category::Vision => TextPart::Towers,
            Category::Embedding | Category::Reranking => TextPart::Layers,
            _ => TextPart::Whole,
        };
        let source = TextSource::Model { path: spec.source.clone(), part, template: spec.chat_template.clone() };
        let draft = spec.draft.as_ref().map(|draft| draft.source.clone());
        Self { source, limits: spec.text, sandbox: spec.sandbox, draft }
    }

    /// The text side of a command line.
    pub(crate) fn by_hand(source: TextSource) -> Self {
        Self { source, limits: TextLimits::default(), sandbox: SandboxMode::default(), draft: None }
    }
}

/// The part of a model's folder that has its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TextPart {
    /// The folder itself.
    Whole,
    /// The folder of an encoder's layers, where they have one.
    Layers,
    /// The folder of two towers, where they have one.
    Towers,
}

/// The files of a text side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum TextSource {
    /// A model's files. `template` takes the place of the model's own chat template.
    Model { path: PathBuf, part: TextPart, template: Option<String> },
    /// A chat template without a vocabulary.
    Template(PathBuf),
    /// A vocabulary without a chat template: a `tokenizer.json`, or a GGUF file.
    Vocabulary(PathBuf),
}

impl TextSource {
    /// The path of the files.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Model { path, .. } | Self::Template(path) | Self::Vocabulary(path) => path,
        }
    }

    /// Reads the files.
    pub(super) fn load(&self) -> Result<Text, TextError> {
        match self {
            Self::Model { path, part, template } => {
                let folder = match part {
                    TextPart::Whole => path.clone(),
                    TextPart::Layers => layers_folder(path),
                    TextPart::Towers => towers_folder(path),
                };
                Text::load(&folder, template.as_deref())
            }
            Self::Template(path) => Text::template_alone(path),
            Self::Vocabulary(path) => Text::vocabulary_alone(path),
        }
    }
}

/// The answer to [`TextLoad`]. The vocabulary is its tail.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum TextLoaded {
    Ready(TextFacts),
    /// A failure, with the exit code for the worker.
    Failed {
        exit: i32,
        message: String,
    },
}

/// Facts about a model's text side beside the vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TextFacts {
    /// The tokens between which the model thinks aloud, if it does.
    pub(crate) thinking: Option<ThinkingTags>,
    /// Whether the model may spell its thoughts out, between tags that are no tokens of the vocabulary.
    pub(crate) spells_thoughts: bool,
    /// The tokens that end a thought which is told apart in the text: in a channel, or spelled out.
    pub(crate) thought_ending: Option<Arc<[u32]>>,
    /// The roles of messages in its chat template.
    pub(crate) roles: RoleFacts,
    /// Whether its chat template has marks for images among the parts of messages.
    pub(crate) shows_images: bool,
    /// Whether its chat template takes what messages say as lists of parts only.
    pub(crate) needs_parts: bool,
    /// The use of tools in its chat template.
    pub(crate) tools: ToolFacts,
    /// Warnings for the operator: an oddity of the files that was worked around.
    pub(crate) warnings: Vec<String>,
}

impl TextFacts {
    pub(super) fn of(text: &Text) -> Self {
        let tools = text.template.as_ref().map(ToolFacts::of).unwrap_or_default();
        let spells = |template: &ChatTemplate| spells_thoughts(&template.tool_source());
        let spells_thoughts =
            text.thinking.is_none() && !tools.format.has_channels() && text.template.as_ref().is_some_and(spells);
        let ending = tools.format.thought_ending().or(spells_thoughts.then_some(SPELLED_ENDING));
        let ending = ending.and_then(|ending| text.tokenizer.encode_rendered(ending).ok());
        Self {
            thinking: text.thinking.clone(),
            spells_thoughts,
            thought_ending: ending.map(Into::into),
            roles: text.template.as_ref().map(RoleFacts::of).unwrap_or_default(),
            shows_images: text.template.as_ref().is_some_and(ChatTemplate::shows_images),
            needs_parts: text.template.as_ref().is_some_and(ChatTemplate::needs_parts),
            tools,
            warnings: text.warnings.clone(),
        }
    }
}

/// The roles of messages in a chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoleFacts {
    /// Whether it treats the role `developer` apart from `system`.
    pub(crate) knows_developer: bool,
    /// The roles whose texts it takes as a list of parts, which it joins in its own way.
    in_parts: Vec<String>,
    /// Whether it shows messages of any role, however it is called.
    any: bool,
    /// The roles that it shows beside those that every client knows.
    further: Vec<String>,
}

impl RoleFacts {
    fn of(template: &ChatTemplate) -> Self {
        Self {
            knows_developer: template.knows_developer(),
            in_parts: template.roles_in_parts().into_iter().map(str::to_owned).collect(),
            any: template.shows_any_role(),
            further: template.further_roles(),
        }
    }

    /// Whether it reads the parts of what a role says.
    pub(crate) fn reads_parts(&self, role: &str) -> bool {
        self.in_parts.iter().any(|known| known == role)
    }

    /// The roles that it shows beside those that every client knows, as the end of a sentence.
    pub(crate) fn further(&self) -> String {
        self.further.iter().map(|role| format!(", '{role}'")).collect()
    }

    /// Whether it shows what a role says that not every client knows.
    pub(crate) fn shows(&self, role: &str) -> bool {
        self.any || self.further.iter().any(|known| known == role)
    }
}

/// The use of tools in a chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToolFacts {
    /// The format of calls.
    pub(crate) format: ToolFormat,
    /// Whether the template writes the tools that may be called.
    pub(crate) shows_tools: bool,
    /// Whether the template writes calls.
    pub(crate) shows_calls: bool,
    /// Whether the template writes results of calls.
    pub(crate) shows_results: bool,
    /// Whether it reads tools from the system message.
    pub(crate) tools_in_message: bool,
    /// Whether it joins the arguments of calls to texts.
    pub(crate) arguments_as_text: bool,
    /// Whether it fails for arguments of calls that are no objects.
    pub(crate) needs_object_arguments: bool,
    /// Whether it refuses system messages, or leaves them out.
    pub(crate) lacks_system: bool,
    /// Whether it fails for tools without a description or parameters.
    pub(crate) needs_described_tools: bool,
}

impl ToolFacts {
    fn of(template: &ChatTemplate) -> Self {
        let source = template.tool_source();
        let has = |words: &[&str]| words.iter().any(|word| source.contains(word));
        let format = ToolFormat::of_template(&source);
        let tools_in_message =
            format == ToolFormat::Phi && has(&["message['tools']", "message[\"tools\"]", "message.tools"]);
        let shows_calls = has(&["tool_calls"]);
        Self {
            format,
            shows_tools: tools_in_message || template.shows_tools(),
            shows_calls,
            // Some templates know the role, but no calls.
            shows_results: shows_calls || has(&["\"tool\"", "'tool'"]),
            tools_in_message,
            // Apertus' template does so with its own form of messages only.
            arguments_as_text: format != ToolFormat::Apertus
                && has(&["['arguments'] +", "[\"arguments\"] +", ".arguments +"]),
            needs_object_arguments: template.needs_object_arguments(),
            lacks_system: !template.shows_system(),
            needs_described_tools: template.needs_described_tools(),
        }
    }

    /// Whether the prompt has to describe the format of calls.
    pub(crate) fn needs_instructions(&self) -> bool {
        self.format == ToolFormat::Generic || !self.shows_tools
    }
}

/// A question to a renderer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum TextQuestion {
    /// The tokens of a conversation, if there are at most `most_tokens`.
    Chat { conversation: Conversation, most_tokens: usize, images: Option<ImageTexts> },
    /// The text of a conversation's prompt.
    Render { conversation: Conversation },
    /// The tokens of texts, each by itself.
    Encode { texts: Vec<String>, specials: AddSpecials, most_tokens: Option<usize> },
    /// The tokens of pairs of texts as the model joins them, at most so many each: of longer ones the ends of texts are
    /// left out.
    EncodePairs { pairs: Vec<[String; 2]>, most_tokens: usize },
    /// Whether an answer can be held to a grammar. A stranger's grammar may take more than its text suggests.
    Check { grammar: Grammar },
}

/// Texts that take the place of the marks of images in a prompt, in their order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ImageTexts {
    pub(crate) mark: String,
    pub(crate) texts: Vec<String>,
}

impl ImageTexts {
    /// The prompt with these texts; what is wrong where it has another number of marks.
    pub(super) fn in_place(&self, prompt: &str) -> Result<String, String> {
        let parts: Vec<&str> = prompt.split(self.mark.as_str()).collect();
        let (marks, images) = (parts.len() - 1, self.texts.len());
        if marks != images {
            return Err(format!(
                "the prompt has {marks} marks '{}' for {images} images; leave the mark out of texts",
                self.mark
            ));
        }
        let with = |(part, text): (&&str, &String)| format!("{part}{text}");
        let last = parts.last().copied().unwrap_or_default();
        Ok(parts.iter().zip(&self.texts).map(with).collect::<String>() + last)
    }
}

/// Whether a text gets the tokens around it that the model wants around a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AddSpecials {
    Yes,
    No,
}

/// A renderer's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RendererReply {
    pub(super) answer: TextAnswer,
    /// The renderer ends after this answer, because the next question would find little memory.
    pub(super) worn: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum TextAnswer {
    /// Lists of these lengths; the tail has the tokens, four bytes each.
    Tokens { lengths: Vec<usize>, transcript: bool },
    /// The same of pairs, with the first token of each second text.
    Pairs { lengths: Vec<usize>, seconds: Vec<usize> },
    /// The tail is the text.
    Text,
    /// The grammar can be used.
    Usable,
    /// The prompt has more tokens than were asked for.
    TooLong { tokens: usize },
    /// The request is at fault: the template refuses it, or the text cannot be tokenised.
    Refused(String),
    /// A limit on steps or on the answer's length was reached.
    Limit(String),
}
