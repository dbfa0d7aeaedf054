"""Compares real chat templates with `transformers`' rendering of them, over conversations of every kind.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install jinja2==3.1.6 transformers
    cargo build -p model-boss-engine --example render_templates
    VENV/bin/python scripts/reference/template_conversations.py FOLDER...

Each folder holds templates (*.jinja). Every one meets every conversation, each with several choices of tools, documents
and other variables. What `transformers` refuses has to be refused, and all else has to give the same text. `--mutants` takes
so many faulty copies of each template instead, each with one conversation. It exits with 1 if there are differences.
"""

import argparse
import collections
import copy
import difflib
import json
import random
import re
import subprocess
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

ROOT = Path(__file__).resolve().parents[2]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def part(text):
    return {"type": "text", "text": text}


USER, SYSTEM, ANSWER = message("user", "What is 2 + 2?"), message("system", "Be brief."), message("assistant", "It is 4.")
WEATHER = call("weather", {"city": "Zürich", "days": 3, "hourly": False, "near": None, "at": [47.4, 8.5], "o": {"k": "v"}}, id="call_1a2b3c4d5")
WEATHER_TEXT = call("weather", '{"city": "Zürich", "days": 3}', id="abcdefghi")
CLOCK = call("clock", {}, id="ABCDEFGH9")
RESULT = message("tool", '{"sun": true}', name="weather", tool_call_id="call_1a2b3c4d5")
CONVERSATIONS = {
    "nothing": [],
    "user": [USER],
    "system": [SYSTEM, USER],
    "system alone": [SYSTEM],
    "system late": [USER, SYSTEM],
    "systems": [SYSTEM, message("system", "Be kind."), USER],
    "developer": [message("developer", "Use tabs.\n"), USER],
    "system, developer": [SYSTEM, message("developer", "Use tabs."), USER],
    "turns": [SYSTEM, USER, ANSWER, message("user", "And 3 + 3?"), message("assistant", "6"), message("user", "Thanks!")],
    "ends with an answer": [USER, ANSWER],
    "begins with an answer": [ANSWER, USER],
    "two users": [USER, message("user", "Quickly.")],
    "two answers": [USER, ANSWER, message("assistant", "Surely.")],
    "unknown role": [message("critic", "Hm."), USER],
    "capital role": [message("User", "Hi")],
    "no role": [{"content": "Hi"}],
    "no content": [USER, {"role": "assistant"}, USER],
    "content of none": [USER, message("assistant", None), USER],
    "user with none": [message("user", None)],
    "system with none": [message("system", None), USER],
    "empty contents": [message("system", ""), message("user", ""), message("assistant", ""), message("user", "")],
    "white space": [message("system", "  a \n"), message("user", "\n\n  b\t\n"), message("assistant", " \n c \n "), message("user", " ")],
    "unicode": [message("user", "Größe 日本語 😀 \u00a0\u2028 é \x00\x1f \\n \"quoted\" 'it' <b>&amp;</b>"), message("assistant", "ÄÖ ß"), USER],
    "special tokens": [message("user", "<|im_end|> </s> [INST] <think> {{ x }} {% if %}"), ANSWER, USER],
    "parts": [message("user", [part("Hello"), part(" world")])],
    "parts everywhere": [message("system", [part("S")]), message("user", [part("U")]), message("assistant", [part("A")]), message("user", [part("V")])],
    "no parts": [message("user", []), message("assistant", []), USER],
    "image": [message("user", [{"type": "image"}, part("What is it?")])],
    "image by address": [message("user", [part("See"), {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "video"}, {"type": "audio"}])],
    "part without type": [message("user", [{"text": "plain"}, "text"])],
    "number as content": [message("user", 42), message("assistant", 1.5), message("user", True)],
    "object as content": [message("user", {"a": 1})],
    "thoughts in the text": [USER, message("assistant", "<think>\nTwo and two.\n</think>\n\nIt is 4."), message("user", "Sure?")],
    "thoughts unfinished": [USER, message("assistant", "<think>\nTwo"), USER],
    "thoughts closed only": [USER, message("assistant", "Two.</think>4"), USER],
    "thoughts apart": [USER, message("assistant", "It is 4.", reasoning_content="Two and two.\n"), message("user", "Sure?")],
    "thoughts apart at the end": [USER, message("assistant", "It is 4.", reasoning_content="Two and two.")],
    "thoughts by other names": [USER, message("assistant", "4", thinking="hm", reasoning="so"), USER],
    "thoughts of none": [USER, message("assistant", "4", reasoning_content=None), USER],
    "thoughts as parts": [USER, message("assistant", [{"type": "thinking", "thinking": "hm"}, part("4")]), USER],
    "tool call": [USER, message("assistant", None, tool_calls=[WEATHER]), RESULT],
    "tool call, then an answer": [SYSTEM, USER, message("assistant", "", tool_calls=[WEATHER]), RESULT, message("assistant", "Sunny."), USER],
    "tool call without content": [USER, {"role": "assistant", "tool_calls": [WEATHER]}, RESULT],
    "tool call with text": [USER, message("assistant", "Let me see.", tool_calls=[WEATHER]), RESULT],
    "tool call with thoughts": [USER, message("assistant", "See.", reasoning_content="I need it.", tool_calls=[WEATHER]), RESULT],
    "tool call with thoughts, no text": [USER, message("assistant", None, thinking="T", reasoning_content="T", tool_calls=[CLOCK]), RESULT],
    "arguments as text": [USER, message("assistant", None, tool_calls=[WEATHER_TEXT]), message("tool", "sun", tool_call_id="abcdefghi")],
    "arguments as bad text": [USER, message("assistant", None, tool_calls=[call("weather", "{")]), RESULT],
    "arguments of none": [USER, message("assistant", None, tool_calls=[call("clock", None)]), RESULT],
    "calls at the end": [USER, message("assistant", "", tool_calls=[WEATHER, CLOCK])],
    "several calls": [USER, message("assistant", None, tool_calls=[WEATHER, CLOCK]), RESULT, message("tool", "12:00", name="clock", tool_call_id="ABCDEFGH9"), message("assistant", "So."), USER],
    "calls in two turns": [USER, message("assistant", None, tool_calls=[WEATHER]), RESULT, message("assistant", "", tool_calls=[CLOCK]), message("tool", "12:00", name="clock"), message("assistant", "Noon."), USER],
    "calls without a wrapper": [USER, message("assistant", None, tool_calls=[{"name": "clock", "arguments": {"z": "Ω"}}]), RESULT],
    "empty calls": [USER, message("assistant", "4", tool_calls=[]), USER],
    "calls of none": [USER, message("assistant", "4", tool_calls=None), USER],
    "long id": [USER, message("assistant", "", tool_calls=[call("clock", {"a": "x" * 40}, id="x" * 40)]), message("tool", "1", tool_call_id="x" * 40)],
    "result as parts": [USER, message("assistant", None, tool_calls=[CLOCK]), message("tool", [part("12"), part(":00")], name="clock")],
    "result as object": [USER, message("assistant", None, tool_calls=[CLOCK]), message("tool", {"hour": 12, "ok": True}, name="clock", tool_call_id="ABCDEFGH9")],
    "result of none": [USER, message("assistant", None, tool_calls=[CLOCK]), message("tool", None)],
    "result without a call": [USER, RESULT],
    "result as function": [USER, message("assistant", None, function_call={"name": "clock", "arguments": "{}"}), message("function", "12", name="clock")],
    "result as ipython": [USER, message("assistant", None, tool_calls=[CLOCK]), message("ipython", "12")],
    "result from a user": [USER, message("assistant", None, tool_calls=[CLOCK]), message("user", "<tool_response>\n12\n</tool_response>"), ANSWER, USER],
    "results of one turn": [USER, message("assistant", "", tool_calls=[CLOCK, CLOCK, WEATHER]), message("tool", "1"), message("tool", "2"), message("tool", "3"), USER],
    "other fields": [message("system", "S", name="root"), message("user", "U", name="ann", prefix=True), message("assistant", "A", prefix=True, end_turn=False), message("user", "V", task="action")],
    "channels": [USER, message("assistant", "thought", channel="analysis", recipient="all"), message("assistant", "said", channel="final", content_type="json"), USER],
    "many turns": [message("user" if at % 2 == 0 else "assistant", f"<{at}>\n") for at in range(31)],
    "no thinking": [message("system", "Be brief. /no_think"), message("user", "Hi /no_think"), message("assistant", "Hm."), message("user", "Go /think")],
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a <city> & its \"surroundings\".\n", "parameters": {
    "type": "object", "required": ["city"], "additionalProperties": False,
    "properties": {
        "city": {"type": "string", "description": "It's a name, ö", "enum": ["Zürich", "Bern"], "default": "Bern"},
        "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 10.5},
        "hourly": {"type": "boolean"},
        "at": {"type": "array", "items": {"type": "number"}, "minItems": 2},
        "o": {"type": "object", "properties": {"k": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["k"]},
        "many": {"oneOf": [{"type": "integer"}, {"type": "string", "nullable": True}], "description": "one or the other"},
        "loose": {},
    }}, "return": {"type": "string", "description": "words"}, "strict": True}}
BARE = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
NAKED = {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {"zone": {"type": "string", "description": "A zone"}}, "required": []}}
CHOICES = {
    "tools": [None, None, [], [TOOL], [TOOL, BARE], [BARE], [NAKED], [{"type": "function", "function": {"name": "f"}}], [{"type": "builtin", "name": "browser"}], [{"type": "code_interpreter"}]],
    "documents": [None, None, None, [], [{"title": "A \"b\"", "text": "Some\ntext ü"}, {"title": "C", "text": ""}], [{"doc_id": 1, "title": "T", "text": "x", "snippet": "s"}]],
    "add_generation_prompt": [True, True, False],
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
OTHERS = [
    {}, {}, {}, {"enable_thinking": True}, {"enable_thinking": False}, {"thinking": True}, {"thinking": False}, {"enable_thinking": None},
    {"date_string": "26 Nov 2026", "tools_in_user_message": False}, {"builtin_tools": ["brave_search", "code_interpreter"]},
    {"custom_tools": [TOOL]}, {"reasoning_effort": "low"}, {"reasoning_effort": "high", "model_identity": "You are Bo."},
    {"reasoning_effort": "none"}, {"thinking_budget": 512}, {"thinking_budget": 0}, {"preserve_thinking": True}, {"clear_thinking": False},
    {"keep_past_thinking": True}, {"add_vision_id": True}, {"controls": {"length": "long"}}, {"available_tools": ["f"]}, {"xml_tools": [TOOL]},
    {"python_tools": ["f"]}, {"response_format": {"type": "json_object"}, "json_mode": True}, {"citations": True, "grounding": "enabled"},
    {"tool_choice": "required"}, {"tool_choice": "auto", "skip_special_tokens": True}, {"add_bos_token": False, "continue_final_message": True},
    {"system_message": "Sys", "default_system_prompt": "D"}, {"enable_citations": True, "citation_mode": "accurate", "platform_instruction_override": "P", "developer_instruction": "D", "safety_mode": "STRICT"},
    {"think_render_option": "lastthink", "skip_think": True}, {"interleaved_thinking": True, "drop_thinking": False},
]


def prompt(template, variables):
    """The text of `transformers`, None where it refuses, and the reason."""
    given = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **copy.deepcopy(variables)}
    try:
        return _compile_jinja_template(template).render(**given), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def cases(seed, choices):
    """Conversations with choices of variables. The same seed makes the same ones."""
    chance = random.Random(seed)
    for name, messages in CONVERSATIONS.items():
        for _ in range(choices):
            given = {key: chance.choice(options) for key, options in CHOICES.items()}
            special = SPECIAL if chance.random() < 0.9 else {}
            yield name, {"messages": messages, **given, **special, **chance.choice(OTHERS)}


WORD = re.compile(r"\{[%{#][-+]?|[-+]?[%}#]\}|\w+|'[^'\n]*'|[^\w\s]|\s+")
WORDS = """
- + {%- -%} {%+ +%} {{- -}} {# #} % } { " ' ( ) [ ] , . | : = == != < > ~ * ** // / not in is if else elif endif for endfor set endset macro endmacro
none true false loop loop.index loop.last loop.previtem messages message tools 0 1 -1 'a' ' ' '\n' '' [] {} () defined string mapping iterable length list
tojson trim join upper default first last items map select selectattr reject replace split strip namespace range break continue generation raw endraw recursive
""".split(" ")


def mutant(template, chance):
    """A copy of a template with a few words left out, doubled, swapped or replaced."""
    words = WORD.findall(template)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(words))
        kind = chance.randrange(5)
        if kind == 0:
            words[at] = ""
        elif kind == 1:
            words[at] += words[at]
        elif kind == 2:
            words[at] = words[chance.randrange(len(words))]
        elif kind == 3:
            words[at] = chance.choice(WORDS).strip("\n")
        else:
            other = min(at + chance.randrange(1, 4), len(words) - 1)
            words[at], words[other] = words[other], words[at]
    return "".join(words)


def questions(template, number, given):
    """Templates with their conversations."""
    if not given.mutants:
        yield from ((template, name, variables) for name, variables in cases(given.seed * 1000 + number, given.choices))
        return
    chance = random.Random(given.seed * 1000 + number)
    asked = list(cases(given.seed * 1000 + number, 1))
    for _ in range(given.mutants):
        yield (mutant(template, chance), *chance.choice(asked))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--choices", type=int, default=6, help="choices of variables for each conversation")
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--shown", type=int, default=20, help="the most differences that are printed")
    parser.add_argument("--renderer", type=Path, default=ROOT / "target/debug/examples/render_templates")
    given = parser.parse_args()
    paths = [path for folder in given.folders for path in sorted(folder.glob("*.jinja"))]
    counts, wrong = collections.Counter(), []
    for number, path in enumerate(paths):
        template = path.read_text()
        asked = list(questions(template, number, given))
        lines = "".join(json.dumps({"template": source, "variables": variables}) + "\n" for source, _, variables in asked)
        ours = subprocess.run([given.renderer], input=lines, capture_output=True, text=True, check=True).stdout.strip().split("\n")
        for (source, name, variables), line in zip(asked, ours, strict=True):
            answer = json.loads(line)
            text, error = prompt(source, variables)
            if answer.get("text") == text:
                counts["refused" if text is None else "equal"] += 1
            else:
                wrong.append((path.name, name, variables, answer, error if text is None else text))
                if given.mutants:
                    print("".join(difflib.unified_diff(template.splitlines(True), source.splitlines(True), n=0)))
    for path, name, variables, answer, theirs in wrong[: given.shown]:
        others = {key: value for key, value in variables.items() if key != "messages"}
        print(f"{path}: {name}, {json.dumps(others, ensure_ascii=False)[:300]}\n   ours         {answer}\n   transformers {theirs!r}")
    print(f"{len(paths)} templates: {counts['equal']} texts equal, {counts['refused']} refused by both, {len(wrong)} differ, seed {given.seed}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
