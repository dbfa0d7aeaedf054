use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// A model of 4 GB in a shape that is in use: 36 layers of 107 MiB.
fn large() -> MemoryNeeds {
    MemoryNeeds { layers: vec![107 * MIB; 36], ends: 400 * MIB, kv: 75 * MIB, workspace: 80 * MIB }
}

const DISK: Rates = Rates { read: 1.2e9, place: f64::INFINITY, latency: 1e-4, compute: 15e9 };

fn streamed(plan: ResidencyPlan) -> StreamPlan {
    match plan {
        ResidencyPlan::Stream(plan) => plan,
        ResidencyPlan::Resident => panic!("nothing is streamed"),
    }
}

#[test]
fn what_fits_stays() {
    let needs = large();
    let all = 36 * 107 * MIB + 555 * MIB;
    assert_eq!(plan(&needs, all, &ResidencyOptions::default(), None), Ok(ResidencyPlan::Resident));
    assert!(matches!(plan(&needs, all - 1, &ResidencyOptions::default(), None), Ok(ResidencyPlan::Stream(_))));
}

#[test]
fn rs_1_what_does_not_fit_is_streamed_and_the_rest_stays() {
    let wish = ResidencyOptions { window: Some(1), ..ResidencyOptions::default() };
    let plan = streamed(plan(&large(), 2048 * MIB, &wish, Some(&DISK)).unwrap());
    // (2048 - 555) / 107 = 13 places, two of them slots.
    assert_eq!((plan.slots, plan.blocks.len()), (2, 36 - 11));
    assert_eq!(plan.resident_bytes, 11 * 107 * MIB);
    // The disk sets the pace.
    let disk = plan.streamed_bytes as f64 / DISK.read;
    let seconds = plan.step_seconds.unwrap();
    assert!((disk..disk * 1.02).contains(&seconds), "{seconds} beside {disk}");
}

#[test]
fn a_slow_disk_wants_a_small_window_and_an_even_race_a_larger_one() {
    let wish = ResidencyOptions::default();
    assert_eq!(streamed(plan(&large(), 2048 * MIB, &wish, Some(&DISK)).unwrap()).look_ahead, 1);
    let even = Rates { read: 9e9, place: 9e9, latency: 1e-4, compute: 9e9 };
    assert!(streamed(plan(&large(), 2048 * MIB, &wish, Some(&even)).unwrap()).look_ahead > 1);
}

#[test]
fn slots_can_hold_blocks_where_hardly_more_comes_for_it() {
    let plan = streamed(plan(&large(), 2048 * MIB, &ResidencyOptions::default(), Some(&DISK)).unwrap());
    // 13 places: five slots, three of which hold a block for now; the same 25 layers come as with two slots.
    assert_eq!((plan.slots, plan.look_ahead, plan.resident_bytes), (5, 1, 8 * 107 * MIB));
    assert_eq!(plan.streamed_bytes, 25 * 107 * MIB);
    assert_eq!(plan.kept(1).len(), 3);
    assert_eq!((plan.kept(4).len(), plan.kept(9).len()), (0, 0));
}

#[test]
fn small_layers_come_several_at_a_time() {
    let needs = MemoryNeeds { layers: vec![10 * MIB; 32], ..MemoryNeeds::default() };
    let plan = |wish: ResidencyOptions| streamed(plan(&needs, 200 * MIB, &wish, None).unwrap());
    assert_eq!(plan(ResidencyOptions::default()).blocks[0].len(), 4);
    assert_eq!(plan(ResidencyOptions { block: Some(2), ..ResidencyOptions::default() }).blocks[0].len(), 2);
}

#[test]
fn rs_6_a_measured_disk_decides_how_many_layers_come_at_a_time() {
    let needs = MemoryNeeds { layers: vec![17 * MIB; 28], ends: 157 * MIB, ..MemoryNeeds::default() };
    let size = |latency: f64| {
        let rates = Rates { latency, ..DISK };
        streamed(plan(&needs, 300 * MIB, &ResidencyOptions::default(), Some(&rates)).unwrap()).blocks[0].len()
    };
    assert_eq!(size(1e-4), 1, "small blocks leave room for layers that stay");
    assert!(size(0.05) > 1, "a read that takes long to begin is better a long one");
}

#[test]
fn a_forced_stream_streams_everything_that_could_stay() {
    let wish = ResidencyOptions { mode: ResidencyMode::Stream, ..ResidencyOptions::default() };
    let plan = streamed(plan(&large(), 64 << 30, &wish, None).unwrap());
    assert_eq!((plan.resident_bytes, plan.blocks.len(), plan.slots), (0, 36, 3));
}

#[test]
fn a_refusal_names_the_numbers() {
    let wish = ResidencyOptions { mode: ResidencyMode::Resident, ..ResidencyOptions::default() };
    let words = plan(&large(), 2048 * MIB, &wish, None).unwrap_err().to_string();
    assert!(words.contains("2.00 GiB") && words.contains("auto"), "{words}");
    let words = plan(&large(), 600 * MIB, &ResidencyOptions::default(), None).unwrap_err().to_string();
    assert!(words.contains("214 MiB") && words.contains("context"), "{words}");
}

#[test]
fn a_context_of_any_length_is_counted() {
    let needs = MemoryNeeds { kv: u64::MAX, ..large() };
    for mode in [ResidencyMode::Auto, ResidencyMode::Resident, ResidencyMode::Stream] {
        let wish = ResidencyOptions { mode, ..ResidencyOptions::default() };
        assert!(plan(&needs, 2048 * MIB, &wish, None).is_err(), "{mode:?}");
    }
}

proptest! {
    #[test]
    fn rs_6_a_plan_never_exceeds_its_budget_and_covers_every_layer_once(
        layers in proptest::collection::vec(1..200 * MIB, 1..60), ends in 0..500 * MIB, kv in 0..100 * MIB,
        budget in 0..6_000 * MIB, window in proptest::option::of(1..4_usize), block in proptest::option::of(1..6_usize),
        forced in any::<bool>(), measured in any::<bool>(),
    ) {
        let needs = MemoryNeeds { layers, ends, kv, workspace: 10 * MIB };
        let wish = ResidencyOptions { mode: if forced { ResidencyMode::Stream } else { ResidencyMode::Auto }, window, block };
        let all = needs.layers.iter().sum::<u64>() + ends + kv + 10 * MIB;
        match plan(&needs, budget, &wish, measured.then_some(&DISK)) {
            Ok(ResidencyPlan::Resident) => prop_assert!(all <= budget && !forced),
            Ok(ResidencyPlan::Stream(plan)) => {
                prop_assert!(ends + kv + 10 * MIB + plan.layer_bytes() <= budget);
                let coming: Vec<usize> = plan.blocks.iter().flatten().copied().collect();
                prop_assert!(coming.windows(2).all(|pair| pair[0] < pair[1]));
                let bytes: u64 = coming.iter().map(|layer| needs.layers[*layer]).sum();
                let kept = plan.kept(plan.look_ahead);
                prop_assert_eq!(kept.len() + 1 + plan.look_ahead, plan.slots);
                let kept = kept.iter().flat_map(|block| &plan.blocks[block.0]).map(|layer| needs.layers[*layer]);
                prop_assert_eq!(bytes, plan.streamed_bytes + kept.sum::<u64>());
                prop_assert_eq!(bytes + plan.resident_bytes, needs.layers.iter().sum::<u64>());
                for block in &plan.blocks {
                    prop_assert!(block.iter().map(|layer| needs.layers[*layer]).sum::<u64>() <= plan.slot_bytes);
                }
            }
            Err(PlanRefusal::NotStreamed { needs, budget: named, .. }) => {
                prop_assert_eq!(named.0, budget);
                prop_assert!(all > budget || forced, "{} {}", needs, budget);
            }
            Err(PlanRefusal::NotResident { .. }) => prop_assert!(false, "nobody asked for that"),
        }
    }
}
