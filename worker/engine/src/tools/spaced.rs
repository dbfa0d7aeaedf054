//! JSON as Python and chat templates write it.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

/// A value with a space behind each comma and colon.
pub(super) fn spaced(value: &Value) -> String {
    let mut text = Vec::new();
    match value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => value.to_string(),
    }
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
