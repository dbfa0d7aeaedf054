//! The order in which a batch's lines are sent: those of one model follow each other, so that models are not swapped to
//! and fro. Lines whose model answers nothing for long do not keep those of other models.

use std::collections::{HashMap, VecDeque};

/// The lines of a batch that were not sent, and the places of those that were.
#[derive(Debug)]
pub struct LineOrder {
    /// The lines of each model, the one whose turn it is first. Those that were sent are not among them.
    models: VecDeque<(u16, VecDeque<u32>)>,
    /// Lines of each model that were sent and not answered.
    sent: HashMap<u16, usize>,
    places: usize,
}

impl LineOrder {
    /// Lines with the number of their model, in their order, and the most lines that are sent and not answered.
    pub fn new(lines: impl IntoIterator<Item = (u32, u16)>, places: usize) -> Self {
        let mut models: VecDeque<(u16, VecDeque<u32>)> = VecDeque::new();
        for (line, model) in lines {
            match models.back_mut().filter(|(last, _)| *last == model) {
                Some((_, lines)) => lines.push_back(line),
                None => models.push_back((model, VecDeque::from([line]))),
            }
        }
        Self { models, sent: HashMap::new(), places: places.max(1) }
    }

    /// Whether a line may be sent now.
    pub fn may_send(&self) -> bool {
        let Some((model, lines)) = self.models.front() else { return false };
        let (own, all) = (self.sent_of(*model), self.sent.values().sum::<usize>());
        // Of the places that others leave, half are kept for models whose turn comes.
        let left = self.places.saturating_sub(all.saturating_sub(own));
        let most = if self.models.len() > 1 { left.div_ceil(2) } else { left };
        !lines.is_empty() && own < most
    }

    /// The next line, which is sent.
    pub fn send(&mut self) -> Option<u32> {
        if !self.may_send() {
            return None;
        }
        let (model, lines) = self.models.front_mut()?;
        let line = lines.pop_front()?;
        *self.sent.entry(*model).or_default() += 1;
        Some(line)
    }

    /// A line of this model was answered.
    pub fn answered(&mut self, model: u16) {
        if let Some(sent) = self.sent.get_mut(&model) {
            *sent = sent.saturating_sub(1);
        }
        self.models.retain(|(model, lines)| !lines.is_empty() || self.sent.get(model).is_some_and(|sent| *sent > 0));
    }

    /// Gives the turn to the next model, since nothing was answered for long. Returns whether there is one.
    pub fn pass_on(&mut self) -> bool {
        let others = self.models.len() > 1;
        if others {
            self.models.rotate_left(1);
        }
        others
    }

    /// Whether there are lines that were not sent.
    pub fn has_more(&self) -> bool {
        self.models.iter().any(|(_, lines)| !lines.is_empty())
    }

    fn sent_of(&self, model: u16) -> usize {
        self.sent.get(&model).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(order: &mut LineOrder) -> Vec<u32> {
        std::iter::from_fn(|| order.send()).collect()
    }

    #[test]
    fn rc_26_lines_of_one_model_follow_each_other() {
        let mut order = LineOrder::new([(0, 7), (2, 7), (4, 7), (1, 8), (3, 8)], 4);
        assert_eq!(sent(&mut order), [0, 2], "half of the places are kept");
        order.answered(7);
        assert_eq!(sent(&mut order), [4]);
        order.answered(7);
        assert_eq!(sent(&mut order), [] as [u32; 0], "the other model's lines wait for the last one");
        order.answered(7);
        assert_eq!(sent(&mut order), [1, 3]);
        assert!(!order.has_more());
        let mut alone = LineOrder::new((0..9).map(|line| (line, 1)), 4);
        assert_eq!(sent(&mut alone).len(), 4, "one model has all places");
        assert!(!alone.pass_on());
    }

    #[test]
    fn rc_26_a_model_that_answers_nothing_does_not_keep_the_lines_of_others() {
        let mut order = LineOrder::new((0..20).map(|line| (line, u16::from(line >= 10) + u16::from(line >= 15))), 8);
        assert_eq!(sent(&mut order), [0, 1, 2, 3]);
        assert!(order.pass_on());
        assert_eq!(sent(&mut order), [10, 11]);
        for line in [12, 13, 14] {
            order.answered(1);
            assert_eq!(sent(&mut order), [line]);
        }
        order.answered(1);
        order.answered(1);
        assert_eq!(sent(&mut order), [15, 16], "the third model's turn");
        let mut rest = Vec::new();
        for _ in 0..5 {
            order.answered(2);
            rest.extend(sent(&mut order));
        }
        assert_eq!(rest, [17, 18, 19, 4, 5, 6, 7], "the first one's again, with all places");
    }
}
