//! Descriptions of the formats in which models write arguments as JSON.

use super::head::HeadShape;
use super::shape::{Around, CallFormat, CallIds, CallShape, ObjectShape};

pub(super) const HARMONY: CallFormat = CallFormat {
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

/// The marks around all calls of DeepSeek's models.
const DEEP_SEEK_ALL: Around = Around(&["<｜tool▁calls▁begin｜>"], &["<｜tool▁calls▁end｜>"]);

pub(super) const DEEP_SEEK_FENCED: CallFormat = CallFormat {
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

pub(super) const DEEP_SEEK: CallFormat = CallFormat {
    known_by: &[&["tool▁call▁begin"]],
    between: &[""],
    call: CallShape::Head(HeadShape {
        ways: &[("", &["<｜tool▁sep｜>"])],
        ends: &["<｜tool▁sep｜>"],
        ..HeadShape::PLAIN
    }),
    ..DEEP_SEEK_FENCED
};

pub(super) const KIMI: CallFormat = CallFormat {
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

pub(super) const MISTRAL_NAMED: CallFormat = CallFormat {
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

pub(super) const MISTRAL_LIST: CallFormat = CallFormat {
    known_by: &[&["[TOOL_CALLS]"]],
    first: Some("[TOOL_CALLS]"),
    open: &["[TOOL_CALLS]"],
    // Models of the first vocabularies write a space behind the mark.
    all: Around(&["[TOOL_CALLS][", "[TOOL_CALLS] ["], &["]"]),
    between: &[", "],
    // Models may give their calls identifiers.
    call: CallShape::Object(ObjectShape { behind: r#"(, "id": "[a-zA-Z0-9]{9}")?"#, ..ObjectShape::PLAIN }),
    ids: CallIds::Short,
    ..CallFormat::BASE
};

pub(super) const COMMAND: CallFormat = CallFormat {
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

pub(super) const COMMAND_FENCED: CallFormat = CallFormat {
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

pub(super) const LFM_LIST: CallFormat = CallFormat {
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

pub(super) const NEMOTRON: CallFormat = CallFormat {
    known_by: &[&["<TOOLCALL>"]],
    first: Some("<TOOLCALL>"),
    open: &["<TOOLCALL>"],
    ignored: &["</TOOLCALL>"],
    all: Around(&["<TOOLCALL>["], &["]</TOOLCALL>"]),
    between: &[", "],
    ..CallFormat::BASE
};

pub(super) const PHI: CallFormat = CallFormat {
    known_by: &[&["<|tool|>", "tools"]],
    first: Some("<|tool_call|>"),
    open: &["<|tool_call|>"],
    ignored: &["<|/tool_call|>"],
    all: Around(&["<|tool_call|>["], &["]<|/tool_call|>"]),
    between: &[", "],
    ..CallFormat::BASE
};

pub(super) const GRANITE: CallFormat = CallFormat {
    known_by: &[&["<|tool_call|>"]],
    first: Some("<|tool_call|>"),
    open: &["<|tool_call|>", "<tool_call>"],
    ignored: &["</tool_call>"],
    all: Around(&["<|tool_call|>["], &["]"]),
    between: &[", "],
    ..CallFormat::BASE
};

pub(super) const HERMES: CallFormat = CallFormat {
    known_by: &[&["<tool_call>", "tools"]],
    // MiniMax-M3 has elements within elements, each behind this mark.
    unlike: &["]<]minimax[>["],
    first: Some("<tool_call>"),
    open: &["<tool_call>"],
    ignored: &["</tool_call>"],
    // Some templates write calls without lines of their own.
    each: Around(&["<tool_call>\n", "<tool_call>"], &["\n</tool_call>", "</tool_call>"]),
    between: &["\n", ""],
    ..CallFormat::BASE
};

pub(super) const LLAMA: CallFormat = CallFormat {
    known_by: &[&["<|python_tag|>"], &["ipython", "\"parameters\""]],
    open: &["<|python_tag|>"],
    ignored: &["<|eom_id|>"],
    each: Around(&["", "<|python_tag|>"], &[""]),
    call: CallShape::Object(ObjectShape { arguments: "parameters", ..ObjectShape::PLAIN }),
    // Llama's templates refuse to render more.
    several: false,
    ..CallFormat::BASE
};

pub(super) const GENERIC: CallFormat = CallFormat { known_by: &[], ..HERMES };

pub(super) const MISTRAL_IDS: CallFormat = CallFormat {
    known_by: &[&["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]],
    call: CallShape::Head(HeadShape {
        ways: &[("", &["[ARGS]"])],
        ends: &["[ARGS]", "[CALL_ID]"],
        id: Some(("[CALL_ID]", "[a-zA-Z0-9]{9}")),
        ..HeadShape::PLAIN
    }),
    ..MISTRAL_NAMED
};

pub(super) const FUNCTIONARY: CallFormat = CallFormat {
    known_by: &[&["<{start_tag}={function_name}>"], &["'<function=' +", "'</function>'"]],
    first: Some("<function="),
    open: &["<function="],
    ignored: &["</function>", "<|eom_id|>"],
    each: Around(&["<function="], &["</function>"]),
    between: &[""],
    call: CallShape::Head(HeadShape { ways: &[("", &[">"])], ends: &[">"], ..HeadShape::PLAIN }),
    ..CallFormat::BASE
};

pub(super) const FIRE_FUNCTION: CallFormat = CallFormat {
    known_by: &[&["functools["]],
    first: Some("functools["),
    open: &["functools["],
    all: Around(&["functools["], &["]"]),
    between: &[", "],
    ..CallFormat::BASE
};

pub(super) const APERTUS: CallFormat = CallFormat {
    known_by: &[&["<|tools_prefix|>"]],
    first: Some("<|tools_prefix|>"),
    open: &["<|tools_prefix|>"],
    ignored: &["<|tools_suffix|>"],
    all: Around(&["<|tools_prefix|>["], &["]<|tools_suffix|>"]),
    between: &[", "],
    call: CallShape::Object(ObjectShape { is_keyed: true, ..ObjectShape::PLAIN }),
    ..CallFormat::BASE
};

pub(super) const GIGA_CHAT: CallFormat = CallFormat {
    known_by: &[&["<|function_call|>"]],
    first: Some("<|function_call|>"),
    open: &["<|function_call|>"],
    each: Around(&["<|function_call|>"], &[""]),
    // The template renders the first call alone.
    several: false,
    ..CallFormat::BASE
};

pub(super) const TOOL_CALLS_LIST: CallFormat = CallFormat {
    known_by: &[&["<tool_calls>["]],
    first: Some("<tool_calls>"),
    open: &["<tool_calls>"],
    ignored: &["</tool_calls>"],
    // Some templates give each call a line of its own.
    all: Around(&["<tool_calls>[", "<tool_calls>[\n"], &["]</tool_calls>", "\n]</tool_calls>"]),
    between: &[", ", ",\n"],
    // Some templates write identifiers.
    call: CallShape::Object(ObjectShape {
        open: &["{", "    {"],
        behind: r#"(, "id": "[a-zA-Z0-9_-]{1,64}")?"#,
        ..ObjectShape::PLAIN
    }),
    ..CallFormat::BASE
};

pub(super) const TOOL_CALLS_LINES: CallFormat = CallFormat {
    known_by: &[&["<tool_calls>", "</tool_calls>"]],
    first: Some("<tool_calls>"),
    open: &["<tool_calls>"],
    ignored: &["</tool_calls>"],
    all: Around(&["<tool_calls>\n"], &["\n</tool_calls>"]),
    ..CallFormat::BASE
};

pub(super) const JSON_LIST: CallFormat = CallFormat {
    known_by: &[&["make calls in a single JSON array"]],
    all: Around(&["["], &["]"]),
    between: &[", "],
    ..CallFormat::BASE
};
