//! Tokens that the settings beside a `tokenizer.json` add to it, as `transformers` 5 reads them.

use serde_json::{Map, Value};
use tokenizers::AddedToken;

/// The roles of special tokens, in the order in which they are added.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The lists of further special tokens, by their newer and older names.
const FURTHER: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// The files that add tokens, each of which may be absent.
pub(super) struct TokenSettings<'a> {
    /// `tokenizer_config.json`.
    pub(super) settings: &'a Value,
    /// `special_tokens_map.json`.
    pub(super) special: &'a Value,
    /// `added_tokens.json`.
    pub(super) added: &'a Value,
}

impl TokenSettings<'_> {
    /// The tokens, in the order in which those without a number get one. `is_known` says which a `tokenizer.json` adds
    /// itself.
    pub(super) fn tokens(&self, is_known: &dyn Fn(&str) -> bool) -> Vec<AddedToken> {
        let decoder = self.settings.get("added_tokens_decoder").and_then(Value::as_object);
        let mut found = match decoder {
            Some(decoder) => by_number(decoder.iter().map(|(id, token)| (id.parse().ok(), described(token)))),
            None => self.of_older_files(),
        };
        let listed: Vec<String> = found.iter().map(|token| token.content.clone()).collect();
        for token in self.special_tokens(decoder.is_none()) {
            // One that is described twice is as the last description has it.
            if !is_known(&token.content) && !listed.contains(&token.content) && !found.contains(&token) {
                found.push(token);
            }
        }
        found
    }

    /// The tokens of `added_tokens.json`, which says nothing but their numbers.
    fn of_older_files(&self) -> Vec<AddedToken> {
        let special: Vec<AddedToken> = self.special_tokens(true);
        let added = self.added.as_object().into_iter().flatten().map(|(content, id)| {
            let is_special = special.iter().any(|token| token.content == *content);
            (id.as_u64(), Some(AddedToken::from(content.clone(), is_special)))
        });
        by_number(added)
    }

    /// The tokens with a role, and further ones. The older of the two files counts where the newer one lists no tokens.
    fn special_tokens(&self, has_older: bool) -> Vec<AddedToken> {
        let files = [self.special, self.settings];
        let files = if has_older { &files[..] } else { &files[1..] };
        let field = |file: &&'_ Value, name: &str| file.get(name).filter(|value| !value.is_null()).cloned();
        let roles = ROLES.into_iter().filter_map(|name| files.iter().find_map(|file| field(file, name)));
        // Of further ones the newer file counts.
        let of_further = |name| files.iter().rev().find_map(|file| field(file, name));
        let further = FURTHER.into_iter().filter_map(of_further).flat_map(|value| match value {
            Value::Array(tokens) => tokens,
            // Tokens with names of the model's own.
            Value::Object(named) => named.into_iter().map(|(_, token)| token).collect(),
            _ => Vec::new(),
        });
        let special = |token: Value| described(&token).map(|token| AddedToken { special: true, ..token });
        roles.chain(further).filter_map(special).collect()
    }
}

/// Tokens in the order of their numbers.
fn by_number(tokens: impl Iterator<Item = (Option<u64>, Option<AddedToken>)>) -> Vec<AddedToken> {
    let mut numbered: Vec<(u64, AddedToken)> = tokens.filter_map(|(id, token)| Some((id?, token?))).collect();
    numbered.sort_by_key(|(id, _)| *id);
    numbered.into_iter().map(|(_, token)| token).collect()
}

/// A token as a text, or as an object that describes it.
fn described(token: &Value) -> Option<AddedToken> {
    let fields: &Map<String, Value> = match token {
        Value::String(content) => return Some(AddedToken::from(content.clone(), true)),
        Value::Object(fields) => fields,
        _ => return None,
    };
    let is = |name: &str| fields.get(name).and_then(Value::as_bool);
    let special = is("special").unwrap_or(false);
    let token = AddedToken::from(fields.get("content")?.as_str()?.to_owned(), special);
    Some(AddedToken {
        single_word: is("single_word").unwrap_or(false),
        lstrip: is("lstrip").unwrap_or(false),
        rstrip: is("rstrip").unwrap_or(false),
        normalized: is("normalized").unwrap_or(token.normalized),
        ..token
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokens(settings: &Value, special: &Value, added: &Value) -> Vec<(String, bool, bool)> {
        let settings = TokenSettings { settings, special, added };
        let found = settings.tokens(&|spelling| spelling == "<s>");
        found.into_iter().map(|token| (token.content, token.special, token.normalized)).collect()
    }

    #[test]
    fn fa_3_tokens_beside_a_vocabulary_come_in_their_order() {
        let named = |name: &str, special, normalized| (name.to_owned(), special, normalized);
        let settings = json!({
            "added_tokens_decoder": {
                "11": {"content": "b", "special": false, "normalized": true},
                "9": {"content": "a", "special": true},
            },
            "bos_token": "<s>", "eos_token": {"content": "</s>", "normalized": true}, "unk_token": null,
            "extra_special_tokens": ["a", "<x>"],
        });
        assert_eq!(
            tokens(&settings, &json!({"mask_token": "<mask>"}), &Value::Null),
            [named("a", true, false), named("b", false, true), named("</s>", true, true), named("<x>", true, false)]
        );
        assert_eq!(
            tokens(&json!({"eos_token": "e"}), &json!({"mask_token": "m"}), &json!({"m": 8, "n": 7})),
            [named("n", false, true), named("m", true, false), named("e", true, false)]
        );
    }
}
