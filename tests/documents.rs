//! Goal: the documents are right. Method: links have targets, and the files, tests and constants that a page names
//! exist, as do the targets, packages and tests of its commands. The commands themselves are run by
//! `infra/cli/tests/documents.rs`.

use crate::packages::packages;
use crate::support::page::{read, root};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every page for people: its path from the root, and its text.
fn pages() -> Vec<(String, String)> {
    let docs = std::fs::read_dir(root().join("docs")).unwrap().map(|file| file.unwrap().file_name());
    let docs = docs.filter_map(|name| name.to_str().filter(|n| n.ends_with(".md")).map(|n| format!("docs/{n}")));
    let top = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned);
    let mut all: Vec<String> = docs.chain(top).collect();
    all.sort();
    all.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// Each workflow file of the forge, and its commands.
fn forge_commands() -> Vec<(String, Vec<String>)> {
    let files = std::fs::read_dir(root().join(".github/workflows")).unwrap();
    let names = files.map(|file| format!(".github/workflows/{}", file.unwrap().file_name().to_str().unwrap()));
    let of = |name: &str| {
        let text = read(name);
        let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
        let lines = lines.filter_map(|line| line.strip_prefix("run: ").or_else(|| line.strip_prefix("command: ")));
        lines.flat_map(|line| line.split(" && ")).map(str::to_owned).collect()
    };
    names.map(|name| (name.clone(), of(&name))).collect()
}

/// The texts between two marks.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(begin) {
        let Some((inner, next)) = after.split_once(end) else { break };
        found.push(inner);
        rest = next;
    }
    found
}

/// The pieces of code within a line, outside of blocks.
fn code(text: &str) -> Vec<String> {
    let mut is_block = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block && !line.starts_with("    ") {
            found.extend(between(line, "`", "`").into_iter().map(str::to_owned));
        }
    }
    found
}

/// The anchors of a page's headings, as they are made on the usual hosts.
fn anchors(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |title: &str| {
        let kept = title.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect::<String>()
    };
    titles.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for target in between(&text, "](", ")") {
            if target.contains("://") || target.starts_with("mailto:") || target.contains('\n') {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let place = if file.is_empty() { PathBuf::from(&page) } else { Path::new(&page).with_file_name(file) };
            let full = root().join(&place);
            if !full.exists() {
                wrong.push(format!("{page}: {target} is not there"));
            } else if !anchor.is_empty() && full.extension().is_some_and(|e| e == "md") {
                if !anchors(&read(&place)).contains(anchor) {
                    wrong.push(format!("{page}: {target} has no such heading"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `FILE: NAME`, where the file is one of this repository.
fn cited(code: &str) -> Option<(&str, &str)> {
    let (file, name) = code.split_once(": ")?;
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (file.ends_with(".rs") && file.contains('/') && is_name).then_some((file, name))
}

// A6: what a page cites exists.
#[test]
fn every_file_test_and_constant_that_a_page_names_is_there() {
    let mut wrong = Vec::new();
    let mut names = 0;
    for (page, text) in pages() {
        for code in code(&text) {
            if let Some((file, name)) = cited(&code) {
                names += 1;
                let source = std::fs::read_to_string(root().join(file)).unwrap_or_default();
                let is_there = [format!("fn {name}("), format!("fn {name}<"), format!("const {name}:")];
                if !is_there.iter().any(|text| source.contains(text)) {
                    wrong.push(format!("{page}: {file} has no `{name}`"));
                }
            } else if let Some((folder, _)) = code.split_once('/')
                && ["shared", "functions", "infra", "tests", "workflows", "examples", "docs"].contains(&folder)
                && !code.contains(['*', ' ', '{', '<'])
                && !root().join(&code).exists()
            {
                wrong.push(format!("{page}: there is no `{code}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(names > 100, "only {names} names were looked at");
}

/// The lines of commands: of blocks for a shell, and of code within a line.
fn commands(text: &str) -> Vec<String> {
    let mut found = code(text);
    let mut block = None;
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = block.is_none().then(|| language.to_owned());
        } else if block.as_deref().is_some_and(|b| b.is_empty() || b == "sh")
            || block.is_none() && line.starts_with("    ")
        {
            found.push(line.trim().to_owned());
        }
    }
    found
}

#[test]
fn every_command_names_a_target_a_package_and_a_test_that_there_is() {
    let makefile = read("Makefile");
    let phony = makefile.lines().find_map(|line| line.strip_prefix(".PHONY: ")).expect("the list of targets");
    let targets: BTreeSet<&str> = phony.split_whitespace().collect();
    let packages = packages();
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    let of_pages = pages().into_iter().map(|(page, text)| (page, commands(&text)));
    for (page, command) in
        of_pages.chain(forge_commands()).flat_map(|(page, all)| all.into_iter().map(move |c| (page.clone(), c)))
    {
        let words: Vec<&str> = command.split('#').next().unwrap().split_whitespace().collect();
        let words: Vec<&str> = words.into_iter().skip_while(|word| word.contains('=')).collect();
        match words.as_slice() {
            ["make", rest @ ..] => {
                let names = |word: &&&str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
                for target in rest.iter().take_while(names) {
                    looked_at += 1;
                    if !targets.contains(target) {
                        wrong.push(format!("{page}: `{command}`: no such target"));
                    }
                }
            }
            [script, ..] if !script.ends_with(':') && (script.starts_with("tests/") || script.starts_with(".ci/")) => {
                looked_at += 1;
                if !root().join(script).exists() {
                    wrong.push(format!("{page}: `{command}`: no such script"));
                }
            }
            ["cargo", "test" | "run" | "build", rest @ ..] => {
                looked_at += 1;
                let after = |flag: &str| rest.iter().position(|w| *w == flag).and_then(|at| rest.get(at + 1)).copied();
                let Some(name) = after("-p").or(after("--package")) else { continue };
                let Some(package) = packages.iter().find(|p| p["name"] == name) else {
                    wrong.push(format!("{page}: `{command}`: no such package"));
                    continue;
                };
                for flag in ["--test", "--example"] {
                    let target = after(flag);
                    let has =
                        |t: &&str| package["targets"].as_array().unwrap().iter().any(|target| target["name"] == **t);
                    if target.is_some_and(|t| !has(&t)) {
                        wrong.push(format!("{page}: `{command}`: no such {flag}"));
                    }
                }
                for module in rest.iter().filter_map(|word| Some(word.split_once("::")?.0)) {
                    let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
                    if ![folder.join(format!("{module}.rs")), folder.join(format!("tests/{module}.rs"))]
                        .iter()
                        .any(|file| file.exists())
                    {
                        wrong.push(format!("{page}: `{command}`: no such module"));
                    }
                }
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(looked_at > 15, "only {looked_at} commands were looked at");
}

// The demo's orders: 176 of 830 once had their address one column to the right, and nothing noticed.
#[test]
fn the_sample_orders_have_each_column_in_its_place() {
    let text = include_str!("data/northwind-orders.jsonl");
    let (mut countries, mut count) = (BTreeSet::new(), 0);
    for line in text.lines() {
        let order: Value = serde_json::from_str(line).unwrap();
        let of = |path: &str| order.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let has_digit = |text: &str| text.contains(|c: char| c.is_ascii_digit());
        let reference = of("/order_ref").unwrap();
        for name in ["/customer/company", "/customer/contact", "/ship_to/name", "/ship_to/city"] {
            assert!(!has_digit(&of(name).unwrap()), "{reference} {name}");
        }
        for number in ["/customer/phone", "/ship_to/postal_code"] {
            assert!(of(number).is_none_or(|text| has_digit(&text)), "{reference} {number}");
        }
        assert!(of("/ship_to/region").is_none_or(|region| !has_digit(&region)), "{reference}");
        countries.extend(of("/ship_to/country"));
        let lines = order["lines"].as_array().unwrap();
        let total: i64 = lines.iter().map(|line| line["amount_cents"].as_i64().unwrap()).sum();
        assert_eq!(
            order["total_cents"].as_i64().unwrap() - total,
            order["freight_cents"].as_i64().unwrap(),
            "{reference}"
        );
        count += 1;
    }
    assert_eq!((count, countries.len()), (830, 21), "{countries:?}");
}
