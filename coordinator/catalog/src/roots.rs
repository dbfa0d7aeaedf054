//! Paths that a client may name (OP-5): those that lead below a model root, after following links.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use model_boss_host::plain_file::open;

/// The folders below which models may be loaded by path.
#[derive(Clone, Debug)]
pub struct ModelRoots(Vec<PathBuf>);

/// A path that leads below a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdmittedPath {
    /// The path as named, with the links in its folder resolved. A link as its last part is kept (as in Hugging Face's
    /// cache), because its name has the ending that shows the format.
    pub(super) path: PathBuf,
    /// The path with all links resolved.
    pub(super) real: PathBuf,
}

/// Why a path is not admitted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// The path leads, or could lead, out of the roots. The error does not reveal whether a file exists there.
    Outside,
    /// The path is below a root, but does not exist.
    Absent,
}

impl ModelRoots {
    /// The configured roots: `~` is the home folder, and a relative one starts in the current folder. The whole file
    /// system is a root only where `/` itself was written. A coordinator started in `/` thus does not open it by a
    /// relative root.
    pub fn new(written: &[PathBuf]) -> Self {
        let home = std::env::home_dir();
        let absolute = |path: &PathBuf| {
            let path = match path.strip_prefix("~") {
                Ok(rest) if rest.as_os_str().is_empty() => home.clone()?,
                Ok(rest) => home.as_ref()?.join(rest),
                Err(_) => path.clone(),
            };
            std::path::absolute(path).ok()
        };
        let meant = |(written, path): &(&PathBuf, PathBuf)| written.has_root() || path.parent().is_some();
        let roots = written.iter().filter_map(|path| Some((path, absolute(path)?)));
        Self(roots.filter(meant).map(|(_, path)| path).collect())
    }

    /// The union of these roots and others.
    pub(super) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// The folders that the files at `path` lead to now, links followed.
    pub fn around(path: &Path) -> Self {
        let entries = || std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let inside = || entries().filter(|path| path.is_file());
        let files: Vec<PathBuf> = if path.is_dir() { inside().collect() } else { vec![path.to_owned()] };
        let folder = if path.is_dir() { Some(path) } else { path.parent() };
        let led_to = files.iter().filter_map(|file| Some(file.canonicalize().ok()?.parent()?.to_owned()));
        let mut roots: Vec<PathBuf> = folder.map(Path::to_owned).into_iter().chain(led_to).collect();
        roots.sort();
        roots.dedup();
        Self(roots)
    }

    /// The roots' paths.
    pub fn folders(&self) -> &[PathBuf] {
        &self.0
    }

    /// Opens a file below a root. The check is made on the opened file, so that redirecting a link meanwhile has no
    /// effect.
    pub(super) fn open(&self, path: &Path) -> Result<File, NotAdmitted> {
        let file = open(path).map_err(|_| self.absent(path))?;
        let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if real.is_ok_and(|real| self.contain(&real)) { Ok(file) } else { Err(NotAdmitted::Outside) }
    }

    /// Follows every link of an absolute path and checks the final path.
    pub(super) fn admit(&self, path: &Path) -> Result<AdmittedPath, NotAdmitted> {
        let Ok(real) = path.canonicalize() else { return Err(self.absent(path)) };
        let named = match (path.file_name(), path.parent().map(Path::canonicalize)) {
            (Some(name), Some(Ok(folder))) => folder.join(name),
            _ => real.clone(),
        };
        if self.contain(&real) && self.contain(&named) {
            Ok(AdmittedPath { path: named, real })
        } else {
            Err(NotAdmitted::Outside)
        }
    }

    /// The error for a missing path. It is "absent" only if the nearest existing folder is below a root, so that
    /// clients cannot probe other folders. A dangling link could lead anywhere.
    fn absent(&self, path: &Path) -> NotAdmitted {
        let nearest = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok());
        let below = nearest
            .filter(|nearest| *nearest != path)
            .and_then(|nearest| nearest.canonicalize().ok())
            .is_some_and(|real| self.contain(&real));
        if below { NotAdmitted::Absent } else { NotAdmitted::Outside }
    }

    /// Whether a path without links is a root or below one, by whole parts of the path.
    fn contain(&self, real: &Path) -> bool {
        self.0.iter().filter_map(|root| root.canonicalize().ok()).any(|root| real.starts_with(root))
    }
}

/// The roots as text for messages: `/home/ada, /models`.
impl fmt::Display for ModelRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("no folder"),
            roots => {
                let roots: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
                f.write_str(&roots.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder `roots/` with a model in it, and `roots-evil/` and `outside/` beside it.
    fn tree() -> (tempfile::TempDir, ModelRoots) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["roots/deep", "roots-evil", "outside"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("m.gguf"), "x").unwrap();
        }
        let roots = ModelRoots::new(&[folder.path().join("roots")]);
        (folder, roots)
    }

    #[test]
    fn op_5_only_what_leads_below_a_root_is_let_in() {
        let (folder, roots) = tree();
        let at = |path: &str| folder.path().join(path);
        symlink(at("outside"), at("roots/link")).unwrap();
        symlink(at("outside/m.gguf"), at("roots/link.gguf")).unwrap();
        symlink(at("nowhere"), at("roots/dangling.gguf")).unwrap();
        symlink(at("roots/deep"), at("outside/back")).unwrap();
        for path in [
            "outside/m.gguf",
            "outside/absent.gguf",
            "roots-evil/m.gguf",
            "roots-evil/absent.gguf",
            "roots/../outside/m.gguf",
            "roots/../outside/absent.gguf",
            "roots/deep/../../outside/m.gguf",
            "roots/link/m.gguf",
            "roots/link/absent.gguf",
            "roots/link/../roots-evil/m.gguf",
            "roots/link.gguf",
            "roots/dangling.gguf",
            "",
            "/etc/passwd",
            "/",
        ] {
            assert_eq!(roots.admit(&at(path)), Err(NotAdmitted::Outside), "{path}");
        }
        for path in ["roots/absent.gguf", "roots/a/b.gguf", "roots/m.gguf/x", "outside/back/absent.gguf"] {
            assert_eq!(roots.admit(&at(path)), Err(NotAdmitted::Absent), "{path}");
        }
        for (path, real) in [
            ("roots/deep/m.gguf", "roots/deep/m.gguf"),
            ("roots", "roots"),
            ("roots-evil/../roots/deep/", "roots/deep"),
            ("outside/back/m.gguf", "roots/deep/m.gguf"),
            ("outside/back/..", "roots"),
        ] {
            let admitted = roots.admit(&at(path)).unwrap();
            assert_eq!(admitted.real, at(real).canonicalize().unwrap(), "{path}");
        }
    }

    #[test]
    fn a_link_keeps_its_name_and_shows_its_file() {
        let (folder, roots) = tree();
        let at = |path: &str| folder.path().canonicalize().unwrap().join(path);
        fs::rename(at("roots/deep/m.gguf"), at("roots/0a1b2c")).unwrap();
        symlink("../0a1b2c", at("roots/deep/m.gguf")).unwrap();
        let admitted = roots.admit(&at("roots/deep/m.gguf")).unwrap();
        assert_eq!(admitted, AdmittedPath { path: at("roots/deep/m.gguf"), real: at("roots/0a1b2c") });
    }

    #[test]
    fn a_root_that_is_a_link_or_missing_does_no_harm() {
        let (folder, _) = tree();
        let at = |path: &str| folder.path().join(path);
        symlink(at("roots"), at("alias")).unwrap();
        let roots = ModelRoots::new(&[at("missing"), at("alias")]);
        assert!(roots.admit(&at("roots/deep/m.gguf")).is_ok());
        assert!(roots.admit(&at("alias/deep/m.gguf")).is_ok());
        assert_eq!(roots.admit(&at("outside/m.gguf")), Err(NotAdmitted::Outside));
        assert_eq!(ModelRoots::new(&[]).admit(&at("roots/deep/m.gguf")), Err(NotAdmitted::Outside));
    }

    #[test]
    fn roots_are_absolute_and_the_whole_file_system_only_where_it_is_written() {
        let roots = |written: &[&str]| ModelRoots::new(&written.iter().map(PathBuf::from).collect::<Vec<_>>()).0;
        let home = std::env::home_dir().unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(roots(&["~", "~/m", ".", "m"]), [home.clone(), home.join("m"), here.clone(), here.join("m")]);
        assert_eq!(roots(&["/"]), [PathBuf::from("/")]);
    }

    #[test]
    fn the_roots_are_where_the_files_are_and_where_their_links_lead() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().canonicalize().unwrap().join(path);
        for name in ["blobs", "snapshot", "snapshot/deep"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("blobs/0a1b"), "x").unwrap();
        symlink("../blobs/0a1b", at("snapshot/x.gguf")).unwrap();
        let around = |path: &str| ModelRoots::around(&at(path)).folders().to_vec();
        assert_eq!(around("snapshot"), [at("blobs"), at("snapshot")]);
        assert_eq!(around("snapshot/x.gguf"), [at("blobs"), at("snapshot")]);
        assert_eq!(around("blobs/0a1b"), [at("blobs")]);
    }

    #[test]
    fn what_is_opened_is_what_is_checked() {
        let (folder, roots) = tree();
        let at = |path: &str| folder.path().join(path);
        symlink(at("outside/m.gguf"), at("roots/out.gguf")).unwrap();
        symlink(at("roots/deep/m.gguf"), at("outside/in.gguf")).unwrap();
        assert!(roots.open(&at("roots/deep/m.gguf")).is_ok());
        assert!(roots.open(&at("outside/in.gguf")).is_ok());
        assert_eq!(roots.open(&at("roots/out.gguf")).unwrap_err(), NotAdmitted::Outside);
        assert_eq!(roots.open(&at("roots/none.gguf")).unwrap_err(), NotAdmitted::Absent);
    }
}
