use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::Device as CandleDevice;
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{Logits, SequenceStep, Sequences};
use model_boss_protocol::{ByteCount, DeviceId, ResidencyMode};
use model_boss_weights::gguf::HeaderWriter;

use super::*;
use crate::convert::synthetic::Synthetic;
use crate::decoder::spec_decoder::{DecoderEnds, DecoderLimits, SpecDecoder};
use crate::decoder::stage::Stage;
use crate::files::ModelFiles;
use crate::layers::kv_shape::KvHome;
use crate::layers::states::StateLimits;
use crate::load_model::load;
use crate::plan::checked_model::CheckedModel;
use crate::plan::cut::cut;
use crate::plan::needs::context;
use crate::plan::options::{DecoderLoadOptions, DeviceOptions};
use crate::plan::part::LoadDevice;
use crate::streamed::index::{IndexOrder, write_layer_index};

type SharedBytes = Arc<Mutex<Vec<u8>>>;

/// A driver whose device memory is simulated in host memory. A copy is executed only when it is waited for.
#[derive(Default)]
struct HostDriver {
    asked: Mutex<Vec<(Vec<u8>, SharedBytes)>>,
    /// Bytes of allocated memory.
    allocated: Arc<AtomicU64>,
}

struct HostMemory {
    layout: MatrixLayout,
    bytes: SharedBytes,
    allocated: Arc<AtomicU64>,
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.allocated.fetch_sub(self.bytes.lock().unwrap().len() as u64, Ordering::SeqCst);
    }
}

impl MatrixMemory for HostMemory {
    fn matrix(&self) -> Matrix {
        let mut bytes = self.bytes.lock().unwrap().clone();
        self.layout.arrange(&mut bytes);
        Matrix::Stored(self.layout.kernel(bytes.into()).unwrap())
    }
}

impl HostDriver {
    fn copy_now(&self) {
        for (bytes, to) in self.asked.lock().unwrap().drain(..) {
            to.lock().unwrap().copy_from_slice(&bytes);
        }
    }
}

impl CopyDriver for HostDriver {
    type Class = MatrixLayout;
    type Memory = HostMemory;
    type Event = std::time::Instant;

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer, StreamFault> {
        HostBuffer::new(bytes).map_err(|error| StreamFault::Step(error.to_string()))
    }

    fn allocate(&self, class: &MatrixLayout) -> Result<HostMemory, StreamFault> {
        let bytes = class.kind.bytes_of(class.shape.iter().product::<usize>() as u64).unwrap();
        self.allocated.fetch_add(bytes, Ordering::SeqCst);
        // All bits are set, so that data used too early is NaN.
        let bytes = Arc::new(Mutex::new(vec![0xFF; bytes as usize]));
        Ok(HostMemory { layout: *class, bytes, allocated: Arc::clone(&self.allocated) })
    }

    fn event(&self, _timed: bool) -> Result<std::time::Instant, StreamFault> {
        Ok(std::time::Instant::now())
    }

    fn copy(&self, from: &[u8], to: &HostMemory) -> Result<(), StreamFault> {
        self.asked.lock().unwrap().push((from.to_vec(), Arc::clone(&to.bytes)));
        Ok(())
    }

    fn record(&self, _event: &std::time::Instant, _queue: Queue) -> Result<(), StreamFault> {
        Ok(())
    }

    fn wait(&self, _queue: Queue, _event: &std::time::Instant) -> Result<(), StreamFault> {
        Ok(())
    }

    fn finish(&self, _event: &std::time::Instant) -> Result<(), StreamFault> {
        self.copy_now();
        Ok(())
    }

    fn seconds(&self, from: &std::time::Instant, _to: &std::time::Instant) -> Result<f64, StreamFault> {
        self.copy_now();
        Ok(from.elapsed().as_secs_f64())
    }
}

fn options(window: usize, block: usize, host: Option<u64>) -> DecoderLoadOptions {
    DecoderLoadOptions {
        context_length: Some(64),
        host_memory: host.map(ByteCount),
        residency: ResidencyOptions { mode: ResidencyMode::Stream, window: Some(window), block: Some(block) },
        ..DecoderLoadOptions::default()
    }
}

/// Opens a model as a load does, with the driver's device as its only one.
fn streamed(
    model: &Path,
    limit: Option<u64>,
    options: &DecoderLoadOptions,
    driver: &Arc<HostDriver>,
) -> Result<Sequences, ModelError> {
    let (files, spec) = ModelFiles::open(model)?;
    let plan = CheckedModel::new(&spec, &files, None)?;
    let asked = DeviceOptions { device: DeviceId::Cpu, share: None, limit: limit.map(ByteCount) };
    let place = LoadDevice::of(&asked, CandleDevice::Cpu, &plan.matrices, options.kv_cache_type).unwrap();
    let parts = cut(&plan, &spec, &files, vec![place], options)?;
    let part = &parts[0];
    let mut progress = |_| {};
    let mut reader = WeightReader::new(&files, &part.place.target, part.weights, &mut progress);
    let embedding = plan.read_embedding(&mut reader)?;
    let (norm, head) = plan.read_head(&mut reader, &spec, Some(&embedding))?;
    let host_memory = options.host_memory.map(|bytes| bytes.0);
    let opened = open(&StreamRequest { spec: &spec, part, options, before: 0, host_memory }, &mut reader, driver)?;
    let stage = Stage {
        name: DeviceId::Cpu,
        target: part.place.target.clone(),
        home: KvHome::of(&part.place.target, &spec),
        layers: part.layers.clone(),
        stretch: opened.stretch,
        weight_bytes: reader.bytes() + opened.slot_bytes,
        host_bytes: opened.host_bytes,
    };
    let context_length = context(&spec, options.context_length);
    let limits = DecoderLimits {
        context_length,
        kv_blocks: usize::MAX,
        states: StateLimits::UNBOUNDED,
        workspace_bytes: 0,
        step_rows: 0,
        warnings: Vec::new(),
    };
    let ends = DecoderEnds { embedding, before: None, behind: None, norm, head };
    Ok(Sequences::over(Box::new(SpecDecoder::new(spec, files.clone(), limits, ends, vec![stage]))))
}

fn resident(model: &Path) -> Vec<Vec<u32>> {
    bits(&mut Sequences::over(load(model, &DeviceId::Cpu, Some(64), &mut |_| {}).unwrap()))
}

fn bits(decoder: &mut Sequences) -> Vec<Vec<u32>> {
    let slots = [decoder.open(32).unwrap(), decoder.open(32).unwrap()];
    let mut answers = Vec::new();
    for tokens in [[&[1u32, 2, 3, 4, 5][..], &[9][..]], [&[6], &[7]], [&[8], &[1]]] {
        let steps = [0, 1].map(|at| SequenceStep { kv: slots[at], tokens: tokens[at], logits: Logits::All });
        let rows = decoder.forward(&steps).unwrap();
        answers.extend(rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()));
    }
    slots.into_iter().for_each(|kv| decoder.close(kv));
    answers
}

fn synthetic(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("tiny.gguf");
    Synthetic::of("qwen3-tiny").unwrap().write(3, HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
    path
}

#[test]
fn rs_10_copied_into_slots_is_resident_to_the_bit() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folder = tempfile::tempdir().unwrap();
    let names = ["bf16", "f16", "qwen3-tied-bf16", "qwen2-sharded-f16", "plain", "biases"];
    for (at, model) in names.iter().map(|name| golden.join(name)).chain([synthetic(&folder)]).enumerate() {
        let expected = resident(&model);
        // Without a limit the host holds no layer. Further limits hold all layers, and as many as three buffers.
        for host in [None, Some(1 << 30)] {
            let driver = Arc::new(HostDriver::default());
            let mut comes = streamed(&model, None, &options(1 + at % 3, 1 + at % 2, host), &driver).unwrap();
            assert!(bits(&mut comes) == expected, "{} with {host:?}", model.display());
            let monitor = comes.monitor().unwrap();
            // Two layers fit in the buffers, which then hold them.
            let held = monitor.residency().store == "host memory";
            assert_eq!(held, host.is_some() || monitor.residency().blocks <= 2, "{}", monitor.residency().store);
            let (totals, layers) = (monitor.totals(), monitor.layers());
            assert_eq!((totals.steps, layers.len()), (3, monitor.residency().streamed_layers));
            assert!(layers.iter().all(|layer| layer.bytes > 0));
            // The disk is not read when all layers are held.
            assert_eq!(totals.read_seconds == 0.0, held, "{}", totals.read_seconds);
        }
    }
}

#[test]
fn rs_5_an_index_with_the_models_own_bytes_is_copied_from_and_one_for_cpus_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let expected = resident(&model);
    for (order, used) in [(IndexOrder::Rows, true), (IndexOrder::Machine, false), (IndexOrder::Rows, true)] {
        let index = write_layer_index(&model, order).unwrap();
        let arranged = std::fs::read_to_string(&index).unwrap().contains("tiles16");
        let mut comes = streamed(&model, None, &options(1, 1, None), &Arc::new(HostDriver::default())).unwrap();
        assert!(bits(&mut comes) == expected, "{order:?}");
        let store = comes.monitor().unwrap().residency().store.clone();
        assert_eq!(store.ends_with(", index"), used || !arranged, "{store}");
        assert_eq!(store.contains("this device wants rows"), arranged, "{store}");
    }
}

#[test]
fn host_memory_is_a_limit_and_what_it_holds_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let expected = resident(&model);
    let (mut partly, mut refused) = (0, 0);
    for host in (0..24).map(|part| part << 17) {
        match streamed(&model, None, &options(1, 1, Some(host)), &Arc::new(HostDriver::default())) {
            Ok(mut comes) => {
                assert!(bits(&mut comes) == expected, "{host}");
                let held = comes.places()[0].report().host_bytes;
                assert!(held <= host, "{held} of {host}");
                partly += usize::from(comes.monitor().unwrap().residency().store.contains(" of 4 blocks"));
            }
            Err(ModelError::Device(DecoderError::OutOfMemory(what))) => {
                assert!(what.contains("host memory") && what.contains(&ByteCount(host).to_string()), "{what}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(partly > 0 && refused > 0, "{partly} {refused}");
}

#[test]
fn slots_that_take_more_than_their_largest_block_still_fit_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let expected = resident(&model);
    let (mut mixed, mut refused) = (0, 0);
    for limit in (160..220).map(|quarters: u64| quarters << 18) {
        let options = DecoderLoadOptions {
            residency: ResidencyOptions { mode: ResidencyMode::Auto, window: Some(1), block: Some(1) },
            ..options(1, 1, None)
        };
        let driver = Arc::new(HostDriver::default());
        match streamed(&model, Some(limit), &options, &driver) {
            Ok(mut comes) => {
                assert!(bits(&mut comes) == expected);
                let plan = comes.monitor().unwrap().residency().clone();
                // The report equals the allocation: no memory of the measurements is left.
                assert_eq!(plan.slots as u64 * plan.slot_bytes, driver.allocated.load(Ordering::SeqCst));
                mixed += usize::from(plan.streamed_layers > 0 && plan.resident_layers > 0);
                assert!(comes.info().weight_bytes < limit);
            }
            Err(ModelError::Refused(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(mixed > 0 && refused > 0, "{mixed} {refused}");
}
