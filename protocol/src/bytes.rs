//! Memory sizes as people write them (`18GiB`, `512 MiB`, `1048576`) and as code counts them.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// A number of bytes. Arithmetic saturates: a size never wraps round to a small one that seems to fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ByteCount(pub u64);

/// The text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size; write a number of bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB")]
pub struct ParseByteCountError(String);

impl ByteCount {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `n` times 2^20 bytes, saturated at the largest number.
    pub const fn mib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 20))
    }

    /// `n` times 2^30 bytes.
    pub const fn gib(n: u64) -> Self {
        Self(n.saturating_mul(1 << 30))
    }

    /// The larger size minus the smaller, or zero when `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The size as a number that may become negative.
    pub const fn signed(self) -> SignedBytes {
        SignedBytes(self.0 as i128)
    }

    /// This size times a non-negative factor, rounded up.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor.max(0.0)).ceil() as u64)
    }
}

impl Add for ByteCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for ByteCount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl Sum for ByteCount {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Add::add)
    }
}

/// A difference of sizes, such as the room on a device: negative where more is promised than there is. Any sum or
/// difference of sizes is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignedBytes(i128);

impl SignedBytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// Whether the number is greater than zero.
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Whether the number is less than zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The number as a size: zero where it is negative.
    pub fn clamped(self) -> ByteCount {
        ByteCount(u64::try_from(self.0.max(0)).unwrap_or(u64::MAX))
    }
}

impl From<i128> for SignedBytes {
    fn from(bytes: i128) -> Self {
        Self(bytes)
    }
}

impl Add for SignedBytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for SignedBytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Neg for SignedBytes {
    type Output = Self;
    fn neg(self) -> Self {
        Self(-self.0)
    }
}

impl AddAssign for SignedBytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for SignedBytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for SignedBytes {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Add::add)
    }
}

/// Three significant figures in binary units, in which people compare sizes: `7.41 MiB`, `18.0 GiB`, `512 B`.
impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = if value < 9.995 {
            2
        } else if value < 99.95 {
            1
        } else {
            0
        };
        write!(f, "{value:.decimals$} {}", UNITS[unit])
    }
}

impl FromStr for ByteCount {
    type Err = ParseByteCountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseByteCountError(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(bad);
        }
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * factor as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 { Ok(Self(bytes.round() as u64)) } else { Err(bad()) }
    }
}

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of bytes or a text such as \"18GiB\"")]
        enum WrittenBytes {
            Number(u64),
            Text(String),
        }
        match WrittenBytes::deserialize(deserializer)? {
            WrittenBytes::Number(n) => Ok(Self(n)),
            WrittenBytes::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("18GiB", 18 << 30),
            ("512 MiB", 512 << 20),
            ("1.5g", 3 << 29),
            ("4096", 4096),
            ("2GB", 2_000_000_000),
            (" 7 kb ", 7_000),
        ] {
            assert_eq!(text.parse(), Ok(ByteCount(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size_and_quotes_it() {
        for text in ["", "GiB", "-1", "12 apples", "1e9", "99999999999TiB", "1.2.3M"] {
            let error = text.parse::<ByteCount>().expect_err(text);
            assert!(error.to_string().contains(&format!("'{text}'")));
        }
    }

    #[test]
    fn prints_three_figures() {
        assert_eq!(ByteCount(7_774_208).to_string(), "7.41 MiB");
        assert_eq!(ByteCount::gib(18).to_string(), "18.0 GiB");
        assert_eq!(ByteCount(1023).to_string(), "1023 B");
        assert_eq!(ByteCount((1 << 20) - 1).to_string(), "1.00 MiB");
    }

    #[test]
    fn a_difference_keeps_its_sign_and_is_no_size_below_zero() {
        let (small, large) = (ByteCount(1), ByteCount(u64::MAX));
        let short = small.signed() - large.signed();
        assert!(short.is_negative() && (-short).is_positive());
        assert_eq!((short.clamped(), (-short).clamped()), (ByteCount::ZERO, ByteCount(u64::MAX - 1)));
        assert_eq!([large, large].map(ByteCount::signed).into_iter().sum::<SignedBytes>().clamped(), large);
        assert_eq!(short + large.signed(), small.signed());
    }

    proptest! {
        #[test]
        fn a_plain_number_round_trips(n in any::<u64>()) {
            prop_assert_eq!(n.to_string().parse(), Ok(ByteCount(n)));
            let json = serde_json::to_string(&ByteCount(n)).unwrap();
            prop_assert_eq!(serde_json::from_str::<ByteCount>(&json).unwrap(), ByteCount(n));
        }
    }
}
