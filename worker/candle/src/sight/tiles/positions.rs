//! The positions of tiles whose grid is another one than that of a tower's table (NaViT: Dehghani et al., 2023, arXiv
//! 2307.06304).

/// Numbers that torch computes together when it counts by equal steps.
const TOGETHER: usize = 8;

/// The greatest share of a side.
const MOST: f32 = (1.0_f64 - 1e-6) as f32;

/// For each of `grid` patches of a side its place among `table` ones. `transformers` compares shares of the side in
/// f32, by `arange` and `bucketize` of torch, whose roundings put some patches one place away from `at * table / grid`.
pub(super) fn places(table: usize, grid: usize) -> Vec<usize> {
    let bounds = bounds(table);
    let step = 1.0 / grid as f32;
    let place = |at: usize| {
        let share = (at as f32 * step).min(MOST);
        bounds.iter().filter(|bound| **bound <= share).count()
    };
    (0..grid).map(place).collect()
}

/// The bounds between places. Pairs of groups begin with a number in f32, and each member is that far behind it; the
/// rest are computed one by one.
fn bounds(table: usize) -> Vec<f32> {
    let step = 1.0 / table as f64;
    let count = ((1.0 - step) / step).ceil().max(0.0) as usize;
    let grouped = count / (2 * TOGETHER) * (2 * TOGETHER);
    let bound = |at: usize| {
        let exact = |at: usize| step + step * at as f64;
        if at >= grouped {
            return exact(at) as f32;
        }
        let first = at / TOGETHER * TOGETHER;
        (f64::from(exact(first) as f32) + (at - first) as f64 * step) as f32
    };
    (0..count).map(bound).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_have_the_places_that_torch_finds() {
        let even: Vec<usize> = (0..19).map(|at| at * 26 / 19).collect();
        assert_eq!(places(26, 19), even);
        assert_eq!(places(1, 1), [0]);
        // torch on the CPU: bucketize(clamp(arange(grid) * (1 / grid), max=1 - 1e-6), bounds, right=True) with the
        // bounds arange(1 / table, 1, 1 / table).
        assert_eq!(places(19, 19), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 13, 14, 15, 16, 17, 18]);
        assert_eq!(places(50, 10), [0, 5, 10, 15, 20, 25, 30, 34, 40, 45]);
        let of_70 = [0, 2, 5, 8, 11, 13, 16, 19, 22, 25, 27, 30, 33, 36, 39, 41, 44, 47, 50, 53, 55, 58, 61, 64, 67];
        assert_eq!(places(70, 25), of_70);
        let of_41 = [
            0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 9, 10, 12, 13, 13, 14, 16, 17, 18, 18, 20, 21, 22, 23, 24, 24, 26, 26, 27,
            28, 29, 31, 31, 32, 34, 34, 36, 37, 37, 39, 39,
        ];
        assert_eq!(places(41, 41), of_41);
    }
}
