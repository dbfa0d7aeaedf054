//! Calls of tools, there and back: the text that a template makes of a call is one that the model may say, and that
//! clients get as the same call.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use model_boss_engine::fake::{Script, words};
use model_boss_engine::tools::ToolFormat;
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

/// A template that writes calls as one family of models does. `tools` is the marks by which it shows the tools.
fn family(tools: &str, open: &str, call: &str, between: &str, close: &str) -> String {
    "{% if tools %}@TOOLS{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}\
     {% for m in messages %}<|im_start|>{{ m.role }}\n\
     {% if m.tool_calls %}@OPEN{% for c in m.tool_calls %}{% set f = c.function %}@CALL\
     {% if not loop.last %}@BETWEEN{% endif %}{% endfor %}@CLOSE{% else %}{{ m.content }}{% endif %}<|im_end|>\n\
     {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        .replace("@TOOLS", tools)
        .replace("@OPEN", open)
        .replace("@CALL", call)
        .replace("@BETWEEN", &format!("{{{{ {} }}}}", Value::from(between)))
        .replace("@CLOSE", close)
}

/// The templates of all families.
fn families() -> Vec<(ToolFormat, String)> {
    use ToolFormat::*;
    const HERMES: &str =
        "<tool_call>\n{\"name\": {{ f.name | tojson }}, \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>";
    const LISTED: &str = "{\"name\": {{ f.name | tojson }}, \"arguments\": {{ f.arguments | tojson }}}";
    let tagged = |key: &str, value: &str| {
        format!(
            "{{% for k, v in f.arguments | items %}}{}{{% endfor %}}",
            key.replace("KEY", "{{ k }}") + &value.replace("VALUE", "{{ v if v is string else v | tojson }}")
        )
    };
    let coder = tagged("<parameter=KEY>\n", "VALUE\n</parameter>\n");
    let glm = tagged("<arg_key>KEY</arg_key>\n", "<arg_value>VALUE</arg_value>\n");
    vec![
        (Hermes, family("<tools>", "", HERMES, "\n", "")),
        (
            QwenCoder,
            family(
                "<tools>",
                "",
                &format!("<tool_call>\n<function={{{{ f.name }}}}>\n{coder}</function>\n</tool_call>"),
                "\n",
                "",
            ),
        ),
        (Glm, family("", "", &format!("<tool_call>{{{{ f.name }}}}\n{glm}</tool_call>"), "\n", "")),
        (
            Llama,
            family(
                "Environment: ipython",
                "",
                "{\"name\": {{ f.name | tojson }}, \"parameters\": {{ f.arguments | tojson }}}",
                "",
                "",
            ),
        ),
        (MistralList, family("", "[TOOL_CALLS][", "{{ f | tojson }}", ", ", "]")),
        (MistralList, family("", "[TOOL_CALLS][", "{{ (f | tojson)[:-1] }}, \"id\": \"{{ c.id }}\"}", ", ", "]")),
        (MistralNamed, family("", "", "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", "", "")),
        (Phi, family("<|tool|>", "<|tool_call|>[", LISTED, ", ", "]<|/tool_call|>")),
        (Granite, family("", "<|tool_call|>[", LISTED, ", ", "]")),
        (
            Command,
            family(
                "",
                "<|START_ACTION|>[",
                "{\"tool_name\": {{ f.name | tojson }}, \"parameters\": {{ f.arguments | tojson }}}",
                ", ",
                "]<|END_ACTION|>",
            ),
        ),
        (
            Command,
            family(
                "",
                "<|START_ACTION|>[\n",
                "    {\"tool_call_id\": \"{{ loop.index0 }}\", \"tool_name\": {{ f.name | tojson }}, \"parameters\": \
                 {{ f.arguments | tojson }}}",
                ",\n",
                "\n]<|END_ACTION|>",
            ),
        ),
        (
            DeepSeekFenced,
            family(
                "",
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ f['arguments'] + '' }}\n```<｜tool▁call▁end｜>",
                "\n",
                "<｜tool▁calls▁end｜>",
            ),
        ),
        (
            DeepSeek,
            family(
                "",
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f['arguments'] + '' }}<｜tool▁call▁end｜>",
                "",
                "<｜tool▁calls▁end｜>",
            ),
        ),
        (
            Harmony,
            family(
                "",
                "",
                "<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>{{ f.arguments | tojson }}",
                "",
                "<|call|>",
            ),
        ),
        (
            Harmony,
            family(
                "",
                "",
                " to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}",
                "",
                "<|call|>",
            ),
        ),
        (
            CommandFenced,
            family(
                "",
                "Action: ```json\n[\n",
                "    {\n        \"tool_name\": {{ f.name | tojson }},\n        \"parameters\": {{ f.arguments | tojson(indent=4) }}\n    }",
                ",\n",
                "\n]```",
            ),
        ),
        (
            Kimi,
            family(
                "",
                "<|tool_calls_section_begin|>",
                "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>",
                "",
                "<|tool_calls_section_end|>",
            ),
        ),
        (
            MiniMax,
            family(
                "",
                "<minimax:tool_call>\n",
                &format!(
                    "<invoke name=\"{{{{ f.name }}}}\">\n{}</invoke>\n",
                    tagged("<parameter name=\"KEY\">", "VALUE</parameter>\n")
                ),
                "",
                "</minimax:tool_call>",
            ),
        ),
        (
            Seed,
            family(
                "",
                "",
                &format!(
                    "<seed:tool_call>\n<function={{{{ f.name }}}}>\n{}</function>\n</seed:tool_call>",
                    tagged("<parameter=KEY>", "VALUE</parameter>\n")
                ),
                "\n",
                "",
            ),
        ),
        (FunctionGemma, gemma("<start_function_call>", "<escape>", "<end_function_call>")),
        (Gemma, gemma("<|tool_call>", "<|\"|>", "<tool_call|>")),
        (
            Lfm,
            family(
                "",
                "<|tool_call_start|>[",
                "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v | string }}\
                 {% endif %}{{ '' if loop.last else ', ' }}{% endfor %})",
                ", ",
                "]<|tool_call_end|>",
            ),
        ),
        (
            LfmList,
            family(
                "",
                "<|tool_call_start|>[",
                "{\"name\": {{ f.name | tojson }}, \"arguments\": {{ f.arguments | tojson }}, \"id\": \"{{ c.id }}\"}",
                ", ",
                "]<|tool_call_end|>",
            ),
        ),
        (Nemotron, family("", "<TOOLCALL>[", LISTED, ", ", "]</TOOLCALL>")),
        (
            GlmTight,
            family(
                "",
                "",
                &format!(
                    "<tool_call>{{{{ f.name }}}}{}</tool_call>",
                    tagged("<arg_key>KEY</arg_key>", "<arg_value>VALUE</arg_value>")
                ),
                "",
                "",
            ),
        ),
        (
            MistralIds,
            family("", "", "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}", "", ""),
        ),
        (DeepSeekMarkup, markup("function_calls")),
        (DeepSeekMarkup4, markup("tool_calls")),
        (FireFunction, family("{{ functions }}", " functools[", LISTED, ", ", "]")),
        (
            Functionary,
            family("", "", "{{ '<function=' + f.name + '>' }}{{ f.arguments | tojson }}{{ '</function>' }}", "", ""),
        ),
        (
            Apertus,
            family(
                "",
                "<|tools_prefix|>[",
                "{{ '{' }}{{ f.name | tojson }}: {{ f.arguments | tojson }}{{ '}' }}",
                ", ",
                "]<|tools_suffix|>",
            ),
        ),
        (GigaChat, family("", "<|function_call|>", LISTED, "", "")),
        (
            ToolCallsList,
            family(
                "",
                "<tool_calls>[",
                "{\"name\": {{ f.name | tojson }}, \"arguments\": {{ f.arguments | tojson }}, \"id\": \"{{ c.id }}\"}",
                ", ",
                "]</tool_calls>",
            ),
        ),
        (ToolCallsLines, family("", "<tool_calls>\n", LISTED, "\n", "\n</tool_calls>")),
        (JsonList, family("make calls in a single JSON array: ", "[", LISTED, ", ", "]")),
        (
            PythonList,
            family(
                "in the format of [func_name1(params_name1=params_value1)]",
                "[",
                "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson if v is not boolean else v }}\
                 {{ '' if loop.last else ', ' }}{% endfor %})",
                ", ",
                "]",
            ),
        ),
    ]
}

/// A family of templates whose calls say which values are texts.
fn markup(all: &str) -> String {
    let parameters = "{% for k, v in f.arguments | items %}<｜DSML｜parameter name=\"{{ k }}\" \
                      string=\"{{ 'true' if v is string else 'false' }}\">{{ v if v is string else v | tojson }}\
                      </｜DSML｜parameter>\n{% endfor %}";
    let call = format!("<｜DSML｜invoke name=\"{{{{ f.name }}}}\">\n{parameters}</｜DSML｜invoke>\n");
    family("", &format!("<｜DSML｜{all}>\n"), &call, "", &format!("</｜DSML｜{all}>"))
}

/// A family of templates whose calls have no quotes, and their keys in the order of the alphabet.
fn gemma(open: &str, quote: &str, close: &str) -> String {
    const VALUE: &str = "{% macro value(v) %}{% if v is string %}QUOTE{{ v }}QUOTE{% elif v is boolean %}{{ 'true' if v else 'false' }}\
        {% elif v is mapping %}{{ '{' }}{% for k, inner in v | dictsort %}{{ k }}:{{ value(inner) }}\
        {{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}{% elif v is sequence %}[{% for inner in v %}{{ value(inner) }}\
        {{ '' if loop.last else ',' }}{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}";
    VALUE.replace("QUOTE", quote)
        + &family("", "", &format!("{open}call:{{{{ f.name }}}}{{{{ value(f.arguments) }}}}{close}"), "", "")
}

fn tools() -> Value {
    let trip = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"},
            "near": {"type": "array", "items": {"type": ["string", "number", "null"]}}, "cheap": {"type": "boolean"},
        },
    });
    let clock = json!({"type": "object", "properties": {}});
    let tool = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}});
    json!([tool("plan_trip", &trip), tool("clock", &clock)])
}

fn calls(count: usize) -> Value {
    // Spelled as models spell it.
    let called = [
        ("plan_trip", r#"{"city": "Köln <b> & {\"x\"}", "days": 2, "near": ["a, b", 1.5, null], "cheap": true}"#),
        ("clock", "{}"),
        ("plan_trip", r#"{"city": "Kyiv", "days": 10}"#),
    ];
    let call = |(index, (name, arguments)): (usize, (&str, &str))| {
        json!({"type": "function", "id": format!("call0000{index}"),
            "function": {"name": name, "arguments": arguments}})
    };
    called.into_iter().enumerate().take(count).map(call).collect()
}

/// Ends of turns, which are tokens of a real vocabulary.
const ENDS: [&str; 11] = [
    "<end_of_turn>",
    "<|end|>",
    "\n",
    "<|im_end|>",
    "<|eot_id|>",
    "</s>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
    "<|end_of_text|>",
    "<|observation|>",
    "<|user|>",
];

/// The text that the template makes of an assistant's message with these calls; an error if it takes no calls.
async fn said(rig: &Rig, calls: &Value) -> Result<String, String> {
    let rendered = async |messages: Value, add: bool| {
        let body = json!({"messages": messages, "tools": tools(), "add_generation_prompt": add});
        let answer = rig.post("/apply-template", &body).await;
        let text = answer.json()["prompt"].as_str().map(str::to_owned);
        text.ok_or_else(|| format!("{answer:?}"))
    };
    let user = json!({"role": "user", "content": "Where to?"});
    let begun = rendered(json!([user]), true).await?;
    let assistant = json!({"role": "assistant", "content": "", "tool_calls": calls});
    let whole = rendered(json!([user, assistant]), false).await?;
    let same = begun.char_indices().zip(whole.chars()).take_while(|((_, a), b)| a == b).count();
    let at = whole.char_indices().nth(same).map_or(whole.len(), |(at, _)| at);
    // A mark is not cut: two of them may begin alike.
    let at = if begun.len() == at { at } else { whole[..at].rfind(['>', '\n']).map_or(0, |at| at + 1) };
    let mut text = whole[at..].rsplit("</think>").next().unwrap_or_default().trim_start_matches('\n');
    while let Some(shorter) = ENDS.iter().find_map(|end| text.strip_suffix(end)) {
        text = shorter;
    }
    Ok(text.to_owned())
}

fn setup(template: &str) -> Setup {
    let params = json!({"temperature": 0, "chat_template_kwargs": {"enable_thinking": false}});
    Setup { template: Some(template.to_owned().leak()), context: 8_000, params, ..Setup::default() }
}

/// Checks that the calls which a template writes are read as they were, where it writes any.
async fn check(name: &str, template: &str, several: bool) -> ToolFormat {
    let rig = setup(template).start().await;
    let facts = rig.worker.serving().unwrap().text.facts.tools.clone();
    for count in if several { 1..=3 } else { 1..=1 } {
        let calls = calls(count);
        let text = said(&rig, &calls).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text.contains("plan_trip"), "{name}: the call is in the prompt: {text}");
        let speaking = Setup { script: Script::Answer(words(&text)), ..setup(template) }.start().await;
        let body = json!({"tools": tools(), "max_tokens": 1_500});
        let answer = speaking.chat(body.clone()).await.json();
        let choice = &answer["choices"][0];
        let parts = |call: &Value| {
            let function = call["function"].clone();
            let arguments = function["arguments"].as_str().unwrap_or_default().to_owned();
            let value = serde_json::from_str(&arguments).unwrap_or_else(|_| panic!("{name}: {arguments}\n{text}"));
            (function["name"].clone(), value)
        };
        let read = |calls: &Value| calls.as_array().into_iter().flatten().map(parts).collect::<Vec<(Value, Value)>>();
        assert_eq!(read(&choice["message"]["tool_calls"]), read(&calls), "{name}:\n{text}\n{answer}");
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {answer}");
        assert!(choice["message"]["content"].as_str().is_none_or(str::is_empty), "{name}: {answer}");
    }
    facts.format
}

#[tokio::test]
async fn en_5_what_a_family_of_templates_writes_of_a_call_is_read_as_the_same_call() {
    let checks = families().into_iter().map(|(format, template)| {
        tokio::spawn(async move {
            let name = format!("{format:?}");
            assert_eq!(check(&name, &template, format.may_call_several()).await, format, "{name} is recognised");
        })
    });
    assert_eq!(failed(checks.collect()).await, 0, "their panics are above");
}

#[test]
fn en_5_every_format_has_a_family_of_templates() {
    let families: BTreeSet<ToolFormat> = families().into_iter().map(|(format, _)| format).collect();
    let missing: Vec<_> = ToolFormat::ALL.iter().filter(|format| !families.contains(format)).collect();
    // A template that knows no tools has no calls.
    assert_eq!(missing, [&ToolFormat::Generic]);
}

/// A conversation with two calls and their results.
fn called() -> Value {
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    json!([
        {"role": "user", "content": "Where to?"}, {"role": "assistant", "content": "", "tool_calls": calls(2)},
        result("call00001", "noon"), result("call00000", "booked"),
    ])
}

async fn prompt(template: &str, messages: &Value) -> String {
    let rig = setup(template).start().await;
    let answer = rig.post("/apply-template", &json!({"messages": messages, "tools": tools()})).await;
    answer.json()["prompt"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

#[tokio::test]
async fn en_5_a_template_that_numbers_calls_gets_their_numbers() {
    let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% for c in m.tool_calls or [] %}\
                    <|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }} {% endfor %}\
                    {% if m.role == 'tool' %}Return of {{ m.tool_call_id }}: {{ m.content }} {% endif %}{% endfor %}";
    let prompt = prompt(template, &called()).await;
    for part in [
        "begin|>functions.plan_trip:0 ",
        "begin|>functions.clock:1 ",
        "of functions.clock:1: noon",
        "of functions.plan_trip:0: booked",
    ] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

#[tokio::test]
async fn en_5_a_template_that_knows_results_but_no_calls_writes_the_results_itself() {
    let template = "{% if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}{% for m in messages %}\
                    {{ m.role }}: {% if m.role == 'tool' %}<|tool_response_start|>{% endif %}{{ m.content }}\n{% endfor %}";
    let prompt = prompt(template, &called()).await;
    for part in [
        "assistant: <|tool_call_start|>[plan_trip(city=",
        ", clock()]<|tool_call_end|>",
        "tool: <|tool_response_start|>noon\n",
    ] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

/// The number of checks that panicked.
async fn failed<T>(checks: Vec<tokio::task::JoinHandle<T>>) -> usize {
    let mut failed = 0;
    for check in checks {
        failed += usize::from(check.await.is_err());
    }
    failed
}

/// `../shared/data/chat-templates` beside the repository, or a folder that the environment names.
fn real_templates() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MODEL_BOSS_CHAT_TEMPLATES") {
        return Some(named.into());
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let folder = repository.parent()?.join("shared/data/chat-templates");
    folder.join("cases.json").is_file().then_some(folder)
}

#[tokio::test]
async fn en_5_calls_that_real_templates_write_are_read() {
    let Some(folder) = real_templates() else {
        eprintln!("skipped: ../shared/data/chat-templates is not beside this repository");
        return;
    };
    let known = [
        ("Qwen2.5", ToolFormat::Hermes),
        ("Qwen3-0.6B", ToolFormat::Hermes),
        ("Qwen3-Coder", ToolFormat::QwenCoder),
        ("Llama-3.1", ToolFormat::Llama),
        ("Llama-3.2", ToolFormat::Llama),
        ("Nemo", ToolFormat::MistralList),
        ("Hermes-2-Pro", ToolFormat::Hermes),
        ("DeepSeek-R1", ToolFormat::DeepSeekFenced),
        ("GLM-4.6", ToolFormat::Glm),
        ("gpt-oss", ToolFormat::Harmony),
        ("granite-3.3", ToolFormat::Granite),
        ("gemma-2", ToolFormat::Generic),
        ("Phi-3.5", ToolFormat::Generic),
        ("SmolLM3", ToolFormat::Generic),
    ];
    let mut checks = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let template = fs::read_to_string(&path).unwrap();
        checks.push(tokio::spawn(async move {
            let several = ToolFormat::of_template(&template).may_call_several();
            let found = check(&name, &template, several).await;
            let expected = known.iter().find(|(part, _)| name.contains(part));
            assert!(expected.is_none_or(|(_, format)| *format == found), "{name}: {found:?}");
        }));
    }
    assert_eq!(failed(checks).await, 0, "their panics are above");
}
