//! Stable Diffusion 1, 2 and XL (Podell et al., 2023, arXiv 2307.01952).

use std::sync::Arc;

use candle_core::{Device, Result as CandleResult};
use model_boss_engine::{
    PaintError, Painter, PainterComponent, PainterInfo, Painting, PictureRequest, PipelineKind, PlaceUse,
};
use model_boss_protocol::{DeviceId, PICTURE_BYTES_PER_PIXEL};
use serde_json::Value;

use super::beginning::{BeginningForm, BeginningRule, MaskedLatent};
use super::latent_noise::LatentNoise;
use super::latent_painting::{LatentModel, LatentPainting, on_threads};
use super::unet_prompts::UnetPrompts;
use crate::error::ModelError;
use crate::pictures::component::{ComponentLoad, PipelineFolder};
use crate::pictures::layers::{Planes, misfit};
use crate::pictures::schedulers::{FlowSigmas, FolderRules, SchedulerClass, SchedulerSpec};
use crate::pictures::text::{ClipEncoder, ClipSpec, ClipTokens};
use crate::pictures::unet::{Conditions, Unet, UnetSpec};
use crate::pictures::vae::{Autoencoder, VaeSpec};

/// The longest side in pixels.
const LONGEST_SIDE: usize = 4096;

/// Steps that every scheduler makes.
const SOME_STEPS: usize = 20;

/// A pipeline with its weights.
pub(in crate::pictures) struct UnetPainter {
    info: PainterInfo,
    places: Arc<[PlaceUse]>,
    scheduler: SchedulerSpec,
    prompts: UnetPrompts,
    unet: Unet,
    spec: UnetSpec,
    vae: Autoencoder,
    device: Device,
}

/// The conditions of a request.
pub(super) struct UnetGiven {
    conditions: Conditions,
    /// The weight of the prompt; none where the negative one is not read.
    guidance: Option<f32>,
    masked: Option<MaskedLatent>,
    pictures: usize,
    /// Height and width of latent pictures.
    size: [usize; 2],
}

/// Loads the folder of a pipeline.
pub(in crate::pictures) fn load_unet_painter(
    folder: &PipelineFolder,
    kind: PipelineKind,
    (on, device): (&DeviceId, &Device),
    progress: &mut dyn FnMut(f32),
) -> Result<UnetPainter, ModelError> {
    let is_xl = kind == PipelineKind::StableDiffusionXl;
    let rules = if is_xl { FolderRules::AsWritten } else { FolderRules::StableDiffusion };
    let scheduler_config = folder.json("scheduler", "scheduler_config.json")?;
    let scheduler = SchedulerSpec::from_config(&scheduler_config, rules).map_err(|error| misfit("scheduler", error))?;
    if scheduler.is_flow() {
        return Err(misfit("scheduler", "flow matching does not fit a UNet"));
    }
    if folder.setting("requires_aesthetics_score") == Some(&Value::Bool(true)) {
        return Err(misfit("model_index.json", "requires_aesthetics_score is true: refiners are not known"));
    }
    let spec = UnetSpec::from_config(&folder.json("unet", "config.json")?)?;
    let vae_spec = VaeSpec::from_config(&folder.json("vae", "config.json")?)?;
    let encoders: &[(&str, &str)] = if is_xl {
        &[("tokenizer", "text_encoder"), ("tokenizer_2", "text_encoder_2")]
    } else {
        &[("tokenizer", "text_encoder")]
    };
    let mut texts = Vec::new();
    for (tokenizer, component) in encoders.iter().filter(|(_, component)| folder.has(component)) {
        let clip = ClipSpec::from_config(component, &folder.json(component, "config.json")?)?;
        let tokens = ClipTokens::read(folder, tokenizer, clip.vocabulary())?;
        if tokens.length() > clip.positions() {
            let what = format!("texts of {} tokens, and {} places for them", tokens.length(), clip.positions());
            return Err(misfit(component, what));
        }
        texts.push((*component, tokens, clip));
    }
    check_sizes(&spec, &vae_spec, &texts.iter().map(|(_, _, clip)| *clip).collect::<Vec<_>>(), is_xl)?;
    let unet_files = folder.weights("unet")?;
    let vae_files = folder.weights("vae")?;
    let text_files = texts.iter().map(|(component, ..)| folder.weights(component)).collect::<Result<Vec<_>, _>>()?;
    let expected = text_files.iter().chain([&unet_files, &vae_files]).map(|(_, bytes)| bytes).sum();
    let mut load = ComponentLoad::new(device, expected, progress);
    let target = load.target().clone();
    let (mut components, mut read_texts) = (Vec::new(), Vec::new());
    for ((component, tokens, clip), (files, _)) in texts.into_iter().zip(&text_files) {
        let (encoder, bytes) = load.read(files, |weights| ClipEncoder::read(weights, clip, &target))?;
        components.push(PainterComponent { name: component.to_owned(), bytes });
        read_texts.push((tokens, encoder));
    }
    let (unet, bytes) = load.read(&unet_files.0, |weights| Unet::read(weights, &spec))?;
    components.push(PainterComponent { name: "unet".to_owned(), bytes });
    let (vae, bytes) = load.read(&vae_files.0, |weights| Autoencoder::read(weights, &vae_spec))?;
    components.push(PainterComponent { name: "vae".to_owned(), bytes });
    let zeros = folder.setting("force_zeros_for_empty_prompt").and_then(Value::as_bool).unwrap_or(true);
    let prompts = UnetPrompts { encoders: read_texts, zeros_for_absent: is_xl && zeros, is_xl };
    let latent = vae.spec().latent_channels;
    let info = info(kind, components, (&spec, vae.spec()), (&scheduler, &scheduler_config), latent);
    let place = PlaceUse::new(on.clone(), 0..1, (info.weight_bytes, 0), (0, 0));
    let device = device.clone();
    Ok(UnetPainter { info, places: [place].into(), scheduler, prompts, unet, spec, vae, device })
}

/// Checks that the parts fit each other.
fn check_sizes(spec: &UnetSpec, vae: &VaeSpec, texts: &[ClipSpec], is_xl: bool) -> Result<(), ModelError> {
    let width: usize = texts.iter().map(ClipSpec::width).sum();
    if width != spec.text_width() {
        let what = format!("it reads rows of {}, and text encoders make rows of {width}", spec.text_width());
        return Err(misfit("unet", what));
    }
    let latent = vae.latent_channels;
    if spec.outs != latent || spec.ins != latent && spec.ins != 2 * latent + 1 {
        let what = format!("{} channels become {}, and latent pictures have {latent}", spec.ins, spec.outs);
        return Err(misfit("unet", what));
    }
    let pooled = texts.last().map_or(0, ClipSpec::pooled_width);
    match (spec.added_width(), is_xl) {
        (Some([all, each]), true) if all == pooled + 6 * each => Ok(()),
        (Some([all, each]), true) => {
            let what = format!("its conditions have {all} numbers; a vector of {pooled} and 6 sizes of {each} do not");
            Err(misfit("unet", what))
        }
        (None, false) => Ok(()),
        (None, true) => Err(misfit("unet", "it has no conditions beside the text, as this pipeline gives them")),
        (Some(_), false) => Err(misfit("unet", "it has conditions beside the text, which this pipeline does not give")),
    }
}

fn info(
    kind: PipelineKind,
    components: Vec<PainterComponent>,
    (spec, vae): (&UnetSpec, &VaeSpec),
    (scheduler, config): (&SchedulerSpec, &Value),
    latent: usize,
) -> PainterInfo {
    let is_xl = kind == PipelineKind::StableDiffusionXl;
    let field = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
    let is_euler = matches!(scheduler.class(), SchedulerClass::Euler | SchedulerClass::EulerAncestral);
    // Models that were made to paint in one step have these settings, and no others that tell.
    let is_turbo = is_euler && field("timestep_spacing") == "trailing" && field("prediction_type") == "epsilon";
    let side = spec.sample_size.unwrap_or(if is_xl { 128 } else { 64 }) * vae.factor();
    let inpaints = spec.ins != latent;
    PainterInfo {
        pipeline: kind,
        weight_bytes: components.iter().map(|component| component.bytes).sum(),
        components,
        size_multiple: vae.factor(),
        longest_side: LONGEST_SIDE,
        usual_size: [side, side],
        usual_steps: if is_turbo { 1 } else { 50 },
        usual_guidance: match (is_turbo, is_xl) {
            (true, _) => 0.0,
            (false, true) => 5.0,
            (false, false) => 7.5,
        },
        usual_scheduler: scheduler.class().class_name().to_owned(),
        schedulers: SchedulerClass::request_names()
            .filter(|name| !name.starts_with("flow"))
            .map(str::to_owned)
            .collect(),
        takes_image: true,
        takes_mask: true,
        needs_mask: inpaints,
        takes_negative_prompt: true,
        bytes_per_pixel: PICTURE_BYTES_PER_PIXEL,
    }
}

impl Painter for UnetPainter {
    fn info(&self) -> &PainterInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::clone(&self.places)
    }

    fn start(&self, request: &PictureRequest) -> Result<Box<dyn Painting + '_>, PaintError> {
        check_size(&self.info, request)?;
        let size = [request.width, request.height];
        let solver_of =
            |steps: usize| self.scheduler.solver(request.scheduler.as_deref(), steps, FlowSigmas::OfTraining);
        let solver = solver_of(request.steps).map_err(|why| {
            // A scheduler that serves other steps is not at fault.
            PaintError::refused(if solver_of(SOME_STEPS).is_ok() { "steps" } else { "scheduler" }, why)
        })?;
        let guidance = Some(request.guidance_scale).filter(|scale| *scale > 1.0);
        let mut prompts = Vec::new();
        if guidance.is_some() {
            prompts.push(self.prompts.negative(request.negative_prompt.as_deref())?);
        }
        prompts.push(self.prompts.prompt("prompt", &request.prompt, request.clip_skip)?);
        let pictures = request.seeds.len();
        let on_host = self.device.is_cpu();
        let conditions = on_threads(on_host, || self.prompts.conditions(&prompts, pictures, size))?;
        let latent = size.map(|side| side / self.info.size_multiple);
        let one = self.vae.spec().latent_channels * latent[0] * latent[1];
        let mut noise = LatentNoise::new(&request.seeds, one);
        let reads_mask = self.info.needs_mask;
        let rule = BeginningRule::Diffusion;
        let form = BeginningForm { vae: &self.vae, size, reads_mask, steps: request.steps, rule };
        let mut beginning = match &request.beginning {
            Some(given) => {
                let begun = || Ok(form.image(given, solver.as_ref(), &mut noise));
                on_threads(on_host, begun)??
            }
            None if reads_mask => {
                let why = "this model paints parts of a picture anew: send one, and a mask, to /v1/images/edits";
                return Err(PaintError::refused("image", why));
            }
            None => form.noise(solver.as_ref(), &mut noise),
        };
        let masked = beginning.masked.take();
        let given = UnetGiven { conditions, guidance, masked, pictures, size: [latent[1], latent[0]] };
        Ok(Box::new(LatentPainting::new(self, given, (solver, noise), (beginning, size))))
    }
}

/// Refuses sizes that the model does not take.
pub(super) fn check_size(info: &PainterInfo, request: &PictureRequest) -> Result<(), PaintError> {
    let (multiple, longest) = (info.size_multiple, info.longest_side);
    for (name, side) in [("width", request.width), ("height", request.height)] {
        if side == 0 || side > longest || !side.is_multiple_of(multiple) {
            let what = format!("a {name} of {side} cannot be painted: multiples of {multiple} up to {longest} can");
            return Err(PaintError::refused("size", what));
        }
    }
    if request.seeds.is_empty() {
        return Err(PaintError::refused("n", "no picture is wanted"));
    }
    if !request.guidance_scale.is_finite() {
        return Err(PaintError::refused("guidance_scale", "the guidance scale is no number"));
    }
    Ok(())
}

impl LatentModel for UnetPainter {
    type Given = UnetGiven;

    fn predict(&self, latents: &[f32], time: f32, given: &UnetGiven) -> CandleResult<Vec<f32>> {
        let [height, width] = given.size;
        let shape = [given.pictures, self.vae.spec().latent_channels, height, width];
        let mut x = Planes::of_channels(latents, shape, &self.device)?;
        if let Some(MaskedLatent { anew, picture }) = &given.masked {
            let beside: Vec<f32> = [anew.as_slice(), picture].concat().repeat(given.pictures);
            let channels = self.spec.ins - self.spec.outs;
            x = x.beside(&Planes::of_channels(&beside, [given.pictures, channels, height, width], &self.device)?)?;
        }
        let Some(guidance) = given.guidance else {
            return self.unet.forward(&x, time, &given.conditions)?.to_channels();
        };
        let mut output = self.unet.forward(&x.repeated(2)?, time, &given.conditions)?.to_channels()?;
        let prompted = output.split_off(output.len() / 2);
        for (without, with) in output.iter_mut().zip(prompted) {
            *without += guidance * (with - *without);
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
