//! Goal: one file contains every text that a person can read in the product; `-- --nocapture` prints its path. Method: string literals
//! of more than one word, as the compiler sees them, without tests, comments and texts that only a bug can print; doc comments that
//! clap turns into help; the texts of the console and of the templates.

use crate::support::page::root;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Calls whose text is for developers only.
const BUGS: [&str; 8] = ["expect", "panic", "unreachable", "assert", "assert_eq", "assert_ne", "debug", "trace"];
/// Phrases that sound translated: no text has them.
const ACCENT: [&str; 18] = [
    "is none",
    "of before",
    "goes before",
    "in vain",
    "as wanted",
    "comes again",
    "come again",
    "so many ",
    "hoever",
    "obody",
    "for good",
    "a look",
    "under way",
    "goes on",
    "in place of",
    "of its own",
    "for instance",
    "looked at",
];

/// The files below a folder with one of these endings, in their order; none of tests.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !["target", "tests", "examples", "simulation", "contract"].contains(&name) {
            files(&path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

/// More than one word, and no query or expression of a database.
fn is_prose(text: &str) -> bool {
    let words = text.split_whitespace().filter(|word| word.bytes().filter(u8::is_ascii_lowercase).count() > 1).count();
    let first = text.trim_start().split(' ').next().unwrap_or_default();
    let is_query = first.len() > 3 && first.bytes().all(|b| b.is_ascii_uppercase());
    words > 1 && !is_query && !text.contains("attribute_") && !text.contains(" = :")
}

/// The text of a literal, if it is one of a string.
fn string(token: &str) -> Option<String> {
    let inner = token.trim_start_matches(['r', '#']).trim_end_matches('#').strip_prefix('"')?.strip_suffix('"')?;
    // A line that ends in a backslash continues with the first word of the next line.
    let pieces: Vec<&str> = inner.split("\\\n").map(str::trim_start).collect();
    Some(pieces.concat().replace("\\\"", "\"").replace("\\n", " "))
}

/// The texts of Rust tokens. `has_help`: doc comments are help.
fn of_rust(tokens: TokenStream, has_help: bool, found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let name = |at: Option<usize>| at.map(|at| tokens[at].to_string()).unwrap_or_default();
    let (mut at, mut after_doc) = (0, 0);
    while at < tokens.len() {
        if let TokenTree::Group(group) = &tokens[at] {
            let is_call = name(at.checked_sub(1)) == "!";
            let before = name(at.checked_sub(if is_call { 2 } else { 1 }));
            let inside = group.stream().to_string();
            if before == "#" && inside.replace(' ', "") == "cfg(test)" {
                let is_end = |tree: &TokenTree| match tree {
                    TokenTree::Group(body) => body.delimiter() == Delimiter::Brace,
                    other => other.to_string() == ";",
                };
                at += tokens[at..].iter().position(is_end).unwrap_or(tokens.len());
            } else if let Some(doc) = inside.strip_prefix("doc =").filter(|_| before == "#") {
                let line = string(doc.trim()).filter(|_| has_help && !is_call);
                match found.last_mut().filter(|_| after_doc == at) {
                    Some(last) => last.extend(line.map(|line| format!(" {line}"))),
                    None => found.extend(line),
                }
                after_doc = at + 2;
            } else if !BUGS.contains(&before.as_str()) {
                of_rust(group.stream(), has_help, found);
            }
        } else if let TokenTree::Literal(literal) = &tokens[at] {
            found.extend(string(&literal.to_string()).filter(|text| is_prose(text)));
        }
        at += 1;
    }
}

/// Texts between quotes of JavaScript, in lines that are not comments.
fn of_script(text: &str, found: &mut Vec<String>) {
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let mut rest = line;
        while let Some(begin) = rest.find(['"', '\'', '`']) {
            let Some((inner, after)) = rest[begin + 1..].split_once(&rest[begin..=begin]) else { break };
            found.extend(is_prose(inner).then(|| inner.to_owned()));
            rest = after;
        }
    }
}

/// The descriptions of a template, including those folded over lines.
fn of_template(text: &str, found: &mut Vec<String>) {
    let mut folded = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        if folded.is_some_and(|outer| indent > outer) {
            found.last_mut().expect("a folded text has begun").extend([" ", line.trim()]);
            continue;
        }
        folded = None;
        // One that ends a mapping on its own line.
        let text =
            line.find(" Description: ").filter(|_| line.ends_with('}')).map_or(line.trim_start(), |at| &line[at + 1..]);
        let Some((key, value)) = text.split_once(": ") else { continue };
        if key.ends_with("Description") {
            folded = value.starts_with(['>', '|']).then_some(indent);
            found.push(if folded.is_some() { String::new() } else { value.to_owned() });
        }
    }
}

#[test]
fn all_that_a_person_can_read_is_in_one_file() {
    let root = root();
    let mut sources = vec![root.join("template.yaml")];
    for folder in ["functions", "infra", "shared", "tests/remotes", "tests/simulation"] {
        files(&root.join(folder), &[".rs", ".js", ".html", ".yaml"], &mut sources);
    }
    let (mut page, mut count) = ("# Everything that a person can read\n".to_owned(), 0);
    for path in &sources {
        let source = std::fs::read_to_string(path).unwrap();
        let mut texts = Vec::new();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("rs") => of_rust(source.parse().unwrap(), source.contains("use clap"), &mut texts),
            Some("js") => of_script(&source, &mut texts),
            Some("html") => {
                let pieces = source.split(['<', '>', '"']).filter(|piece| is_prose(piece) && !piece.ends_with('='));
                texts.extend(pieces.map(str::to_owned));
            }
            _ => of_template(&source, &mut texts),
        }
        if !texts.is_empty() {
            count += texts.len();
            write!(page, "\n## {}\n\n", path.strip_prefix(&root).unwrap().display()).unwrap();
        }
        for text in &texts {
            writeln!(page, "- {}", text.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap();
        }
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("strings.md");
    std::fs::write(&file, &page).unwrap();
    println!("{count} texts in {}", file.display());
    // An empty list would prove nothing.
    for kind in [".rs\n", ".js\n", ".html\n", ".yaml\n"] {
        assert!(count > 1000 && page.contains(kind), "{count} texts, or none of *{}", kind.trim());
    }
    for phrase in ACCENT {
        let lines: Vec<&str> = page.lines().filter(|line| line.contains(phrase)).collect();
        assert!(lines.is_empty(), "«{phrase}» in {}:\n{}", file.display(), lines.join("\n"));
    }
}
