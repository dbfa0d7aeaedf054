//! Texts as literals of a grammar.

use serde_json::Value;

/// A text as a literal of Lark. Characters without a spelling inside a literal are spelled by their code.
pub(crate) fn literal(text: &str) -> String {
    // Lark's literals are JSON's.
    let json = Value::String(text.to_owned()).to_string();
    json.replace('\u{7f}', "\\u007f")
}
