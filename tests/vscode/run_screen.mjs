// Drives the installed extension through the screen, as a person does; usage: run_screen.mjs PLAN.json
// Each step waits for what it expects to see, and leaves a picture.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { withEditor } from "./editor.mjs";

const { scratch, workspace, vsix, python, result, pictures } = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const LONG = 30_000;

const BREAKPOINT = ".margin-view-overlays [class*=codicon-debug-breakpoint], .glyph-margin-widgets [class*=codicon-debug-breakpoint]";
const STOPPED = ".debug-top-stack-frame-line";

function onScreen(page) {
  const see = (selector, options = {}) => page.waitForSelector(selector, { timeout: LONG, ...options });
  const lines = async () =>
    (await page.locator(".editor-instance .view-line").allInnerTexts()).map((each) => each.replaceAll("\u00a0", " "));
  return {
    see,
    lines,
    gone: (selector) => see(selector, { state: "hidden" }),
    picture: (name) => page.screenshot({ path: path.join(pictures, `${name}.png`) }),
    async until(found, what) {
      for (const end = Date.now() + LONG; Date.now() < end; ) {
        if (await found()) {
          return;
        }
        await page.waitForTimeout(100);
      }
      throw new Error(`never seen: ${what}`);
    },
    async openFile(name, tab = name) {
      const row = page.locator(".explorer-folders-view .monaco-list-row", { hasText: name }).first();
      await row.waitFor({ timeout: LONG });
      await row.dblclick();
      await see(`.tab[data-resource-name="${tab}"]`);
      await see('.statusbar-item:has-text("NNC graph")');
    },
    async click(text) {
      await page.locator(".view-line", { hasText: text }).first().click();
    },
    async breakHere() {
      // The key does nothing until the extension host has told which languages have breakpoints.
      for (let tries = 0; tries < 20 && !(await page.locator(BREAKPOINT).count()); tries++) {
        await page.keyboard.press("F9");
        await page.waitForTimeout(1000);
      }
      assert.ok(await page.locator(BREAKPOINT).count(), "there is no breakpoint in the margin");
    },
    /** F5, again as long as it does nothing: it does not until the extension host is up. */
    async start() {
      for (let tries = 0; tries < 5 && !(await page.locator(STOPPED).count()); tries++) {
        await page.keyboard.press("F5");
        await page.waitForSelector(STOPPED, { timeout: 8_000 }).catch(() => undefined);
      }
      await see(STOPPED);
    },
    async stop() {
      await page.keyboard.press("Shift+F5");
      await see(".debug-toolbar", { state: "hidden" });
    },
  };
}

const tests = {
  async "F9, F5: values at the ends of lines, in the dark theme"({ page, open, settings }) {
    settings({ "workbench.colorTheme": "Default Dark Modern" });
    await open(workspace);
    const screen = onScreen(page);
    await screen.openFile("first_steps.nnc");
    await screen.click("Greater");
    await screen.breakHere();
    await screen.start();
    await page.keyboard.press("F5");
    await screen.until(
      async () => (await screen.lines()).some((each) => /%scores.*MatMul.*\[\[/.test(each)),
      "the value of %scores at the end of its line",
    );
    await page.waitForTimeout(1500);
    await screen.picture("stopped-dark");
    const shown = await screen.lines();
    assert.ok(!shown.some((each) => /%probs: .*Softmax.*\[\[/.test(each)), "a value that is not computed yet is shown");
    await screen.stop();
  },

  async "the same in the light theme, with a hover over a value"({ page, open, settings }) {
    settings({ "workbench.colorTheme": "Default Light Modern" });
    await open(workspace);
    const screen = onScreen(page);
    await screen.openFile("first_steps.nnc");
    await screen.click("Greater");
    await screen.breakHere();
    await screen.start();
    await page.keyboard.press("F5");
    await screen.until(
      async () => (await screen.lines()).some((each) => /%scores.*MatMul.*\[\[/.test(each)),
      "the value of %scores at the end of its line",
    );
    const word = page.locator(".view-lines > .view-line span", { hasText: /^%h$/ }).first();
    const hover = page.locator(".debug-hover-widget");
    await screen.until(async () => {
      // The text moves as the language server's lenses come in, and only a pointer that moves is looked at.
      const { x, y } = await word.boundingBox();
      await page.mouse.move(x + 60, y + 250);
      await page.waitForTimeout(400);
      await page.mouse.move(x + 5, y + 8);
      await page.mouse.move(x + 8, y + 8, { steps: 3 });
      await page.waitForTimeout(1000);
      return (await hover.isVisible()) && /f32\[2,4\]/.test(await hover.innerText());
    }, "the value of %h under the pointer");
    await screen.picture("stopped-light");
    await screen.stop();
  },

  async "the toolbar steps back into a layer"({ page, open }) {
    await open(workspace);
    const screen = onScreen(page);
    await screen.openFile("first_steps.nnc");
    await screen.click("Greater");
    await screen.start();
    await page.keyboard.press("F10");
    await screen.until(
      async () => (await screen.lines()).some((each) => /%h: .*@layer.*\[\[/.test(each)),
      "the value of %h",
    );
    await page.locator('.debug-toolbar [aria-label^="Step Back Into"]').hover();
    await page.waitForTimeout(1000);
    await screen.picture("toolbar");
    await page.locator('.debug-toolbar [aria-label^="Step Back Into"]').click();
    await screen.until(
      async () => (await page.locator(".debug-call-stack .monaco-list-row").allInnerTexts()).some((each) => /@layer/.test(each)),
      "@layer on the call stack",
    );
    await page.locator('.debug-toolbar [aria-label^="Step Back Out"]').click();
    await screen.until(
      async () => !(await page.locator(".debug-call-stack .monaco-list-row").allInnerTexts()).some((each) => /@layer/.test(each)),
      "the frame of @layer is gone",
    );
    await screen.stop();
  },

  async "a right-click on a variable offers nncdbg's commands"({ page, open }) {
    await open(workspace);
    const screen = onScreen(page);
    await screen.openFile("first_steps.nnc");
    await screen.click("Greater");
    await screen.start();
    await page.keyboard.press("F10");
    const row = page.locator(".debug-variables .monaco-list-row", { hasText: "%h" }).first();
    await row.waitFor({ timeout: LONG });
    await row.click({ button: "right" });
    await screen.see(".monaco-menu");
    await page.waitForTimeout(500);
    await screen.picture("menu");
    const menu = await page.locator(".monaco-menu").last().innerText();
    for (const item of ["Why Is It So?", "Break When NaN", "Break When …", "Save as .npy …"]) {
      assert.ok(menu.includes(item), `${item} is not in the menu: ${menu}`);
    }
    await page.locator(".monaco-menu .action-label", { hasText: "Why Is It So?" }).last().click();
    await screen.see('.tab[data-resource-name="why %h"]');
    await screen.picture("why");
    await screen.stop();
  },

  async "an .onnx opens as a listing"({ page, open }) {
    await open(workspace);
    const screen = onScreen(page);
    // Once VS Code knows the language of this one, it knows the editor of the other.
    await screen.openFile("nan_softmax.nnc");
    await screen.openFile("model.onnx", "model.nnc");
    await screen.click("Add(");
    await screen.breakHere();
    await screen.start();
    await page.keyboard.press("F5");
    await screen.until(
      async () => (await screen.lines()).some((each) => /"conv:0".*Relu\(%x\).*\[/.test(each)),
      'the value of %"conv:0"',
    );
    await page.waitForTimeout(1000);
    await screen.picture("listing");
    assert.equal(await page.locator('.tab[data-resource-name="model.onnx"]').count(), 0);
    await screen.stop();
  },

  async "a model that cannot be read says why"({ page, open }) {
    await open(workspace);
    const screen = onScreen(page);
    await screen.openFile("nan_softmax.nnc");
    const row = page.locator(".explorer-folders-view .monaco-list-row", { hasText: "junk.onnx" });
    await row.dblclick();
    await screen.see('.tab[data-resource-name="junk.onnx"]');
    const said = page.frameLocator("iframe.webview").frameLocator("#active-frame").locator("main");
    await screen.until(async () => /error: .*junk\.onnx/s.test(await said.innerText()), "the error");
    await screen.picture("junk");
  },

  async "a server that dies is told of, with the offer to restart"({ page, open }) {
    const file = path.join(workspace, ".vscode", "launch.json");
    fs.writeFileSync(path.join(workspace, "dies.py"), "import os\n\nos._exit(3)\n");
    const launch = { type: "nncdbg", request: "launch", name: "dies", program: "nan_softmax.nnc", opLibrary: ["dies.py"] };
    fs.writeFileSync(file, JSON.stringify({ version: "0.2.0", configurations: [launch] }));
    await open(workspace);
    const screen = onScreen(page);
    await screen.openFile("nan_softmax.nnc");
    await screen.click("Softmax");
    const toast = page.locator(".notification-toast", { hasText: "nncdbg ended with exit code 3" });
    for (let tries = 0; tries < 5 && !(await toast.count()); tries++) {
      await page.keyboard.press("F5");
      await toast.first().waitFor({ timeout: 6_000 }).catch(() => undefined);
    }
    await screen.picture("died");
    assert.equal(await toast.first().locator(".monaco-button", { hasText: "Restart" }).count(), 1);
    fs.rmSync(file);
  },

  async "without Python the message offers to select one"({ page, open, settings }) {
    settings({ "nncdbg.python": "/nowhere/python" });
    await open(workspace);
    const screen = onScreen(page);
    await screen.openFile("nan_softmax.nnc");
    await screen.click("Softmax");
    const toast = page.locator(".notification-toast", { hasText: "there is no Python at /nowhere/python" });
    for (let tries = 0; tries < 5 && !(await toast.count()); tries++) {
      await page.keyboard.press("F5");
      await toast.first().waitFor({ timeout: 6_000 }).catch(() => undefined);
    }
    await toast.first().waitFor({ timeout: LONG });
    await page.waitForTimeout(500);
    await screen.picture("no-python");
    await toast.first().locator(".monaco-button", { hasText: "Select Python" }).click();
    await screen.see('.tab:has-text("Settings")');
    settings({});
  },
};

const results = [];
await withEditor({ scratch, vsix, settings: { "nncdbg.python": python } }, async (editor) => {
  for (const [name, test] of Object.entries(tests)) {
    const began = Date.now();
    let error;
    try {
      await test(editor);
    } catch (caught) {
      error = caught.stack;
      await editor.page.screenshot({ path: path.join(pictures, `failed-${results.length}.png`) });
    }
    results.push({ name, milliseconds: Date.now() - began, error });
    fs.writeFileSync(result, JSON.stringify(results, null, 1));
  }
});
