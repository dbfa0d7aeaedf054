//! TR-5 under load: `tasks.yaml` and manifests are edited at random while clients send requests to a real coordinator.
//! No invalid version is ever in use, no older one returns, and no request fails. Faults are reported with line and
//! field, and a model whose manifest stays the same stays loaded.
//!
//! The tests run a fixed number of edits. For more: `MODEL_BOSS_CHAOS_EDITS=10000 MODEL_BOSS_CHAOS_SEED=7 cargo nextest
//! run -P chaos -p model-boss-tests config_chaos`.

mod edited;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use model_boss_tests::{
    Answer, Behaviour, Boss, Client, Dice, PATIENCE, Sandbox, amount, binary, question, text_of_events, until,
};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use edited::{Edited, Good, Kind, Stands, away};

/// The default number of edits.
const EDITS: u64 = 100;
/// The most edits in a row before the test checks which version the coordinator uses.
const BURST: u64 = 20;
/// The longest time between two edits, in milliseconds: several edits may happen between two reads of the coordinator,
/// and some span two reads.
const BETWEEN_MS: u64 = 150;
/// The interval between requests of each client.
const ASK: Duration = Duration::from_millis(25);

/// The ladder of the task `chat` in version `number`.
const fn ladder(number: u64) -> &'static [&'static str] {
    match number % 4 {
        0 => &["alpha", "beta"],
        1 => &["beta", "alpha"],
        2 => &["gamma", "alpha"],
        _ => &["nobody", "alpha"],
    }
}

fn tasks_text(number: u64) -> String {
    let ladder = ladder(number).join("\", \"");
    format!(
        "clients:\n  phone: {{models: {{\"gpt\": \"task:chat\"}}}}\ntasks:\n  chat:\n    ladder: [\"{ladder}\"]\n    \
         params: {{\"seed\": {number}}}\n  second:\n    ladder: [\"alpha\"]\n    params: {{\"seed\": {number}}}\n"
    )
}

const TASKS: Kind = Kind {
    text: tasks_text,
    faults: &[
        (8, "    lader: [alpha]", ":8: tasks.second.lader: unknown field"),
        (6, "    params: [1]", ":6: tasks.chat.params"),
        (9, "    priority: 11", ":9: tasks.second.priority"),
        (8, "    ladder: [alpha, alpha]", ":8: tasks.second.ladder[1]"),
        (8, "    ladder: []", ":8: tasks.second.ladder"),
        (2, "  phone: {models: {gpt: 'task:chta'}}", ":2: clients.phone.models.gpt"),
        (3, "taks:", ":3: taks: 'taks' is no section"),
        (9, "    budget_s: -1", ":9: tasks.second.budget_s"),
        (7, "  chat:", ":7: "),
        (5, "    ladder: [*nothing]", ":5: "),
    ],
    words: [
        ": is not a text in UTF-8",
        ": has 1048577 bytes",
        ":1: the file is empty",
        ": is not there",
        ": cannot be read: it is not a file",
    ],
    may_vanish: true,
    absence: |name| Stands::Bad(format!("{name}: is not there")),
};

/// The context of a model, which shows the version of the manifest that its worker was started with.
const fn context(number: u64) -> u64 {
    4_096 + number
}

fn manifest_text(name: &str, number: u64) -> String {
    format!(
        "name = \"{name}\"\nsource = {{ path = \"../models/{name}\" }}\nvram = \"64MiB\"\nversion = \"{number}\"\n\
         description = \"version {number}\"\ncontext_length = {}\n",
        context(number)
    )
}

/// A manifest that is always present: clients request its model by name.
const STEADY: Kind = Kind {
    text: |number| manifest_text("beta", number),
    faults: &[
        (3, "vrma = \"64MiB\"", ":3: unknown field `vrma`"),
        (4, "version = \"7", ":4: "),
        (1, "name = \"be ta\"", ":1: 'be ta' cannot name a model"),
        (5, "max_concurrent = 0", ":5: 'max_concurrent' must be at least 1"),
        (5, "pin = \"perhaps\"", ":5: "),
        (5, "aliases = [\"alpha\"]", ":5: 'aliases': 'alpha' already belongs to"),
        (5, "vram_mb = 64", ":5: 'vram' and 'vram_mb' say the same thing"),
    ],
    words: [": is not a text in UTF-8", ": is larger than 1 MiB", ": 'name' is missing", ": cannot be read", ""],
    may_vanish: false,
    absence: |_| Stands::Absent,
};

/// A manifest that is absent at times: its model is only on ladders.
const FLEETING: Kind = Kind { text: |number| manifest_text("gamma", number), may_vanish: true, ..STEADY };

/// The requests that a client repeats.
#[derive(Clone, Copy, Debug)]
enum Question {
    Task,
    TaskStreamed,
    SecondTask,
    Unchanged,
    Changing,
}

/// A client for as long as the test lasts; returns the number of its answers.
fn client(client: Client, asks: Question, tasks: Arc<Good>, over: Arc<AtomicBool>) -> JoinHandle<u64> {
    tokio::spawn(async move {
        let mut answers = 0;
        while !over.load(Ordering::Acquire) {
            let seen = tasks.seen();
            let model = match asks {
                Question::Task | Question::TaskStreamed => "task:chat",
                Question::SecondTask => "task:second",
                Question::Unchanged => "alpha",
                Question::Changing => "beta",
            };
            let mut body = question(model, "?");
            let (answer, said) = if matches!(asks, Question::TaskStreamed) {
                body["stream"] = true.into();
                let mut stream = client.stream("/v1/chat/completions", &body).await;
                if stream.status != StatusCode::OK {
                    panic!("a stream of {model} failed: {:?}", stream.into_answer().await);
                }
                let said = text_of_events(&stream.rest().await);
                let (status, headers) = (stream.status, stream.headers.clone());
                (Answer { status, headers, body: bytes::Bytes::new() }, said)
            } else {
                let answer = client.post("/v1/chat/completions", &body).await;
                assert!(answer.status.is_success(), "a request for {model} failed: {answer:?}");
                let said = answer.text();
                (answer, said)
            };
            let received: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error} in {said:?}"));
            let served = answer.header("x-served-model").expect("it says who answered");
            let rung: usize = answer.header("x-rung").expect("it says from which rung").parse().unwrap();
            let number = received["body"]["seed"].as_u64();
            match (asks, number) {
                (Question::Unchanged | Question::Changing, None) => assert_eq!(served, model),
                (Question::Unchanged | Question::Changing, Some(_)) => panic!("{model} is no task: {said}"),
                (_, None) => panic!("no version of the task is empty: {said}"),
                (_, Some(number)) => {
                    assert!(tasks.allows(number, seen), "version {number} is in use, {seen} was before");
                    let ladder = if matches!(asks, Question::SecondTask) { &["alpha"] } else { ladder(number) };
                    assert_eq!(ladder.get(rung), Some(&served), "version {number}, rung {rung}");
                }
            }
            answers += 1;
            sleep(ASK).await;
        }
        answers
    })
}

/// Counts of edits and observations.
#[derive(Debug, Default)]
struct Score {
    edits: BTreeMap<&'static str, u64>,
    answers: u64,
    /// The time from a file's last edit until its state was seen in use or reported.
    seen_after: BTreeMap<&'static str, Vec<Duration>>,
}

impl Score {
    fn saw(&mut self, file: &'static str, after: Duration) {
        self.seen_after.entry(file).or_default().push(after);
    }

    fn print(&self, seed: u64, reloads: &[String]) {
        eprintln!(
            "seed {seed}: {} edits, {} answers, {:?}",
            self.edits.values().sum::<u64>(),
            self.answers,
            self.edits
        );
        for (file, spans) in &self.seen_after {
            let mut spans = spans.clone();
            spans.sort_unstable();
            let at = |share: usize| spans[(spans.len() - 1) * share / 100];
            eprintln!("{file}: looked at {} times, seen after {:?} (median), {:?} (p99)", spans.len(), at(50), at(99));
        }
        eprintln!("{}", reloads.join("\n"));
    }
}

/// All files that are edited.
struct Files {
    tasks: Edited,
    beta: Edited,
    gamma: Edited,
}

impl Files {
    async fn edit(&mut self, dice: &mut Dice) -> &'static str {
        match dice.below(40) {
            0 => {
                self.tasks.move_folder_away();
                "the folder of tasks.yaml moved"
            }
            1 => {
                self.beta.move_folder_away();
                "manifests/ moved"
            }
            2..=21 => self.tasks.edit(dice).await,
            22..=32 => self.beta.edit(dice).await,
            _ => self.gamma.edit(dice).await,
        }
    }

    /// Waits until the coordinator uses the current files, or reports their faults.
    async fn settle(&self, boss: &Boss, score: &mut Score) {
        let since = Instant::now();
        until(PATIENCE, "tasks.yaml counts, or is named", async || self.tasks_settled(boss).await).await;
        score.saw("tasks.yaml", since.elapsed());
        let manifests = self.beta.path().parent().expect("a file is in a folder").to_owned();
        if away(&manifests).exists() {
            let told = async || {
                problems(boss)
                    .await
                    .iter()
                    .any(|told| told.contains("the folder of manifests cannot be read"))
                    .then_some(())
            };
            return until(PATIENCE, "the missing folder is named", told).await;
        }
        for (file, name) in [(&self.beta, "beta"), (&self.gamma, "gamma")] {
            let what = format!("the manifest of {name} counts, or is named: {:?}", file.stands());
            until(PATIENCE, &what, async || manifest_settled(boss, file, name).await).await;
        }
        score.saw("manifests", since.elapsed());
    }

    async fn tasks_settled(&self, boss: &Boss) -> Option<()> {
        let good = self.tasks.good();
        let seen = good.seen();
        let list = boss.read("/api/v1/tasks").await;
        let active = list["tasks"][0]["params"]["seed"].as_u64().expect("the task is there");
        assert!(good.allows(active, seen), "version {active} is in use, {seen} was before");
        let folder = self.tasks.path();
        let stands = match self.tasks.stands() {
            _ if away(folder.parent()?).exists() => &Stands::Bad("tasks.yaml: is not there".to_owned()),
            stands => stands,
        };
        told(&problems(boss).await, "tasks.yaml", stands)?;
        if let Stands::Good(number) = stands {
            if active != *number {
                return None;
            }
            good.saw(active);
        }
        Some(())
    }
}

async fn manifest_settled(boss: &Boss, file: &Edited, name: &str) -> Option<()> {
    let good = file.good();
    let seen = good.seen();
    let answer = boss.client().get(&format!("/v1/models/{name}")).await;
    let active = answer.status.is_success().then(|| {
        let model = answer.json();
        let number: u64 = model["version"].as_str().expect("every version has one").parse().unwrap();
        assert!(good.allows(number, seen), "version {number} of {name} is in use, {seen} was before");
        let description = format!("version {number}");
        assert_eq!(model["description"], description, "half of one version, half of another: {model}");
        number
    });
    told(&problems(boss).await, &format!("{name}.toml"), file.stands())?;
    match file.stands() {
        Stands::Good(number) if active == Some(*number) => good.saw(*number),
        Stands::Good(_) => return None,
        Stands::Absent if active.is_some() => return None,
        Stands::Absent | Stands::Bad(_) => {}
    }
    Some(())
}

/// Whether the faults of a file are reported as expected.
fn told(problems: &[String], file: &str, stands: &Stands) -> Option<()> {
    let right = match stands {
        Stands::Bad(words) => problems.iter().any(|told| told.contains(words)),
        Stands::Good(_) | Stands::Absent => !problems.iter().any(|told| told.contains(file)),
    };
    right.then_some(())
}

async fn problems(boss: &Boss) -> Vec<String> {
    let health = boss.read("/api/v1/health").await;
    let list = health["problems"].as_array().expect("a list");
    list.iter().map(|told| told.as_str().expect("a sentence").to_owned()).collect()
}

/// A fake worker that repeats its request, with the task's fields.
fn echo() -> Behaviour {
    Behaviour { echo: true, ..Behaviour::default() }
}

async fn start(sandbox: &Sandbox, tasks: &Path) -> Boss {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.arg("--tasks").arg(tasks);
    launch.start().await
}

#[tokio::test]
async fn tr_5_whatever_is_edited_only_what_makes_sense_is_used_and_no_request_fails() {
    let seed = amount("MODEL_BOSS_CHAOS_SEED", 1);
    let mut dice = Dice::new(seed);
    let sandbox = Sandbox::new().with_config("sse.first_comment = \"30s\"");
    let mut alpha = sandbox.fake_model("alpha", echo());
    let mut beta_workers = sandbox.fake_model("beta", echo());
    let _gamma_workers = sandbox.fake_model("gamma", echo());
    std::fs::create_dir(sandbox.path("conf")).unwrap();
    let manifests = sandbox.path("manifests");
    let mut files = Files {
        tasks: Edited::new(&sandbox.path("conf"), "tasks.yaml", TASKS),
        beta: Edited::new(&manifests, "beta.toml", STEADY),
        gamma: Edited::new(&manifests, "gamma.toml", FLEETING),
    };
    let boss = start(&sandbox, &files.tasks.path()).await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let steady = alpha.worker().await;

    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        [Question::Task, Question::TaskStreamed, Question::SecondTask, Question::Unchanged, Question::Changing]
            .map(|asks| client(boss.client(), asks, files.tasks.good(), Arc::clone(&over)))
            .into();
    let mut score = Score::default();
    let edits = amount("MODEL_BOSS_CHAOS_EDITS", EDITS);
    let mut done = 0;
    while done < edits && clients.iter().all(|client| !client.is_finished()) {
        for _ in 0..=dice.below(BURST) {
            *score.edits.entry(files.edit(&mut dice).await).or_default() += 1;
            done += 1;
            if dice.below(2) == 0 {
                sleep(Duration::from_millis(dice.below(BETWEEN_MS))).await;
            }
        }
        files.settle(&boss, &mut score).await;
    }
    files.tasks.mend(&mut dice).await;
    files.beta.mend(&mut dice).await;
    files.gamma.mend(&mut dice).await;
    files.settle(&boss, &mut score).await;
    over.store(true, Ordering::Release);
    for client in clients {
        score.answers += client.await.unwrap();
    }

    // Models with unchanged manifests were not loaded again, and changed ones are served with their new manifest.
    assert_eq!(alpha.spawns(), 1, "a model with an unchanged manifest was loaded again");
    assert!(std::path::Path::new("/proc").join(steady.pid.to_string()).exists());
    let Stands::Good(newest) = *files.beta.stands() else { panic!("it was mended") };
    let (mut started, mut served) = (0, 0);
    let is_new = async || {
        assert!(boss.chat("beta", "?").await.status.is_success());
        while started < beta_workers.spawns() {
            served = beta_workers.worker().await.spec["context_length"].as_u64()?;
            started += 1;
        }
        (served == context(newest)).then_some(())
    };
    until(PATIENCE, "the changed model is served as it was changed", is_new).await;
    let metrics = boss.client().get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let reloads: Vec<String> =
        metrics.lines().filter(|line| line.starts_with("model_boss_config_reloads{")).map(str::to_owned).collect();
    score.print(seed, &reloads);
    eprintln!("beta was started {started} times");
    boss.finish().await;
}
