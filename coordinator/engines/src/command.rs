//! Engines started by a command template (RC-17, `command`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use model_boss_protocol::{CommandSpec, Placeholder, split_template};

use crate::launch::{Facts, Launch, LaunchError, text};

/// The template with its placeholders filled in.
pub fn command_line(spec: &CommandSpec, facts: &Facts<'_>) -> Result<Launch, LaunchError> {
    let mut words = spec.line.iter().map(|template| fill(template, facts)).collect::<Result<Vec<_>, _>>()?.into_iter();
    let program = PathBuf::from(words.next().unwrap_or_default());
    let env = spec.env.iter().map(|(name, template)| Ok((name.clone(), fill(template, facts)?)));
    let env: BTreeMap<String, String> = env.collect::<Result<_, LaunchError>>()?;
    Ok(Launch { program, args: words.collect(), env, folder: spec.folder.clone() })
}

fn fill(template: &str, facts: &Facts<'_>) -> Result<String, LaunchError> {
    let mut filled = String::new();
    for piece in split_template(template)? {
        match piece {
            Err(text) => filled.push_str(&text),
            Ok(placeholder) => filled.push_str(&value(placeholder, facts)?),
        }
    }
    Ok(filled)
}

fn value(placeholder: Placeholder, facts: &Facts<'_>) -> Result<String, LaunchError> {
    Ok(match placeholder {
        Placeholder::Port => facts.port.to_string(),
        Placeholder::Host => "127.0.0.1".to_owned(),
        Placeholder::Model => facts.model.to_string(),
        Placeholder::Path => text(facts.source)?,
        Placeholder::Context => facts.context.ok_or(LaunchError::NoContext)?.to_string(),
        Placeholder::Concurrency => facts.max_concurrent.to_string(),
        Placeholder::Gpus => facts.gpus.to_owned(),
        Placeholder::GpuCount => facts.gpu_count().to_string(),
        Placeholder::TensorSplit => facts.tensor_split(),
        Placeholder::MemoryMib => (facts.memory().0 >> 20).to_string(),
        Placeholder::Token => facts.token.reveal().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::testing::Load;

    fn spec(text: &str) -> CommandSpec {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn rc_17_a_template_is_filled_in_and_no_shell_reads_it() {
        let spec = spec(
            r#"
            line = ["vllm", "serve", "{path}", "--port={port}", "--served-model-name", "{model}", "-tp", "{gpu_count}", "; rm {{x}}"]
            env = { VLLM_API_KEY = "{token}" }
            folder = "/srv"
            "#,
        );
        let mut load = Load::on_gpus(&[8, 4]);
        load.source = "/models/a b".into();
        let launch = command_line(&spec, &load.facts()).unwrap();
        assert_eq!(launch.program, PathBuf::from("vllm"));
        let expected = ["serve", "/models/a b", "--port=8300", "--served-model-name", "team/m", "-tp", "2", "; rm {x}"];
        assert_eq!(launch.args, expected);
        assert_eq!(launch.env["VLLM_API_KEY"], load.token.reveal());
        assert_eq!(launch.folder, Some(PathBuf::from("/srv")));
    }

    #[test]
    fn rc_17_a_context_that_nobody_set_is_named() {
        let spec = spec(r#"line = ["x", "{port}", "{ctx}"]"#);
        let mut load = Load::on_cpu();
        assert_eq!(command_line(&spec, &load.facts()).unwrap().args[1], "2048");
        load.context = None;
        assert_eq!(command_line(&spec, &load.facts()), Err(LaunchError::NoContext));
    }
}
