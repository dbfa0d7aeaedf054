//! The modules of each crate and the references between them, read from the source text.
//!
//! A file is a node. An arrow leads from the file that names an item to the file that defines it, through re-exports.
//! Test modules are left out. Calls of methods make no arrow: only paths do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// A path of names as the code has it, e.g. `crate::queue::Line`.
type Names = Vec<String>;

/// One module: its items, its imports, and the paths in its code.
#[derive(Debug, Default)]
struct Module {
    /// The file that contains the module.
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// Imported names, and the paths that they refer to.
    imports: BTreeMap<String, Names>,
    globs: Vec<Names>,
    named: BTreeSet<Names>,
}

/// The modules of one crate. The first is its root.
#[derive(Debug, Default)]
pub(super) struct Crate {
    modules: Vec<Module>,
}

impl Crate {
    /// Reads a crate from the file of its root.
    pub(super) fn read(root: &Path) -> Self {
        let mut all = Self::default();
        all.file(root, root.parent().unwrap(), None);
        all
    }

    /// Reads a file whose child modules are in `folder`.
    fn file(&mut self, file: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.module(&parsed.items, file, folder, parent)
    }

    fn module(&mut self, items: &[Item], file: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let number = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            if let Item::Mod(child) = item {
                let name = child.ident.to_string();
                let inner = folder.join(&name);
                let read = match &child.content {
                    Some((_, items)) => self.module(items, file, &inner, Some(number)),
                    None => {
                        let flat = folder.join(format!("{name}.rs"));
                        let file = if flat.is_file() { flat } else { inner.join("mod.rs") };
                        self.file(&file, &inner, Some(number))
                    }
                };
                self.modules[number].children.insert(name, read);
            } else {
                self.modules[number].take(item);
            }
        }
        number
    }

    /// The file that defines the target of `path` in `module`. Returns `None` for an item of another crate.
    fn place(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        // Imports that lead back to themselves are those of other crates.
        if depth > 16 {
            return None;
        }
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => self.modules[module].parent?,
            _ => return self.look(module, first, rest, depth),
        };
        while let Some((next, after)) = rest.split_first() {
            if next == "super" {
                at = self.modules[at].parent?;
            } else if next != "self" {
                return self.look(at, next, after, depth);
            }
            rest = after;
        }
        Some(at)
    }

    /// The file of a name in a module and of the names after it.
    fn look(&self, module: usize, name: &str, rest: &[String], depth: usize) -> Option<usize> {
        let here = &self.modules[module];
        if let Some(child) = here.children.get(name) {
            return match rest.split_first() {
                Some((next, after)) => self.look(*child, next, after, depth),
                None => Some(*child),
            };
        }
        if here.items.contains(name) {
            return Some(module);
        }
        if let Some(import) = here.imports.get(name) {
            let whole: Names = import.iter().chain(rest).cloned().collect();
            return self.place(module, &whole, depth + 1);
        }
        here.globs.iter().find_map(|glob| {
            let from = self.place(module, glob, depth + 1)?;
            (from != module).then(|| self.look(from, name, rest, depth + 1)).flatten()
        })
    }

    /// The files that name items of each other file, with the names.
    pub(super) fn arrows(&self) -> BTreeMap<(PathBuf, PathBuf), BTreeSet<String>> {
        let mut arrows: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for (number, module) in self.modules.iter().enumerate() {
            for path in module.imports.values().chain(&module.named).chain(&module.globs) {
                if let Some(target) = self.place(number, path, 0) {
                    let (from, to) = (&module.file, &self.modules[target].file);
                    if from != to {
                        arrows.entry((from.clone(), to.clone())).or_default().insert(path.last().unwrap().clone());
                    }
                }
            }
        }
        arrows
    }
}

impl Module {
    fn take(&mut self, item: &Item) {
        if let Item::Use(import) = item {
            self.import(&import.tree, &mut Vec::new());
            return;
        }
        if let Some(name) = name_of(item) {
            self.items.insert(name);
        }
        Paths(&mut *self).visit_item(item);
    }

    fn import(&mut self, tree: &UseTree, before: &mut Names) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before);
                }
            }
            UseTree::Glob(_) => self.globs.push(before.clone()),
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                let whole: Names = before.iter().cloned().chain((name != "self").then(|| name.clone())).collect();
                let known = whole.last().cloned().unwrap_or(name);
                self.bind(known, whole);
            }
            UseTree::Rename(rename) => {
                let name = rename.ident.to_string();
                let whole: Names = before.iter().cloned().chain((name != "self").then_some(name)).collect();
                self.bind(rename.rename.to_string(), whole);
            }
        }
    }

    /// Records an import; `use name;` of another crate adds no information to the paths that use it.
    fn bind(&mut self, known: String, path: Names) {
        if path.len() > 1 {
            if known == "_" {
                self.named.insert(path);
            } else {
                self.imports.insert(known, path);
            }
        }
    }

    /// Collects paths in the arguments of a macro, whose syntax is its own.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 || path.is_empty() => {
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Ident(name) => {
                    self.name(std::mem::replace(&mut path, vec![name.to_string()]));
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                _ => {}
            }
            self.name(std::mem::take(&mut path));
            colons = 0;
        }
        self.name(path);
    }

    fn name(&mut self, path: Names) {
        // A single word is `pub(crate)`, or a name that an import or this file explains.
        if path.len() > 1 || path.first().is_some_and(|first| !["crate", "self", "super"].contains(&first.as_str())) {
            self.named.insert(path);
        }
    }
}

/// Collects the paths of code.
struct Paths<'a>(&'a mut Module);

impl<'code> Visit<'code> for Paths<'_> {
    fn visit_path(&mut self, path: &'code syn::Path) {
        self.0.name(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'code syn::Macro) {
        self.visit_path(&called.path);
        self.0.tokens(called.tokens.clone());
    }

    fn visit_item_use(&mut self, import: &'code syn::ItemUse) {
        self.0.import(&import.tree, &mut Vec::new());
    }

    fn visit_visibility(&mut self, _: &'code Visibility) {}

    fn visit_attribute(&mut self, attribute: &'code Attribute) {
        // Derives and doc comments name no item of this crate; `serde(with = "crate::x")` does.
        if let syn::Meta::List(list) = &attribute.meta {
            for token in list.tokens.clone() {
                if let TokenTree::Literal(text) = token
                    && let Some(path) = text.to_string().trim_matches('"').strip_prefix("crate::")
                {
                    self.0.name(std::iter::once("crate").chain(path.split("::")).map(str::to_owned).collect());
                }
            }
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let words: Vec<String> = words(list.tokens.clone());
            words.iter().any(|word| word == "test") && !words.iter().any(|word| word == "not")
        }
        _ => false,
    })
}

fn words(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(name) => vec![name.to_string()],
            TokenTree::Group(group) => words(group.stream()),
            _ => Vec::new(),
        })
        .collect()
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Groups of at least two nodes that reach each other.
pub(super) fn circles<T: Ord + Clone>(arrows: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
    let reached = |from: &T| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(at) = next.pop() {
            let targets = arrows.iter().filter(|(from, _)| *from == at).map(|(_, to)| to.clone());
            next.extend(targets.filter(|to| seen.insert(to.clone())));
        }
        seen
    };
    let reach: BTreeMap<T, BTreeSet<T>> = arrows.iter().map(|(from, _)| (from.clone(), reached(from))).collect();
    let mut found: Vec<BTreeSet<T>> = Vec::new();
    for (node, seen) in &reach {
        if seen.contains(node) && !found.iter().any(|circle| circle.contains(node)) {
            let back = |other: &&T| reach.get(*other).is_some_and(|seen| seen.contains(node));
            found.push(seen.iter().filter(back).cloned().collect());
        }
    }
    found
}

#[test]
fn circles_are_found_and_chains_are_none() {
    let arrows = |pairs: &[(u8, u8)]| circles(&pairs.iter().copied().collect());
    assert!(arrows(&[(1, 2), (2, 3), (1, 3)]).is_empty());
    assert_eq!(arrows(&[(1, 2), (2, 3), (3, 2), (3, 4)]), [BTreeSet::from([2, 3])]);
    assert_eq!(arrows(&[(1, 2), (2, 1), (3, 4), (4, 3)]).len(), 2);
}

#[test]
fn an_arrow_goes_to_the_file_that_defines_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod tests;\npub use b::Deep;\npub(crate) struct Own;\n");
    write("a.rs", "use std::fmt::Debug;\nuse crate::Deep;\nfn f(_: &dyn Debug) -> Deep { Deep }\n");
    write("b/mod.rs", "mod c;\nmod d;\npub use c::Deep;\n");
    write("b/c.rs", "pub struct Deep;\n#[cfg(test)]\nmod tests { use crate::a; }\n");
    write("b/d.rs", "fn g() { println!(\"{}\", super::c::Deep::X, crate::Own); }\n");
    let (root, name) = (folder.path().join("lib.rs"), |path: &Path| path.strip_prefix(&folder).unwrap().to_owned());
    let arrows = Crate::read(&root).arrows();
    let arrows: Vec<_> = arrows.keys().map(|(from, to)| (name(from), name(to))).collect();
    let expected =
        [("a.rs", "b/c.rs"), ("b/d.rs", "b/c.rs"), ("b/d.rs", "lib.rs"), ("b/mod.rs", "b/c.rs"), ("lib.rs", "b/c.rs")];
    assert_eq!(arrows, expected.map(|(from, to)| (PathBuf::from(from), PathBuf::from(to))));
}
