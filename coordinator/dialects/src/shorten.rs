//! Shortens requests whose prompt does not fit a model's context, as Ollama does. The oldest messages are dropped, the
//! middle of a prompt is cut out, and texts to embed lose their end.
//!
//! Only engines know tokens. Each step therefore reads the counts in the engine's refusal, and removes an estimate from
//! the request. The first steps remove less than the estimate, so that hardly more is lost than necessary.

use serde_json::{Map, Value};

use crate::overflow::Overflow;

/// The most steps for one request. The first ones leave at most a fifth of the excess each.
const MAX_STEPS: u32 = 8;

/// The step from which on more than the estimate is removed.
const LATE: u32 = 5;

/// The part of a whole that is left of an unknown excess.
const UNKNOWN_EXCESS: f64 = 0.5;

/// The weight of an image, in that of an ASCII character: 768 tokens, as in Ollama's own estimate.
const IMAGE: u64 = 3_072;

/// The weight of a message beside its text: the tokens around it in a chat template.
const AROUND: u64 = 16;

/// The weight of a token, where no refusal gives a better one.
const TOKEN: f64 = 4.0;

/// A client's wish about a context that is too small for its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextWish {
    /// Whether a prompt that is too long is shortened; otherwise it is refused.
    pub shortens: bool,
    /// Tokens at the beginning of a prompt that stay, if the client says; negative for as many as possible.
    pub keep: Option<i64>,
    /// Whether an answer goes on without its oldest tokens when the context is full; otherwise it ends there.
    pub shifts: bool,
}

/// An engine's answer to the last form of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedPrompt {
    /// The prompt is still too long.
    TooLong(Overflow),
    /// A conversation without its beginning was refused for another reason. Many chat templates want the user to begin.
    Otherwise,
}

/// The next, shorter form of a request in OpenAI's shape: a chat, a completion, or texts to embed. `step` counts from
/// 0. `None`: the request cannot become shorter, and the refusal is its answer.
pub fn shortened(
    mut body: Map<String, Value>,
    refused: RefusedPrompt,
    wish: ContextWish,
    step: u32,
) -> Option<Map<String, Value>> {
    if !wish.shortens || step >= MAX_STEPS {
        return None;
    }
    let changed = match refused {
        RefusedPrompt::Otherwise => body.get_mut("messages").and_then(Value::as_array_mut).is_some_and(begin_with_user),
        RefusedPrompt::TooLong(Overflow { prompt: Some(prompt), limit: Some(limit) }) if prompt < limit => {
            // The requested answer does not fit, and a shorter prompt is no remedy for that.
            false
        }
        RefusedPrompt::TooLong(overflow) => {
            let rule = Rule { overflow, keep: wish.keep.unwrap_or(0), step };
            if let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) {
                rule.shorten_chat(messages)
            } else if let Some(Value::String(prompt)) = body.get_mut("prompt") {
                let weight = weight(prompt);
                rule.cut_middle(prompt, weight)
            } else {
                body.get_mut("input").is_some_and(|input| rule.cut_ends(input))
            }
        }
    };
    changed.then_some(body)
}

/// One step: the counts of the refusal, and how boldly to remove.
struct Rule {
    overflow: Overflow,
    keep: i64,
    step: u32,
}

impl Rule {
    /// The part of the estimated excess that this step removes.
    fn boldness(&self) -> f64 {
        if self.step < LATE { 0.8 } else { 1.5 }
    }

    /// The weight that is too much of a prompt that weighs `whole`.
    fn excess(&self, whole: u64) -> u64 {
        let share = match self.overflow {
            // One token of the context is for the answer.
            Overflow { prompt: Some(prompt), limit: Some(limit) } => {
                prompt.saturating_sub(limit.saturating_sub(1)) as f64 / prompt.max(1) as f64 * self.boldness()
            }
            _ => UNKNOWN_EXCESS,
        };
        (whole as f64 * share) as u64
    }

    /// Drops the oldest messages, except those of the system and the last. A last message that is too long by itself
    /// is cut.
    fn shorten_chat(&self, messages: &mut Vec<Value>) -> bool {
        let whole = messages.iter().map(message_weight).sum();
        let (excess, last) = (self.excess(whole), last_turn(messages));
        let (mut dropped, mut index) = (0, 0);
        let mut keeps = Vec::with_capacity(messages.len());
        for message in messages.iter() {
            let drops = index < last && !is_system(message) && (dropped == 0 || dropped < excess);
            dropped += if drops { message_weight(message) } else { 0 };
            keeps.push(!drops);
            index += 1;
        }
        if dropped > 0 {
            let mut kept = keeps.into_iter();
            messages.retain(|_| kept.next().unwrap_or(true));
            drop_orphans(messages);
            return true;
        }
        let longest = messages[last..].iter_mut().filter_map(longest_text).max_by_key(|text| weight(text));
        longest.is_some_and(|text| self.cut_middle(text, whole))
    }

    /// Cuts the middle out of a text in a prompt that weighs `whole`. The kept beginning and the end stay. Half of the
    /// context behind the kept beginning becomes free for the answer.
    fn cut_middle(&self, text: &mut String, whole: u64) -> bool {
        let own = weight(text);
        let (keep, remove) = match self.overflow {
            Overflow { prompt: Some(prompt), limit: Some(limit) } => {
                let per_token = whole as f64 / prompt.max(1) as f64;
                let keep = u64::try_from(self.keep).unwrap_or(limit).min(limit.saturating_sub(1));
                let goal = limit.saturating_sub((limit.saturating_sub(keep) / 2).max(1));
                let remove = prompt.saturating_sub(goal) as f64 * per_token;
                // Characters of more tokens than others remain too many: later steps remove more than the estimate.
                let more = if self.step < LATE { 1.0 } else { 1.5 };
                ((keep as f64 * per_token) as u64, (remove * more) as u64)
            }
            _ => ((u64::try_from(self.keep).unwrap_or(0) as f64 * TOKEN) as u64, (own as f64 * UNKNOWN_EXCESS) as u64),
        };
        // Where not even the whole text is enough, the rest of the prompt may weigh less than it seems, such as images.
        let remove = if remove >= own { own - own / 8 } else { remove.max(1) };
        if remove >= own {
            return false;
        }
        let start = place(text, keep.min(own - remove));
        let end = start + place(&text[start..], remove);
        text.replace_range(start..end, "");
        true
    }

    /// Cuts the end off each text that is too long, so that the heaviest fits.
    fn cut_ends(&self, input: &mut Value) -> bool {
        let mut texts: Vec<&mut String> = match input {
            Value::String(text) => vec![text],
            Value::Array(items) => items
                .iter_mut()
                .filter_map(|item| if let Value::String(text) = item { Some(text) } else { None })
                .collect(),
            _ => return false,
        };
        let Some(heaviest) = texts.iter().map(|text| weight(text)).max() else { return false };
        let share = match self.overflow {
            Overflow { prompt: Some(prompt), limit: Some(limit) } => limit as f64 / prompt.max(1) as f64,
            _ => UNKNOWN_EXCESS,
        };
        // The first estimate is of the whole text, and later ones of what is left, which are the better ones.
        let factor = match self.step {
            0 => 1.05,
            1..LATE => 0.99,
            _ => 0.8,
        };
        let most = ((heaviest as f64 * share * factor) as u64).min(heaviest.saturating_sub(1));
        let mut changed = false;
        for text in &mut texts {
            if most > 0 && weight(text) > most {
                let end = place(text, most);
                changed |= end < text.len();
                text.truncate(end);
            }
        }
        changed
    }
}

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

fn is_system(message: &Value) -> bool {
    matches!(role(message), "system" | "developer")
}

/// The index of the last message. Results of tools belong to the call in front of them.
fn last_turn(messages: &[Value]) -> usize {
    let mut last = messages.len().saturating_sub(1);
    while last > 0 && role(&messages[last]) == "tool" {
        last -= 1;
    }
    last
}

/// Drops results of tools whose call was dropped.
fn drop_orphans(messages: &mut Vec<Value>) {
    let last = last_turn(messages);
    let first = messages.iter().position(|message| !is_system(message)).unwrap_or(0);
    let orphans = messages[first..].iter().take_while(|message| role(message) == "tool").count();
    messages.drain(first..(first + orphans).min(last.max(first)));
}

/// Drops messages until the user begins. Returns whether any was dropped.
fn begin_with_user(messages: &mut Vec<Value>) -> bool {
    let (first, last) = (messages.iter().position(|message| !is_system(message)).unwrap_or(0), last_turn(messages));
    let others = messages[first..].iter().take_while(|message| role(message) != "user").count();
    let end = (first + others).min(last);
    if end <= first {
        return false;
    }
    messages.drain(first..end);
    true
}

fn message_weight(message: &Value) -> u64 {
    let content = match &message["content"] {
        Value::String(text) => weight(text),
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str().map_or(IMAGE, weight)).sum(),
        _ => 0,
    };
    let calls = message.get("tool_calls").map_or(0, |calls| weight(&calls.to_string()));
    content + calls + AROUND
}

fn longest_text(message: &mut Value) -> Option<&mut String> {
    match message.get_mut("content")? {
        Value::String(text) => Some(text),
        Value::Array(parts) => {
            let texts = parts.iter_mut().filter_map(|part| match part.get_mut("text") {
                Some(Value::String(text)) => Some(text),
                _ => None,
            });
            texts.max_by_key(|text| weight(text))
        }
        _ => None,
    }
}

/// A measure that grows with the tokens of a text: a character beyond ASCII is about a token, and of ASCII's about four
/// are one.
fn weight(text: &str) -> u64 {
    text.chars().map(character_weight).sum()
}

const fn character_weight(c: char) -> u64 {
    if c.is_ascii() { 1 } else { 3 }
}

/// The place in a text in front of which it weighs at most `most`.
fn place(text: &str, most: u64) -> usize {
    let mut sum = 0;
    for (at, c) in text.char_indices() {
        sum += character_weight(c);
        if sum > most {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const SHORTENS: ContextWish = ContextWish { shortens: true, keep: None, shifts: false };

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn said(role: &str, words: usize, word: &str) -> Value {
        json!({ "role": role, "content": vec![word; words].join(" ") })
    }

    /// Tokens of a chat as an engine counts them: words, and four around each message.
    fn tokens(body: &Map<String, Value>) -> u64 {
        let words = |text: &Value| text.as_str().unwrap_or_default().split_whitespace().count() as u64;
        let messages = body["messages"].as_array().unwrap();
        messages.iter().map(|message| words(&message["content"]) + 4).sum()
    }

    /// Asks until the request fits, and returns it with the number of refusals.
    fn fit(
        mut body: Map<String, Value>,
        wish: ContextWish,
        limit: u64,
        count: impl Fn(&Map<String, Value>) -> u64,
    ) -> Option<(Map<String, Value>, u32)> {
        for step in 0.. {
            let prompt = count(&body);
            if prompt < limit {
                return Some((body, step));
            }
            let overflow = Overflow { prompt: Some(prompt), limit: Some(limit) };
            body = shortened(body, RefusedPrompt::TooLong(overflow), wish, step)?;
        }
        None
    }

    fn contents(body: &Map<String, Value>) -> Vec<(&str, &str)> {
        let messages = body["messages"].as_array().unwrap().iter();
        messages.map(|said| (role(said), said["content"].as_str().unwrap().split(' ').next().unwrap())).collect()
    }

    #[test]
    fn en_7_the_oldest_messages_go_and_the_systems_and_the_last_stay() {
        let mut messages = vec![said("system", 10, "rules")];
        for turn in 0..20 {
            messages.push(said("user", 20, &format!("q{turn}")));
            messages.push(said("assistant", 30, &format!("a{turn}")));
        }
        messages.insert(5, said("system", 5, "more"));
        messages.push(said("user", 8, "last"));
        let whole = object(json!({ "model": "m", "temperature": 1, "messages": messages }));
        for limit in [100, 300, 900, 1_100] {
            let (body, steps) = fit(whole.clone(), SHORTENS, limit, tokens).unwrap();
            let kept = contents(&body);
            assert_eq!((kept[0].1, kept[1].1, kept.last().unwrap().1), ("rules", "more", "last"), "{limit}");
            let all = contents(&whole);
            let rest: Vec<_> = all[all.len() - (kept.len() - 2)..].to_vec();
            assert_eq!(kept[2..], rest, "the newest, in order");
            // The newest of the dropped messages would not have fitted.
            assert!(tokens(&body) + 34 >= limit, "{limit}: {} tokens are left", tokens(&body));
            assert!(steps <= 6, "{steps}");
            assert_eq!(body["temperature"], 1);
        }
    }

    #[test]
    fn a_last_message_that_is_too_long_by_itself_keeps_its_end_and_leaves_room_for_an_answer() {
        let text: Vec<String> = (0..1_000).map(|word| format!("w{word:04}")).collect();
        let messages =
            json!([said("system", 5, "rules"), said("user", 9, "old"), { "role": "user", "content": text.join(" ") }]);
        let whole = object(json!({ "messages": messages }));
        let (body, _) = fit(whole.clone(), SHORTENS, 200, tokens).unwrap();
        let last = body["messages"][1]["content"].as_str().unwrap();
        assert!(last.ends_with("w0998 w0999") && !last.contains("w0000"), "{last}");
        assert!((80..=110).contains(&tokens(&body)), "half of the context is free: {}", tokens(&body));
        let (body, _) = fit(whole.clone(), ContextWish { keep: Some(20), ..SHORTENS }, 200, tokens).unwrap();
        let last = body["messages"][1]["content"].as_str().unwrap();
        assert!(last.starts_with("w0000 w0001") && last.ends_with("w0999"), "{last}");
        let (body, _) = fit(whole, ContextWish { keep: Some(-1), ..SHORTENS }, 200, tokens).unwrap();
        assert!(body["messages"][1]["content"].as_str().unwrap().starts_with("w0000 w0001"));
        let parts = json!([{ "role": "user", "content": [
            { "type": "text", "text": text.join(" ") }, { "type": "image_url", "image_url": { "url": "data:" } }] }]);
        let count = |body: &Map<String, Value>| {
            body["messages"][0]["content"][0]["text"].as_str().unwrap().split(' ').count() as u64
        };
        let (body, _) = fit(object(json!({ "messages": parts })), SHORTENS, 500, count).unwrap();
        assert_eq!(body["messages"][0]["content"].as_array().unwrap().len(), 2, "images stay");
    }

    #[test]
    fn results_of_tools_go_with_their_call_and_stay_with_it() {
        let call = json!({ "role": "assistant", "content": "", "tool_calls": [{ "id": "1" }] });
        let result = said("tool", 30, "result");
        let messages = json!([said("user", 40, "q0"), call, result, said("user", 40, "q1"), call, result, result]);
        let (body, _) = fit(object(json!({ "messages": messages })), SHORTENS, 150, tokens).unwrap();
        let roles: Vec<&str> = body["messages"].as_array().unwrap().iter().map(role).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
        let (body, _) = fit(object(json!({ "messages": messages })), SHORTENS, 100, tokens).unwrap();
        let roles: Vec<&str> = body["messages"].as_array().unwrap().iter().map(role).collect();
        assert_eq!(roles, ["assistant", "tool", "tool"], "the last results need their call");
    }

    #[test]
    fn a_template_that_wants_the_user_to_begin_gets_that() {
        let messages =
            json!([said("system", 1, "s"), said("assistant", 1, "a"), said("user", 1, "q"), said("user", 1, "z")]);
        let body = object(json!({ "messages": messages }));
        let body = shortened(body, RefusedPrompt::Otherwise, SHORTENS, 1).unwrap();
        assert_eq!(contents(&body), [("system", "s"), ("user", "q"), ("user", "z")]);
        assert_eq!(shortened(body, RefusedPrompt::Otherwise, SHORTENS, 2), None, "that was not the reason");
    }

    #[test]
    fn texts_to_embed_lose_their_end_and_only_those_that_are_too_long() {
        let text = |words: usize| (0..words).map(|word| format!("w{word:04}")).collect::<Vec<_>>().join(" ");
        let body = object(json!({ "input": [text(5), text(1_000), text(300)], "dimensions": 3 }));
        let count = |text: &Value| text.as_str().unwrap().split(' ').count() as u64;
        let longest =
            |body: &Map<String, Value>| body["input"].as_array().unwrap().iter().map(count).max().unwrap() - 1;
        let (body, steps) = fit(body, SHORTENS, 512, longest).unwrap();
        let counts: Vec<u64> = body["input"].as_array().unwrap().iter().map(count).collect();
        assert!(counts[0] == 5 && counts[2] == 300 && (490..=512).contains(&counts[1]), "{counts:?} {steps}");
        assert!(body["input"][1].as_str().unwrap().starts_with("w0000 w0001"));
        let one = |body: &Map<String, Value>| count(&body["input"]);
        let (body, _) = fit(object(json!({ "input": text(999) })), SHORTENS, 100, one).unwrap();
        assert!((90..100).contains(&one(&body)));
    }

    #[test]
    fn what_cannot_become_shorter_stays_refused() {
        let too_long = |prompt, limit| RefusedPrompt::TooLong(Overflow { prompt: Some(prompt), limit: Some(limit) });
        let chat = object(json!({ "messages": [said("user", 3, "a")] }));
        for (wish, refused, step) in [
            (ContextWish::default(), too_long(9, 5), 0),
            (SHORTENS, too_long(9, 5), MAX_STEPS),
            // The requested answer is too long, not the prompt.
            (SHORTENS, too_long(4, 5), 0),
            (SHORTENS, RefusedPrompt::Otherwise, 1),
            // The system's message alone is too long.
            (SHORTENS, too_long(9_000, 5), 0),
        ] {
            assert_eq!(shortened(chat.clone(), refused, wish, step), None, "{wish:?} {refused:?} {step}");
        }
        let tokens = object(json!({ "input": [1, 2, 3] }));
        assert_eq!(shortened(tokens, too_long(9, 5), SHORTENS, 0), None, "only texts are cut");
    }

    #[test]
    fn a_refusal_without_counts_halves() {
        let messages: Vec<Value> = (0..16).map(|_| said("user", 50, "word")).collect();
        let mut body = object(json!({ "messages": messages }));
        for (step, left) in [(0, 8), (1, 4), (2, 2)] {
            body = shortened(body, RefusedPrompt::TooLong(Overflow::default()), SHORTENS, step).unwrap();
            assert_eq!(body["messages"].as_array().unwrap().len(), left);
        }
    }

    proptest! {
        /// A conversation with a short last message comes to fit, however many tokens its characters take.
        #[test]
        fn every_conversation_fits_in_the_end(
            texts in proptest::collection::vec("[a-z ]{0,40}|\\PC{0,40}|[一-九]{0,60}", 1..40),
            limit in 60_u64..400,
        ) {
            let messages: Vec<Value> = texts.iter().map(|text| json!({ "role": "user", "content": text })).collect();
            // A tokenizer whose tokens are characters beyond ASCII and pieces of four others.
            let count = |body: &Map<String, Value>| {
                let text = |message: &Value| {
                    let text = message["content"].as_str().unwrap();
                    text.chars().filter(|c| !c.is_ascii()).count() as u64 + text.len() as u64 / 4 + 3
                };
                body["messages"].as_array().unwrap().iter().map(text).sum::<u64>()
            };
            let last = json!({ "messages": [messages.last().unwrap()] });
            prop_assume!(count(last.as_object().unwrap()) < limit);
            let fitted = fit(object(json!({ "messages": messages })), SHORTENS, limit, count);
            prop_assert!(fitted.is_some());
        }
    }
}
