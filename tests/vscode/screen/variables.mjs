// Actions on a value in VARIABLES.

import assert from "node:assert/strict";
import { pageOf } from "./views.mjs";

/** ms to wait for an input to open; it may also be closed already. */
const INPUT = 5_000;

/** Steps over the layer, and enters a text as the value of %h in VARIABLES until it has a visible effect:
 * VS Code closes an input when it redraws the view, some time after a step. */
async function setLayer(page, screen, text, seen) {
  await screen.debug("first_steps.nnc", "Greater");
  await screen.stepUntil("F10", /%h = @layer.*\[\[/);
  const input = page.locator(".debug-variables .inputBoxContainer input");
  const enter = async () => {
    await screen.rows("debug-variables", { hasText: "%h" }).first().dblclick();
    const open = await input.fill(text, { timeout: INPUT }).then(() => true, () => false);
    if (open) {
      await input.press("Enter", { timeout: INPUT }).catch(() => undefined);
    }
  };
  await screen.again(enter, seen, `${text} in VARIABLES`);
}

export const tests = {
  async "a right-click on a variable offers nncdbg's commands"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await page.keyboard.press("F10");
    await screen.row("debug-variables", /%h/);
    await screen.rows("debug-variables", { hasText: "%h" }).first().click({ button: "right" });
    await screen.see(".monaco-menu");
    await screen.picture("menu");
    const menu = await page.locator(".monaco-menu").last().innerText();
    for (const item of ["Explain Value", "Break When NaN", "Break When …", "Save as .npy …"]) {
      assert.ok(menu.includes(item), `${item} is not in the menu: ${menu}`);
    }
    await page.locator(".monaco-menu .action-label", { hasText: "Explain Value" }).last().click();
    const frame = await pageOf(page, screen, "header b");
    await screen.until(async () => (await frame.locator("header b").innerText()) === "%h", "%h is explained");
    await frame.locator("ol", { hasText: "Relu" }).waitFor();
    await screen.picture("why");
    await screen.stop();
  },
  async "a value is edited in VARIABLES, and dependent values are recomputed"({ page, screen, open }) {
    await open();
    await setLayer(page, screen, "0", '.debug-variables .monaco-list-row:has-text("%h"):has-text("[[0. 0.")');
    await screen.stepUntil("F10", /%scores.*MatMul.*\[\[0\. 0\./);
    await screen.picture("edited");
    await screen.stop();
  },

  async "an invalid value is refused with a message"({ page, screen, open }) {
    await open();
    await setLayer(page, screen, "no_such(", '.monaco-inputbox-container:has-text("no_such"), .notification-toast:has-text("no_such")');
    await screen.picture("refused");
    await screen.stop();
  },
};
