//! Bodies of forms: parts lie one behind the other within the body, and what is written of them is read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use model_boss_protocol::{form_boundary, form_parts};

fuzz_target!(|input: &[u8]| {
    let (head, body) = input.split_at(input.len().min(40));
    let boundary = std::str::from_utf8(head).ok().and_then(|head| form_boundary(head).ok());
    let boundary = boundary.unwrap_or_else(|| "b".to_owned());
    if let Ok(parts) = form_parts(body, &boundary) {
        let mut behind = 0;
        for part in parts {
            assert!(part.content.start >= behind && part.content.end <= body.len());
            assert!(part.content.start <= part.content.end);
            behind = part.content.end;
        }
    }
});
