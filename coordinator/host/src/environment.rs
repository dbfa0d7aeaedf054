//! The environment that started programs inherit from the coordinator. The coordinator's own environment may hold keys
//! of providers and other secrets of its owner. Programs that run models inherit only what a list names: paths,
//! locales, and settings of drivers and arithmetic libraries.
//!
//! Left out on purpose: keys and tokens; proxies, whose addresses hold passwords, because a model needs no network;
//! `LLAMA_ARG_*`, which would bypass the list of permitted llama-server arguments; `LD_PRELOAD`. A manifest can add
//! some of them by name (`inherit_env`), or sets values (`env` of a command).

use std::ffi::OsString;

use model_boss_lease_store::GUARDS_VARIABLE;
use tokio::process::Command;

/// Variables inherited by their full names.
const NAMES: [&str; 38] = [
    GUARDS_VARIABLE,
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TERM",
    "NO_COLOR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUNBUFFERED",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_CACHE",
    "TRANSFORMERS_OFFLINE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "NUMEXPR_NUM_THREADS",
    "MALLOC_ARENA_MAX",
    "ONEAPI_ROOT",
];
/// Prefixes of inherited variables. A name that suggests a secret is not inherited by its prefix.
const FAMILIES: [&str; 24] = [
    "LC_",
    "CUDA_",
    "NVIDIA_",
    "NCCL_",
    "HIP_",
    "ROCR_",
    "ROCM_",
    "HSA_",
    "AMD_",
    "ZE_",
    "SYCL_",
    "VK_",
    "GGML_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "RAYON_",
    "PYTORCH_",
    "TORCH_",
    "TRITON_",
    "VLLM_",
    "FAKE_WORKER_",
];
/// Parts of names that suggest a secret: a variable with one of these in its name is inherited only where it is named
/// in full.
const SECRETS: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL"];

/// The environment of a child process; `None` inherits all variables of this process.
#[derive(Clone, Debug)]
pub struct ChildEnvironment(Option<Vec<(OsString, OsString)>>);

impl ChildEnvironment {
    /// The whole environment of this process, for a program that the caller chose.
    pub const fn everything() -> Self {
        Self(None)
    }

    /// The environment of programs that run models: the built-in list and `more`, which has names, or prefixes that end
    /// with `*`.
    pub fn of_models(more: &[String]) -> Self {
        Self::listed(|name| is_for_models(name) || more.iter().any(|more| matches(more, name)))
    }

    /// Only the variables with these names, if they are set.
    pub fn of_names(names: &[&str]) -> Self {
        Self::listed(|name| name == GUARDS_VARIABLE || names.contains(&name))
    }

    fn listed(is_listed: impl Fn(&str) -> bool) -> Self {
        Self(Some(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(&is_listed)).collect()))
    }

    /// Sets this environment on a command that has no variables yet.
    pub fn give(&self, command: &mut Command) {
        if let Some(variables) = &self.0 {
            command.env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
        }
    }
}

fn is_for_models(name: &str) -> bool {
    let speaks_of_secrets = SECRETS.iter().any(|word| name.to_ascii_uppercase().contains(word));
    NAMES.contains(&name) || (!speaks_of_secrets && FAMILIES.iter().any(|family| name.starts_with(family)))
}

/// Whether `written`, a name or a prefix with a `*` from an operator's file, covers the variable `name`.
fn matches(written: &str, name: &str) -> bool {
    written.strip_suffix('*').map_or(written == name, |beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_models_need_is_inherited_and_secrets_are_not() {
        for name in ["PATH", "LC_ALL", "CUDA_CACHE_PATH", "HF_HOME", "OMP_NUM_THREADS", "VLLM_ATTENTION_BACKEND"] {
            assert!(is_for_models(name), "{name}");
        }
        for name in [
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "MODEL_BOSS_API_KEY",
            "HF_TOKEN",
            "VLLM_API_KEY",
            "NVIDIA_API_KEY",
            "HTTPS_PROXY",
            "LLAMA_ARG_HOST",
            "LD_PRELOAD",
            "AWS_SECRET_ACCESS_KEY",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "SSH_AUTH_SOCK",
        ] {
            assert!(!is_for_models(name), "{name}");
        }
    }

    #[test]
    fn an_operator_names_one_variable_or_a_family() {
        assert!(matches("HF_TOKEN", "HF_TOKEN") && !matches("HF_TOKEN", "HF_TOKEN_2"));
        assert!(matches("MY_*", "MY_OWN") && !matches("MY_*", "MINE"));
    }
}
