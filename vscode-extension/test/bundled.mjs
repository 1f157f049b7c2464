// Modules of src/ for the tests: bundled as the extension bundles them, then imported.

import { build } from "esbuild";

/** The editor's API is what a test has assigned to `globalThis.vscode`. */
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
  const { outputFiles } = await build({
    stdin: { contents, resolveDir, loader: "ts" },
    bundle: true,
    write: false,
    platform: "node",
    format: "esm",
    plugins: [editor],
    logLevel: "error",
  });
  return import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);
}
