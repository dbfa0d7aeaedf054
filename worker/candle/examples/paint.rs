//! Paints a picture with a folder of `diffusers` on the CPU and prints the times: `paint FOLDER WIDTH HEIGHT STEPS`.

use std::time::Instant;

use model_boss_candle::load_painter;
use model_boss_engine::PictureRequest;
use model_boss_protocol::DeviceId;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, width, height, steps] = words.as_slice() else { return Err("FOLDER WIDTH HEIGHT STEPS".into()) };
    let painter = load_painter(folder.as_ref(), &DeviceId::Cpu, &mut |_| {})?;
    let request = PictureRequest {
        prompt: "a blue cat".to_owned(),
        negative_prompt: None,
        width: width.parse()?,
        height: height.parse()?,
        steps: steps.parse()?,
        guidance_scale: painter.info().usual_guidance,
        scheduler: None,
        seeds: vec![1],
        beginning: None,
        max_sequence_length: None,
        clip_skip: None,
    };
    for _ in 0..2 {
        let began = Instant::now();
        let mut painting = painter.start(&request)?;
        let read = began.elapsed();
        while !painting.step()?.is_over() {}
        let painted = began.elapsed();
        let pictures = painting.finish()?;
        let decoded = began.elapsed().saturating_sub(painted);
        println!(
            "text {read:?}, steps {:?}, decoder {decoded:?}, {} pictures",
            painted.saturating_sub(read),
            pictures.len()
        );
    }
    Ok(())
}
