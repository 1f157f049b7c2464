// Drives the installed extension through the screen, as a person does; usage: run_screen.mjs PLAN.json
// The tests are in screen/, by theme.  Each has a workspace of its own, and leaves pictures.

import fs from "node:fs";
import path from "node:path";
import { withEditor } from "./editor.mjs";
import { Screen } from "./screen.mjs";
import { runTables } from "./table.js";

const plan = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));

const tables = [];
for (const theme of plan.themes) {
  tables.push([theme, (await import(`./screen/${theme}.mjs`)).tests]);
}

let count = 0;

/** A copy of the workspace, which VS Code knows nothing of yet: no breakpoints, no editors. */
function freshWorkspace() {
  const folder = path.join(plan.scratch, String(++count), path.basename(plan.workspace));
  fs.cpSync(plan.workspace, folder, { recursive: true });
  return folder;
}

await withEditor({ ...plan, settings: { "nncdbg.python": plan.python } }, async ({ page, open, host, settings }) => {
  const screen = new Screen(page, plan.pictures);
  /** With another extension beside ours: a folder of these tests. */
  const beside = (name) => ["extensionDevelopmentPath", `vscode-remote://${host}${encodeURI(path.join(import.meta.dirname, name))}`];
  await runTables(tables, plan.result, async (test, theme) => {
    const workspace = freshWorkspace();
    settings({});
    try {
      await test({ page, screen, workspace, settings, open: (extension) => open(workspace, extension ? [beside(extension)] : []), python: plan.python });
    } catch (error) {
      await page.screenshot({ path: path.join(plan.pictures, `failed-${theme}-${count}.png`) });
      throw error;
    }
  });
});
