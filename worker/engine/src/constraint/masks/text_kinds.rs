//! Sets of texts by the kinds of their bytes: what the tokens below a node of the tree have behind it.

/// Texts behind some bytes: those that are UTF-8 together with them, with ASCII of some classes only. A text may end
/// inside of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TextKinds(u32);

/// Bytes that most patterns treat alike. Those outside of ASCII that may follow the same part of a character are one
/// class, and those in no character are a class each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ByteClass(u8);

/// The part of a character that some bytes end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Character(u8);

/// Bytes outside of ASCII.
const HIGH: u32 = 1 << 27;
/// Texts that are not UTF-8.
const BAD: u32 = 1 << 28;
const CLASSES: u32 = BAD - 1;
const CHARACTER_SHIFT: u32 = 29;

/// Bytes that grammars treat each in its own way. Each is a class, and the other marks are one together. A new line is
/// among them, since the mark behind which a tool's parameter ends begins with it.
const MARKS: &[u8; 20] = b"\"\\,.-_:\n/'()[]{}<>=+";

/// The class of each byte.
static CLASS: [u32; 256] = {
    let mut classes = [HIGH; 256];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = 1 << class(byte as u8);
        byte += 1;
    }
    classes
};

/// The character with each byte. Where there is none: [`IMPOSSIBLE`].
static WITH: [[u8; 256]; 8] = {
    let (mut table, mut character) = ([[IMPOSSIBLE; 256]; 8], 0);
    while character < 8 {
        let mut byte = 0;
        while byte < 256 {
            if let Some(next) = Character(character as u8).after(byte as u8) {
                table[character][byte] = next.0;
            }
            byte += 1;
        }
        character += 1;
    }
    table
};
const IMPOSSIBLE: u8 = u8::MAX;

/// The number of each byte's [`ByteClass`].
static NUMBER: [u8; 256] = {
    let (mut numbers, mut byte, mut next) = ([0; 256], 0, HIGH_NUMBERS + 10);
    while byte < 256 {
        numbers[byte] = match byte as u8 {
            ascii @ 0..=0x7f => class(ascii) as u8,
            0x80..=0x8f => HIGH_NUMBERS,
            0x90..=0x9f => HIGH_NUMBERS + 1,
            0xa0..=0xbf => HIGH_NUMBERS + 2,
            0xc2..=0xdf => HIGH_NUMBERS + 3,
            0xe0 => HIGH_NUMBERS + 4,
            0xed => HIGH_NUMBERS + 5,
            0xe1..=0xef => HIGH_NUMBERS + 6,
            0xf0 => HIGH_NUMBERS + 7,
            0xf1..=0xf3 => HIGH_NUMBERS + 8,
            0xf4 => HIGH_NUMBERS + 9,
            _ => {
                next += 1;
                next - 1
            }
        };
        byte += 1;
    }
    numbers
};
const HIGH_NUMBERS: u8 = 27;

/// The bytes in the order of their [`ByteClass`], and where each begins.
static BY_NUMBER: ([u8; 256], [usize; ByteClass::COUNT + 1]) = {
    let (mut bytes, mut begins, mut filled, mut number) = ([0; 256], [0; ByteClass::COUNT + 1], 0, 0);
    while number < ByteClass::COUNT {
        begins[number] = filled;
        let mut byte = 0;
        while byte < 256 {
            if NUMBER[byte] as usize == number {
                bytes[filled] = byte as u8;
                filled += 1;
            }
            byte += 1;
        }
        number += 1;
    }
    begins[number] = filled;
    (bytes, begins)
};

const fn class(byte: u8) -> u32 {
    let mut mark = 0;
    while mark < MARKS.len() && MARKS[mark] != byte {
        mark += 1;
    }
    match byte {
        _ if mark < MARKS.len() => 6 + mark as u32,
        b'a'..=b'z' => 0,
        b'A'..=b'Z' => 1,
        b'0'..=b'9' => 2,
        b' ' => 3,
        b'\t' | b'\r' => 4,
        0..b' ' | 127.. => 5,
        _ => 6 + MARKS.len() as u32,
    }
}

impl ByteClass {
    /// More than there are.
    pub(super) const COUNT: usize = 64;

    /// The class of a byte.
    pub(super) fn of(byte: u8) -> Self {
        Self(NUMBER[usize::from(byte)])
    }

    /// Its number, less than [`Self::COUNT`].
    pub(super) fn number(self) -> usize {
        usize::from(self.0)
    }

    /// The bytes of the class.
    pub(super) fn bytes(self) -> &'static [u8] {
        let (bytes, begins) = (&BY_NUMBER.0, &BY_NUMBER.1);
        &bytes[begins[self.number()]..begins[self.number() + 1]]
    }
}

impl Character {
    /// No character has begun.
    pub(super) const NONE: Self = Self(0);
    const ONE_MORE: Self = Self(1);
    const TWO_MORE: Self = Self(2);
    const THREE_MORE: Self = Self(3);
    const LONG_OF_THREE: Self = Self(4);
    const SURROGATE: Self = Self(5);
    const LONG_OF_FOUR: Self = Self(6);
    const LAST_OF_FOUR: Self = Self(7);

    /// With a byte more.
    pub(super) fn with(self, byte: u8) -> Option<Self> {
        Some(Self(WITH[usize::from(self.0 & 7)][usize::from(byte)])).filter(|next| next.0 != IMPOSSIBLE)
    }

    /// By the table of well-formed byte sequences in chapter 3 of the Unicode standard.
    const fn after(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::NONE, 0..=0x7f) | (Self::ONE_MORE, 0x80..=0xbf) => Self::NONE,
            (Self::NONE, 0xc2..=0xdf) => Self::ONE_MORE,
            (Self::NONE, 0xe0) => Self::LONG_OF_THREE,
            (Self::NONE, 0xed) => Self::SURROGATE,
            (Self::NONE, 0xe1..=0xef) => Self::TWO_MORE,
            (Self::NONE, 0xf0) => Self::LONG_OF_FOUR,
            (Self::NONE, 0xf1..=0xf3) => Self::THREE_MORE,
            (Self::NONE, 0xf4) => Self::LAST_OF_FOUR,
            (Self::TWO_MORE, 0x80..=0xbf) | (Self::LONG_OF_THREE, 0xa0..=0xbf) | (Self::SURROGATE, 0x80..=0x9f) => {
                Self::ONE_MORE
            }
            (Self::THREE_MORE, 0x80..=0xbf) | (Self::LONG_OF_FOUR, 0x90..=0xbf) | (Self::LAST_OF_FOUR, 0x80..=0x8f) => {
                Self::TWO_MORE
            }
            _ => return None,
        })
    }
}

impl TextKinds {
    /// The empty text.
    pub(super) fn none(character: Option<Character>) -> Self {
        character.map_or(Self(BAD), |character| Self(u32::from(character.0) << CHARACTER_SHIFT))
    }

    /// These texts, and a byte with texts behind it.
    pub(super) fn or(self, byte: u8, behind: Self) -> Self {
        Self(self.0 | CLASS[usize::from(byte)] | behind.0 & (CLASSES | BAD))
    }

    /// All texts behind the same bytes.
    pub(super) fn all(self) -> Self {
        Self(self.0 | CLASSES)
    }

    /// Whether all of the texts are UTF-8. Of others no more is known.
    pub(super) fn are_known(self) -> bool {
        self.0 & BAD == 0
    }

    /// The character in front of them.
    pub(super) fn character(self) -> Character {
        Character((self.0 >> CHARACTER_SHIFT) as u8)
    }

    /// A number for a table of so many entries, a power of two.
    pub(super) fn place(self, other: u64, entries: usize) -> usize {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (other.wrapping_mul(MULTIPLIER) ^ u64::from(self.0)).wrapping_mul(MULTIPLIER);
        (mixed >> 32) as usize & (entries - 1)
    }

    /// The classes of first bytes of these texts behind a character, and perhaps others that no character has there.
    pub(super) fn classes(self, character: Character) -> impl Iterator<Item = ByteClass> {
        let ascii = if character == Character::NONE { u64::from(self.0 & (HIGH - 1)) } else { 0 };
        let high = if self.0 & HIGH == 0 { 0 } else { u64::MAX << HIGH_NUMBERS };
        let mut left = ascii | high;
        std::iter::from_fn(move || {
            let number = Some(left).filter(|left| *left != 0)?.trailing_zeros();
            left &= left - 1;
            Some(ByteClass(number as u8))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn character(bytes: &[u8]) -> Option<Character> {
        bytes.iter().try_fold(Character::NONE, |character, byte| character.with(*byte))
    }

    proptest! {
        #[test]
        fn bytes_are_utf_8_where_the_standard_library_says_so(
            begun in any::<char>(), kept in 0_usize..4, rest in proptest::collection::vec(any::<u8>(), 0..3),
        ) {
            let begun = begun.to_string();
            let bytes = [&begun.as_bytes()[..kept.min(begun.len())], &rest].concat();
            let expected = match std::str::from_utf8(&bytes) {
                Ok(_) => Some(true),
                Err(error) => error.error_len().is_none().then_some(false),
            };
            prop_assert_eq!(character(&bytes).map(|character| character == Character::NONE), expected);
        }
    }

    #[test]
    fn bytes_of_a_class_make_the_same_of_each_character() {
        for byte in 0..=u8::MAX {
            let class = ByteClass::of(byte);
            assert!(class.bytes().contains(&byte) && class.number() < ByteClass::COUNT);
            for other in class.bytes() {
                assert_eq!(CLASS[usize::from(*other)], CLASS[usize::from(byte)]);
                assert!((0..8).all(|begun| Character(begun).with(*other) == Character(begun).with(byte)));
            }
        }
        let classes: std::collections::BTreeSet<_> = (0..=u8::MAX).map(|byte| ByteClass::of(byte).number()).collect();
        assert_eq!(classes.into_iter().map(|number| BY_NUMBER.1[number + 1] - BY_NUMBER.1[number]).sum::<usize>(), 256);
    }

    #[test]
    fn each_byte_of_a_class_begins_texts_that_have_it() {
        for byte in 0..=u8::MAX {
            let texts = TextKinds::none(Some(Character::NONE)).or(byte, TextKinds::none(None));
            assert!(texts.classes(Character::NONE).any(|class| class == ByteClass::of(byte)));
            assert!(texts.all().classes(Character::NONE).any(|class| class == ByteClass::of(byte)));
        }
    }
}
