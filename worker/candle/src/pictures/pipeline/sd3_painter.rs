//! Stable Diffusion 3 and 3.5 (Esser et al., 2024, arXiv 2403.03206).

use std::sync::Arc;

use candle_core::{Device, Result as CandleResult};
use model_boss_engine::{
    PaintError, Painter, PainterComponent, PainterInfo, Painting, PictureRequest, PipelineKind, PlaceUse,
};
use model_boss_protocol::{DeviceId, PICTURE_BYTES_PER_PIXEL};

use super::flow_beginning::{flow_beginning, flow_names, flow_scheduler, flow_solver, text_length};
use super::latent_painting::{LatentModel, LatentPainting, on_threads};
use super::sd3_prompts::Sd3Prompts;
use super::unet_painter::check_size;
use crate::error::ModelError;
use crate::pictures::component::{ComponentLoad, PipelineFolder};
use crate::pictures::layers::misfit;
use crate::pictures::schedulers::{FlowSigmas, SchedulerSpec};
use crate::pictures::sd3::{Sd3Given, Sd3Model, Sd3Spec};
use crate::pictures::streams::{PatchNumbers, PatchSizes};
use crate::pictures::text::{ClipEncoder, ClipSpec, ClipTokens, T5Tokens};
use crate::pictures::vae::{Autoencoder, VaeSpec};
use crate::speech::t5::{T5Encoder, T5Spec, T5Texts};

/// The longest side in pixels, where there are places for it.
const LONGEST_SIDE: usize = 4096;

/// Tokens of prompts of requests that do not name their number.
const USUAL_LENGTH: usize = 256;

/// The tokenizers and encoders of both CLIPs, and of T5.
const CLIPS: [(&str, &str); 2] = [("tokenizer", "text_encoder"), ("tokenizer_2", "text_encoder_2")];
const T5: (&str, &str) = ("tokenizer_3", "text_encoder_3");

/// A pipeline with its weights.
pub(in crate::pictures) struct Sd3Painter {
    info: PainterInfo,
    places: Arc<[PlaceUse]>,
    scheduler: SchedulerSpec,
    prompts: Sd3Prompts,
    model: Sd3Model,
    spec: Sd3Spec,
    vae: Autoencoder,
    device: Device,
}

/// The conditions of a request, and the sizes of its pictures.
pub(super) struct Sd3Conditions {
    given: Sd3Given,
    /// The weight of the prompt; none where the negative one is not read.
    guidance: Option<f32>,
    /// Those of all calls of the model in a step.
    sizes: PatchSizes,
}

/// Loads the folder of a pipeline.
pub(in crate::pictures) fn load_sd3_painter(
    folder: &PipelineFolder,
    (on, device): (&DeviceId, &Device),
    progress: &mut dyn FnMut(f32),
) -> Result<Sd3Painter, ModelError> {
    let scheduler = flow_scheduler(folder, FlowSigmas::OfTraining)?;
    let spec = Sd3Spec::from_config(&folder.json("transformer", "config.json")?)?;
    let vae_spec = VaeSpec::from_config(&folder.json("vae", "config.json")?)?;
    let (mut clips, mut files) = (Vec::new(), Vec::new());
    for (tokenizer, component) in CLIPS {
        let clip = ClipSpec::from_config(component, &folder.json(component, "config.json")?)?;
        let tokens = ClipTokens::read(folder, tokenizer, clip.vocabulary())?;
        if tokens.length() > clip.positions() {
            let what = format!("texts of {} tokens, and {} places for them", tokens.length(), clip.positions());
            return Err(misfit(component, what));
        }
        files.push(folder.weights(component)?);
        clips.push((component, tokens, clip));
    }
    let (tokenizer, component) = T5;
    let t5 = if folder.has(component) {
        let spec = T5Spec::from_config(component, folder.json(component, "config.json")?)?;
        files.push(folder.weights(component)?);
        Some((T5Tokens::read(folder, tokenizer, spec.vocab_size)?, spec))
    } else {
        None
    };
    let specs: Vec<ClipSpec> = clips.iter().map(|(.., clip)| *clip).collect();
    check_sizes(&spec, &vae_spec, &specs, t5.as_ref().map(|(_, spec)| spec.d_model))?;
    let (model_files, vae_files) = (folder.weights("transformer")?, folder.weights("vae")?);
    let expected = files.iter().chain([&model_files, &vae_files]).map(|(_, bytes)| bytes).sum();
    let mut load = ComponentLoad::new(device, expected, progress);
    let target = load.target().clone();
    let mut components = Vec::new();
    let mut add = |name: &str, bytes: u64| components.push(PainterComponent { name: name.to_owned(), bytes });
    let mut read_clips = Vec::new();
    for ((component, tokens, clip), (files, _)) in clips.into_iter().zip(&files) {
        let (encoder, bytes) = load.read(files, |weights| ClipEncoder::read(weights, clip, &target))?;
        add(component, bytes);
        read_clips.push((tokens, encoder));
    }
    let t5 = match (t5, files.get(CLIPS.len())) {
        (Some((tokens, spec)), Some((files, _))) => {
            let long = (&spec, T5Texts::Long);
            let (encoder, bytes) = load.read(files, |weights| T5Encoder::read(weights, "", long, &target))?;
            add(component, bytes);
            Some((tokens, encoder))
        }
        _ => None,
    };
    let (model, bytes) = load.read(&model_files.0, |weights| Sd3Model::read(weights, &spec))?;
    add("transformer", bytes);
    let (vae, bytes) = load.read(&vae_files.0, |weights| Autoencoder::read(weights, &vae_spec))?;
    add("vae", bytes);
    let info = info(components, &spec, vae.spec(), &scheduler);
    let place = PlaceUse::new(on.clone(), 0..1, (info.weight_bytes, 0), (0, 0));
    let prompts = Sd3Prompts { clips: read_clips, t5, width: spec.text, device: device.clone() };
    Ok(Sd3Painter { info, places: [place].into(), scheduler, prompts, model, spec, vae, device: device.clone() })
}

/// Checks that the parts fit each other.
fn check_sizes(spec: &Sd3Spec, vae: &VaeSpec, clips: &[ClipSpec], t5: Option<usize>) -> Result<(), ModelError> {
    let pooled: usize = clips.iter().map(ClipSpec::pooled_width).sum();
    let width: usize = clips.iter().map(ClipSpec::width).sum();
    let fits = [
        ("channels", spec.channels, vae.latent_channels),
        ("vectors of texts", spec.pooled, pooled),
        ("texts in rows", spec.text, t5.unwrap_or(spec.text)),
        ("texts in rows", spec.text, width.max(spec.text)),
    ];
    match fits.iter().find(|(_, reads, made)| reads != made) {
        Some((what, reads, made)) => {
            Err(misfit("transformer", format!("it reads {what} of {reads} numbers, and the other parts make {made}")))
        }
        None => Ok(()),
    }
}

fn info(components: Vec<PainterComponent>, spec: &Sd3Spec, vae: &VaeSpec, scheduler: &SchedulerSpec) -> PainterInfo {
    let multiple = spec.patch * vae.factor();
    let side = spec.sample_size * vae.factor();
    PainterInfo {
        pipeline: PipelineKind::StableDiffusion3,
        weight_bytes: components.iter().map(|component| component.bytes).sum(),
        components,
        size_multiple: multiple,
        longest_side: LONGEST_SIDE.min(spec.places * multiple),
        usual_size: [side, side],
        usual_steps: 28,
        usual_guidance: 7.0,
        usual_scheduler: scheduler.class().class_name().to_owned(),
        schedulers: flow_names(),
        takes_image: true,
        takes_mask: false,
        needs_mask: false,
        takes_negative_prompt: true,
        bytes_per_pixel: PICTURE_BYTES_PER_PIXEL,
    }
}

impl Painter for Sd3Painter {
    fn info(&self) -> &PainterInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn start(&self, request: &PictureRequest) -> Result<Box<dyn Painting + '_>, PaintError> {
        check_size(&self.info, request)?;
        let size = [request.width, request.height];
        let solver = flow_solver(&self.scheduler, request, FlowSigmas::OfTraining)?;
        let length = text_length(request, USUAL_LENGTH)?;
        let guidance = Some(request.guidance_scale).filter(|scale| *scale > 1.0);
        let mut texts = Vec::new();
        if guidance.is_some() {
            let text = request.negative_prompt.as_deref().unwrap_or_default();
            texts.push(self.prompts.tokens(("negative_prompt", text), None, length)?);
        }
        texts.push(self.prompts.tokens(("prompt", &request.prompt), request.clip_skip, length)?);
        let latent = size.map(|side| side / self.vae.spec().factor());
        let pictures = request.seeds.len();
        let sizes = PatchSizes {
            pictures: pictures * texts.len(),
            channels: self.spec.channels,
            size: [latent[1], latent[0]],
            side: self.spec.patch,
        };
        let on_host = self.device.is_cpu();
        let given = on_threads(on_host, || {
            let texts = texts.iter().map(|text| self.prompts.read(text)).collect::<CandleResult<Vec<_>>>()?;
            self.model.given(&texts, (pictures, sizes.patches()))
        })?;
        let (noise, beginning) = flow_beginning(&self.vae, request, solver.as_ref(), on_host)?;
        let given = Sd3Conditions { given, guidance, sizes };
        Ok(Box::new(LatentPainting::new(self, given, (solver, noise), (beginning, size))))
    }
}

impl LatentModel for Sd3Painter {
    type Given = Sd3Conditions;

    fn predict(&self, latents: &[f32], time: f32, given: &Sd3Conditions) -> CandleResult<Vec<f32>> {
        let Sd3Conditions { given, guidance, sizes } = given;
        let latents = if guidance.is_some() { latents.repeat(2) } else { latents.to_vec() };
        let rows = sizes.rows(&latents, PatchNumbers::ChannelsFirst, &self.device)?;
        let output = self.model.forward(&rows, time, given)?;
        let mut output = sizes.numbers_of(&output, PatchNumbers::ChannelsLast)?;
        if let Some(guidance) = guidance {
            let prompted = output.split_off(output.len() / 2);
            for (without, with) in output.iter_mut().zip(prompted) {
                *without += guidance * (with - *without);
            }
        }
        Ok(output)
    }

    fn vae(&self) -> &Autoencoder {
        &self.vae
    }

    fn is_on_host(&self) -> bool {
        self.device.is_cpu()
    }
}
