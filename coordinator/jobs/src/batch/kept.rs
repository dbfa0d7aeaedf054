//! The lines that a batch had answered before its process died: the whole lines of its files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::usage::BatchUsage;

/// The lines of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLines {
    /// The number of whole lines.
    pub lines: usize,
    /// The bytes of the whole lines, which is the file's size now.
    pub bytes: u64,
    /// The tokens that their answers count.
    pub usage: BatchUsage,
}

/// The name of a line, and what its answer counts.
#[derive(Deserialize)]
struct NamedLine<'a> {
    custom_id: String,
    #[serde(default, borrow)]
    response: Option<LineResponse<'a>>,
}

#[derive(Deserialize)]
struct LineResponse<'a> {
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Reads the whole lines of a file, cuts off what follows them, and leaves the file at its end. `keep` gets the
/// `custom_id` of each line, and says whether it is the first of that name; a repeated line ends what is kept.
pub fn keep_whole_lines(file: &mut File, longest: usize, mut keep: impl FnMut(&str) -> bool) -> io::Result<KeptLines> {
    file.seek(SeekFrom::Start(0))?;
    let mut kept = KeptLines { lines: 0, bytes: 0, usage: BatchUsage::default() };
    let mut input = BufReader::new(&mut *file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.by_ref().take(longest.saturating_add(1) as u64).read_until(b'\n', &mut line)?;
        let Some(whole) = line.strip_suffix(b"\n") else { break };
        let Ok(named) = serde_json::from_slice::<NamedLine<'_>>(whole) else { break };
        if !keep(&named.custom_id) {
            break;
        }
        if let Some(response) = named.response {
            kept.usage.add(BatchUsage::of_answer(response.body.get()));
        }
        kept.lines = kept.lines.saturating_add(1);
        kept.bytes = kept.bytes.saturating_add(read as u64);
    }
    drop(input);
    file.set_len(kept.bytes)?;
    file.seek(SeekFrom::Start(kept.bytes))?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::output::{LineOutcome, output_line};
    use super::*;

    fn line(id: &str) -> Vec<u8> {
        output_line("batch_req_1", id, &LineOutcome::Unanswered { code: "c", message: "a\nb" })
    }

    #[test]
    fn rc_26_a_torn_line_is_cut_off_and_the_file_goes_on() {
        for torn in [&b"{\"custom_id\":\"3\""[..], b"\0\0\0\0\n", b"nonsense\n{\"custom_id\":\"4\"}\n", b""] {
            let mut file = tempfile::tempfile().unwrap();
            let whole = [line("1"), line("2")].concat();
            file.write_all(&whole).unwrap();
            file.write_all(torn).unwrap();
            let mut ids = Vec::new();
            let kept = keep_whole_lines(&mut file, 1_000, |id| {
                ids.push(id.to_owned());
                true
            });
            assert_eq!(kept.unwrap(), KeptLines { lines: 2, bytes: whole.len() as u64, usage: BatchUsage::default() });
            assert_eq!(ids, ["1", "2"]);
            file.write_all(&line("5")).unwrap();
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text.as_bytes(), [whole, line("5")].concat());
        }
    }

    #[test]
    fn rc_26_an_answer_over_several_lines_becomes_one() {
        let body = serde_json::value::RawValue::from_string("{\n \"a\": \"x\\ny\"\n}".to_owned()).unwrap();
        let answered = LineOutcome::Answered { status: 200, request_id: "r", body: &body };
        let text = String::from_utf8(output_line("id", "1", &answered)).unwrap();
        assert_eq!(
            text,
            "{\"id\":\"id\",\"custom_id\":\"1\",\"response\":{\"status_code\":200,\"request_id\":\"r\",\"body\":{  \"a\": \
             \"x\\ny\" }},\"error\":null}\n"
        );
    }
}
