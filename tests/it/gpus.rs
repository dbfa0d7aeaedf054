//! GPUs that are pulled, return, hang or report invalid values, through the real driver interface with a fake library.

use model_boss_protocol::ByteCount;
use model_boss_tests::{
    Behaviour, Boss, CALLS, FakeGpus, FakeModel, GPU_IS_LOST, Listing, PATIENCE, Sandbox, UNKNOWN_ERROR, binary,
    question, until,
};
use serde_json::Value;

const ONE: &str = "GPU-00000000-one";
const TWO: &str = "GPU-00000000-two";

/// A machine with these GPUs of 24 GiB, and a coordinator on it.
struct Rig {
    sandbox: Sandbox,
    gpus: FakeGpus,
}

impl Rig {
    /// Builds the machine; `None` where the library cannot be built.
    fn with(uuids: &[&str], config: &str) -> Option<Self> {
        let sandbox = Sandbox::new().with_config(config);
        let gpus = FakeGpus::new(&sandbox)?;
        uuids.iter().for_each(|uuid| gpus.plug(uuid, ByteCount::gib(24)));
        Some(Self { sandbox, gpus })
    }

    fn model(&self, name: &str, manifest: &str, behaviour: Behaviour) -> FakeModel {
        let model = self.sandbox.fake_model_with(name, manifest, behaviour);
        model.on_gpus(&self.gpus);
        model
    }

    async fn start(&self) -> Boss {
        let mut launch = self.sandbox.launch(&binary("model-boss-fake-worker"));
        self.gpus.under(&mut launch);
        launch.start().await
    }
}

async fn device(boss: &Boss, id: &str) -> Value {
    let devices = boss.read("/api/v1/devices").await;
    devices["devices"].as_array().unwrap().iter().find(|device| device["id"] == id).cloned().unwrap_or_default()
}

async fn available(boss: &Boss, id: &str, wanted: bool) {
    let what = format!("{id} is available: {wanted}");
    until(PATIENCE, &what, async || (device(boss, id).await["available"] == wanted).then_some(())).await;
}

/// The problems that name this device.
async fn problems(boss: &Boss, id: &str) -> Vec<String> {
    let health = boss.read("/api/v1/health").await;
    let all = health["problems"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned());
    all.filter(|problem| problem.contains(id)).collect()
}

async fn decisions_about(boss: &Boss, model: &str) -> usize {
    let decisions = boss.read("/api/v1/decisions").await;
    decisions["decisions"].as_array().unwrap().iter().filter(|decision| decision["model"] == model).count()
}

#[tokio::test]
async fn gp_6_rc_21_a_pulled_gpu_ends_its_models_takes_none_and_is_used_again_when_it_is_back() {
    let Some(rig) = Rig::with(&[ONE, TWO], "device_patience = \"1h\"") else { return };
    let mut alpha = rig.model("alpha", "vram = \"8GiB\"\ndevice = \"cuda:0\"", Behaviour::default());
    let mut beta = rig.model("beta", "vram = \"8GiB\"\ndevice = \"cuda:1\"", Behaviour::default());
    let boss = rig.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert!(boss.chat("beta", "?").await.status.is_success());
    let (mut lost, kept) = (alpha.worker().await, beta.worker().await);
    assert_eq!((&lost.env["CUDA_VISIBLE_DEVICES"], &kept.env["CUDA_VISIBLE_DEVICES"]), (&ONE.into(), &TWO.into()));

    rig.gpus.unplug(ONE);
    available(&boss, "cuda:0", false).await;
    lost.gone().await;
    until(PATIENCE, "it is called gone", async || {
        problems(&boss, ONE)
            .await
            .iter()
            .any(|problem| problem.contains("cuda:0") && problem.contains("gone"))
            .then_some(())
    })
    .await;
    let shown = device(&boss, "cuda:0").await;
    assert_eq!((&shown["used"], &shown["free"], &shown["lost"]), (&Value::Null, &Value::Null, &Value::Bool(true)));
    // The other GPU keeps its number, though the driver counts anew, and keeps its model.
    assert_eq!(device(&boss, "cuda:1").await["uuid"], TWO);
    assert!(boss.chat("beta", "?").await.status.is_success());
    assert_eq!(beta.spawns(), 1);
    // A request for the lost GPU waits with that reason; no load is tried meanwhile.
    let decided = decisions_about(&boss, "alpha").await;
    let waiting = boss.ask(question("alpha", "?"));
    until(PATIENCE, "it says what it waits for", async || {
        let queue = boss.read("/api/v1/queue").await;
        (queue["queue"][0]["wait"]["reason"] == "device_lost").then_some(())
    })
    .await;
    assert_eq!((decisions_about(&boss, "alpha").await, alpha.spawns()), (decided, 1));

    rig.gpus.plug(ONE, ByteCount::gib(24));
    assert!(waiting.await.unwrap().status.is_success());
    assert_eq!(alpha.worker().await.env["CUDA_VISIBLE_DEVICES"], ONE);
    available(&boss, "cuda:0", true).await;
    assert_eq!(problems(&boss, "cuda:0").await, Vec::<String>::new());
    boss.finish().await;
}

#[tokio::test]
async fn rc_21_without_any_gpu_left_requests_in_flight_are_answered_elsewhere_or_told() {
    let Some(rig) = Rig::with(&[ONE], "device_patience = \"100ms\"\nstop_grace = \"200ms\"") else { return };
    let held = Behaviour { hold_after_tokens: Some(0), ..Behaviour::default() };
    let mut anywhere = rig.model("anywhere", "vram = \"64MiB\"", Behaviour::default());
    anywhere.behave_next(held);
    let bound = rig.model("bound", "vram = \"64MiB\"\ndevice = \"cuda:0\"", Behaviour::default());
    let boss = rig.start().await;
    let running = boss.ask(question("anywhere", "?"));
    anywhere.worker().await.held().await;
    // The driver lists the GPU, but calls it lost.
    rig.gpus.fail("nvmlDeviceGetHandleByIndex_v2", GPU_IS_LOST);
    assert!(running.await.unwrap().status.is_success(), "it goes to the host");
    assert_eq!(anywhere.worker().await.env["CUDA_VISIBLE_DEVICES"], "");
    let refused = boss.chat("bound", "?").await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code()),
        (409, "device_not_available".to_owned()),
        "{refused:?}"
    );
    assert_eq!(bound.spawns(), 0);
    rig.gpus.mend();
    until(PATIENCE, "it is served", async || boss.chat("bound", "?").await.status.is_success().then_some(())).await;
    boss.finish().await;
}

#[tokio::test]
async fn gp_1_rc_21_each_call_of_the_driver_may_fail_or_hang_and_models_serve_on() {
    let Some(rig) = Rig::with(&[ONE], "") else { return };
    let alpha = rig.model("alpha", "vram = \"8GiB\"\ndevice = \"cuda:0\"", Behaviour::default());
    let boss = rig.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let failing = CALLS.map(|call| (call, false));
    for (call, hangs) in failing.into_iter().chain([("nvmlDeviceGetMemoryInfo_v2", true)]) {
        if hangs {
            rig.gpus.hang(call);
        } else {
            rig.gpus.fail(call, UNKNOWN_ERROR);
        }
        available(&boss, "cuda:0", false).await;
        assert!(!problems(&boss, "cuda:0").await.is_empty(), "{call}");
        assert!(boss.chat("alpha", "?").await.status.is_success(), "{call}");
        rig.gpus.mend();
        available(&boss, "cuda:0", true).await;
    }
    assert_eq!(alpha.spawns(), 1, "what cannot be read is not lost");
    boss.finish().await;
}

#[tokio::test]
async fn rc_21_a_driver_that_hangs_when_it_begins_delays_the_start_and_no_more() {
    let Some(rig) = Rig::with(&[ONE], "") else { return };
    rig.gpus.hang("nvmlInit_v2");
    let _alpha = rig.model("alpha", "vram = \"64MiB\"", Behaviour::default());
    let boss = rig.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let health = boss.read("/api/v1/health").await;
    assert!(health["problems"].to_string().contains("NVIDIA driver has not answered"), "{health}");
    rig.gpus.mend();
    available(&boss, "cuda:0", true).await;
    boss.finish().await;
}

/// In a container the driver lists no process, or pids of another namespace. A worker's memory must not count as
/// foreign too, so that no model is evicted for it.
async fn workers_are_not_strangers(listing: Listing) {
    let Some(rig) = Rig::with(&[ONE], "leases.foreign = \"1GiB\"") else { return };
    rig.gpus.list_processes(listing);
    let manifest = "vram = \"9GiB\"\ndevice = \"cuda:0\"";
    let [alpha, beta] = ["alpha", "beta"].map(|name| rig.model(name, manifest, Behaviour::default()));
    let boss = rig.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert!(boss.chat("beta", "?").await.status.is_success());
    until(PATIENCE, "it is known", async || (device(&boss, "cuda:0").await["accounting"] == "degraded").then_some(()))
        .await;
    let shown = device(&boss, "cuda:0").await;
    assert_eq!(shown["foreign"], ByteCount::gib(1).0, "{shown}");
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert_eq!((alpha.spawns(), beta.spawns()), (1, 1), "nobody was sent away: {}", boss.output().text());
    boss.finish().await;
}

#[tokio::test]
async fn rc_21_an_empty_list_of_processes_does_not_make_workers_strangers() {
    workers_are_not_strangers(Listing::Empty).await;
}

#[tokio::test]
async fn gp_6_rc_21_numbers_of_another_namespace_do_not_make_workers_strangers() {
    workers_are_not_strangers(Listing::OtherNamespace).await;
}

#[tokio::test]
async fn dm_6_rc_18_a_device_whose_driver_keeps_the_memory_of_an_ended_worker_is_shown_as_leaking() {
    let Some(rig) = Rig::with(&[ONE], "leases.return_patience = \"100ms\"") else { return };
    let manifest = "vram = \"8GiB\"\ndevice = \"cuda:0\"";
    let [_alpha, _beta] = ["alpha", "beta"].map(|name| rig.model(name, manifest, Behaviour::default()));
    let boss = rig.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    // A worker's memory is in the fake driver some moments after its lease.
    let in_use = async || (device(&boss, "cuda:0").await["used"].as_u64()? >= ByteCount::gib(8).0).then_some(());
    until(PATIENCE, "the driver shows the worker's memory", in_use).await;
    assert_eq!(device(&boss, "cuda:0").await["leaking"], 0);
    rig.gpus.keep_memory_of_the_gone(true);
    let answer = boss.client().post("/api/v1/unload", &serde_json::json!({ "model_name": "alpha" })).await;
    assert!(answer.status.is_success(), "{:?}", answer.json());
    let leaks = async |bytes: u64| {
        let what = format!("{bytes} bytes leak");
        until(PATIENCE, &what, async || (device(&boss, "cuda:0").await["leaking"] == bytes).then_some(())).await;
    };
    leaks(ByteCount::gib(8).0).await;
    let named = problems(&boss, "cuda:0").await;
    assert!(named.iter().any(|problem| problem.contains("leaking")), "{named:?}");
    // The memory is counted once, and other loads proceed beside it.
    assert!(boss.chat("beta", "?").await.status.is_success());
    let shown = device(&boss, "cuda:0").await;
    assert!(shown["free"].as_u64().is_some_and(|free| free < ByteCount::gib(8).0), "{shown}");

    rig.gpus.keep_memory_of_the_gone(false);
    leaks(0).await;
    assert!(problems(&boss, "cuda:0").await.is_empty());
    boss.finish().await;
}

/// The beginning of a fake engine's script, which starts a child in a session of its own.
const WITH_CHILDREN: &str = "#!/bin/sh\n\
    setsid sh -c 'echo $$ >\"$0\"; exec tail -f /dev/null' FOLDER/early </dev/null >/dev/null 2>&1 &\n\
    setsid sh -c 'read -r line <\"$0.go\"; echo $$ >\"$0\"; exec tail -f /dev/null' FOLDER/late </dev/null >/dev/null 2>&1 &\n";

/// The pid that a child has written to its file.
async fn child(rig: &Rig, name: &str) -> u32 {
    let file = rig.sandbox.path(name);
    let written = async || std::fs::read_to_string(&file).ok()?.trim().parse().ok();
    until(PATIENCE, &format!("the {name} child is there"), written).await
}

#[tokio::test]
async fn dm_6_rc_18_memory_of_an_engines_children_is_its_leases_and_leaks_when_the_driver_keeps_it() {
    let Some(mut rig) = Rig::with(&[ONE], "leases.return_patience = \"500ms\"") else { return };
    let engine = rig.sandbox.llama_server();
    let script = std::fs::read_to_string(&engine).unwrap();
    let children = WITH_CHILDREN.replace("FOLDER", &rig.sandbox.path("").display().to_string());
    let children = children.replace("//", "/");
    std::fs::write(&engine, script.replacen("#!/bin/sh\n", &children, 1)).unwrap();
    nix::unistd::mkfifo(&rig.sandbox.path("late.go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let manifest = "backend = \"llama-server\"\ndevice = \"cuda:0\"";
    let _model = rig.sandbox.gguf_model("alpha", manifest, Behaviour::default());
    let boss = rig.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let early = child(&rig, "early").await;
    // The engine starts another child process long after it was ready.
    std::fs::write(rig.sandbox.path("late.go"), "now\n").unwrap();
    let late = child(&rig, "late").await;
    rig.gpus.uses(early, ONE, ByteCount::gib(3));
    rig.gpus.uses(late, ONE, ByteCount::gib(2));

    // As long as the processes live, all of their memory is counted for the lease, and none as foreign.
    let measured = async || {
        let leases = boss.read("/api/v1/leases").await;
        let measured = leases["leases"][0]["parts"][0]["measured"].as_u64();
        (measured == Some(ByteCount::gib(5).0)).then_some(())
    };
    until(PATIENCE, "both count for the lease", measured).await;
    assert_eq!(device(&boss, "cuda:0").await["foreign"], 0);

    // The driver keeps the memory of ended processes. It stays counted for the lease, then it is reported as leaking,
    // and it is never free.
    rig.gpus.keep_memory_of_the_gone(true);
    let answer = boss.client().post("/api/v1/unload", &serde_json::json!({ "model_name": "alpha" })).await;
    assert!(answer.status.is_success(), "{:?}", answer.json());
    let leaks = async |bytes: u64| {
        let what = format!("{bytes} bytes leak");
        let leaking = async || {
            let shown = device(&boss, "cuda:0").await;
            let free = shown["free"].as_u64().unwrap_or(u64::MAX);
            let leaks = shown["leaking"] == bytes;
            assert!(!leaks || bytes == 0 || free <= ByteCount::gib(19).0, "memory that leaks is promised: {shown}");
            leaks.then_some(())
        };
        until(PATIENCE, &what, leaking).await;
    };
    leaks(ByteCount::gib(5).0).await;
    let named = problems(&boss, "cuda:0").await;
    assert!(named.iter().any(|problem| problem.contains("leaking")), "{named:?}");
    rig.gpus.keep_memory_of_the_gone(false);
    leaks(0).await;
    assert_eq!(device(&boss, "cuda:0").await["foreign"], 0);
    boss.finish().await;
}
