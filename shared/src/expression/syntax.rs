//! Parses tokens by precedence climbing.

use super::function::{self, Function, Macro};
use super::number::Sum;
use super::token::{Spanned, Token, tokens};
use super::{Fault, fault};
use serde_json::Value;

/// A part of an expression and its bytes in the text.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub form: Form,
    pub from: usize,
    pub to: usize,
}

/// Nodes are equal if they mean the same, wherever they are.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.form == other.form
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    Constant(Value),
    /// A root or the variable of a macro.
    Name(String),
    /// Fields and indices behind something.
    Path(Box<Node>, Vec<Step>),
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Both(Operator, Box<Node>, Box<Node>),
    Choice(Box<[Node; 3]>),
    List(Vec<Node>),
    Table(Vec<(Node, Node)>),
    Has(Box<Node>),
    First(Vec<Node>),
    /// A method's receiver is its first argument.
    Call(&'static Function, Vec<Node>),
    /// The list, the variable, and one or two expressions per item.
    Each(Macro, Box<Node>, String, Vec<Node>),
}

/// One step of a path, and where it ends.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub what: Access,
    pub to: usize,
}

impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Access {
    Field(String),
    /// `.?`
    Optional(String),
    Index(Node),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operator {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
    In,
    Sum(Sum),
}

/// How tightly comparisons bind.
const COMPARES: u8 = 3;
/// Each operator with its sign and how tightly it binds.
const OPERATORS: [(Operator, &str, u8); 12] = [
    (Operator::Equal, "==", COMPARES),
    (Operator::Unequal, "!=", COMPARES),
    (Operator::Less, "<", COMPARES),
    (Operator::AtMost, "<=", COMPARES),
    (Operator::More, ">", COMPARES),
    (Operator::AtLeast, ">=", COMPARES),
    (Operator::In, "in", COMPARES),
    (Operator::Sum(Sum::Add), "+", 4),
    (Operator::Sum(Sum::Subtract), "-", 4),
    (Operator::Sum(Sum::Multiply), "*", 5),
    (Operator::Sum(Sum::Divide), "/", 5),
    (Operator::Sum(Sum::Rest), "%", 5),
];

impl Operator {
    /// By its sign, with how tightly it binds.
    fn find(sign: &str) -> Option<(Self, u8)> {
        OPERATORS.iter().find(|(_, own, _)| *own == sign).map(|(operator, _, binds)| (*operator, *binds))
    }

    /// The comparison that is true exactly if this one is not.
    pub(super) fn opposite(self) -> Option<Self> {
        const OPPOSITES: [(Operator, Operator); 3] = [
            (Operator::Equal, Operator::Unequal),
            (Operator::Less, Operator::AtLeast),
            (Operator::More, Operator::AtMost),
        ];
        OPPOSITES.into_iter().find_map(|(a, b)| match self {
            own if own == a => Some(b),
            own if own == b => Some(a),
            _ => None,
        })
    }

    pub(super) fn sign(self) -> &'static str {
        OPERATORS.iter().find(|(operator, ..)| *operator == self).map_or("", |(_, sign, _)| sign)
    }
}

/// The tree of `text`, and in a template where the closing brace is.
pub(super) fn parse(text: &str, is_template: bool) -> Result<(Node, usize), Fault> {
    let (tokens, end) = tokens(text, is_template)?;
    let mut parser = Parser { tokens, at: 0 };
    let node = parser.expression(0)?;
    match &parser.tokens[parser.at] {
        Spanned { token: Token::End, .. } => Ok((node, end)),
        _ => Err(parser.missing("an operator")),
    }
}

struct Parser {
    /// The last is the end, and is never passed.
    tokens: Vec<Spanned>,
    at: usize,
}

impl Parser {
    fn expression(&mut self, least: u8) -> Result<Node, Fault> {
        let mut left = self.operand()?;
        loop {
            let sign = match &self.tokens[self.at].token {
                Token::Sign(sign) => *sign,
                Token::Name(name) if name == "in" => "in",
                _ => return Ok(left),
            };
            if sign == "?" && least == 0 {
                self.at += 1;
                let then = self.expression(1)?;
                self.take(":")?;
                let other = self.expression(0)?;
                let (from, to) = (left.from, other.to);
                left = Node { form: Form::Choice(Box::new([left, then, other])), from, to };
                continue;
            }
            let (operator, binds) = match sign {
                "||" => (None, 1),
                "&&" => (None, 2),
                sign => match Operator::find(sign) {
                    Some((operator, binds)) => (Some(operator), binds),
                    None => return Ok(left),
                },
            };
            if binds < least {
                return Ok(left);
            }
            self.at += 1;
            let right = self.expression(binds + 1)?;
            let (from, to) = (left.from, right.to);
            let (one, other) = (Box::new(left), Box::new(right));
            let form = match operator {
                Some(operator) => Form::Both(operator, one, other),
                None if sign == "&&" => Form::And(one, other),
                None => Form::Or(one, other),
            };
            left = Node { form, from, to };
            if binds == COMPARES
                && let Token::Sign(next) = self.tokens[self.at].token
                && Operator::find(next).is_some_and(|(_, binds)| binds == COMPARES)
            {
                let message = format!("`{next}` cannot follow `{sign}`; write `a {sign} b && b {next} c`");
                return Err(fault(self.tokens[self.at].from, message));
            }
        }
    }

    fn operand(&mut self) -> Result<Node, Fault> {
        let from = self.tokens[self.at].from;
        if self.is_next("!") {
            let inner = self.operand()?;
            let to = inner.to;
            return Ok(Node { form: Form::Not(Box::new(inner)), from, to });
        }
        if self.is_next("-") {
            let zero = Node { form: Form::Constant(0.into()), from, to: from };
            let inner = self.operand()?;
            let to = inner.to;
            let form = Form::Both(Operator::Sum(Sum::Subtract), Box::new(zero), Box::new(inner));
            return Ok(Node { form, from, to });
        }
        let mut node = self.primary()?;
        loop {
            let what = if self.is_next("[") {
                let index = self.expression(0)?;
                self.take("]")?;
                match index.form {
                    Form::Constant(Value::String(name)) => Access::Field(name),
                    _ => Access::Index(index),
                }
            } else if self.is_next(".?") {
                Access::Optional(self.field()?)
            } else if self.is_next(".") {
                let start = self.tokens[self.at].from;
                let name = self.field()?;
                if self.is_next("(") {
                    node = self.method(&name, node, start)?;
                    continue;
                }
                Access::Field(name)
            } else {
                return Ok(node);
            };
            let to = self.tokens[self.at - 1].to;
            let step = Step { what, to };
            match &mut node.form {
                Form::Path(_, steps) => {
                    steps.push(step);
                    node.to = to;
                }
                _ => {
                    let from = node.from;
                    node = Node { form: Form::Path(Box::new(node), vec![step]), from, to };
                }
            }
        }
    }

    fn primary(&mut self) -> Result<Node, Fault> {
        let Spanned { token, from, to } = self.tokens[self.at].clone();
        let form = match token {
            Token::Constant(value) => {
                self.at += 1;
                Form::Constant(value)
            }
            Token::Name(name) if name != "in" => {
                self.at += 1;
                match name.as_str() {
                    "true" => Form::Constant(Value::Bool(true)),
                    "false" => Form::Constant(Value::Bool(false)),
                    "null" => Form::Constant(Value::Null),
                    "not" => return Err(fault(from, "`not` is not an operator; write `!`")),
                    _ if self.is_next("(") => self.function(&name, from)?,
                    _ => Form::Name(name),
                }
            }
            Token::Sign("(") => {
                self.at += 1;
                let mut inner = self.expression(0)?;
                self.take(")")?;
                (inner.from, inner.to) = (from, self.tokens[self.at - 1].to);
                return Ok(inner);
            }
            Token::Sign("[") => {
                self.at += 1;
                Form::List(self.list("]")?)
            }
            Token::Sign("{") => {
                self.at += 1;
                let mut all = Vec::new();
                while !self.is_next("}") {
                    let key = self.expression(0)?;
                    self.take(":")?;
                    all.push((key, self.expression(0)?));
                    self.comma("}")?;
                }
                Form::Table(all)
            }
            Token::Sign(_) | Token::Name(_) | Token::End => return Err(self.missing("a value")),
        };
        Ok(Node { form, from, to: to.max(self.tokens[self.at - 1].to) })
    }

    /// Values up to `end`, separated by commas.
    fn list(&mut self, end: &'static str) -> Result<Vec<Node>, Fault> {
        let mut all = Vec::new();
        while !self.is_next(end) {
            all.push(self.expression(0)?);
            self.comma(end)?;
        }
        Ok(all)
    }

    fn function(&mut self, name: &str, from: usize) -> Result<Form, Fault> {
        let mut arguments = self.list(")")?;
        match name {
            "has" if arguments.len() == 1 => return Ok(Form::Has(Box::new(arguments.remove(0)))),
            "has" => return Err(fault(from, "`has` takes one path; write for example `has(input.note)`")),
            "first" if !arguments.is_empty() => return Ok(Form::First(arguments)),
            "first" => return Err(fault(from, "`first` takes paths; write for example `first(input.note, '')`")),
            _ => {}
        }
        function::find(name, false, arguments.len())
            .map_err(|message| fault(from, message))
            .map(|f| Form::Call(f, arguments))
    }

    fn method(&mut self, name: &str, receiver: Node, from: usize) -> Result<Node, Fault> {
        let start = receiver.from;
        let mut arguments = self.list(")")?;
        let to = self.tokens[self.at - 1].to;
        if let Some(each) = Macro::find(name) {
            let most = if each == Macro::Map { 3 } else { 2 };
            let usage = || {
                fault(
                    from,
                    format!(
                        "`{name}` takes a name for the item and an expression; write for example `input.lines.{}`",
                        each.example()
                    ),
                )
            };
            if !(2..=most).contains(&arguments.len()) {
                return Err(usage());
            }
            let Form::Name(variable) = arguments.remove(0).form else { return Err(usage()) };
            let form = Form::Each(each, Box::new(receiver), variable, arguments);
            return Ok(Node { form, from: start, to });
        }
        arguments.insert(0, receiver);
        let function = function::find(name, true, arguments.len()).map_err(|message| fault(from, message))?;
        Ok(Node { form: Form::Call(function, arguments), from: start, to })
    }

    fn field(&mut self) -> Result<String, Fault> {
        let Token::Name(name) = &self.tokens[self.at].token else { return Err(self.missing("the name of a field")) };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    fn is_next(&mut self, sign: &'static str) -> bool {
        let is_next = self.tokens[self.at].token == Token::Sign(sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn take(&mut self, sign: &'static str) -> Result<(), Fault> {
        if self.is_next(sign) { Ok(()) } else { Err(self.missing(&format!("`{sign}`"))) }
    }

    /// A comma, or `end` next.
    fn comma(&mut self, end: &'static str) -> Result<(), Fault> {
        if self.tokens[self.at].token == Token::Sign(end) || self.is_next(",") {
            return Ok(());
        }
        Err(self.missing(&format!("`,` or `{end}`")))
    }

    fn missing(&self, wanted: &str) -> Fault {
        let Spanned { token, from, .. } = &self.tokens[self.at];
        let found = match token {
            Token::Name(name) => match name.as_str() {
                "and" => return fault(*from, "`and` is not an operator; write `&&`"),
                "or" => return fault(*from, "`or` is not an operator; write `||`"),
                name => format!("`{name}`"),
            },
            Token::Constant(value) => format!("`{value}`"),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End if self.at == 0 => {
                return fault(*from, "the expression is empty; write for example `input.amount`");
            }
            Token::End => "the end".into(),
        };
        fault(*from, format!("{wanted} is missing before {found}; write it there"))
    }
}
