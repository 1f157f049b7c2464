// Models that open as listings, and those that do not.

import assert from "node:assert/strict";

export const tests = {
  async "an .onnx opens as a listing"({ page, screen, open }) {
    await open();
    // Once VS Code knows the language of this one, it mostly knows the editor of the other.
    await screen.openFile("nan_softmax.nnc");
    await screen.openModel("model.onnx", "model.nnc");
    await screen.debugLine("Add(");
    await screen.line(/"conv:0".*Relu\(%x\).*\[/);
    await screen.picture("listing");
    assert.equal(await page.locator('.tab[data-resource-name="model.onnx"]').count(), 0);
    await screen.stop();
  },

  async "a model that cannot be read says why"({ page, screen, open }) {
    await open();
    await screen.openFile("nan_softmax.nnc");
    await screen.doubleClickFile("junk.onnx");
    await screen.see('.tab[data-resource-name="junk.onnx"]');
    const said = page.frameLocator("iframe.webview").frameLocator("#active-frame").locator("main");
    await screen.until(async () => /error: .*junk\.onnx/s.test(await said.innerText()), "the error");
    await screen.picture("junk");
  },
};
