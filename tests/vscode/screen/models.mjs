// Models that open as listings, and models that cannot be read.

import assert from "node:assert/strict";

export const tests = {
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
