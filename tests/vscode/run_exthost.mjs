// Has VS Code run the tests of exthost/ in its extension host; usage: run_exthost.mjs PLAN.json

import fs from "node:fs";
import path from "node:path";
import { withEditor } from "./editor.mjs";

const plan = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const LIMIT = 400_000;
const TESTS = ["exthost", "session.js", "table.js"];

await withEditor({ ...plan, settings: { "nncdbg.python": plan.python } }, async ({ page, open, host }) => {
  const remote = (folder) => `vscode-remote://${host}${encodeURI(folder)}`;
  let broken;
  page.on("console", (message) => {
    console.log(message.text());
    // A trace through the files of the tests: they cannot begin.  VS Code itself may stand below the same folder.
    broken ||= TESTS.some((each) => message.text().includes(path.join(import.meta.dirname, each)));
  });
  await open(plan.workspace, [
    ["extensionDevelopmentPath", remote(path.join(import.meta.dirname, "netron"))],
    ["extensionTestsPath", remote(path.join(import.meta.dirname, "exthost.js"))],
    ["skipWelcome", "true"],
  ]);
  for (const end = Date.now() + LIMIT; Date.now() < end && !broken && !fs.existsSync(plan.result); ) {
    await page.waitForTimeout(250);
  }
});
