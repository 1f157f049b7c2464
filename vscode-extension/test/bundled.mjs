// Modules of src/ for the tests: bundled like in the extension, then imported.

import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { build } from "esbuild";

/** The editor's API is the object that a test assigns to `globalThis.vscode`. */
const editor = {
  name: "vscode",
  setup({ onResolve, onLoad }) {
    onResolve({ filter: /^vscode$/ }, () => ({ path: "vscode", namespace: "test" }));
    onLoad({ filter: /./, namespace: "test" }, () => ({ contents: "module.exports = globalThis.vscode" }));
  },
};

/** The exports of one or more modules, named as `session/token`, relative to src/. */
export async function bundled(...modules) {
  const contents = modules.map((name) => `export * from "./${name}";`).join("\n");
  const resolveDir = new URL("../src", import.meta.url).pathname;
  const folder = mkdtempSync(path.join(tmpdir(), "nncdbg-"));
  const outfile = path.join(folder, "bundle.cjs");
  try {
    await build({ stdin: { contents, resolveDir, loader: "ts" }, outfile, bundle: true, platform: "node", format: "cjs", plugins: [editor], logLevel: "error" });
    return createRequire(import.meta.url)(outfile);
  } finally {
    rmSync(folder, { recursive: true });
  }
}
