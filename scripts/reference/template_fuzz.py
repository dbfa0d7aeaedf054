"""Compares chat templates made at random with Jinja2's rendering of them, and prints the differences.

Run it in a throw-away environment, outside of the repository:

    python3 -m venv VENV && VENV/bin/pip install jinja2==3.1.6
    cargo build -p model-boss-engine --example render_templates
    VENV/bin/python scripts/reference/template_fuzz.py --count 20000 --seed 1

`--write` writes the first small ones to worker/engine/tests/templates/random.json, which a test compares with.

A template that Jinja2 refuses has to be refused, and every other one has to give the same text. Texts with an address in
them, and complex numbers, are left out. The same seed makes the same templates. It exits with 1 if there are differences.
"""

import argparse
import collections
import json
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

from template_cases import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {
    "n": 5,
    "big": 123456789012345678,
    "f": 2.5,
    "s": "Hello <World>, it's ok",
    "u": "Größe ñ 日本 😀 ǆ",
    "multi": "one\n  two\r\nthree\n\n",
    "empty": "",
    "yes": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2, 1],
    "words": ["b", "A", "c", "a"],
    "mixed": [1, "a", None, 2.0, [1], {"k": 1}],
    "d": {"b": 1, "a": {"c": [1, 2]}, "items": "I", "keys": 3, "x y": True},
    "rows": [{"a": 2, "n": "x"}, {"a": 1, "n": "Y"}, {"a": 2, "n": "z"}],
    "ms": [
        {"role": "system", "content": " Be kind. "},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"x": 1.5, "y": "ü"}}}]},
        {"role": "tool", "content": "{\"r\": 1}", "name": "f", "tool_call_id": "c1"},
    ],
}
ATOMS = """
0|1|2|-1|3|7|10|2.0|-0.5|1e3|1e20|1e-7|0.1|100000000000000000000|true|false|none|True|None|''|'a'|'ab c'|"it's"|'é\\n'|'%s'|'a,b,,c'|'  x '|'12'|'-3.7'|'{}'
[]|[1, 2]|['a', 'b']|(1,)|(1, 'x')|()|{}|{'a': 1}|{'a': {'b': 2}, 'c': []}|{1: 'x', none: 2}|gone|n|big|f|s|u|multi|empty|yes|no|nil|l|words|mixed|d|rows|ms
ms[0]|ms[1].content|ms[2]|ms[-1].content|d.a|d.items|d.keys|range(4)|range(5, 0, -2)|'<b>'|safe|d.items()|d.keys()|d.values()|namespace(a=1, b='x')|dict(a=1)
cycler('a', 'b')|joiner('-')|(s | safe)|(l | map('string'))|'A' 'b'|1_000|[n, s][0]|'\\x41\\u00e9\\t'|'a\\'b'|loop|self|lipsum|dict|range|0x1F|0b11|1.5e-3
"""
METHODS = """
strip()|strip('a ')|lstrip()|rstrip('\\n')|split()|split(',')|split(' ', 1)|split(maxsplit=1)|split(sep=',')|rsplit(' ', 1)|rsplit(none, 1)|splitlines()|splitlines(true)
startswith('a')|startswith(('a', 'H'))|startswith('l', 2)|endswith('c')|endswith('k', 0, -1)|upper()|lower()|title()|capitalize()|swapcase()|casefold()
replace('a', 'z')|replace('a', 'z', 1)|replace('', '-')|replace('l', '', count=1)|find('o')|find('o', 5)|rfind('o')|index('b')|index(1)|rindex('l')|count('l')|count(1)
join(['x', 'y'])|join([1])|join('abc')|join(words)|isdigit()|isalpha()|isalnum()|isnumeric()|isdecimal()|isupper()|islower()|istitle()|isspace()|isascii()|isidentifier()|isprintable()
zfill(6)|ljust(8)|ljust(8, '.')|rjust(8, '*')|center(9)|center(9, '=')|partition(' ')|rpartition(',')|removeprefix('He')|removesuffix('ok')|expandtabs(4)
format(1, 'b')|format(a=1)|format(n)|format_map({'a': 1})|encode()|encode('utf-8')|encode() | length|encode().decode()|encode('ascii', 'replace')|translate({97: 'b'})
items()|items() | list|keys() | list|values() | list|get('a')|get('a', 5)|get('zz', 5)|get('a').c|copy()|pop('a')|update({'a': 2})|setdefault('q', 1)|append(1)|extend([1])|insert(0, 1)
sort()|reverse()|clear()|a|b|zz|zz.y|__class__|__class__.__name__|__len__()|_private|__dict__|format|items|keys|upper|bit_length()|hex()|is_integer()|as_integer_ratio()|real|imag|numerator|conjugate()
to_bytes(2, 'big')|next()|reset()|current|fromkeys(['a'])|role|content|content[0].text|tool_calls[0].function.arguments|start|stop|step|strip|count
"""
FILTERS = """
abs|attr('a')|attr('upper')|attr(1)|attr('__class__')|batch(2) | list|batch(3, 'z') | list|batch(3) | map('join', '-') | join('/')|capitalize|center(9)|center(width=4)|d('z')|default('z', true)|default(default_value='q', boolean=true)|default
dictsort|dictsort(true)|dictsort(by='value')|dictsort(reverse=true)|dictsort(false, 'value')|e|escape|forceescape|filesizeformat|filesizeformat(true)|first|float|float(1.5)|float(default='x')
format(1)|format('a', 2)|groupby('a') | list|groupby('a', default=0) | list|groupby('n', case_sensitive=true) | list|indent|indent(2)|indent(2, true)|indent(width=1, first=true, blank=true)|indent('>')
int|int(7)|int(base=16)|int('x')|int(0, 8)|items | list|join|join(', ')|join('-', attribute='a')|join(d='|')|last|length|count|list|lower|upper|title|trim|trim('a')|trim(chars=' H')
map('upper') | list|map('int') | list|map('default', 'q') | list|map(attribute='a') | list|map(attribute='a', default=0) | list|map(attribute='content.0.type') | list|map('replace', 'a', 'b') | list|map('nope') | list|map | list|map('length') | list|map('first') | join
max|min|max(attribute='a')|min(case_sensitive=true)|pprint|random|reject | list|reject('none') | list|reject('equalto', 1) | list|rejectattr('a') | list|rejectattr('a', 'equalto', 2) | list|replace('a', 'z')|replace('l', 'L', 1)|replace(1, 2)
reverse | list|reverse|round|round(1)|round(1, 'floor')|round(method='ceil')|round(-1)|round(2, 'nope')|safe|select | list|select('string') | list|select('in', [1, 'a']) | list|select('gt', 1) | list|select('nope') | list|selectattr('a') | list|selectattr('a', '>', 1) | list|selectattr('n', 'eq', 'x') | list|selectattr('role', 'in', ['user', 'tool']) | list
slice(2) | list|slice(3, 'z') | list|slice(3) | map('length') | list|sort|sort(reverse=true)|sort(attribute='a')|sort(attribute='a,n')|sort(case_sensitive=true)|sort(true, true)|sort(attribute='n', reverse=true)|string|string | length|striptags|sum|sum(start=10)|sum(attribute='a')|sum('a', 1)
tojson|tojson(indent=2)|tojson(indent=0)|tojson(indent='\\t')|tojson(indent=none)|tojson(ensure_ascii=true)|tojson(false)|tojson(true, 4)|tojson(sort_keys=true)|tojson(separators=(',', ':'))|tojson(indent=4, separators=(',', ': '), sort_keys=true)|tojson(separators=[',', ':'])|tojson(indent=true)|tojson(indent=-1)|tojson | safe|tojson(bad=1)
truncate(5)|truncate(9, true)|truncate(5, true, '')|truncate(5, false, '…', 0)|truncate(length=4, killwords=true, end='..', leeway=1)|unique | list|unique(true) | list|unique(attribute='a') | list|urlencode|urlize|urlize(10)|wordcount|wordwrap(5)|wordwrap(8, false)|wordwrap(7, wrapstring='|')|xmlattr|xmlattr(false)|nope|upper()|length()|strip
"""
TESTS = """
boolean|callable|defined|undefined|divisibleby(2)|divisibleby 3|divisibleby(0)|even|odd|false|true|float|integer|number|string|sequence|iterable|mapping|none|lower|upper|escaped
eq(1)|eq 'a'|equalto('a')|ne(1)|==(1)|gt(1)|ge 2|lt('b')|le(2)|greaterthan(1)|lessthan 3|in([1, 'a'])|in 'abc'|in d|in none|sameas(none)|sameas true|sameas(n)|sameas l|filter|test|nope|None|string()|defined()
"""
OPERATORS = "+ - * / // % ** ~ == != < <= > >= in and or".split() + ["not in", "%", "+", "~", "==", "in", "and", "or"]


def split(text):
    """The parts between bars: a bar in quotes, brackets or between spaces is no border."""
    parts = []
    for line in text.strip().split("\n"):
        part, quote, depth = "", None, 0
        for at, c in enumerate(line):
            if quote:
                quote = None if c == quote and line[at - 1] != "\\" else quote
            elif c in "'\"":
                quote = c
            else:
                depth += (c in "([{") - (c in ")]}")
            if c == "|" and not quote and depth == 0 and not (line[at - 1] == " " and line[at + 1 : at + 2] == " "):
                parts.append(part)
                part = ""
            else:
                part += c
        parts.append(part)
    return [part for part in parts if part]


ATOMS, METHODS, FILTERS, TESTS = split(ATOMS), split(METHODS), split(FILTERS), split(TESTS)
KNOWN = "n s u l words d rows ms mixed x y i m k a item loop ns f gone multi".split()


class Maker:
    """Templates by chance."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, options):
        return self.random.choice(options)

    def chance(self, share):
        return self.random.random() < share

    def expression(self, depth=2):
        if depth == 0 or self.chance(0.12):
            return self.pick(KNOWN) if self.chance(0.3) else self.pick(ATOMS)
        inner = lambda: self.expression(depth - 1)
        kind = self.random.randrange(13)
        if kind < 3:
            return f"{self.operand(depth)}.{self.pick(METHODS)}"
        if kind < 6:
            return f"{self.operand(depth)} | {self.pick(FILTERS)}"
        if kind == 6:
            return f"{self.operand(depth)} is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind < 9:
            return f"{self.operand(depth)} {self.pick(OPERATORS)} {self.operand(depth)}"
        if kind == 9:
            return self.pick([
                lambda: f"({inner()})[{inner()}]",
                lambda: f"({inner()})[{self.bound()}:{self.bound()}]",
                lambda: f"{self.operand(depth)}[{self.bound()}:{self.bound()}:{self.bound()}]",
                lambda: f"{self.operand(depth)}[{self.bound()}]",
                lambda: f"{self.operand(depth)}['{self.pick(KNOWN)}']",
            ])()
        if kind == 10:
            return self.pick([
                lambda: f"not {inner()}",
                lambda: f"-{inner()}",
                lambda: f"+{inner()}",
                lambda: f"{inner()} if {inner()} else {inner()}",
                lambda: f"{inner()} if {inner()}",
                lambda: f"{inner()} < {inner()} <= {inner()}",
                lambda: f"{self.operand(depth)} == {self.operand(depth)} != {self.operand(depth)}",
            ])()
        if kind == 11:
            return self.pick([
                lambda: f"[{inner()}, {inner()}]",
                lambda: f"({inner()}, {inner()})",
                lambda: f"{{'a': {inner()}, {inner()}: 2}}",
                lambda: f"{inner()}, {inner()}",
                lambda: f"{{'k': {inner()}}} | tojson",
            ])()
        return self.pick([
            lambda: f"'{self.pick(FORMATS)}' % {self.operand(depth)}",
            lambda: f"'{self.pick(FORMATS)}' % ({inner()}, {inner()})",
            lambda: f"'{self.pick(BRACES)}'.format({inner()}, a={inner()})",
            lambda: f"'{self.pick(BRACES)}'.format({inner()})",
            lambda: f"g({inner()})",
            lambda: f"g({inner()}, b={inner()})",
            lambda: f"range({inner()})",
            lambda: f"dict({inner()}, z=1)",
            lambda: f"raise_exception({inner()})",
        ])()

    def operand(self, depth):
        inner = self.expression(depth - 1)
        return inner if self.chance(0.2) else f"({inner})"

    def bound(self):
        return self.pick(["", "", "0", "1", "-1", "2", "-2", "9", "-9", "none", "n", "'a'", "true"])

    def text(self):
        return self.pick(["a", " ", "\n", "\n  ", " b\n", "\n\n", "  \n", "x{y}", "\t", "é", "\r\n", "<|im_start|>", "", "{ {", "% }", "#}"])

    def tag(self, inside):
        left, right = self.pick(["", "", "", "-", "+"]), self.pick(["", "", "", "-", "+"])
        space = self.pick([" ", " ", " ", "", "\n", "  "]) or (" " if inside[:1] in "+-" or inside[-1:] in "+-" else "")
        return f"{{%{left}{space}{inside}{space or ' '}{right}%}}"

    def shown(self, inside):
        left, right = self.pick(["", "", "", "-", "+"]), self.pick(["", "", "", "-"])
        return f"{{{{{left} {inside} {right}}}}}"

    def body(self, depth):
        return "".join(self.pick([self.text, self.text, lambda: self.statement(depth)])() for _ in range(self.random.randrange(1, 4)))

    def statement(self, depth):
        small = lambda: self.expression(1)
        if depth == 0 or self.chance(0.3):
            return self.shown(self.expression(2))
        body = lambda: self.body(depth - 1)
        tag = self.tag
        name = lambda: self.pick("x y i m k a ns n".split())
        sequence = lambda: self.pick(["l", "words", "rows", "ms", "range(3)", "d", "d.a.c", "'abc'", "[]", "gone", "[[1, [2]], [3]]", "[1, 1, 2]", small()])
        loops = ["loop.index", "loop.index0", "loop.first", "loop.last", "loop.previtem", "loop.nextitem", "loop.length", "loop.revindex", "loop.revindex0", "loop.depth", "loop.depth0", "loop.changed(i)", "loop.cycle('a', 'b')", "loop.nope", "loop.cycle()", "loop", "i", "loop.previtem is defined", "loop.nextitem.role", "loop.changed()"]
        return self.pick([
            lambda: tag(f"if {small()}") + body() + tag("endif"),
            lambda: tag(f"if {small()}") + body() + tag(f"elif {small()}") + body() + tag("else") + body() + tag("endif"),
            lambda: tag(f"for i in {sequence()}") + body() + self.shown(self.pick(loops)) + tag("endfor"),
            lambda: tag(f"for i in {sequence()} if {self.pick(['i', 'i is string', 'loop.index', 'i == 1', small()])}") + self.shown(self.pick(loops)) + body() + tag("else") + body() + tag("endfor"),
            lambda: tag(f"for k, i in {self.pick(['d.items()', 'd | dictsort', '[(1, 2), (3, 4)]', 'd', 'words', '{1: 2}.items()'])}") + self.shown("k") + body() + tag("endfor"),
            lambda: tag(f"for i in {sequence()} recursive") + self.shown(self.pick(["loop(i) if i is iterable and i is not string else i", "loop.depth"])) + tag("endfor"),
            lambda: tag(f"for i in {sequence()}") + tag(f"if {small()}") + tag(self.pick(["break", "continue"])) + tag("endif") + body() + tag("endfor"),
            lambda: tag(f"for i in {sequence()}") + tag(f"set x = {small()}") + tag("endfor") + self.shown("x"),
            lambda: tag("set ns = namespace(c=0)") + tag(f"for i in {sequence()}") + tag("set ns.c = ns.c + 1") + tag("endfor") + self.shown("ns.c"),
            lambda: tag(f"set {name()} = {self.expression(2)}") + self.shown(self.pick(KNOWN)),
            lambda: tag(f"set x, y = {small()}") + self.shown("[x, y]"),
            lambda: tag(f"set {self.pick(['x', 'x | upper', 'x | trim', 'x | replace(1, 2)'])}") + body() + tag("endset") + self.shown(self.pick(["x", "x | length", "[x]"])),
            lambda: tag(f"set {self.pick(['ns.a', 'd.a', 'x.y', 'loop'])} = {small()}"),
            lambda: tag(f"filter {self.pick(['upper', 'trim', 'indent(2)', 'replace(1, 2) | upper', 'nope', 'length', 'tojson'])}") + body() + tag("endfilter"),
            lambda: tag(f"with {self.pick(['', 'x = 1', 'x = n, y = x', 'a = ' + small()])}") + body() + self.shown("x") + tag("endwith"),
            lambda: tag(f"macro {self.pick(['g', 'h'])}({self.pick(['', 'a', 'a, b=2', 'a=1, b=a', 'a, b=n, c=gone', 'i'])})") + self.pick(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ a }}", "{{ caller is defined }}"]) + body() + tag("endmacro") + self.shown(self.pick(["g(1)", "h(1, 2)", "g()", "g(a=3)", "h(1, z=2)", "g", "g.name", "h.arguments", "g.catch_kwargs", "g(*l)", "g(**{'a': 1})", "h(1, 2, 3)"])),
            lambda: tag(f"call{self.pick(['', '(q)', '(q=1)'])} {self.pick(['g()', 'g(1)', 'h(a=1)'])}") + body() + "{{ q }}" + tag("endcall"),
            lambda: tag("raw") + self.pick(["{{ x }}", "{% if %}", "{# c #}", "\n a \n"]) + tag("endraw"),
            lambda: self.pick(["{# c #}", "{#- c -#}", "{# {{ x }} #}", "\n  {# c #}\n", "{#+ c +#}", "{##}", "{#-#}", "{# a\nb #}"]),
            lambda: tag("generation") + body() + tag("endgeneration"),
            lambda: tag(self.pick(["include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'", "do l", "block q", "endif", "break", "else", "set x", "autoescape true", "trans", "debug", "nope", "include 'x' ignore missing", "include ['a'] ignore missing", "set", "if", "for i in", "endblock", "print n", "print n, s"])),
            lambda: tag("block q") + body() + tag("endblock") + self.shown(self.pick(["self.q()", "n", "x"])),
            lambda: tag("autoescape true") + body() + tag("endautoescape"),
        ])()

    def template(self):
        begun = self.pick(["", "", "{% macro g(a, b=2) %}<{{ a }}{{ b }}>{% endmacro %}", "{% set ns = namespace(a=1) %}"])
        if self.chance(0.5):
            return begun + self.shown(self.expression(self.pick([1, 1, 2, 2, 3])))
        return begun + self.body(3)


FORMATS = ["%s", "%d", "%5.1f", "%r", "%x", "%%", "%s %s", "%-5s|", "%05d", "%+d", "%e", "%g", "%c", "%(a)s", "%s%%", "%", "%i", "%.3s", "%*d", "%#x", "%o", "%5s", "%a", "%G", "% d", "%.0f", "%y"]
BRACES = ["{}", "{0}", "{a}", "{0!r}", "{:>6}", "{:<6}|", "{:^7}", "{:05d}", "{:.2f}", "{:,}", "{:x}", "{:b}", "{0[a]}", "{0.a}", "{a[0]}", "{{}}", "{", "}", "{} {}", "{0} {a}", "{:s}", "{:d}", "{:e}", "{:%}", "{:+}", "{!s:*^9}", "{0.__class__}", "{:g}", "{:#x}", "{:_}", "{:c}", "{!a}", "{:{a}}", "{a!x}", "{0:=+6d}", "{:.3}", "{:010.3f}", "{:n}", "{1}", "{0}{}"]


# The committed file is without what the engine refuses on purpose.
REFUSED = re.compile(r"encode|to_bytes|translate|urlize|wordwrap|pprint|autoescape|lipsum|random|\brange\b(?!\()|\bdict\b(?!\()")
FILE = ROOT / "worker/engine/tests/templates/random.json"


# What the engine refuses by decision (ADR 43), by its words.
ABSENT = re.compile(r"the filter '\w+' is not supported|'?\w+'? (is|are) not supported|more than 127 bits")


class Timeout(Exception):
    pass


def late(*_):
    raise Timeout


def expected(template):
    """Jinja2's text, None where it refuses, False where it does not count."""
    # Some powers take Python for ever, and no signal ends them.
    if "**" in template and re.search(r"\bbig\b|0{9}", template):
        return False, ""
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        given = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **VARIABLES}
        text = ENVIRONMENT.from_string(template).render(**json.loads(json.dumps(given)))
    except Timeout:
        return False, ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    is_random = re.search(r" at 0x|\dj\)|lipsum", text) or re.search(r"\| random|lipsum\(", template)
    return (False, "") if is_random or len(text) > 1 << 20 else (text, "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shown", type=int, default=60, help="the most differences that are printed")
    parser.add_argument("--renderer", type=Path, default=ROOT / "target/debug/examples/render_templates")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, late)
    maker, templates = Maker(given.seed), []
    while len(templates) < given.count:
        templates.append(maker.template())
    if given.write:
        small = [template for template in templates if len(template) < 120 and not REFUSED.search(template)][:1500]
        cases = [(template, expected(template)[0]) for template in small]
        cases = [case for case in cases if case[1] is not False and len(case[1] or "") < 200]
        FILE.write_text(json.dumps({"variables": VARIABLES, "cases": cases}, ensure_ascii=False, separators=(",", ":")) + "\n")
        return
    lines = "".join(json.dumps({"template": template, "variables": VARIABLES}) + "\n" for template in templates)
    ours = subprocess.run([given.renderer], input=lines, capture_output=True, text=True, check=True).stdout.strip().split("\n")
    agree, refused, out, absent, wrong = 0, 0, 0, collections.Counter(), []
    for template, line in zip(templates, ours, strict=True):
        answer = json.loads(line)
        text, error = expected(template)
        if text is False:
            out += 1
        elif answer.get("text") == text:
            agree += 1
            refused += text is None
        elif text is not None and (found := ABSENT.search(answer.get("error", ""))):
            absent[found[0]] += 1
        else:
            wrong.append((len(template), template, answer, text if text is not None else error, text is None))
    groups = collections.OrderedDict()
    for _, template, answer, theirs, is_refused in sorted(wrong, key=lambda case: case[:2]):
        reason = re.sub(r"'[^']*'|\d+", "_", answer.get("error", "")) or ("refused: " + re.sub(r"'[^']*'|\d+|line.*", "_", theirs) if is_refused else template)
        groups.setdefault(reason, []).append((template, answer, theirs, is_refused))
    for cases in list(groups.values())[: given.shown]:
        template, answer, theirs, is_refused = cases[0]
        print(f"{len(cases)}× {template!r}\n   ours   {answer.get('text', answer)!r}\n   jinja2 {theirs!r}{' (refused)' if is_refused else ''}")
    for words, count in absent.most_common():
        print(f"{count}× refused on purpose: {words}")
    print(f"{agree} agree ({refused} of them refused), {len(wrong)} differ, {absent.total()} are refused on purpose, {out} do not count, seed {given.seed}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
