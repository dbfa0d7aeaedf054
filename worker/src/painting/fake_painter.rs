//! A painter made of arithmetic: each picture has the colour of its seed, and its brightness is that of its steps.

use std::sync::{Arc, Mutex, PoisonError};

use model_boss_engine::{
    DecoderError, PaintError, PaintProgress, Painter, PainterComponent, PainterInfo, Painting, PictureRequest,
    PipelineKind, PlaceUse,
};
use model_boss_images::RgbImage;
use model_boss_protocol::DeviceId;

/// A painter of pictures up to 64 pixels.
pub(crate) struct FakePainter {
    info: PainterInfo,
    control: FakePainterControl,
}

/// The handle by which a test controls a painter and sees its requests.
#[derive(Clone, Default)]
pub(crate) struct FakePainterControl {
    /// Steps until a failure.
    failure: Arc<Mutex<Option<(usize, DecoderError)>>>,
    /// Each step waits for a permit, if there is a gate.
    gate: Arc<Mutex<Option<std::sync::mpsc::Receiver<()>>>>,
    requests: Arc<Mutex<Vec<PictureRequest>>>,
}

struct FakePainting {
    request: PictureRequest,
    progress: PaintProgress,
    control: FakePainterControl,
}

/// A request for one picture.
pub(crate) fn picture_request([width, height]: [usize; 2], steps: usize) -> PictureRequest {
    PictureRequest {
        prompt: "a cat".to_owned(),
        negative_prompt: None,
        width,
        height,
        steps,
        guidance_scale: 7.5,
        scheduler: None,
        seeds: vec![1],
        beginning: None,
        max_sequence_length: None,
        clip_skip: None,
    }
}

impl FakePainter {
    pub(crate) fn new() -> Self {
        let info = PainterInfo {
            pipeline: PipelineKind::StableDiffusion,
            components: vec![PainterComponent { name: "unet".to_owned(), bytes: 1_000 }],
            weight_bytes: 1_000,
            size_multiple: 8,
            longest_side: 64,
            usual_size: [16, 16],
            usual_steps: 4,
            usual_guidance: 7.5,
            usual_scheduler: "PNDMScheduler".to_owned(),
            schedulers: vec!["pndm".to_owned(), "ddim".to_owned()],
            takes_image: true,
            takes_mask: true,
            needs_mask: false,
            takes_negative_prompt: true,
            bytes_per_pixel: 100,
        };
        Self { info, control: FakePainterControl::default() }
    }

    pub(crate) fn control(&self) -> FakePainterControl {
        self.control.clone()
    }
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakePainterControl {
    /// After so many further steps one fails.
    pub(crate) fn fail_after(&self, steps: usize, error: DecoderError) {
        *locked(&self.failure) = Some((steps, error));
    }

    /// From now on each step waits for a permit.
    pub(crate) fn gate(&self) -> std::sync::mpsc::Sender<()> {
        let (permits, gate) = std::sync::mpsc::channel();
        *locked(&self.gate) = Some(gate);
        permits
    }

    /// The requests that were begun.
    pub(crate) fn requests(&self) -> Vec<PictureRequest> {
        locked(&self.requests).clone()
    }
}

impl Painter for FakePainter {
    fn info(&self) -> &PainterInfo {
        &self.info
    }

    fn places(&self) -> Arc<[PlaceUse]> {
        [PlaceUse::new(DeviceId::Cpu, 0..1, (self.info.weight_bytes, 0), (0, 0))].into()
    }

    fn start(&self, request: &PictureRequest) -> Result<Box<dyn Painting + '_>, PaintError> {
        if request.steps == 0 {
            return Err(PaintError::refused("steps", "0 steps cannot be made"));
        }
        locked(&self.control.requests).push(request.clone());
        let progress = PaintProgress { step: 0, steps: request.steps };
        Ok(Box::new(FakePainting { request: request.clone(), progress, control: self.control() }))
    }
}

impl Painting for FakePainting {
    fn progress(&self) -> PaintProgress {
        self.progress
    }

    fn step(&mut self) -> Result<PaintProgress, PaintError> {
        if let Some(gate) = locked(&self.control.gate).as_ref() {
            // A test that is over permits all.
            let _ = gate.recv();
        }
        let mut failure = locked(&self.control.failure);
        if let Some((left, _)) = failure.as_mut() {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => {
                    if let Some((_, error)) = failure.take() {
                        return Err(error.into());
                    }
                }
            }
        }
        self.progress.step += 1;
        Ok(self.progress)
    }

    fn preview(&self) -> Result<Vec<RgbImage>, PaintError> {
        let PictureRequest { width, height, seeds, .. } = &self.request;
        let bright = (self.progress.step * 200 / self.progress.steps) as u8;
        let picture = |seed: &u64| {
            let pixel = [*seed as u8, bright, u8::from(self.request.beginning.is_some())];
            RgbImage::new(*width, *height, pixel.repeat(width * height))
        };
        Ok(seeds.iter().filter_map(picture).collect())
    }

    fn latents(&self) -> &[f32] {
        &[]
    }
}
