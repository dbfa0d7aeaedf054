use super::*;
use crate::fake::{FakeDecoder, Script};

/// The model after a draft that came whole, of which the engine kept so many tokens. A step of the first model takes a
/// second.
fn after(kept: Option<usize>) -> DraftModel {
    let mut model = DraftModel::new(Box::new(FakeDecoder::new(Script::Hash(200), 200)), 262, 4_000).unwrap();
    let mut cost = RowCost::default();
    cost.stepped(1, 1.0);
    model.stepped(1.0, cost);
    let ahead = StepAhead { rows: 1, sequences: 1, cost };
    let id = SequenceId(1);
    let mut tokens = vec![1, 2, 3];
    let wish = DraftWish { id, salt: None, tokens: &tokens, most: 4, is_greedy: true };
    let draft = model.write(&[wish], ahead, true, &|| false).unwrap().pop().unwrap();
    assert_eq!(draft.tokens.len(), 4);
    if let Some(kept) = kept {
        model.kept(id, kept);
    }
    tokens.extend(&draft.tokens);
    tokens.push(9);
    let wish = DraftWish { id, salt: None, tokens: &tokens, most: 0, is_greedy: true };
    model.write(&[wish], ahead, true, &|| false).unwrap();
    model
}

#[test]
fn en_8_only_tokens_of_its_own_drafts_that_were_evaluated_save_time() {
    assert!(after(Some(4)).balance.allows(6.0), "four steps of the first model");
    assert!(!after(Some(1)).balance.allows(6.0));
    // The engine took a draft that was looked up, or none.
    assert!(!after(None).balance.allows(4.5));
}

#[test]
fn en_8_each_kind_of_sequence_begins_as_the_last_ones_of_its_kind() {
    let model = after(Some(4));
    let chance = |is_greedy: bool| {
        let wish = DraftWish { id: SequenceId(2), salt: None, tokens: &[1, 2], most: 4, is_greedy };
        model.chance(&wish).chance
    };
    assert!(chance(true) > FIRST_CHANCE, "its first draft was right");
    assert!((chance(false) - FIRST_CHANCE).abs() < 1e-9, "nothing was drawn yet");
}
