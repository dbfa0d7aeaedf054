use std::fs;
use std::os::unix::fs::symlink;

use super::*;

/// A folder with these (empty) files, which is the root.
fn tree(files: &[&str]) -> (tempfile::TempDir, ModelRoots) {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let roots = ModelRoots::new(&[folder.path().to_owned()]);
    (folder, roots)
}

fn look(folder: &Path, roots: &ModelRoots, path: &str) -> Result<String, String> {
    let at = admit_model(&folder.join(path), roots).map_err(|error| error.to_string())?;
    let made = ByPath::new(&at, roots.clone(), 1, &Catalog::default());
    made.map(|(one, _)| one.name).map_err(|error| error.to_string())
}

#[test]
fn what_is_a_model_and_what_is_told_of_the_rest() {
    let (folder, roots) = tree(&[
        "Tiny-Q4_K_M.gguf",
        "UPPER.GGUF",
        "dense/config.json",
        "dense/model.safetensors",
        "one/x.gguf",
        "parts/x-00001-of-00002.gguf",
        "parts/x-00002-of-00002.gguf",
        "two/x.gguf",
        "two/y.gguf",
        "shapeless/model.safetensors",
        "empty/readme.md",
        "notes.txt",
        ".gguf",
        "hello world!/x.gguf",
        "pack.mlpkg/model.toml",
        "broken/model.toml",
    ]);
    fs::write(folder.path().join("broken/model.toml"), "nmae = 1").unwrap();
    for (path, name) in [
        ("Tiny-Q4_K_M.gguf", "file:Tiny-Q4_K_M"),
        ("UPPER.GGUF", "file:UPPER"),
        ("dense", "file:dense"),
        ("dense/", "file:dense"),
        ("one", "file:one"),
        ("one/x.gguf", "file:x"),
        ("parts", "file:parts"),
        ("parts/x-00001-of-00002.gguf", "file:x"),
        ("parts/x-00002-of-00002.gguf", "file:x"),
        ("hello world!", "file:hello-world-"),
        ("pack.mlpkg", "file:pack"),
    ] {
        assert_eq!(look(folder.path(), &roots, path), Ok(name.to_owned()), "{path}");
    }
    for (path, words) in [
        ("two", "more than one model; name one of x.gguf, y.gguf"),
        ("shapeless", "no config.json"),
        ("empty", "there is no model in"),
        ("notes.txt", "is not a model: a .gguf file is one"),
        ("dense/model.safetensors", "is not a model"),
        (".gguf", "is not a model"),
        ("absent.gguf", "does not exist"),
        ("broken", "broken/model.toml:1: "),
    ] {
        let error = look(folder.path(), &roots, path).unwrap_err();
        assert!(error.contains(words), "{path}: {error}");
    }
}

#[test]
fn op_5_nothing_a_model_is_made_of_may_lead_out_of_the_roots() {
    let (folder, _) = tree(&["in/dense/config.json", "in/pack/keep", "out/w.safetensors", "out/deep/x.gguf"]);
    let at = |path: &str| folder.path().join(path);
    let roots = ModelRoots::new(&[at("in")]);
    symlink(at("out/w.safetensors"), at("in/dense/w.safetensors")).unwrap();
    for source in ["../../out", "../../nowhere", "/etc"] {
        fs::write(at("in/pack/model.toml"), format!("source = {{ path = \"{source}\" }}")).unwrap();
        let error = look(folder.path(), &roots, "in/pack").unwrap_err();
        assert!(error.contains("model.toml:1: 'source'") && error.contains("leads out of the package"), "{error}");
    }
    // A link inside the package is refused as well.
    symlink(at("out"), at("in/pack/deep")).unwrap();
    fs::write(at("in/pack/model.toml"), "source = { path = \"deep\" }").unwrap();
    let error = look(folder.path(), &roots, "in/pack").unwrap_err();
    assert!(error.contains("no model may be loaded from") && error.contains("model_roots"), "{error}");
    fs::remove_file(at("in/pack/model.toml")).unwrap();
    symlink(at("out/manifest"), at("in/pack/model.toml")).unwrap();
    fs::write(at("out/manifest"), "").unwrap();
    let error = look(folder.path(), &roots, "in/pack").unwrap_err();
    assert!(error.contains("no model may be loaded from"), "{error}");
    let error = look(folder.path(), &roots, "in/dense").unwrap_err();
    assert!(error.contains("no model may be loaded from"), "{error}");
}

#[test]
fn what_is_forbidden_and_what_is_absent_sound_the_same() {
    let (folder, _) = tree(&["in/x.gguf", "out/secret.gguf"]);
    let roots = ModelRoots::new(&[folder.path().join("in")]);
    let secret = look(folder.path(), &roots, "out/secret.gguf").unwrap_err();
    let nothing = look(folder.path(), &roots, "out/nothing.gguf").unwrap_err();
    assert_eq!(secret.replace("secret", "nothing"), nothing);
}

#[test]
fn a_relative_path_is_refused() {
    let error = admit(Path::new("x.gguf"), &ModelRoots::new(&[])).unwrap_err();
    assert!(matches!(error, PathError::Relative(_)), "{error}");
}

#[test]
fn names_are_free_and_can_stand_in_a_url() {
    let path = Path::new("/models/ada's/x.gguf");
    let mut taken: Vec<String> = Vec::new();
    for expected in ["file:x", "file:ada-s/x", "file:x:2", "file:x:3"] {
        let name = free_name("x", path, |name| taken.iter().any(|other| other == name));
        assert_eq!(name, expected);
        Manifest { name: name.clone(), ..Manifest::default() }.check().unwrap();
        taken.push(name);
    }
    let long = free_name(&"ä/b".repeat(200), Path::new("/"), |_| false);
    Manifest { name: long, ..Manifest::default() }.check().unwrap();
}

#[test]
fn a_package_keeps_its_settings_but_not_its_names() {
    let (folder, roots) = tree(&["p/model.toml", "p/model.safetensors"]);
    let text = "name = \"team/guide\"\naliases = [\"default\"]\ncontext_length = 7\n";
    fs::write(folder.path().join("p/model.toml"), text).unwrap();
    let at = admit(&folder.path().join("p"), &roots).unwrap();
    let (_, model) = ByPath::new(&at, roots, 1, &Catalog::default()).unwrap();
    assert_eq!(model.manifest.name, "file:team-guide");
    assert_eq!(model.description.id.as_str(), "file:team-guide");
    assert!(model.manifest.aliases.is_empty() && model.description.aliases.is_empty());
    assert_eq!(model.manifest.context_length, Some(7));
}
