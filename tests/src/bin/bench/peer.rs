//! Programs of others that measurements stand beside. Finds them; installs and builds none.

use std::path::PathBuf;

/// A program named by the environment, else on PATH.
pub(crate) fn peer(variable: &str, name: &str) -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os(variable) {
        return Ok(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = [PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")];
    let found = std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| format!("not measured: {variable} is not set and there is no {name} on PATH"))
}
