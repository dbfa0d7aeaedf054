//! JSON schemas of the types of views with a text form of their own. The other types derive theirs.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{Moment, Principal, Target};

macro_rules! schema {
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

// The API writes moments as times: only it has a clock.
schema!(Moment, { "description": "A time in seconds since 1970.", "type": "number" });
schema!(Target, { "description": "A model of this machine, or PROVIDER:MODEL.", "type": "string" });
schema!(Principal, { "description": "The name of a client, or of the operator.", "type": "string" });
