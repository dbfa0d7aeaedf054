//! Products of matrices of bytes by AMX: sixteen rows of activations with a piece of sixteen rows' quants, by one
//! instruction. Tiles of quants and of activations lie in memory as the instruction reads them.
//!
//! Instructions and the configuration are those of Intel's Software Developer's Manual, volume 1, chapter 18. Rust's
//! intrinsics for them are not stable, so they are written as assembly. [`product_in_software`] does the same in plain
//! code, for tests on machines without AMX and for [`is_granted`].

use std::arch::asm;
use std::sync::OnceLock;

use super::operations::LANES;

/// Rows of activations that are multiplied together.
pub(super) const ROWS: usize = 16;

/// Bytes between two rows of activations of a group.
const ROW_BYTES: usize = 32;

/// The sums of the products of each row of activations with each row of quants.
#[repr(C, align(64))]
pub(super) struct TileSums(pub(super) [[i32; LANES]; ROWS]);

/// The sizes of the tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct TileSizes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each register.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Register 0 has sums; 1 and 2 activations and quants of eight units of four elements; 3 and 4 those of four units.
static SIZES: TileSizes = TileSizes {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 32, 64, 16, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 8, 16, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Sets the sizes of the tile registers for [`product`], runs work, and frees the registers.
///
/// # Safety
///
/// The process must have AMX's registers ([`is_granted`]).
#[allow(unsafe_code)]
#[inline(always)]
pub(super) unsafe fn with_registers<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the caller vouches for the registers; the instructions read the 64 bytes of the sizes and nothing else.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const SIZES, options(nostack, readonly, preserves_flags));
        let result = work();
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
        result
    }
}

/// The product by two registers of the right sizes.
macro_rules! multiply_tiles {
    ($first:tt, $second:tt, $activations:ident, $quants:ident, $sums:ident) => {
        asm!(
            "tilezero tmm0",
            concat!("tileloadd ", $first, ", [{activations} + {row}*1]"),
            concat!("tileloadd ", $second, ", [{quants} + {stride}*1]"),
            concat!("tdpbsud tmm0, ", $first, ", ", $second),
            "tilestored [{sums} + {stride}*1], tmm0",
            activations = in(reg) $activations,
            quants = in(reg) $quants,
            sums = in(reg) $sums,
            row = in(reg) ROW_BYTES,
            stride = in(reg) 64_usize,
            out("tmm0") _, out($first) _, out($second) _,
            options(nostack, preserves_flags),
        )
    };
}

/// The sums of the products of unsigned quants, 4 or 8 units of them, with the units of signed activations from `first`
/// on.
///
/// # Safety
///
/// It runs within [`with_registers`].
#[allow(unsafe_code)]
#[inline(always)]
pub(super) unsafe fn product(quants: &[[u8; 64]], words: &[[i32; 8]; ROWS], first: usize, sums: &mut TileSums) {
    assert!(quants.len() == 8 && first == 0 || quants.len() == 4 && first <= 4);
    let (activations, quants_at, sums) = (words[0][first..].as_ptr(), quants.as_ptr(), &raw mut sums.0);
    // SAFETY: registers have the sizes above. Activations are sixteen rows of 32 bytes of which 32, or 16 from one of
    // their halves on, are read; quants are as many rows of 64 bytes as the assertion says; sums are 16 rows of 64.
    unsafe {
        if quants.len() == 8 {
            multiply_tiles!("tmm1", "tmm2", activations, quants_at, sums);
        } else {
            multiply_tiles!("tmm3", "tmm4", activations, quants_at, sums);
        }
    }
}

/// The same as [`product`] in plain code.
pub(super) fn product_in_software(quants: &[[u8; 64]], words: &[[i32; 8]; ROWS], first: usize, sums: &mut TileSums) {
    for (row, words) in sums.0.iter_mut().zip(words) {
        for (lane, sum) in row.iter_mut().enumerate() {
            let of_unit = |(unit, quants): (usize, &[u8; 64])| {
                let word = words[first + unit].to_le_bytes();
                let pairs = quants[4 * lane..4 * lane + 4].iter().zip(word);
                pairs.map(|(quant, byte)| i32::from(*quant) * i32::from(byte.cast_signed())).sum::<i32>()
            };
            *sum = quants.iter().enumerate().map(of_unit).sum();
        }
    }
}

/// Whether the system lets this process use AMX's registers, and they compute what plain code does. The first call
/// asks for them: a process has them only on request, and all its threads do.
pub(super) fn is_granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| is_requested() && computes_right())
}

/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)` of Linux (`Documentation/arch/x86/xstate.rst`).
#[allow(unsafe_code)]
fn is_requested() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    if !cfg!(target_os = "linux") || !model_boss_protocol::InstructionSet::Amx.is_available() {
        return false;
    }
    let result: isize;
    // SAFETY: the call has numbers only and touches no memory. The registers that it changes are named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[allow(unsafe_code)]
fn computes_right() -> bool {
    let byte = |at: usize, salt: usize| ((at * 197 + salt) * 31 % 251) as u8;
    let quants: [[u8; 64]; 8] = std::array::from_fn(|unit| std::array::from_fn(|at| byte(64 * unit + at, 3)));
    let words: [[i32; 8]; ROWS] = std::array::from_fn(|row| {
        std::array::from_fn(|unit| i32::from_le_bytes(std::array::from_fn(|at| byte(32 * row + 4 * unit + at, 7))))
    });
    [(8, 0), (4, 0), (4, 4)].into_iter().all(|(units, first)| {
        let (mut here, mut plain) = (TileSums([[1; LANES]; ROWS]), TileSums([[2; LANES]; ROWS]));
        // SAFETY: the registers were granted.
        unsafe { with_registers(|| product(&quants[..units], &words, first, &mut here)) };
        product_in_software(&quants[..units], &words, first, &mut plain);
        here.0 == plain.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fa_4_sizes_of_tile_registers_are_the_64_bytes_that_the_manual_says() {
        assert_eq!((size_of::<TileSizes>(), align_of::<TileSizes>()), (64, 64));
        assert_eq!(std::mem::offset_of!(TileSizes, row_bytes), 16);
        assert_eq!(std::mem::offset_of!(TileSizes, rows), 48);
    }

    #[test]
    fn fa_4_plain_code_multiplies_signed_with_unsigned_bytes() {
        let mut quants = [[0; 64]; 4];
        let mut words = [[0; 8]; ROWS];
        // Lane 2, the second of four elements; activations begin at unit 4.
        (quants[1][9], quants[3][9]) = (255, 2);
        (words[5][5], words[5][7]) = (i32::from_le_bytes([0, 0x80, 0, 0]), i32::from_le_bytes([9, 3, 9, 9]));
        let mut sums = TileSums([[7; LANES]; ROWS]);
        product_in_software(&quants, &words, 4, &mut sums);
        let mut expected = [[0; LANES]; ROWS];
        expected[5][2] = -128 * 255 + 6;
        assert_eq!(sums.0, expected);
    }

    /// A machine with AMX checks its registers here; others say that they have none.
    #[test]
    fn fa_4_registers_are_granted_only_where_the_machine_has_them() {
        let has = model_boss_protocol::InstructionSet::Amx.is_available();
        assert!(has || !is_granted());
        if has {
            assert!(is_granted(), "the system refused AMX's registers, or they computed something else");
        }
    }
}
