// Breakpoints and steps, with the keys and buttons of VS Code, and inline values at a stop.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";

export const tests = {
  async "F9, F5: values at the ends of lines, in the dark theme"({ screen, open, settings }) {
    settings({ "workbench.colorTheme": "Default Dark Modern" });
    await open();
    await screen.debugTo("first_steps.nnc", "Greater");
    await screen.line(/%scores.*MatMul.*\[\[/);
    await screen.picture("stopped-dark");
    const shown = await screen.lines();
    assert.ok(!shown.some((each) => /%probs = Softmax.*\[\[/.test(each)), "a value that is not computed yet is shown");
    await screen.stop();
  },

  async "the same in the light theme, with a hover over a value"({ page, screen, open, settings }) {
    settings({ "workbench.colorTheme": "Default Light Modern" });
    await open();
    await screen.debugTo("first_steps.nnc", "Greater");
    await screen.line(/%scores.*MatMul.*\[\[/);
    const word = page.locator(".view-lines > .view-line span", { hasText: /^%h$/ }).first();
    const hover = page.locator(".debug-hover-widget");
    await screen.until(async () => {
      // The text moves when code lenses appear, and VS Code reacts only to a moving pointer.
      const { x, y } = await word.boundingBox();
      await page.mouse.move(x + 60, y + 250);
      await page.mouse.move(x + 5, y + 8);
      await page.mouse.move(x + 8, y + 8, { steps: 3 });
      await hover.waitFor({ timeout: 2_000 }).catch(() => undefined);
      return (await hover.isVisible()) && /f32\[2,4\]/.test(await hover.innerText());
    }, "the value of %h under the pointer");
    await screen.picture("stopped-light");
    await screen.stop();
  },

  async "values with a prefix: at the ends of lines, in the variables and in the debug console"({ page, screen, open, workspace }) {
    const head = ["#nncdbg 1", "opset 18", "", 'prefix rnn "/model/decoder/rnn/"', ""];
    const lines = ["graph @main(%x: f32[2]) -> (%rnn::out: f32[2]) {", "  %rnn::hidden: f32[2] = Tanh(%x)", "  %rnn::twice: f32[2] = Add(%rnn::hidden, %rnn::hidden)", "  %rnn::out: f32[2] = Relu(%rnn::twice)", "  return %rnn::out", "}", ""];
    fs.writeFileSync(path.join(workspace, "prefixed.nnc"), [...head, ...lines].join("\n"));
    await open();
    await screen.debug("prefixed.nnc", "Relu");
    await screen.stoppedAt("%rnn::hidden:");
    await screen.stepUntil("F10", /%rnn::hidden: .*Tanh.*\[/);
    await screen.stepUntil("F10", /%rnn::twice: .*Add.*\[/);
    await screen.row("debug-variables", /twice/);
    await screen.enter("%rnn::twice / %rnn::hidden");
    await screen.expectAnswer(/f32\[2\].*2/);
    await screen.picture("prefixes");
    await screen.stop();
  },

  async "the toolbar steps back into a layer"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await screen.stepUntil("F10", /%h = @layer.*\[\[/);
    await page.locator('.debug-toolbar [aria-label^="Step Back Into"]').hover();
    await screen.see(".workbench-hover");
    await screen.picture("toolbar");
    await page.locator('.debug-toolbar [aria-label^="Step Back Into"]').click();
    await screen.row("debug-call-stack", /@layer/);
    await page.locator('.debug-toolbar [aria-label^="Step Back Out"]').click();
    await screen.until(
      async () => !(await screen.rows("debug-call-stack").allInnerTexts()).some((each) => /@layer/.test(each)),
      "the frame of @layer is gone",
    );
    await screen.stop();
  },
  async "F10, F11, Shift+F11, and Step Back in the toolbar"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await screen.stoppedAt("%h = ");
    await page.keyboard.press("F11");
    await screen.stoppedAt("%mean = ");
    await page.keyboard.press("Shift+F11");
    await screen.stoppedAt("%scores = ");
    await page.keyboard.press("F10");
    await screen.stoppedAt("while @sharpen");
    await page.locator('.debug-toolbar [aria-label^="Step Back"]').first().click();
    await screen.stoppedAt("%scores = ");
    assert.ok(!(await screen.texts(screen.rows("debug-call-stack"))).some((each) => /Load More/.test(each)), "there are no more frames");
    await page.locator('.debug-toolbar [aria-label^="Reverse"]').first().click();
    await screen.stoppedAt("%h = ");
    await page.keyboard.press("F10");
    await screen.stoppedAt("%scores = ");
    await page.keyboard.press("Alt+F10");
    await screen.stoppedAt("%h = ");
    await screen.stop();
  },

  async "F11 twelve times at 60 ms loses no step, and steps at the end have no effect"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await screen.stoppedAt("%h = ");
    const fast = async (key, times) => {
      for (let count = 0; count < times; count++) {
        await page.keyboard.press(key);
        await page.waitForTimeout(60);
      }
    };
    const errors = page.locator(".notification-toast .codicon-error");
    await fast("F11", 12);
    await screen.stoppedAt("%taken.1 = ");
    await fast("Alt+F10", 4);
    await screen.stoppedAt("%best = ");
    assert.equal(await errors.count(), 0);
    await fast("F10", 50);
    await screen.expectHidden(".debug-toolbar");
    await screen.toast("first_steps.nnc has ended").waitFor();
    await fast("F10", 2);
    await screen.picture("fast-keys");
    assert.equal(await errors.count(), 0);
  },

  async "the debug console evaluates expressions and takes commands"({ page, screen, open }) {
    await open();
    await screen.debug("first_steps.nnc", "Greater");
    await page.keyboard.press("F10");
    await screen.stoppedAt("%scores = ");
    await screen.enter("size(%h)");
    await screen.expectAnswer(/^8$/);
    await screen.enter("stats %h");
    await screen.expectAnswer(/max 1\.93/);
    await screen.enter("%nothing");
    await screen.expectAnswer(/%nothing/);
    await screen.picture("console");
    await screen.stop();
  },
};
