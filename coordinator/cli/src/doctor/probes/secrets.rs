//! Files with secrets, and the certificate of HTTPS. Contents are checked and not kept.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use model_boss_access::KeyFileError;
use model_boss_config::model_folders::ModelFolders;
use model_boss_config::{Config, Provider};
use model_boss_host::clocks::unix_seconds;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;

use super::super::checks::secrets::{CertificateFacts, SecretFacts, SecretFile};

/// The facts of the files that the settings name.
pub(crate) fn secrets(config: &Config, config_file: Option<&Path>) -> SecretFacts {
    let mut files = vec![
        secret("API keys", &config.keys_file(), config.api_keys.is_some(), keys_trouble(config)),
        secret("the owner key of a coordinator", &config.own_state_dir().join("owner.key"), false, None),
    ];
    files.extend(config.tls_key.iter().map(|file| secret("the key of HTTPS", file, true, None)));
    let mut missing_keys = Vec::new();
    for (name, spec) in &config.providers.0 {
        let provider = Provider::new(name, spec.clone());
        files.extend(provider.key_file().map(|file| secret(&format!("the key of {name}"), file, true, None)));
        missing_keys.extend(provider.key().err().map(|missing| missing.to_string()));
    }
    let has_password = config.redis_url.as_ref().is_some_and(|url| url.secret().contains('@'));
    files.extend(config_file.filter(|_| has_password).map(|file| secret("the password of Redis", file, true, None)));
    let home = std::env::home_dir().unwrap_or_default();
    let folders = ModelFolders::below(&home, |name| std::env::var_os(name).map(Into::into));
    let token = SecretFile {
        is_of_others: true,
        ..secret("Hugging Face's token", &folders.hub_home.join("token"), false, None)
    };
    files.push(token);
    SecretFacts {
        files,
        certificate: config.tls_cert.as_deref().map(certificate),
        tls_trouble: config
            .tls_cert
            .as_deref()
            .zip(config.tls_key.as_deref())
            .and_then(|(cert, key)| tls(cert, key).err()),
        missing_keys,
        now: i64::try_from(unix_seconds()).unwrap_or(i64::MAX),
    }
}

fn secret(what: &str, path: &Path, is_needed: bool, trouble: Option<String>) -> SecretFile {
    let mode = path.metadata().ok().map(|about| about.mode());
    SecretFile { what: what.to_owned(), path: path.to_owned(), mode, trouble, is_needed, is_of_others: false }
}

fn keys_trouble(config: &Config) -> Option<String> {
    config
        .keys()
        .err()
        .filter(|error| !matches!(error, KeyFileError::Read(_, why) if why.kind() == std::io::ErrorKind::NotFound))
        .map(|error| error.to_string())
}

/// The days and names of the first certificate in a file.
fn certificate(path: &Path) -> CertificateFacts {
    let read = || {
        let text = fs::read(path).map_err(|error| error.to_string())?;
        let der = CertificateDer::from_pem_slice(&text).map_err(|error| error.to_string())?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).map_err(|error| error.to_string())?;
        let validity = certificate.validity();
        let mut names: Vec<String> = match certificate.subject_alternative_name() {
            Ok(Some(names)) => names.value.general_names.iter().filter_map(name).collect(),
            _ => Vec::new(),
        };
        if names.is_empty() {
            names.push(certificate.subject().to_string());
        }
        Ok((validity.not_before.timestamp(), validity.not_after.timestamp(), names))
    };
    CertificateFacts { path: path.to_owned(), read: read() }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
            Ok(bytes) => Some(std::net::Ipv4Addr::from(bytes).to_string()),
            Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    }
}

/// Whether certificate and key belong together, as a server that uses them finds out.
fn tls(cert: &Path, key: &Path) -> Result<(), String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let chain = CertificateDer::pem_slice_iter(&read(cert)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| format!("{}: {error}", cert.display()))?;
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| format!("{}: {error}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(|error| error.to_string())?.with_no_client_auth();
    builder.with_single_cert(chain, key).map(|_| ()).map_err(|error| error.to_string())
}
