// VARIABLES: what can be done with a value there.

import assert from "node:assert/strict";
import { pageOf } from "./views.mjs";

/** How long an input may take to open, in milliseconds; it may also be closed already. */
const INPUT = 5_000;

/** Steps over the layer, and enters a text as the value of %h in VARIABLES, until something is seen of it:
 * VS Code closes an input when it draws the view again, as it does some time after a step. */
async function setLayer(page, screen, text, seen) {
  await screen.debug("first_steps.nnc", "Greater");
  await screen.stepUntil("F10", /%h: .*@layer.*\[\[/);
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
  async "a value is edited in VARIABLES, and what depends on it follows"({ page, screen, open }) {
    await open();
    await setLayer(page, screen, "0", '.debug-variables .monaco-list-row:has-text("%h"):has-text("[[0. 0.")');
    await screen.stepUntil("F10", /%scores.*MatMul.*\[\[0\. 0\./);
    await screen.picture("edited");
    await screen.stop();
  },

  async "a value that does not fit is refused in a sentence"({ page, screen, open }) {
    await open();
    await setLayer(page, screen, "no_such(", '.monaco-inputbox-container:has-text("no_such"), .notification-toast:has-text("no_such")');
    await screen.picture("refused");
    await screen.stop();
  },
};
