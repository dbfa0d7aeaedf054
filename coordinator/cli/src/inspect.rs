//! `model-boss inspect`: the headers of a model file, read by the worker.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use super::by_worker::ByWorker;
use super::error::CliError;

/// The worker's report on the files, since the worker is the program that reads them.
pub(super) fn inspect(path: &Path, as_json: bool) -> Result<ExitCode, CliError> {
    let as_json = as_json.then_some(OsStr::new("--json"));
    ByWorker::new()?.run([OsStr::new("inspect"), path.as_os_str()].into_iter().chain(as_json))
}
