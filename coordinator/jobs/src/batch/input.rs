//! The file of a batch: every line is checked before any is sent, and afterwards only the places of the lines are
//! remembered.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{self, BufRead, Read};

use super::line::{BatchRules, LineFault, read_line};
use super::record::{BatchLineError, MAX_LINE_ERRORS};

/// The most models of one batch. Lines of further ones are sent with the last.
const MAX_MODELS: usize = 1_000;

/// The place of one line in the file: 16 bytes for each, so that a batch of 50,000 lines takes less than a megabyte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSpot {
    /// The place of its first byte.
    pub offset: u64,
    /// Its bytes, without the end of the line.
    pub length: u32,
    /// The model that it names, by its first mention.
    model: u16,
    /// Whether it is answered.
    pub is_done: bool,
}

/// The lines of a batch.
#[derive(Debug, Default)]
pub struct LinePlan {
    spots: Vec<LineSpot>,
    /// The lines by a digest of their `custom_id`, which differ: a line whose digest another one has is refused.
    by_id: HashMap<u64, u32>,
    digests: RandomState,
    /// The model, if all lines name the same.
    only_model: Option<String>,
}

/// The result of a check of a file.
#[derive(Debug)]
pub enum ValidatedInput {
    /// Every line is a request.
    Good(LinePlan),
    /// Some lines are not.
    Bad(Vec<BatchLineError>),
}

impl LinePlan {
    /// The number of lines.
    pub fn total(&self) -> usize {
        self.spots.len()
    }

    /// The model, if all lines name the same.
    pub fn only_model(&self) -> Option<&str> {
        self.only_model.as_deref()
    }

    /// A line.
    pub fn spot(&self, index: usize) -> Option<LineSpot> {
        self.spots.get(index).copied()
    }

    /// Marks the line of this `custom_id` as answered. Returns whether there is one that was not.
    pub fn done(&mut self, custom_id: &str) -> bool {
        let index = self.by_id.get(&self.digests.hash_one(custom_id)).and_then(|index| usize::try_from(*index).ok());
        let spot = index.and_then(|index| self.spots.get_mut(index));
        spot.is_some_and(|spot| !std::mem::replace(&mut spot.is_done, true))
    }

    /// The lines that are not answered, those of one model after those of another, so that models take no turns.
    pub fn open_by_model(&self) -> Vec<u32> {
        let is_open = |index: &u32| self.of(*index).is_some_and(|spot| !spot.is_done);
        let all = 0..u32::try_from(self.spots.len()).unwrap_or(u32::MAX);
        let mut open: Vec<u32> = all.filter(is_open).collect();
        open.sort_by_key(|index| self.of(*index).map_or(0, |spot| spot.model));
        open
    }

    /// A number for the model of a line, the same for all lines of that model.
    pub fn model_of(&self, index: u32) -> u16 {
        self.of(index).map_or(0, |spot| spot.model)
    }

    fn of(&self, index: u32) -> Option<&LineSpot> {
        self.spots.get(usize::try_from(index).ok()?)
    }
}

/// Checks a file. It is read once, and no more than one line of it is in memory.
pub fn scan_input(mut input: impl BufRead, rules: &BatchRules) -> io::Result<ValidatedInput> {
    let (mut plan, mut errors) = (LinePlan::default(), Vec::new());
    let mut models: HashMap<String, u16> = HashMap::new();
    let (mut offset, mut number, mut line) = (0_u64, 0_usize, Vec::new());
    let most = rules.line_bytes.saturating_add(2) as u64;
    loop {
        line.clear();
        let read = input.by_ref().take(most).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        number = number.saturating_add(1);
        let whole = line.strip_suffix(b"\n").unwrap_or(&line);
        let content = whole.strip_suffix(b"\r").unwrap_or(whole);
        let content = if offset == 0 { content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content) } else { content };
        let fault = |code, message: String| LineFault { code, message, param: None };
        if content.len() > rules.line_bytes {
            let message = format!("the line is longer than {} bytes", rules.line_bytes);
            errors.push(error(number, fault("line_too_long", message)));
            break;
        }
        if content.iter().any(|byte| !byte.is_ascii_whitespace()) {
            let skipped = (content.as_ptr() as usize).saturating_sub(line.as_ptr() as usize) as u64;
            let spot = |model| LineSpot {
                offset: offset.saturating_add(skipped),
                length: u32::try_from(content.len()).unwrap_or(u32::MAX),
                model,
                is_done: false,
            };
            match read_line(content, rules) {
                Err(wrong) => errors.push(error(number, wrong)),
                Ok(read) => {
                    let digest = plan.digests.hash_one(&read.custom_id);
                    let index = u32::try_from(plan.spots.len()).unwrap_or(u32::MAX);
                    if plan.by_id.insert(digest, index).is_some() {
                        let message = format!("the custom_id '{}' is that of an earlier line", read.custom_id);
                        errors.push(error(
                            number,
                            LineFault { param: Some("custom_id"), ..fault("duplicate_custom_id", message) },
                        ));
                    }
                    let known = u16::try_from(models.len().min(MAX_MODELS)).unwrap_or(u16::MAX);
                    let model = match models.get(read.model.as_deref().unwrap_or_default()) {
                        Some(model) => *model,
                        None if models.len() >= MAX_MODELS => known,
                        None => *models.entry(read.model.unwrap_or_default()).or_insert(known),
                    };
                    plan.spots.push(spot(model));
                }
            }
            if plan.spots.len() > rules.lines {
                let message = format!("the file has more than {} lines; split it", rules.lines);
                errors.push(error(number, fault("too_many_lines", message)));
                break;
            }
        }
        if errors.len() >= MAX_LINE_ERRORS {
            break;
        }
        offset = offset.saturating_add(read as u64);
    }
    if errors.is_empty() && plan.spots.is_empty() {
        let message = "the file has no lines; each line is a request".to_owned();
        errors.push(BatchLineError { line: None, ..error(0, LineFault { code: "empty_file", message, param: None }) });
    }
    if models.len() == 1 {
        plan.only_model = models.into_keys().next().filter(|model| !model.is_empty());
    }
    Ok(if errors.is_empty() { ValidatedInput::Good(plan) } else { ValidatedInput::Bad(errors) })
}

fn error(number: usize, fault: LineFault) -> BatchLineError {
    let LineFault { code, message, param } = fault;
    let (code, param) = (code.to_owned(), param.map(str::to_owned));
    BatchLineError { code, message: format!("line {number}: {message}"), line: Some(number), param }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> BatchRules {
        BatchRules { endpoint: "/v1/chat/completions".to_owned(), lines: 10, line_bytes: 200 }
    }

    fn line(id: &str, model: &str) -> String {
        format!(
            r#"{{"custom_id":"{id}","method":"POST","url":"/v1/chat/completions","body":{{"model":"{model}","messages":[]}}}}"#
        )
    }

    fn scan(text: &str) -> ValidatedInput {
        scan_input(text.as_bytes(), &rules()).unwrap()
    }

    fn errors(text: &str) -> Vec<(String, Option<usize>)> {
        match scan(text) {
            ValidatedInput::Good(plan) => panic!("{plan:?} of {text}"),
            ValidatedInput::Bad(errors) => errors.into_iter().map(|error| (error.code, error.line)).collect(),
        }
    }

    #[test]
    fn rc_26_lines_are_found_again_and_grouped_by_model() {
        let text = format!("\u{feff}{}\r\n\n{}\n{}", line("1", "a"), line("2", "b"), line("3", "a"));
        let ValidatedInput::Good(mut plan) = scan(&text) else { panic!("{text}") };
        let at = |plan: &LinePlan, index: u32| {
            let spot = plan.spot(index as usize).unwrap();
            let start = usize::try_from(spot.offset).unwrap();
            read_line(&text.as_bytes()[start..start + spot.length as usize], &rules()).unwrap().custom_id
        };
        assert_eq!(plan.open_by_model().into_iter().map(|index| at(&plan, index)).collect::<Vec<_>>(), ["1", "3", "2"]);
        assert!(plan.done("3") && !plan.done("3") && !plan.done("4"));
        assert_eq!(plan.open_by_model(), [0, 1]);
        assert_eq!((plan.total(), plan.only_model()), (3, None));
        let ValidatedInput::Good(plan) = scan(&line("1", "a")) else { panic!("one line") };
        assert_eq!(plan.only_model(), Some("a"));
    }

    #[test]
    fn rc_26_every_fault_of_a_file_is_named_with_its_line() {
        let good = line("1", "a");
        let cases = [
            ("", vec![("empty_file", None)]),
            (" \n\n", vec![("empty_file", None)]),
            ("{", vec![("invalid_json_line", Some(1))]),
            ("[]", vec![("invalid_json_line", Some(1))]),
            ("{}", vec![("missing_required_parameter", Some(1))]),
        ];
        for (text, expected) in cases {
            let expected: Vec<_> = expected.into_iter().map(|(code, line)| (code.to_owned(), line)).collect();
            assert_eq!(errors(text), expected, "{text}");
        }
        for (from, to, code) in [
            ("POST", "GET", "invalid_method"),
            ("/v1/chat/completions", "/v1/embeddings", "mismatched_url"),
            ("{\"model\":\"a\",\"messages\":[]}", "[]", "invalid_body"),
            ("\"messages\"", "\"stream\":true,\"messages\"", "invalid_body"),
            ("\"1\"", "\"\"", "missing_required_parameter"),
        ] {
            let text = format!("{}\n{}\n", line("0", "a"), good.replace(from, to));
            assert_eq!(errors(&text), [(code.to_owned(), Some(2))], "{text}");
        }
        assert_eq!(errors(&format!("{good}\n{good}")), [("duplicate_custom_id".to_owned(), Some(2))]);
        for (text, param, message) in [
            (good.replace("\"1\"", "5"), Some("custom_id"), "'custom_id': invalid type: integer `5`"),
            (good.replace("\"POST\"", "true"), Some("method"), "'method': invalid type: boolean `true`"),
            ("[]".to_owned(), None, "the line is not a JSON object"),
            (format!("{good} {{}}"), None, "trailing characters"),
        ] {
            let ValidatedInput::Bad(errors) = scan(&text) else { panic!("{text}") };
            assert_eq!(errors[0].param.as_deref(), param, "{text}");
            assert!(errors[0].message.contains(message), "{text}: {}", errors[0].message);
        }
        let many: String = (0..11).map(|n| line(&n.to_string(), "a") + "\n").collect();
        assert_eq!(errors(&many), [("too_many_lines".to_owned(), Some(11))]);
        let long = format!("{good}\n{}", " ".repeat(1_000_000));
        assert_eq!(errors(&long), [("line_too_long".to_owned(), Some(2))]);
        let bad = "{\n".repeat(1_000_000);
        assert_eq!(errors(&bad).len(), MAX_LINE_ERRORS);
    }
}
