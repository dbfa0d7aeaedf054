//! The classes of schedulers, by the names that folders and requests have for them.

/// A class of `diffusers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) enum SchedulerClass {
    Pndm,
    Ddim,
    Euler,
    EulerAncestral,
    DpmSolverMultistep,
    UniPc,
    FlowMatchEuler,
}

/// A name of a request, the class, and whether sigmas have to be spaced as Karras et al. do (2022, arXiv 2206.00364).
const NAMES: [(&str, SchedulerClass, bool); 12] = [
    ("pndm", SchedulerClass::Pndm, false),
    ("ddim", SchedulerClass::Ddim, false),
    ("euler", SchedulerClass::Euler, false),
    ("euler_karras", SchedulerClass::Euler, true),
    ("euler_a", SchedulerClass::EulerAncestral, false),
    ("euler_ancestral", SchedulerClass::EulerAncestral, false),
    ("dpm++_2m", SchedulerClass::DpmSolverMultistep, false),
    ("dpm++_2m_karras", SchedulerClass::DpmSolverMultistep, true),
    ("dpmpp_2m", SchedulerClass::DpmSolverMultistep, false),
    ("dpmpp_2m_karras", SchedulerClass::DpmSolverMultistep, true),
    ("unipc", SchedulerClass::UniPc, false),
    ("flow_match_euler", SchedulerClass::FlowMatchEuler, false),
];

/// The wish for Karras' sigmas behind a name.
const KARRAS: &str = "+karras";

impl SchedulerClass {
    pub(in crate::pictures) const ALL: [Self; 7] = [
        Self::Pndm,
        Self::Ddim,
        Self::Euler,
        Self::EulerAncestral,
        Self::DpmSolverMultistep,
        Self::UniPc,
        Self::FlowMatchEuler,
    ];

    /// The class of a folder's `_class_name`.
    pub(in crate::pictures) fn of_class(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.class_name() == name)
    }

    /// The class that a request names, and whether it wants Karras' sigmas beside the folder's settings.
    pub(in crate::pictures) fn of_request(name: &str) -> Option<(Self, bool)> {
        let plain = name.to_ascii_lowercase().replace([' ', '-'], "_");
        let short =
            |plain: &str| NAMES.iter().find(|(known, ..)| *known == plain).map(|(_, class, karras)| (*class, *karras));
        let named = |name: &str, plain: &str| short(plain).or_else(|| Self::of_class(name).map(|class| (class, false)));
        named(name, &plain).or_else(|| {
            // A class, or a short name, with the wish behind it.
            let plain = plain.strip_suffix(KARRAS)?;
            let (class, _) = named(name.get(..plain.len())?, plain)?;
            matches!(class, Self::Euler | Self::DpmSolverMultistep | Self::UniPc).then_some((class, true))
        })
    }

    /// The name in `scheduler_config.json`.
    pub(in crate::pictures) const fn class_name(self) -> &'static str {
        match self {
            Self::Pndm => "PNDMScheduler",
            Self::Ddim => "DDIMScheduler",
            Self::Euler => "EulerDiscreteScheduler",
            Self::EulerAncestral => "EulerAncestralDiscreteScheduler",
            Self::DpmSolverMultistep => "DPMSolverMultistepScheduler",
            Self::UniPc => "UniPCMultistepScheduler",
            Self::FlowMatchEuler => "FlowMatchEulerDiscreteScheduler",
        }
    }

    /// The names that a request may have.
    pub(in crate::pictures) fn request_names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, ..)| *name)
    }
}
