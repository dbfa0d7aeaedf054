//! Reports changes of the catalog and of the settings to the scheduler and the metrics.

use std::sync::Arc;

use model_boss_catalog::CatalogListener;
use model_boss_core::Event;
use model_boss_settings::SettingsListener;

use crate::metrics::Metrics;
use crate::scheduling::News;

/// A listener that sends every catalog to the scheduler, and gives its models metrics.
pub(crate) fn catalogs_to(news: &News, metrics: &Arc<Metrics>) -> CatalogListener {
    let (news, metrics) = (news.clone(), Arc::clone(metrics));
    Box::new(move |models| {
        metrics.know(models.iter().map(|model| &model.id));
        news.event(Event::Catalog(models));
    })
}

/// A listener that sends every change of the settings to the scheduler.
pub(crate) fn settings_to(news: &News) -> SettingsListener {
    let news = news.clone();
    Box::new(move |settings| news.event(Event::Settings(Box::new(settings))))
}
