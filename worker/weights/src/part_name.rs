//! The file names of a split GGUF model's parts, as `llama-gguf-split` writes them.

/// The name of one part: `NAME-00002-of-00003.gguf` has the stem `NAME`, the number 2 and the count 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    /// The part before the numbers, which all parts share.
    pub stem: &'a str,
    /// The number of this part, from 1.
    pub number: u64,
    /// The number of parts.
    pub count: u64,
    /// The ending as it is written, such as `gguf`.
    ending: &'a str,
}

impl<'a> PartName<'a> {
    /// Reads a file name; `None` if it is not that of a part. Both numbers have five digits.
    pub fn of(name: &'a str) -> Option<Self> {
        let (rest, ending) = name.rsplit_once('.').filter(|(_, ending)| ending.eq_ignore_ascii_case("gguf"))?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let is_number = |text: &&str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let digits = |text: &str| Some(text).filter(is_number)?.parse().ok();
        Some(Self { stem, number: digits(number)?, count: digits(count)?, ending })
    }

    /// The file name of another part of the same model.
    pub fn sibling(&self, number: u64) -> String {
        format!("{}-{number:05}-of-{:05}.{}", self.stem, self.count, self.ending)
    }

    /// Whether both names are of parts of one model.
    pub fn same_model(&self, other: &PartName<'_>) -> bool {
        (self.stem, self.count) == (other.stem, other.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let part = PartName::of("a-b-00002-of-00003.gguf").unwrap();
        assert_eq!((part.stem, part.number, part.count), ("a-b", 2, 3));
        assert_eq!(part.sibling(1), "a-b-00001-of-00003.gguf");
        assert_eq!(PartName::of("A-00001-of-00002.GGUF").unwrap().sibling(2), "A-00002-of-00002.GGUF");
        assert!(part.same_model(&PartName::of("a-b-00003-of-00003.gguf").unwrap()));
        for other in ["a-00003-of-00003.gguf", "a-b-00001-of-00002.gguf"] {
            assert!(!part.same_model(&PartName::of(other).unwrap()), "{other}");
        }
        for other in ["a.gguf", "a-2-of-3.gguf", "a-00002-of-00003.bin", "-of-.gguf", "a-+0002-of-00003.gguf", ""] {
            assert_eq!(PartName::of(other), None, "{other}");
        }
    }
}
