//! Every operation of every instruction set, compared with plain code.

use std::fmt::Debug;

use model_boss_protocol::InstructionSet;

use super::portable::Portable;
use super::*;

/// Two vectors of arbitrary bytes, all bytes among them, and all bit patterns of the operations' other operands.
struct Operations {
    bytes: [[u8; 64]; 4],
    words: [i32; 2],
    halves: [u8; 32],
}

/// The results of all operations, as bits.
type Results = Vec<(&'static str, Vec<u32>)>;

impl WithLanes for &Operations {
    type Output = Results;

    fn call<L: Lanes>(self, lanes: L) -> Results {
        let mut results = Results::new();
        lanes.vectorize(|| self.run(lanes, &mut results));
        results
    }
}

impl Operations {
    #[inline(always)]
    fn run<L: Lanes>(&self, lanes: L, results: &mut Results) {
        let [a, b, c, d] = self.bytes.each_ref().map(|bytes| lanes.load(bytes));
        // A lane's bytes are seen by products with 1, 2, 4 and 8 in one of its places, of nibbles one by one.
        let mut bytes = |name, vector: L::Bytes| {
            let mut seen = Vec::new();
            for place in 0..4 {
                for nibble in [lanes.shift_right(vector, 0, 15), lanes.shift_right(vector, 4, 15)] {
                    let none = lanes.splat(0);
                    let ints = lanes.dot(lanes.splat_int(0), [nibble, none], [1 << (8 * place), 0]);
                    let mut out = [0.0; LANES];
                    lanes.store(lanes.floats(ints), &mut out);
                    seen.extend(out.map(f32::to_bits));
                }
            }
            results.push((name, seen));
        };
        bytes("load", a);
        bytes("splat", lanes.splat(self.bytes[0][1]));
        bytes("and", lanes.and(a, b));
        bytes("or", lanes.or(a, b));
        bytes("xor", lanes.xor(a, b));
        bytes("add", lanes.add_bytes(a, b));
        bytes("right", lanes.shift_right(a, 3, 0x1f));
        bytes("right by 6", lanes.shift_right(a, 6, 3));
        bytes("left", lanes.shift_left(a, 2, 0xfc));
        bytes("left by 4", lanes.shift_left(a, 4, 0x30));
        bytes("look up", lanes.look_up(lanes.shift_right(a, 0, 15), self.bytes[1].first_chunk().unwrap()));
        bytes("thirds", lanes.thirds(a));

        let mut floats = |name, vector: L::Floats| {
            let mut out = [0.0; LANES];
            lanes.store(vector, &mut out);
            results.push((name, out.map(f32::to_bits).to_vec()));
        };
        let mut ints = |name, vector: L::Ints| floats(name, lanes.floats(vector));
        let narrow = lanes.load_narrow(self.bytes[2].first_chunk().unwrap());
        let other = lanes.load_narrow(self.bytes[3].first_chunk().unwrap());
        ints("unsigned", lanes.unsigned(narrow));
        ints("signed", lanes.signed(narrow));
        ints("narrow right", lanes.unsigned(lanes.narrow_right(narrow, 2, 0x30)));
        ints("narrow left", lanes.unsigned(lanes.narrow_left(narrow, 2, 0x30)));
        ints("narrow or", lanes.unsigned(lanes.narrow_or(narrow, other)));
        ints("splat int", lanes.splat_int(self.words[0] >> 8));
        ints("add", lanes.add_ints(lanes.signed(narrow), lanes.unsigned(other)));
        let small = [a, b].map(|bytes| lanes.and(bytes, lanes.splat(63)));
        ints("dot", lanes.dot(lanes.unsigned(narrow), small, self.words));
        let full = lanes.dot(lanes.splat_int(5), [lanes.splat(63); 2], [i32::from_le_bytes([129; 4]); 2]);
        ints("dot of the largest", full);
        let bias = lanes.splat(if L::BIASED { 0x80 } else { 0 });
        let begun = |words: [i32; 2]| match L::BIASED {
            true => {
                let bytes = words.iter().flat_map(|word| word.to_le_bytes());
                -128 * bytes.map(|byte| i32::from(byte.cast_signed())).sum::<i32>()
            }
            false => 0,
        };
        let wide = [c, d].map(|bytes| lanes.xor(bytes, bias));
        ints("wide dot", lanes.dot_wide(lanes.splat_int(begun(self.words)), wide, self.words));
        for (name, quant, x) in [("least", 0x80, 0x81), ("mixed", 0x80, 0x7f), ("most", 0x7f, 0x7f)] {
            let words = [i32::from_le_bytes([x; 4]); 2];
            let quants = [lanes.xor(lanes.splat(quant), bias); 2];
            ints(name, lanes.dot_wide(lanes.splat_int(begun(words)), quants, words));
        }
        let halves = lanes.halves(&self.halves);
        let (x, y) = (lanes.floats(lanes.signed(narrow)), lanes.splat_float(1.0 / 3.0));
        floats("halves", halves);
        let bits: [u16; LANES] =
            std::array::from_fn(|i| u16::from_le_bytes([self.halves[2 * i], self.halves[2 * i + 1]]));
        floats("brains", lanes.brains(&bits));
        // The vectors of bytes have all of them.
        for bytes in self.bytes.iter().flat_map(|bytes| bytes.as_chunks().0) {
            floats("eighths", lanes.eighths(bytes));
        }
        floats("load floats", lanes.load_floats(&bits.map(f32::from)));
        floats("powers", lanes.powers(narrow));
        floats("mul", lanes.mul(x, y));
        floats("mul add", lanes.mul_add(x, y, halves));
        floats("neg mul add", lanes.neg_mul_add(x, y, halves));
        // The vectors differ in all lanes, and their sums depend on the order.
        let vectors = [x, y, lanes.mul(x, y), lanes.mul_add(x, y, x)];
        results.push(("sum", vectors.map(|vector| lanes.sum(vector).to_bits()).to_vec()));
        results.push(("four sums", lanes.four_sums(vectors).map(f32::to_bits).to_vec()));
    }
}

fn assert_same(name: impl Debug, expected: &Results, actual: Results) {
    for ((operation, expected), (_, actual)) in expected.iter().zip(actual) {
        assert_eq!(*expected, actual, "{operation} by {name:?}");
    }
}

#[test]
fn fa_4_every_operation_is_that_of_plain_code() {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for round in 0..64 {
        let mut bytes = [[0; 64]; 4].map(|bytes: [u8; 64]| bytes.map(|_| next()));
        // All values of a byte occur.
        for (i, byte) in bytes[0].iter_mut().enumerate() {
            *byte = (64 * (round % 4) + i) as u8;
        }
        for (i, byte) in bytes[2].iter_mut().enumerate() {
            *byte = (16 * (round % 16) + i) as u8;
        }
        // The activations are at least -127, and halves are finite.
        let words = [0; 2].map(|_: i32| i32::from_le_bytes([0; 4].map(|_: u8| next().max(1) ^ 0x80)));
        let mut halves = [0; 32].map(|_: u8| next());
        halves.iter_mut().skip(1).step_by(2).for_each(|byte| *byte &= 0xbb);
        let operations = Operations { bytes, words, halves };
        let expected = operations.call(Portable);
        for set in InstructionSet::available() {
            assert_same(set, &expected, Instructions::of(set).unwrap().run(&operations));
        }
        #[cfg(target_arch = "x86_64")]
        if let Some(lanes) = vnni_of_512() {
            assert_same("AVX-VNNI", &expected, operations.call(lanes));
        }
    }
}
