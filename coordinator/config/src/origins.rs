//! Sites whose pages may read answers (CORS), as an operator writes them: `https://chat.example`, `app://`.

use std::str::FromStr;

/// One entry of `allowed_origins`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPattern(String);

/// An entry that is no valid origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no origin; write a scheme and a host such as https://chat.example, a scheme such as app://, or *")]
pub struct NoOrigin(String);

impl FromStr for OriginPattern {
    type Err = NoOrigin;

    fn from_str(text: &str) -> Result<Self, NoOrigin> {
        let wrong = || NoOrigin(text.to_owned());
        let pattern = text.trim().to_ascii_lowercase();
        if ["*", "null"].contains(&pattern.as_str()) {
            return Ok(Self(pattern));
        }
        let (scheme, host) = pattern.split_once("://").ok_or_else(wrong)?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !is_scheme || host.chars().any(|c| "/?#@".contains(c) || c.is_whitespace()) {
            return Err(wrong());
        }
        match (scheme, host) {
            // A website needs a host: without one the entry would allow every site.
            ("http" | "https", "") => Err(wrong()),
            (scheme, "") => Ok(Self(format!("{scheme}://*"))),
            (scheme, host) => Ok(Self(format!("{scheme}://{host}"))),
        }
    }
}

impl OriginPattern {
    /// Whether this entry covers the `Origin` header of a browser.
    pub fn matches(&self, origin: &str) -> bool {
        self.0 == "*" || glob(&self.0, &origin.to_ascii_lowercase())
    }
}

/// Whether `text` matches `pattern`, in which `*` is any run of characters within an origin's host and port.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(before) else { return false };
    let most = rest.find(['/', '@', '?', '#']).unwrap_or(rest.len());
    (0..=most).filter(|at| rest.is_char_boundary(*at)).any(|at| glob(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_5_an_entry_means_the_origins_that_it_says() {
        for (pattern, origin, matches) in [
            ("https://chat.example", "https://chat.example", true),
            ("HTTPS://Chat.Example/", "https://chat.example", true),
            ("https://chat.example", "http://chat.example", false),
            ("https://chat.example", "https://chat.example:8443", false),
            ("https://chat.example", "https://chat.example.evil.example", false),
            ("http://localhost:*", "http://localhost:3000", true),
            ("http://localhost:*", "http://localhost.evil.example:3000", false),
            ("https://*.chat.example", "https://a.b.chat.example", true),
            ("https://*.chat.example", "https://evil.example/.chat.example", false),
            ("https://*.chat.example", "https://evil.example@x.chat.example", false),
            ("app://", "app://obsidian.md", true),
            ("app://", "apps://obsidian.md", false),
            ("tauri://localhost", "tauri://localhost", true),
            ("vscode-webview://", "vscode-webview://0a1b2c", true),
            ("vscode-webview://*", "vscode-webview://0a1b2c", true),
            ("null", "null", true),
            ("*", "https://any.example", true),
            ("app://", "null", false),
        ] {
            assert_eq!(pattern.parse::<OriginPattern>().unwrap().matches(origin), matches, "{pattern}: {origin}");
        }
    }

    #[test]
    fn op_5_what_is_no_origin_is_named() {
        for text in ["", "chat.example", "https://", "https://a/b", "https://a b", "https://x@a", "://a", "1://a"] {
            assert_eq!(text.parse::<OriginPattern>(), Err(NoOrigin(text.to_owned())));
        }
    }
}
