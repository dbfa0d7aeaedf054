//! Forms as clients send them, each with an answer.

use model_boss_engine::constraint::Grammar;
use model_boss_engine::tools::{Tool, ToolChoice, ToolFormat, ToolMarkers, ToolPlan};
use serde_json::{Value, json};

use super::Failure;

/// A form, and an answer that has it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) grammar: Grammar,
    pub(super) answer: String,
}

fn case(name: &'static str, grammar: Grammar, answer: impl ToString) -> Case {
    Case { name, grammar, answer: answer.to_string() }
}

/// All cases.
pub(super) fn cases() -> Result<Vec<Case>, Failure> {
    let ada = json!({"name": "Ada Lovelace, née Byron", "age": 36, "email": "ada@example.org",
        "tags": ["mathematics", "analytical engine", "poetry"], "address": {"street": "12 St James's Square", "city": "Rome"}});
    let words = "one, two, three, four";
    let save = |arguments: &str| {
        format!(
            "I will save this person now, and then I tell you about the result.\n<tool_call>\n{{\"name\": \
             \"save_person\", \"arguments\": {arguments}}}\n</tool_call>"
        )
    };
    let spaced = "{\"name\": \"Ada\", \"age\": 36, \"email\": \"a@b.c\", \"tags\": [], \"address\": {\"street\": \"x\", \"city\": \"Oslo\"}}";
    let person_tool = vec![tool("save_person", person())];
    let labels = labels();
    Ok(vec![
        case("json_schema", Grammar::JsonSchema(person().to_string()), &ada),
        case("json_object", Grammar::json_object(), &ada),
        case(
            "schema, patterns",
            Grammar::JsonSchema(coded().to_string()),
            json!({"code": "AB-1234", "slug": "a-long-slug-of-words", "note": "Three of them"}),
        ),
        case(
            "schema, counts",
            Grammar::JsonSchema(counted().to_string()),
            json!({"title": "The analytical engine", "text": "The engine weaves patterns, as the loom weaves leaves.",
                   "words": "notes by the translator upon the memoir"}),
        ),
        case("regex", Grammar::Regex("[a-z]+(, [a-z]+){0,20}".to_owned()), words),
        case("text and call", calls(ToolFormat::Hermes, person_tool.clone())?, save(spaced)),
        case("schema, $defs", Grammar::JsonSchema(order().to_string()), ordered()),
        case(
            "schema, enum 300",
            Grammar::JsonSchema(
                json!({"type": "object", "required": ["label", "other"], "additionalProperties": false,
                "properties": {"label": {"enum": labels}, "other": {"enum": labels}}})
                .to_string(),
            ),
            json!({"label": labels[217], "other": labels[12]}),
        ),
        case("choice of 300", Grammar::Choice(labels.clone()), &labels[217]),
        case("gbnf, json", Grammar::Gbnf(GBNF_JSON.to_owned()), &ada),
        case("gbnf, arithmetic", Grammar::Gbnf(GBNF_ARITHMETIC.to_owned()), "x_1 = (alpha + 12) * 3 - beta / 4 = 7\n"),
        case("gbnf, list", Grammar::Gbnf(GBNF_LIST.to_owned()), "- Buy apples, and pears\n- Éclairs for two\n"),
        case(
            "20 tools, hermes",
            calls(ToolFormat::Hermes, tools())?,
            "I create the ticket for you now, one moment please.\n<tool_call>\n{\"name\": \
            \"create_ticket\", \"arguments\": {\"title\": \"Printer on fire\", \"priority\": \"high\", \"labels\": [\"office\", \"hardware\"], \
            \"assignee\": {\"name\": \"Ada\", \"email\": \"ada@example.org\"}, \"country\": \"country-217 of the list\"}}\n</tool_call>",
        ),
        case(
            "20 tools, coder",
            calls(ToolFormat::QwenCoder, tools())?,
            "I create the ticket for you now, if a < b.\n<tool_call>\n<function=create_ticket>\n\
            <parameter=title>\nPrinter <b>on</b> fire\n</parameter>\n<parameter=priority>\nhigh\n</parameter>\n<parameter=labels>\n[\"office\", \"hardware\"]\n\
            </parameter>\n<parameter=assignee>\n{\"name\": \"Ada\", \"email\": \"ada@example.org\"}\n</parameter>\n</function>\n</tool_call>",
        ),
        case(
            "coder, one tool",
            calls(ToolFormat::QwenCoder, person_tool)?,
            "Now I save it.\n<tool_call>\n<function=save_person>\n<parameter=name>\nAda \
            Lovelace, née Byron\n</parameter>\n<parameter=age>\n36\n</parameter>\n<parameter=email>\na@b.c\n</parameter>\n<parameter=tags>\n[]\n</parameter>\n\
            <parameter=address>\n{\"street\": \"x\", \"city\": \"Oslo\"}\n</parameter>\n</function>\n</tool_call>",
        ),
    ])
}

/// Text that may contain calls.
fn calls(format: ToolFormat, tools: Vec<Tool>) -> Result<Grammar, Failure> {
    let plan =
        ToolPlan { format, tools, choice: ToolChoice::Auto, parallel: true, answer: None, spells_thoughts: false };
    Ok(plan.grammar(&ToolMarkers::default())?)
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.to_owned(), parameters, strict: true }
}

fn person() -> Value {
    json!({
        "type": "object", "required": ["name", "age", "email", "tags", "address"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "maxLength": 60}, "tags": {"type": "array", "items": {"type": "string"}},
            "address": {"type": "object", "required": ["street", "city"], "additionalProperties": false,
                        "properties": {"street": {"type": "string"}, "city": {"enum": ["Rome", "Oslo", "Lima"]}}},
        },
    })
}

fn coded() -> Value {
    json!({
        "type": "object", "required": ["code", "slug", "note"], "additionalProperties": false,
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
            "slug": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
            "note": {"type": "string", "pattern": "^[A-Z][a-z ]{3,40}$"},
        },
    })
}

fn counted() -> Value {
    json!({
        "type": "object", "required": ["title", "text", "words"], "additionalProperties": false,
        "properties": {
            "title": {"type": "string", "minLength": 4, "maxLength": 24},
            "text": {"type": "string", "pattern": "^[A-Za-z ,.]{10,60}$"},
            "words": {"type": "string", "pattern": "^(\\w{1,12} ){1,8}\\w{1,12}$"},
        },
    })
}

/// A schema as pydantic writes it.
fn order() -> Value {
    json!({
        "$defs": {
            "Address": {
                "properties": {
                    "street": {"title": "Street", "type": "string"},
                    "city": {"title": "City", "type": "string", "minLength": 1, "maxLength": 80},
                    "zip_code": {"anyOf": [{"type": "string", "pattern": "^[0-9]{5}(-[0-9]{4})?$"}, {"type": "null"}], "default": null, "title": "Zip Code"},
                },
                "required": ["street", "city", "zip_code"], "title": "Address", "type": "object", "additionalProperties": false,
            },
            "Currency": {"enum": ["EUR", "USD", "GBP", "CHF"], "title": "Currency", "type": "string"},
            "Line": {
                "properties": {
                    "product": {"title": "Product", "type": "string"},
                    "quantity": {"title": "Quantity", "type": "integer", "minimum": 1, "maximum": 999},
                    "price": {"title": "Price", "type": "number", "exclusiveMinimum": 0},
                    "currency": {"$ref": "#/$defs/Currency"},
                },
                "required": ["product", "quantity", "price", "currency"], "title": "Line", "type": "object", "additionalProperties": false,
            },
            "Card": {
                "properties": {"kind": {"const": "card", "title": "Kind", "type": "string"}, "last_digits": {"type": "string", "pattern": "^\\d{4}$"}},
                "required": ["kind", "last_digits"], "title": "Card", "type": "object", "additionalProperties": false,
            },
            "Transfer": {
                "properties": {"kind": {"const": "transfer", "title": "Kind", "type": "string"}, "reference": {"type": "string"}},
                "required": ["kind", "reference"], "title": "Transfer", "type": "object", "additionalProperties": false,
            },
        },
        "properties": {
            "id": {"format": "uuid", "title": "Id", "type": "string"},
            "created_at": {"format": "date-time", "title": "Created At", "type": "string"},
            "due": {"anyOf": [{"format": "date", "type": "string"}, {"type": "null"}], "title": "Due"},
            "email": {"format": "email", "title": "Email", "type": "string"},
            "site": {"anyOf": [{"format": "uri", "type": "string"}, {"type": "null"}], "title": "Site"},
            "address": {"$ref": "#/$defs/Address"},
            "lines": {"items": {"$ref": "#/$defs/Line"}, "title": "Lines", "type": "array", "minItems": 1},
            "payment": {"anyOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Transfer"}], "title": "Payment"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Note"},
        },
        "required": ["id", "created_at", "due", "email", "site", "address", "lines", "payment", "note"],
        "title": "Order", "type": "object", "additionalProperties": false,
    })
}

fn ordered() -> Value {
    json!({
        "id": "3f2b8c1e-7d4a-4e9b-9a51-0c6d2f7e8b13", "created_at": "2026-11-25T13:45:07.123Z", "due": "2026-12-24",
        "email": "ada.lovelace@example.org", "site": "https://example.org/orders?id=12",
        "address": {"street": "12 St James's Square", "city": "São Paulo", "zip_code": "12345-6789"},
        "lines": [{"product": "Analytical engine", "quantity": 2, "price": 1999.5, "currency": "EUR"},
                  {"product": "Punched cards", "quantity": 500, "price": 0.25, "currency": "GBP"}],
        "payment": {"kind": "transfer", "reference": "Invoice 7, as agreed"}, "note": "Please ring twice.",
    })
}

/// Three hundred texts that begin in many ways.
fn labels() -> Vec<String> {
    const AREAS: [&str; 12] = [
        "billing",
        "Delivery",
        "account access",
        "refund",
        "Warranty",
        "technical support",
        "sales",
        "Privacy & data",
        "legal",
        "press",
        "feedback (other)",
        "Öffnungszeiten",
    ];
    (0..300).map(|number| format!("{}/{} no. {number}", AREAS[number % AREAS.len()], AREAS[number / 25])).collect()
}

/// Twenty tools of an office, with nested objects and a list of three hundred countries.
fn tools() -> Vec<Tool> {
    const NAMES: [&str; 20] = [
        "search_web",
        "read_file",
        "write_file",
        "list_files",
        "run_command",
        "send_email",
        "create_event",
        "find_contact",
        "get_weather",
        "convert_currency",
        "translate_text",
        "create_ticket",
        "update_ticket",
        "close_ticket",
        "query_database",
        "book_flight",
        "book_hotel",
        "plot_chart",
        "set_reminder",
        "summarize_document",
    ];
    let countries: Vec<String> = (0..300).map(|number| format!("country-{number} of the list")).collect();
    let parameters = |number: usize| {
        json!({
            "type": "object", "additionalProperties": false, "required": ["title", "priority"],
            "properties": {
                "title": {"type": "string", "description": format!("Title {number}")},
                "priority": {"type": "string", "enum": ["low", "medium", "high", "urgent"]},
                "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
                "assignee": {
                    "type": "object", "additionalProperties": false, "required": ["name"],
                    "properties": {
                        "name": {"type": "string", "maxLength": 100}, "email": {"type": "string", "format": "email"},
                        "address": {"type": "object", "properties": {"street": {"type": "string"}, "number": {"type": "integer"}}},
                    },
                },
                "country": {"enum": countries},
                "due": {"type": "string", "format": "date-time"},
                format!("option_{number}"): {"type": ["number", "null"]},
            },
        })
    };
    NAMES.iter().enumerate().map(|(number, name)| tool(name, parameters(number))).collect()
}

const GBNF_JSON: &str = r#"root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;

const GBNF_ARITHMETIC: &str = r#"root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/=] ws term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;

const GBNF_LIST: &str = r#"root ::= item+
# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"#;
