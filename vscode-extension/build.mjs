// Bundles the extension into out/.  Language client, views, and what finds Python are bundles of their own:
// the first are loaded when they are needed, the last keeps what it remembers for all.

import { build } from "esbuild";
import { copyFileSync, writeFileSync } from "node:fs";
import { notices } from "./notices.mjs";

const host = await build({
  entryPoints: ["src/extension.ts", "src/language.ts", "src/python.ts", "src/views.ts", "src/tensor.ts"],
  outdir: "out",
  bundle: true,
  metafile: true,
  minify: true,
  legalComments: "none",
  platform: "node",
  target: "node20",
  format: "cjs",
  // `import()` is to find these bundles by their bare names, as `require` does.
  supported: { "dynamic-import": false },
  external: ["vscode", "./language", "./python", "./views", "./tensor"],
  logLevel: "info",
});
const pages = await build({
  entryPoints: Object.fromEntries(["map", "statistics", "tensor"].map((name) => [name, `src/webview/${name}/main.ts`])),
  outdir: "out/webview",
  bundle: true,
  metafile: true,
  minify: true,
  legalComments: "none",
  platform: "browser",
  target: "es2022",
  format: "iife",
  logLevel: "info",
});
copyFileSync("../examples/nan_softmax.nnc", "out/nan_softmax.nnc");
writeFileSync("out/NOTICES.txt", notices([host.metafile, pages.metafile]));
