//! Noise of latent pictures: each picture has a generator of its own.

use model_boss_engine::TorchGenerator;

/// The generators of some pictures.
pub(super) struct LatentNoise {
    generators: Vec<TorchGenerator>,
    /// The numbers of a latent picture.
    one: usize,
}

impl LatentNoise {
    pub(super) fn new(seeds: &[u64], one: usize) -> Self {
        Self { generators: seeds.iter().map(|seed| TorchGenerator::seeded(*seed)).collect(), one }
    }

    /// Normals for all pictures, one behind the other.
    pub(super) fn draw(&mut self) -> Vec<f32> {
        self.generators.iter_mut().flat_map(|generator| generator.normals(self.one)).collect()
    }

    /// Normals for the first picture alone.
    pub(super) fn draw_first(&mut self) -> Vec<f32> {
        self.generators.first_mut().map(|generator| generator.normals(self.one)).unwrap_or_default()
    }

    pub(super) fn pictures(&self) -> usize {
        self.generators.len()
    }
}
