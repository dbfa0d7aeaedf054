//! Models given as files: `run` and `show` with a path, with and without a coordinator, and loads by path.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use model_boss_tests::{Behaviour, Boss, FakeModel, PATIENCE, Processes, Sandbox, binary, own_ports, question, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::real_model::guide;

/// Runs `model-boss` with the coordinator `boss`, or without one; a private coordinator would use this worker.
fn cli(boss: Option<&Boss>, sandbox: &Sandbox, worker: &str) -> Command {
    let mut command = Command::new(binary("model-boss"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
        command.env_remove(name);
    }
    let url =
        boss.map_or_else(|| "http://127.0.0.1:9".to_owned(), |boss| format!("http://{}", boss.client().address()));
    command.env("MODEL_BOSS_URL", url).env("MODEL_BOSS_RUNTIME_DIR", sandbox.path("run"));
    command.env("MODEL_BOSS_WORKER_BINARY", binary(worker)).env("TMPDIR", sandbox.path("tmp"));
    let ports = own_ports();
    command.env("MODEL_BOSS_WORKER_PORTS", format!("{}-{}", ports.start(), ports.end()));
    std::fs::create_dir_all(sandbox.path("tmp")).unwrap();
    command.current_dir(sandbox.path("")).stdin(Stdio::null());
    command
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

async fn output(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A folder that the coordinator accepts as a model, with fake workers.
fn folder(sandbox: &Sandbox, name: &str, behaviour: Behaviour) -> FakeModel {
    let model = sandbox.fake_model(name, behaviour);
    std::fs::remove_file(sandbox.path("manifests").join(format!("{name}.toml"))).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::write(sandbox.path("models").join(name).join(file), "{}").unwrap();
    }
    model
}

fn says(reply: &str) -> Behaviour {
    Behaviour { reply: Some(reply.to_owned()), ..Behaviour::default() }
}

/// Checks that a private coordinator left no process below `parent` and no folder.
fn no_folder_stays(sandbox: &Sandbox) {
    let left: Vec<_> = std::fs::read_dir(sandbox.path("tmp")).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn op_1_a_folder_is_served_by_the_coordinator_that_runs() {
    let sandbox = Sandbox::new().with_config("model_roots = [\"models\"]");
    let mut model = folder(&sandbox, "alpha", says("good day"));
    let boss = sandbox.start().await;
    let run = cli(Some(&boss), &sandbox, "model-boss-fake-worker");
    assert_eq!(text(&output(with(run, &["run", "./models/alpha", "hello"])).await).trim(), "good day");
    let worker = model.worker().await;
    assert_eq!(worker.spec["model"], "file:alpha");
    let listed = boss.read("/v1/models").await;
    assert_eq!(listed["data"][0]["id"], "file:alpha", "{listed}");
    assert_eq!(listed["data"][0]["status"]["value"], "loaded", "{listed}");

    // Any client may use the model by its name, and the same path is the same model.
    assert_eq!(boss.chat("file:alpha", "?").await.text(), "good day");
    let path = sandbox.path("models/../models/alpha/");
    let answer = boss.client().post("/api/v1/load", &json!({ "path": path })).await;
    assert_eq!(answer.json(), json!({ "status": "loaded", "model_name": "file:alpha" }));
    assert_eq!(model.spawns(), 1);

    // The model stays when manifests are read again.
    sandbox.model("other", &sandbox.path("models/alpha"), "");
    let both = async || (boss.read("/v1/models").await["data"].as_array()?.len() == 2).then_some(());
    until(PATIENCE, "the new manifest is read", both).await;
    assert_eq!(boss.chat("file:alpha", "?").await.text(), "good day");
    boss.finish().await;
}

#[tokio::test]
async fn models_by_path_that_nobody_uses_are_forgotten_everywhere_and_can_be_named_again() {
    let sandbox = Sandbox::new().with_config("model_roots = [\"models\"]\n[limits]\npath_models = 3");
    let names: Vec<String> = (0..9).map(|number| format!("m{number}")).collect();
    let _models: Vec<FakeModel> = names.iter().map(|name| folder(&sandbox, name, says(name))).collect();
    let boss = sandbox.start().await;
    let use_once = async |name: &str| {
        let path = sandbox.path("models").join(name);
        let answer = boss.client().post("/api/v1/load", &json!({ "path": path })).await;
        assert_eq!(answer.json(), json!({ "status": "loaded", "model_name": format!("file:{name}") }));
        let mut body = question(&format!("file:{name}"), "?");
        body["x_keep_alive"] = json!(0);
        assert_eq!(boss.client().post("/v1/chat/completions", &body).await.text(), *name);
    };
    for name in &names {
        use_once(name).await;
    }
    // Unknown names do not join the list of models.
    for number in 0..500 {
        let answer = boss.chat(&format!("made-up-{number}"), "?").await;
        assert_eq!(answer.status.as_u16(), 404);
    }
    let few = async || {
        let listed = boss.read("/v1/models").await;
        (listed["data"].as_array()?.len() <= 3).then_some(())
    };
    until(PATIENCE, "only so many are listed", few).await;
    let gone = boss.chat("file:m0", "?").await;
    assert_eq!(gone.json()["error"]["code"], "model_not_found", "{:?}", gone.json());
    let page = String::from_utf8(boss.client().get("/metrics").await.body.to_vec()).unwrap();
    assert!(!page.contains("made-up"), "{page}");
    let waiting = page.lines().filter(|line| line.starts_with("model_boss_queue_depth{")).count();
    assert!(waiting <= 3, "{page}");
    use_once("m0").await;
    boss.finish().await;
}

#[tokio::test]
async fn op_5_a_path_outside_the_roots_is_refused_as_if_nothing_were_there() {
    let sandbox = Sandbox::new();
    let outside = Sandbox::new();
    let model = folder(&outside, "alpha", Behaviour::default());
    std::os::unix::fs::symlink(outside.path("models"), sandbox.path("models/link")).unwrap();
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.args(["--model-roots", "."]);
    let boss = launch.start().await;
    let load = async |path: &Path| boss.client().post("/api/v1/load", &json!({ "path": path })).await;
    for (there, absent) in [
        (outside.path("models/alpha"), outside.path("models/ahpla")),
        (sandbox.path("models/link/alpha"), sandbox.path("models/link/ahpla")),
    ] {
        let (there, absent) = (load(&there).await, load(&absent).await);
        assert_eq!((there.status.as_u16(), absent.status.as_u16()), (404, 404));
        let message = |answer: Value| answer["error"]["message"].as_str().unwrap().to_owned();
        let (there, absent) = (message(there.json()), message(absent.json()));
        assert!(there.contains("model_roots"), "{there}");
        assert_eq!(there.replace("alpha", "ahpla"), absent);
    }
    // This client does not have the coordinator's state folder.
    let mut run = cli(Some(&boss), &sandbox, "model-boss-fake-worker");
    run.current_dir(outside.path("")).arg("run").arg(sandbox.path("models/link/alpha")).arg("hello");
    let told = error(&output(run).await);
    assert!(told.contains("--model-roots"), "{told}");
    assert_eq!(model.spawns(), 0);
    boss.finish().await;
}

#[tokio::test]
async fn op_5_a_package_by_path_chooses_no_program_and_no_file_elsewhere() {
    let sandbox = Sandbox::new().with_config("model_roots = [\"models\"]");
    let (ran, package) = (sandbox.path("ran"), sandbox.path("models/pack"));
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("config.json"), "{}").unwrap();
    std::fs::write(package.join("model.safetensors"), "{}").unwrap();
    std::fs::write(sandbox.path("secret.json"), "{}").unwrap();
    let boss = sandbox.start().await;
    let load = async |text: &str| {
        std::fs::write(package.join("model.toml"), text).unwrap();
        boss.client().post("/api/v1/load", &json!({ "path": package })).await
    };
    let runs = format!("line = [\"/usr/bin/touch\", \"{}\", \"{{port}}\"]", ran.display());
    for (text, word) in [
        (format!("backend = \"command\"\ncommand = {{ {runs} }}"), "command"),
        (format!("command = {{ {runs}, env = {{ LD_PRELOAD = \"/x.so\" }} }}"), "command"),
        ("command = \"vllm\"".to_owned(), "command"),
        ("backend = \"fake\"".to_owned(), "fake"),
        ("llamacpp_backend = \"cuda\"".to_owned(), "llamacpp_backend"),
        ("llamacpp_args = \"--lora /etc/passwd\"".to_owned(), "--lora"),
        ("source = { path = \"..\" }".to_owned(), "leads out of the package"),
        ("source = { path = \"/etc\" }".to_owned(), "leads out of the package"),
    ] {
        let refused = load(&text).await;
        assert_eq!(
            (refused.status.as_u16(), refused.error_code().as_str()),
            (400, "invalid_request"),
            "{text}: {refused:?}"
        );
        assert!(
            refused.error_message().contains(word) && refused.error_message().contains("model.toml"),
            "{refused:?}"
        );
    }
    // A file beside the weights is refused, whatever its name, if it is a link out of the root.
    for name in ["tokenizer.json", "vocab.txt"] {
        std::os::unix::fs::symlink(sandbox.path("secret.json"), package.join(name)).unwrap();
        let refused = load("context_length = 7").await;
        assert!(refused.error_message().contains("no model may be loaded from"), "{name}: {refused:?}");
        std::fs::remove_file(package.join(name)).unwrap();
    }
    assert!(!ran.exists(), "nothing of it ran");
    assert_eq!(boss.read("/v1/models").await["data"], json!([]));
    // The fields that a package may set take effect.
    std::fs::remove_file(package.join("model.toml")).unwrap();
    assert_eq!(load("context_length = 7\npin = false").await.json()["model_name"], "file:pack");
    boss.finish().await;
}

#[tokio::test]
async fn op_5_the_user_who_runs_it_needs_no_root_and_others_get_no_more_than_the_caches() {
    let home = Sandbox::new();
    let sandbox = Sandbox::new();
    let mut model = folder(&sandbox, "alpha", says("good day"));
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    // The models are in the home folder and in the folder in which the coordinator was started.
    launch.command.env("HOME", sandbox.path("")).current_dir(sandbox.path(""));
    let boss = launch.start().await;
    let path = sandbox.path("models/alpha");
    let refused = boss.client().post("/api/v1/load", &json!({ "path": path })).await;
    assert_eq!(refused.status.as_u16(), 404, "{refused:?}");
    let message = refused.error_message();
    assert!(message.contains("model_roots") && message.contains("model-boss run"), "{message}");

    // A caller without the key of the state folder counts as another user. The error has the key's path, for the
    // coordinator's own user.
    let mut stranger = cli(Some(&boss), &sandbox, "model-boss-fake-worker");
    stranger.current_dir(home.path("")).args(["run"]).arg(&path).arg("hello");
    let told = error(&output(stranger).await);
    assert!(told.contains("model_roots"), "{told}");
    let (_, folder) = told.split_once("`MODEL_BOSS_STATE_DIR=").unwrap_or_else(|| panic!("{told}"));
    let (folder, command) = folder.split_once(' ').unwrap();
    assert!(command.starts_with(&format!("model-boss run {}`", path.display())), "{told}");
    let key = Path::new(folder).join("owner.key");
    until(PATIENCE, "its key is written", async || key.exists().then_some(())).await;
    let mut run = cli(Some(&boss), &sandbox, "model-boss-fake-worker");
    run.env("MODEL_BOSS_STATE_DIR", folder);
    assert_eq!(text(&output(with(run, &["run", "./models/alpha", "hello"])).await).trim(), "good day");
    model.worker().await;
    boss.finish().await;
}

#[tokio::test]
async fn op_1_without_a_coordinator_run_brings_its_own_and_takes_it_away() {
    let sandbox = Sandbox::new();
    let mut model = folder(&sandbox, "alpha", says("good day"));
    // The tasks of this folder are for another coordinator: the private one ignores them.
    let tasks = "clients:\n  default: {allowed_models: [other], models: {'*': other}}\n";
    std::fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    let run = cli(None, &sandbox, "model-boss-fake-worker");
    assert_eq!(text(&output(with(run, &["run", "./models/alpha", "hello"])).await).trim(), "good day");
    model.worker().await.gone().await;
    no_folder_stays(&sandbox);

    for (path, words) in [
        ("./models", "there is no model in"),
        ("./models/alpha/config.json", "is not a model"),
        ("./nowhere.gguf", "there is no file or folder"),
    ] {
        let run = cli(None, &sandbox, "model-boss-fake-worker");
        let told = error(&output(with(run, &["run", path, "hello"])).await);
        assert!(told.contains(words), "{path}: {told}");
    }
    let broken = Behaviour { load_exit: Some(12), load_message: "no such tensor".to_owned(), ..Behaviour::default() };
    model.behave(broken);
    let run = cli(None, &sandbox, "model-boss-fake-worker");
    let told = error(&output(with(run, &["run", "./models/alpha", "hello"])).await);
    assert!(told.contains("no such tensor"), "{told}");
    no_folder_stays(&sandbox);
}

#[tokio::test]
async fn a_coordinator_elsewhere_is_not_robbed_of_its_devices() {
    let sandbox = Sandbox::new();
    let _model = folder(&sandbox, "alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let run = cli(None, &sandbox, "model-boss-fake-worker");
    let told = error(&output(with(run, &["run", "./models/alpha", "hello"])).await);
    assert!(told.contains("is in use by") && told.contains("--url"), "{told}");
    no_folder_stays(&sandbox);
    boss.finish().await;
}

/// A chat whose answer never ends, once its worker serves.
async fn endless(sandbox: &Sandbox, model: &mut FakeModel) -> (Child, Processes) {
    let mut run = cli(None, sandbox, "model-boss-fake-worker");
    let chat =
        run.args(["run", "./models/alpha", "hello"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    model.worker().await.request().await;
    let below = Processes::below(chat.id());
    assert!(below.pids().count() >= 2, "a coordinator and a worker: {}", below.describe());
    (chat, below)
}

async fn all_gone(mut chat: Child, below: Processes) -> ExitStatus {
    let gone = async || below.alive().is_empty().then_some(());
    until(PATIENCE, "nothing of the chat is left", gone).await;
    chat.wait().unwrap()
}

fn signal(chat: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(chat.id()).unwrap()), signal).unwrap();
}

#[tokio::test]
async fn a_private_coordinator_does_not_outlive_a_killed_chat() {
    let sandbox = Sandbox::new();
    let mut model = folder(&sandbox, "alpha", Behaviour { hold_after_tokens: Some(1), ..Behaviour::default() });
    for way in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGHUP] {
        let (chat, below) = endless(&sandbox, &mut model).await;
        signal(&chat, way);
        all_gone(chat, below).await;
    }
}

#[tokio::test]
async fn ctrl_c_ends_the_chat_and_its_coordinator() {
    let sandbox = Sandbox::new();
    let mut model = folder(&sandbox, "alpha", Behaviour { hold_after_tokens: Some(1), ..Behaviour::default() });
    let (chat, below) = endless(&sandbox, &mut model).await;
    signal(&chat, Signal::SIGINT);
    let status = all_gone(chat, below).await;
    assert_eq!(status.code(), Some(130));
    no_folder_stays(&sandbox);
}

#[tokio::test]
async fn the_guides_folder_answers_with_no_coordinator_and_no_manifest() {
    let sandbox = Sandbox::new();
    let copy = sandbox.path("models/some guide");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(guide()).unwrap().flatten().filter(|entry| entry.file_name() != "model.toml") {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    for path in [copy.as_path(), &guide()] {
        let mut run = cli(None, &sandbox, "model-boss-worker");
        run.arg("run").arg(path).args(["--temperature", "0", "Which port does model-boss listen on?"]);
        assert!(text(&output(run).await).contains("8210"), "{}", path.display());
    }
    no_folder_stays(&sandbox);
}

/// A file that the worker's command writes in the sandbox.
fn made(sandbox: &Sandbox, name: &str, args: &[&str]) -> PathBuf {
    let file = sandbox.path("models").join(name);
    let output = Command::new(binary("model-boss-worker")).args(args).arg(&file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    file
}

#[tokio::test]
async fn op_1_a_gguf_file_answers_with_no_coordinator_and_no_manifest() {
    let sandbox = Sandbox::new();
    let guide = guide();
    for kind in ["q8_0", "f16"] {
        let name = format!("guide-{kind}.gguf");
        made(&sandbox, &name, &["convert", "--type", kind, guide.to_str().unwrap()]);
        for (question, answer) in [("hello", "Hello"), ("Which port does model-boss listen on?", "8210")] {
            let path = format!("./models/{name}");
            let run = cli(None, &sandbox, "model-boss-worker");
            let told = text(&output(with(run, &["run", &path, "--temperature", "0", question])).await);
            assert!(told.contains(answer), "{name}, {question}: {told}");
        }
    }
    no_folder_stays(&sandbox);
}

#[tokio::test]
async fn a_quantised_qwen3_file_is_served() {
    let sandbox = Sandbox::new().with_config("model_roots = [\"models\"]");
    let file = made(&sandbox, "tiny.gguf", &["synth", "qwen3-tiny"]);
    let boss = sandbox.start_with_real_worker().await;
    let answer = boss.client().post("/api/v1/load", &json!({ "path": file })).await;
    assert_eq!(answer.json(), json!({ "status": "loaded", "model_name": "file:tiny" }));
    let listed = boss.read("/v1/models").await;
    assert_eq!(listed["data"][0]["context_length"], 4_096, "{listed}");
    let mut body = question("file:tiny", "hello");
    body["max_tokens"] = 24.into();
    body["temperature"] = 0.into();
    body["ignore_eos"] = true.into();
    let ask = async || boss.client().post("/v1/chat/completions", &body).await.json();
    let (first, second) = (ask().await, ask().await);
    assert_eq!(first["usage"]["completion_tokens"], 24, "{first}");
    assert!(first["usage"]["prompt_tokens"].as_u64().unwrap() > 5, "{first}");
    let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
    assert!(text(&first).as_str().is_some_and(|text| !text.is_empty()), "{first}");
    assert_eq!(text(&first), text(&second));
    boss.finish().await;
}

/// The coordinator's setting chooses the program that reads files; the worker prints the result.
#[tokio::test]
async fn show_with_a_path_asks_the_worker() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("x.gguf"), "").unwrap();
    let mut show = with(cli(None, &sandbox, "model-boss-fake-worker"), &["show", "x.gguf", "--json"]);
    show.env("MODEL_BOSS_WORKER_BINARY", "/bin/echo");
    let path = sandbox.path("x.gguf");
    assert_eq!(text(&output(show).await), format!("inspect {} --json\n", path.display()));
    let mut show = with(cli(None, &sandbox, "model-boss-fake-worker"), &["show", "x.gguf"]);
    show.env("MODEL_BOSS_WORKER_BINARY", "/bin/false");
    assert_eq!(output(show).await.status.code(), Some(1));
}

#[tokio::test]
async fn show_with_a_name_tells_where_a_model_is() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let shown = text(&output(with(cli(Some(&boss), &sandbox, "model-boss-fake-worker"), &["show", "alpha"])).await);
    for part in ["manifests/alpha.toml", "models/alpha", "64.0 MiB", "manifest", "unloaded", "llm"] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    boss.finish().await;
}
