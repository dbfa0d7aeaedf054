//! Descriptions of the formats in which arguments are between tags, or in a notation of their own.

use super::json_formats::LFM_LIST;
use super::notation;
use super::shape::{Around, CallFormat, CallShape};
use super::xml_call::Tags;

pub(super) const QWEN_CODER: CallFormat = CallFormat {
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
        kinds: None,
        padding: "\n",
        behind_value: "\n",
        is_trimmed: true,
        ends: &["</function>", "</tool_call>"],
        has_python_words: true,
    }),
    ..CallFormat::BASE
};

pub(super) const SEED: CallFormat = CallFormat {
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
        kinds: None,
        padding: "",
        behind_value: "\n",
        is_trimmed: false,
        ends: &["</function>", "</seed:tool_call>"],
        has_python_words: true,
    }),
    ..CallFormat::BASE
};

pub(super) const MINI_MAX: CallFormat = CallFormat {
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
        kinds: None,
        padding: "",
        behind_value: "\n",
        is_trimmed: false,
        ends: &["</invoke>", "</minimax:tool_call>"],
        has_python_words: false,
    }),
    ..CallFormat::BASE
};

pub(super) const GLM: CallFormat = CallFormat {
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
        kinds: None,
        padding: "",
        behind_value: "\n",
        is_trimmed: true,
        ends: &["</tool_call>"],
        has_python_words: false,
    }),
    ..CallFormat::BASE
};

pub(super) const GLM_TIGHT: CallFormat = CallFormat {
    known_by: &[&["</arg_key><arg_value>"], &["\"</arg_key>\" -}}"]],
    between: &[""],
    call: CallShape::Tags(Tags {
        head_end: "",
        behind_head: "",
        key: ("<arg_key>", "</arg_key>"),
        between: "",
        value: ("<arg_value>", "</arg_value>"),
        kinds: None,
        padding: "",
        behind_value: "",
        is_trimmed: false,
        ends: &["</tool_call>"],
        has_python_words: false,
    }),
    ..GLM
};

pub(super) const DEEP_SEEK_MARKUP: CallFormat = CallFormat {
    known_by: &[&["｜DSML｜", "function_calls>"]],
    first: Some("<｜DSML｜function_calls>"),
    open: &["<｜DSML｜invoke name=\""],
    ignored: &["<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "</｜DSML｜invoke>"],
    all: Around(&["<｜DSML｜function_calls>\n"], &["</｜DSML｜function_calls>"]),
    each: Around(&["<｜DSML｜invoke name=\""], &["\n"]),
    between: &[""],
    call: CallShape::Tags(Tags {
        head_end: "\">",
        behind_head: "\n",
        key: ("<｜DSML｜parameter name=\"", "\""),
        between: "",
        value: ("", "</｜DSML｜parameter>"),
        kinds: Some([" string=\"true\">", " string=\"false\">"]),
        padding: "",
        behind_value: "\n",
        is_trimmed: false,
        ends: &["</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
        has_python_words: false,
    }),
    ..CallFormat::BASE
};

pub(super) const DEEP_SEEK_MARKUP_4: CallFormat = CallFormat {
    known_by: &[&["｜DSML｜", "tool_calls>"]],
    first: Some("<｜DSML｜tool_calls>"),
    ignored: &["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "</｜DSML｜invoke>"],
    all: Around(&["<｜DSML｜tool_calls>\n"], &["</｜DSML｜tool_calls>"]),
    ..DEEP_SEEK_MARKUP
};

pub(super) const FUNCTION_GEMMA: CallFormat = CallFormat {
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

pub(super) const GEMMA: CallFormat = CallFormat {
    known_by: &[&["<|tool_call>", "<tool_call|>"]],
    first: Some("<|tool_call>"),
    open: &["<|tool_call>"],
    ignored: &["<tool_call|>", "<|tool_response>"],
    inside: &["<|\"|>"],
    each: Around(&["<|tool_call>"], &["<tool_call|>"]),
    call: CallShape::Notation(notation::GEMMA),
    ..FUNCTION_GEMMA
};

pub(super) const LFM: CallFormat = CallFormat {
    known_by: &[&["<|tool_call_start|>"], &["<|tool_list_start|>"], &["List of tools: ["]],
    call: CallShape::Notation(notation::PYTHON),
    ..LFM_LIST
};

pub(super) const PYTHON_LIST: CallFormat = CallFormat {
    known_by: &[&["[func_name1(params_name1="]],
    ignored: &["<|python_start|>", "<|python_end|>"],
    all: Around(&["["], &["]"]),
    between: &[", "],
    call: CallShape::Notation(notation::PYTHON),
    ..CallFormat::BASE
};
