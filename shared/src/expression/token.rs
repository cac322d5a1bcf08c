//! A text as tokens. An expression's limits are checked here, before any recursion.

use super::number::Number;
use super::{Fault, MAX_BRACKETS, MAX_OPERATORS, MAX_TEXT, fault};
use serde_json::Value;

/// What the parser sees.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name or a word.
    Name(String),
    /// A number or a string.
    Constant(Value),
    /// An operator, a bracket, a comma.
    Sign(&'static str),
    /// After the last one.
    End,
}

/// A token and its bytes in the text.
#[derive(Clone, Debug)]
pub(super) struct Spanned {
    pub token: Token,
    pub from: usize,
    pub to: usize,
}

/// Longer ones first.
const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", ".?", "?", "(", ")", "[", "]", "{", "}", ".", ",", ":", "+", "-", "*", "/",
    "%", "!", "<",
];
/// Signs that are operators; `in` is one too.
const OPERATORS: [&str; 15] = ["&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?"];

/// The tokens of `text`; in a template, those up to the brace that closes `${`. The second result is the end's place.
pub(super) fn tokens(text: &str, is_template: bool) -> Result<(Vec<Spanned>, usize), Fault> {
    // A longer text is not read, so no message repeats it. A template's brace is extra.
    let most = MAX_TEXT + usize::from(is_template);
    let is_long = text.len() > most;
    let text = &text[..text.floor_char_boundary(most)];
    let mut found = Vec::new();
    let (mut at, mut depth, mut operators) = (0, 0_usize, 0);
    loop {
        let rest = &text[at..];
        let rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        at = text.len() - rest.len();
        let Some(c) = rest.chars().next() else {
            if is_long {
                let message = format!(
                    "the expression is longer than {MAX_TEXT} bytes; compute a part in a `value` step before this one"
                );
                return Err(fault(0, message));
            }
            if is_template {
                let message = "`${` is not closed; write `}` after the expression, or `$${` for a literal `${`";
                return Err(fault(0, message));
            }
            found.push(Spanned { token: Token::End, from: at, to: at });
            return Ok((found, at));
        };
        let (token, length) = match c {
            'a'..='z' | 'A'..='Z' | '_' => {
                let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                (Token::Name(rest[..length].to_owned()), length)
            }
            '0'..='9' => number(rest, at)?,
            '\'' | '"' => string(rest, c, at)?,
            _ => match SIGNS.iter().chain(&[">"]).find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Token::Sign(sign), sign.len()),
                None => return Err(fault(at, stray(rest, c))),
            },
        };
        match &token {
            Token::Sign("}") if depth == 0 && is_template => {
                found.push(Spanned { token: Token::End, from: at, to: at });
                return Ok((found, at));
            }
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
            Token::Sign(sign) if OPERATORS.contains(sign) => operators += 1,
            Token::Name(name) if name == "in" => operators += 1,
            Token::Sign(_) | Token::Name(_) | Token::Constant(_) | Token::End => {}
        }
        if depth > MAX_BRACKETS {
            let message = format!(
                "brackets are nested deeper than {MAX_BRACKETS} levels; compute a part in a `value` step before this one"
            );
            return Err(fault(at, message));
        }
        if operators > MAX_OPERATORS {
            let message = format!(
                "the expression has more than {MAX_OPERATORS} operators; compute a part in a `value` step before this one"
            );
            return Err(fault(at, message));
        }
        found.push(Spanned { token, from: at, to: at + length });
        at += length;
    }
}

fn stray(rest: &str, c: char) -> String {
    match c {
        '$' if rest.starts_with("${") => "`${` is not allowed inside an expression; leave out `${` and `}`".into(),
        '=' => "`=` is not an operator; write `==`".into(),
        '&' => "`&` is not an operator; write `&&`".into(),
        '|' => "`|` is not an operator; write `||`".into(),
        '\u{2018}'..='\u{201f}' => format!("`{c}` does not begin a string; write a straight `'` or `\"`"),
        _ if c.is_alphabetic() => {
            format!("`{c}` cannot be part of a name; write a field with other letters as `[\"...\"]`")
        }
        c => format!("`{}` has no meaning here; remove it", c.escape_debug()),
    }
}

fn number(rest: &str, at: usize) -> Result<(Token, usize), Fault> {
    let bytes = rest.as_bytes();
    let digits = |from: usize| from + bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = digits(0);
    let mut is_whole = true;
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        (end, is_whole) = (digits(end + 1), false);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            (end, is_whole) = (digits(end + 1 + sign), false);
        }
    }
    let written = &rest[..end];
    if bytes.get(end).is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_') {
        let message = format!("`{}` is not a number; write `{written}` alone", &rest[..=end]);
        return Err(fault(at, message));
    }
    if written.len() > 1 && written.starts_with('0') && bytes[1].is_ascii_digit() {
        let message = format!("`{written}` begins with a zero; leave it out, or write a string, `'{written}'`");
        return Err(fault(at, message));
    }
    let value = if is_whole {
        written.parse::<u64>().ok().map(Value::from)
    } else {
        written.parse::<f64>().ok().and_then(|n| Number::from(n).value().ok())
    };
    let message = || fault(at, format!("`{written}` is a number beyond 64 bits; write it as a string, `'{written}'`"));
    Ok((Token::Constant(value.ok_or_else(message)?), end))
}

fn string(rest: &str, quote: char, at: usize) -> Result<(Token, usize), Fault> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    let open = || fault(at, format!("the string that begins here is not closed; write `{quote}` after it"));
    loop {
        let (place, c) = chars.next().ok_or_else(open)?;
        match c {
            c if c == quote => return Ok((Token::Constant(Value::String(text)), place + 1)),
            '\\' => text.push(match chars.next().ok_or_else(open)?.1 {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                c @ ('\\' | '\'' | '"') => c,
                'u' => {
                    let code = rest.get(place + 2..place + 6).and_then(|hex| u32::from_str_radix(hex, 16).ok());
                    let wrong = || {
                        fault(
                            at + place,
                            "`\\u` takes the four hexadecimal digits of a character; write for example `\\u00e9`",
                        )
                    };
                    let c = code.and_then(char::from_u32).ok_or_else(wrong)?;
                    chars.nth(3);
                    c
                }
                c => {
                    let message =
                        format!("`\\{}` has no meaning in a string; write `\\\\` for a backslash", c.escape_debug());
                    return Err(fault(at + place, message));
                }
            }),
            c => text.push(c),
        }
    }
}
