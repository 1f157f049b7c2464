// Has VS Code run the tests of exthost/ in its extension host; usage: run_exthost.mjs PLAN.json

import fs from "node:fs";
import path from "node:path";
import { withEditor } from "./editor.mjs";

const { scratch, workspace, extension, python, result } = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const LIMIT = 280_000;

await withEditor({ scratch, settings: { "nncdbg.python": python } }, async ({ page, open, host }) => {
  const remote = (folder) => `vscode-remote://${host}${encodeURI(folder)}`;
  await open(workspace, [
    ["extensionDevelopmentPath", remote(extension)],
    ["extensionTestsPath", remote(path.join(import.meta.dirname, "exthost", "index.js"))],
    ["skipWelcome", "true"],
  ]);
  for (const end = Date.now() + LIMIT; Date.now() < end && !fs.existsSync(result); ) {
    await page.waitForTimeout(250);
  }
});
