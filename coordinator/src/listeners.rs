//! What the scheduler and the metrics hear of changes of the catalog and of the settings.

use std::sync::Arc;

use model_boss_catalog::CatalogListener;
use model_boss_core::Event;
use model_boss_settings::SettingsListener;

use crate::metrics::Metrics;
use crate::scheduling::News;

/// Every catalog reaches the scheduler, and its models get their metrics.
pub(crate) fn catalogs_to(news: &News, metrics: &Arc<Metrics>) -> CatalogListener {
    let (news, metrics) = (news.clone(), Arc::clone(metrics));
    Box::new(move |models| {
        metrics.know(models.iter().map(|model| &model.id));
        news.event(Event::Catalog(models));
    })
}

/// Every change of the settings reaches the scheduler.
pub(crate) fn settings_to(news: &News) -> SettingsListener {
    let news = news.clone();
    Box::new(move |settings| news.event(Event::Settings(Box::new(settings))))
}
