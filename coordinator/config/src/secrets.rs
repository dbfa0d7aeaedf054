//! Removes secrets from messages and logs: parts of addresses and values of settings that may be secret.

/// The text in place of a secret.
const HIDDEN: &str = "***";

/// Parts of the names of variables that hold secrets.
const SECRET_NAMES: [&str; 7] = ["KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE"];

/// An address, valid or not, without its user, its password and the values of its query.
pub fn without_secrets(url: &str) -> String {
    let (plain, query) = url.split_once('?').map_or((url, ""), |(plain, _)| (plain, "?***"));
    let (scheme, rest) = plain.split_once("://").map_or(("", plain), |(scheme, rest)| (scheme, rest));
    let slashes = if scheme.is_empty() { "" } else { "://" };
    // A password may hold any character, also a slash that should have been escaped.
    match rest.rsplit_once('@') {
        Some((_, place)) => format!("{scheme}{slashes}{HIDDEN}@{place}{query}"),
        None => format!("{scheme}{slashes}{rest}{query}"),
    }
}

/// Whether a variable of this name probably holds a secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// The text in place of the value of a field of this name, if that probably holds a secret.
pub fn hidden_if_secret(name: &str) -> Option<&'static str> {
    is_secret_name(name).then_some(HIDDEN)
}

/// A text of another program that was given a secret, without the secret.
pub fn without(text: &str, secret: &str) -> String {
    if secret.is_empty() { text.to_owned() } else { text.replace(secret, HIDDEN) }
}

/// The text in place of the value of a variable that holds a secret.
pub fn hidden() -> String {
    HIDDEN.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_what_opens_them() {
        for (url, shown) in [
            ("https://api.example/v1", "https://api.example/v1"),
            ("https://me:pa/ss@api.example:1/v1?key=sk-1", "https://***@api.example:1/v1?***"),
            ("me:secret@host", "***@host"),
            ("ftp://a?b=c@d", "ftp://a?***"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(url), shown);
        }
    }

    #[test]
    fn names_tell_secrets() {
        for (name, is) in
            [("HF_TOKEN", true), ("api_key", true), ("PGPASSWORD", true), ("HOME", false), ("PORT", false)]
        {
            assert_eq!(is_secret_name(name), is, "{name}");
        }
        assert_eq!(without("no such key: sk-1", "sk-1"), "no such key: ***");
        assert_eq!(without("text", ""), "text");
    }
}
