// Runs themes of tests in one editor; usage: run_themes.mjs PLAN.json
// A line of the standard input names a theme, such as `screen/tensor`, and the file for its results.  The standard
// output repeats the name when the theme is done.  All else that is printed goes to the standard error.

import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { withEditor } from "./editor.mjs";
import { Screen } from "./screen.mjs";
import { runTable } from "./table.js";

const plan = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const HERE = import.meta.dirname;
/** A message of VS Code with one of these files means that the tests of the extension host cannot start. */
const IN_THE_HOST = ["exthost", "session.js", "table.js"].map((each) => path.join(HERE, each));

console.log = console.error;
let count = 0;

/** Copies the workspace to a folder for which VS Code has no state: no breakpoints, no editors. */
function freshWorkspace() {
  const folder = path.join(plan.scratch, String(++count), path.basename(plan.workspace));
  fs.cpSync(plan.workspace, folder, { recursive: true });
  return folder;
}

/** Runs the tests of a file of exthost/ in VS Code's extension host. */
async function inTheHost({ page, open, host }, theme, result) {
  const workspace = freshWorkspace();
  fs.writeFileSync(path.join(workspace, ".vscode", "tests.json"), JSON.stringify({ ...plan, theme, result }));
  const remote = (name) => `vscode-remote://${host}${encodeURI(path.join(HERE, name))}`;
  let broken = false;
  const read = (message) => {
    console.log(message.text());
    broken ||= IN_THE_HOST.some((each) => message.text().includes(each));
  };
  page.on("console", read);
  await open(workspace, [
    ["extensionDevelopmentPath", remote("netron")],
    ["extensionTestsPath", remote("exthost.js")],
    ["skipWelcome", "true"],
  ]);
  while (!broken && !fs.existsSync(result)) {
    await page.waitForTimeout(100);
  }
  page.off("console", read);
}

/** Runs the tests of a file of screen/, which use mouse and keys.  Each test has a new workspace, and saves pictures. */
async function onTheScreen({ page, open, forget, host, settings }, theme, result) {
  const { tests } = await import(`./${theme}.mjs`);
  const screen = new Screen(page, plan.pictures);
  /** Adds an extension from a folder of these tests. */
  const beside = (name) => ["extensionDevelopmentPath", `vscode-remote://${host}${encodeURI(path.join(HERE, name))}`];
  await runTable(tests, result, async (test) => {
    const workspace = freshWorkspace();
    settings({});
    try {
      await test({ page, screen, workspace, settings, forget, open: (extension) => open(workspace, extension ? [beside(extension)] : []), python: plan.python });
    } catch (error) {
      await page.screenshot({ path: path.join(plan.pictures, `failed-${path.basename(theme)}-${count}.png`) });
      throw error;
    }
  });
}

/** Settings without slow features of a new window that no test needs. */
const SETTINGS = {
  "nncdbg.python": plan.python,
  "chat.disableAIFeatures": true,
  "extensions.autoCheckUpdates": false,
  "git.enabled": false,
  "workbench.reduceMotion": "on",
};

await withEditor({ ...plan, settings: SETTINGS }, async (editor) => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { theme, result } = JSON.parse(line);
    await editor.forget();
    editor.settings({});
    await (theme.startsWith("exthost/") ? inTheHost : onTheScreen)(editor, theme, result);
    process.stdout.write(`${theme}\n`);
  }
});
