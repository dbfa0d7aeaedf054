//! Memory for the results of kernels within a recorded step. A recording that allocates has a node for each allocation
//! and each free between its kernels, which then cannot begin before one another's end. So the rehearsal's results are
//! kept, and given out again in the same order.

use std::cell::RefCell;

use candle_core::{DType, Result, Shape, Tensor};

/// Does recorded work again: with what is now in the memory that it reads.
pub(crate) type Repeat = Box<dyn FnMut() -> Result<()> + Send>;

/// Results after which the memory of one is used again. A layer has at most fourteen, and none is read later than in
/// the layer behind.
const ALIVE: usize = 32;

/// The results of one recorded step.
#[derive(Default)]
pub(crate) struct StepMemory {
    kept: Vec<KeptResult>,
    /// Results given out in this pass.
    given: usize,
    records: bool,
}

struct KeptResult {
    tensor: Tensor,
    /// The number of its last use in this pass.
    used: Option<usize>,
}

thread_local! {
    static PRESENT: RefCell<Option<StepMemory>> = const { RefCell::new(None) };
}

/// Does work whose results are kept, or given out again to what is recorded.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "called by the recordings of GPUs only"))]
pub(crate) fn within<T>(scratch: &mut StepMemory, records: bool, work: impl FnOnce() -> T) -> T {
    let mut present = std::mem::take(scratch);
    (present.given, present.records) = (0, records);
    present.kept.iter_mut().for_each(|kept| kept.used = None);
    PRESENT.with_borrow_mut(|outer| *outer = Some(present));
    let result = work();
    *scratch = PRESENT.with_borrow_mut(Option::take).unwrap_or_default();
    result
}

/// Whether work is being recorded on this thread.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "asked by the kernels of GPUs only"))]
pub(crate) fn is_recording() -> bool {
    PRESENT.with_borrow(|present| present.as_ref().is_some_and(|scratch| scratch.records))
}

/// Memory for a result of this shape, made by `make` where none is kept.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "used by the kernels of GPUs only"))]
pub(crate) fn result(shape: Shape, dtype: DType, make: impl FnOnce(Shape) -> Result<Tensor>) -> Result<Tensor> {
    PRESENT.with_borrow_mut(|present| match present {
        Some(scratch) => scratch.result(shape, dtype, make),
        None => make(shape),
    })
}

impl StepMemory {
    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.iter().map(|KeptResult { tensor, .. }| tensor.elem_count() * tensor.dtype().size_in_bytes()).sum()
    }

    fn result(&mut self, shape: Shape, dtype: DType, make: impl FnOnce(Shape) -> Result<Tensor>) -> Result<Tensor> {
        let number = self.given;
        self.given += 1;
        let fits = |kept: &&mut KeptResult| {
            let free = kept.used.is_none_or(|used| used + ALIVE <= number);
            free && kept.tensor.dtype() == dtype && kept.tensor.elem_count() == shape.elem_count()
        };
        if let Some(kept) = self.kept.iter_mut().find(fits) {
            kept.used = Some(number);
            return kept.tensor.reshape(shape);
        }
        let tensor = make(shape)?;
        // Memory that a recording allocates is not there outside of it.
        if !self.records {
            self.kept.push(KeptResult { tensor: tensor.clone(), used: Some(number) });
        }
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Zeros in place of memory that is not set, so that writing shows what is shared.
    fn next(count: usize) -> Tensor {
        result(Shape::from(count), DType::F32, |shape| Tensor::zeros(shape, DType::F32, &Device::Cpu)).unwrap()
    }

    fn is_shared(one: &Tensor, other: &Tensor) -> bool {
        one.slice_set(&Tensor::ones(1, DType::F32, &Device::Cpu).unwrap(), 0, 0).unwrap();
        let shared = other.to_vec1::<f32>().unwrap()[0] == 1.0;
        one.slice_set(&Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap(), 0, 0).unwrap();
        shared
    }

    #[test]
    fn gp_3_results_of_a_rehearsal_are_given_out_again_in_their_order() {
        let mut scratch = StepMemory::default();
        let pass = |scratch: &mut StepMemory, records| {
            within(scratch, records, || (0..3 * ALIVE).map(|at| next(1 + at % 2)).collect::<Vec<_>>())
        };
        let first = pass(&mut scratch, false);
        for at in 0..3 * ALIVE {
            for later in at + 1..3 * ALIVE {
                let alike = at % 2 == later % 2;
                assert_eq!(is_shared(&first[at], &first[later]), alike && (later - at) % ALIVE == 0, "{at} {later}");
            }
        }
        assert_eq!(scratch.kept.len(), ALIVE);
        let second = pass(&mut scratch, true);
        assert!(first.iter().zip(&second).all(|(first, second)| is_shared(first, second)));
        let other = within(&mut scratch, true, || next(7));
        assert_eq!((scratch.kept.len(), other.elem_count()), (ALIVE, 7), "a recording's own memory is not kept");
        assert!(!is_recording() && !is_shared(&next(1), &first[0]), "outside of a recording");
    }
}
