// Models that open as listings, and models that cannot be read.

import assert from "node:assert/strict";

export const tests = {
  async "the first model of a fresh window opens as a program, also where VS Code has opened it as text"({ page, screen, open, forget }) {
    // VS Code opens the second one without a document: its first bytes include zeros.
    for (const name of ["model", "weights"]) {
      await forget();
      await open();
      await screen.doubleClickFile(`${name}.onnx`);
      await screen.see(`.tab[data-resource-name="${name}.nnc"].active`);
      await screen.see('.statusbar-item:has-text("NNC graph")');
      await screen.expectHidden(`.tab[data-resource-name="${name}.onnx"]`);
      await screen.picture(`first-${name}`);
    }
    // The user's choice of the text editor is kept, but for the first seconds.
    await page.waitForTimeout(5_000);
    await page.locator(".explorer-folders-view .monaco-list-row", { hasText: "model.onnx" }).first().click({ button: "right" });
    await page.locator(".monaco-menu .action-label", { hasText: "Open With..." }).hover();
    await page.keyboard.press("Enter");
    await page.locator(".quick-input-list .monaco-list-row", { hasText: "Text Editor" }).first().click();
    await screen.see('.tab[data-resource-name="model.onnx"].active');
    await page.waitForTimeout(1_000);
    await screen.see('.tab[data-resource-name="model.onnx"].active');
  },

  async "an .onnx opens as a listing"({ page, screen, open }) {
    await open();
    // Once VS Code has registered the language of this file, it has mostly registered the editor of models.
    await screen.openFile("nan_softmax.nnc");
    await screen.openModel("model.onnx", "model.nnc");
    await screen.debugLine("Add(");
    await screen.line(/"conv:0".*Relu\(%x\).*\[/);
    await screen.picture("listing");
    assert.equal(await page.locator('.tab[data-resource-name="model.onnx"]').count(), 0);
    await screen.stop();
  },

  async "a model that cannot be read shows the error"({ page, screen, open }) {
    await open();
    await screen.openFile("nan_softmax.nnc");
    await screen.doubleClickFile("junk.onnx");
    await screen.see('.tab[data-resource-name="junk.onnx"]');
    const message = page.frameLocator("iframe.webview").frameLocator("#active-frame").locator("main");
    await screen.until(async () => /error: .*junk\.onnx/s.test(await message.innerText()), "the error");
    await screen.picture("junk");
  },
};
