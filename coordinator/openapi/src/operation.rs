//! The description of one operation: a method on a path, with its parameters, bodies, answers and errors.

use model_boss_protocol::ErrorCode;
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema};

/// A function that gives the schema of a type, and remembers the types that it names.
pub type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// The part of the API that an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Requests to models, in OpenAI's shapes and those of its relatives.
    Models,
    /// Anthropic's API.
    Anthropic,
    /// Ollama's API.
    Ollama,
    /// The state of the process and its models.
    Views,
    /// Orders of operators.
    Orders,
    /// Leases of other programs.
    Leases,
    /// Jobs, files and batches.
    Jobs,
}

impl Tag {
    /// Every part, in the document's order.
    pub const ALL: [Self; 7] =
        [Self::Models, Self::Anthropic, Self::Ollama, Self::Jobs, Self::Views, Self::Orders, Self::Leases];

    /// The name in the document.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Anthropic => "anthropic",
            Self::Ollama => "ollama",
            Self::Views => "views",
            Self::Orders => "orders",
            Self::Leases => "leases",
            Self::Jobs => "jobs",
        }
    }

    /// Whether its operations ask models.
    pub const fn asks_models(self) -> bool {
        matches!(self, Self::Models | Self::Anthropic | Self::Ollama)
    }

    /// The meaning of the part.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Models => "Requests to models, in the shapes of OpenAI, Cohere, vLLM and text-embeddings-inference.",
            Self::Anthropic => "Anthropic's Messages, for every model that answers chats.",
            Self::Ollama => "Ollama's API. Streams are lines of JSON, and an error is a text.",
            Self::Views => "The state of the process, its models, devices, clients and settings.",
            Self::Orders => "Orders of operators about models, devices and settings.",
            Self::Leases => "Memory that other programs of this host lease.",
            Self::Jobs => "Requests that are accepted now and answered later, files, and batches of requests.",
        }
    }
}

/// The API in whose shape the errors of a route are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorDialect {
    /// OpenAI's object, with the origin beside it.
    OpenAi,
    /// Anthropic's object.
    Anthropic,
    /// Ollama's text.
    Ollama,
    /// OpenAI's object, or Anthropic's for requests with `anthropic-version`.
    Either,
}

/// The place of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterPlace {
    /// A part of the path.
    Path,
    /// A value of the query.
    Query,
    /// A header.
    Header,
}

const JSON: &str = "application/json";

/// One parameter of an operation.
#[derive(Clone, Debug)]
pub struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) place: ParameterPlace,
    pub(crate) text: &'static str,
    pub(crate) schema: MakeSchema,
}

/// A body in one content type.
#[derive(Clone, Debug)]
pub struct DescribedContent {
    /// The content type.
    pub media: &'static str,
    /// The type of the body; of a stream, that of one event or line.
    pub schema: MakeSchema,
    /// Whether the body is a sequence of such values.
    pub is_stream: bool,
    /// Whether another program writes the body: fields that may be `null` may then be left out too.
    pub is_foreign: bool,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub struct RequestContent {
    pub(crate) schema: MakeSchema,
    /// The content type.
    pub(crate) media: &'static str,
    /// Whether an empty body is refused.
    pub(crate) required: bool,
}

/// An answer with one status.
#[derive(Clone, Debug)]
pub struct DescribedAnswer {
    /// The status.
    pub(crate) status: u16,
    /// The meaning of the answer.
    pub(crate) text: &'static str,
    pub(crate) contents: Vec<DescribedContent>,
    pub(crate) headers: &'static [(&'static str, &'static str)],
    pub(crate) links: &'static [&'static str],
    /// The place of the id in the body, for the links.
    pub(crate) id_at: &'static str,
}

/// One operation. Fields are set by the methods, in any order.
#[derive(Clone, Debug)]
pub struct Operation {
    pub(crate) id: &'static str,
    pub(crate) tag: Tag,
    pub(crate) text: &'static str,
    pub(crate) see: &'static [&'static str],
    /// The path behind the id, such as `/attach`, where a row of the table serves several operations.
    pub(crate) tail: &'static str,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) body: Option<RequestContent>,
    pub(crate) answers: Vec<DescribedAnswer>,
    pub(crate) errors: Vec<ErrorCode>,
    /// Errors with another status than their code's.
    pub(crate) statuses: Vec<(u16, ErrorCode)>,
    pub(crate) either_error: bool,
    /// Whether an id may end like a verb.
    pub(crate) ids_have_slashes: bool,
}

impl Operation {
    /// An operation that is named `id` in generated clients. `text` is one line of Markdown.
    pub fn new(tag: Tag, id: &'static str, text: &'static str) -> Self {
        Self {
            id,
            tag,
            text,
            see: &[],
            tail: "",
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            errors: Vec::new(),
            statuses: Vec::new(),
            either_error: false,
            ids_have_slashes: false,
        }
    }

    /// The part of the API that it belongs to.
    pub const fn tag(&self) -> Tag {
        self.tag
    }

    /// Pages of docs/ that say more.
    #[must_use]
    pub fn see(mut self, pages: &'static [&'static str]) -> Self {
        self.see = pages;
        self
    }

    /// The part of the path behind an id.
    #[must_use]
    pub fn behind_id(mut self, tail: &'static str) -> Self {
        self.tail = tail;
        self
    }

    /// Adds a parameter.
    #[must_use]
    pub fn parameter<T: JsonSchema>(mut self, place: ParameterPlace, name: &'static str, text: &'static str) -> Self {
        self.parameters.push(Parameter { name, place, text, schema: subschema::<T> });
        self
    }

    /// Adds the id in the path.
    #[must_use]
    pub fn id_of<T: JsonSchema>(self, text: &'static str) -> Self {
        self.parameter::<T>(ParameterPlace::Path, ID, text)
    }

    /// Adds an id that may contain slashes, and so end like a verb.
    #[must_use]
    pub fn slashed_id_of<T: JsonSchema>(mut self, text: &'static str) -> Self {
        self.ids_have_slashes = true;
        self.id_of::<T>(text)
    }

    /// Adds a value of the query.
    #[must_use]
    pub fn query<T: JsonSchema>(self, name: &'static str, text: &'static str) -> Self {
        self.parameter::<T>(ParameterPlace::Query, name, text)
    }

    /// Adds a header of the request.
    #[must_use]
    pub fn header<T: JsonSchema>(self, name: &'static str, text: &'static str) -> Self {
        self.parameter::<T>(ParameterPlace::Header, name, text)
    }

    /// The operation takes this body.
    #[must_use]
    pub fn body<T: JsonSchema>(mut self) -> Self {
        self.body = Some(RequestContent { schema: subschema::<T>, media: JSON, required: true });
        self
    }

    /// The operation takes a form with these parts.
    #[must_use]
    pub fn form<T: JsonSchema>(mut self) -> Self {
        self.body = Some(RequestContent { schema: subschema::<T>, media: "multipart/form-data", required: true });
        self
    }

    /// The operation takes this body, or none.
    #[must_use]
    pub fn optional_body<T: JsonSchema>(mut self) -> Self {
        self.body = Some(RequestContent { schema: subschema::<T>, media: JSON, required: false });
        self
    }

    /// Adds an answer in JSON.
    #[must_use]
    pub fn answers<T: JsonSchema>(self, status: u16, text: &'static str) -> Self {
        self.answers_as::<T>(status, text, JSON)
    }

    /// Adds an answer in another content type.
    #[must_use]
    pub fn answers_as<T: JsonSchema>(mut self, status: u16, text: &'static str, media: &'static str) -> Self {
        let content = DescribedContent { media, schema: subschema::<T>, is_stream: false, is_foreign: false };
        self.answer(status, text).contents.push(content);
        self
    }

    /// Adds an answer in JSON that an engine or a provider writes.
    #[must_use]
    pub fn passes<T: JsonSchema>(mut self, text: &'static str) -> Self {
        let media = JSON;
        let content = DescribedContent { media, schema: subschema::<T>, is_stream: false, is_foreign: true };
        self.answer(200, text).contents.push(content);
        self
    }

    /// Adds a stream of such values: server-sent events, or lines of JSON.
    #[must_use]
    pub fn streams<T: JsonSchema>(mut self, media: &'static str) -> Self {
        let content = DescribedContent { media, schema: subschema::<T>, is_stream: true, is_foreign: false };
        self.answer(200, "the stream").contents.push(content);
        self
    }

    /// Adds a stream whose values an engine or a provider writes.
    #[must_use]
    pub fn passes_stream<T: JsonSchema>(mut self, media: &'static str) -> Self {
        let content = DescribedContent { media, schema: subschema::<T>, is_stream: true, is_foreign: true };
        self.answer(200, "the answer").contents.push(content);
        self
    }

    /// Adds headers to the last answer.
    #[must_use]
    pub fn with_headers(mut self, headers: &'static [(&'static str, &'static str)]) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            answer.headers = headers;
        }
        self
    }

    /// The last answer has an id at this place of its body, which these operations take.
    #[must_use]
    pub fn leads_to(mut self, id_at: &'static str, operations: &'static [&'static str]) -> Self {
        if let Some(answer) = self.answers.last_mut() {
            (answer.id_at, answer.links) = (id_at, operations);
        }
        self
    }

    /// Adds errors beyond those that its access and its body bring.
    #[must_use]
    pub fn errors(mut self, codes: &[ErrorCode]) -> Self {
        self.errors.extend_from_slice(codes);
        self
    }

    /// Adds an error with another status than its code's.
    #[must_use]
    pub fn status(mut self, status: u16, code: ErrorCode) -> Self {
        self.statuses.push((status, code));
        self
    }

    /// Adds the status by which engines of other projects refuse a body. It is passed on.
    #[must_use]
    pub fn status_of_engines(self) -> Self {
        self.status(UNPROCESSABLE, ErrorCode::InvalidRequest)
    }

    /// Errors are in Anthropic's shape where the request has `anthropic-version`.
    #[must_use]
    pub fn for_anthropics_clients_too(mut self) -> Self {
        self.either_error = true;
        self
    }

    fn answer(&mut self, status: u16, text: &'static str) -> &mut DescribedAnswer {
        let at = self.answers.iter().position(|answer| answer.status == status).unwrap_or_else(|| {
            self.answers.push(DescribedAnswer {
                status,
                text,
                contents: Vec::new(),
                headers: &[],
                links: &[],
                id_at: "",
            });
            self.answers.len() - 1
        });
        &mut self.answers[at]
    }
}

/// The status of engines whose framework checks bodies.
const UNPROCESSABLE: u16 = 422;

/// The name of the parameter for an id in a path.
pub(crate) const ID: &str = "id";

fn subschema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The operations of one row in the table of routes.
#[derive(Clone, Debug)]
pub struct RowOperations(pub(crate) Vec<Operation>);

impl RowOperations {
    /// The parts of the API that they belong to.
    pub fn tags(&self) -> impl Iterator<Item = Tag> {
        self.0.iter().map(Operation::tag)
    }

    /// Whether an id of these operations may end like a verb of others.
    pub fn ids_have_slashes(&self) -> bool {
        self.0.iter().any(|operation| operation.ids_have_slashes)
    }
}

impl From<Operation> for RowOperations {
    fn from(operation: Operation) -> Self {
        Self(vec![operation])
    }
}

impl<const N: usize> From<[Operation; N]> for RowOperations {
    fn from(operations: [Operation; N]) -> Self {
        Self(operations.into())
    }
}
