//! The repository's files, and tables in the documents that a test computes.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of the repository, by its path from the root.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Compares the part of `docs/NAME` after the mark `<!-- MARK -->` with `table`; with `UPDATE=1`, writes it.
pub fn hold(name: &str, mark: &str, table: &str) {
    let path = Path::new("docs").join(name);
    let mut page = read(&path);
    let (begin, end) = (format!("<!-- {mark} -->\n\n"), "\n<!-- end -->");
    let from = page.find(&begin).unwrap_or_else(|| panic!("docs/{name} has no mark `{mark}`")) + begin.len();
    let to = from + page[from..].find(end).expect("the mark's end");
    if page[from..to] != *table && std::env::var_os("UPDATE").is_some() {
        page.replace_range(from..to, table);
        std::fs::write(root().join(path), &page).unwrap();
        return;
    }
    assert_eq!(&page[from..to], table, "docs/{name}, `{mark}`, is out of date: run this test with UPDATE=1");
}

/// `docs/prices.toml`.
pub struct Prices(pub toml::Table);

impl Prices {
    pub fn read() -> Self {
        Self(include_str!("../../docs/prices.toml").parse().unwrap())
    }

    pub fn of(&self, group: &str, name: &str) -> f64 {
        self.0[group][name].as_float().unwrap_or_else(|| panic!("{group}.{name} is no number"))
    }
}
