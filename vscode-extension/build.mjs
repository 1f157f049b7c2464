// Bundles the extension into out/.  Language client, NaN watch, views, connections, and what finds Python are
// bundles of their own: the first are loaded when they are needed, the last keeps what it remembers for all.

import { build } from "esbuild";
import { copyFileSync, writeFileSync } from "node:fs";
import { notices } from "./notices.mjs";

const node = {
  outdir: "out",
  bundle: true,
  metafile: true,
  minify: true,
  legalComments: "none",
  platform: "node",
  target: "node20",
  format: "cjs",
  logLevel: "info",
};
const JSONRPC = "vscode-jsonrpc/node";
const jsonrpc = await build({ ...node, entryPoints: { jsonrpc: JSONRPC } });
const host = await build({
  ...node,
  entryPoints: ["src/extension.ts", "src/language.ts", "src/nanWatch.ts", "src/python.ts", "src/runForm.ts", "src/views.ts", "src/tensor.ts", "src/wire.ts"],
  // `import()` is to find these bundles by their bare names, as `require` does.
  supported: { "dynamic-import": false },
  external: ["vscode", "./language", "./nanWatch", "./python", "./runForm", "./views", "./tensor", "./wire", "./jsonrpc"],
  // The language client and the connections share it.
  alias: { [JSONRPC]: "./jsonrpc" },
});
const pages = await build({
  entryPoints: {
    ...Object.fromEntries(["explain", "graph", "map", "run", "statistics", "tensor"].map((name) => [name, `src/webview/${name}/main.ts`])),
    layout: "src/webview/graph/layout.ts",
  },
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
writeFileSync("out/NOTICES.txt", notices([jsonrpc.metafile, host.metafile, pages.metafile]));
