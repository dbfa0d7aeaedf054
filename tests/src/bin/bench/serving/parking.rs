//! A conversation that goes on after another model had the place of its own: the first token with parked prefixes, and
//! with everything computed again.

use model_boss_tests::Client;

use super::prompts::{KnownPrompt, first_of};
use crate::table::Table;

/// The servers that take turns: our own with parking, our own without, and a peer.
pub(crate) struct ParkingDoors {
    pub(crate) with: Client,
    pub(crate) without: Client,
    pub(crate) peer: Option<Client>,
}

/// One round, with a conversation that no earlier round had.
pub(crate) async fn round(doors: &ParkingDoors, (turn, next): (&str, &str), table: &mut Table) {
    let with = after_swap(doors.with, turn, next).await;
    let without = after_swap(doors.without, turn, next).await;
    let peer = match doors.peer {
        Some(peer) => Some(after_swap(peer, turn, next).await),
        None => None,
    };
    let figures = |of: fn(&Gone) -> f64| (of(&with), of(&without), peer.as_ref().map(of));
    let (parked, computed, theirs) = figures(|gone| gone.goes_on);
    table.add("A→B→A: request to the first token of the next turn, parked: ms", Some(parked), theirs);
    table.add("the same with everything computed again: ms", Some(computed), theirs);
    table.add("the first over the second", Some(parked / computed), None);
    let (parked, computed, theirs) = figures(|gone| gone.goes_on - gone.short);
    table.add("the same two without the load, as a prompt of one word takes it: parked, ms", Some(parked), theirs);
    table.add("computed again, ms", Some(computed), theirs);
    let (parked, computed, theirs) = figures(|gone| gone.leaves);
    table.add("A→B: request to the first token of B, A parks: ms", Some(parked), theirs);
    table.add("the same without parking: ms", Some(computed), theirs);
}

/// Milliseconds to first tokens.
struct Gone {
    /// Of the other model, for which the first one leaves.
    leaves: f64,
    /// Of the next turn.
    goes_on: f64,
    /// Of a prompt of one word after the same swap.
    short: f64,
}

async fn after_swap(door: Client, turn: &str, next: &str) -> Gone {
    first_of(door, "a", turn, KnownPrompt::Used).await;
    let leaves = first_of(door, "b", "hello", KnownPrompt::Used).await;
    let goes_on = first_of(door, "a", next, KnownPrompt::Used).await;
    first_of(door, "b", "hello", KnownPrompt::Used).await;
    let short = first_of(door, "a", "hello", KnownPrompt::Used).await;
    Gone { leaves, goes_on, short }
}
