//! The kernel that runs for each type, instruction set and number of rows: `docs/kernels.md` says it, and this test
//! holds the page to the kernels that ran.

use half::{bf16, f16};
use model_boss_protocol::InstructionSet;
use model_boss_weights::gguf::TensorType;

use crate::KvElement;
use crate::attention::attend_by;
use crate::floats::kinds::{E4m3, FloatKind};
use crate::floats::product::product_of;
use crate::kernel::MatrixKernel;
use crate::lanes::Instructions;
use crate::quantised::{Format, Quantised};
use crate::ran::during;

/// One row as in decoding, a few as in a batch, many as in a prompt.
const ROWS: [usize; 3] = [1, 4, 64];

/// A matrix small enough for one thread, which records its kernels.
const OUTS: usize = 16;
const DEPTH: usize = 256;

const HEAD: &str = "# Kernels

The kernel that runs for each type, number of rows and instruction set of `--cpu-features`. A test of `worker/kernels`
runs them all and holds this page to the names of the kernels that ran; `MODEL_BOSS_WRITE_DOCS=1 cargo test -p
model-boss-kernels table_of_kernels` writes the columns of the machine's instruction sets.

A cell has the instructions and the sizes of the inner loops. `×4` takes four rows of activations at once; `8×2` takes
eight rows of the matrix and two of activations. Floats are multiplied without products of bytes, so sets that differ
in those only share the kernels of floats and of attention. Only the column `portable` has plain code, and a worker
that uses it logs a warning.
";

fn floats<K: FloatKind>(instructions: Instructions, rows: usize) {
    let (x, w) = (vec![0.5; rows * DEPTH], vec![0; OUTS * K::row_bytes(DEPTH)]);
    product_of::<K>(instructions, &x, &w, [rows, OUTS, DEPTH]);
}

fn quantised(instructions: Instructions, kind: TensorType, rows: usize) {
    let bytes = vec![0; kind.bytes_of((OUTS * DEPTH) as u64).unwrap() as usize];
    let matrix = Quantised::with_instructions(instructions, kind, [OUTS, DEPTH], bytes.into()).unwrap();
    matrix.product(&vec![0.5; rows * DEPTH], rows);
}

type Kernel = Box<dyn Fn(Instructions, usize)>;

/// Everything that has kernels, by name.
fn kernels() -> Vec<(String, Kernel)> {
    let mut all: Vec<(String, Kernel)> = vec![
        ("F32".to_owned(), Box::new(floats::<f32>)),
        ("F16".to_owned(), Box::new(floats::<f16>)),
        ("BF16".to_owned(), Box::new(floats::<bf16>)),
        ("F8_E4M3".to_owned(), Box::new(floats::<E4m3>)),
    ];
    for kind in Format::kinds() {
        all.push((kind.name().to_owned(), Box::new(move |instructions, rows| quantised(instructions, kind, rows))));
    }
    for kept in [KvElement::F32, KvElement::F16, KvElement::Bf16, KvElement::Q8_0] {
        let name = format!("attention over {kept:?}").to_lowercase();
        all.push((name, Box::new(move |instructions, rows| attend_by(instructions, kept, rows))));
    }
    all
}

/// The cells of a page, by line: those of sets that this machine lacks are in the page already.
fn page(before: &str) -> String {
    let sets = InstructionSet::ALL;
    let mut lines = vec![HEAD.to_owned()];
    lines.push(format!("| type | rows | {} |", sets.map(|(_, name)| name).join(" | ")));
    lines.push(format!("|---|---|{}", "---|".repeat(sets.len())));
    for (name, kernel) in kernels() {
        for rows in ROWS {
            let start = format!("| {name} | {rows} |");
            let known: Vec<&str> =
                before.lines().find(|line| line.starts_with(&start)).unwrap_or("").split('|').collect();
            let cell = |(at, (set, _)): (usize, &(InstructionSet, &str))| match Instructions::of(*set) {
                Some(instructions) => {
                    let ran = during(|| kernel(instructions, rows));
                    assert!(!ran.is_empty(), "{name} with {rows} rows by {set} recorded no kernel");
                    ran.join(", ")
                }
                None => known.get(at + 3).map_or("", |cell| cell.trim()).to_owned(),
            };
            let cells: Vec<String> = sets.iter().enumerate().map(cell).collect();
            lines.push(format!("{start} {} |", cells.join(" | ")));
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn fa_4_the_kernel_of_each_type_set_and_shape_is_the_one_on_the_page() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let now = page(&before);
    if std::env::var_os("MODEL_BOSS_WRITE_DOCS").is_some() {
        std::fs::write(&path, &now).unwrap();
        return;
    }
    for (before, now) in before.lines().zip(now.lines()) {
        assert_eq!(before, now, "MODEL_BOSS_WRITE_DOCS=1 writes the page");
    }
    assert_eq!(before.lines().count(), now.lines().count());
}

#[test]
fn fa_4_plain_code_runs_for_no_other_set() {
    for (set, _) in InstructionSet::ALL {
        let Some(instructions) = Instructions::of(set) else { continue };
        for (name, kernel) in kernels() {
            for rows in ROWS {
                let plain = during(|| kernel(instructions, rows)).iter().any(|ran| ran.starts_with("portable"));
                assert_eq!(plain, set == InstructionSet::Portable, "{name} with {rows} rows by {set}");
            }
        }
    }
}
