//! Puts the repository's workflow files into the program, so that a function deploys as one file.

use std::fmt::Write;
use std::path::Path;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workflows");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder workflows/ is part of the repository")
        .map(|entry| entry.expect("a readable entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    let mut code = String::from("&[\n");
    for file in files {
        let path = file.canonicalize().expect("it was just listed");
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        writeln!(code, "    (\"workflows/{name}\", include_str!({path:?})),").expect("writing to a string");
    }
    code.push(']');
    let out = std::env::var_os("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("workflows.rs"), code).expect("OUT_DIR is writable");
}
