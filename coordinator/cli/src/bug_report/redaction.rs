//! Removes secrets, prompts and names of persons from texts of a bundle. Secrets that this machine has are removed by
//! their text, and all others by their form.

use std::path::Path;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// The text in place of a secret.
const HIDDEN: &str = "***";
/// The text in place of a prompt.
const LEFT_OUT: &str = "[left out: it may be a prompt]";
/// The shortest text that is removed wherever it stands: shorter ones are parts of words.
const SHORTEST: usize = 4;
/// Fields whose values are prompts or answers.
const PROMPTS: [&str; 9] =
    ["prompt", "messages", "content", "input", "system", "system_prompt", "text", "instructions", "chat_template"];

/// Values that are no secret whatever their name is.
const PLAIN: [&str; 9] = ["unset", "null", "none", "true", "false", "set", "missing", "default", "not needed"];

/// Forms of secrets, each with the text that is left.
static FORMS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    const NAME: &str = r#"[\w.-]*(?:api[-_]?key|secret|passw(?:or)?d|passphrase|credential|cookie|authorization|owner[-_]?key)[\w.-]*|[\w.-]*token"#;
    let forms: [(String, &'static str); 7] = [
        // The text of a private key.
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)".into(), HIDDEN),
        // The header of a request.
        (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}".into(), "$1 ***"),
        // User and password of an address: the password may have a slash that should have been escaped.
        (r#"://[^/\s"'@]*:[^\s"'@]*@|://[^/\s"'@:]+@"#.into(), "://***@"),
        // A secret in the query of an address.
        (r#"(?i)([?&](?:[\w-]*key|[\w-]*token|sig|signature|x-amz-[\w-]+)=)[^&\s"'#]+"#.into(), "$1***"),
        // An option of a command line.
        (r#"(?i)(--[\w-]*(?:key|token|password|secret)[= ]+["']?)[^\s"',\]]+"#.into(), "$1***"),
        // A name with a value, in any format.
        (format!(r#"(?i)\b((?:{NAME})["']?\s*[:=]\s*["']?)([^\s"',;&}}\]]+)"#), "$1***"),
        // Keys of known services, and tokens of JSON.
        (
            r"\b(?:sk-[\w-]{6,}|mb-[\w-]{8,}|hf_\w{6,}|gh[pousr]_\w{16,}|xox[a-z]-[\w-]{8,}|AKIA[0-9A-Z]{12,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)".into(),
            HIDDEN,
        ),
    ];
    forms.into_iter().filter_map(|(form, left)| Some((Regex::new(&form).ok()?, left))).collect()
});

/// A line of a log with a prompt or an answer in it.
static PROMPT_LINE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?i)["']?\b(?:prompt|messages|content|input|system|user|assistant|completion|text)["']?\s*[:=]\s*["'\[{<]"#,
    )
    .ok()
});

/// A name in a YAML or TOML file behind which a prompt stands.
static PROMPT_NAME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"^(\s*)(-\s+)?["']?(?:\w+\.)*(?:prompt|system|system_prompt|messages|content|instructions|chat_template)["']?\s*[:=]"#).ok()
});

/// The texts to remove.
#[derive(Clone, Default)]
pub(super) struct Redaction {
    secrets: Vec<String>,
    home: Option<String>,
    user: Option<String>,
}

impl Redaction {
    /// Removes these secrets, this home folder and this user's name.
    pub(super) fn new(secrets: impl IntoIterator<Item = String>, home: &Path, user: Option<String>) -> Self {
        let secrets = secrets.into_iter().map(|secret| secret.trim().to_owned());
        let mut secrets: Vec<String> = secrets.filter(|secret| secret.len() >= SHORTEST).collect();
        // A secret that has another in it goes first.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        let home = home.to_str().filter(|home| home.len() > 1).map(|home| home.trim_end_matches('/').to_owned());
        let user = user.filter(|user| user.len() >= SHORTEST && user != "root");
        Self { secrets, home, user }
    }

    /// The text without secrets and names.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret.as_str(), HIDDEN);
        }
        for (form, left) in FORMS.iter() {
            let hide = |found: &Captures<'_>| {
                let value = found.get(2).map_or("", |value| value.as_str());
                let mut shown = String::new();
                if PLAIN.contains(&value) {
                    shown.push_str(&found[0]);
                } else {
                    found.expand(left, &mut shown);
                }
                shown
            };
            text = form.replace_all(&text, hide).into_owned();
        }
        self.without_names(&text)
    }

    /// The lines of a log without secrets, names, prompts and answers.
    pub(super) fn log(&self, log: &str) -> String {
        let keep = |line: &str| format!("{}\n", if has_prompt(line) { LEFT_OUT } else { line });
        self.text(&log.lines().map(keep).collect::<String>())
    }

    /// A file of settings without secrets, names and prompts.
    pub(super) fn settings(&self, file: &str) -> String {
        let (mut kept, mut below): (String, Option<Prompted>) = (String::new(), None);
        for line in file.lines() {
            if let Some(prompted) = below {
                if prompted.goes_on(line) {
                    continue;
                }
                below = None;
                if prompted.is_quoted {
                    // The line with the closing quotes.
                    continue;
                }
            }
            match PROMPT_NAME.as_ref().and_then(|form| form.captures(line)) {
                Some(found) => {
                    below = Prompted::after(&found, line);
                    let name = line.split([':', '=']).next().unwrap_or_default();
                    kept.push_str(&format!("{name} # {LEFT_OUT}\n"));
                }
                None => kept.push_str(&format!("{line}\n")),
            }
        }
        self.text(&kept)
    }

    /// JSON without secrets, names, prompts and answers.
    pub(super) fn json(&self, value: &Value) -> Value {
        match value {
            // The last words of a worker may be a request.
            Value::String(text) if has_prompt(text) => Value::from(LEFT_OUT),
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.json(item)).collect()),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (self.without_names(name), self.field(name, value))).collect()
            }
            plain => plain.clone(),
        }
    }

    fn field(&self, name: &str, value: &Value) -> Value {
        let is_text = value.is_string() || value.is_array() || value.is_object();
        if PROMPTS.contains(&name) && is_text {
            return Value::from(LEFT_OUT);
        }
        match value {
            Value::String(text) if is_secret(name) && !PLAIN.contains(&text.as_str()) => Value::from(HIDDEN),
            value => self.json(value),
        }
    }

    fn without_names(&self, text: &str) -> String {
        let text = self.home.as_ref().map_or_else(|| text.to_owned(), |home| text.replace(home.as_str(), "~"));
        let Some(user) = &self.user else { return text };
        let Ok(word) = Regex::new(&format!(r"\b{}\b", regex::escape(user))) else { return text };
        word.replace_all(&text, "USER").into_owned()
    }
}

/// Whether a text may have a prompt or an answer in it.
fn has_prompt(text: &str) -> bool {
    PROMPT_LINE.as_ref().is_none_or(|form| form.is_match(text))
}

/// Whether a field of this name has a secret. Counts of tokens have none.
fn is_secret(name: &str) -> bool {
    let is_count = name.ends_with("tokens") || name.starts_with("tokens_") || name.starts_with("time_to_first");
    !is_count && model_boss_config::secrets::hidden_if_secret(name).is_some() && name != "keys" && name != "keywords"
}

/// The lines of a prompt below its name.
#[derive(Clone, Copy)]
struct Prompted {
    /// The indent of the name.
    indent: usize,
    /// Whether it ends with three quotes, as TOML writes it.
    is_quoted: bool,
}

impl Prompted {
    fn after(found: &Captures<'_>, line: &str) -> Option<Self> {
        let part = |group: usize| found.get(group).map_or(0, |part| part.len());
        let quotes = line.matches("\"\"\"").count() + line.matches("'''").count();
        // Three quotes that end in the same line have ended the prompt.
        (quotes != 2).then_some(Self { indent: part(1) + part(2), is_quoted: quotes == 1 })
    }

    fn goes_on(self, line: &str) -> bool {
        if self.is_quoted {
            return !line.contains("\"\"\"") && !line.contains("'''");
        }
        line.trim().is_empty() || line.len() - line.trim_start().len() > self.indent
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redaction() -> Redaction {
        let secrets = ["correct horse".to_owned(), "abc".to_owned()];
        Redaction::new(secrets, Path::new("/home/margaret"), Some("margaret".to_owned()))
    }

    #[test]
    fn op_1_secrets_are_removed_by_their_form() {
        for (text, shown) in [
            ("Authorization: Bearer abcdef123", "Authorization: *** ***"),
            ("got 'bearer xyz.123-4'", "got 'bearer ***'"),
            ("redis://me:pa/ss@host:6379/0", "redis://***@host:6379/0"),
            ("https://token@host/x", "https://***@host/x"),
            ("https://h/x?key=AA&b=2", "https://h/x?key=***&b=2"),
            ("https://h/x?X-Amz-Signature=AA", "https://h/x?X-Amz-Signature=***"),
            ("llama-server --api-key AA --port 1", "llama-server --api-key *** --port 1"),
            ("OPENAI_API_KEY=AA", "OPENAI_API_KEY=***"),
            ("password = \"AA\"", "password = \"***\""),
            ("{\"hf_token\":\"AA\",\"max_tokens\":5}", "{\"hf_token\":\"***\",\"max_tokens\":5}"),
            ("the key sk-abcdefgh123 is wrong", "the key *** is wrong"),
            ("hf_abcdefgh1", "***"),
            ("correct horse battery", "*** battery"),
        ] {
            assert_eq!(redaction().text(text), shown, "{text}");
        }
        let pem = "a\n-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\nb";
        assert_eq!(redaction().text(pem), "a\n***\nb");
    }

    #[test]
    fn op_1_what_is_no_secret_stays() {
        for text in [
            "loaded hf://org/name:Q4_K_M@main in 3.2 s",
            "max_tokens = 5, completion_tokens: 12, tokens_per_s=3",
            "abc is too short to be removed everywhere",
            "key_env = \"OPENAI\"",
            "api_keys = unset  # default",
            "http://127.0.0.1:8210/v1/models",
            "cuda:0 NVIDIA H100, 12.5 GiB",
        ] {
            assert_eq!(redaction().text(text), text);
        }
    }

    #[test]
    fn op_1_names_of_persons_and_their_folders_are_shortened() {
        let shown = redaction().text("/home/margaret/models of margaret, not margarete");
        assert_eq!(shown, "~/models of USER, not margarete");
    }

    #[test]
    fn op_1_prompts_in_logs_files_and_json_are_left_out() {
        let log =
            "[1] loading\n[1] {\"messages\":[{\"role\":\"user\"}]}\n[1] prompt: 'my secret love'\n[1] done in 3 s\n";
        let kept = redaction().log(log);
        assert!(kept.contains("loading") && kept.contains("done in 3 s") && !kept.contains("love"), "{kept}");
        assert_eq!(kept.matches(LEFT_OUT).count(), 2);
        let yaml = "tasks:\n  chat:\n    ladder: [guide]\n    params:\n      system: |\n        You are my love\n\n        and more\n      temperature: 0.2\n";
        let kept = redaction().settings(yaml);
        assert!(kept.contains("ladder: [guide]") && kept.contains("temperature: 0.2"), "{kept}");
        assert!(!kept.contains("love") && !kept.contains("and more"), "{kept}");
        let toml = "name = \"m\"\nchat_template = \"\"\"\nmy love\n\"\"\"\npin = true\nprompt = \"love\"\n";
        let kept = redaction().settings(toml);
        assert!(kept.contains("pin = true") && kept.contains("name = \"m\"") && !kept.contains("love"), "{kept}");
        let words = json!({ "failure": "exit code 71: {\"messages\":[\"love\"]}", "message": "m waits for memory" });
        let kept = redaction().json(&words);
        assert!(!kept.to_string().contains("love") && kept["message"] == "m waits for memory", "{kept}");
        let json = json!({ "system": "love", "api_key": "x", "prompt_tokens": 3, "n": [{ "messages": ["love"] }], "tokens": "7" });
        let kept = redaction().json(&json);
        assert_eq!(kept["prompt_tokens"], 3);
        assert_eq!((kept["api_key"].as_str(), kept["tokens"].as_str()), (Some("***"), Some("7")));
        assert!(!kept.to_string().contains("love"));
    }
}
