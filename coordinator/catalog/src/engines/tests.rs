use std::fs;

use model_boss_protocol::{ByteCount, Category, DeviceId, SpawnToken};

use super::super::entries::Catalog;
use super::*;

/// A folder with one manifest, and a GGUF file that the candle worker cannot run.
fn model(manifest: &str) -> (tempfile::TempDir, std::sync::Arc<Model>) {
    use std::io::Write;
    let root = tempfile::tempdir().unwrap();
    let mut writer = model_boss_weights::gguf::HeaderWriter::new();
    writer.set("general.architecture", "gemma9").unwrap();
    writer.tensor("w", model_boss_weights::gguf::TensorType::F32, &[1]).unwrap();
    let mut body = writer.begin(fs::File::create(root.path().join("m.gguf")).unwrap()).unwrap();
    body.write(&[0; 4]).unwrap();
    body.finish().unwrap().flush().unwrap();
    fs::write(root.path().join("m.toml"), format!("name = \"m\"\nsource = {{ path = \"m.gguf\" }}\n{manifest}\n"))
        .unwrap();
    let catalog = Catalog::read(root.path());
    assert_eq!(catalog.problems, []);
    let model = std::sync::Arc::clone(catalog.find("m").unwrap());
    (root, model)
}

fn with_llama_server() -> Engines {
    Engines { llama_server: Some("/opt/llama-server".into()), ..Engines::default() }
}

fn facts<'a>(model: &'a Model, parts: &'a [(DeviceId, ByteCount)], token: &'a SpawnToken) -> Facts<'a> {
    Facts {
        model: &model.description.id,
        category: model.description.category,
        source: &model.source,
        parts,
        gpus: "",
        port: 1,
        token,
        context: Some(128),
        max_concurrent: 1,
        kv_cache_type: KvCacheType::Auto,
    }
}

#[test]
fn rc_16_what_candle_cannot_run_goes_to_a_found_llama_server() {
    let (_root, model) = model("");
    assert_eq!(with_llama_server().backend(&model), Backend::LlamaServer);
    let without = Engines::default();
    assert_eq!(without.backend(&model), Backend::Candle);
    let refusal = without.check(&model, &EngineOptions::default()).unwrap_err().to_string();
    assert!(refusal.contains("'gemma9'") && refusal.contains("MODEL_BOSS_LLAMA_SERVER"), "{refusal}");
}

#[test]
fn rc_17_the_backend_diffusers_is_our_own_worker_for_models_that_paint() {
    let (_root, painter) = model("backend = \"diffusers\"");
    assert_eq!(with_llama_server().backend(&painter), Backend::Diffusers);
    assert_eq!(painter.manifest.category(), Category::Diffusion);
    assert!(with_llama_server().check(&painter, &EngineOptions::default()).is_ok());
    let (_root, other) = model("backend = \"diffusers\"\ncategory = \"llm\"");
    let refusal = with_llama_server().check(&other, &EngineOptions::default()).unwrap_err().to_string();
    assert!(refusal.contains("category is llm"), "{refusal}");
}

#[test]
fn rc_16_a_manifest_chooses() {
    for (manifest, backend) in [
        ("backend = \"candle\"", Backend::Candle),
        ("backend = \"llama-server\"", Backend::LlamaServer),
        ("llamacpp_args = \"--threads 2\"", Backend::LlamaServer),
        ("recipe = \"llamacpp\"", Backend::LlamaServer),
        ("command = \"vllm\"", Backend::Command),
        ("recipe = \"flm\"\ncommand = { line = [\"flm\", \"{port}\"] }", Backend::Command),
    ] {
        assert_eq!(with_llama_server().backend(&model(manifest).1), backend, "{manifest}");
    }
}

#[test]
fn rc_16_what_is_missing_is_named() {
    for (manifest, word) in [
        ("command = \"vllm\"", "[backends.vllm]"),
        ("recipe = \"flm\"", "'command'"),
        ("llamacpp_backend = \"rocm\"", "'rocm'"),
        ("backend = \"llama-server\"", "no llama-server was found"),
    ] {
        let refusal = Engines::default().check(&model(manifest).1, &EngineOptions::default()).unwrap_err().to_string();
        assert!(refusal.contains(word), "{manifest}: {refusal}");
    }
}

#[test]
fn en_2_a_program_that_cannot_be_told_the_type_of_keys_and_values_refuses_it() {
    let command = "command = { line = [\"x\", \"{port}\"] }";
    let check = |manifest: &str| {
        let (_root, model) = model(manifest);
        with_llama_server().check(&model, &EngineOptions::default()).map_err(|error| error.to_string())
    };
    assert_eq!(check(&format!("{command}\nkv_cache_type = \"auto\"")), Ok(()));
    assert_eq!(check("kv_cache_type = \"q8_0\""), Ok(()), "llama-server can");
    for theirs in [format!("{command}\nthreads = 2"), "threads = 2\nbackend = \"llama-server\"".to_owned()] {
        let refusal = check(&theirs).unwrap_err();
        assert!(refusal.contains("'threads'") && refusal.contains("--threads N"), "{refusal}");
    }
    let refusal = check("speculation = \"off\"\nbackend = \"llama-server\"").unwrap_err();
    assert!(refusal.contains("'speculation'") && refusal.contains("--draft-max"), "{refusal}");
    let refusal = check(&format!("{command}\nkv_cache_type = \"q8_0\"")).unwrap_err();
    assert!(refusal.contains("'kv_cache_type'") && refusal.contains("\"q8_0\""), "{refusal}");
}

#[test]
fn rc_29_two_names_of_one_program_are_one_build() {
    let builds = ["cpu", "host", "cuda"].map(|name| {
        let program = if name == "cuda" { "/opt/cuda" } else { "/opt/cpu" };
        (name.to_owned(), PathBuf::from(program))
    });
    let tables = BackendTables { builds: builds.into(), ..BackendTables::default() };
    for (engines, usual) in [
        (Engines { build: Some("host".into()), tables: tables.clone(), ..Engines::default() }, "host"),
        (Engines { llama_server: Some("/opt/cpu".into()), tables: tables.clone(), ..Engines::default() }, "cpu"),
        (Engines { tables, ..Engines::default() }, "cpu"),
    ] {
        let (_root, model) = model("backend = \"llama-server\"\nllamacpp_args = \"--threads 2\"");
        assert_eq!(engines.usual(&model).build.as_deref(), Some(usual));
        assert_eq!(engines.usual(&model).args, Some(LlamaArgs::from_line("--threads 2")));
        for name in ["cpu", "host"] {
            assert_eq!(engines.same_build(&model, name.to_owned()), usual, "{name}");
        }
        assert_eq!(engines.same_build(&model, "cuda".to_owned()), "cuda");
    }
}

#[test]
fn mm_11_a_load_chooses_build_and_arguments_over_manifest_and_settings() {
    let (_root, model) = model("llamacpp_backend = \"cpu\"\nllamacpp_args = \"--threads 2\"");
    let builds = ["cpu", "cuda"].map(|name| (name.to_owned(), PathBuf::from(format!("/opt/{name}"))));
    let engines = Engines {
        tables: BackendTables { builds: builds.into(), ..BackendTables::default() },
        build: Some("cuda".into()),
        args: LlamaArgs::from_line("--threads 1"),
        ..Engines::default()
    };
    let (parts, token) = (vec![(DeviceId::Cpu, ByteCount::gib(1))], SpawnToken::from_bits(1));
    let launch = |options: &EngineOptions| {
        engines.foreign(&model, options, facts(&model, &parts, &token)).unwrap().unwrap().launch
    };
    let plain = launch(&EngineOptions::default());
    assert_eq!(plain.program, Path::new("/opt/cpu"));
    assert_eq!(plain.args[plain.args.len() - 4..], ["--threads", "1", "--threads", "2"]);
    let asked = EngineOptions { args: Some(LlamaArgs::from_line("--threads 3")), build: Some("cuda".into()) };
    let asked = launch(&asked);
    assert_eq!((asked.program.as_path(), asked.args.last().map(String::as_str)), (Path::new("/opt/cuda"), Some("3")));
}
