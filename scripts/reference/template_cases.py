"""Writes what Jinja2 makes of small templates: worker/engine/tests/templates/expected.json, which a test compares with.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install jinja2==3.1.6
    VENV/bin/python scripts/reference/template_cases.py

Jinja2 is set up as `transformers` sets it up for chat templates. Every operator meets every pair of values, every filter,
test and method meets every value, and slices have every bound and step. Further templates, one a line, are in
worker/engine/tests/templates/statements.txt. A case that Jinja2 refuses is null. Nothing is changed by hand.
"""

import json
from pathlib import Path

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = Path(__file__).resolve().parents[2] / "worker" / "engine" / "tests" / "templates"

VALUES = [
    "none", "true", "0", "-2", "2.5", "1e20", "''", "'ab c'", "'é'", "'3'", "[]", "[1, 2, 3]", "['b', 'A']", "[[1], none]", "{}",
    "{'a': 1, 'b': [2.5, 'q']}", "missing", "(1, 'x')", "range(3)", "'<' | safe", "namespace(a=1)", "f",
]
OPERATORS = "+ - * / // % ** ~ == != < <= > >= in and or".split() + ["not in"]
EXPRESSIONS = """
v[i] | [v[i]] | -v[i] | not v[i] | '%s' % v[i] | '%d' % v[i] | '%.2f' % v[i] | '{!r:>6}'.format(v[i]) | v[i].a | v[i].x | v[i]['a']
v[i][0] | v[i][-1] | v[i][9] | v[i].x.y | v[i][1:] | v[i][::-1] | v[i]() | {v[i]: 1} | {'a': v[i]} | [5, 6][v[i]] | v[i] if false
""".replace("\n", " | ").split(" | ")
TESTS = """
boolean callable defined divisibleby(2) even odd false true float ge(1) lt('b') in([1]) in('ab') in(none) in({'a':1}) integer iterable
lower mapping none number sameas(none) sequence string undefined upper escaped
""".split()
FILTERS = """
abs; attr('a'); batch(2) | list; capitalize; center(7); d('z'); d('z', true); dictsort; dictsort(by='value'); e; first; float; groupby(0);
indent; indent(2, true); int; int(base=16); items | list; join('-'); last; length; list; lower; map('upper') | list; map('string') | list;
map(attribute='a') | list; map(attribute=0, default='d') | list; max; min; reject('none') | list; replace('a', 'z'); reverse | list;
round; round(1); round(1, 'floor'); safe; select | list; select('string') | list; selectattr('a') | list; slice(2) | list; sort;
sort(reverse=true); string; striptags; sum; title; tojson; tojson(indent=2); tojson(sort_keys=true); trim; trim('a'); truncate(3);
truncate(3, true, ''); unique | list; upper; urlencode; wordcount; format(1); string | tojson
""".replace("\n", " ").split(";")
METHODS = """
strip(); strip('a'); split(); split('b'); split('b', 1); rsplit(' ', 1); splitlines(); startswith('a'); startswith(('a', 'x')); endswith('c');
upper(); title(); capitalize(); swapcase(); replace('a', 'z'); find('b'); rfind('b'); index('b'); index(1); count('a'); join(['x', 'y']);
join([1]); isdigit(); isalpha(); isupper(); isspace(); zfill(4); ljust(5); center(5); partition(' '); removeprefix('a'); items() | list;
keys() | list; values(); get('a'); get('x', 5); append(1); pop(); update({'a': 2}); append; copy(); x(); bit_length(); is_integer()
""".replace("\n", " ").split(";")
LOOPS = [
    "{% for x in v[i] %}[{{ x }}]{% else %}none{% endfor %}",
    "{% for a, b in v[i] %}{{ a }}{% endfor %}",
    "{% for a, b in v[i].items() %}{{ a }}={{ b }},{% endfor %}",
    "{% if v[i] %}t{% endif %}",
]
SLICED = ["''", "'a'", "'abcdé'", "[]", "[1, 2]", "[1, 2, 3, 4, 5]", "(1, 2, 3)", "range(4)"]
BOUNDS = [None, 0, 1, 3, -1, -3, 9, -9]
STEPS = [None, 1, 2, -1, -2, 9, -9, 0]
VARIABLES = {
    "n": 5,
    "s": "hello world",
    "l": [3, 1, 2],
    "d": {"b": 1, "a": {"c": [1, 2]}},
    "ms": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    ],
}


class Generation(Extension):
    """The tag that marks the assistant's words for training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Mapping:
    """`dict` in templates: it may be called, and makes mappings of keys."""

    def __call__(self, *places, **names):
        return dict(*places, **names)

    def fromkeys(self, *places, **names):
        return dict.fromkeys(*places, **names)


class Names(jinja2.utils.Namespace):
    """`namespace` in templates: no name in it begins with an underscore."""

    def __init__(*places, **names):
        given = dict(*places[1:], **names)
        for name in given:
            Names.check(name)
        jinja2.utils.Namespace.__init__(places[0], given)

    def __setitem__(self, name, value):
        Names.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception
ENVIRONMENT.globals["dict"] = Mapping()
ENVIRONMENT.globals["namespace"] = Names


def rendered(template, **variables):
    """The text, or None where Jinja2 refuses. False where it depends on the run, as addresses do, or is no prompt."""
    given = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **variables}
    try:
        text = ENVIRONMENT.from_string(template).render(**given)
    except Exception:
        return None
    # Complex numbers are refused by us.
    return False if " at 0x" in text.lower() or text.endswith("j)") else text


def main():
    values = "{% macro f() %}m{% endmacro %}{% set v = [" + ", ".join(f"({value})" for value in VALUES) + "] %}"
    slices = "{% set v = [" + ", ".join(SLICED) + "] %}"
    expressions = [*EXPRESSIONS, *(f"v[i] is {test}" for test in TESTS), *(f"v[i] | {name.strip()}" for name in FILTERS)]
    expressions += [f"v[i].{method.strip()}" for method in METHODS]
    # Spaces keep the braces of a mapping apart from the tag's.
    singles = [f"{{{{ {expression.strip()} }}}}" for expression in expressions if expression.strip()] + LOOPS
    # A power of these takes minutes.
    is_slow = lambda operator, i, j: operator == "**" and "1e20" in (VALUES[i], VALUES[j])
    places = range(len(VALUES))
    expected = {
        "pairs": {"prelude": values, "cases": {
            operator: [
                False if is_slow(operator, i, j) else rendered(f"{values}{{{{ v[i] {operator} v[j] }}}}", i=i, j=j)
                for i in places for j in places
            ]
            for operator in OPERATORS
        }},
        "singles": {"prelude": values, "cases": {single: [rendered(values + single, i=i) for i in places] for single in singles}},
        "slices": {"prelude": slices, "bounds": BOUNDS, "cases": {
            step: [
                rendered(f"{slices}{{% set p = v[i][a:b{':' + step if step else ''}] %}}{{{{ p if p is string else p | join }}}}", i=i, a=a, b=b)
                for i in range(len(SLICED)) for a in BOUNDS for b in BOUNDS
            ]
            for step in ["" if step is None else str(step) for step in STEPS]
        }},
        "statements": {"variables": VARIABLES, "cases": [
            rendered(line.replace("\\n", "\n"), **VARIABLES) for line in (FOLDER / "statements.txt").read_text().splitlines()
        ]},
    }
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / "expected.json").write_text(text + "\n")
    print(f"{len(text.encode()):,} bytes")


if __name__ == "__main__":
    main()
