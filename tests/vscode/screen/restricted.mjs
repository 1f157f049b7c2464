// A workspace that is not trusted: nothing of it, and nothing for it, is run.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";

export const tests = {
  async "in a workspace that is not trusted nothing is run"({ page, screen, workspace, open, settings }) {
    // A Python that tells of each time it is run.
    const told = path.join(path.dirname(workspace), "told");
    const python = path.join(path.dirname(workspace), "python");
    fs.writeFileSync(python, `#!/bin/sh\necho "$@" >> '${told}'\nexit 1\n`, { mode: 0o755 });
    const restricted = { "security.workspace.trust.enabled": true, "security.workspace.trust.startupPrompt": "never" };
    settings({ ...restricted, "nncdbg.python": python });
    // And what the workspace would have run must not be.
    const own = path.join(workspace, ".vscode", "settings.json");
    fs.writeFileSync(own, JSON.stringify({ "nncdbg.python": path.join(path.dirname(workspace), "python") }));
    await open();
    await screen.see('.statusbar-item:has-text("Restricted Mode")');
    await screen.openFile("nan_softmax.nnc");
    assert.ok(await page.locator('.view-line span[class*="mtk"]:not(.mtk1)').count(), "the text is not coloured");
    await screen.doubleClickFile("model.onnx");
    const said = page.frameLocator("iframe.webview").frameLocator("#active-frame").locator("main");
    await screen.until(async () => /untrusted/.test(await said.innerText()), "why the model is not shown");
    await screen.picture("restricted");
    await page.locator('.tab[data-resource-name="nan_softmax.nnc"]').click();
    await screen.click("Softmax");
    await page.keyboard.press("F5");
    // VS Code itself asks for trust before a session.
    const asked = page.locator(".monaco-dialog-box");
    await asked.waitFor();
    assert.match(await asked.innerText(), /trust/i);
    await screen.picture("restricted-debug");
    await page.keyboard.press("Escape");
    await asked.waitFor({ state: "hidden" });
    assert.equal(fs.existsSync(told), false, "a Python was run");
    assert.equal(await page.locator(".debug-toolbar").isVisible(), false);
  },
};
