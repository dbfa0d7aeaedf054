//! Which part of the sound each token belongs to, by the attention of the heads that follow it: smoothed, and the
//! cheapest path through it (dynamic time warping; Sakoe and Chiba, 1978, doi 10.1109/TASSP.1978.1163055).

use std::ops::Range;

use super::model::SpeechInfo;

/// The tokens that are read once more for the times of words: those that begin a text, the words, and the end.
pub(super) struct AlignedTokens {
    pub(super) all: Vec<u32>,
    /// The row of attention of the first word: that of the token in front of it.
    pub(super) first: usize,
}

/// The tokens for words behind those that begin a text.
pub(super) fn asked(info: &SpeechInfo, start: &[u32], words: &[u32]) -> AlignedTokens {
    let mut all = start.to_vec();
    let first = all.len();
    all.push(info.tokens.no_timestamps);
    all.extend(words);
    all.push(info.tokens.end);
    AlignedTokens { all, first }
}

impl AlignedTokens {
    /// The rows of words and of the end.
    pub(super) fn rows(&self) -> Range<usize> {
        self.first..self.all.len() - 1
    }
}

/// For each of some tokens the first column of the sound that belongs to it, and the end behind the last. The attention
/// is `[heads, tokens, columns]`, of which the first `heard` columns count.
pub(super) fn aligned(
    attention: &[f32],
    [tokens, columns]: [usize; 2],
    rows: Range<usize>,
    heard: usize,
    smoothed: usize,
) -> Vec<usize> {
    let heard = heard.clamp(1, columns);
    let heads = (attention.len() / (tokens * columns).max(1)).max(1);
    let mut mean = vec![0.0_f32; rows.len() * heard];
    for of_head in attention.chunks_exact(tokens * columns) {
        let mut weights: Vec<f32> = of_head.chunks_exact(columns).flat_map(|row| renormalised(&row[..heard])).collect();
        // Over all tokens, those in front of the words included.
        standardise(&mut weights, heard);
        let weights = &weights[rows.start * heard..rows.end * heard];
        for (sum, row) in mean.chunks_exact_mut(heard).zip(weights.chunks_exact(heard)) {
            for (sum, weight) in sum.iter_mut().zip(median_filtered(row, smoothed)) {
                *sum += weight / heads as f32;
            }
        }
    }
    mean.iter_mut().for_each(|weight| *weight = -*weight);
    first_columns(&mean, [rows.len(), heard])
}

/// Attention to the sound that counts, as shares.
fn renormalised(row: &[f32]) -> impl Iterator<Item = f32> {
    let sum: f32 = row.iter().sum();
    row.iter().map(move |weight| if sum > 0.0 { weight / sum } else { 0.0 })
}

/// Takes from each column its mean over the tokens, and divides it by its deviation.
fn standardise(weights: &mut [f32], columns: usize) {
    let tokens = (weights.len() / columns) as f32;
    for column in 0..columns {
        let of_column = |weights: &[f32]| weights.iter().skip(column).step_by(columns).copied().collect::<Vec<f32>>();
        let values = of_column(weights);
        let mean = values.iter().sum::<f32>() / tokens;
        let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f32>() / tokens;
        let deviation = variance.sqrt().max(f32::MIN_POSITIVE);
        weights.iter_mut().skip(column).step_by(columns).for_each(|value| *value = (*value - mean) / deviation);
    }
}

/// The median of each number's surroundings; the ends are reflected.
fn median_filtered(row: &[f32], width: usize) -> Vec<f32> {
    let half = width / 2;
    if half == 0 || row.len() <= half {
        return row.to_vec();
    }
    let last = row.len() as isize - 1;
    let at = |place: isize| {
        let place = place.abs();
        row[(if place > last { 2 * last - place } else { place }) as usize]
    };
    let mut around = vec![0.0; 2 * half + 1];
    (0..row.len() as isize)
        .map(|middle| {
            for (place, value) in around.iter_mut().enumerate() {
                *value = at(middle + place as isize - half as isize);
            }
            around.sort_unstable_by(f32::total_cmp);
            around[half]
        })
        .collect()
}

/// The first column of each row on the cheapest path from the first cell to the last, and the last column.
fn first_columns(costs: &[f32], [rows, columns]: [usize; 2]) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum CameFrom {
        Both,
        Row,
        Column,
    }
    let wide = columns + 1;
    let mut sums = vec![f64::INFINITY; (rows + 1) * wide];
    let mut from = vec![CameFrom::Column; (rows + 1) * wide];
    sums[0] = 0.0;
    for row in 1..=rows {
        for column in 1..=columns {
            let [both, up, left] = [(row - 1) * wide + column - 1, (row - 1) * wide + column, row * wide + column - 1];
            let [both, up, left] = [sums[both], sums[up], sums[left]];
            let (least, way) = if both < up && both < left {
                (both, CameFrom::Both)
            } else if up < both && up < left {
                (up, CameFrom::Row)
            } else {
                (left, CameFrom::Column)
            };
            sums[row * wide + column] = f64::from(costs[(row - 1) * columns + column - 1]) + least;
            from[row * wide + column] = way;
        }
    }
    let (mut row, mut column) = (rows, columns);
    let mut firsts = vec![0; rows + 1];
    firsts[rows] = columns.saturating_sub(1);
    while row > 0 && column > 0 {
        firsts[row - 1] = column - 1;
        match from[row * wide + column] {
            CameFrom::Both => (row, column) = (row - 1, column - 1),
            CameFrom::Row => row -= 1,
            CameFrom::Column => column -= 1,
        }
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_the_cheapest_path_goes_through_the_brightest_cells() {
        // Token 0 is in columns 0 and 1, token 1 in 2, token 2 in 3 to 5.
        let bright = [[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]];
        let costs: Vec<f32> = bright.iter().flatten().map(|cell| 1.0 - 2.0 * *cell as f32).collect();
        assert_eq!(first_columns(&costs, [3, 6]), [0, 2, 3, 5]);
        assert_eq!(first_columns(&[0.0; 4], [1, 4])[0], 0);
    }

    #[test]
    fn rc_28_a_median_takes_single_numbers_away() {
        assert_eq!(median_filtered(&[1.0, 1.0, 9.0, 1.0, 2.0, 2.0], 3), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(median_filtered(&[4.0], 7), [4.0]);
    }

    #[test]
    fn rc_28_columns_behind_the_sound_do_not_count() {
        let [heads, tokens, columns] = [2, 3, 40];
        let weight = |token: usize, column: usize| if column / 8 == token { 1.0 } else { 0.01 };
        let one: Vec<f32> =
            (0..tokens).flat_map(|token| (0..columns).map(move |column| weight(token, column))).collect();
        let starts = aligned(&one.repeat(heads), [tokens, columns], 0..tokens, 24, 3);
        assert_eq!(starts[0], 0);
        assert!(starts[1].abs_diff(8) <= 1 && starts[2].abs_diff(16) <= 1 && starts[3] == 23, "{starts:?}");
    }
}
