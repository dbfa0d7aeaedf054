//! Lines of answers and errors.

use serde::Serialize;
use serde_json::value::RawValue;

/// The result of a line.
#[derive(Debug)]
pub enum LineOutcome<'a> {
    /// There is an answer with this status, which may be an error's.
    Answered {
        /// The HTTP status.
        status: u16,
        /// The id of the request.
        request_id: &'a str,
        /// The answer's body.
        body: &'a RawValue,
    },
    /// There is none.
    Unanswered {
        /// The code.
        code: &'a str,
        /// The reason.
        message: &'a str,
    },
}

#[derive(Serialize)]
struct WrittenOutput<'a> {
    id: &'a str,
    custom_id: &'a str,
    response: Option<WrittenResponse<'a>>,
    error: Option<WrittenError<'a>>,
}

#[derive(Serialize)]
struct WrittenResponse<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct WrittenError<'a> {
    code: &'a str,
    message: &'a str,
}

/// The line about a request, with its end.
pub fn output_line(id: &str, custom_id: &str, outcome: &LineOutcome<'_>) -> Vec<u8> {
    let (response, error) = match *outcome {
        LineOutcome::Answered { status, request_id, body } => {
            (Some(WrittenResponse { status_code: status, request_id, body }), None)
        }
        LineOutcome::Unanswered { code, message } => (None, Some(WrittenError { code, message })),
    };
    // Writing to memory cannot fail, and the answer is valid JSON already.
    let mut line = serde_json::to_vec(&WrittenOutput { id, custom_id, response, error }).unwrap_or_default();
    // An engine may have written its answer over several lines. A newline inside a text of JSON is escaped.
    line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    line.push(b'\n');
    line
}
