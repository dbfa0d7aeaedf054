//! The paths of the binaries under test. Missing ones are an error that has the command to build them.

use std::path::{Path, PathBuf};

/// Folders with binaries that are preferred to those of this test's own build, for testing other builds.
pub const BIN_DIR_VARIABLE: &str = "MODEL_BOSS_TEST_BIN_DIR";

/// The path of the binary `name`: in [`BIN_DIR_VARIABLE`] (several folders as in `PATH`), else in the folder of this
/// test's own build.
pub fn binary(name: &str) -> PathBuf {
    let mut folders: Vec<PathBuf> = std::env::var_os(BIN_DIR_VARIABLE).iter().flat_map(std::env::split_paths).collect();
    let test = std::env::current_exe().expect("a running test has a path");
    // The test's own path is target/PROFILE/deps/it-0123 or target/PROFILE/bench.
    folders.extend(test.ancestors().skip(1).take(2).map(Path::to_owned));
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "there is no '{name}' in {folders:?}; build it first, in the same profile: cargo build --workspace --bins \
             (scripts/test does)"
        )
    })
}
