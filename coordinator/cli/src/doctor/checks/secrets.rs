//! Files with secrets, and the certificate of HTTPS.

use std::path::PathBuf;

use super::super::finding::{Area, Finding};

const DAY: i64 = 86_400;
/// Days before its end from which a certificate should have been renewed.
const SOON: i64 = 21;

/// A file with a secret.
#[derive(Clone, Debug)]
pub(crate) struct SecretFile {
    /// The content in words, such as `API keys`.
    pub(crate) what: String,
    pub(crate) path: PathBuf,
    /// The bits of its mode; `None` where there is no file.
    pub(crate) mode: Option<u32>,
    /// Why its content is of no use.
    pub(crate) trouble: Option<String>,
    /// Whether it must exist.
    pub(crate) is_needed: bool,
    /// Whether another program wrote it, with the mode that this program usually gives.
    pub(crate) is_of_others: bool,
}

/// The certificate of HTTPS.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFacts {
    pub(crate) path: PathBuf,
    /// Begin and end in seconds since 1970, and the names; or why it cannot be read.
    pub(crate) read: Result<(i64, i64, Vec<String>), String>,
}

/// Secrets.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecretFacts {
    pub(crate) files: Vec<SecretFile>,
    pub(crate) certificate: Option<CertificateFacts>,
    /// Why TLS cannot be set up with certificate and key.
    pub(crate) tls_trouble: Option<String>,
    /// Providers whose key is missing, in words.
    pub(crate) missing_keys: Vec<String>,
    /// Seconds since 1970.
    pub(crate) now: i64,
}

pub(crate) fn judge(facts: &SecretFacts) -> Vec<Finding> {
    let area = Area::Secrets;
    let mut findings: Vec<Finding> = facts.files.iter().filter_map(file).collect();
    if let Some(certificate) = &facts.certificate {
        findings.push(dated(certificate, facts.now));
    }
    if let Some(why) = &facts.tls_trouble {
        findings.push(
            Finding::failure(area, "tls", format!("HTTPS cannot be served: {why}"))
                .why("A coordinator does not start with a key that does not belong to its certificate")
                .remedy("tls_cert names the certificate with its chain, tls_key its private key, both as PEM"),
        );
    }
    findings.extend(facts.missing_keys.iter().map(|missing| {
        Finding::warning(area, "provider_key", missing.clone())
            .why("Requests to its models are refused, and ladders skip them")
            .remedy("Set it for the coordinator's process, too: a service does not have your shell's variables")
    }));
    if findings.is_empty() {
        findings.push(Finding::ok(area, "files", "no keys, no certificate: loopback callers need none"));
    }
    findings
}

fn file(file: &SecretFile) -> Option<Finding> {
    let area = Area::Secrets;
    let (what, path) = (&file.what, file.path.display());
    let Some(mode) = file.mode else {
        return file.is_needed.then(|| {
            Finding::failure(area, "file", format!("{path} ({what}) does not exist"))
                .why("The settings name it")
                .remedy("Make it, or correct the setting")
        });
    };
    if mode & 0o077 != 0 {
        let finding = if file.is_of_others { Finding::warning } else { Finding::failure };
        return Some(
            finding(area, "mode", format!("others may use {path} ({what}), mode {:o}", mode & 0o7777))
                .why("Every user of this machine can read the secret")
                .remedy(format!("`chmod 600 {path}`, and draw a new secret if others had the chance to read it")),
        );
    }
    Some(match &file.trouble {
        Some(why) => Finding::failure(area, "file", format!("{path} ({what}): {why}"))
            .why("Its content is of no use to a coordinator")
            .remedy("Correct the file, or make it anew"),
        None => Finding::ok(area, "file", format!("{what}: {path}, only for its owner")),
    })
}

fn dated(certificate: &CertificateFacts, now: i64) -> Finding {
    let (area, path) = (Area::Secrets, certificate.path.display());
    match &certificate.read {
        Err(why) => Finding::failure(area, "certificate", format!("{path} cannot be read: {why}"))
            .why("HTTPS needs it")
            .remedy("tls_cert names a PEM file that begins with the server's own certificate"),
        Ok((_, end, names)) if *end <= now => Finding::failure(
            area,
            "certificate",
            format!("{path} ({}) ended {} days ago", names.join(", "), (now - end) / DAY),
        )
        .why("Clients refuse it")
        .remedy("Renew it; the coordinator reads the files again by itself"),
        Ok((begin, _, names)) if *begin > now => {
            Finding::failure(area, "certificate", format!("{path} ({}) is not valid yet", names.join(", ")))
                .why("Clients refuse it")
                .remedy("Compare the clocks of this machine and of the one that made it")
        }
        Ok((_, end, names)) => {
            let days = (end - now) / DAY;
            let found = format!("{path} ({}) is valid for {days} more days", names.join(", "));
            if days < SOON {
                Finding::warning(area, "certificate", found)
                    .why("After that clients refuse it")
                    .remedy("Renew it; the coordinator reads the files again by itself")
            } else {
                Finding::ok(area, "certificate", found)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    fn secret(mode: Option<u32>, trouble: Option<&str>, is_needed: bool) -> SecretFacts {
        let (what, trouble) = ("a key".to_owned(), trouble.map(str::to_owned));
        let file = SecretFile { what, path: "/k".into(), mode, trouble, is_needed, is_of_others: false };
        SecretFacts { files: vec![file], ..SecretFacts::default() }
    }

    #[test]
    fn op_1_secrets_that_others_can_read_are_found() {
        for (facts, expected) in [
            (SecretFacts::default(), ("files", Grade::Ok)),
            (secret(Some(0o100_600), None, true), ("file", Grade::Ok)),
            (secret(Some(0o100_644), None, true), ("mode", Grade::Failure)),
            (secret(Some(0o100_640), None, true), ("mode", Grade::Failure)),
            (secret(Some(0o100_600), Some("line 3"), true), ("file", Grade::Failure)),
            (secret(None, None, true), ("file", Grade::Failure)),
            (secret(None, None, false), ("files", Grade::Ok)),
        ] {
            assert_eq!(results(&judge(&facts)), [expected], "{facts:?}");
        }
    }

    #[test]
    fn op_1_a_certificate_is_judged_by_its_days() {
        let of = |begin: i64, end: i64| {
            let read = Ok((begin * DAY, end * DAY, vec!["box.lan".to_owned()]));
            let certificate = Some(CertificateFacts { path: "/c".into(), read });
            results(&judge(&SecretFacts { certificate, now: 100 * DAY, ..SecretFacts::default() }))[0].1
        };
        assert_eq!(of(0, 99), Grade::Failure);
        assert_eq!(of(101, 200), Grade::Failure);
        assert_eq!(of(0, 105), Grade::Warning);
        assert_eq!(of(0, 400), Grade::Ok);
        let broken = CertificateFacts { path: "/c".into(), read: Err("no PEM".into()) };
        let tls_trouble = Some("keys do not match".into());
        let missing_keys = vec!["provider 'claude' has no key".into()];
        let facts = SecretFacts { certificate: Some(broken), tls_trouble, missing_keys, ..SecretFacts::default() };
        let expected = [("certificate", Grade::Failure), ("tls", Grade::Failure), ("provider_key", Grade::Warning)];
        assert_eq!(results(&judge(&facts)), expected);
    }
}
