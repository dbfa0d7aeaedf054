//! Calls of tools: the formats in which models write them, an incremental parser for each, and grammars that keep the
//! arguments valid from the moment a call begins. Knows no HTTP and no chat template.

mod altered;
mod branches;
mod distinct;
mod event;
mod format;
mod grammar;
mod head;
mod holds;
mod joined;
mod json_call;
mod json_formats;
mod markers;
mod narrow;
mod notation;
mod notation_rules;
mod numbers;
mod parameters;
mod parser;
mod rules;
mod schemas;
mod shape;
mod spaced;
mod tagged_formats;
mod tagged_rules;
#[cfg(test)]
mod tests;
mod values;
mod written;
mod xml_call;

pub use event::ToolEvent;
pub use format::ToolFormat;
pub use grammar::{Tool, ToolChoice, ToolGrammarError, ToolPlan, behind_spelled_thoughts, lenient_form};
pub use markers::ToolMarkers;
pub use parser::ToolParser;
pub use shape::CallIds;
