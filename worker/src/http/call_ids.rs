//! Identifiers of calls that the templates of some models insist on.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use model_boss_engine::tools::CallIds;

use super::message::ChatMessage;

/// Letters and digits of short identifiers.
const LETTERS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// An identifier of nine letters and digits.
pub(super) fn short_id(mut bits: u64) -> String {
    let letter = |_| {
        let at = usize::try_from(bits % 62).unwrap_or(0);
        bits /= 62;
        char::from(LETTERS[at])
    };
    (0..9).map(letter).collect()
}

/// The same call's short identifier wherever it is named.
fn shortened(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    short_id(hasher.finish())
}

/// Gives calls, and the results of calls, the identifiers that a model's template wants.
pub(super) fn fit(messages: &mut [ChatMessage], ids: CallIds) {
    match ids {
        CallIds::Any => {}
        CallIds::Short => messages.iter_mut().for_each(|message| {
            let calls = message.tool_calls.iter_mut().flatten().filter_map(|call| call.id.as_mut());
            for id in calls.chain(&mut message.tool_call_id) {
                *id = shortened(id);
            }
        }),
        CallIds::Numbered => number(messages),
    }
}

/// Names each call by its tool and by its number in the conversation.
fn number(messages: &mut [ChatMessage]) {
    let (mut count, mut new_ids) = (0_usize, BTreeMap::new());
    for message in messages {
        for call in message.tool_calls.iter_mut().flatten() {
            let id = format!("functions.{}:{count}", call.function.name);
            count = count.saturating_add(1);
            new_ids.extend(call.id.replace(id.clone()).map(|old| (old, id)));
        }
        if let Some(id) = &mut message.tool_call_id
            && let Some(new_id) = new_ids.get(id)
        {
            new_id.clone_into(id);
        }
    }
}
