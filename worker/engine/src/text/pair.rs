//! Pairs of texts joined by special tokens, for vocabularies of GGUF files, which have no template for them.

use super::gguf::Special;

/// The special tokens around two texts, as llama.cpp's server puts them around a query and a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PairMarks {
    before: Option<u32>,
    between: Vec<u32>,
    behind: Option<u32>,
}

impl PairMarks {
    pub(super) fn of(special: &Special) -> Self {
        let end = special.eos.or(special.separator).filter(|_| special.add_eos);
        let separator = special.separator.filter(|_| special.add_separator);
        Self {
            before: special.bos.filter(|_| special.add_bos),
            between: [end, separator].into_iter().flatten().collect(),
            behind: end,
        }
    }

    /// The tokens of both texts, and the first of the second one. Of more than `most` tokens those at the end of the
    /// longer text are left out.
    pub(super) fn join(&self, [mut one, mut other]: [Vec<u32>; 2], most: usize) -> (Vec<u32>, usize) {
        let around = self.before.iter().len() + self.between.len() + self.behind.iter().len();
        let [first, second] = cut([one.len(), other.len()], most.saturating_sub(around));
        one.truncate(first);
        other.truncate(second);
        let mut tokens: Vec<u32> = self.before.into_iter().chain(one).chain(self.between.iter().copied()).collect();
        let second_from = tokens.len();
        tokens.extend(other.into_iter().chain(self.behind));
        (tokens, second_from)
    }
}

/// The lengths that two texts keep of `most` tokens: the longer one is cut, and both where that is not enough
/// (`longest_first` of the package `tokenizers`).
fn cut(lengths: [usize; 2], most: usize) -> [usize; 2] {
    if lengths[0] + lengths[1] <= most {
        return lengths;
    }
    let (short, turned) = (lengths[0].min(lengths[1]), lengths[0] > lengths[1]);
    let (mut less, mut more) = (short, if short > most { short } else { short.max(most - short) });
    if less + more > most {
        (less, more) = (most / 2, most / 2 + most % 2);
    }
    if turned { [more, less] } else { [less, more] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_2_pairs_of_a_gguf_vocabulary_are_joined_by_its_special_tokens() {
        let mut special = Special::default();
        (special.bos, special.eos, special.separator) = (Some(0), Some(2), Some(2));
        (special.add_bos, special.add_eos, special.add_separator) = (true, true, true);
        let marks = PairMarks::of(&special);
        let join = |one: &[u32], other: &[u32], most| marks.join([one.to_vec(), other.to_vec()], most);
        assert_eq!(join(&[7], &[8, 9], 99), (vec![0, 7, 2, 2, 8, 9, 2], 4));
        assert_eq!(join(&[], &[8], 99), (vec![0, 2, 2, 8, 2], 3));
        // The longer one loses tokens, and of two long ones both.
        assert_eq!(join(&[7], &[8, 9, 10], 6), (vec![0, 7, 2, 2, 8, 2], 4));
        assert_eq!(join(&[5, 6, 7], &[8, 9, 10], 7), (vec![0, 5, 2, 2, 8, 9, 2], 4));
        assert_eq!(PairMarks::of(&Special::default()).join([vec![1], vec![2]], 9), (vec![1, 2], 1));
    }
}
