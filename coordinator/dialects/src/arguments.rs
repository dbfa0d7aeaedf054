//! Arguments of a tool's call, as they arrive in pieces.

use serde::de::IgnoredAny;

/// Whether nothing is missing: arguments are an object of JSON.
pub(crate) fn is_whole(arguments: &str) -> bool {
    let arguments = arguments.trim();
    let is_object = arguments.starts_with('{') && arguments.ends_with('}');
    is_object && serde_json::from_str::<IgnoredAny>(arguments).is_ok()
}

#[cfg(test)]
mod tests {
    use super::is_whole;

    #[test]
    fn arguments_are_whole_at_the_end_of_their_object() {
        for whole in ["{}", " {\"a\":{}}\n"] {
            assert!(is_whole(whole), "{whole}");
        }
        for part in ["", "{", "{\"a\":{}", "{\"a\":\"}", "[]", "7", "{} {}"] {
            assert!(!is_whole(part), "{part}");
        }
    }
}
