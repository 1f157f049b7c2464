// The extension installs nncdbg for itself, from the wheel in its package; dependencies are downloaded.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { STOPPED } from "../screen.mjs";

const OWN = { "nncdbg.python": "" };

/** Returns the storage folder of the extension. */
function storage(workspace) {
  return path.join(path.dirname(path.dirname(workspace)), "data", "User", "globalStorage", "nncdbg.nncdbg");
}

export const tests = {
  async "a failed installation shows the cause and can be retried; the model then opens and stops"({ page, screen, workspace, open, settings }) {
    settings(OWN);
    const folder = storage(workspace);
    fs.rmSync(folder, { recursive: true, force: true });
    fs.mkdirSync(path.dirname(folder), { recursive: true });
    fs.writeFileSync(folder, "no folder");
    await open();
    // Once VS Code has registered the language of this file, it has mostly registered the editor of models.
    await screen.openFile("nan_softmax.nnc");
    const failed = screen.toast("nncdbg cannot be installed");
    await failed.waitFor();
    await screen.doubleClickFile("model.onnx");
    await screen.see('.output-view-container:visible, .part.panel:has-text("nncdbg installation")');
    await screen.picture("install-failed");
    fs.rmSync(folder);
    const begun = Date.now();
    await failed.locator(".monaco-button", { hasText: "Retry" }).click();
    await screen.toast("Installing nncdbg").waitFor();
    await screen.picture("installing");
    await screen.see('.tab[data-resource-name="model.nnc"]', { timeout: 180_000 });
    await screen.start();
    const seconds = (Date.now() - begun) / 1000;
    await screen.picture("installed");
    console.log(`installed, opened and stopped after ${seconds.toFixed(1)} s`);
    await screen.stop();
  },

  async "the next session uses the installation at once"({ page, screen, workspace, open, settings }) {
    settings(OWN);
    // No file of the workspace may be imported.
    for (const name of ["nncdbg.py", "sitecustomize.py", "json.py"]) {
      fs.writeFileSync(path.join(workspace, name), `open(${JSON.stringify(path.join(workspace, "owned"))}, "w")\n`);
    }
    await open();
    await screen.debug("first_steps.nnc", "layer");
    assert.ok(await page.locator(STOPPED).count());
    assert.equal(await screen.toast("Installing nncdbg").count(), 0);
    assert.equal(fs.existsSync(path.join(workspace, "owned")), false);
    await screen.stop();
  },
};
