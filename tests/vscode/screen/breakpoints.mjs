// Breakpoints in the margin and in the view BREAKPOINTS.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { BREAKPOINT, RETRY_ONCE_AFTER } from "../screen.mjs";

export const tests = {
  async "a click in the margin sets a breakpoint, another removes it"({ page, screen, workspace, open }) {
    await open();
    await screen.openFile("first_steps.nnc");
    const lines = fs.readFileSync(path.join(workspace, "first_steps.nnc"), "utf8").split("\n");
    const number = page.locator(`.line-numbers:text-is("${lines.findIndex((each) => each.includes("MatMul")) + 1}")`);
    const margin = page.locator(".margin-view-overlays > div").filter({ has: number });
    // The lens above the graph moves the lines below it; this waits until they stand still.
    const click = () => margin.click({ position: { x: 10, y: 10 } });
    await screen.again(click, BREAKPOINT, "a breakpoint in the margin", RETRY_ONCE_AFTER);
    await screen.click("%limit");
    await screen.start();
    await screen.continueTo("MatMul");
    await screen.scrollToEnd("debug-breakpoints");
    await screen.row("debug-breakpoints", /first_steps\.nnc/);
    await page.locator(BREAKPOINT).first().click();
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
