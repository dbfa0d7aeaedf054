//! Stay-warm times: how long an unused model stays loaded (RC-8, BC-3). The module is pure arithmetic on settings and
//! descriptions.

use std::time::Duration;

use model_boss_protocol::KeepAlive;

use crate::{ModelDescription, Settings};

/// The time for which an unpinned model stays loaded after a use, given the `keep_alive` of the request or its task.
pub(crate) fn stay_warm(settings: &Settings, model: &ModelDescription, request: Option<KeepAlive>) -> KeepAlive {
    if let Some(asked) = request {
        return asked.at_most(settings.max_keep_alive);
    }
    if let Some(given) = model.keep_alive {
        return given;
    }
    match settings.model_idle {
        Some(Duration::ZERO) => KeepAlive::Forever,
        Some(span) => KeepAlive::For(span),
        None => {
            let changed = settings.stay_warm.get(&model.category).copied();
            changed.unwrap_or(KeepAlive::For(model.category.stay_warm()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::model;
    use model_boss_protocol::Category;

    const fn seconds(n: u64) -> KeepAlive {
        KeepAlive::For(Duration::from_secs(n))
    }

    #[test]
    fn rc_8_the_first_given_decides() {
        let mut settings = Settings::default();
        let mut m = model("m", 1);
        assert_eq!(stay_warm(&settings, &m, None), seconds(300));
        m.category = Category::Diffusion;
        assert_eq!(stay_warm(&settings, &m, None), seconds(900));
        settings.stay_warm.insert(Category::Diffusion, seconds(7));
        assert_eq!(stay_warm(&settings, &m, None), seconds(7));
        settings.model_idle = Some(Duration::from_secs(20));
        assert_eq!(stay_warm(&settings, &m, None), seconds(20));
        m.keep_alive = Some(seconds(30));
        assert_eq!(stay_warm(&settings, &m, None), seconds(30));
        assert_eq!(stay_warm(&settings, &m, Some(seconds(0))), seconds(0));
    }

    #[test]
    fn rc_8_a_request_cannot_keep_a_model_longer_than_a_day_and_a_manifest_can() {
        let settings = Settings::default();
        let mut m = model("m", 1);
        assert_eq!(stay_warm(&settings, &m, Some(KeepAlive::Forever)), seconds(86_400));
        m.keep_alive = Some(KeepAlive::Forever);
        assert_eq!(stay_warm(&settings, &m, None), KeepAlive::Forever);
    }

    #[test]
    fn bc_3_zero_turns_the_idle_sweep_off() {
        let settings = Settings { model_idle: Some(Duration::ZERO), ..Settings::default() };
        assert_eq!(stay_warm(&settings, &model("m", 1), None), KeepAlive::Forever);
    }
}
