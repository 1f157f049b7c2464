// Bundles the extension into out/.  Parts that are not needed at activation are separate bundles, loaded on first use.
// `python` is a separate bundle because all others share its state.
// The libraries for plots and layout are separate files: only the pages that need them load them.

import { build } from "esbuild";
import { copyFileSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { notices } from "./notices.mjs";

/** The bundles of the extension host: name and entry file. */
const HOST = {
  extension: "src/extension.ts",
  connection: "src/session/connection.ts",
  language: "src/language/language.ts",
  nanWatch: "src/nanWatch/nanWatch.ts",
  python: "src/environment/python.ts",
  runForm: "src/runForm/form.ts",
  runs: "src/journal/runs.ts",
  tensor: "src/tensor/tensorViews.ts",
  views: "src/views/views.ts",
};
/** One bundle requires another by its file name in out/. */
const separate = {
  name: "separate",
  setup({ onResolve }) {
    const bundles = new Map(Object.entries(HOST).map(([name, file]) => [path.resolve(file), name]));
    onResolve({ filter: /^\./ }, ({ path: imported, resolveDir }) => {
      const name = bundles.get(`${path.resolve(resolveDir, imported)}.ts`);
      return name && { path: `./${name}`, external: true };
    });
  },
};

mkdirSync("out", { recursive: true });
// `make vsix` puts the wheel there.
readdirSync("out").filter((name) => !name.endsWith(".whl")).forEach((name) => rmSync(`out/${name}`, { recursive: true }));

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
  entryPoints: HOST,
  // `import()` becomes `require`, which finds a bundle without its suffix.
  supported: { "dynamic-import": false },
  external: ["vscode", "./jsonrpc"],
  plugins: [separate],
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
    ...Object.fromEntries(["explain", "graph", "map", "runForm", "runs", "statistics", "streams", "tensor"].map((name) => [name, `src/webview/${name}/main.ts`])),
    layout: "src/webview/graph/layout.ts",
  },
  alias: { "@dagrejs/dagre": "./src/webview/page/dagre.ts" },
  plugins: [palettes],
});
copyFileSync("../examples/nan_softmax.nnc", "out/nan_softmax.nnc");
writeFileSync("out/NOTICES.txt", notices([jsonrpc, host, pages, ...libraries].map(({ metafile }) => metafile).concat(computed)));
