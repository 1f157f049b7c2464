// Bundles the extension into out/.  The language client and what finds Python are bundles of their own:
// the one is loaded when it is needed, the other keeps what it remembers for both.

import { build } from "esbuild";
import { copyFileSync } from "node:fs";

await build({
  entryPoints: ["src/extension.ts", "src/language.ts", "src/python.ts"],
  outdir: "out",
  bundle: true,
  minify: true,
  legalComments: "none",
  platform: "node",
  target: "node20",
  format: "cjs",
  // `import()` is to find these bundles by their bare names, as `require` does.
  supported: { "dynamic-import": false },
  external: ["vscode", "./language", "./python"],
  logLevel: "info",
});
copyFileSync("../examples/nan_softmax.nnc", "out/nan_softmax.nnc");
