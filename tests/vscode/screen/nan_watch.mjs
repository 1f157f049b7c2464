// A model is watched from the Test Explorer: result, message with links, Problems, and a session at the origin.

import assert from "node:assert/strict";

const row = (page, name) => page.locator(`.monaco-list-row[aria-label^="${name} ("]`).first();

export const tests = {
  async "a model that fails shows origin and cause, and a session starts at the origin"({ page, screen, open }) {
    await open();
    await screen.openFile("nan_softmax.nnc");
    await screen.command("nncdbg: Watch This Model");
    await screen.see('.monaco-list-row[aria-label^="nan_softmax.nnc (Failed)"]');
    const message = page.locator(".test-error-content-widget", { hasText: "the first Inf is in %logq" });
    await message.waitFor();
    await screen.picture("watch-explorer");
    await screen.command("Problems: Focus on Problems View");
    await screen.until(
      async () => (await screen.texts(page.locator(".markers-panel .monaco-list-row"))).some((each) => /first Inf is in %logq/.test(each)),
      "the finding in Problems",
    );
    await screen.picture("watch-problems");
    await message.click();
    const link = page.locator("a", { hasText: "Debug: stop at the origin" }).first();
    await link.waitFor();
    await page.locator("a", { hasText: "Open the repro bundle" }).first().waitFor();
    await screen.picture("watch-message");
    await link.click();
    await screen.stoppedAt("Log(%q)");
    await screen.picture("watch-debug");
    await screen.stop();
  },

  async "the models of the workspace are listed, and one without findings passes"({ page, screen, open }) {
    await open();
    await screen.openFile("first_steps.nnc");
    await screen.command("nncdbg: Watch This Model");
    await screen.see('.monaco-list-row[aria-label^="first_steps.nnc (Passed)"]');
    await row(page, "attention.nnc").waitFor();
    assert.equal(await row(page, ".nncdbg").count(), 0);
  },

  async "an error of the command is shown as an error"({ page, screen, open }) {
    await open();
    await screen.openFile("broken.nnc");
    await screen.command("nncdbg: Watch This Model");
    await screen.see('.monaco-list-row[aria-label^="broken.nnc (Errored)"]');
    await screen.see('.test-error-content-widget:has-text("%nothing is not defined")');
    await screen.picture("watch-error");
  },
};
