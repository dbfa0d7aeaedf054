//! Names of files that belong to a model each.

use model_boss_protocol::ModelId;

/// The longest name before its ending; file systems permit 255 bytes.
const LONGEST_NAME: usize = 200;

/// The name of a model's files, without an ending. Different models have different names: every byte that is no plain
/// character is written as `%` and two digits.
pub(crate) fn model_file_name(model: &ModelId) -> String {
    let mut name = String::new();
    for (at, byte) in model.as_str().bytes().enumerate() {
        match byte {
            b'.' if at == 0 => name.push_str("%2E"),
            b'.' | b'_' | b'-' | b'+' | b'@' => name.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => name.push(char::from(byte)),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > LONGEST_NAME {
        let sum = sum(name.as_bytes());
        name.truncate(LONGEST_NAME);
        // A tilde is in no other name.
        name.push_str(&format!("~{sum:032x}"));
    }
    name
}

/// Fowler, Noll and Vo's FNV-1a of 128 bits. The sum distinguishes long names, and protects against no attack.
fn sum(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |sum, byte| (sum ^ u128::from(*byte)).wrapping_mul(PRIME))
}
