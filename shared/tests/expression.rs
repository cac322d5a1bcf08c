//! Goal: an expression means what its documentation says, and no text and no data can hurt. Method: the rows of
//! docs/expressions.md; the limits, on a small stack; and random expressions from a seed. `SEED=n` plays one seed.

use crate::support::{Dice, seeds};
use serde_json::{Value, json};
use shared::expression::*;
use std::borrow::Cow;
use std::fmt::Write as _;

const TABLE: &str = include_str!("../../docs/expressions.md");

/// The data of the table.
fn data() -> Value {
    let (_, rest) = TABLE.split_once("```json").unwrap();
    serde_json::from_str(rest.split_once("```").unwrap().0).unwrap()
}

fn names(data: &Value) -> Names<'_> {
    let all = ROOTS.into_iter().filter_map(|root| Some((root, data.get(root)?)));
    all.fold(Names::new(), |names, (root, value)| names.with(root, Cow::Borrowed(value)))
}

/// Section, expression and result of each row.
fn rows() -> Vec<(&'static str, String, String)> {
    let mut section = "";
    let mut rows = Vec::new();
    for line in TABLE.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(row) = line.strip_prefix("| `").and_then(|row| row.strip_suffix(" |")) {
            let row = row.replace("\\|", "\u{0}");
            let (expression, result) = row.split_once("` | ").unwrap();
            rows.push((section, expression.replace('\u{0}', "|"), result.replace('\u{0}', "|")));
        }
    }
    rows
}

const REFUSED: &str = "Refused when the file is read";
const NO_RESULT: &str = "No result when it runs";

/// As a row shows it.
fn shown(text: &str, names: &Names<'_>) -> (&'static str, String) {
    match Expression::parse(text).map(|e| e.optional(names)) {
        Err(fault) => (REFUSED, fault.to_string()),
        Ok(Err(mistake)) => (NO_RESULT, mistake.to_string()),
        Ok(Ok(None)) => ("", "absent".into()),
        Ok(Ok(Some(value))) => ("", format!("`{value}`")),
    }
}

#[test]
fn every_row_of_the_table_holds() {
    let (data, rows) = (data(), rows());
    let mut wrong = String::new();
    for (section, expression, result) in &rows {
        let (fails, got) = shown(expression, &names(&data));
        let wanted = if [REFUSED, NO_RESULT].contains(section) { section } else { "" };
        if got != *result || fails != wanted {
            writeln!(wrong, "{section}: {expression}\n  wanted {result}\n  got    {got}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(rows.len() > 250, "{}", rows.len());
}

#[test]
fn every_operator_and_function_has_two_rows() {
    let rows = rows();
    let good: Vec<&String> =
        rows.iter().filter(|(section, ..)| ![REFUSED, NO_RESULT].contains(section)).map(|(_, e, _)| e).collect();
    let count = |part: &str| good.iter().filter(|e| e.contains(part)).count();
    for function in functions() {
        assert!(count(&format!("{function}(")) >= 2, "{function}");
    }
    let signs = ["&&", "||", "==", "!=", " < ", "<=", " > ", ">=", " in ", " + ", " - ", " * ", " / ", " % ", "!", "-"];
    for sign in signs.into_iter().chain([" ? ", ".?", "[", "{"]) {
        assert!(count(sign) >= 2, "{sign}");
    }
    for root in ["event", "error", "answer", "status", "item", "output"] {
        assert!(ROOTS.contains(&root));
    }
}

#[test]
fn a_fault_says_where() {
    for (text, at) in [
        ("input.a =  1", 8),
        ("inputs.a", 0),
        ("'é' + inputs.a", 7),
        ("input.a + fetch(1)", 10),
        ("input.a.frob()", 8),
        ("'a\\q'", 2),
        ("input.a && 'x'", 11),
        ("[1, 2", 5),
        ("1 + order.foo", 4),
        ("1 + now.foo", 7),
    ] {
        assert_eq!(Expression::parse(text).unwrap_err().at, at, "{text}");
    }
    assert_eq!(Template::parse("é ${'é'} ${inputs.a}").unwrap_err().at, 13);
    assert_eq!(Template::parse("a ${input.x").unwrap_err().at, 4);
}

#[test]
fn a_condition_gives_true_or_false() {
    for (text, wanted) in [
        ("ran.create", None),
        ("input.paid", None),
        ("first(input.paid, false)", None),
        (
            "input.amount + 1",
            Some("`input.amount + 1` is a number, and a condition is true or false; compare it with something"),
        ),
        ("'yes'", Some("`'yes'` is a string, and a condition is true or false; compare it with something")),
        ("input.?paid", Some("`input.?paid` may be absent, and a condition is true or false; write `has(input.paid)`")),
    ] {
        let fault = Expression::condition(text).err().map(|f| f.message);
        assert_eq!(fault.as_deref(), wanted, "{text}");
    }
    let data = data();
    let test = |text: &str| Expression::parse(text).unwrap().test(&names(&data)).map(|t| t.why).map_err(|m| m.0);
    for (text, wanted) in [
        ("input.amount > 1000", Ok("`input.amount > 1000` is false: input.amount is 250")),
        (
            "input.amount > 100 && input.name == 'Bo'",
            Ok("`input.amount > 100 && input.name == 'Bo'` is false: input.amount is 250, input.name is \"Ada\""),
        ),
        // What was not looked at is not shown.
        ("ran.lookup && outputs.lookup.yes", Ok("`ran.lookup && outputs.lookup.yes` is false: ran.lookup is false")),
        ("ran.create || input.missing", Ok("`ran.create || input.missing` is true: ran.create is true")),
        (
            "!(input.amount in [1, 2]) && input.amount == input.amount",
            Ok("`!(input.amount in [1, 2]) && input.amount == input.amount` is true: input.amount is 250"),
        ),
        (
            "ran.create ? index == 1 : input.missing",
            Ok("`ran.create ? index == 1 : input.missing` is true: ran.create is true, index is 1"),
        ),
        ("ran.create", Ok("`ran.create` is true")),
        (
            "input.lines.exists(l, l.qty > 5)",
            Ok("`input.lines.exists(l, l.qty > 5)` is false: input.lines is a list of 2"),
        ),
        ("input.name.startsWith('B')", Ok("`input.name.startsWith('B')` is false: input.name is \"Ada\"")),
        (
            "size(input.lines) > 1 && input == {}",
            Ok("`size(input.lines) > 1 && input == {}` is false: size(input.lines) is 2, input is a table"),
        ),
        ("input.amount", Err("`input.amount`: the result is a number, and a condition is true or false")),
        ("input.?missing", Err("`input.?missing`: the result is null, and a condition is true or false")),
        (
            "input.missing > 1",
            Err(
                "`input.missing > 1`: `input.missing` does not exist; write `first(input.missing, '')` if it may be absent",
            ),
        ),
    ] {
        assert_eq!(test(text), wanted.map(str::to_owned).map_err(str::to_owned), "{text}");
    }
    // However long its values and its text are.
    let long = json!({ "a": "é".repeat(1000), "b": "x\n".repeat(1000) });
    let text = "input.a != 'a' && input.b != 'b' && ".repeat(9) + "size(input.a) == 1000 && size(input.b) == 2000";
    let why = Expression::parse(&text).unwrap().test(&Names::new().with("input", Cow::Borrowed(&long))).unwrap().why;
    assert!(why.len() <= 300 && why.contains(": input.a is \"éé"), "{why}");
}

fn paths(references: &[Reference]) -> String {
    let shown = |r: &Reference| format!("{}{}@{}", if r.guarded { "?" } else { "" }, r.path.join("."), r.at);
    references.iter().map(shown).collect::<Vec<_>>().join(" ")
}

#[test]
fn references_say_what_is_read_and_what_is_guarded() {
    for (text, wanted) in [
        ("outputs.a.id", "outputs.a.id@0"),
        ("outputs['a'].id[0].x", "outputs.a.id@0"),
        ("input[config.key].x", "config.key@6 input@0"),
        ("(outputs.a).b", "outputs.a.b@0"),
        ("first(outputs.a.id, outputs.b.id, order.id)", "?outputs.a.id@6 ?outputs.b.id@20 ?order.id@34"),
        ("first(outputs.a.id, outputs.b.id + 1)", "?outputs.a.id@6 outputs.b.id@20"),
        ("has(outputs.a.id)", "?outputs.a.id@4"),
        ("has(outputs.a[outputs.b])", "outputs.b@14 ?outputs.a@4"),
        ("ran.a && outputs.a.x && outputs.b.x", "ran.a@0 ?outputs.a.x@9 outputs.b.x@24"),
        ("outputs.a.x && ran.a", "outputs.a.x@0 ran.a@15"),
        ("ran.a || outputs.a.x", "ran.a@0 outputs.a.x@9"),
        ("!ran.a || outputs.a.x", "ran.a@1 ?outputs.a.x@10"),
        ("!(ran.a && ran.b) || outputs.a.x", "ran.a@2 ran.b@11 ?outputs.a.x@21"),
        ("!(!ran.a || !ran.b) && outputs.b.x", "ran.a@3 ran.b@13 ?outputs.b.x@23"),
        ("(ran.a || ran.b) && outputs.a.x", "ran.a@1 ran.b@10 outputs.a.x@20"),
        ("(ran.a && ran.b || ran.a) && outputs.a.x", "ran.a@1 ran.b@10 ran.a@19 ?outputs.a.x@29"),
        ("ran.a ? outputs.a.x : outputs.a.y", "ran.a@0 ?outputs.a.x@8 outputs.a.y@22"),
        ("!ran.a ? outputs.a.x : outputs.a.y", "ran.a@1 outputs.a.x@9 ?outputs.a.y@23"),
        ("has(outputs.a.x) && outputs.a.y == 1", "?outputs.a.x@4 ?outputs.a.y@20"),
        ("errors.a.status == 409", "errors.a.status@0"),
        ("input.lines.all(l, l.a == outputs.a.b)", "input.lines@0 outputs.a.b@26"),
        ("uuid('a')", "order.id@0"),
        ("now", "now@0"),
    ] {
        assert_eq!(paths(Expression::parse(text).unwrap().references()), wanted, "{text}");
    }
    let template = Template::parse("é ${outputs.a} ${ first(outputs.b, 1) }").unwrap();
    assert_eq!(paths(&template.references().cloned().collect::<Vec<_>>()), "outputs.a@5 ?outputs.b@25");
    for (text, wanted) in [
        ("ran.a && ran.b", "a b"),
        ("ran.a || ran.b", ""),
        ("ran.a || ran.a && input.x", "a"),
        ("!(!ran.a || input.x)", "a"),
        ("!ran.a", ""),
        ("has(outputs.a.x) && input.y", "a"),
        ("ran.a ? input.x : false", ""),
    ] {
        assert_eq!(Expression::parse(text).unwrap().implies_ran().join(" "), wanted, "{text}");
    }
}

#[test]
fn a_template_is_text_or_the_value_itself() {
    let data = data();
    for (text, wanted) in [
        ("", Ok(Some(json!("")))),
        ("plain {order_id} {step} {secret:pay} $5 {}", Ok(Some(json!("plain {order_id} {step} {secret:pay} $5 {}")))),
        ("${input.amount}", Ok(Some(json!(250)))),
        ("${ input.lines[0] }", Ok(Some(json!({"sku": "a", "qty": 2, "price": 9.5})))),
        ("${{'a': {'b': '}'}}}", Ok(Some(json!({"a": {"b": "}"}})))),
        ("${input.amount} ", Ok(Some(json!("250 ")))),
        ("${input.rate}", Ok(Some(json!(5.0)))),
        ("a ${input.rate}${true}", Ok(Some(json!("a 5true")))),
        ("${input.lines.map(l, l.price)} of ${input.name}", Ok(Some(json!("[9.5,4] of Ada")))),
        ("$${input.amount} $$${input.amount} $ ${1}", Ok(Some(json!("${input.amount} $${input.amount} $ 1")))),
        ("${input.nothing}", Ok(Some(Value::Null))),
        ("${input.?note}", Ok(Some(json!("call first")))),
        ("${input.?voucher}", Ok(None)),
        ("a ${input.?voucher}", Err("`input.?voucher` is absent")),
        (
            "a ${input.nothing}",
            Err("`input.nothing`: null cannot become a string; write `first(...)` around it, ending in a string"),
        ),
    ] {
        let template = Template::parse(text).unwrap();
        assert_eq!(template.evaluate(&names(&data)).map_err(|m| m.0), wanted.map_err(str::to_owned), "{text}");
        assert_eq!(template.is_constant(), !text.contains("${") || text.is_empty(), "{text}");
    }
    assert!(Template::parse("$${a}").unwrap().is_constant());
    assert_eq!(
        Template::parse("${input.?voucher}").unwrap().text_of(&names(&data)).unwrap_err().0,
        "`input.?voucher` is absent"
    );
    assert_eq!(Template::parse("${input.amount}").unwrap().text_of(&names(&data)).unwrap(), "250");
    let parts = Template::parse("a${1}b$${${2}").unwrap().parts().to_vec();
    let expression = |text| Part::Expression(Expression::parse(text).unwrap());
    let literal = |text: &str| Part::Literal(text.into());
    assert_eq!(parts, [literal("a"), expression("1"), literal("b${"), expression("2")]);
    for (text, wanted) in [
        ("id {input.id}", "`{` before `input` would stay a string; write `${input.id}`"),
        ("id {{ input.id }}", "`{{` before `input` would stay a string; write `${input.id}`"),
        ("{{now}}", "`{{` before `now` would stay a string; write `${now}`"),
        ("{{{outputs['a'].id}}}", "`{{` before `outputs` would stay a string; write `${outputs['a'].id}`"),
        ("${input.a", "`${` is not closed; write `}` after the expression, or `$${` for a literal `${`"),
        ("${}", "the expression is empty; write for example `input.amount`"),
        ("${'a}", "the string that begins here is not closed; write `'` after it"),
        ("${input.a ${input.b}}", "`${` is not allowed inside an expression; leave out `${` and `}`"),
    ] {
        assert_eq!(Template::parse(text).unwrap_err().message, wanted, "{text}");
    }
}

#[test]
fn a_mapping_is_a_tree_of_templates() {
    let data = data();
    let tree = json!({
        "to": "${input.name}", "note": "${input.?note}", "voucher": "${input.?voucher}", "fixed": [1, null, true],
        "all": ["${input.?voucher}", "n ${input.amount}", { "x": "${input.lines[1].qty}" }],
    });
    let mapping = Mapping::from_json(&tree).unwrap();
    let wanted = json!({
        "to": "Ada", "note": "call first", "fixed": [1, null, true], "all": ["n 250", { "x": 0 }],
    });
    assert_eq!(mapping.evaluate(&names(&data)).unwrap(), wanted);
    assert_eq!(serde_json::to_value(&mapping).unwrap(), tree);
    assert_eq!(serde_json::from_value::<Mapping>(tree).unwrap(), mapping);
    assert_eq!(mapping.references().len(), 6);
    assert!(!mapping.is_constant());
    assert!(Mapping::from_json(&json!({"a": ["$${x}", 1]})).unwrap().is_constant());
    let single = Mapping::from_json(&json!("${input.lines}")).unwrap();
    assert_eq!(single.evaluate(&names(&data)).unwrap(), data["input"]["lines"]);
    assert_eq!(Mapping::from_json(&json!("${input.?voucher}")).unwrap().evaluate(&names(&data)).unwrap(), Value::Null);
    let deep = (0..60).fold(json!("x"), |inner, _| json!([inner]));
    for (tree, wanted) in [
        (json!({"a": {"b": [1, "${inputs}"]}}), "`a.b[1]`: `inputs` is not a name here"),
        (json!(["{{input.x}}"]), "`[0]`: `{{` before `input` would stay a string; write `${input.x}`"),
        (json!({"a": {"${input.x}": 1}}), "`a`: the key `${input.x}` holds `${`, but keys are not computed"),
        (
            json!({"$serde_json::private::RawValue": 1}),
            "`$serde_json::private::RawValue` is a name that the JSON parser reserves",
        ),
        (deep, "the value is nested deeper than 50 levels; write it flatter"),
    ] {
        let message = Mapping::from_json(&tree).unwrap_err().message;
        assert!(message.starts_with(wanted), "{message}");
    }
    let template = Template::parse("${input.text}, ${input.text}, ${input.text}").unwrap();
    // Its parts are within the limits, and together they are not.
    let large = json!({ "text": "x".repeat(MAX_RESULT / 2) });
    let names = Names::new().with("input", Cow::Borrowed(&large));
    let many = Mapping::from_json(&json!(["${input.text}", "${input.text}", "${input.text}"])).unwrap();
    assert_eq!(many.evaluate(&names).unwrap_err().0, "the result has more than 256 KiB; take only what is needed");
    assert_eq!(template.text_of(&names).unwrap_err().0, "the result has more than 256 KiB; take only what is needed");
    let deep = (0..30).fold(json!(1), |inner, _| json!([inner]));
    let deeper = (0..30).fold(json!("${input}"), |inner, _| json!([inner]));
    let mapping = Mapping::from_json(&deeper).unwrap();
    let mistake = mapping.evaluate(&Names::new().with("input", Cow::Borrowed(&deep))).unwrap_err();
    assert_eq!(mistake.0, "the result is nested deeper than 50 levels of lists and tables");
    // As many bytes as a message has for them, with JSON's escapes.
    for (text, each) in [("\u{1}", 6), ("\n", 2), ("\"", 2), ("\u{fffe}", 6), ("é", 2)] {
        let mapping = Mapping::from_json(&json!({ "a": "${input.text}" })).unwrap();
        let evaluate = |count: usize| {
            let input = json!({ "text": text.repeat(count) });
            mapping.evaluate(&Names::new().with("input", Cow::Borrowed(&input)))
        };
        assert!(evaluate(MAX_RESULT / each - 10).is_ok(), "{text:?}");
        assert_eq!(serde_json::to_string(text).unwrap().len() - 2, if text == "\u{fffe}" { 3 } else { each });
        let error = evaluate(MAX_RESULT / each + 1).unwrap_err().0;
        assert!(error.contains("more than 256 KiB"), "{text:?}: {error}");
    }
}

#[test]
fn texts_are_written_and_read_as_they_are() {
    let expression: Expression = serde_json::from_value(json!("input.a > 1")).unwrap();
    assert_eq!(serde_json::to_value(&expression).unwrap(), json!("input.a > 1"));
    assert_eq!(expression, Expression::parse("input.a > 1").unwrap());
    assert_ne!(expression, Expression::parse("input.a>1").unwrap());
    let template: Template = serde_json::from_value(json!("a ${input.a}")).unwrap();
    assert_eq!(serde_json::to_value(&template).unwrap(), json!("a ${input.a}"));
    assert!(serde_json::from_value::<Expression>(json!("input.")).unwrap_err().to_string().contains("is missing"));
    assert_eq!(format!("{expression:?}"), "Expression(\"input.a > 1\")");
    let hash = |e: &Expression| {
        std::hash::BuildHasher::hash_one(&std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default(), e)
    };
    assert_eq!(hash(&expression), hash(&expression.clone()));
}

// Stored definitions may hold it from before there were expressions.
#[test]
fn a_dollar_before_a_placeholder_stays_readable() {
    let stored = json!("https://x.example/$${step}/${order_id}?of=${secret:key}");
    let template: Template = serde_json::from_value(stored.clone()).unwrap();
    assert!(template.is_constant());
    assert_eq!(serde_json::to_value(&template).unwrap(), stored);
    assert_eq!(template.literal_text(), "https://x.example/${step}/${order_id}?of=${secret:key}");
    assert!(Template::parse("${order_id}").unwrap_err().to_string().contains("order_id"));
}

#[test]
fn a_literal_is_what_it_was_wherever_it_is_read_again() {
    let seeds = seeds(20_000);
    let some = ["$", "{", "}", "${", "$${", "{{", "input.a", " now ", "{input.a}", "{{ now }}", "x", "é", "\\", "'"];
    for seed in seeds {
        let dice = &mut Dice(seed);
        let text: String = (0..dice.below(8)).map(|_| dice.pick(&some)).collect();
        let literal = Template::literal(&text);
        assert_eq!(literal.text_of(&Names::new()).unwrap(), text, "SEED={seed}");
        let again: Template = serde_json::from_value(serde_json::to_value(&literal).unwrap()).unwrap();
        assert_eq!((again.text_of(&Names::new()).unwrap(), again.is_constant()), (text, true), "SEED={seed}");
        let tree = Mapping::Text(literal);
        assert_eq!(
            serde_json::from_value::<Mapping>(serde_json::to_value(&tree).unwrap()).unwrap(),
            tree,
            "SEED={seed}"
        );
    }
}

#[test]
fn an_identifier_is_the_same_everywhere_in_an_order() {
    let uuid = |order: &str, name: &str| {
        let order = json!({ "id": order });
        let value = Expression::parse(&format!("uuid('{name}')"))
            .unwrap()
            .evaluate(&Names::new().with("order", Cow::Borrowed(&order)));
        value.unwrap().as_str().unwrap().to_owned()
    };
    assert_eq!(uuid("a", "b"), uuid("a", "b"));
    assert_ne!(uuid("a", "b"), uuid("ab", ""));
    assert_ne!(uuid("a", "b"), uuid("a", "c"));
    let one = uuid("ord_1", "card");
    assert!(one.len() == 36 && one.as_bytes()[14] == b'8' && b"89ab".contains(&one.as_bytes()[19]), "{one}");
    let none = Expression::parse("uuid('a')").unwrap().evaluate(&Names::new()).unwrap_err();
    assert_eq!(none.0, "`uuid('a')`: `order.id` has no value here");
}

/// Enough to refuse what is too deep.
const SMALL: usize = 128;

/// Runs `f` on a thread with a stack of that many KiB; the default is 2048.
fn on_a_stack<T: Send + 'static>(kib: usize, f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(kib * 1024).spawn(f).unwrap().join().unwrap()
}

#[test]
fn the_limits_hold_on_a_small_stack() {
    let fault = |text: String| on_a_stack(SMALL, move || Expression::parse(&text).err().map(|f| f.message));
    let too_long = "the expression is longer than 500 bytes; compute a part in a `value` step before this one";
    let too_deep = "brackets are nested deeper than 8 levels; compute a part in a `value` step before this one";
    let too_many = "the expression has more than 40 operators; compute a part in a `value` step before this one";
    for (open, inner, close) in
        [("(", "1", ")"), ("[", "1", "]"), ("{'a':", "1", "}"), ("size(", "''", ")"), ("input[", "''", "]")]
    {
        let nested = |n: usize| open.repeat(n) + inner + &close.repeat(n);
        let deep = if open == "size(" { fault(nested(1)) } else { fault(nested(MAX_BRACKETS)) };
        assert_eq!(deep, None, "{open}");
        assert_eq!(fault(nested(MAX_BRACKETS + 1)).as_deref(), Some(too_deep), "{open}");
        assert_eq!(fault(nested(10_000)).as_deref(), Some(too_deep), "{open}");
    }
    for (chain, end) in [("!", "true"), ("-", "1"), ("1+", "1"), ("true&&", "true"), ("true?1:", "1"), ("''in", "[]")] {
        let chained = |n: usize| chain.repeat(n) + end;
        assert_eq!(fault(chained(MAX_OPERATORS + 1)).as_deref(), Some(too_many), "{chain}");
        assert_eq!(fault(chained(100_000)).as_deref(), Some(too_many), "{chain}");
    }
    assert_eq!(fault(format!("'{}'", "x".repeat(MAX_TEXT - 2))), None);
    assert_eq!(fault(format!("'{}' ", "x".repeat(MAX_TEXT - 2))).as_deref(), Some(too_long));
    assert_eq!(fault(" ".repeat(1_000_000)).as_deref(), Some(too_long));
    assert_eq!(fault("a".repeat(1_000_000)).as_deref(), Some(too_long));
    assert_eq!(fault("9".repeat(1_000_000)).map(|m| m.len() < 2000), Some(true));
    let template = |text: String| on_a_stack(SMALL, move || Template::parse(&text).err().map(|f| f.message));
    assert_eq!(template(format!("${{'{}'}} {}", "x".repeat(MAX_TEXT - 2), "y".repeat(1_000_000))), None);
    assert_eq!(template(format!("${{{} }}", "é".repeat(1_000_000))).map(|m| m.len() < 200), Some(true));
    assert_eq!(template(format!("${{input{}}}", ".a".repeat(250))).as_deref(), Some(too_long));
    assert_eq!(template("${".repeat(500_000)).map(|m| m.len() < 200), Some(true));
    assert_eq!(template("{".repeat(1_000_000)), None);
    assert_eq!(template("{ ".repeat(500_000)), None);
    assert_eq!(template("$${".repeat(300_000)), None);
    // The deepest that is allowed is parsed, checked, evaluated and dropped.
    for text in [
        "!".repeat(MAX_OPERATORS) + &"(".repeat(MAX_BRACKETS) + "true" + &")".repeat(MAX_BRACKETS),
        "true?1:".repeat(MAX_OPERATORS) + "1",
        "1+".repeat(MAX_OPERATORS) + "1",
        "-----(-----(-----(-----(-----(-----(-----(-----(1))))))))".into(),
        "true||!(true&&!(true||!(true&&!(true||!(true&&!(true||!(true&&!!!!!!!!!!!!!!!!!!!!true)))))))".into(),
        format!("input{}", ".a".repeat(247)),
        "[1].map(a,[1].map(b,[1].map(c,[1].map(d,[1].map(e,[1].map(f,[1].map(g,[1].size())))))))".into(),
    ] {
        let evaluate = move || {
            let expression = Expression::parse(&text).unwrap_or_else(|f| panic!("{text}: {f}"));
            let data = (0..50).fold(json!(1), |inner, _| json!({ "a": inner }));
            let names = Names::new().with("input", Cow::Owned(data));
            let _ = expression.test(&names);
            expression.evaluate(&names).is_ok()
        };
        on_a_stack(512, evaluate);
    }
}

#[test]
fn an_evaluation_is_bounded() {
    let numbers: Vec<u32> = (0..10_001).collect();
    let text = "x".repeat(200_000);
    let deep = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
    let data = json!({
        "many": numbers, "most": numbers[..MAX_ITEMS], "hundred": numbers[..100], "text": text, "table": { "a": text },
        "fifty": deep(50), "deep": deep(51),
    });
    let run = |text: &str| {
        let expression = Expression::parse(text).unwrap_or_else(|f| panic!("{text}: {f}"));
        expression.evaluate(&Names::new().with("input", Cow::Borrowed(&data))).map_err(|m| m.0)
    };
    let items = "the expression looks at more than 10000 list items; let an agent do this";
    let work = "the expression reads and builds more than 1024 KiB; let an agent do this";
    let large = "the result has more than 256 KiB; take only what is needed";
    let deep = "a value is nested deeper than 50 levels of lists and tables";
    for (text, wanted) in [
        ("size(input.many)", ""),
        ("input.most.all(n, n >= 0)", ""),
        ("input.many.all(n, n >= 0)", items),
        ("input.many.exists(n, n == 5)", ""),
        ("input.hundred.map(a, input.hundred.map(b, 0)).size() == 100", items),
        ("input.hundred.all(a, input.hundred.filter(b, b < 99).size() == 99 && a >= 0)", items),
        ("[1, 2, 3].all(a, input.most.all(b, true))", items),
        ("sum(input.most)", ""),
        ("sum(input.many)", items),
        ("input.many.map(n, text(n)).join(',')", items),
        ("text(input.many)", items),
        ("input.text.split('')", "the list has more than 10000 items"),
        ("input.most.map(n, input.text)", work),
        ("input.most.map(n, input.text + input.text)", work),
        ("input.most.filter(n, input.text == input.text)", work),
        ("input.most.filter(n, input.text < input.text)", work),
        ("input.most.filter(n, input.table == input.table)", work),
        ("input.most.filter(n, input.text.contains('xy'))", work),
        ("input.most.filter(n, n in input.most)", work),
        ("input.hundred.map(n, {'a': input.text})", work),
        ("input.hundred.map(n, [input.text])", work),
        ("input.hundred.all(n, size({input.text: n}) == 1)", work),
        ("input.hundred.map(a, 'x').join(input.text).size()", large),
        ("input.hundred.map(a, 'x').join(cut(input.text, 3000))", "the result has"),
        ("input.text", ""),
        ("input.text + input.text", large),
        ("size(input.text + input.text)", ""),
        ("[input.text, input.text]", large),
        ("input.text + input.text + input.text + input.text", work),
        ("(input.hundred + input.hundred).size()", ""),
        ("input.fifty", ""),
        ("[input.fifty]", deep),
        ("input.deep", deep),
        ("size(input.deep)", ""),
        ("text(input.deep)", deep),
        ("[input.deep] == [1]", deep),
        ("input.deep == input.deep", deep),
        ("from_json('[' + text(input.fifty) + ']')", "is nested too deep"),
    ] {
        let got = run(text).err().unwrap_or_default();
        assert!(if wanted.is_empty() { got.is_empty() } else { got.contains(wanted) }, "{text}: {got}");
    }
}

/// An expression of the grammar, with all kinds in all places.
fn grown(dice: &mut Dice, depth: usize) -> String {
    let leaves = [
        "1",
        "0",
        "2.5",
        "'a'",
        "''",
        "true",
        "false",
        "null",
        "input.amount",
        "input.name",
        "input.nothing",
        "input.missing",
        "input.lines",
        "input.?voucher",
        "input",
        "order.id",
        "errors.create.status",
        "ran.lookup",
        "ran.create",
        "outputs.create.id",
        "outputs.lookup.id",
        "now",
        "x",
        "x.qty",
        "[]",
        "{}",
        "input.huge",
        "index",
        "18446744073709551615",
        "config",
    ];
    if depth == 0 || dice.below(5) == 0 {
        return dice.pick(&leaves).into();
    }
    let mut part = || grown(dice, depth - 1);
    let (a, b, c) = (part(), part(), part());
    let operators =
        ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "&&", "||", "&&", "||", "==", "+"];
    let methods = [
        "contains",
        "startsWith",
        "endsWith",
        "split",
        "join",
        "substring",
        "trim",
        "lowerAscii",
        "upperAscii",
        "size",
    ];
    match dice.below(14) {
        0..4 => format!("({a} {} {b})", dice.pick(&operators)),
        4 => format!("{}({a})", dice.pick(&["!", "-"])),
        5 => format!("({a} ? {b} : {c})"),
        6 => format!("[{a}, {b}]"),
        7 => format!("{{'k': {a}, 'l': {b}}}"),
        8 => format!("{a}.{}(x, {b})", dice.pick(&["all", "exists", "exists_one", "filter", "map"])),
        9 => {
            let given = ["", &b, &format!("{b}, {c}")][dice.below(3)].to_owned();
            format!("{a}.{}({given})", dice.pick(&methods))
        }
        10 => format!(
            "{}({a})",
            dice.pick(&["text", "string", "int", "double", "round", "sum", "size", "time", "uuid", "from_json"])
        ),
        11 => format!("first({}{}, {a})", dice.pick(&leaves), ["", &format!("[{b}]"), ".x"][dice.below(3)]),
        12 => format!("has({}{})", dice.pick(&leaves), ["", &format!("[{b}]"), ".x"][dice.below(3)]),
        _ => format!("({a}){}", dice.pick(&[".qty", ".qty", "[0]", "['name']", ".?qty", "[index]"])),
    }
}

#[test]
fn random_expressions_keep_what_is_said_of_them() {
    let data = data();
    let known = rows();
    let (mut parsed, mut given) = (0, 0);
    for seed in seeds(20_000) {
        let dice = &mut Dice(seed);
        let depth = 1 + dice.below(3);
        let mut text = grown(dice, depth);
        if dice.below(8) == 0 {
            // A row with some bytes moved, doubled or gone.
            let mut chars: Vec<char> = dice.pick(&known).1.chars().collect();
            for _ in 0..=dice.below(3) {
                if !chars.is_empty() {
                    let (from, to) = (dice.below(chars.len()), dice.below(chars.len()));
                    match dice.below(3) {
                        0 => chars.swap(from, to),
                        1 => chars.insert(to, chars[from]),
                        _ => drop(chars.remove(from)),
                    }
                }
            }
            text = chars.into_iter().collect();
        }
        let check = || {
            let _ = Template::parse(&format!("a {{{text}}} ${{{text}}}"));
            let Ok(expression) = Expression::parse(&text) else { return (0, 0) };
            let all = names(&data);
            let found = expression.optional(&all);
            let _ = expression.test(&all);
            // The kind that was seen is the kind that comes.
            if let (Some(kind), Ok(Some(value))) = (expression.kind(), &found) {
                let of = match value {
                    Value::Null => None,
                    Value::Bool(_) => Some(Kind::Bool),
                    Value::Number(_) => Some(Kind::Number),
                    Value::String(_) => Some(Kind::Text),
                    Value::Array(_) => Some(Kind::List),
                    Value::Object(_) => Some(Kind::Table),
                };
                assert_eq!(Some(kind), of, "{value}");
            }
            // Nothing is read but what the references name.
            let roots: Vec<&str> = expression.references().iter().map(|r| r.path[0].as_str()).collect();
            let read = ROOTS.into_iter().filter(|root| roots.contains(root)).filter_map(|r| Some((r, data.get(r)?)));
            let few = read.fold(Names::new(), |names, (root, value)| names.with(root, Cow::Borrowed(value)));
            assert_eq!(expression.optional(&few), found);
            // Where every reference to a step's output is guarded, the step need not have run.
            let of_create = |r: &&Reference| r.path[..2.min(r.path.len())] == ["outputs", "create"];
            let mut other = data.clone();
            other["outputs"] = json!({});
            other["ran"]["create"] = json!(false);
            if expression.references().iter().filter(of_create).all(|r| r.guarded)
                && let Err(mistake) = expression.optional(&names(&other))
            {
                assert!(!mistake.0.contains("`outputs.create` does not exist"), "{mistake}");
            }
            (1, usize::from(found.is_ok()))
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        let (p, g) = caught.unwrap_or_else(|_| panic!("SEED={seed}: {text}"));
        (parsed, given) = (parsed + p, given + g);
    }
    println!("{parsed} parsed, {given} with a result");
    assert!(std::env::var("SEED").is_ok() || parsed > 2000 && given > 1000, "{parsed} {given}");
}

#[test]
fn random_tokens_hurt_nothing() {
    let data = data();
    let tokens = [
        "input", ".", ".?", "amount", "(", ")", "[", "]", "{", "}", "&&", "||", "!", "-", "+", "==", "<", "in", "?",
        ":", ",", "1", "2.5", "'a'", "\"", "'", "\\", "${", "$", "first", "has", "map", "x", "ran", "create", "é",
        "\n", "size", "0",
    ];
    for seed in seeds(20_000) {
        let dice = &mut Dice(seed);
        let length = dice.below(24);
        let text: String = (0..length).map(|_| dice.pick(&tokens)).collect();
        let check = || {
            for text in [text.clone(), format!("${{{text}}}")] {
                if let Err(fault) = Template::parse(&text) {
                    assert!(fault.at <= text.len() && !fault.message.is_empty());
                }
            }
            match Expression::parse(&text) {
                Ok(expression) => drop(expression.test(&names(&data))),
                Err(fault) => assert!(fault.at <= text.len() && !fault.message.is_empty()),
            }
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_ok(), "SEED={seed}: {text}");
    }
}

#[test]
fn numbers_of_one_kind_are_ordered_as_numbers() {
    let some = [
        "0",
        "-0.0",
        "1",
        "1.0",
        "-1",
        "0.5",
        "1e300",
        "-1e300",
        "9007199254740992",
        "9007199254740993",
        "9007199254740992.0",
        "18446744073709551615",
        "1.8446744073709552e19",
        "-9223372036854775808",
        "-9223372036854775809.0",
        "0.1",
        "5e-324",
    ];
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let truth = |text: &str, a: &Value, b: &Value| {
        let input = json!({ "a": a, "b": b });
        Expression::parse(text).unwrap().evaluate(&Names::new().with("input", Cow::Borrowed(&input))).unwrap()
            == json!(true)
    };
    for a in some {
        for b in some {
            let (a, b) = (&value(a), &value(b));
            let (less, equal, more) =
                (truth("input.a < input.b", a, b), truth("input.a == input.b", a, b), truth("input.a > input.b", a, b));
            assert_eq!([less, equal, more].iter().filter(|is| **is).count(), 1, "{a} {b}");
            assert_eq!(more, truth("input.a < input.b", b, a), "{a} {b}");
            assert_eq!(truth("input.a <= input.b", a, b), less || equal, "{a} {b}");
            let exact = |v: &Value| v.as_i64().map(i128::from).or(v.as_u64().map(i128::from));
            match (exact(a), exact(b)) {
                (Some(x), Some(y)) => assert_eq!((less, equal), (x < y, x == y), "{a} {b}"),
                _ => assert!(less == (a.as_f64() < b.as_f64()) || equal || a.as_f64() == b.as_f64(), "{a} {b}"),
            }
        }
    }
    assert!(truth("input.a != input.b", &value("9007199254740993"), &value("9007199254740992.0")));
}

// Counting a long text for each item of a list is work, too.
#[test]
fn the_size_of_a_text_counts_as_read() {
    let input = json!({"all": vec![0; 1000], "long": "é".repeat(1000)});
    let names = Names::new().with("input", Cow::Borrowed(&input));
    let count = |items: usize| {
        let text = format!("input.all.filter(x, size(input.long) > {items}).size()");
        Expression::parse(&text).unwrap().evaluate(&names)
    };
    let mistake = count(1).unwrap_err().to_string();
    assert!(mistake.contains("reads and builds"), "{mistake}");
}
