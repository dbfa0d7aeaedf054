//! Counts, labels, bounds, and the documents' table.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use model_boss_core::Verdict;
use model_boss_protocol::ModelId;

use super::*;

fn rendered(metrics: &Metrics) -> String {
    let mut page = Page::default();
    metrics.fill(&mut page);
    page.render()
}

fn used(metrics: &Metrics, count: usize) -> Vec<ModelId> {
    let models: Vec<ModelId> = (0..count).map(|n| ModelId::from(format!("org/some-model-{n:04}:Q4_K_M"))).collect();
    metrics.know(models.iter());
    for id in &models {
        let model = metrics.model(Some(id));
        model.queued(Duration::from_millis(3));
        metrics.decided(Verdict::Load, id);
        metrics.loaded(id, Duration::from_secs(3));
        let times = Some(Duration::from_millis(12));
        let worked = times.zip(times);
        let usage = RequestUsage {
            prompt_tokens: 7,
            completion_tokens: 3,
            first_token: times,
            per_token: times,
            worked,
            ..RequestUsage::default()
        };
        metrics.used(id, &model, &usage);
        metrics.answered(&model, 200, Duration::from_millis(30));
    }
    models
}

#[test]
fn op_3_a_thousand_used_models_make_a_page_of_bounded_size() {
    let metrics = Metrics::new([], 100).unwrap();
    let models = used(&metrics, 1_000);
    let mut page = Page::default();
    for id in &models {
        let label = metrics.label(id, true).unwrap();
        assert!(label == "other" || label == id.as_str());
    }
    metrics.fill(&mut page);
    let page = page.named(&NameSet::ALL.into()).render();
    assert!(page.len() < 2 << 20, "{} bytes", page.len());
    assert!(page.contains(r#"model_boss_requests_total{model="other",status="200"} 900"#), "{page}");
    let all = page.lines().filter(|line| line.starts_with("model_boss_requests_total{")).count();
    assert_eq!(all, 101);
    // A model that leaves for good frees its place.
    metrics.know(models[900..].iter());
    for n in 0..200 {
        metrics.know(models[900..].iter().chain([&ModelId::from(format!("passing-{n}"))]));
    }
    let fresh = ModelId::from("fresh");
    metrics.know(models[900..].iter().chain([&fresh]));
    assert_eq!(metrics.label(&fresh, false), None, "it was not used");
    assert_eq!(metrics.label(&fresh, true).as_deref(), Some("fresh"));
}

#[test]
fn op_3_the_names_of_vllm_and_llama_cpp_have_the_same_figures() {
    let metrics = Metrics::new([], 100).unwrap();
    used(&metrics, 1);
    let text = |names: &[NameSet]| {
        let mut page = Page::default();
        metrics.fill(&mut page);
        page.gauge("model_boss_requests_running", &[("model", "m")], 2.0);
        page.named(&names.iter().copied().collect::<BTreeSet<_>>()).render()
    };
    let all = text(&NameSet::ALL);
    for line in [
        r#"vllm:num_requests_running{engine="0",model_name="m"} 2"#,
        r#"vllm:generation_tokens_total{engine="0",model_name="org/some-model-0000:Q4_K_M"} 3"#,
        r#"vllm:time_to_first_token_seconds_bucket{engine="0",model_name="org/some-model-0000:Q4_K_M",le="0.02"} 1"#,
        r#"vllm:inter_token_latency_seconds_count{engine="0",model_name="org/some-model-0000:Q4_K_M"} 1"#,
        r#"llamacpp:requests_processing{model="m"} 2"#,
        r#"llamacpp:tokens_predicted_total{model="org/some-model-0000:Q4_K_M"} 3"#,
        r#"llamacpp:predicted_tokens_seconds{model="org/some-model-0000:Q4_K_M"} 250"#,
    ] {
        assert!(all.lines().any(|shown| shown == line), "{line}\n{all}");
    }
    assert!(!text(&[NameSet::ModelBoss]).contains("vllm:"));
    assert!(!text(&[NameSet::Vllm]).contains("\nmodel_boss_"));
}

#[test]
fn op_3_the_table_of_docs_observability_md_is_made_from_the_metrics() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/observability.md");
    let before = std::fs::read_to_string(&file).unwrap();
    let (open, close) = ("<!-- metrics -->\n", "<!-- end of metrics -->");
    let (head, rest) = before.split_once(open).expect("the page has the mark");
    let (_, tail) = rest.split_once(close).unwrap();
    let now = format!("{head}{open}\n{}\n{close}{tail}", table());
    if std::env::var_os("MODEL_BOSS_WRITE_DOCS").is_some() {
        std::fs::write(&file, now).unwrap();
    } else {
        assert!(before == now, "MODEL_BOSS_WRITE_DOCS=1 writes docs/observability.md");
    }
}

#[test]
fn a_request_shows_up_under_its_model_and_status() {
    let metrics = Metrics::new([], 1_024).unwrap();
    let guide = ModelId::from("guide");
    metrics.know([&guide].into_iter());
    let model = metrics.model(Some(&guide));
    metrics.answered(&model, 200, Duration::from_millis(30));
    let usage = RequestUsage {
        prompt_tokens: 7,
        completion_tokens: 3,
        first_token: Some(Duration::from_millis(12)),
        per_token: Some(Duration::from_millis(4)),
        ..RequestUsage::default()
    };
    metrics.used(&guide, &model, &usage);
    let page = rendered(&metrics);
    assert!(page.contains(r#"model_boss_requests_total{model="guide",status="200"} 1"#), "{page}");
    assert!(page.contains(r#"model_boss_completion_tokens_total{model="guide"} 3"#), "{page}");
    assert!(page.contains(r#"model_boss_time_to_first_token_seconds_bucket{model="guide",le="0.02"} 1"#), "{page}");
    assert!(page.contains(r#"model_boss_time_per_output_token_seconds_bucket{model="guide",le="0.0025"} 0"#), "{page}");
    let recent = metrics.recent().unwrap();
    assert_eq!((recent.input_tokens, recent.output_tokens, recent.tokens_per_second), (7, 3, Some(250.0)));
}

#[test]
fn models_of_a_provider_share_its_series() {
    let metrics = Metrics::new(["claude"], 1_024).unwrap();
    metrics.answered(&metrics.provider("claude"), 200, Duration::ZERO);
    metrics.answered(&metrics.provider("made-up"), 200, Duration::ZERO);
    let page = rendered(&metrics);
    assert!(page.contains(r#"model_boss_requests_total{model="claude:*",status="200"} 1"#), "{page}");
    assert!(page.contains(r#"model_boss_requests_total{model="unknown",status="200"} 1"#), "{page}");
    assert!(metrics.totals().is_empty());
}

#[test]
fn a_model_that_nobody_described_makes_no_series_of_its_own() {
    let metrics = Metrics::new([], 1_024).unwrap();
    let stranger = metrics.model(Some(&ModelId::from("made-up")));
    metrics.answered(&stranger, 404, Duration::ZERO);
    let page = rendered(&metrics);
    assert!(page.contains(r#"model_boss_requests_total{model="unknown",status="404"} 1"#), "{page}");
    assert!(!page.contains("made-up"));
}

#[test]
fn a_model_that_was_never_used_has_no_series() {
    let metrics = Metrics::new([], 1_024).unwrap();
    let models: Vec<ModelId> = (0..1_000).map(|n| ModelId::from(format!("m{n}"))).collect();
    metrics.know(models.iter());
    metrics.answered(&metrics.model(Some(&models[7])), 200, Duration::ZERO);
    let page = rendered(&metrics);
    assert!(page.contains(r#"model_boss_requests_total{model="m7",status="200"} 1"#), "{page}");
    assert!(page.lines().filter(|line| !line.starts_with('#')).all(|line| line.contains("model=\"m7\"")), "{page}");
    assert_eq!(metrics.totals().len(), 1_000, "the figures for people have them all");
}

#[test]
fn the_series_of_models_that_left_are_bounded_and_one_that_is_back_soon_counts_on() {
    let metrics = Metrics::new([], 1_024).unwrap();
    let stays = ModelId::from("stays");
    for n in 0..5_000 {
        let id = ModelId::from(format!("file:{n}"));
        metrics.know([&stays, &id].into_iter());
        for id in [&stays, &id] {
            let model = metrics.model(Some(id));
            metrics.answered(&model, 200, Duration::ZERO);
            model.queued(Duration::ZERO);
            metrics.decided(Verdict::Load, id);
        }
    }
    let requests = |page: &str| page.lines().filter(|line| line.starts_with("model_boss_requests_total{")).count();
    let page = rendered(&metrics);
    assert!(requests(&page) <= 256 + 2, "{} series", requests(&page));
    assert!(metrics.totals().len() <= 256 + 2);
    assert!(page.contains(r#"model_boss_requests_total{model="stays",status="200"} 5000"#));
    assert!(!page.contains(r#"model="file:7""#));
    // A request that began before its model was forgotten may end later, and must not recreate the model's series.
    let late = metrics.model(Some(&"file:4999".into()));
    for n in 5_000..6_000 {
        metrics.know([&stays, &ModelId::from(format!("file:{n}"))].into_iter());
    }
    metrics.answered(&late, 200, Duration::ZERO);
    assert!(!rendered(&metrics).contains(r#"model="file:4999""#));

    metrics.know(std::iter::empty());
    metrics.know([&stays].into_iter());
    metrics.answered(&metrics.model(Some(&stays)), 200, Duration::ZERO);
    assert!(rendered(&metrics).contains(r#"model_boss_requests_total{model="stays",status="200"} 5001"#));
}

#[test]
fn what_is_read_off_is_as_it_is_now() {
    let metrics = Metrics::new([], 1_024).unwrap();
    let mut page = Page::default();
    page.gauge("model_boss_queue_depth", &[("model", "a \"b\"")], 2.0);
    page.gauge("model_boss_device_free_bytes", &[("device", "cuda:0")], f64::NAN);
    page.count_so_far("model_boss_cloud_requests_total", &[("provider", "far"), ("model", "x")], 7);
    let page = page.render();
    assert!(
        page.contains("# TYPE model_boss_queue_depth gauge\nmodel_boss_queue_depth{model=\"a \\\"b\\\"\"} 2\n"),
        "{page}"
    );
    assert!(page.contains("model_boss_device_free_bytes{device=\"cuda:0\"} NaN\n"), "{page}");
    assert!(page.contains("model_boss_cloud_requests_total{provider=\"far\",model=\"x\"} 7\n"), "{page}");
    assert!(!rendered(&metrics).contains("queue_depth"), "nothing of an earlier scrape is left");
}
