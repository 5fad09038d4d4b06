// Builds the page into the package: `node build.mjs [FOLDER]`. The same sources give the same bytes.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/tensortap/web/bundle");
mkdirSync(target, { recursive: true });
const made = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.tsx" },
  outdir: target,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  write: false,
});
// What was built from what: a test compares it with the sources, also where there is no Node.
const stamp = `/* ${digest()} */\n`;
for (const file of made.outputFiles) {
  writeFileSync(file.path, stamp + file.text);
}
writeFileSync(join(target, "index.html"), readFileSync(join(here, "index.html")));
writeFileSync(join(target, "icon.svg"), readFileSync(join(here, "icon.svg")));

function digest() {
  const hash = createHash("sha256");
  const files = ["package.json", "package-lock.json", "build.mjs", ...sources("src")];
  for (const name of files.sort()) {
    hash.update(`${name}\0`).update(readFileSync(join(here, name))).update("\0");
  }
  return hash.digest("hex");
}

function sources(folder) {
  return readdirSync(join(here, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(here, join(entry.parentPath ?? entry.path, entry.name)));
}
