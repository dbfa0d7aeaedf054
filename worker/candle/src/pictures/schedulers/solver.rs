//! The interface of all solvers, which take a sample from one call of the model to the next.

/// Draws as many normals as a sample has.
pub(in crate::pictures) type DrawNoise<'a> = &'a mut dyn FnMut() -> Vec<f32>;

/// A solver for one picture, or several of one size, with its calls of the model. Calls are numbered from 0; the solver
/// begins at any of them and makes all behind it in their order.
pub(in crate::pictures) trait Solver: Send + Sync {
    /// The time that the model is given in each call.
    fn times(&self) -> &[f32];

    /// The first call of a sample that is noise alone.
    fn first(&self) -> usize {
        0
    }

    /// The factor on noise that a sample begins with.
    fn initial_scale(&self) -> f32 {
        1.0
    }

    /// The factor on the sample that the model is given.
    fn input_scale(&self, _call: usize) -> f32 {
        1.0
    }

    /// The factors on a picture and on noise that make the sample of a call.
    fn mixture(&self, call: usize) -> [f32; 2];

    /// Takes the sample to the next call with the model's output.
    fn step(&mut self, call: usize, output: &[f32], sample: &mut [f32], draw: DrawNoise<'_>);

    /// A picture as it is at a call.
    fn noised(&self, call: usize, picture: &[f32], noise: &[f32]) -> Vec<f32> {
        let [of_picture, of_noise] = self.mixture(call);
        picture.iter().zip(noise).map(|(picture, noise)| of_picture * picture + of_noise * noise).collect()
    }
}

/// The sum of some numbers with a factor each.
pub(super) fn weighted<const N: usize>(parts: [(f32, &[f32]); N]) -> Vec<f32> {
    let count = parts.first().map_or(0, |(_, numbers)| numbers.len());
    let mut sum = vec![0.0; count];
    for (factor, numbers) in parts {
        for (sum, number) in sum.iter_mut().zip(numbers) {
            *sum += factor * number;
        }
    }
    sum
}
