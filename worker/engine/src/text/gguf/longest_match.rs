//! RWKV's vocabularies: at each place the longest token that fits. Tokens are any bytes, spelled with escapes.

use aho_corasick::{AhoCorasick, MatchKind};

use super::error::VocabularyError;

/// Tokens by their bytes.
#[derive(Debug)]
pub(super) struct LongestMatchTable {
    /// Its patterns are the tokens `ids`, in order.
    finder: AhoCorasick,
    ids: Vec<u32>,
    unknown: Option<u32>,
}

impl LongestMatchTable {
    pub(super) fn new(
        tokens: impl Iterator<Item = (Vec<u8>, u32)>,
        unknown: Option<u32>,
    ) -> Result<Self, VocabularyError> {
        let (bytes, ids): (Vec<Vec<u8>>, Vec<u32>) = tokens.filter(|(bytes, _)| !bytes.is_empty()).unzip();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(bytes)
            .map_err(|error| VocabularyError::Build(error.into()))?;
        Ok(Self { finder, ids, unknown })
    }

    /// Appends the tokens of a text; a byte that no token begins with is an unknown token.
    pub(super) fn encode(&self, text: &str, output: &mut Vec<u32>) {
        let mut end = 0;
        for found in self.finder.find_iter(text) {
            output.extend((end..found.start()).filter_map(|_| self.unknown));
            output.extend(self.ids.get(found.pattern().as_usize()));
            end = found.end();
        }
        output.extend((end..text.len()).filter_map(|_| self.unknown));
    }
}

/// The bytes of a spelling: `\n`, `\t`, `\r` and `\x0a` are bytes. Any other character behind a backslash is itself.
pub(super) fn unescape(spelling: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(spelling.len());
    let mut rest = spelling.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b't') => bytes.push(b'\t'),
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b'x') => {
                let digits =
                    [rest.next(), rest.next()].map(|digit| digit.and_then(|digit| char::from(digit).to_digit(16)));
                if let [Some(high), Some(low)] = digits {
                    bytes.extend(u8::try_from(high << 4 | low));
                }
            }
            Some(other) => bytes.push(other),
            None => {}
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes() {
        assert_eq!(unescape(r"a\n\t\r\\\'\x0a\xFFé"), b"a\n\t\r\\'\x0a\xff\xc3\xa9");
        assert_eq!(unescape(r"a\"), b"a");
    }
}
