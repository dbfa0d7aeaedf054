use std::fs;
use std::path::Path;
use std::sync::Arc;

use model_boss_core::SizeRule;
use model_boss_protocol::ByteCount;

use super::folders::Folders;
use super::*;

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn names(catalog: &Catalog) -> Vec<String> {
    catalog.models().map(|model| model.manifest.name.clone()).collect()
}

const GOOD: &str = "name = \"good\"\naliases = [\"default\"]\nsource = { path = \"weights\" }\n";

#[test]
fn a_bad_manifest_is_named_with_file_line_and_field_and_hides_no_other() {
    for (text, line, word) in [
        ("name = \"bad\"\ncontex_length = 1\nsource = { path = \"x\" }", Some(2), "contex_length"),
        ("name = \"bad\"\nsource = { path = \"x\" }\ndevice = \"cuda:one\"", Some(3), "cuda:one"),
        ("name = \"bad\"\n[params\n", Some(2), ""),
        ("name = \"a b\"\nsource = { path = \"x\" }", Some(1), "a b"),
        ("name = \"bad\"\nsource = { path = \"x\" }\nmax_concurrent = 0", Some(3), "max_concurrent"),
        ("name = \"bad\"\nsource = { path = \"x\" }\nvram = \"1GiB\"\nvram_mb = 1", Some(4), "vram"),
        ("name = \"bad\"\nsource = { path = \"x\" }\ncontext_length = \"long\"", Some(3), ""),
        ("name = \"bad\"", None, "source"),
        ("source = { path = \"x\" }", None, "name"),
        ("", None, "name"),
    ] {
        let root = folder(&[("bad.toml", text), ("good.toml", GOOD)]);
        let catalog = Catalog::read(root.path());
        assert_eq!(names(&catalog), ["good"], "{text}");
        let [problem] = &catalog.problems[..] else { panic!("{text}: {:?}", catalog.problems) };
        assert_eq!(problem.line, line, "{text}: {problem}");
        assert!(problem.message.contains(word), "{text}: {problem}");
        assert!(problem.to_string().contains("bad.toml"), "{problem}");
    }
}

#[test]
fn names_and_aliases_belong_to_one_model() {
    let root = folder(&[
        ("a.toml", GOOD),
        ("b.toml", "name = \"good\"\nsource = { path = \"x\" }"),
        ("c.toml", "name = \"c\"\naliases = [\"default\"]\nsource = { path = \"x\" }"),
        ("d.toml", "name = \"default\"\nsource = { path = \"x\" }"),
    ]);
    let catalog = Catalog::read(root.path());
    assert_eq!(names(&catalog), ["good"]);
    let problems: Vec<_> = catalog.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].contains("b.toml:1") && problems[0].contains("a.toml"), "{problems:?}");
    assert!(problems[1].contains("c.toml:2") && problems[1].contains("'aliases'"), "{problems:?}");
    assert!(problems[2].contains("d.toml:1") && problems[2].contains("'default'"), "{problems:?}");
    assert!(catalog.find("default").is_some() && catalog.get(&"default".into()).is_none());
}

#[test]
fn dm_9_a_folder_with_model_toml_is_a_package_named_after_itself() {
    let root = folder(&[
        ("tiny.mlpkg/model.toml", ""),
        ("tiny.mlpkg/model.safetensors", "0123456789"),
        ("named/model.toml", "name = \"other\"\nsource = { path = \"deep\" }"),
        ("just-weights/x.safetensors", "0123456789"),
    ]);
    let catalog = Catalog::read(root.path());
    assert_eq!(names(&catalog), ["other", "tiny"]);
    assert!(catalog.problems.is_empty());
    assert_eq!(catalog.find("tiny").unwrap().source, root.path().join("tiny.mlpkg"));
    assert_eq!(catalog.find("other").unwrap().source, root.path().join("named/deep"));
}

#[test]
fn rc_20_the_rule_of_an_estimate_is_told() {
    let config = r#"{"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"hidden_size":64,
        "max_position_embeddings":100}"#;
    let root = folder(&[
        ("stated.toml", "name = \"stated\"\nvram = \"3GiB\"\nsource = { path = \"w\" }"),
        ("files.toml", "name = \"files\"\nmax_concurrent = 2\nsource = { path = \"w\" }"),
        ("eight.toml", "name = \"eight\"\nmax_concurrent = 2\nkv_cache_type = \"q8_0\"\nsource = { path = \"w\" }"),
        ("missing.toml", "name = \"missing\"\nsource = { path = \"nowhere\" }"),
        ("away.toml", "name = \"away-70b\"\nsource = { path = \"/mnt/away/m.gguf\", bytes = 1000 }"),
        ("back.toml", "name = \"back\"\nsource = { path = \"w/b.gguf\", bytes = 77 }"),
        ("w/config.json", config),
        ("w/sub/a.safetensors", &"x".repeat(1000)),
        ("w/b.gguf", &"x".repeat(1000)),
        ("w/readme.md", &"x".repeat(1000)),
    ]);
    let catalog = Catalog::read(root.path());
    let size = |name: &str| catalog.find(name).unwrap().description.size.clone();
    assert_eq!((size("stated").bytes, size("stated").rule), (ByteCount::gib(3), SizeRule::Manifest));
    // 2 tensors × 2 bytes × 2 layers × 2 heads × 16 wide × 100 positions, in memory for 128, × 2 sequences.
    let cache = 2 * 2 * 2 * 2 * 16 * 128 * 2;
    assert_eq!(size("files").bytes, ByteCount(1300 + 1100 + cache) + ByteCount::mib(64));
    // Heads are half a group wide: 16 bytes and a scale in place of 32 bytes.
    let cache = 2 * 2 * 2 * 18 * 128 * 2;
    assert_eq!(size("eight").bytes, ByteCount(1300 + 1100 + cache) + ByteCount::mib(64));
    assert_eq!(size("files").rule, SizeRule::FileSize);
    assert_eq!(size("missing").rule, SizeRule::Name);
    // The recorded size is used until the files exist again.
    assert_eq!(
        (size("away-70b").bytes, size("away-70b").rule),
        (ByteCount(1100) + ByteCount::mib(320), SizeRule::Source)
    );
    assert_eq!(size("back").rule, SizeRule::FileSize);
}

#[test]
fn rc_20_one_part_of_a_model_counts_with_the_others() {
    let root = folder(&[
        ("part.toml", "name = \"part\"\nsource = { path = \"w/x-00001-of-00002.gguf\" }"),
        ("whole.toml", "name = \"whole\"\nsource = { path = \"w/y.gguf\" }"),
        ("w/x-00001-of-00002.gguf", &"x".repeat(1000)),
        ("w/x-00002-of-00002.gguf", &"x".repeat(2000)),
        ("w/x-00002-of-00003.gguf", &"x".repeat(4000)),
        ("w/y.gguf", &"x".repeat(8000)),
    ]);
    let catalog = Catalog::read(root.path());
    let weights = |name: &str| {
        let size = &catalog.find(name).unwrap().description.size;
        size.bytes.0 - ByteCount::mib(64 + 256).0
    };
    assert_eq!((weights("part"), weights("whole")), (3300, 8800));
}

#[test]
fn bc_5_the_revision_follows_the_weights_and_the_text() {
    let root = folder(&[("good.toml", GOOD), ("weights/a.safetensors", "one")]);
    let revision = || Catalog::read(root.path()).find("good").unwrap().description.revision;
    let first = revision();
    assert_eq!(revision(), first);
    fs::write(root.path().join("weights/a.safetensors"), "three").unwrap();
    let second = revision();
    assert_ne!(second, first);
    fs::write(root.path().join("good.toml"), format!("{GOOD}pin = true\n")).unwrap();
    assert_ne!(revision(), second);
}

#[test]
fn a_missing_folder_is_a_problem_not_a_crash() {
    let catalog = Catalog::read(Path::new("does/not/exist"));
    assert_eq!(catalog.models().count(), 0);
    assert!(catalog.problems[0].to_string().starts_with("does/not/exist: "), "{:?}", catalog.problems);
}

#[test]
fn op_9_models_of_the_installation_yield_their_names_and_come_back() {
    let root = folder(&[("weights/model.safetensors", "weights"), ("own/readme", "")]);
    let installed = "name = \"guide\"\naliases = [\"default\", \"helper\"]\n";
    fs::create_dir_all(root.path().join("share/guide")).unwrap();
    fs::write(root.path().join("share/guide/model.toml"), installed).unwrap();
    let folders = ManifestFolders { own: root.path().join("own"), installed: Some(root.path().join("share")) };
    let from = |catalog: &Catalog, name: &str| catalog.find(name).map(|model| model.file.starts_with(&folders.own));
    let read = |before: &Catalog| Catalog::read_after(&folders, before, &mut Folders::default());
    let write = |name: &str, text: &str| fs::write(root.path().join("own").join(name), text).unwrap();

    let first = read(&Catalog::default());
    assert_eq!((from(&first, "guide"), from(&first, "default")), (Some(false), Some(false)));

    write("mine.toml", "name = \"mine\"\naliases = [\"default\"]\nsource = { path = \"../weights\" }\n");
    let second = read(&first);
    assert_eq!(second.problems, [], "the installation's alias is no fault of the operator's");
    assert_eq!((from(&second, "default"), from(&second, "helper")), (Some(true), Some(false)));

    write("guide.toml", "name = \"guide\"\nsource = { path = \"../weights\" }\n");
    let third = read(&second);
    assert_eq!((from(&third, "guide"), from(&third, "helper")), (Some(true), None));

    for name in ["mine.toml", "guide.toml"] {
        fs::remove_file(root.path().join("own").join(name)).unwrap();
    }
    let fourth = read(&third);
    assert_eq!((from(&fourth, "guide"), from(&fourth, "default")), (Some(false), Some(false)));

    fs::remove_dir_all(&folders.own).unwrap();
    for before in [&fourth, &Catalog::default()] {
        let without = read(before);
        assert_eq!((from(&without, "guide"), without.problems.len()), (Some(false), 1), "a lost folder is a problem");
    }
}

#[test]
fn tr_5_a_model_beside_the_manifests_is_found_while_their_folder_is_moved() {
    let text = "name = \"m\"\nsource = { path = \"../models/current\" }";
    let root = folder(&[("manifests/m.toml", text), ("models/v1/a.safetensors", "x")]);
    std::os::unix::fs::symlink("v1", root.path().join("models/current")).unwrap();
    let catalog = Catalog::read(root.path().join("manifests"));
    let source = &catalog.find("m").unwrap().source;
    assert_eq!(*source, root.path().canonicalize().unwrap().join("models/current"), "a link may be turned later");
    fs::rename(root.path().join("manifests"), root.path().join("elsewhere")).unwrap();
    assert!(source.join("a.safetensors").is_file());
}

#[test]
fn what_did_not_change_is_not_read_again() {
    let root = folder(&[("a.toml", GOOD), ("weights/model.safetensors", "weights")]);
    let first = Catalog::read(root.path());
    let model = |catalog: &Catalog| Arc::clone(catalog.find("good").unwrap());
    let again = Catalog::read_after(&root.path().into(), &first, &mut Folders::default());
    assert!(Arc::ptr_eq(&model(&first), &model(&again)), "its headers were looked at again");
    fs::write(root.path().join("weights/model.safetensors"), "other weights").unwrap();
    let changed = Catalog::read_after(&root.path().into(), &again, &mut Folders::default());
    assert!(!Arc::ptr_eq(&model(&again), &model(&changed)) && !changed.agrees_with(&again));
    fs::write(root.path().join("a.toml"), GOOD.replace("default", "usual")).unwrap();
    assert!(Catalog::read_after(&root.path().into(), &changed, &mut Folders::default()).find("usual").is_some());
}

#[test]
fn what_runs_a_model_is_known_without_another_look_at_its_files() {
    let root = folder(&[("a.toml", GOOD), ("weights/model.gguf", "weights")]);
    let catalog = Catalog::read(root.path());
    fs::remove_dir_all(root.path().join("weights")).unwrap();
    // The list of models is requested often, so it must not read headers.
    assert!(catalog.find("good").unwrap().has_gguf());
}
