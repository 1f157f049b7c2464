// A training in graph text: its states, a plot over its steps, and the way from a statement to its gradient.

import assert from "node:assert/strict";
import { only, pageOf } from "./views.mjs";

const UPDATE = "update %w1";

/** Stops before the update of step 6. */
async function toStepSix(page, screen) {
  await screen.debug("train_mlp.nnc", UPDATE);
  await screen.enter("break 20 if $step == 6");
  await screen.expectAnswer(/Breakpoint 1/);
  await screen.continueTo(UPDATE);
}

/** Puts the cursor into a line of the editor. */
async function goToLine(page, screen, line) {
  await screen.click(UPDATE);
  await page.keyboard.press("Control+g");
  await page.locator(".quick-input-widget input").fill(`:${line}`);
  await page.keyboard.press("Enter");
  await atLine(page, screen, line);
}

function atLine(page, screen, line) {
  return screen.until(() => page.locator(".statusbar-item", { hasText: `Ln ${line},` }).count(), `the cursor in line ${line}`);
}

export const tests = {
  async "the call stack has the step, and the states are a scope"({ page, screen, open }) {
    await open();
    await toStepSix(page, screen);
    await screen.row("debug-call-stack", /@run step 6 of/);
    // The list has only the rows in view.
    await screen.row("debug-variables", /%w1\.1 = f32\[2,16\]/);
    assert.deepEqual((await screen.texts(screen.rows("debug-variables"))).slice(0, 2), ["States", "Inputs"]);
    await screen.rows("debug-variables", { hasText: "States" }).click();
    await screen.row("debug-variables", /%w1 = f32\[2,16\]/);
    await screen.picture("training-states");
    await screen.stop();
  },

  async "the hover over a parameter has the gradient of the loss, with its elements"({ page, screen, open }) {
    await open();
    await toStepSix(page, screen);
    const name = page.locator(".view-line", { hasText: "nncdbg.SGD(%w1" }).first().locator("span", { hasText: /^%w1$/ }).first();
    const gradient = page.locator(".debug-hover-widget .monaco-list-row", { hasText: "gradient of %l" });
    // VS Code shows a hover after a move of the pointer within the editor.
    const point = async () => {
      await page.locator(".view-line", { hasText: "update %w1" }).hover();
      await page.waitForTimeout(100);
      await name.hover();
    };
    await screen.again(point, gradient, "the gradient in the hover");
    assert.match(await gradient.innerText(), /norm\s[0-9.e-]+\smin\s-[0-9.e-]+\smax\s[0-9.e-]+$/);
    await screen.picture("training-hover");
    const shape = page.locator(".debug-hover-widget .monaco-list-row", { hasText: "shape" }).nth(1);
    // On a busy machine, VS Code may have hidden the hover meanwhile.
    const expand = async () => {
      await point();
      await gradient.click({ timeout: 5000 }).catch(() => undefined);
    };
    await screen.again(expand, shape, "the elements of the gradient");
    await screen.picture("training-hover-open");
    await screen.stop();
  },

  async "a value is plotted over the steps, and a click goes to a step"({ page, screen, open }) {
    await open();
    await toStepSix(page, screen);
    await only(page, "Statistics");
    const frame = await pageOf(page, screen, "li .go");
    const row = frame.locator('li:has([aria-label^="%d_w2,"])').first();
    await row.locator(".curve").click();
    const area = row.locator(".plot .area");
    await area.waitFor();
    assert.match(await row.locator("output").innerText(), /^step 6: mean /);
    const inView = () => row.evaluate((each) => each.getBoundingClientRect().top >= 0 && each.getBoundingClientRect().bottom <= innerHeight + 1);
    assert.ok(await inView(), "the whole plot is in view");
    await screen.picture("training-plot");
    const { width, height } = await area.boundingBox();
    await area.click({ position: { x: width / 2, y: height / 2 } });
    await screen.row("debug-call-stack", /@run step 3 of/);
    await screen.until(async () => /^step 3: /.test(await row.locator("output").innerText()), "the plot up to step 3");
    assert.ok(await inView(), "the plot stays in view, although other values are listed");
    await screen.picture("training-plot-back");
    await screen.stop();
  },

  async "commands and lenses lead from a statement to its gradient and back"({ page, screen, open }) {
    await open();
    await toStepSix(page, screen);
    await goToLine(page, screen, 28);
    await screen.command("Go to the Backward of This Line");
    await screen.see('.view-line:has-text("## of line 28")');
    await screen.picture("training-backward");
    await screen.command("Go to the Forward of This Line");
    await screen.see('.tab.active[data-resource-name="train_mlp.nnc"]');
    const lens = page.locator(".codelens-decoration a", { hasText: "Go to backward @loss.backward" }).first();
    await lens.click();
    await screen.see('.view-line:has-text("The gradient of @loss")');
    await page.locator(".codelens-decoration a", { hasText: "Go to forward @loss" }).first().waitFor();
    await screen.picture("training-lens");
    await screen.click("%d_log");
    await screen.command("Go to the Forward of This Line");
    await atLine(page, screen, 34);
    await screen.command("Go to the Forward of This Line");
    await screen.toast("line 34 differentiates no other line").waitFor();
    await screen.stop();
  },
};
