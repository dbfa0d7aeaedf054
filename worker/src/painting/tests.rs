//! The order of requests for pictures, with a painter made of arithmetic.

use model_boss_engine::{Activity, DecoderError, EngineError, Histograms};
use model_boss_protocol::Priority;

use super::desk::PaintingDesk;
use super::fake_painter::{FakePainter, picture_request};
use super::*;

struct DeskRig {
    painter: FakePainter,
    activity: Activity,
    jobs: mpsc::Sender<PaintJob>,
}

type Events = mpsc::UnboundedReceiver<PaintEvent>;

impl DeskRig {
    fn new() -> (Self, mpsc::Receiver<PaintJob>) {
        let (jobs, inbox) = mpsc::channel(64);
        (Self { painter: FakePainter::new(), activity: Activity::new(Histograms::default()), jobs }, inbox)
    }

    /// A request for so many batches of two pictures, each of so many steps.
    fn ask(&self, priority: u8, batches: u64, steps: usize) -> Events {
        let (events, reader) = mpsc::unbounded_channel();
        let batch = |number: u64| {
            let mut request = picture_request([16, 8], steps);
            request.seeds = vec![10 * number, 10 * number + 1];
            request
        };
        let batches = (0..batches).map(batch).collect();
        let job = PaintJob { batches, previews: 1, priority: Priority::new(priority).unwrap(), events };
        assert!(self.jobs.try_send(job).is_ok());
        reader
    }

    /// A turn of the desk. Returns whether there was one.
    fn turn<'a>(&'a self, desk: &mut PaintingDesk<'a>) -> Result<(), EngineError> {
        let mut turn = desk.next(&self.activity).unwrap();
        let done = turn.advance(&self.painter);
        desk.finish(turn, done, &self.activity)
    }
}

fn told(events: &mut Events) -> Vec<String> {
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(match event {
            PaintEvent::Step(progress) => format!("{}/{}", progress.step, progress.steps),
            PaintEvent::Preview { show, first, pictures } => format!("show {show} of {first}+{}", pictures.len()),
            PaintEvent::Done(done) => format!("{} pictures in {} steps", done.pictures.len(), done.times.steps),
            PaintEvent::Failed(failure) => failure.to_string(),
        });
    }
    told
}

#[test]
fn rc_25_batches_of_a_request_are_painted_one_after_the_other_with_all_their_steps_counted() {
    let (rig, inbox) = DeskRig::new();
    let mut desk = PaintingDesk::new(inbox);
    let mut events = rig.ask(5, 2, 2);
    for _ in 0..6 {
        rig.turn(&mut desk).unwrap();
    }
    let expected =
        ["show 0 of 0+2", "1/4", "2/4", "show 0 of 2+2", "3/4", "4 pictures in 4 steps"].map(str::to_owned).to_vec();
    assert_eq!(told(&mut events), expected);
    assert!(events.is_closed() || events.is_empty());
}

#[test]
fn rc_25_a_more_important_request_is_painted_between_two_steps_and_nobody_waits_for_ever() {
    let (rig, inbox) = DeskRig::new();
    let mut desk = PaintingDesk::new(inbox);
    let mut low = rig.ask(8, 1, 3);
    rig.turn(&mut desk).unwrap();
    rig.turn(&mut desk).unwrap();
    assert_eq!(told(&mut low), ["1/3"]);
    let (mut first, mut second) = (rig.ask(2, 1, 2), rig.ask(2, 1, 2));
    for _ in 0..3 {
        rig.turn(&mut desk).unwrap();
    }
    assert_eq!(told(&mut first).last().unwrap(), "2 pictures in 2 steps");
    assert!(told(&mut second).is_empty() && told(&mut low).is_empty(), "equals in the order of their arrival");
    assert_eq!((rig.activity.stats().active, rig.activity.stats().waiting), (2, 1));
    // Long ones of more importance pass the low one by for a time only.
    let mut long = rig.ask(1, 1, 500);
    for _ in 0..40 {
        rig.turn(&mut desk).unwrap();
    }
    assert_eq!(told(&mut low), ["show 0 of 0+2", "2/3"]);
    assert!(told(&mut long).len() > 30);
}

#[test]
fn rc_25_a_client_that_leaves_ends_its_work_before_the_next_step() {
    let (rig, inbox) = DeskRig::new();
    let mut desk = PaintingDesk::new(inbox);
    let (gone, mut stays) = (rig.ask(2, 1, 50), rig.ask(5, 1, 1));
    rig.turn(&mut desk).unwrap();
    rig.turn(&mut desk).unwrap();
    drop(gone);
    rig.turn(&mut desk).unwrap();
    rig.turn(&mut desk).unwrap();
    assert_eq!(told(&mut stays), ["2 pictures in 1 steps"]);
}

#[test]
fn rc_25_a_failed_step_ends_its_request_and_a_lost_device_the_engine() {
    let (rig, inbox) = DeskRig::new();
    let mut desk = PaintingDesk::new(inbox);
    let mut refused = rig.ask(5, 1, 0);
    rig.turn(&mut desk).unwrap();
    assert_eq!(told(&mut refused), ["0 steps cannot be made"]);
    rig.painter.control().fail_after(0, DecoderError::OutOfMemory("it is full".to_owned()));
    let mut full = rig.ask(5, 1, 4);
    rig.turn(&mut desk).unwrap();
    rig.turn(&mut desk).unwrap();
    assert_eq!(told(&mut full), ["there is no memory for this: it is full"]);
    rig.painter.control().fail_after(0, DecoderError::Fatal("it is gone".to_owned()));
    let _lost = rig.ask(5, 1, 4);
    rig.turn(&mut desk).unwrap();
    assert!(matches!(rig.turn(&mut desk), Err(EngineError::DeviceLost(why)) if why == "it is gone"));
}

#[test]
fn rc_25_pictures_are_painted_together_as_the_lease_has_room_for_them() {
    let painter = FakePainter::new();
    let side = |leased: Option<u64>| {
        let leased = leased.map(model_boss_protocol::ByteCount);
        PaintingSide::new(&painter, leased, mpsc::channel(1).0)
    };
    let (info, usual) = (painter.info(), painter.info().usual_size);
    let of_usual = (usual[0] * usual[1]) as u64 * info.bytes_per_pixel;
    assert_eq!(side(Some(0)).device_use().1, of_usual, "the usual size is always painted");
    assert_eq!(side(Some(0)).at_once(usual).unwrap(), 4);
    let twice = side(Some(info.weight_bytes + 2 * of_usual));
    assert_eq!((twice.at_once(usual).unwrap(), twice.at_once([2 * usual[0], usual[1]]).unwrap()), (8, 4));
    let refused = twice.at_once([4 * usual[0], usual[1]]).unwrap_err();
    assert!(refused.param.as_deref() == Some("size") && refused.message.contains("vram"), "{refused:?}");
    assert!(side(None).at_once([info.longest_side; 2]).is_ok());
}
