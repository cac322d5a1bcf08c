//! Goal: docs/requirements.md and the tests agree. Method: ids are read from the page and from the comments of tests.
//! Every row that the page calls built must be cited, and every cited id must be on the page. `-- --nocapture` prints
//! who cites what.

use crate::support::page::{read, root};
use std::collections::{BTreeMap, BTreeSet};

/// The rows in their order: id, and whether the row is below «Built».
fn rows() -> Vec<(String, bool)> {
    let page = read("docs/requirements.md");
    let mut part = None;
    let mut rows = Vec::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            part = Some(title.to_owned());
        }
        let Some((id, _)) = line.strip_prefix("- **").and_then(|rest| rest.split_once("** ")) else { continue };
        assert!(is_id(id), "{line}");
        let is_built = match part.as_deref() {
            Some("Built") => true,
            Some("Planned") => false,
            other => panic!("{id} stands below {other:?}"),
        };
        assert!(rows.iter().all(|(known, _)| known != id), "{id} twice");
        rows.push((id.to_owned(), is_built));
    }
    rows
}

/// A letter from A to N and a number.
fn is_id(word: &str) -> bool {
    let mut bytes = word.bytes();
    bytes.next().is_some_and(|b| (b'A'..=b'N').contains(&b))
        && (2..=3).contains(&word.len())
        && bytes.all(|b| b.is_ascii_digit())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The ids in a comment. In a comment that says `of the protocol`, I1 to I8 are the protocol's invariants.
fn cited(comment: &str) -> Vec<&str> {
    let is_of_protocol = comment.contains("of the protocol");
    words(comment).filter(|word| is_id(word) && !(is_of_protocol && word.starts_with('I'))).collect()
}

/// The ids at the beginning of a comment, which are always citations.
fn leading(comment: &str) -> Vec<&str> {
    let begins = words(comment).take_while(|word| is_id(word)).count();
    cited(comment).into_iter().take(begins).collect()
}

/// What follows the mark of a comment, line by line.
fn comments(text: &str, mark: &str) -> Vec<String> {
    text.lines().filter_map(|line| Some(line.split_once(mark)?.1.to_owned())).collect()
}

/// The comments of tests: of all files in a folder `tests` and of the contract suite, and of each other Rust file from its
/// `#[cfg(test)]` on. The model cites invariants of the protocol alone, and J5.
fn comments_of_tests() -> Vec<(String, String)> {
    let mut folders: Vec<String> = ["functions", "infra", "shared", "tests"].map(str::to_owned).into();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().expect("names here are UTF-8");
            let path = format!("{folder}/{name}");
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && !["target", "node_modules", "data", "corpus"].contains(&name.as_str()) {
                    folders.push(path);
                }
                continue;
            }
            let mark = match name.rsplit_once('.') {
                Some((_, "rs" | "js" | "cjs")) => "//",
                Some((_, "py")) => "#",
                _ => continue,
            };
            if path == "tests/requirements.rs" {
                continue;
            }
            let text = read(&path);
            let is_test = path.starts_with("tests/") || path.contains("/tests/");
            let begin = if is_test { Some(0) } else { text.find("#[cfg(test)]") };
            let Some(begin) = begin else { continue };
            for comment in comments(&text[begin..], mark) {
                let is_model = path.starts_with("tests/model/");
                found.push((path.clone(), if is_model { format!("{comment} (of the protocol)") } else { comment }));
            }
        }
    }
    found
}

// A6: a test shows each promise of the page.
#[test]
fn every_built_requirement_is_cited_by_a_test() {
    let rows = rows();
    let comments = comments_of_tests();
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, comment) in &comments {
        for id in cited(comment) {
            files.entry(id).or_default().insert(file);
        }
    }
    let mut missing = Vec::new();
    for (id, is_built) in &rows {
        let by: Vec<&str> = files.get(id.as_str()).into_iter().flatten().copied().collect();
        println!("{id:4} {:8} {}", if *is_built { "built" } else { "planned" }, by.join(", "));
        if *is_built && by.is_empty() {
            missing.push(id.as_str());
        }
    }
    assert!(rows.iter().filter(|(_, is_built)| *is_built).count() >= 61, "rows went missing");
    assert!(missing.is_empty(), "built by docs/requirements.md, and cited by no test: {}", missing.join(", "));
}

#[test]
fn every_id_that_a_test_cites_is_a_requirement() {
    let known: BTreeSet<String> = rows().into_iter().map(|(id, _)| id).collect();
    let mut wrong = Vec::new();
    for (file, comment) in comments_of_tests() {
        let unknown: Vec<&str> = leading(&comment).into_iter().filter(|id| !known.contains(*id)).collect();
        if !unknown.is_empty() {
            wrong.push(format!("{file}: {} in `{}`", unknown.join(", "), comment.trim()));
        }
    }
    assert!(wrong.is_empty(), "not in docs/requirements.md:\n{}", wrong.join("\n"));
}

#[test]
fn citations_are_distinguished_from_other_words_and_invariants() {
    for (comment, all, first) in [
        (" D4, D10: an agent that is down", vec!["D4", "D10"], vec!["D4", "D10"]),
        (" E2, D3, I4 of the protocol.", vec!["E2", "D3"], vec!["E2", "D3"]),
        (" goes to S3 after B3b and MAX_A1, see J5", vec!["J5"], vec![]),
        (" A100 and Z1", vec![], vec![]),
    ] {
        assert_eq!(cited(comment), all, "{comment}");
        assert_eq!(leading(comment), first, "{comment}");
    }
}
