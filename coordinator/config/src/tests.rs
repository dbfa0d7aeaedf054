use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model_boss_lease_store::LeaseDurations;
use model_boss_protocol::{ByteCount, Category, InstructionSet, KeepAlive, SandboxMode};
use proptest::prelude::*;

use super::load::Loaded;
use super::sections::LeaseTerms;
use super::*;

/// Loads a file with this text; variables and flags override it.
fn load(
    text: &str,
    environment: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> (tempfile::TempDir, Result<Loaded, ConfigError>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.toml");
    fs::write(&file, text).unwrap();
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    let sources = Sources { flags: owned(flags), environment: owned(environment), file: Some(file) };
    (folder, sources.load())
}

fn config(text: &str) -> Config {
    load(text, &[], &[]).1.unwrap().config
}

fn problems(text: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Vec<String> {
    let (folder, loaded) = load(text, environment, flags);
    let folder = format!("{}/", folder.path().display());
    loaded.unwrap_err().problems.iter().map(|problem| problem.replace(&folder, "")).collect()
}

#[test]
fn flag_beats_variable_beats_file_beats_default() {
    let file = "port = 1\nstop_grace = \"1s\"\ndrain_grace = \"1s\"\n[stay_warm]\nllm = \"1m\"\n";
    let variables =
        [("MODEL_BOSS_PORT", "2"), ("MODEL_BOSS_STOP_GRACE", "2s"), ("OTHER", "x"), ("MODEL_BOSS_URL", "x")];
    let (folder, loaded) = load(file, &variables, &[("port", "3")]);
    let loaded = loaded.unwrap();
    assert_eq!(loaded.config.port, 3);
    assert_eq!(loaded.config.stop_grace, Duration::from_secs(2));
    assert_eq!(loaded.config.drain_grace, Duration::from_secs(1));
    assert_eq!(loaded.config.stay_warm.llm, Duration::from_secs(60));
    assert_eq!(loaded.config.stay_warm.tts, Duration::from_secs(300));
    let shown = loaded.show();
    let origin = |path: &str| shown.iter().find(|setting| setting.path == path).unwrap().origin.clone();
    assert_eq!(origin("port"), "--port");
    assert_eq!(origin("stop_grace"), "MODEL_BOSS_STOP_GRACE");
    assert_eq!(origin("drain_grace"), format!("{}:3", folder.path().join("test.toml").display()));
    assert_eq!(origin("stay_warm.llm"), format!("{}:5", folder.path().join("test.toml").display()));
    assert_eq!(origin("stay_warm.tts"), "default");
}

#[test]
fn every_kind_of_value_is_read_from_the_file_and_from_text() {
    let from_file = config(
        r#"
        host = "::1"
        port = 0
        worker_ports = "9000-9001"
        allowed_hosts = ["a.example", "b.example"]
        model_roots = ["/a", "~"]
        model_idle_secs = 1.5
        load_timeout = "250ms"
        limits.inference_body = "1MiB"
        limits.management_body = 1048576
        limits.json_depth = 0x10
        sse = { interval = "1h30m" }
        log.level = "debug"
        log.format = "json"
        "#,
    );
    let text = [
        ("MODEL_BOSS_HOST", "::1"),
        ("MODEL_BOSS_PORT", "0"),
        ("MODEL_BOSS_WORKER_PORTS", " 9000 - 9001 "),
        ("MODEL_BOSS_ALLOWED_HOSTS", "a.example, b.example"),
        ("MODEL_BOSS_MODEL_ROOTS", "/a, ~"),
        ("MODEL_BOSS_MODEL_IDLE_SECS", "1.5"),
        ("MODEL_BOSS_LOAD_TIMEOUT", "250ms"),
        ("MODEL_BOSS_LIMITS__INFERENCE_BODY", "1MiB"),
        ("MODEL_BOSS_LIMITS__MANAGEMENT_BODY", "1048576"),
        ("MODEL_BOSS_LIMITS__JSON_DEPTH", "16"),
        ("MODEL_BOSS_SSE__INTERVAL", "1h30m"),
        ("MODEL_BOSS_LOG__LEVEL", "debug"),
        ("MODEL_BOSS_LOG__FORMAT", "json"),
    ];
    assert_eq!(load("", &text, &[]).1.unwrap().config, from_file);
    assert_eq!(from_file.load_timeout, Some(Duration::from_millis(250)));
    assert_eq!(from_file.stay_warm(Category::Llm), KeepAlive::For(Duration::from_millis(1_500)));
}

#[test]
fn a_list_is_written_in_the_same_ways_wherever_it_stands() {
    let expected =
        config("allowed_hosts = [\"a\", \"b\"]\nallowed_origins = [\"app://\"]\nhost = [\"127.0.0.1\", \"::1\"]");
    let read = |hosts: &str, origins: &str, host: &str| {
        let text =
            [("MODEL_BOSS_ALLOWED_HOSTS", hosts), ("MODEL_BOSS_ALLOWED_ORIGINS", origins), ("MODEL_BOSS_HOST", host)];
        load("", &text, &[]).1.unwrap().config
    };
    for (hosts, origins, host) in [
        ("a,b", "app://", "127.0.0.1,::1"),
        (" a , b ,", "[\"app://\"]", "127.0.0.1, [::1]"),
        ("[\"a\", \"b\"]", "['app://']", "[\"127.0.0.1\",\"[::1]\"]"),
    ] {
        assert_eq!(read(hosts, origins, host), expected, "{hosts} {origins} {host}");
    }
    assert_eq!(read("", "", "[::1],::1").host.iter().count(), 1);
    assert_eq!(entries(&["a", "[\"b\", \"c\"]", "d,e", "[::1]"]), r#"["a", "b", "c", "d", "e", "[::1]"]"#);
    for (file, word) in [
        ("allowed_hosts = \"[a\"", "not a list"),
        ("host = []", "not an IP address"),
        ("host = \"127.0.0.1, somewhere\"", "'somewhere'"),
        ("host = [\"127.0.0.1\", \"0.0.0.0\"]", "is 0.0.0.0, where others can connect"),
        ("allowed_origins = [\"chat.example\"]", "'chat.example' is no origin"),
    ] {
        let error = load(file, &[], &[]).1.unwrap_err().to_string();
        assert!(error.contains(word), "{file}: {error}");
    }
}

#[test]
fn bc_3_zero_idle_seconds_switch_the_sweep_off() {
    assert_eq!(config("model_idle_secs = 0").stay_warm(Category::Llm), KeepAlive::Forever);
    assert_eq!(config("").stay_warm(Category::Vision), KeepAlive::For(Duration::from_secs(60)));
    assert_eq!(
        config("model_idle_secs = \"5m\"").stay_warm(Category::Vision),
        KeepAlive::For(Duration::from_secs(300))
    );
}

#[test]
fn a_path_in_the_file_starts_at_the_files_folder() {
    let file = "state_dir = \"here\"\nmanifests = \"/there\"\nworker_binary = \"bin/worker\"\n\
                model_roots = [\"~/m\", \"m\", \"/m\"]";
    let (folder, loaded) = load(file, &[("MODEL_BOSS_RUNTIME_DIR", "run")], &[]);
    let config = loaded.unwrap().config;
    assert_eq!(config.state_dir, folder.path().join("here"));
    assert_eq!(config.manifests_folder(), Path::new("/there"));
    assert_eq!(config.worker_binary, Some(folder.path().join("bin/worker")));
    assert_eq!(config.runtime_dir.as_deref(), Some(Path::new("run")));
    assert_eq!(config.model_roots, [PathBuf::from("~/m"), folder.path().join("m"), PathBuf::from("/m")]);
}

#[test]
fn folders_may_have_commas_where_they_are_written_as_in_the_file() {
    let (_folder, loaded) = load("", &[], &[("model_roots", "[\"/a,b\", \"~\"]")]);
    assert_eq!(loaded.unwrap().config.model_roots, [PathBuf::from("/a,b"), PathBuf::from("~")]);
    let (_folder, loaded) = load("", &[], &[("model_roots", "")]);
    assert!(loaded.unwrap().config.model_roots.is_empty());
    for wrong in ["[/a]", "[1]", "["] {
        assert_eq!(problems("", &[], &[("model_roots", wrong)]).len(), 1, "{wrong}");
    }
    assert!(problems("model_roots = [1]", &[], &[])[0].contains("not a list of folders"));
}

#[test]
fn all_problems_come_at_once_each_with_its_place() {
    let file = "prot = 8210\nport = \"many\"\n\n[stay_warm]\nllm = 300\nlmm = \"5m\"\n[elsewhere]\nx = 1\n";
    let environment = [("MODEL_BOSS_LOG__LEVL", "info"), ("MODEL_BOSS_HOST", "example.com"), ("MODEL_BOSS_SSE", "2s")];
    let flags = [("worker_ports", "9-8"), ("limits.queue_total", "0")];
    let expected = [
        "test.toml:1: 'prot' is not a setting; did you mean 'port'?",
        "test.toml:2: 'port': 'many' is not a port; write a whole number from 0 to 65535",
        "test.toml:5: 'stay_warm.llm': 300 has no unit; write a text such as \"250ms\", \"30s\" or \"5m\"",
        "test.toml:6: 'stay_warm.lmm' is not a setting; did you mean 'stay_warm.llm'?",
        "test.toml:7: 'elsewhere' is not a setting; `model-boss config show` lists them all",
        "MODEL_BOSS_HOST: 'example.com' is not an IP address; write one such as 127.0.0.1, ::1 or localhost, or a list of them",
        "MODEL_BOSS_LOG__LEVL is not a setting; did you mean MODEL_BOSS_LOG__LEVEL?",
        "MODEL_BOSS_SSE is a group of settings; set one of it, such as MODEL_BOSS_SSE__FIRST_COMMENT",
        "--worker-ports: '9-8' is not a range of ports; write one such as \"8300-8499\"",
        "--limits-queue-total: '0' does not do here; write a whole number of at least 1",
    ];
    assert_eq!(problems(file, &environment, &flags), expected);
}

#[test]
fn a_variable_that_resembles_no_setting_belongs_to_another_program() {
    for variable in [
        "MODEL_BOSS_TEST_BIN_DIR",
        "MODEL_BOSS_TEST_CLIENTS",
        "MODEL_BOSS_SIM_SEED",
        "MODEL_BOSS_CUDA_DIR",
        "MODEL_BOSS_PEERS",
    ] {
        let (_folder, loaded) = load("", &[(variable, "x")], &[]);
        assert!(loaded.is_ok(), "{variable}");
    }
}

#[test]
fn a_wrong_value_is_told_even_where_another_source_wins() {
    assert_eq!(problems("port = -1", &[], &[("port", "1")]).len(), 1);
}

#[test]
fn a_broken_file_is_told_with_its_lines_and_the_rest_is_still_checked() {
    let problems = problems("port = \nhost = \"127.0.0.1\"\nprot = 1\n", &[], &[("log.level", "loud")]);
    assert!(problems[0].starts_with("test.toml:1: "), "{problems:?}");
    assert!(problems.iter().any(|problem| problem.starts_with("test.toml:3: 'prot'")), "{problems:?}");
    assert!(problems.iter().any(|problem| problem.starts_with("--log-level: 'loud'")), "{problems:?}");
}

#[test]
fn a_named_file_must_be_there() {
    let sources = Sources { file: Some("no/such/file.toml".into()), ..Sources::default() };
    let error = sources.load().unwrap_err().to_string();
    assert!(error.contains("no/such/file.toml: the file cannot be read"), "{error}");
}

#[test]
fn op_5_others_can_connect_only_with_keys() {
    let refused = problems("", &[], &[("host", "0.0.0.0")]);
    assert!(refused[0].starts_with("--host: 'host' is 0.0.0.0"), "{refused:?}");
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let line = format!("host = \"0.0.0.0\"\napi_keys = \"{}\"", keys.display());
    for (content, wrong) in [(None, "cannot be read"), (Some("# none\n\n"), "no key"), (Some("short\n"), ":1: the key")]
    {
        if let Some(content) = content {
            fs::write(&keys, content).unwrap();
        }
        let refused = problems(&line, &[], &[]);
        assert!(refused[0].starts_with("test.toml:2: 'api_keys'") && refused[0].contains(wrong), "{refused:?}");
    }
    fs::write(&keys, "# for the notebook\n0123456789abcdef\n\n  fedcba9876543210  \n").unwrap();
    config(&line);
    let read = config(&line).keys().unwrap().unwrap();
    assert_eq!(read.unnamed().collect::<Vec<_>>(), ["0123456789abcdef", "fedcba9876543210"]);
    // Without a file that is named, the one of the state folder counts, once it holds a key.
    let state = format!("host = \"0.0.0.0\"\nstate_dir = \"{}\"", folder.path().display());
    for content in [None, Some("# none yet\n")] {
        if let Some(content) = content {
            fs::write(folder.path().join("api-keys"), content).unwrap();
        }
        let refused = problems(&state, &[], &[]);
        assert!(refused[0].contains("there are no keys; make one with `model-boss keys create"), "{refused:?}");
    }
    fs::write(folder.path().join("api-keys"), "0123456789abcdef\n").unwrap();
    config(&state);
}

#[test]
fn times_that_must_pass_are_longer_than_nothing() {
    assert_eq!(problems("sse.interval = \"0s\"\naging_step = \"0ms\"\nleases.heartbeat = \"0s\"", &[], &[]).len(), 3);
    let refused = problems("leases.heartbeat = \"8s\"", &[], &[]);
    assert!(refused[0].starts_with("test.toml:1: 'leases.heartbeat' must be at most half"), "{refused:?}");
}

#[test]
fn fa_4_a_set_of_instructions_is_one_that_this_machine_has() {
    assert_eq!(config("").cpu_features, None);
    assert_eq!(config("cpu_features = \"portable\"").cpu_features, Some(InstructionSet::Portable));
    let unknown = problems("cpu_features = \"sse9\"", &[], &[]).join("\n");
    assert!(unknown.contains("sse9") && unknown.contains("avx512-vnni"), "{unknown}");
    let absent = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    let refused = problems("", &[], &[("cpu_features", absent)]).join("\n");
    assert!(refused.contains(absent) && refused.contains("portable"), "{refused}");
}

#[test]
fn op_5_a_sandbox_is_one_of_three_words() {
    assert_eq!(config("").sandbox, SandboxMode::Auto);
    assert_eq!(config("sandbox = \"required\"").sandbox, SandboxMode::Required);
    let unknown = problems("sandbox = \"on\"", &[], &[]).join("\n");
    assert!(unknown.contains("auto, off, required"), "{unknown}");
}

#[test]
fn templates_have_something_to_work_with() {
    assert_eq!(config("").text.limits(), model_boss_protocol::TextLimits::default());
    let wrong = "[text]\ntime = \"0s\"\nmemory = \"1MiB\"\nstack = \"2GiB\"";
    assert_eq!(problems(wrong, &[], &[]).len(), 3);
}

#[test]
fn the_defaults_of_leases_are_the_protocols() {
    assert_eq!(LeaseTerms::default().terms(), LeaseDurations::default());
}

/// The output of `config show` can start a file.
#[test]
fn what_is_shown_is_what_is_read() {
    let file: String = catalogue()
        .iter()
        .filter(|setting| setting.value != "unset")
        .map(|setting| format!("{} = {}\n", setting.path, setting.value))
        .collect();
    let shown: Vec<_> = load(&file, &[], &[]).1.unwrap().show().into_iter().map(|s| (s.path, s.value)).collect();
    let defaults: Vec<_> = catalogue().into_iter().map(|s| (s.path, s.value)).collect();
    let relative = |pairs: Vec<(String, String)>| -> Vec<_> {
        pairs
            .into_iter()
            .filter(|(path, _)| !["manifests", "tasks", "model_roots", "state_dir"].contains(&path.as_str()))
            .collect()
    };
    assert_eq!(relative(shown), relative(defaults));
}

proptest! {
    #[test]
    fn a_shown_duration_reads_as_itself(millis in 0..400_000_000_u64) {
        let span = Duration::from_millis(millis);
        let shown = setting::Setting::show(&span);
        prop_assert_eq!(model_boss_protocol::parse_span(shown.trim_matches('"')), Ok(span));
    }

    #[test]
    fn a_shown_size_reads_as_itself(bytes in any::<u64>(), zeros in 0..40_u32) {
        let size = ByteCount(bytes >> zeros << zeros);
        let shown = setting::Setting::show(&size);
        prop_assert_eq!(shown.trim_matches('"').parse(), Ok(size));
    }

    #[test]
    fn no_file_makes_it_panic(text in "[a-z_.=\\[\\]\"{}0-9\\n ]{0,60}") {
        let _ = load(&text, &[], &[]);
    }
}

#[test]
fn the_state_folder_is_one_per_service_and_user_wherever_the_process_was_started() {
    let of = |variables: &[(&str, &str)], root: bool| {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        super::sections::state_dir_of(&variable, root, || Some("/people/me".into())).display().to_string()
    };
    let user = [("HOME", "/home/me"), ("XDG_STATE_HOME", "/s")];
    assert_eq!(of(&[("STATE_DIRECTORY", "/var/lib/one:/var/lib/two")], false), "/var/lib/one");
    assert_eq!(of(&[("STATE_DIRECTORY", "/var/lib/one")], true), "/var/lib/one");
    assert_eq!(of(&user, true), "/var/lib/model-boss");
    assert_eq!(of(&user, false), "/s/model-boss");
    assert_eq!(of(&user[..1], false), "/home/me/.local/state/model-boss");
    assert_eq!(of(&[("XDG_STATE_HOME", "relative"), ("HOME", "")], false), "/people/me/.local/state/model-boss");
}
