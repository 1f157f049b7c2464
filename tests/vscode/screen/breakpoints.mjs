// Breakpoints in the margin and in the view BREAKPOINTS.

import assert from "node:assert/strict";
import { BREAKPOINT } from "../screen.mjs";

export const tests = {
  async "a click in the margin sets a breakpoint, another removes it"({ page, screen, open }) {
    await open();
    await screen.openFile("first_steps.nnc");
    const click = async () => {
      // A line that is being redrawn has no box.
      const line = page.locator(".view-line", { hasText: "MatMul" }).first();
      const { y, height } = await screen.until(() => line.boundingBox(), "the line");
      const { x } = await page.locator(".editor-instance .margin").first().boundingBox();
      await page.mouse.click(x + height / 2, y + height / 2);
    };
    await screen.again(click, BREAKPOINT, "a breakpoint in the margin");
    await screen.click("%limit");
    await screen.start();
    await screen.continueTo("MatMul");
    await screen.scrollToEnd("debug-breakpoints");
    await screen.row("debug-breakpoints", /first_steps\.nnc/);
    await click();
    await screen.until(
      async () => !(await screen.rows("debug-breakpoints").allInnerTexts()).some((each) => /first_steps/.test(each)),
      "the breakpoint is gone from BREAKPOINTS",
    );
    await screen.stop();
  },

  async "a filter ticked in BREAKPOINTS stops where a NaN originates"({ page, screen, open }) {
    await open();
    await screen.debug("nan_softmax.nnc", "Softmax");
    const ticked = screen.rows("debug-breakpoints").locator("input[type=checkbox]:checked");
    await ticked.first().waitFor();
    while (await ticked.count()) {
      await ticked.first().click();
    }
    const box = screen.rows("debug-breakpoints", { hasText: "NaN originates" }).locator("input[type=checkbox]");
    await box.check();
    await screen.continueTo("%terms");
    const widget = page.locator(".exception-widget");
    await widget.waitFor();
    assert.match(await widget.innerText(), /NaN/);
    await screen.picture("exception");
    await screen.stop();
  },
};
