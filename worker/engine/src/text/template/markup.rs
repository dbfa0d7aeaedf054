//! Text marked `safe`. No chat template wants it escaped, but models were trained on prompts rendered so.

/// MarkupSafe's five replacements.
pub(super) fn escaped(text: &str) -> String {
    let amp = text.replace('&', "&amp;");
    amp.replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&#34;")
}
