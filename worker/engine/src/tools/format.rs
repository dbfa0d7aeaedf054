//! The formats in which models write calls. Parsers, grammars and prompts work from one description of each. It has the
//! words by which the format is recognised in a chat template.

use serde::{Deserialize, Serialize};

use super::head::HeadShape;
use super::json_formats::{
    APERTUS, COMMAND, COMMAND_FENCED, DEEP_SEEK, DEEP_SEEK_FENCED, FIRE_FUNCTION, FUNCTIONARY, GENERIC, GIGA_CHAT,
    GRANITE, HARMONY, HERMES, JSON_LIST, KIMI, LFM_LIST, LLAMA, MISTRAL_IDS, MISTRAL_LIST, MISTRAL_NAMED, NEMOTRON,
    PHI, TOOL_CALLS_LINES, TOOL_CALLS_LIST,
};
use super::markers::ToolMarkers;
use super::shape::{CallFormat, CallIds, CallShape};
use super::tagged_formats::{
    DEEP_SEEK_MARKUP, DEEP_SEEK_MARKUP_4, FUNCTION_GEMMA, GEMMA, GLM, GLM_TIGHT, LFM, MINI_MAX, PYTHON_LIST,
    QWEN_CODER, SEED,
};

/// Declares the formats: each variant with its description, in the order in which templates are tried.
macro_rules! formats {
    ($($(#[$attribute:meta])* $name:ident = $row:ident,)*) => {
        /// A format of calls.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum ToolFormat {
            $($(#[$attribute])* $name,)*
        }

        impl ToolFormat {
            /// All formats, in the order in which templates are tried.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The description of the format.
            pub(super) fn row(self) -> &'static CallFormat {
                match self {
                    $(Self::$name => {
                        const ROW: &CallFormat = &$row;
                        ROW
                    })*
                }
            }
        }
    };
}

formats! {
    /// gpt-oss: messages in channels.
    Harmony = HARMONY,
    /// Seed-OSS: Qwen3-Coder's tags with marks of its own.
    Seed = SEED,
    /// Qwen3-Coder: parameters between tags.
    QwenCoder = QWEN_CODER,
    /// MiniMax-M2: calls and parameters are tags with names.
    MiniMax = MINI_MAX,
    /// GLM 4.7, Laguna, Spark: GLM's tags without lines.
    GlmTight = GLM_TIGHT,
    /// GLM 4.5 and 4.6: keys and values between tags.
    Glm = GLM,
    /// DeepSeek V3.2: parameters between tags that say which of them are texts.
    DeepSeekMarkup = DEEP_SEEK_MARKUP,
    /// DeepSeek V4: the same with another name for the list.
    DeepSeekMarkup4 = DEEP_SEEK_MARKUP_4,
    /// DeepSeek R1 and V3: JSON in a fenced block.
    DeepSeekFenced = DEEP_SEEK_FENCED,
    /// DeepSeek V3.1: a name and JSON.
    DeepSeek = DEEP_SEEK,
    /// Kimi-K2: a name with a number, and JSON.
    Kimi = KIMI,
    /// Mistral Small 3.2: a name, an identifier and JSON behind `[TOOL_CALLS]`.
    MistralIds = MISTRAL_IDS,
    /// Devstral, Ministral 3, Magistral: a name, `[ARGS]` and JSON behind `[TOOL_CALLS]`.
    MistralNamed = MISTRAL_NAMED,
    /// Mistral up to Nemo: a list of JSON behind `[TOOL_CALLS]`.
    MistralList = MISTRAL_LIST,
    /// Command A and R7B: a list of JSON between `<|START_ACTION|>` and `<|END_ACTION|>`.
    Command = COMMAND,
    /// The first Command R: a list of JSON in a fenced block behind `Action:`.
    CommandFenced = COMMAND_FENCED,
    /// FunctionGemma: bare keys, and texts between `<escape>`.
    FunctionGemma = FUNCTION_GEMMA,
    /// Gemma 4: FunctionGemma's notation with marks of its own.
    Gemma = GEMMA,
    /// Firefunction 2: a list of JSON behind `functools`.
    FireFunction = FIRE_FUNCTION,
    /// Functionary 3.1: a name in a tag, and JSON behind it.
    Functionary = FUNCTIONARY,
    /// Apertus: a list of objects whose keys are the names.
    Apertus = APERTUS,
    /// GigaChat 3.1: an object of JSON behind `<|function_call|>`.
    GigaChat = GIGA_CHAT,
    /// Apriel, Jamba, Hunyuan: a list of JSON between `<tool_calls>` and `</tool_calls>`.
    ToolCallsList = TOOL_CALLS_LIST,
    /// MiniMax-M1: objects of JSON, one a line, between `<tool_calls>` and `</tool_calls>`.
    ToolCallsLines = TOOL_CALLS_LINES,
    /// xLAM 2: the answer is one list of JSON.
    JsonList = JSON_LIST,
    /// ToolACE, and templates that have Llama write it: the answer is a list of calls as Python writes them.
    PythonList = PYTHON_LIST,
    /// LFM2 with a template that writes JSON: a list of it behind `<|tool_call_start|>`.
    LfmList = LFM_LIST,
    /// LFM2: a list of calls as Python writes them.
    Lfm = LFM,
    /// Nemotron Nano 2: a list of JSON between `<TOOLCALL>` and `</TOOLCALL>`.
    Nemotron = NEMOTRON,
    /// Phi-4-mini: a list of JSON between `<|tool_call|>` and `<|/tool_call|>`.
    Phi = PHI,
    /// Granite 3: a list of JSON behind `<|tool_call|>`.
    Granite = GRANITE,
    /// Hermes, Qwen 2.5 and 3, Granite 4: an object of JSON between `<tool_call>` and `</tool_call>`.
    Hermes = HERMES,
    /// Llama 3.x: the answer is one object of JSON.
    Llama = LLAMA,
    /// Hermes' format for a model whose template knows no tools; its prompt describes the format.
    #[default]
    Generic = GENERIC,
}

impl ToolFormat {
    /// The format of a model with this chat template.
    pub fn of_template(template: &str) -> Self {
        let has_all = |words: &&[&str]| words.iter().all(|word| template.contains(word));
        let is_of = |format: &&Self| {
            let row = format.row();
            row.known_by.iter().any(has_all) && !row.unlike.iter().any(|word| template.contains(word))
        };
        let found = Self::ALL.iter().find(is_of);
        found.copied().unwrap_or_default()
    }

    /// The identifiers of calls that the templates of the format want.
    pub fn ids(self) -> CallIds {
        self.row().ids
    }

    /// Whether one answer may have several calls.
    pub fn may_call_several(self) -> bool {
        self.row().several
    }

    /// Whether models write arguments in JSON. Otherwise parsers make JSON of them.
    pub fn has_json_arguments(self) -> bool {
        matches!(self.row().call, CallShape::Object(_) | CallShape::Head(_))
    }

    /// The special tokens with which calls begin. None where answers are in channels: their marks begin all messages.
    pub fn call_marks(self, markers: &ToolMarkers) -> Vec<u32> {
        let row = self.row();
        let marks = row.first.iter().chain(row.open).filter(|_| !self.has_channels());
        marks.filter_map(|mark| markers.id(mark)).collect()
    }

    /// The text that ends a thought and begins a message whose channel is not named yet, where answers are in channels.
    pub fn thought_ending(self) -> Option<&'static str> {
        self.has_channels().then_some("<|end|><|start|>assistant<|channel|>")
    }

    /// Whether answers are messages in channels, with calls or without.
    pub fn has_channels(self) -> bool {
        matches!(self.row().call, CallShape::Head(HeadShape { in_channels: true, .. }))
    }

    /// In front of the text of an answer that a client has begun.
    pub fn answer_opening(self) -> &'static str {
        if self.has_channels() { "<|channel|>final<|message|>" } else { "" }
    }

    /// The marks of the format.
    pub(super) fn marks(self) -> impl Iterator<Item = &'static str> {
        let CallFormat { open, ignored, inside, .. } = self.row();
        open.iter().chain(*ignored).chain(*inside).copied()
    }
}
