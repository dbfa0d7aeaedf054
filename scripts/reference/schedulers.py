"""Makes the golden cases of schedulers: what those of `diffusers` do with outputs that a seed makes.

    VENV/bin/pip install -r scripts/reference/requirements.txt diffusers==0.42.1
    VENV/bin/python scripts/reference/schedulers.py

All cases are in worker/candle/tests/pictures/schedulers.json, each with these fields:

    case, config    a name, and the folder's scheduler_config.json
    wanted          the scheduler that the request names, or null
    rules           whether the pipeline of Stable Diffusion changes the settings
    steps, start    steps, and the first of them
    tokens          tokens of the picture, for shifts by size; null where the pipeline gives no sigmas
    times           the time of each call of the model
    scale, inputs   the factor that noise begins with, and for each call the factor on the model's input
    noised          the picture with noise at the first call
    samples         the first numbers of the sample after each call

The picture, the noise and the outputs have 16 numbers each, drawn in this order from a generator of seed 11. Noise that the scheduler
draws is from a generator of seed 5.
"""

import json
import math
from pathlib import Path

import diffusers
import torch

OUT = Path(__file__).resolve().parents[2] / "worker" / "candle" / "tests" / "pictures" / "schedulers.json"
CLASSES = {
    "pndm": "PNDMScheduler", "ddim": "DDIMScheduler", "euler": "EulerDiscreteScheduler", "euler_karras": "EulerDiscreteScheduler", "euler_a": "EulerAncestralDiscreteScheduler",
    "dpm++_2m": "DPMSolverMultistepScheduler", "dpm++_2m_karras": "DPMSolverMultistepScheduler", "unipc": "UniPCMultistepScheduler", "flow_match_euler": "FlowMatchEulerDiscreteScheduler",
}
SD = dict(_class_name="PNDMScheduler", beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000, set_alpha_to_one=False, skip_prk_steps=True,
          steps_offset=1, trained_betas=None, clip_sample=False)
XL = dict(_class_name="EulerDiscreteScheduler", beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", interpolation_type="linear", prediction_type="epsilon", sample_max_value=1.0,
          set_alpha_to_one=False, skip_prk_steps=True, steps_offset=1, timestep_spacing="leading", use_karras_sigmas=False, num_train_timesteps=1000, clip_sample=False)
FLOW = dict(_class_name="FlowMatchEulerDiscreteScheduler", num_train_timesteps=1000, shift=3.0)
FLUX = FLOW | dict(base_image_seq_len=256, base_shift=0.5, max_image_seq_len=4096, max_shift=1.15, use_dynamic_shifting=True)


def case(config, wanted=None, steps=8, strength=1.0, rules=False, tokens=None):
    return dict(config=config, wanted=wanted, steps=steps, strength=strength, rules=rules, tokens=tokens)


def own(name, **fields):
    return dict(_class_name=CLASSES[name], beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear") | fields


CASES = {f"sd-{name}": case(SD, name, rules=True) for name in CLASSES if not name.startswith("flow")}
CASES |= {f"sd-{name}-some": case(SD, name, steps=11, strength=0.6, rules=True) for name in CLASSES if not name.startswith("flow")}
CASES |= {f"xl-{name}": case(XL, name, steps=20) for name in CLASSES if not name.startswith("flow")}
CASES |= {f"{name}-velocity": case(own(name, prediction_type="v_prediction", rescale_betas_zero_snr=name != "pndm", timestep_spacing="trailing", skip_prk_steps=True), steps=6)
          for name in ("pndm", "ddim", "euler", "euler_a", "dpm++_2m", "unipc")}
CASES |= {f"{name}-{spacing}": case(own(name, timestep_spacing=spacing, skip_prk_steps=True, clip_sample=False), steps=7)
          for name in ("pndm", "ddim", "euler", "euler_a", "dpm++_2m", "unipc") for spacing in ("linspace", "trailing", "leading")}
CASES |= {
    "sd-own": case(SD | dict(steps_offset=0), rules=True), "sd-left-out": case({key: value for key, value in SD.items() if key not in ("steps_offset", "clip_sample")}, "ddim", rules=True),
    "pndm-runge-kutta": case(own("pndm"), steps=9), "pndm-runge-kutta-velocity": case(own("pndm", prediction_type="v_prediction", set_alpha_to_one=True), steps=5), "pndm-one": case(SD, steps=1), "pndm-two": case(SD, steps=2),
    "ddim-clipped": case(own("ddim", clip_sample_range=0.5)), "ddim-sample": case(own("ddim", prediction_type="sample", beta_schedule="linear", num_train_timesteps=200)),
    "ddim-cosine": case(own("ddim", beta_schedule="squaredcos_cap_v2", clip_sample=False, set_alpha_to_one=False)),
    "euler-sample": case(own("euler", prediction_type="sample", final_sigmas_type="sigma_min")), "euler-exponential": case(own("euler", use_exponential_sigmas=True)),
    "euler-turbo": case(XL | dict(timestep_spacing="trailing"), steps=1), "euler-a-turbo": case(XL | dict(timestep_spacing="trailing"), "euler_a", steps=4),
    "euler-bounds": case(own("euler", use_karras_sigmas=True, sigma_min=0.1, sigma_max=20.0)),
    "dpm-heun": case(own("dpm++_2m", solver_type="heun")), "dpm-first": case(own("dpm++_2m", solver_order=1)), "dpm-end": case(own("dpm++_2m", final_sigmas_type="sigma_min"), steps=16),
    "dpm-euler-end": case(own("dpm++_2m", final_sigmas_type="sigma_min", euler_at_final=True, lower_order_final=False), steps=17), "dpm-below": case(own("dpm++_2m", lambda_min_clipped=-2.0)),
    "dpm-cosine": case(own("dpm++_2m", beta_schedule="squaredcos_cap_v2", lambda_min_clipped=-5.1)), "dpm-one": case(own("dpm++_2m"), steps=1), "dpm-many": case(own("dpm++_2m", use_karras_sigmas=True), steps=60),
    "unipc-three": case(own("unipc", solver_order=3), steps=10), "unipc-plain": case(own("unipc", solver_type="bh1", use_karras_sigmas=True, final_sigmas_type="sigma_min")), "unipc-uncorrected": case(own("unipc", disable_corrector=[1, 2])), "unipc-one": case(own("unipc", solver_order=1)),
    "unipc-exponential": case(own("unipc", use_exponential_sigmas=True, final_sigmas_type="sigma_min")), "unipc-some": case(own("unipc", solver_order=3), steps=10, strength=0.75),
    "flow": case(FLOW), "flow-some": case(FLOW, strength=0.5, steps=9), "flow-one": case(FLOW | dict(shift=1.0), steps=4, tokens=300), "flow-dynamic": case(FLUX, tokens=1000), "flow-dynamic-some": case(FLUX, tokens=77, strength=0.7, steps=10),
    "flow-terminal": case(FLUX | dict(shift_terminal=0.1, time_shift_type="linear"), tokens=500), "flow-stochastic": case(FLOW | dict(stochastic_sampling=True), tokens=300),
}


def short(values):
    return [float(f"{value:.7g}") for value in values]


def scheduler_of(spec, folder):
    (folder / "scheduler_config.json").write_text(json.dumps(spec["config"]))
    scheduler = getattr(diffusers, spec["config"]["_class_name"]).from_pretrained(folder)
    if spec["rules"]:
        # The constructor of the pipeline does this.
        fields = dict(scheduler.config) | dict(steps_offset=1)
        if fields.get("clip_sample", False):
            fields["clip_sample"] = False
        scheduler._internal_dict = diffusers.configuration_utils.FrozenDict(fields)
    if spec["wanted"]:
        wanted = getattr(diffusers, CLASSES[spec["wanted"]])
        changes = dict(use_karras_sigmas=True) if spec["wanted"].endswith("karras") else {}
        if wanted is not type(scheduler) or changes:
            scheduler = wanted.from_config(scheduler.config, **changes)
    return scheduler


def calculated_shift(config, tokens):
    slope = (config["max_shift"] - config["base_shift"]) / (config["max_image_seq_len"] - config["base_image_seq_len"])
    return tokens * slope + config["base_shift"] - slope * config["base_image_seq_len"]


def made(name, spec, folder):
    scheduler = scheduler_of(spec, folder)
    steps = spec["steps"]
    if spec["tokens"]:
        sigmas = [1 + (1 / steps - 1) * at / max(steps - 1, 1) for at in range(steps)]
        mu = dict(mu=calculated_shift(spec["config"], spec["tokens"])) if "base_shift" in spec["config"] else {}
        scheduler.set_timesteps(sigmas=sigmas, **mu)
    else:
        scheduler.set_timesteps(steps)
    start = max(steps - min(int(steps * spec["strength"]), steps), 0)
    times = scheduler.timesteps[start * scheduler.order:]
    if (start or spec["config"]["_class_name"].startswith("Flow")) and hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(start * scheduler.order)
    drawn, own = torch.Generator().manual_seed(11), torch.Generator().manual_seed(5)
    normal = lambda: torch.randn((1, 4, 2, 2), generator=drawn)
    picture, noise = normal(), normal()
    scale = float(getattr(scheduler, "init_noise_sigma", 1.0))
    noised = scheduler.scale_noise(picture, times[:1], noise) if hasattr(scheduler, "scale_noise") else scheduler.add_noise(picture, noise, times[:1])
    sample = noised if start else noise * scale
    inputs, samples = [], []
    for time in times:
        scaled = scheduler.scale_model_input(sample, time) if hasattr(scheduler, "scale_model_input") else sample
        inputs.append(float((scaled / sample).flatten()[0]))
        takes = "generator" in scheduler.step.__code__.co_varnames[:scheduler.step.__code__.co_argcount]
        sample = scheduler.step(normal(), time, sample, return_dict=False, **(dict(generator=own) if takes else {}))[0]
        samples.append(short(sample.flatten()[:3].tolist()))
    assert all(math.isfinite(value) for row in samples for value in row), name
    return dict(case=name, config=spec["config"], wanted=spec["wanted"], rules=spec["rules"], steps=steps, start=start, tokens=spec["tokens"], times=short(times.tolist()), scale=scale,
                inputs=short(inputs), noised=short(noised.flatten()[:3].tolist()), samples=samples)


if __name__ == "__main__":
    import tempfile

    OUT.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp())
    cases = []
    for name, spec in CASES.items():
        try:
            cases.append(made(name, spec, folder))
        except Exception as error:
            print(name, type(error).__name__, error)
    OUT.write_text(json.dumps(dict(diffusers=diffusers.__version__, torch=torch.__version__, cases=cases), separators=(",", ":")) + "\n")
    print(len(cases), "cases", OUT.stat().st_size, "bytes")
