//! The address of the collector, from the setting or from OpenTelemetry's own variables.

use http::Uri;
use opentelemetry_otlp::ExporterBuildError;

/// The path of traces at a collector.
const TRACES: &str = "/v1/traces";

/// The base address of a collector.
const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The address for traces alone, complete with its path.
const OWN: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

/// Why there can be no traces as they are configured.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The address of the collector makes no sense.
    #[error("{name}: '{value}' is no address of a collector; write one such as http://127.0.0.1:4318")]
    Address {
        /// The setting or the variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The variables require a form that this program does not speak.
    #[error("{name}={value}: traces are sent as http/protobuf only, usually to port 4318; unset it or write that")]
    Protocol {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The exporter refuses the configuration.
    #[error("OTEL_EXPORTER_OTLP_*: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The system refuses a thread.
    #[error("the thread that sends traces cannot be started")]
    Thread(#[source] std::io::Error),
}

/// The address to which spans are sent; `None`: there are no traces.
pub(crate) fn endpoint(
    setting: Option<&str>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, TraceError> {
    let variable = |name: &'static str| variable(name).filter(|value| !value.is_empty());
    let is = |name, word: &str| variable(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
    if is("OTEL_SDK_DISABLED", "true") {
        return Ok(None);
    }
    let address = match setting.filter(|address| !address.is_empty()) {
        Some(address) => Some(with_path("otlp_endpoint", address, PathRule::IfNone)?),
        None if is("OTEL_TRACES_EXPORTER", "none") => None,
        None => match (variable(OWN), variable(BASE)) {
            (Some(address), _) => Some(with_path(OWN, &address, PathRule::Complete)?),
            (None, Some(address)) => Some(with_path(BASE, &address, PathRule::Added)?),
            (None, None) => None,
        },
    };
    for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        if let Some(value) = variable(name).filter(|value| address.is_some() && value != "http/protobuf") {
            return Err(TraceError::Protocol { name, value });
        }
    }
    Ok(address)
}

/// How an address gets the path of traces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathRule {
    /// It has its own.
    Complete,
    /// It is added to what is there.
    Added,
    /// It is added where there is none.
    IfNone,
}

fn with_path(name: &'static str, value: &str, path: PathRule) -> Result<Uri, TraceError> {
    let wrong = || TraceError::Address { name, value: value.to_owned() };
    let address: Uri = value.trim().parse().map_err(|_| wrong())?;
    let is_http = matches!(address.scheme_str(), Some("http" | "https"));
    if !is_http || address.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    let has_path = !matches!(address.path(), "" | "/");
    if path == PathRule::Complete || (path == PathRule::IfNone && has_path) {
        return Ok(address);
    }
    let mut parts = address.clone().into_parts();
    let added = format!("{}{TRACES}", address.path().trim_end_matches('/'));
    parts.path_and_query = Some(added.parse().map_err(|_| wrong())?);
    Uri::from_parts(parts).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(setting: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned());
        match endpoint(setting, &variable) {
            Ok(found) => Ok(found.map(|uri| uri.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_setting_comes_before_the_variables_and_those_of_traces_before_the_common_one() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/base/");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/x");
        let ok = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(address(None, &[]), Ok(None));
        assert_eq!(address(Some(""), &[]), Ok(None));
        assert_eq!(address(None, &[base]), ok("http://c:4318/base/v1/traces"));
        assert_eq!(address(None, &[base, own]), ok("https://t/x"));
        assert_eq!(address(Some("http://s:4318"), &[base, own]), ok("http://s:4318/v1/traces"));
        assert_eq!(address(Some("http://s/custom"), &[]), ok("http://s/custom"));
    }

    #[test]
    fn opentelemetrys_switches_turn_it_off() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        assert_eq!(address(Some("http://s"), &[("OTEL_SDK_DISABLED", "TRUE")]), Ok(None));
        assert_eq!(address(None, &[base, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for wrong in ["localhost:4318", "ftp://x", "http://", "grpc://a:4317", "no address"] {
            let error = address(Some(wrong), &[]).unwrap_err();
            assert!(error.contains("otlp_endpoint") && error.contains(wrong), "{error}");
        }
        let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        assert!(address(Some("http://s"), &[grpc]).unwrap_err().contains("http/protobuf"));
        assert_eq!(address(None, &[grpc]), Ok(None), "other programs may need it");
    }
}
