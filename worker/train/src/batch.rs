//! The way from the corpus to rows of tokens: the choice of questions and their wordings, and the packing of
//! conversations.

use crate::corpus::{Family, one_wording};
use crate::rng::Rng;
use crate::text::{GuideText, GuideTextError};

/// Rows of equal length to train on at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The tokens of all rows: `rows * time` of them.
    pub tokens: Vec<u32>,
    /// Tokens in a row.
    pub time: usize,
    /// The index in its row at which each token's conversation starts.
    pub starts: Vec<u32>,
    /// The tokens that the model has to predict.
    pub targets: Vec<TrainTarget>,
}

/// A token that the model has to predict. Only answers have targets: questions cannot be predicted and teach the
/// model nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainTarget {
    /// The index in [`Batch::tokens`] of the token before it, from which it is predicted.
    pub at: u32,
    /// The token that has to be predicted.
    pub token: u32,
    /// The weight of the token's loss.
    pub weight: f32,
}

/// The number of first tokens of an answer that have more weight: they select the answer, and the others follow from
/// them.
const CHOOSING_TOKENS: usize = 8;
const CHOOSING_WEIGHT: f32 = 4.0;

/// One question and its answer as tokens.
struct Turn {
    question: Vec<u32>,
    answer: Vec<u32>,
}

/// A source of batches that uses every family in every epoch, as many times as it has questions (within limits), in new
/// wordings each time.
pub struct Curriculum<'a> {
    families: &'a [Family],
    text: &'a GuideText,
    seed: u64,
}

impl<'a> Curriculum<'a> {
    /// A curriculum of these families; the same seed gives the same rows.
    pub fn new(families: &'a [Family], text: &'a GuideText, seed: u64) -> Self {
        Self { families, text, seed }
    }

    /// The batches of one epoch: `rows` rows of `time` tokens, each with as many conversations as fit.
    pub fn epoch(&self, epoch: u64, rows: usize, time: usize) -> Result<Vec<Batch>, GuideTextError> {
        let mut rng = Rng::new(self.seed, epoch + 1);
        let mut conversations = Vec::new();
        for family in self.families {
            let count = family.questions.len();
            let mut order: Vec<usize> = (0..count.max(LEAST_SHOWN)).map(|i| i % count).collect();
            rng.shuffle(&mut order);
            for &question in order.iter().take(MOST_SHOWN) {
                conversations.push(self.conversation(family, question, &mut rng)?);
            }
        }
        rng.shuffle(&mut conversations);
        Ok(pack(&conversations, rows, time, self.text.padding))
    }

    /// A question with its answer, sometimes after another exchange: the one that it belongs to, or a random one.
    fn conversation(&self, family: &Family, question: usize, rng: &mut Rng) -> Result<Vec<Turn>, GuideTextError> {
        let mut turns = Vec::with_capacity(2);
        let before = match &family.after {
            Some(name) => self.families.iter().find(|f| f.name == *name),
            None => rng.chance(CHANGED_SUBJECT).then(|| &self.families[rng.below(self.families.len())]),
        };
        if let Some(before) = before {
            let question = rng.below(before.questions.len());
            turns.push(self.turn(before, question, rng)?);
        }
        turns.push(self.turn(family, question, rng)?);
        Ok(turns)
    }

    fn turn(&self, family: &Family, question: usize, rng: &mut Rng) -> Result<Turn, GuideTextError> {
        let wording = disturbed(&one_wording(&family.questions[question], rng), rng);
        Ok(Turn { question: self.text.question(&wording)?, answer: self.text.answer(&family.answer)? })
    }
}

const LEAST_SHOWN: usize = 10;
const MOST_SHOWN: usize = 18;
/// The probability that a question follows an exchange about another subject.
const CHANGED_SUBJECT: f64 = 0.25;

const OPENINGS: [&str; 16] = [
    "hi,",
    "hello,",
    "hey,",
    "please,",
    "please tell me",
    "can you tell me",
    "quick question:",
    "i want to know",
    "tell me",
    "i wonder",
    "so",
    "ok,",
    "and",
    "sorry,",
    "good morning,",
    "could you explain",
];
const CLOSINGS: [&str; 8] =
    ["please", "thanks", "here", "exactly", "by default", "in model-boss", "with model-boss", "for me"];
const WEAK: [&str; 24] = [
    "the", "a", "an", "do", "does", "is", "are", "i", "my", "to", "of", "it", "can", "you", "in", "on", "for", "there",
    "that", "this", "me", "please", "with", "should",
];

/// A question as a hurried person might write it. It may have another opening or closing word, lack weak words, a
/// comma or the full stop, or contain a typing error.
fn disturbed(question: &str, rng: &mut Rng) -> String {
    let mut words: Vec<String> = question.split(' ').map(str::to_owned).collect();
    if words.len() > 3 && rng.chance(0.35) {
        words.retain(|word| !(WEAK.contains(&word.as_str()) && rng.chance(0.4)));
    }
    if words.len() > 4 && rng.chance(0.1) {
        words.remove(rng.below(words.len()));
    }
    if rng.chance(0.05) {
        slip(&mut words, rng);
    }
    if words.len() > 2 {
        if rng.chance(0.15) {
            words.insert(0, OPENINGS[rng.below(OPENINGS.len())].to_owned());
        }
        if rng.chance(0.08) {
            words.push(CLOSINGS[rng.below(CLOSINGS.len())].to_owned());
        }
    }
    let mut text = words.join(" ");
    if rng.chance(0.08) {
        text.push(if rng.chance(0.7) { '.' } else { '!' });
    }
    text
}

/// Exchanges two neighbouring letters of a long word.
fn slip(words: &mut [String], rng: &mut Rng) {
    let at = rng.below(words.len());
    let Some(word) = words.get_mut(at) else { return };
    if word.len() > 4 && word.bytes().all(|b| b.is_ascii_lowercase()) {
        let mut letters: Vec<char> = word.chars().collect();
        let first = 1 + rng.below(letters.len() - 2);
        letters.swap(first, first + 1);
        *word = letters.into_iter().collect();
    }
}

/// Packs conversations one after another into rows. One that does not fit into the rest of a row starts the next; one
/// longer than a row is cut.
fn pack(conversations: &[Vec<Turn>], rows: usize, time: usize, padding: u32) -> Vec<Batch> {
    let mut packed: Vec<Vec<&Vec<Turn>>> = Vec::new();
    let mut left = 0;
    for conversation in conversations {
        // The last token of a conversation is a target and no input.
        let length = conversation.iter().map(|turn| turn.question.len() + turn.answer.len()).sum::<usize>() - 1;
        match packed.last_mut() {
            Some(row) if length <= left => row.push(conversation),
            _ => {
                packed.push(vec![conversation]);
                left = time;
            }
        }
        left = left.saturating_sub(length);
    }
    packed.chunks(rows).map(|rows| lay(rows, time, padding)).collect()
}

fn lay(rows: &[Vec<&Vec<Turn>>], time: usize, padding: u32) -> Batch {
    let mut batch = Batch { tokens: Vec::new(), time, starts: Vec::new(), targets: Vec::new() };
    for (index, row) in rows.iter().enumerate() {
        let begin = index * time;
        for conversation in row {
            let start = batch.tokens.len() - begin;
            for Turn { question, answer } in *conversation {
                batch.tokens.extend(question);
                for (place, &token) in answer.iter().enumerate() {
                    let weight = if place < CHOOSING_TOKENS { CHOOSING_WEIGHT } else { 1.0 };
                    let at = batch.tokens.len() - 1;
                    if at < begin + time {
                        batch.targets.push(TrainTarget { at: at as u32, token, weight });
                    }
                    batch.tokens.push(token);
                }
            }
            batch.tokens.pop();
            batch.tokens.truncate(begin + time);
            batch.starts.resize(batch.tokens.len(), start as u32);
        }
        batch.tokens.resize(begin + time, padding);
        // Padding attends to itself, because a row of the softmax may not be empty.
        let filled = batch.starts.len() - begin;
        batch.starts.extend((filled..time).map(|at| at as u32));
    }
    batch
}

impl Batch {
    /// The sum of the targets' weights.
    pub fn weight(&self) -> f32 {
        self.targets.iter().map(|target| target.weight).sum()
    }

    /// The batch in `parts` of nearly equal numbers of rows, for parallel work.
    pub fn split(&self, parts: usize) -> Vec<Self> {
        let rows = self.tokens.len() / self.time;
        let cut = |part: usize| part * rows / parts;
        (0..parts)
            .map(|part| (cut(part) * self.time, cut(part + 1) * self.time))
            .filter(|(start, end)| start < end)
            .map(|(start, end)| {
                let here = self.targets.iter().filter(|target| (start..end).contains(&(target.at as usize)));
                Self {
                    tokens: self.tokens[start..end].to_vec(),
                    time: self.time,
                    starts: self.starts[start..end].to_vec(),
                    targets: here.map(|target| TrainTarget { at: target.at - start as u32, ..*target }).collect(),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(question: &[u32], answer: &[u32]) -> Turn {
        Turn { question: question.to_vec(), answer: answer.to_vec() }
    }

    #[test]
    fn only_answers_are_targets_and_each_is_foretold_by_the_token_before_it() {
        let conversations =
            [vec![turn(&[1, 2], &[3, 4])], vec![turn(&[5], &[6, 7]), turn(&[5], &[8])], vec![turn(&[9, 9, 9], &[10])]];
        let batches = pack(&conversations, 2, 7, 0);
        assert_eq!(batches.len(), 1);
        let batch = &batches[0];
        assert_eq!(batch.tokens, [1, 2, 3, 5, 6, 7, 5, 9, 9, 9, 0, 0, 0, 0]);
        assert_eq!(batch.starts, [0, 0, 0, 3, 3, 3, 3, 0, 0, 0, 3, 4, 5, 6]);
        let places: Vec<(u32, u32)> = batch.targets.iter().map(|t| (t.at, t.token)).collect();
        assert_eq!(places, [(1, 3), (2, 4), (3, 6), (4, 7), (6, 8), (9, 10)]);
        let halves = batch.split(2);
        assert_eq!(halves[1].targets.iter().map(|t| (t.at, t.token)).collect::<Vec<_>>(), [(2, 10)]);
        assert_eq!([halves[0].tokens.clone(), halves[1].tokens.clone()].concat(), batch.tokens);
        assert_eq!(halves[0].weight() + halves[1].weight(), batch.weight());
    }

    #[test]
    fn a_conversation_longer_than_a_row_is_cut() {
        let batches = pack(&[vec![turn(&[1, 2], &[3, 4, 5, 6, 7, 8])]], 1, 4, 0);
        assert_eq!(batches[0].tokens, [1, 2, 3, 4]);
        assert_eq!(batches[0].targets.len(), 3);
    }

    #[test]
    fn an_epoch_is_reproducible_and_the_next_one_differs() {
        let question = "{which|what} port does {it|the server} listen on".to_owned();
        let families =
            [Family { name: "port".into(), after: None, questions: vec![question], answer: "Port 8210.".into() }];
        let text = GuideText::train(&families, 400).unwrap();
        let epoch = |seed, number| Curriculum::new(&families, &text, seed).epoch(number, 4, 64).unwrap();
        assert_eq!(epoch(1, 0), epoch(1, 0));
        assert_ne!(epoch(1, 0), epoch(1, 1));
        assert_ne!(epoch(1, 0), epoch(2, 0));
    }
}
