//! The formats in which models write calls, one description each: its marks, the shape of a call, and the words by
//! which it is recognised in a chat template. Parsers, grammars and prompts all work from these descriptions.

use serde::{Deserialize, Serialize};

use super::head::HeadShape;
use super::notation;
use super::shape::{Around, CallFormat, CallIds, CallShape, ObjectShape};
use super::xml_call::Tags;

const HARMONY: CallFormat = CallFormat {
    known_by: &[&["<|channel|>", "commentary"]],
    first: Some("<|channel|>"),
    open: &["<|channel|>", "<|start|>"],
    ignored: &["<|end|>", "<|call|>", "<|return|>"],
    inside: &["<|message|>", "<|constrain|>"],
    call: CallShape::Head(HeadShape {
        // The recipient comes before or behind the channel: the template writes the one, models both.
        ways: &[
            (
                "<|channel|>commentary to=functions.",
                &[" <|constrain|>json<|message|>", " json<|message|>", "<|message|>"],
            ),
            (
                " to=functions.",
                &[
                    "<|channel|>commentary <|constrain|>json<|message|>",
                    "<|channel|>commentary json<|message|>",
                    "<|channel|>commentary<|message|>",
                ],
            ),
        ],
        name_behind: "to=",
        prefix: "functions.",
        ends: &[" ", "<"],
        in_channels: true,
        ..HeadShape::PLAIN
    }),
    several: false,
    ..CallFormat::BASE
};

const QWEN_CODER: CallFormat = CallFormat {
    known_by: &[&["<function=", "<parameter="]],
    first: Some("<tool_call>"),
    open: &["<function="],
    ignored: &["<tool_call>", "</tool_call>", "</function>"],
    each: Around(&["<tool_call>\n<function="], &["\n</tool_call>"]),
    call: CallShape::Tags(Tags {
        head_end: ">",
        behind_head: "\n",
        key: ("<parameter=", ">"),
        between: "",
        value: ("", "</parameter>"),
        padding: "\n",
        behind_value: "\n",
        is_trimmed: true,
        ends: &["</function>", "</tool_call>"],
        has_python_words: true,
    }),
    ..CallFormat::BASE
};

const SEED: CallFormat = CallFormat {
    known_by: &[&["<seed:tool_call>"]],
    first: Some("<seed:tool_call>"),
    open: &["<function="],
    ignored: &["<seed:tool_call>", "</seed:tool_call>", "</function>"],
    each: Around(&["<seed:tool_call>\n<function="], &["\n</seed:tool_call>"]),
    call: CallShape::Tags(Tags {
        head_end: ">",
        behind_head: "\n",
        key: ("<parameter=", ">"),
        between: "",
        value: ("", "</parameter>"),
        padding: "",
        behind_value: "\n",
        is_trimmed: false,
        ends: &["</function>", "</seed:tool_call>"],
        has_python_words: true,
    }),
    ..CallFormat::BASE
};

const MINI_MAX: CallFormat = CallFormat {
    known_by: &[&["<minimax:tool_call>"]],
    first: Some("<minimax:tool_call>"),
    open: &["<invoke name=\""],
    ignored: &["<minimax:tool_call>", "</minimax:tool_call>", "</invoke>"],
    all: Around(&["<minimax:tool_call>\n"], &["</minimax:tool_call>"]),
    each: Around(&["<invoke name=\""], &["\n"]),
    between: &[""],
    call: CallShape::Tags(Tags {
        head_end: "\">",
        behind_head: "\n",
        key: ("<parameter name=\"", "\">"),
        between: "",
        value: ("", "</parameter>"),
        padding: "",
        behind_value: "\n",
        is_trimmed: false,
        ends: &["</invoke>", "</minimax:tool_call>"],
        has_python_words: false,
    }),
    ..CallFormat::BASE
};

const GLM: CallFormat = CallFormat {
    known_by: &[&["<arg_key>"]],
    first: Some("<tool_call>"),
    open: &["<tool_call>"],
    ignored: &["</tool_call>"],
    each: Around(&["<tool_call>"], &[""]),
    call: CallShape::Tags(Tags {
        head_end: "\n",
        behind_head: "",
        key: ("<arg_key>", "</arg_key>"),
        between: "\n",
        value: ("<arg_value>", "</arg_value>"),
        padding: "",
        behind_value: "\n",
        is_trimmed: true,
        ends: &["</tool_call>"],
        has_python_words: false,
    }),
    ..CallFormat::BASE
};

/// The marks around all calls of DeepSeek's models.
const DEEP_SEEK_ALL: Around = Around(&["<｜tool▁calls▁begin｜>"], &["<｜tool▁calls▁end｜>"]);

const DEEP_SEEK_FENCED: CallFormat = CallFormat {
    known_by: &[&["tool▁call▁begin", "```json"]],
    first: Some("<｜tool▁calls▁begin｜>"),
    open: &["<｜tool▁call▁begin｜>"],
    ignored: &["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"],
    inside: &["<｜tool▁sep｜>"],
    all: DEEP_SEEK_ALL,
    each: Around(&["<｜tool▁call▁begin｜>"], &["<｜tool▁call▁end｜>"]),
    call: CallShape::Head(HeadShape {
        ways: &[("function<｜tool▁sep｜>", &["\n```json\n"])],
        name_behind: "<｜tool▁sep｜>",
        ends: &["```"],
        close: "\n```",
        ..HeadShape::PLAIN
    }),
    ..CallFormat::BASE
};

const DEEP_SEEK: CallFormat = CallFormat {
    known_by: &[&["tool▁call▁begin"]],
    between: &[""],
    call: CallShape::Head(HeadShape {
        ways: &[("", &["<｜tool▁sep｜>"])],
        ends: &["<｜tool▁sep｜>"],
        ..HeadShape::PLAIN
    }),
    ..DEEP_SEEK_FENCED
};

const KIMI: CallFormat = CallFormat {
    known_by: &[&["<|tool_calls_section_begin|>"], &["<|im_system|>tool_declare"]],
    first: Some("<|tool_calls_section_begin|>"),
    open: &["<|tool_call_begin|>"],
    ignored: &["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_end|>"],
    inside: &["<|tool_call_argument_begin|>"],
    all: Around(&["<|tool_calls_section_begin|>"], &["<|tool_calls_section_end|>"]),
    each: Around(&["<|tool_call_begin|>"], &["<|tool_call_end|>"]),
    between: &[""],
    call: CallShape::Head(HeadShape {
        ways: &[("functions.", &["<|tool_call_argument_begin|>"])],
        prefix: "functions.",
        ends: &["<|tool_call_argument_begin|>"],
        is_numbered: true,
        ..HeadShape::PLAIN
    }),
    ids: CallIds::Numbered,
    ..CallFormat::BASE
};

const MISTRAL_NAMED: CallFormat = CallFormat {
    known_by: &[&["[TOOL_CALLS]", "[ARGS]"]],
    first: Some("[TOOL_CALLS]"),
    open: &["[TOOL_CALLS]"],
    inside: &["[ARGS]", "[CALL_ID]"],
    each: Around(&["[TOOL_CALLS]"], &[""]),
    between: &[""],
    call: CallShape::Head(HeadShape { ways: &[("", &["[ARGS]"])], ends: &["[ARGS]", "[CALL_ID]"], ..HeadShape::PLAIN }),
    ids: CallIds::Short,
    ..CallFormat::BASE
};

const MISTRAL_LIST: CallFormat = CallFormat {
    known_by: &[&["[TOOL_CALLS]"]],
    first: Some("[TOOL_CALLS]"),
    open: &["[TOOL_CALLS]"],
    all: Around(&["[TOOL_CALLS]["], &["]"]),
    between: &[", "],
    // Models may give their calls identifiers.
    call: CallShape::Object(ObjectShape { behind: r#"(, "id": "[a-zA-Z0-9]{9}")?"#, ..ObjectShape::PLAIN }),
    ids: CallIds::Short,
    ..CallFormat::BASE
};

const COMMAND: CallFormat = CallFormat {
    known_by: &[&["<|START_ACTION|>"]],
    first: Some("<|START_ACTION|>"),
    open: &["<|START_ACTION|>"],
    ignored: &["<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
    // Some templates give each call a line of its own.
    all: Around(&["<|START_ACTION|>[", "<|START_ACTION|>[\n    "], &["]<|END_ACTION|>", "\n]<|END_ACTION|>"]),
    between: &[", ", ",\n    "],
    call: CallShape::Object(ObjectShape {
        name: "tool_name",
        arguments: "parameters",
        // Models may number their calls.
        before: r#"("tool_call_id": "[0-9]{1,3}", )?"#,
        ..ObjectShape::PLAIN
    }),
    ..CallFormat::BASE
};

const COMMAND_FENCED: CallFormat = CallFormat {
    known_by: &[&["Action:", "```json", "tool_name"]],
    first: Some("Action: ```json"),
    open: &["Action: ```json"],
    // Some templates write the list without lines.
    all: Around(&["Action: ```json\n[\n    ", "Action: ```json\n["], &["\n]```", "\n]\n```", "]```", "]\n```"]),
    between: &[",\n    ", ", "],
    call: CallShape::Object(ObjectShape {
        open: &["{\n        ", "{"],
        name: "tool_name",
        between: &[",\n        ", ", "],
        arguments: "parameters",
        close: &["\n    }", "}"],
        fence: "```",
        ..ObjectShape::PLAIN
    }),
    is_spaced: true,
    ..CallFormat::BASE
};

const FUNCTION_GEMMA: CallFormat = CallFormat {
    known_by: &[&["<start_function_call>"]],
    first: Some("<start_function_call>"),
    open: &["<start_function_call>"],
    ignored: &["<end_function_call>", "<start_function_response>"],
    inside: &["<escape>"],
    each: Around(&["<start_function_call>"], &["<end_function_call>"]),
    between: &[""],
    call: CallShape::Notation(notation::FUNCTION_GEMMA),
    ..CallFormat::BASE
};

const GEMMA: CallFormat = CallFormat {
    known_by: &[&["<|tool_call>", "<tool_call|>"]],
    first: Some("<|tool_call>"),
    open: &["<|tool_call>"],
    ignored: &["<tool_call|>", "<|tool_response>"],
    inside: &["<|\"|>"],
    each: Around(&["<|tool_call>"], &["<tool_call|>"]),
    call: CallShape::Notation(notation::GEMMA),
    ..FUNCTION_GEMMA
};

const LFM_LIST: CallFormat = CallFormat {
    known_by: &[&["<|tool_call_start|>", "{\"name\": "]],
    first: Some("<|tool_call_start|>"),
    open: &["<|tool_call_start|>"],
    ignored: &["<|tool_call_end|>"],
    all: Around(&["<|tool_call_start|>["], &["]<|tool_call_end|>"]),
    between: &[", "],
    // Models may give their calls identifiers.
    call: CallShape::Object(ObjectShape { behind: r#"(, "id": "[a-zA-Z0-9_-]{1,64}")?"#, ..ObjectShape::PLAIN }),
    ..CallFormat::BASE
};

const LFM: CallFormat = CallFormat {
    known_by: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"]],
    call: CallShape::Notation(notation::PYTHON),
    ..LFM_LIST
};

const NEMOTRON: CallFormat = CallFormat {
    known_by: &[&["<TOOLCALL>"]],
    first: Some("<TOOLCALL>"),
    open: &["<TOOLCALL>"],
    ignored: &["</TOOLCALL>"],
    all: Around(&["<TOOLCALL>["], &["]</TOOLCALL>"]),
    between: &[", "],
    ..CallFormat::BASE
};

const PHI: CallFormat = CallFormat {
    known_by: &[&["<|tool|>", "tools"]],
    first: Some("<|tool_call|>"),
    open: &["<|tool_call|>"],
    ignored: &["<|/tool_call|>"],
    all: Around(&["<|tool_call|>["], &["]<|/tool_call|>"]),
    between: &[", "],
    ..CallFormat::BASE
};

const GRANITE: CallFormat = CallFormat {
    known_by: &[&["<|tool_call|>"]],
    first: Some("<|tool_call|>"),
    open: &["<|tool_call|>", "<tool_call>"],
    ignored: &["</tool_call>"],
    all: Around(&["<|tool_call|>["], &["]"]),
    between: &[", "],
    ..CallFormat::BASE
};

const HERMES: CallFormat = CallFormat {
    known_by: &[&["<tool_call>", "tools"]],
    first: Some("<tool_call>"),
    open: &["<tool_call>"],
    ignored: &["</tool_call>"],
    each: Around(&["<tool_call>\n"], &["\n</tool_call>"]),
    ..CallFormat::BASE
};

const LLAMA: CallFormat = CallFormat {
    known_by: &[&["<|python_tag|>"], &["ipython", "\"parameters\""]],
    open: &["<|python_tag|>"],
    ignored: &["<|eom_id|>"],
    each: Around(&["", "<|python_tag|>"], &[""]),
    call: CallShape::Object(ObjectShape { arguments: "parameters", ..ObjectShape::PLAIN }),
    // Llama's templates refuse to render more.
    several: false,
    ..CallFormat::BASE
};

const GENERIC: CallFormat = CallFormat { known_by: &[], ..HERMES };

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
    /// GLM 4.5 and 4.6: keys and values between tags.
    Glm = GLM,
    /// DeepSeek R1 and V3: JSON in a fenced block.
    DeepSeekFenced = DEEP_SEEK_FENCED,
    /// DeepSeek V3.1: a name and JSON.
    DeepSeek = DEEP_SEEK,
    /// Kimi-K2: a name with a number, and JSON.
    Kimi = KIMI,
    /// Mistral since Small 3.2: a name, `[ARGS]` and JSON behind `[TOOL_CALLS]`.
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
        let found = Self::ALL.iter().find(|format| format.row().known_by.iter().any(has_all));
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

    /// The marks of the format.
    pub(super) fn marks(self) -> impl Iterator<Item = &'static str> {
        let CallFormat { open, ignored, inside, .. } = self.row();
        open.iter().chain(*ignored).chain(*inside).copied()
    }
}
