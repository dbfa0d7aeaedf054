//! How `autoescape` changes what an interpreter does: where it is on, how far it reaches, and what it marks.

use std::sync::Arc;

use super::arguments::Arguments;
use super::fault::RenderResult;
use super::interpreter::Interpreter;
use super::markup::{self, Escapes, Escaping};
use super::operators::Operator;
use super::scope::NameScope;
use super::tree::{ExpressionKind, Flow, TemplateFrame, TreeExpression};
use super::value::PythonValue;
use super::{filters, soft};

impl Interpreter<'_> {
    pub(super) fn autoescape(
        &mut self,
        enabled: &TreeExpression,
        frame: &TemplateFrame,
        around: &Arc<NameScope>,
    ) -> RenderResult<Flow> {
        let (before, scope) = (self.escapes, NameScope::of(frame, around));
        let is_on = self.value(enabled, &scope)?.is_true();
        self.escapes = before.within(is_on, enabled.is_constant());
        let flow = self.statements(&frame.body, &scope)?;
        // The end of the block is left out with the rest of a loop's round.
        let running = if flow == Flow::Next { before.running } else { is_on };
        self.escapes = Escapes { running, ..before };
        Ok(flow)
    }

    /// Whether the value of an expression is escaped where it is written.
    pub(super) fn escapes_of(&self, expression: &TreeExpression) -> bool {
        match self.escapes.here {
            Escaping::AsItRuns(of_constants) if expression.is_constant() && !expression.has_filters() => of_constants,
            _ => self.escapes.is_on(),
        }
    }

    /// Runs statements of another place of the template.
    pub(super) fn elsewhere<T>(
        &mut self,
        place: Escaping,
        step: impl FnOnce(&mut Self) -> RenderResult<T>,
    ) -> RenderResult<T> {
        let here = std::mem::replace(&mut self.escapes.here, place);
        let made = step(self);
        self.escapes.here = here;
        made
    }

    pub(super) fn apply_filter(
        &mut self,
        name: &str,
        value: &PythonValue,
        arguments: &Arguments,
    ) -> RenderResult<PythonValue> {
        let apply = if self.escapes.running { soft::apply } else { filters::apply };
        apply(&mut self.fuel, name, value, arguments)
    }

    /// `~` where text is escaped: a chain of it is one operation.
    pub(super) fn concatenated(
        &mut self,
        left: &TreeExpression,
        right: &TreeExpression,
        scope: &Arc<NameScope>,
    ) -> RenderResult<PythonValue> {
        // Marks are lost where the reference computes it before it renders.
        let is_constant = left.is_constant() && right.is_constant();
        let (mut left, mut operands) = (left, vec![right]);
        while let ExpressionKind::Operation(Operator::Concatenate, first, second) = &left.kind {
            operands.push(second);
            left = first;
        }
        operands.push(left);
        let mut values = Vec::new();
        for operand in operands.into_iter().rev() {
            let value = self.value(operand, scope)?;
            values.push(if is_constant { PythonValue::text(value.print()?) } else { value });
        }
        let made = markup::concatenated(&values)?;
        self.fuel.spend(made.size())?;
        Ok(made)
    }
}
