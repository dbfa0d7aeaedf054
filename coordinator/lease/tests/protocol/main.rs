//! Tests of the whole protocol: random histories, seeded bugs, and a model checker, all over one small world.

mod histories;
mod model;
mod seeded_bugs;
mod world;
