//! The formats in which models write calls, recognised by the model's own chat template.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::Vocabulary;

/// A format of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ToolFormat {
    /// Hermes, Qwen 2.5 and 3, Granite 4: an object of JSON between `<tool_call>` and `</tool_call>`.
    Hermes,
    /// Qwen3-Coder: parameters between tags.
    QwenCoder,
    /// Llama 3.x: the answer is one object of JSON.
    Llama,
    /// Mistral up to Nemo: a list of JSON behind `[TOOL_CALLS]`.
    MistralList,
    /// Mistral since Small 3.2: a name, `[ARGS]` and JSON behind `[TOOL_CALLS]`.
    MistralNamed,
    /// Phi-4-mini: a list of JSON between `<|tool_call|>` and `<|/tool_call|>`.
    Phi,
    /// DeepSeek R1 and V3: JSON in a fenced block.
    DeepSeekFenced,
    /// DeepSeek V3.1: a name and JSON.
    DeepSeek,
    /// GLM 4.5 and 4.6: keys and values between tags.
    Glm,
    /// gpt-oss: messages in channels.
    Harmony,
    /// Granite 3: a list of JSON behind `<|tool_call|>`.
    Granite,
    /// Command A and R7B: a list of JSON between `<|START_ACTION|>` and `<|END_ACTION|>`.
    Command,
    /// Hermes' format for a model whose template knows no tools; its prompt describes the format.
    #[default]
    Generic,
}

/// The marks of a format.
pub(super) struct FormatMarks {
    /// A call, or a list of them, follows.
    pub(super) open: &'static [&'static str],
    /// No part of the text, and no call.
    pub(super) ignored: &'static [&'static str],
}

const HERMES: FormatMarks = FormatMarks { open: &["<tool_call>"], ignored: &["</tool_call>"] };
const QWEN_CODER: FormatMarks =
    FormatMarks { open: &["<function="], ignored: &["<tool_call>", "</tool_call>", "</function>"] };
const LLAMA: FormatMarks = FormatMarks { open: &["<|python_tag|>"], ignored: &["<|eom_id|>"] };
const MISTRAL: FormatMarks = FormatMarks { open: &["[TOOL_CALLS]"], ignored: &[] };
const PHI: FormatMarks = FormatMarks { open: &["<|tool_call|>"], ignored: &["<|/tool_call|>"] };
const DEEP_SEEK: FormatMarks = FormatMarks {
    open: &["<｜tool▁call▁begin｜>"],
    ignored: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"],
};
const GLM: FormatMarks = FormatMarks { open: &["<tool_call>"], ignored: &["</tool_call>"] };
const HARMONY: FormatMarks =
    FormatMarks { open: &["<|channel|>", "<|start|>"], ignored: &["<|end|>", "<|call|>", "<|return|>"] };
const GRANITE: FormatMarks = FormatMarks { open: &["<|tool_call|>", "<tool_call>"], ignored: &["</tool_call>"] };
const COMMAND: FormatMarks = FormatMarks {
    open: &["<|START_ACTION|>"],
    ignored: &["<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
};

/// Marks inside of calls.
const INSIDE: [&str; 5] = ["[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<|message|>", "<|constrain|>"];

impl ToolFormat {
    /// The format of a model with this chat template.
    pub fn of_template(template: &str) -> Self {
        let has = |mark: &str| template.contains(mark);
        match () {
            () if has("<|channel|>") && has("commentary") => Self::Harmony,
            () if has("<function=") && has("<parameter=") => Self::QwenCoder,
            () if has("<arg_key>") => Self::Glm,
            () if has("tool▁call▁begin") && has("```json") => Self::DeepSeekFenced,
            () if has("tool▁call▁begin") => Self::DeepSeek,
            () if has("[TOOL_CALLS]") && has("[ARGS]") => Self::MistralNamed,
            () if has("[TOOL_CALLS]") => Self::MistralList,
            () if has("<|START_ACTION|>") => Self::Command,
            () if has("<|tool|>") && has("tools") => Self::Phi,
            () if has("<|tool_call|>") => Self::Granite,
            () if has("<tool_call>") && has("tools") => Self::Hermes,
            () if has("<|python_tag|>") || (has("ipython") && has("\"parameters\"")) => Self::Llama,
            () => Self::Generic,
        }
    }

    /// The marks of the format.
    pub(super) fn marks(self) -> &'static FormatMarks {
        match self {
            Self::Hermes | Self::Generic => &HERMES,
            Self::QwenCoder => &QWEN_CODER,
            Self::Llama => &LLAMA,
            Self::MistralList | Self::MistralNamed => &MISTRAL,
            Self::Phi => &PHI,
            Self::DeepSeekFenced | Self::DeepSeek => &DEEP_SEEK,
            Self::Glm => &GLM,
            Self::Harmony => &HARMONY,
            Self::Granite => &GRANITE,
            Self::Command => &COMMAND,
        }
    }

    /// Whether the identifiers of calls have nine letters and digits: Mistral's templates refuse others.
    pub fn has_short_ids(self) -> bool {
        matches!(self, Self::MistralList | Self::MistralNamed)
    }

    /// Whether one answer may have several calls. Llama's templates refuse to render more.
    pub fn may_call_several(self) -> bool {
        !matches!(self, Self::Llama | Self::Harmony)
    }

    /// Calls as the model writes them, for prompts whose template does not. Each is a name, and arguments in JSON.
    pub fn calls(self, calls: &[(&str, &str)]) -> String {
        let each = |write: &dyn Fn(&str, &str) -> String| {
            calls.iter().map(|(name, arguments)| write(name, arguments)).collect::<Vec<_>>()
        };
        let objects = |name_key: &str, arguments_key: &str| {
            let object = |name: &str, arguments: &str| {
                format!("{{\"{name_key}\": {}, \"{arguments_key}\": {arguments}}}", Value::from(name))
            };
            each(&object)
        };
        let listed = || objects("name", "arguments").join(", ");
        match self {
            Self::Hermes | Self::Generic => {
                let calls = objects("name", "arguments");
                calls.iter().map(|call| format!("<tool_call>\n{call}\n</tool_call>")).collect::<Vec<_>>().join("\n")
            }
            Self::QwenCoder => each(&|name, arguments| {
                let tagged = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
                format!("<tool_call>\n<function={name}>\n{}</function>\n</tool_call>", parameters(arguments, tagged))
            })
            .join("\n"),
            Self::Glm => each(&|name, arguments| {
                let tagged =
                    |key: &str, value: &str| format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n");
                format!("<tool_call>{name}\n{}</tool_call>", parameters(arguments, tagged))
            })
            .join("\n"),
            Self::Llama => objects("name", "parameters").join("\n"),
            Self::MistralList => format!("[TOOL_CALLS][{}]", listed()),
            Self::MistralNamed => each(&|name, arguments| format!("[TOOL_CALLS]{name}[ARGS]{arguments}")).concat(),
            Self::Phi => format!("<|tool_call|>[{}]<|/tool_call|>", listed()),
            Self::DeepSeekFenced => {
                let calls = each(&|name, arguments| {
                    format!(
                        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
                    )
                });
                format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", calls.join("\n"))
            }
            Self::DeepSeek => {
                let calls = each(&|name, arguments| {
                    format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
                });
                format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", calls.concat())
            }
            Self::Harmony => each(&|name, arguments| {
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}")
            })
            .concat(),
            Self::Granite => format!("<|tool_call|>[{}]", listed()),
            Self::Command => {
                format!("<|START_ACTION|>[{}]<|END_ACTION|>", objects("tool_name", "parameters").join(", "))
            }
        }
    }

    fn all_marks(self) -> impl Iterator<Item = &'static str> {
        let marks = self.marks();
        marks.open.iter().chain(marks.ignored).copied().chain(INSIDE)
    }
}

/// Arguments as a model writes them between tags: texts as they are, all else as JSON. What is no object is one
/// parameter without a name.
fn parameters(arguments: &str, tagged: impl Fn(&str, &str) -> String) -> String {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(arguments)) => arguments
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) => tagged(key, text),
                other => tagged(key, &other.to_string()),
            })
            .collect(),
        _ => tagged("<name>", arguments),
    }
}

/// The marks that are special tokens of one vocabulary. Readers of an answer do not see such tokens, but parsers do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolMarkers {
    ids: BTreeMap<&'static str, u32>,
}

impl ToolMarkers {
    /// The markers of a format. Looks at every token once.
    pub fn of(format: ToolFormat, vocabulary: &Vocabulary) -> Self {
        let marks: BTreeMap<&[u8], &'static str> = format.all_marks().map(|mark| (mark.as_bytes(), mark)).collect();
        let known = (0..u32::try_from(vocabulary.len()).unwrap_or(u32::MAX)).filter_map(|id| {
            let mark = marks.get(vocabulary.bytes(id)).filter(|_| vocabulary.is_special(id))?;
            Some((*mark, id))
        });
        Self { ids: known.collect() }
    }

    /// The special token that is this mark.
    pub(super) fn id(&self, mark: &str) -> Option<u32> {
        self.ids.get(mark).copied()
    }

    /// The special tokens among the marks.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.ids.values().copied()
    }
}
