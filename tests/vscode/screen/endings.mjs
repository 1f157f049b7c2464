// The end of a run: its outputs and findings, and the offered actions.

import assert from "node:assert/strict";

/** Opens the list of outputs and findings, and returns its rows. */
async function rowsOf(screen, page, toast) {
  await toast.locator(".monaco-button", { hasText: "Show Outputs" }).click();
  await screen.see(".quick-input-list .monaco-list-row");
  return page.locator(".quick-input-list .monaco-list-row");
}

export const tests = {
  async "a run that ends with NaN restarts and stops where it originated"({ page, screen, open }) {
    await open();
    await screen.debug("nan_softmax.nnc", "Softmax");
    const ticked = screen.rows("debug-breakpoints", { hasText: "NaN originates" }).locator("input[type=checkbox]");
    assert.ok(await ticked.isChecked(), "on by default");
    await ticked.click();
    await page.keyboard.press("F5");
    const message = "nan_softmax.nnc has ended: %loss has NaN.";
    const ended = await screen.holdToast(message);
    await screen.expectAnswer(/^output %loss f32\[\] nan/);
    await screen.picture("ended");
    await ended.locator(".monaco-button", { hasText: "Restart and Stop Where It Originated" }).click();
    await screen.stoppedAt("%terms");
    await page.locator(".exception-widget").waitFor();
    await page.keyboard.press("F5");
    await screen.holdToast(message);
    const rows = await rowsOf(screen, page, ended);
    await screen.picture("outputs");
    const listed = async () => (await screen.texts(rows)).map((each) => /%loss|NaN originates/.exec(each)?.[0]).join();
    await screen.until(async () => (await listed()) === "%loss,NaN originates", "the output and the finding");
    await rows.filter({ hasText: "NaN originates" }).click();
    await screen.see('.statusbar-item:has-text("Ln 22")');
  },

  async "an output opens as a tensor, at the end of the run"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "layer");
    await page.keyboard.press("F5");
    const ended = await screen.holdToast("first_steps.nnc has ended.");
    const rows = await rowsOf(screen, page, ended);
    await rows.filter({ hasText: "%probs" }).click();
    await screen.see('.tab:has-text("%probs")');
    await screen.picture("output");
    await screen.stop();
  },
};
