// An untrusted workspace: no code of the workspace is run, and none for it.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";

export const tests = {
  async "in an untrusted workspace no code is run"({ page, screen, workspace, open, settings }) {
    // A substitute for Python that logs each call.
    const calls = path.join(path.dirname(workspace), "calls");
    const python = path.join(path.dirname(workspace), "python");
    fs.writeFileSync(python, `#!/bin/sh\necho "$@" >> '${calls}'\nexit 1\n`, { mode: 0o755 });
    const restricted = { "security.workspace.trust.enabled": true, "security.workspace.trust.startupPrompt": "never" };
    settings({ ...restricted, "nncdbg.python": python });
    // The Python of the workspace's settings must not run either.
    const own = path.join(workspace, ".vscode", "settings.json");
    fs.writeFileSync(own, JSON.stringify({ "nncdbg.python": path.join(path.dirname(workspace), "python") }));
    await open();
    await screen.see('.statusbar-item:has-text("Restricted Mode")');
    await screen.openFile("nan_softmax.nnc");
    assert.ok(await page.locator('.view-line span[class*="mtk"]:not(.mtk1)').count(), "the text is not coloured");
    await screen.doubleClickFile("model.onnx");
    const message = page.frameLocator("iframe.webview").frameLocator("#active-frame").locator("main");
    await screen.until(async () => /untrusted/.test(await message.innerText()), "the reason for the hidden model");
    await screen.picture("restricted");
    await page.locator('.tab[data-resource-name="nan_softmax.nnc"]').click();
    await screen.click("Softmax");
    await page.keyboard.press("F5");
    // VS Code itself asks for trust before a session.
    const dialog = page.locator(".monaco-dialog-box");
    await dialog.waitFor();
    assert.match(await dialog.innerText(), /trust/i);
    await screen.picture("restricted-debug");
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "hidden" });
    assert.equal(fs.existsSync(calls), false, "a Python was run");
    assert.equal(await page.locator(".debug-toolbar").isVisible(), false);
  },
};
