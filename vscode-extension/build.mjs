// Bundles the extension into out/.  Language client, NaN watch, views, connections, and what finds Python are
// bundles of their own: the first are loaded when they are needed, the last keeps what it remembers for all.
// The libraries for plots and layout are files of their own too, which only the pages that need them load.

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
const page = {
  outdir: "out/webview",
  bundle: true,
  metafile: true,
  minify: true,
  legalComments: "none",
  platform: "browser",
  target: "es2022",
  format: "iife",
  logLevel: "info",
};
/** Each is a global of the page or the worker that has loaded it. */
const LIBRARIES = { dagre: "@dagrejs/dagre", uplot: "uplot" };
const libraries = await Promise.all(
  Object.entries(LIBRARIES).map(([globalName, from]) => build({ ...page, globalName, entryPoints: { [globalName]: from } })),
);
const computed = [];
/** `palettes.ts` is replaced by the values of its exports. */
const palettes = {
  name: "palettes",
  setup({ onLoad }) {
    onLoad({ filter: /[\\/]palettes\.ts$/ }, async ({ path }) => {
      const { metafile, outputFiles } = await build({ entryPoints: [path], bundle: true, metafile: true, write: false, format: "esm" });
      computed.push(metafile);
      const exported = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
      return { contents: Object.entries(exported).map(([name, value]) => `export const ${name} = ${JSON.stringify(value)};`).join("\n") };
    });
  },
};
const pages = await build({
  ...page,
  entryPoints: {
    ...Object.fromEntries(["explain", "graph", "map", "run", "statistics", "tensor"].map((name) => [name, `src/webview/${name}/main.ts`])),
    layout: "src/webview/graph/layout.ts",
  },
  alias: { "@dagrejs/dagre": "./src/webview/page/dagre.ts" },
  plugins: [palettes],
});
copyFileSync("../examples/nan_softmax.nnc", "out/nan_softmax.nnc");
writeFileSync("out/NOTICES.txt", notices([jsonrpc, host, pages, ...libraries].map(({ metafile }) => metafile).concat(computed)));
