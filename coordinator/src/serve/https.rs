//! The certificate of the server: two files, which are followed, so that a renewed certificate is taken without a
//! restart.

use std::path::Path;

use model_boss_config::Config;
use model_boss_host::plain_file::read_plain_file;
use model_boss_host::watched_file::{self, WatchedFile};
use model_boss_http::tls::ServerTls;

use super::error::ServeError;

/// The largest file of certificates or of a key, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The server's TLS, and the files that it is from.
pub(super) struct Https {
    tls: ServerTls,
    files: [WatchedFile; 2],
}

impl Https {
    /// The TLS that the settings name, if they name any.
    pub(super) fn of(config: &Config) -> Result<Option<Self>, ServeError> {
        let (Some(certificate), Some(key)) = (&config.tls_cert, &config.tls_key) else { return Ok(None) };
        let files = [certificate, key].map(|path| WatchedFile::new(path, MAX_SIZE));
        // A version that comes between both reads is read again.
        files.iter().for_each(|file| drop(file.adopt()));
        let tls = ServerTls::new(&read(certificate)?, &read(key)?);
        let tls = tls.map_err(|error| ServeError::Tls(certificate.clone(), key.clone(), error))?;
        Ok(Some(Self { tls, files }))
    }

    /// The server's TLS.
    pub(super) fn tls(&self) -> ServerTls {
        self.tls.clone()
    }

    /// Follows the files as long as the process runs.
    pub(super) async fn follow(self) {
        let https = std::sync::Arc::new(self);
        watched_file::follow(move || https.look()).await;
    }

    /// Takes the files' new versions. Between the changes of both they do not belong together, and the pair of before
    /// stays in use.
    fn look(&self) {
        // Both are looked at: a version counts as seen only then.
        let [certificate, key] = [&self.files[0], &self.files[1]].map(|file| file.look().is_some());
        if !certificate && !key {
            return;
        }
        let [certificate, key] = [&self.files[0], &self.files[1]].map(WatchedFile::path);
        let read =
            |path: &Path| read_plain_file(path, MAX_SIZE).map_err(|error| format!("{}: {error}", path.display()));
        let taken = read(certificate)
            .and_then(|certificate| self.tls.replace(&certificate, &read(key)?).map_err(|error| error.to_string()));
        match taken {
            Ok(()) => tracing::info!("new connections use the certificate in {}", certificate.display()),
            Err(error) => tracing::warn!("the certificate of before stays in use: {error}"),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ServeError> {
    read_plain_file(path, MAX_SIZE).map_err(|error| ServeError::TlsFile(path.to_owned(), error))
}
