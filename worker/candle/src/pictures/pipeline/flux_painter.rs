//! FLUX.1 (Labs et al., 2025, arXiv 2506.15742), which was made to paint without negative prompts.

use std::sync::Arc;

use candle_core::{Device, Result as CandleResult, Tensor};
use model_boss_engine::{
    PaintError, Painter, PainterComponent, PainterInfo, Painting, PictureRequest, PipelineKind, PlaceUse,
};
use model_boss_protocol::{DeviceId, PICTURE_BYTES_PER_PIXEL};

use super::flow_beginning::{flow_beginning, flow_names, flow_scheduler, flow_solver, text_length};
use super::latent_painting::{LatentModel, LatentPainting, on_threads};
use super::unet_painter::check_size;
use crate::error::ModelError;
use crate::pictures::component::{ComponentLoad, PipelineFolder};
use crate::pictures::flux::{FluxGiven, FluxModel, FluxSpec};
use crate::pictures::layers::misfit;
use crate::pictures::schedulers::{FlowSigmas, SchedulerSpec};
use crate::pictures::streams::{PatchNumbers, PatchSizes};
use crate::pictures::text::{ClipEncoder, ClipLayer, ClipSpec, ClipTokens, T5Tokens};
use crate::pictures::vae::{Autoencoder, VaeSpec};
use crate::speech::t5::{T5Encoder, T5Spec, T5Texts};

/// The longest side in pixels.
const LONGEST_SIDE: usize = 4096;

/// The side of a usual latent picture.
const USUAL_SIDE: usize = 128;

/// Pixels of a latent picture on a side of a patch.
const PATCH: usize = 2;

/// A pipeline with its weights.
pub(in crate::pictures) struct FluxPainter {
    info: PainterInfo,
    places: Arc<[PlaceUse]>,
    scheduler: SchedulerSpec,
    clip: (ClipTokens, ClipEncoder),
    t5: (T5Tokens, T5Encoder),
    model: FluxModel,
    spec: FluxSpec,
    vae: Autoencoder,
    device: Device,
}

/// The conditions of a request, and the sizes of its pictures.
pub(super) struct FluxConditions {
    given: FluxGiven,
    sizes: PatchSizes,
}

/// Loads the folder of a pipeline.
pub(in crate::pictures) fn load_flux_painter(
    folder: &PipelineFolder,
    (on, device): (&DeviceId, &Device),
    progress: &mut dyn FnMut(f32),
) -> Result<FluxPainter, ModelError> {
    let scheduler = flow_scheduler(folder, FlowSigmas::OfSteps { tokens: 256 })?;
    let spec = FluxSpec::from_config(&folder.json("transformer", "config.json")?)?;
    let vae_spec = VaeSpec::from_config(&folder.json("vae", "config.json")?)?;
    let clip_spec = ClipSpec::from_config("text_encoder", &folder.json("text_encoder", "config.json")?)?;
    let t5_spec = T5Spec::from_config("text_encoder_2", folder.json("text_encoder_2", "config.json")?)?;
    let clip_tokens = ClipTokens::read(folder, "tokenizer", clip_spec.vocabulary())?;
    let t5_tokens = T5Tokens::read(folder, "tokenizer_2", t5_spec.vocab_size)?;
    if clip_tokens.length() > clip_spec.positions() {
        let what = format!("texts of {} tokens, and {} places for them", clip_tokens.length(), clip_spec.positions());
        return Err(misfit("text_encoder", what));
    }
    check_sizes(&spec, &vae_spec, clip_spec.pooled_width(), t5_spec.d_model)?;
    let names = ["text_encoder", "text_encoder_2", "transformer", "vae"];
    let files = names.map(|name| folder.weights(name));
    let [clip_files, t5_files, model_files, vae_files] = files;
    let [clip_files, t5_files, model_files, vae_files] = [clip_files?, t5_files?, model_files?, vae_files?];
    let expected = [&clip_files, &t5_files, &model_files, &vae_files].iter().map(|(_, bytes)| bytes).sum();
    let mut load = ComponentLoad::new(device, expected, progress);
    let target = load.target().clone();
    let (clip, clip_bytes) = load.read(&clip_files.0, |weights| ClipEncoder::read(weights, clip_spec, &target))?;
    let long = (&t5_spec, T5Texts::Long);
    let (t5, t5_bytes) = load.read(&t5_files.0, |weights| T5Encoder::read(weights, "", long, &target))?;
    let (model, model_bytes) = load.read(&model_files.0, |weights| FluxModel::read(weights, &spec))?;
    let (vae, vae_bytes) = load.read(&vae_files.0, |weights| Autoencoder::read(weights, &vae_spec))?;
    let component = |(name, bytes): (&str, u64)| PainterComponent { name: name.to_owned(), bytes };
    let components = names.into_iter().zip([clip_bytes, t5_bytes, model_bytes, vae_bytes]).map(component).collect();
    let info = info(components, &spec, vae.spec(), &scheduler);
    let place = PlaceUse::new(on.clone(), 0..1, (info.weight_bytes, 0), (0, 0));
    let (clip, t5) = ((clip_tokens, clip), (t5_tokens, t5));
    Ok(FluxPainter { info, places: [place].into(), scheduler, clip, t5, model, spec, vae, device: device.clone() })
}

/// Checks that the parts fit each other.
fn check_sizes(spec: &FluxSpec, vae: &VaeSpec, pooled: usize, text: usize) -> Result<(), ModelError> {
    let latent = vae.latent_channels * PATCH * PATCH;
    let fits =
        [("patches", spec.ins, latent), ("texts in rows", spec.text, text), ("vectors of texts", spec.pooled, pooled)];
    match fits.iter().find(|(_, reads, made)| reads != made) {
        Some((what, reads, made)) => {
            Err(misfit("transformer", format!("it reads {what} of {reads} numbers, and the other parts make {made}")))
        }
        None => Ok(()),
    }
}

fn info(components: Vec<PainterComponent>, spec: &FluxSpec, vae: &VaeSpec, scheduler: &SchedulerSpec) -> PainterInfo {
    let side = USUAL_SIDE * vae.factor();
    PainterInfo {
        pipeline: PipelineKind::Flux,
        weight_bytes: components.iter().map(|component| component.bytes).sum(),
        components,
        size_multiple: PATCH * vae.factor(),
        longest_side: LONGEST_SIDE,
        usual_size: [side, side],
        // Models without the condition were made to paint in few steps.
        usual_steps: if spec.has_guidance { 28 } else { 4 },
        usual_guidance: if spec.has_guidance { 3.5 } else { 0.0 },
        usual_scheduler: scheduler.class().class_name().to_owned(),
        schedulers: flow_names(),
        takes_image: true,
        takes_mask: false,
        needs_mask: false,
        takes_negative_prompt: false,
        bytes_per_pixel: PICTURE_BYTES_PER_PIXEL,
    }
}

impl FluxPainter {
    /// The rows of a prompt, and its vector.
    fn read(&self, clip: &[u32], t5: &[u32]) -> CandleResult<(Tensor, Tensor)> {
        let pooled = self.clip.1.read_text(clip, ClipLayer::Normed(0))?.pooled;
        Ok((self.t5.1.states(t5)?, pooled))
    }
}

impl Painter for FluxPainter {
    fn info(&self) -> &PainterInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn start(&self, request: &PictureRequest) -> Result<Box<dyn Painting + '_>, PaintError> {
        check_size(&self.info, request)?;
        if request.clip_skip.is_some_and(|left| left > 0) {
            let why = "this model reads no layer of its text encoder that could be left out";
            return Err(PaintError::refused("clip_skip", why));
        }
        let size = [request.width, request.height];
        let pictures = request.seeds.len();
        let latent = size.map(|side| side / self.vae.spec().factor());
        let channels = self.vae.spec().latent_channels;
        let sizes = PatchSizes { pictures, channels, size: [latent[1], latent[0]], side: PATCH };
        let patches = sizes.patches();
        let sigmas = FlowSigmas::OfSteps { tokens: patches[0] * patches[1] };
        let solver = flow_solver(&self.scheduler, request, sigmas)?;
        let length = text_length(request, if self.spec.has_guidance { 512 } else { 256 })?;
        let refused = |why: String| PaintError::refused("prompt", why);
        let clip = self.clip.0.of(&request.prompt).map_err(refused)?;
        let t5 = self.t5.0.of(&request.prompt, length).map_err(refused)?;
        let given = on_threads(self.device.is_cpu(), || {
            let (text, pooled) = self.read(&clip, &t5)?;
            self.model.given((&text, pooled), request.guidance_scale, (pictures, patches))
        })?;
        let (noise, beginning) = flow_beginning(&self.vae, request, solver.as_ref(), self.device.is_cpu())?;
        let given = FluxConditions { given, sizes };
        Ok(Box::new(LatentPainting::new(self, given, (solver, noise), (beginning, size))))
    }
}

impl LatentModel for FluxPainter {
    type Given = FluxConditions;

    fn predict(&self, latents: &[f32], time: f32, given: &FluxConditions) -> CandleResult<Vec<f32>> {
        let FluxConditions { given, sizes } = given;
        let rows = sizes.rows(latents, PatchNumbers::ChannelsFirst, &self.device)?;
        // As in the reference, which gives the model a share of 1000 that it takes times 1000.
        let output = self.model.forward(&rows, time / 1000.0 * 1000.0, given)?;
        sizes.numbers_of(&output, PatchNumbers::ChannelsFirst)
    }

    fn vae(&self) -> &Autoencoder {
        &self.vae
    }

    fn is_on_host(&self) -> bool {
        self.device.is_cpu()
    }
}
