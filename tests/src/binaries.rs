//! Where the binaries under test are. Builds nothing: says how to.

use std::path::{Path, PathBuf};

/// A folder with binaries that are taken before those of the build that made this test, for trying other builds.
pub const BIN_DIR_VARIABLE: &str = "MODEL_BOSS_TEST_BIN_DIR";

/// The binary `name` of this workspace: from [`BIN_DIR_VARIABLE`] (several folders as in `PATH`), else from the folder
/// this test's own build put its binaries in.
pub fn binary(name: &str) -> PathBuf {
    let mut folders: Vec<PathBuf> = std::env::var_os(BIN_DIR_VARIABLE).iter().flat_map(std::env::split_paths).collect();
    let test = std::env::current_exe().expect("a running test has a path");
    // target/PROFILE/deps/it-0123 and target/PROFILE/bench alike.
    folders.extend(test.ancestors().skip(1).take(2).map(Path::to_owned));
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "there is no '{name}' in {folders:?}; build it first, in the same profile: cargo build --workspace --bins \
             (scripts/test does)"
        )
    })
}
