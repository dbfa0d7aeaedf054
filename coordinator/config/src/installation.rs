//! The files that were installed with this program: `PREFIX/bin/model-boss` finds those of `PREFIX/share` and
//! `PREFIX/etc`. A program in a build folder has none.

use std::path::{Path, PathBuf};

/// The file of settings that is read when none is named, if it is in the folder of the start; else the installation's.
pub const DEFAULT_FILE: &str = "model-boss.toml";
/// The name of the folders of this program.
const NAME: &str = "model-boss";

/// An installed program, by its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    prefix: PathBuf,
}

impl Installation {
    /// The installation of the running program.
    pub fn of_this_program() -> Option<Self> {
        Self::of(&std::env::current_exe().ok()?)
    }

    /// The installation of the program at this path.
    pub fn of(program: &Path) -> Option<Self> {
        let folder = program.parent()?;
        (folder.file_name()? == "bin").then_some(())?;
        Some(Self { prefix: folder.parent()?.to_owned() })
    }

    /// The configuration of the machine or the environment; below `/usr` it is that of the system, in `/etc`.
    pub fn configuration(&self) -> PathBuf {
        let prefix = if self.prefix == Path::new("/usr") { Path::new("/") } else { &self.prefix };
        prefix.join("etc").join(NAME).join(DEFAULT_FILE)
    }

    /// The folder of the models that came with the program.
    pub fn models(&self) -> PathBuf {
        self.prefix.join("share").join(NAME).join("models")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_9_an_installed_program_finds_its_files_by_its_prefix() {
        let of = |program: &str| {
            Installation::of(Path::new(program)).map(|installed| (installed.configuration(), installed.models()))
        };
        for (program, configuration, models) in [
            ("/usr/bin/model-boss", "/etc/model-boss/model-boss.toml", "/usr/share/model-boss/models"),
            (
                "/usr/local/bin/model-boss",
                "/usr/local/etc/model-boss/model-boss.toml",
                "/usr/local/share/model-boss/models",
            ),
            ("/me/venv/bin/model-boss", "/me/venv/etc/model-boss/model-boss.toml", "/me/venv/share/model-boss/models"),
        ] {
            assert_eq!(of(program), Some((configuration.into(), models.into())), "{program}");
        }
        for program in ["/src/target/debug/model-boss", "/model-boss", "/"] {
            assert_eq!(of(program), None, "{program}");
        }
    }
}
