//! The table of positions for images of other proportions: bilinear, each new place a mean that is as wide as the table
//! shrinks, in f32, as `torch.nn.functional.interpolate` does it with `antialias`.

/// The places of a grid, `[rows * columns, width]`, from those of a square one, `[grid * grid, width]`.
pub(crate) fn resized(table: &[f32], grid: usize, width: usize, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let across = taps(grid, columns);
    let down = taps(grid, rows);
    // Rows first: `[grid, columns, width]`.
    let mut wide = vec![0.0; grid * columns * width];
    for (row, out) in wide.chunks_exact_mut(columns * width).enumerate() {
        for (taps, out) in across.iter().zip(out.chunks_exact_mut(width)) {
            for (column, weight) in taps {
                add(out, &table[(row * grid + column) * width..][..width], *weight);
            }
        }
    }
    let mut all = vec![0.0; rows * columns * width];
    for (taps, out) in down.iter().zip(all.chunks_exact_mut(columns * width)) {
        for (row, weight) in taps {
            add(out, &wide[row * columns * width..][..columns * width], *weight);
        }
    }
    all
}

fn add(out: &mut [f32], from: &[f32], weight: f32) {
    out.iter_mut().zip(from).for_each(|(out, from)| *out = weight.mul_add(*from, *out));
}

/// The old places of each new one, with their weights.
fn taps(old: usize, new: usize) -> Vec<Vec<(usize, f32)>> {
    let scale = old as f32 / new as f32;
    let reach = scale.max(1.0);
    let of = |at: usize| {
        let centre = scale * (at as f32 + 0.5);
        let first = (centre - reach + 0.5).max(0.0) as usize;
        let end = ((centre + reach + 0.5) as usize).min(old);
        let weight = |old: usize| (1.0 - ((old as f32 - centre + 0.5) / reach).abs()).max(0.0);
        let sum: f32 = (first..end).map(weight).sum();
        (first..end).map(|old| (old, weight(old) / sum)).collect()
    };
    (0..new).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_3_places_are_resized() {
        let table = [0.0, 10.0, 20.0, 30.0];
        assert_eq!(resized(&table, 2, 1, [2, 2]), table);
        assert_eq!(resized(&table, 2, 1, [1, 1]), [15.0]);
        assert_eq!(resized(&table, 2, 1, [1, 2]), [10.0, 20.0]);
        assert_eq!(resized(&table, 2, 1, [2, 4])[..4], [0.0, 2.5, 7.5, 10.0]);
        let both = [0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0];
        assert_eq!(resized(&both, 2, 2, [1, 2]), [10.0, 11.0, 20.0, 21.0]);
    }
}
