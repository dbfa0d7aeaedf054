//! JSON Schemas of the types with a text form of their own (TR-6). The other types derive theirs.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    ByteCount, ClientId, DeviceId, Generation, KeepAlive, LlamaArgs, ModelId, Priority, RequestId, SlotId, Thinking,
};

/// The schema of a type: one, or two where it is read in more forms than it is written in.
macro_rules! schema {
    ($kind:ident, read: { $($read:tt)+ }, written: { $($written:tt)+ }) => {
        impl JsonSchema for $kind {
            fn schema_name() -> Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                match generator.contract().is_serialize() {
                    true => json_schema!({ $($written)+ }),
                    false => json_schema!({ $($read)+ }),
                }
            }
        }
    };
    ($kind:ident, $($body:tt)+) => {
        impl JsonSchema for $kind {
            fn schema_name() -> Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($($body)+)
            }
        }
    };
}

schema!(Priority, read: {
    "description": "How important, from 0 (most) to 9 (least), or a word: interactive is 2, normal 5, batch 8.",
    "anyOf": [
        { "type": "integer", "minimum": 0, "maximum": 9 },
        { "type": "string", "enum": ["interactive", "normal", "batch"] },
    ],
}, written: {
    "description": "How important, from 0 (most) to 9 (least).",
    "type": "integer",
    "minimum": 0,
    "maximum": 9,
});
schema!(Thinking, read: {
    "description": "Whether a model that can reason before its answer does so: on, off, or a limit of tokens.",
    "anyOf": [
        { "type": "string", "enum": ["on", "off"] },
        { "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u64 },
        { "type": "boolean" },
    ],
}, written: {
    "description": "Whether a model that can reason before its answer does so: on, off, or a limit of tokens.",
    "anyOf": [
        { "type": "string", "enum": ["on", "off"] },
        { "type": "integer", "minimum": 0, "maximum": 4_294_967_295_u64 },
    ],
});
schema!(LlamaArgs, {
    "description": "Arguments for llama-server: one text, or a list of texts. Only what docs/engines.md allows.",
    "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
});
schema!(KeepAlive, read: {
    "description": "How long a model stays loaded after its last use: seconds, or a text with a unit; negative is for \
                    ever, 0 unloads right after.",
    "anyOf": [
        { "type": "number" },
        {
            "type": "string",
            "pattern": r"^(-1|0|-?([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+)$",
            "examples": ["5m", "90s", "1h", "-1"],
        },
    ],
}, written: {
    "description": "How long a model stays loaded after its last use, with a unit; -1 is for ever.",
    "type": "string",
});
schema!(ByteCount, read: {
    "description": "Bytes, or a text with a unit.",
    "anyOf": [
        { "type": "integer", "minimum": 0 },
        { "type": "string", "examples": ["18GiB", "512MiB"] },
    ],
}, written: {
    "description": "Bytes.",
    "type": "integer",
    "minimum": 0,
});
schema!(DeviceId, {
    "description": "A device: auto, cpu, cuda:N, metal:N, npu, or the name of a declared one.",
    "type": "string",
    "examples": ["auto", "cpu", "cuda", "cuda:1"],
});
schema!(ModelId, { "description": "The name of a model.", "type": "string" });
schema!(ClientId, { "description": "The name of a client.", "type": "string" });
schema!(RequestId, { "description": "The number of a request.", "type": "integer", "minimum": 0 });
schema!(SlotId, { "description": "The number of a slot.", "type": "integer", "minimum": 0 });
schema!(Generation, { "description": "One filling of a slot.", "type": "integer", "minimum": 0 });
