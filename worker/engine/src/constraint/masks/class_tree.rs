//! The tokens of a vocabulary as a tree of classes of bytes, for patterns that treat all bytes of a class alike.

use std::ops::Range;

use llguidance::HashMap;

use super::text_kinds::{ByteClass, Character, TextKinds};
use super::tree::TokenTree;

/// The nodes of a [`TokenTree`] whose bytes have the same classes, as one node each. A tenth of the nodes or fewer are
/// left. Those below a node come right behind it, as there.
pub(super) struct ClassTree {
    nodes: Vec<ClassNode>,
    /// Tokens in the order of these nodes.
    tokens: Vec<u32>,
    /// The nodes of the tree of tokens, in the order of these nodes.
    members: Vec<u32>,
    /// The place of each node of the tree of tokens among the members.
    places: Vec<u32>,
}

/// Bytes of a class, behind those of the nodes above.
#[derive(Clone, Copy)]
pub(super) struct ClassNode {
    pub(super) class: ByteClass,
    /// Bytes of the longest text below this node. 255: at least as many.
    pub(super) height: u8,
    /// Bytes in front of this one.
    pub(super) depth: u16,
    /// The texts below this node.
    pub(super) texts: TextKinds,
    /// The first node behind all nodes below this one.
    end: u32,
    /// The place of the first token that ends here or below.
    tokens: u32,
    /// The place of the first member.
    members: u32,
}

impl ClassTree {
    /// The classes of a tree of tokens.
    pub(super) fn new(tree: &TokenTree) -> Self {
        let (classes, children) = classes_of(tree);
        let mut members = vec![Vec::new(); children.len()];
        for (at, class) in classes.iter().enumerate() {
            members[*class as usize].push(at as u32);
        }
        let mut made = Self { nodes: Vec::new(), tokens: Vec::new(), members: Vec::new(), places: vec![0; tree.len()] };
        let (mut left, mut path) = (children[0].clone(), Vec::<usize>::new());
        left.reverse();
        while let Some(class) = left.pop() {
            let Some(first) = members[class as usize].first().map(|at| tree.node(*at as usize)) else { continue };
            made.close(&mut path, usize::from(first.depth));
            path.push(made.nodes.len());
            let (byte, depth) = (first.byte, first.depth);
            let above = path.iter().rev().nth(1).map(|at| made.nodes[*at].texts);
            let above = above.unwrap_or(TextKinds::none(Some(Character::NONE)));
            let character =
                Some(above).filter(|texts| texts.are_known()).and_then(|texts| texts.character().with(byte));
            made.nodes.push(ClassNode {
                class: ByteClass::of(byte),
                height: 0,
                depth,
                texts: TextKinds::none(character),
                end: 0,
                tokens: made.tokens.len() as u32,
                members: made.members.len() as u32,
            });
            for at in &members[class as usize] {
                made.places[*at as usize] = made.members.len() as u32;
                made.members.push(*at);
                made.tokens.extend(tree.tokens(*at as usize..*at as usize + 1));
            }
            left.extend(children[class as usize].iter().rev());
        }
        made.close(&mut path, 0);
        made
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A node.
    pub(super) fn node(&self, at: usize) -> &ClassNode {
        &self.nodes[at]
    }

    /// The nodes of first bytes.
    pub(super) fn roots(&self) -> impl Iterator<Item = usize> + '_ {
        let known = |at: usize| Some(at).filter(|at| *at < self.nodes.len());
        std::iter::successors(known(0), move |at| known(self.below(*at).end))
    }

    /// A node, and all below it.
    pub(super) fn below(&self, at: usize) -> Range<usize> {
        at..self.nodes[at].end as usize
    }

    /// The tokens that end at these nodes.
    pub(super) fn tokens(&self, nodes: Range<usize>) -> &[u32] {
        let place = |at: usize| self.nodes.get(at).map_or(self.tokens.len(), |node| node.tokens as usize);
        &self.tokens[place(nodes.start)..place(nodes.end)]
    }

    /// The nodes of the tree of tokens that are one node here.
    pub(super) fn members(&self, at: usize) -> &[u32] {
        &self.members[self.places(at..at + 1)]
    }

    /// The places of members of these nodes.
    pub(super) fn places(&self, nodes: Range<usize>) -> Range<usize> {
        let place = |at: usize| self.nodes.get(at).map_or(self.members.len(), |node| node.members as usize);
        place(nodes.start)..place(nodes.end)
    }

    /// The place of a node of the tree of tokens.
    pub(super) fn place(&self, member: u32) -> usize {
        self.places[member as usize] as usize
    }

    /// Visits nodes in order. `enter` says of each whether those below it are visited too.
    pub(super) fn walk(&self, nodes: Range<usize>, mut enter: impl FnMut(usize, &ClassNode) -> bool) {
        let mut at = nodes.start;
        while at < nodes.end {
            let node = &self.nodes[at];
            at = if enter(at, node) { at + 1 } else { node.end as usize };
        }
    }

    /// Ends the nodes of a path behind its first ones: no more nodes come below them.
    fn close(&mut self, path: &mut Vec<usize>, kept: usize) {
        let end = self.nodes.len() as u32;
        while path.len() > kept
            && let Some(at) = path.pop()
        {
            self.nodes[at].end = end;
            let ClassNode { class, height, texts, .. } = self.nodes[at];
            if let Some(above) = path.last().map(|at| &mut self.nodes[*at]) {
                above.height = above.height.max(height.saturating_add(1));
                above.texts = class.bytes().first().map_or(above.texts, |byte| above.texts.or(*byte, texts));
            }
        }
    }
}

/// A number for the classes down to each node, and the numbers below each. The first one has the empty text.
fn classes_of(tree: &TokenTree) -> (Vec<u32>, Vec<Vec<u32>>) {
    let (mut known, mut classes) = (HashMap::<(u32, ByteClass), u32>::default(), vec![0; tree.len()]);
    let (mut children, mut path) = (vec![Vec::new()], vec![0_u32]);
    tree.walk(0..tree.len(), |at, node| {
        path.truncate(usize::from(node.depth) + 1);
        let above = path.last().copied().unwrap_or(0);
        let class = *known.entry((above, ByteClass::of(node.byte))).or_insert_with(|| {
            let class = children.len() as u32;
            children[above as usize].push(class);
            children.push(Vec::new());
            class
        });
        classes[at] = class;
        path.push(class);
        true
    });
    (classes, children)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_class_has_the_nodes_of_its_bytes_and_the_tokens_that_end_there(
            words in proptest::collection::vec("[ab\"\\\\1é日🦀 ]{0,5}", 1..40),
        ) {
            let words: Vec<Vec<u8>> = words.into_iter().map(String::into_bytes).collect();
            let tree = TokenTree::new(&words);
            let classes = ClassTree::new(&tree);
            let spelled = |word: &[u8]| word.iter().map(|byte| ByteClass::of(*byte)).collect::<Vec<_>>();
            let mut path = Vec::new();
            let (mut members, mut paths) = (BTreeSet::new(), BTreeSet::new());
            classes.walk(0..classes.len(), |at, node| {
                path.truncate(usize::from(node.depth));
                path.push(node.class);
                let numbers: Vec<usize> = path.iter().map(|class| class.number()).collect();
                assert!(paths.insert(numbers), "a class is one node");
                let tokens: BTreeSet<u32> = classes.tokens(at..at + 1).iter().copied().collect();
                let expected = (0..words.len() as u32).filter(|token| spelled(&words[*token as usize]) == path);
                assert_eq!(tokens, expected.collect());
                let longest = words.iter().filter(|word| spelled(word).starts_with(&path)).map(Vec::len).max();
                assert_eq!(Some(path.len() + usize::from(node.height)), longest);
                for member in classes.members(at) {
                    let member = *member as usize;
                    assert!(members.insert(member) && tree.node(member).depth == node.depth);
                    assert_eq!(ByteClass::of(tree.node(member).byte), node.class);
                    assert!(classes.places(at..at + 1).contains(&classes.place(member as u32)));
                    assert!(!node.texts.are_known() || tree.node(member).texts.character() == node.texts.character());
                }
                true
            });
            prop_assert_eq!(members.len(), tree.len());
        }
    }
}
