//! The findings as text and as JSON.

use std::io::{self, Write};

use model_boss_host::terminal::{Code, Terminal};
use serde_json::{Value, json};

use super::finding::{Finding, Grade};

/// The width of texts; longer ones continue on the next line.
const WIDTH: usize = 110;
/// The indent of reasons and remedies.
const INDENT: usize = 10;

/// The findings as JSON.
pub(crate) fn as_json(findings: &[Finding]) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "result": worst(findings),
        "counts": {
            "ok": count(findings, Grade::Ok), "note": count(findings, Grade::Note),
            "warning": count(findings, Grade::Warning), "failure": count(findings, Grade::Failure),
        },
        "findings": findings,
    })
}

/// The worst result; `ok` without findings.
pub(crate) fn worst(findings: &[Finding]) -> Grade {
    findings.iter().map(|finding| finding.result).max().unwrap_or(Grade::Ok)
}

fn count(findings: &[Finding], grade: Grade) -> usize {
    findings.iter().filter(|finding| finding.result == grade).count()
}

/// Writes the findings in groups. Only a terminal gets bold and faint text.
pub(crate) fn write<W: Write>(out: &mut Terminal<W>, findings: &[Finding], is_terminal: bool) -> io::Result<()> {
    let mut last = None;
    for finding in findings {
        if last != Some(finding.area) {
            let gap = if last.is_some() { "\n" } else { "" };
            out.write_all(gap.as_bytes())?;
            styled(out, Code::Bold, is_terminal, finding.area.title())?;
            out.write_all(b"\n")?;
            last = Some(finding.area);
        }
        let word = match finding.result {
            Grade::Ok => "ok",
            Grade::Note => "note",
            Grade::Warning => "warning",
            Grade::Failure => "FAILURE",
        };
        let style = if finding.result >= Grade::Warning { Code::Bold } else { Code::Dim };
        out.write_all(b"  ")?;
        styled(out, style, is_terminal, &format!("{word:<8}"))?;
        out.write_all(format!("{}\n", wrapped(&finding.found, INDENT)).as_bytes())?;
        if finding.result == Grade::Ok {
            continue;
        }
        for (label, text) in [("why", &finding.why), ("to do", &finding.to_do)] {
            if let Some(text) = text {
                let line = wrapped(&format!("{label}: {text}"), INDENT + 2);
                out.write_all(format!("{}{line}\n", " ".repeat(INDENT + 2)).as_bytes())?;
            }
        }
    }
    out.write_all(format!("\n{}\n", summary(findings)).as_bytes())
}

fn styled<W: Write>(out: &mut Terminal<W>, code: Code, is_terminal: bool, text: &str) -> io::Result<()> {
    if !is_terminal {
        return out.write_all(text.as_bytes());
    }
    out.code(code)?;
    out.write_all(text.as_bytes())?;
    out.code(Code::Plain)
}

/// The last line of the text.
fn summary(findings: &[Finding]) -> String {
    let of = |grade, one: &str| match count(findings, grade) {
        1 => format!("1 {one}"),
        many => format!("{many} {one}s"),
    };
    let (failures, warnings) = (of(Grade::Failure, "failure"), of(Grade::Warning, "warning"));
    format!("{} checks: {failures}, {warnings}, {}", findings.len(), of(Grade::Note, "note"))
}

/// The text in lines of at most [`WIDTH`] columns, of which all but the first are indented.
fn wrapped(text: &str, indent: usize) -> String {
    let (mut shown, mut column) = (String::new(), indent);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            shown.push('\n');
            shown.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            shown.push(' ');
            column += 1;
        }
        shown.push_str(word);
        column += length;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::super::finding::Area;
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok(Area::Gpu, "driver", "driver 580"),
            Finding::failure(Area::Gpu, "nodes", "no right to /dev/nvidia0")
                .why("no model can use it")
                .remedy("join video"),
            Finding::warning(Area::Memory, "swap", "none").why("w").remedy("d"),
        ]
    }

    #[test]
    fn op_1_the_text_has_groups_reasons_and_remedies_and_no_colour_without_a_terminal() {
        let mut shown = Vec::new();
        write(&mut Terminal::new(&mut shown), &findings(), false).unwrap();
        let expected = "GPUs\n  ok      driver 580\n  FAILURE no right to /dev/nvidia0\n            why: no model can use it\n            \
                        to do: join video\n\nMemory\n  warning none\n            why: w\n            to do: d\n\n\
                        3 checks: 1 failure, 1 warning, 0 notes\n";
        assert_eq!(String::from_utf8(shown).unwrap(), expected);
        let mut shown = Vec::new();
        write(&mut Terminal::new(&mut shown), &findings(), true).unwrap();
        assert!(String::from_utf8(shown).unwrap().contains("\x1b[1mFAILURE \x1b[0m"));
    }

    #[test]
    fn op_1_json_has_the_worst_result_and_each_finding() {
        let json = as_json(&findings());
        assert_eq!((json["result"].as_str(), json["counts"]["warning"].as_u64()), (Some("failure"), Some(1)));
        assert_eq!(json["findings"][1]["to_do"], "join video");
        assert_eq!(as_json(&[])["result"], "ok");
    }

    #[test]
    fn long_texts_are_wrapped() {
        let text = "word ".repeat(40);
        let shown = wrapped(&text, 10);
        assert!(shown.lines().all(|line| line.chars().count() <= WIDTH) && shown.lines().count() == 2, "{shown}");
        assert_eq!(shown.split_whitespace().count(), 40);
    }
}
