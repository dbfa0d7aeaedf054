//! Statements: the words of a template become a tree, by Jinja2's grammar. Expressions are in `grammar`.

use std::sync::Arc;

use super::lexer::{Word, WordKind};
use super::syntax_error::SyntaxError;
use super::tree::{
    AssignTarget, ExpressionKind, For, MacroSource, Statement, TemplateBlock, TemplateFrame, TreeExpression,
};

/// The most brackets, signs and tags inside of one another. Jinja2 itself fails at some hundred.
const DEEPEST: usize = 100;

/// The tree of a template's words.
pub(super) fn parse(tokens: Vec<Word>) -> Result<Vec<Statement>, SyntaxError> {
    let mut parser = Parser { tokens, at: 0, depth: 0, blocks: Vec::new() };
    parser.statements(&[])
}

/// The words, and the place of the next one.
pub(super) struct Parser {
    tokens: Vec<Word>,
    at: usize,
    depth: usize,
    /// The names of the blocks so far.
    blocks: Vec<String>,
}

/// The result of reading a part of a template.
pub(super) type ParseResult<T> = Result<T, SyntaxError>;

impl Parser {
    pub(super) fn kind(&self) -> &WordKind {
        self.ahead(0)
    }

    /// The word that comes after so many others. The last word is the end, which nothing passes.
    pub(super) fn ahead(&self, count: usize) -> &WordKind {
        self.tokens.get(self.at + count).map_or(&WordKind::End, |token| &token.kind)
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    pub(super) fn next(&mut self) -> WordKind {
        let kind = self.kind().clone();
        self.at += 1;
        kind
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> ParseResult<T> {
        Err(SyntaxError::Unreadable { line: self.line(), message: message.into() })
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        matches!(self.kind(), WordKind::Sign(found) if *found == sign)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.kind(), WordKind::Name(found) if found == name)
    }

    pub(super) fn skip_sign(&mut self, sign: &str) -> bool {
        let found = self.is_sign(sign);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_sign(&mut self, sign: &str) -> ParseResult<()> {
        if self.skip_sign(sign) {
            Ok(())
        } else {
            self.fail(format!("expected '{sign}', got {}", described(self.kind())))
        }
    }

    pub(super) fn expect_word(&mut self, name: &str) -> ParseResult<()> {
        if self.skip_name(name) {
            Ok(())
        } else {
            self.fail(format!("expected '{name}', got {}", described(self.kind())))
        }
    }

    pub(super) fn expect_name(&mut self) -> ParseResult<String> {
        match self.kind().clone() {
            WordKind::Name(name) => {
                self.at += 1;
                Ok(name)
            }
            other => self.fail(format!("expected a name, got {}", described(&other))),
        }
    }

    fn require(&mut self, kind: &WordKind) -> ParseResult<()> {
        if self.kind() != kind {
            return self.fail(format!("expected {}, got {}", described(kind), described(self.kind())));
        }
        self.at += 1;
        Ok(())
    }

    /// Reads something that may hold more of its kind.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(SyntaxError::Depth(self.line()));
        }
        let made = read(self);
        self.depth -= 1;
        made
    }

    /// Statements up to a tag with one of these names, whose name is the next word. Without names, up to the end.
    fn statements(&mut self, ends: &[&str]) -> ParseResult<Vec<Statement>> {
        let mut body = Vec::new();
        loop {
            match self.next() {
                WordKind::Data(text) => body.push(Statement::Raw(text.into())),
                WordKind::VariableBegin => {
                    body.push(Statement::Emit(self.tuple(true)?));
                    self.require(&WordKind::VariableEnd)?;
                }
                WordKind::BlockBegin => {
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    self.deeper(|parser| parser.statement(&mut body))?;
                    self.require(&WordKind::BlockEnd)?;
                }
                WordKind::End if ends.is_empty() => return Ok(body),
                WordKind::End => {
                    return self.fail(format!("Unexpected end of template: '{}' is missing", ends.join("' or '")));
                }
                other => return self.fail(format!("unexpected {}", described(&other))),
            }
        }
    }

    /// The statements behind a tag, up to another one, whose name is the next word.
    fn body(&mut self, ends: &[&str]) -> ParseResult<Vec<Statement>> {
        // As in Python, a colon may be there.
        self.skip_sign(":");
        self.require(&WordKind::BlockEnd)?;
        self.statements(ends)
    }

    /// A body with names of its own, up to a tag that is passed.
    fn frame(&mut self, end: &str) -> ParseResult<TemplateFrame> {
        let body = self.body(&[end])?;
        self.at += 1;
        Ok(TemplateFrame::new(body))
    }

    fn statement(&mut self, body: &mut Vec<Statement>) -> ParseResult<()> {
        let line = self.line();
        let WordKind::Name(tag) = self.next() else { return self.fail("tag name expected") };
        body.push(match tag.as_str() {
            "for" => self.for_loop()?,
            "if" => self.condition()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => {
                let name = self.assigned_name()?;
                Statement::Macro(Arc::new(self.macro_source(&name, "endmacro")?))
            }
            "call" => self.call()?,
            "filter" => {
                let filter = self.filters(None, true)?;
                Statement::Filtered { filter, frame: self.frame("endfilter")? }
            }
            "block" => self.block()?,
            "autoescape" => {
                let enabled = self.expression()?;
                Statement::AutoEscape(enabled, self.frame("endautoescape")?)
            }
            "generation" => {
                let frame = self.frame("endgeneration")?;
                Statement::Generation(Arc::new(MacroSource::new("caller", Vec::new(), frame)))
            }
            "print" => {
                let mut is_first = true;
                while *self.kind() != WordKind::BlockEnd {
                    if !std::mem::take(&mut is_first) {
                        self.expect_sign(",")?;
                    }
                    body.push(Statement::Emit(self.expression()?));
                }
                return Ok(());
            }
            "break" => Statement::Break(line),
            "continue" => Statement::Continue(line),
            "extends" => {
                self.expression()?;
                Statement::Extends(line)
            }
            "include" | "import" | "from" => {
                self.foreign(&tag)?;
                Statement::Refused("no loader for this environment specified")
            }
            _ => return Err(SyntaxError::Unknown { line, what: "tag", name: tag }),
        });
        Ok(())
    }

    fn for_loop(&mut self) -> ParseResult<Statement> {
        let target = self.target(false)?;
        self.expect_word("in")?;
        let over = self.tuple(false)?;
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let is_recursive = self.skip_name("recursive");
        let body = TemplateFrame::new(self.body(&["endfor", "else"])?);
        let otherwise = if self.is_name("else") {
            self.at += 1;
            self.frame("endfor")?
        } else {
            self.at += 1;
            TemplateFrame::default()
        };
        Ok(Statement::For(Arc::new(For { target, over, filter, is_recursive, body, otherwise })))
    }

    fn condition(&mut self) -> ParseResult<Statement> {
        let (mut branches, mut otherwise) = (Vec::new(), Vec::new());
        loop {
            let test = self.tuple(false)?;
            branches.push((test, self.body(&["elif", "else", "endif"])?));
            match self.next() {
                WordKind::Name(name) if name == "elif" => {}
                WordKind::Name(name) if name == "else" => {
                    otherwise = self.body(&["endif"])?;
                    self.at += 1;
                    break;
                }
                _ => break,
            }
        }
        Ok(Statement::If { branches, otherwise })
    }

    fn set(&mut self) -> ParseResult<Statement> {
        let target = self.target(true)?;
        if self.skip_sign("=") {
            return Ok(Statement::Set(target, self.tuple(true)?));
        }
        let filter = if self.is_sign("|") { Some(self.filters(None, false)?) } else { None };
        Ok(Statement::Capture { target, filter, frame: self.frame("endset")? })
    }

    fn with(&mut self) -> ParseResult<Statement> {
        let mut assignments = Vec::new();
        while *self.kind() != WordKind::BlockEnd {
            if !assignments.is_empty() {
                self.expect_sign(",")?;
            }
            let target = self.target(false)?;
            self.expect_sign("=")?;
            assignments.push((target, self.expression()?));
        }
        Ok(Statement::With { assignments, frame: self.frame("endwith")? })
    }

    fn call(&mut self) -> ParseResult<Statement> {
        let parameters = if self.is_sign("(") { self.signature()? } else { Vec::new() };
        let TreeExpression { line, kind } = self.expression()?;
        let ExpressionKind::Call { callee, arguments } = kind else {
            return Err(SyntaxError::Unreadable { line, message: "expected call".to_owned() });
        };
        let caller = MacroSource::new("caller", parameters, self.frame("endcall")?);
        Ok(Statement::Call { callee: *callee, arguments, caller: Arc::new(caller) })
    }

    fn block(&mut self) -> ParseResult<Statement> {
        let name = self.expect_name()?;
        if self.blocks.contains(&name) {
            return self.fail(format!("block '{name}' defined twice"));
        }
        self.blocks.push(name.clone());
        let is_scoped = self.skip_name("scoped");
        let is_required = self.skip_name("required");
        let frame = self.frame("endblock")?;
        let is_blank = |statement: &Statement| match statement {
            Statement::Raw(text) => text.trim().is_empty(),
            _ => false,
        };
        if is_required && !frame.body.iter().all(is_blank) {
            return self.fail("Required blocks can only contain comments or whitespace");
        }
        self.skip_name(&name);
        Ok(Statement::Block(Arc::new(TemplateBlock { name: name.as_str().into(), is_scoped, is_required, frame })))
    }

    fn macro_source(&mut self, name: &str, end: &str) -> ParseResult<MacroSource> {
        let parameters = self.signature()?;
        Ok(MacroSource::new(name, parameters, self.frame(end)?))
    }

    fn signature(&mut self) -> ParseResult<Vec<(Arc<str>, Option<TreeExpression>)>> {
        let mut parameters: Vec<(Arc<str>, Option<TreeExpression>)> = Vec::new();
        self.expect_sign("(")?;
        while !self.is_sign(")") {
            if !parameters.is_empty() {
                self.expect_sign(",")?;
            }
            let name = self.assigned_name()?;
            if parameters.iter().any(|(known, _)| known.as_ref() == name) {
                return self.fail(format!("duplicate argument '{name}'"));
            }
            let default = if self.skip_sign("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, before)| before.is_some()) {
                return self.fail("non-default argument follows default argument");
            }
            parameters.push((name.as_str().into(), default));
        }
        self.expect_sign(")")?;
        Ok(parameters)
    }

    /// The rest of a tag that names another template.
    fn foreign(&mut self, tag: &str) -> ParseResult<()> {
        self.expression()?;
        match tag {
            "include"
                if self.is_name("ignore") && matches!(self.ahead(1), WordKind::Name(name) if name == "missing") =>
            {
                self.at += 2;
            }
            "include" => {}
            "import" => {
                self.expect_word("as")?;
                self.assigned_name()?;
            }
            _ => {
                self.expect_word("import")?;
                loop {
                    if self.skip_context() {
                        return Ok(());
                    }
                    if self.assigned_name()?.starts_with('_') {
                        return self.fail("names starting with an underline can not be imported");
                    }
                    if self.skip_name("as") {
                        self.assigned_name()?;
                    }
                    if self.skip_context() || !self.skip_sign(",") {
                        return Ok(());
                    }
                }
            }
        }
        self.skip_context();
        Ok(())
    }

    fn skip_context(&mut self) -> bool {
        let found = (self.is_name("with") || self.is_name("without"))
            && matches!(self.ahead(1), WordKind::Name(name) if name == "context");
        self.at += if found { 2 } else { 0 };
        found
    }

    /// A name that gets a value.
    fn assigned_name(&mut self) -> ParseResult<String> {
        let name = self.expect_name()?;
        if is_constant(&name) { self.fail(format!("can't assign to '{name}'")) } else { Ok(name) }
    }

    /// The place of an assignment: a name, a tuple of places, or an attribute where those are allowed.
    fn target(&mut self, with_attributes: bool) -> ParseResult<AssignTarget> {
        let (mut places, mut is_tuple) = (Vec::new(), false);
        loop {
            if self.is_tuple_end() {
                break;
            }
            places.push(self.single_target(with_attributes)?);
            if !self.skip_sign(",") {
                break;
            }
            is_tuple = true;
        }
        match places.pop() {
            Some(place) if !is_tuple => Ok(place),
            None => self.fail(format!("Expected an expression, got {}", described(self.kind()))),
            last => {
                places.extend(last);
                Ok(AssignTarget::Several(places))
            }
        }
    }

    fn single_target(&mut self, with_attributes: bool) -> ParseResult<AssignTarget> {
        let line = self.line();
        if let (WordKind::Name(name), WordKind::Sign("."), true) = (self.kind(), self.ahead(1), with_attributes)
            && !is_constant(name)
        {
            let kind = ExpressionKind::Name(name.as_str().into());
            self.at += 2;
            let attribute = self.expect_name()?;
            return Ok(AssignTarget::Attribute(TreeExpression { line, kind }, attribute.into()));
        }
        let place = self.primary()?;
        assigned(place).map_or_else(|| self.fail("can't assign to this"), Ok)
    }
}

/// An expression as the place of an assignment: a name, or a tuple of such.
fn assigned(place: TreeExpression) -> Option<AssignTarget> {
    match place.kind {
        ExpressionKind::Name(name) => Some(AssignTarget::Name(name)),
        ExpressionKind::Tuple(items) => {
            items.into_iter().map(assigned).collect::<Option<Vec<_>>>().map(AssignTarget::Several)
        }
        _ => None,
    }
}

/// Whether a name is that of a constant.
pub(super) fn is_constant(name: &str) -> bool {
    matches!(name, "true" | "false" | "none" | "True" | "False" | "None")
}

/// A word for people.
pub(super) fn described(kind: &WordKind) -> String {
    match kind {
        WordKind::Data(_) => "text".to_owned(),
        WordKind::BlockBegin => "'{%'".to_owned(),
        WordKind::BlockEnd => "'%}'".to_owned(),
        WordKind::VariableBegin => "'{{'".to_owned(),
        WordKind::VariableEnd => "'}}'".to_owned(),
        WordKind::Name(name) => format!("'{name}'"),
        WordKind::Text(_) => "a string".to_owned(),
        WordKind::Integer(number) => format!("'{number}'"),
        WordKind::Float(number) => format!("'{number}'"),
        WordKind::Sign(sign) => format!("'{sign}'"),
        WordKind::End => "the end of the template".to_owned(),
    }
}
