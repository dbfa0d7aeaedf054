"""Third-party clients, unchanged, each in a small program of `suite/` with an environment of its own.

The head of a program lists the packages that it needs, in pinned versions. Programs that install in seconds run always;
MODEL_BOSS_TEST_CLIENTS=all (`scripts/test --all`) runs all of them in their newest versions, and writes the versions that
passed into docs/clients-tested.md.
"""

import contextlib
import functools
import hashlib
import html
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

import pytest

from conftest import REPOSITORY, coordinator

SUITE = pathlib.Path(__file__).parent / "suite"
BUILT = REPOSITORY / "target/clients-suite"
PAGE = REPOSITORY / "docs/clients-tested.md"
ALL = os.environ.get("MODEL_BOSS_TEST_CLIENTS") == "all"
# The pinned version after a package's name. It is removed for the newest versions; an upper bound (`<0.4`) is kept.
PINNED = r"==.*|(?<=.)@[^@/]*$"


def spelt(name):
    """A Python package's name in its normal form, so that names can be compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Program:
    def __init__(self, path):
        self.path = path
        self.name = path.name.partition("_client.")[0]
        self.is_python = path.suffix == ".py"
        head = dict(re.findall(r"^(?:#|//) (\w+): (.+)$", path.read_text(), re.MULTILINE))
        self.pinned, self.speaks, self.always = head["needs"].split(), head["speaks"], head["when"] == "always"

    def needs(self):
        """The packages to install."""
        return [re.sub(PINNED, "", package) for package in self.pinned] if ALL else self.pinned

    def folder(self):
        """The folder of the installed packages. Programs with equal names and packages share one."""
        mark = hashlib.sha256(" ".join(self.needs()).encode()).hexdigest()[:8]
        return BUILT / f"{self.name}-{mark}"

    def install(self):
        """The command line that runs the program."""
        folder, done = self.folder(), self.folder() / "installed"
        if ALL or not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for command in self.installing(folder):
                made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
                if made.returncode:
                    pytest.skip(f"{self.name} cannot be installed, no network? {(made.stderr or made.stdout)[-300:]}")
            done.touch()
        if self.is_python:
            return [folder / "venv/bin/python", "-B", self.path]
        # Node searches packages from a module's own folder upwards.
        for module in [self.path, SUITE / "question.mjs"]:
            shutil.copy(module, folder)
        return ["node", folder / self.path.name]

    def installing(self, folder):
        if self.is_python:
            pip = [folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20"]
            return [[sys.executable, "-m", "venv", folder / "venv"], [*pip, "--retries", "1", *self.needs()]]
        if not shutil.which("npm"):
            pytest.skip(f"{self.name} needs node and npm")
        return [["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *self.needs()]]

    def installed(self):
        """The installed versions of the needed packages, with their upper bounds."""
        names = [re.sub(rf"\[.*?\]|<.*|{PINNED}", "", package) for package in self.pinned]
        if self.is_python:
            command = [self.folder() / "venv/bin/pip", "list", "--format", "json", "--disable-pip-version-check"]
            listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            versions = {spelt(package["name"]): package["version"] for package in listed}
            bounds = [f" (`<{package.partition('<')[2]}`)" if "<" in package else "" for package in self.pinned]
            return [f"{name} {versions[spelt(name)]}{bound}" for name, bound in zip(names, bounds)]
        manifests = [self.folder() / "node_modules" / name / "package.json" for name in names]
        return [f"{name} {json.loads(path.read_text())['version']}" for name, path in zip(names, manifests)]


PROGRAMS = [Program(path) for path in sorted(SUITE.glob("*_client.*"))]


@pytest.fixture(scope="session")
def passed(request):
    """The programs that passed; the page is written from them. Programs that were not chosen (`-k`) keep their lines."""
    passed = {}
    yield passed
    if ALL:
        # Other tests have parameters of their own.
        parameters = [item.callspec.params for item in request.session.items if "callspec" in dir(item)]
        chosen = {of_test["program"].name for of_test in parameters if "program" in of_test}
        PAGE.write_text(page(passed, chosen, PAGE.read_text()))


def page(passed, chosen, before):
    lines = [
        "# Clients that are tested",
        "",
        "This page is made by `scripts/test --all`, which runs each program of [tests/clients/suite](../tests/clients/suite) in the newest",
        "versions of its packages against a coordinator with the built-in model. `scripts/test` runs those that install in seconds.",
        "",
        "| program | language | API | versions that passed | in `scripts/test` |",
        "|---|---|---|---|---|",
    ]
    for program in PROGRAMS:
        versions = ", ".join(passed.get(program.name, ["none"]))
        language, always = "Python" if program.is_python else "JavaScript", "yes" if program.always else "no"
        line = f"| `{program.name}` | {language} | {program.speaks} | {versions} | {always} |"
        kept = re.search(rf"^\| `{program.name}` \| {language} \|.*$", before, re.MULTILINE)
        lines.append(line if program.name in chosen or kept is None else kept.group())
    browser = re.search(r"in a browser: (.+?)\. `scripts/test`", before)
    browser = ", ".join(passed["browser"]) if "browser" in passed else browser.group(1) if browser else "none"
    lines += [
        "",
        f"A page of an allowed site, and one of another, in a browser: {browser}. `scripts/test` tries it where there is one on PATH.",
        "Ollama's command line comes in no package: its requests, as its source has them, are those of the tests",
        "`en_7_what_ollamas_command_line_asks_first_is_answered` and `en_7_every_command_of_ollamas_command_line_gets_what_it_reads`.",
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("program", [p for p in PROGRAMS if ALL or p.always], ids=lambda program: program.name)
def test_a_client_behaves_as_with_the_server_it_was_written_for(program, guide_url, passed):
    command = program.install()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODEL_BOSS_")}
    environment |= {"MODEL_BOSS_ROOT": guide_url.removesuffix("/v1")}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3_000:]
    passed[program.name] = program.installed()


def test_a_run_of_some_programs_keeps_the_lines_of_the_others():
    everything = {program.name: [f"{program.name} 1.0"] for program in PROGRAMS} | {"browser": ["Chromium 1.0"]}
    names = {program.name for program in PROGRAMS}
    before = page(everything, names, "")
    assert page({}, set(), before) == before
    first = PROGRAMS[0].name
    after = page({first: ["newer 2.0"]}, {first}, before)
    assert after == before.replace(f"{first} 1.0", "newer 2.0")
    # A program that was chosen and did not pass has no version.
    assert f"{first} 1.0" not in page({}, {first}, before)


@contextlib.contextmanager
def site():
    """A site with the page of the suite."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SUITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_page_of_an_allowed_site_asks_in_a_browser_and_one_of_another_does_not(tmp_path, passed):
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    if browser is None:
        pytest.skip("there is no Chromium on PATH")
    source = tmp_path / "models/echo"
    source.mkdir(parents=True)
    (source / "fake.json").write_text('{"echo": true}')
    (tmp_path / "manifests").mkdir()
    manifest = f'name = "echo"\nvram = "64MiB"\nsource = {{ path = "{source}" }}\n'
    (tmp_path / "manifests/echo.toml").write_text(manifest)

    def said(site, root):
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        command += [f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=60000", "--dump-dom"]
        shown = subprocess.run([*command, f"{site}/page.html?root={root}"], capture_output=True, text=True, timeout=120)
        body = re.search(r"<body>\s*(\{.*\})\s*</body>", shown.stdout, re.DOTALL)
        assert body, shown.stdout + shown.stderr[-1_000:]
        return json.loads(html.unescape(body.group(1)))

    with site() as allowed, site() as other:
        with coordinator(tmp_path, "model-boss-fake-worker", f'allowed_origins = ["{allowed}"]\n') as url:
            root = url.removesuffix("/v1")
            assert said(allowed, root) == {
                "whole": [200, "chat.completion", "echo"],
                "stream": True,
                "refused": [404, "model_not_found"],
                "malformed": [400, "invalid_request"],
                "anthropic": "message",
                "ollama": True,
                "events": "open",
            }
            refused = said(other, root)
            assert refused.pop("events") == "refused"
            assert set(refused.values()) == {"TypeError"}, refused
    version = subprocess.run([browser, "--version"], capture_output=True, text=True, check=True).stdout
    passed["browser"] = [re.search(r"\w+ [\d.]+", version).group()]
