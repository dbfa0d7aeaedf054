//! Calls that are objects of JSON, read character by character. Arguments are passed on as they come.

/// Follows one value of JSON up to its end.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueEnd {
    depth: usize,
    in_text: bool,
    escaped: bool,
    begun: bool,
}

/// Whether a value has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonEnd {
    /// The character is part of the value, which goes on.
    No,
    /// The character is the value's last.
    With,
    /// The character is behind the value.
    Before,
}

impl ValueEnd {
    pub(super) fn push(&mut self, c: char) -> JsonEnd {
        if self.in_text {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_text = false;
                    if self.depth == 0 {
                        return JsonEnd::With;
                    }
                }
                _ => {}
            }
            return JsonEnd::No;
        }
        match c {
            '"' => self.in_text = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return JsonEnd::With;
                }
            }
            '}' | ']' | ',' if self.depth == 0 => return JsonEnd::Before,
            c if c.is_whitespace() && self.depth == 0 && self.begun => return JsonEnd::Before,
            _ => {}
        }
        self.begun |= !c.is_whitespace();
        JsonEnd::No
    }
}

/// One object that is a call.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonCall {
    at: JsonPosition,
    key: String,
    value: String,
    end: ValueEnd,
    name: Option<String>,
    /// Arguments that came before the name.
    held: String,
    has_arguments: bool,
    /// The value is a text.
    is_text: bool,
    /// An object inside of which the call is: OpenAI's own form.
    nested: bool,
    /// The name is the key of the arguments.
    keyed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum JsonPosition {
    #[default]
    Key,
    Colon,
    Value,
    Behind,
}

/// A part of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallPart {
    Name(String),
    Arguments(String),
    End,
}

/// The text is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoCall;

const NAMES: [&str; 2] = ["name", "tool_name"];
const ARGUMENTS: [&str; 3] = ["arguments", "parameters", "args"];
const OTHERS: [&str; 4] = ["id", "tool_call_id", "call_id", "type"];

/// The key of arguments, in calls whose key is the name.
const ARGUMENTS_KEY: &str = ARGUMENTS[0];

impl JsonCall {
    /// A call whose name is the key of the arguments.
    pub(super) fn keyed() -> Self {
        Self { keyed: true, ..Self::default() }
    }

    /// Takes a character behind the opening brace.
    pub(super) fn push(&mut self, c: char, out: &mut Vec<CallPart>) -> Result<(), NoCall> {
        match self.at {
            JsonPosition::Key if c.is_whitespace() && self.key.is_empty() => {}
            JsonPosition::Key if c == '}' && self.key.is_empty() => return self.close(out),
            JsonPosition::Key if c == ',' && self.key.is_empty() => {}
            JsonPosition::Key => {
                if self.key.is_empty() && c != '"' {
                    return Err(NoCall);
                }
                self.key.push(c);
                if self.end.push(c) == JsonEnd::With {
                    self.key = serde_json::from_str(&self.key).map_err(|_| NoCall)?;
                    (self.at, self.end) = (JsonPosition::Colon, ValueEnd::default());
                    if self.keyed {
                        let name = std::mem::replace(&mut self.key, ARGUMENTS_KEY.to_owned());
                        self.named(name, out)?;
                    }
                }
            }
            JsonPosition::Colon if c == ':' => self.at = JsonPosition::Value,
            JsonPosition::Colon if c.is_whitespace() => {}
            JsonPosition::Colon => return Err(NoCall),
            JsonPosition::Value if c.is_whitespace() && !self.end.begun => {}
            JsonPosition::Value => self.value(c, out)?,
            JsonPosition::Behind if c == ',' => self.at = JsonPosition::Key,
            JsonPosition::Behind if c == '}' => return self.close(out),
            JsonPosition::Behind if c.is_whitespace() => {}
            JsonPosition::Behind => return Err(NoCall),
        }
        Ok(())
    }

    fn value(&mut self, c: char, out: &mut Vec<CallPart>) -> Result<(), NoCall> {
        if c == '{' && self.key == "function" && self.value.is_empty() && !self.nested {
            self.nested = true;
            self.key.clear();
            self.at = JsonPosition::Key;
            return Ok(());
        }
        let is_arguments = ARGUMENTS.contains(&self.key.as_str());
        let is_known =
            is_arguments || self.key == "function" || [&NAMES[..], &OTHERS].concat().contains(&self.key.as_str());
        if !is_known {
            return Err(NoCall);
        }
        // Arguments inside of a text are passed on as a whole, because their spelling changes.
        if !self.end.begun {
            self.is_text = c == '"';
        }
        let ended = self.end.push(c);
        if ended != JsonEnd::Before {
            self.value.push(c);
            if is_arguments && !self.is_text {
                let piece = std::mem::take(&mut self.value);
                self.arguments(piece, out);
            }
        }
        if ended == JsonEnd::No {
            return Ok(());
        }
        let (key, value) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        (self.at, self.end) = (JsonPosition::Behind, ValueEnd::default());
        if NAMES.contains(&key.as_str()) || key == "function" {
            self.named(serde_json::from_str(&value).map_err(|_| NoCall)?, out)?;
        } else if is_arguments && !value.is_empty() {
            let text: String = serde_json::from_str(&value).map_err(|_| NoCall)?;
            self.arguments(if text.trim().is_empty() { "{}".to_owned() } else { text }, out);
        }
        if ended == JsonEnd::Before { self.push(c, out) } else { Ok(()) }
    }

    fn named(&mut self, name: String, out: &mut Vec<CallPart>) -> Result<(), NoCall> {
        if name.is_empty() || self.name.is_some() {
            return Err(NoCall);
        }
        self.name = Some(name.clone());
        out.push(CallPart::Name(name));
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            out.push(CallPart::Arguments(held));
        }
        Ok(())
    }

    fn arguments(&mut self, piece: String, out: &mut Vec<CallPart>) {
        self.has_arguments = true;
        if self.name.is_some() {
            out.push(CallPart::Arguments(piece));
        } else {
            self.held.push_str(&piece);
        }
    }

    fn close(&mut self, out: &mut Vec<CallPart>) -> Result<(), NoCall> {
        if self.nested {
            self.nested = false;
            self.at = JsonPosition::Behind;
            return Ok(());
        }
        if self.name.is_none() {
            return Err(NoCall);
        }
        if !self.has_arguments {
            out.push(CallPart::Arguments("{}".to_owned()));
        }
        out.push(CallPart::End);
        Ok(())
    }

    /// Whether its name is known.
    pub(super) fn is_named(&self) -> bool {
        self.name.is_some()
    }
}
