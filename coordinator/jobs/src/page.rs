//! Pages of lists, the newest first, as OpenAI's lists have them.

/// One page.
#[derive(Debug, PartialEq, Eq)]
pub struct PageOfRecords<T> {
    /// The records, the newest first.
    pub records: Vec<T>,
    /// Whether older ones follow.
    pub has_more: bool,
}

/// The page of at most `limit` records behind the one named `after`. `records` come the newest first, with growing
/// age; names fall with age.
pub fn page_of<'a, T: 'a>(
    records: impl Iterator<Item = &'a T>,
    name: impl Fn(&T) -> &str,
    after: Option<&str>,
    limit: usize,
) -> PageOfRecords<&'a T> {
    let mut behind = records.filter(|record| after.is_none_or(|after| name(record) < after));
    let records: Vec<&T> = behind.by_ref().take(limit).collect();
    PageOfRecords { records, has_more: behind.next().is_some() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_pages_follow_each_other_without_a_gap() {
        let names = ["e", "d", "c", "b", "a"].map(str::to_owned);
        let page = |after| page_of(names.iter(), |name| name.as_str(), after, 2);
        assert_eq!(page(None), PageOfRecords { records: vec![&names[0], &names[1]], has_more: true });
        assert_eq!(page(Some("d")).records, [&names[2], &names[3]]);
        assert_eq!(page(Some("b")), PageOfRecords { records: vec![&names[4]], has_more: false });
        assert_eq!(page(Some("a")), PageOfRecords { records: vec![], has_more: false });
    }
}
