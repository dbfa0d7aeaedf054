//! The cache of downloads: Hugging Face's folder, its size and the room beside it.

use std::path::PathBuf;

use model_boss_protocol::ByteCount;

use super::super::finding::{Area, Finding};

/// Room for one small model.
const LITTLE: ByteCount = ByteCount::gib(10);
/// Pieces of downloads that were left, worth a line.
const MUCH: ByteCount = ByteCount::gib(1);

/// The cache and the hub.
#[derive(Clone, Debug, Default)]
pub(crate) struct HubFacts {
    pub(crate) cache: PathBuf,
    pub(crate) exists: bool,
    pub(crate) denied: Option<String>,
    pub(crate) size: ByteCount,
    pub(crate) repositories: usize,
    /// Parts of downloads that did not end.
    pub(crate) parts: ByteCount,
    pub(crate) free: Option<ByteCount>,
    pub(crate) endpoint: String,
    pub(crate) is_plain: bool,
    pub(crate) has_token: bool,
    pub(crate) is_offline: bool,
    pub(crate) auto_pull: bool,
    /// The proxy that downloads would use.
    pub(crate) proxy: Option<String>,
}

pub(crate) fn judge(facts: &HubFacts) -> Vec<Finding> {
    let area = Area::Hub;
    let path = facts.cache.display();
    let mut findings = vec![match (&facts.denied, facts.exists) {
        (Some(why), _) => Finding::warning(area, "cache", format!("{path} cannot be written: {why}"))
            .why("`model-boss pull` by this user fails; models that are there can be read")
            .remedy("Set HF_HOME to a folder of this user; the coordinator's service needs the same variable"),
        (None, false) => Finding::ok(area, "cache", format!("{path} does not exist yet; the first pull makes it")),
        (None, true) => {
            let found = format!("{path}: {} in {} repositories", facts.size, facts.repositories);
            Finding::ok(area, "cache", found)
        }
    }];
    if let Some(free) = facts.free.filter(|free| *free < LITTLE) {
        findings.push(
            Finding::note(area, "space", format!("{free} are free on the cache's disk"))
                .why("A pull compares before its first byte, and refuses what does not fit")
                .remedy("`model-boss rm MODEL` removes one; HF_HOME moves the cache to another disk"),
        );
    }
    if facts.parts > MUCH {
        findings.push(
            Finding::note(area, "parts", format!("{} are parts of downloads that did not end", facts.parts))
                .why("They take room until their pull goes on")
                .remedy("Pull these models again, or remove the cache's *.incomplete and *.model-boss.* files"),
        );
    }
    if facts.is_offline {
        let finding = Finding::note(area, "offline", "HF_HUB_OFFLINE is set: nothing is downloaded");
        findings.push(match facts.auto_pull {
            true => Finding::warning(area, "offline", "auto_pull is set, and so is HF_HUB_OFFLINE")
                .why("Requests for models that are not there start a pull that fails")
                .remedy("Unset one of them"),
            false => finding.remedy("Unset it to pull models"),
        });
    }
    if facts.is_plain && facts.has_token {
        findings.push(
            Finding::warning(area, "token", format!("the hub {} is not HTTPS, and there is a token", facts.endpoint))
                .why("The token crosses the network readable")
                .remedy("Use https:// in HF_ENDPOINT, or unset HF_TOKEN"),
        );
    } else {
        let token = if facts.has_token { "with a token" } else { "without a token, so gated models are refused" };
        findings.push(Finding::ok(area, "hub", format!("{}, {token}", facts.endpoint)));
    }
    if let Some(proxy) = &facts.proxy {
        findings.push(
            Finding::note(area, "proxy", format!("downloads go through the proxy {proxy}"))
                .why("A service does not have your shell's variables, so its pulls may take another way")
                .remedy("Set the variables in the service as well, with NO_PROXY for names of this network"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    #[test]
    fn op_1_a_cache_that_takes_no_download_is_found() {
        let good = HubFacts { exists: true, free: Some(ByteCount::gib(99)), ..HubFacts::default() };
        assert_eq!(results(&judge(&good)), [("cache", Grade::Ok), ("hub", Grade::Ok)]);
        let offline = HubFacts { is_offline: true, ..good.clone() };
        for (facts, expected) in [
            (HubFacts { exists: false, ..good.clone() }, ("cache", Grade::Ok)),
            (HubFacts { denied: Some("read-only".into()), ..good.clone() }, ("cache", Grade::Warning)),
            (HubFacts { free: Some(ByteCount::gib(1)), ..good.clone() }, ("space", Grade::Note)),
            (HubFacts { parts: ByteCount::gib(5), ..good.clone() }, ("parts", Grade::Note)),
            (HubFacts { auto_pull: true, ..offline.clone() }, ("offline", Grade::Warning)),
            (offline, ("offline", Grade::Note)),
            (HubFacts { is_plain: true, has_token: true, ..good.clone() }, ("token", Grade::Warning)),
            (HubFacts { proxy: Some("http://p".into()), ..good.clone() }, ("proxy", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
    }
}
