// The statements of a recorded step in VS Code's disassembly view, between the lines of the script.

import assert from "node:assert/strict";
import { record } from "./recorded_step.mjs";

const VIEW = ".disassembly-view";

/** Returns the texts of the shown statements. */
async function statements(screen, page) {
  return screen.texts(page.locator(`${VIEW} .instruction`));
}

/** Returns the address of the statement with the arrow. */
async function arrow(screen, page) {
  const row = page.locator(`${VIEW} .monaco-list-row`, { has: page.locator(".codicon-debug-stackframe") });
  const shown = async () => (await screen.texts(row))[0]?.match(/0x[0-9a-f]+/i)?.[0];
  return Number(await screen.until(shown, "the arrow in the disassembly view"));
}

export const tests = {
  async "the disassembly view of a recorded step has statements with values between lines, steps and stops"({ page, screen, workspace, open, python }) {
    record(workspace, python);
    await open();
    await page.locator(".explorer-folders-view .monaco-list-row", { hasText: "step2" }).click();
    await screen.openFile("program.nnc");
    await screen.start();
    await screen.stoppedAt("ids = torch.randint(");
    for (const line of ["logits = model(", "loss = nn.functional", "loss.backward()"]) {
      await page.keyboard.press("F10");
      await screen.stoppedAt(line);
    }
    await screen.command("Open Disassembly View");
    await screen.see(`${VIEW} .instruction`);
    const first = await arrow(screen, page);
    const shown = await screen.until(async () => {
      const texts = await statements(screen, page);
      return texts.some((each) => /%loss, .* = aten\.\S+\(.*f32\[\] /.test(each)) && texts;
    }, "the loss with its value");
    const [all] = await screen.texts(page.locator(VIEW));
    assert.match(all, /40: loss = nn\.functional\.cross_entropy\(/);
    assert.match(all, /42: loss\.backward\(\)/);
    assert.ok(!shown.some((each) => /loc\(/.test(each)), shown.join("\n"));
    await screen.picture("disassembly");

    // With the view in front, F10 moves by statements.
    await page.keyboard.press("F10");
    await screen.until(async () => (await arrow(screen, page)) === first + 1, "the next statement");
    const ran = async () => (await statements(screen, page)).some((each) => /%ones_like = .* f32\[\] 1$/.test(each));
    await screen.until(ran, "the value of the statement that has run");
    await page.keyboard.press("Alt+F10");
    await screen.until(async () => (await arrow(screen, page)) === first, "the statement before");

    // A click in the margin sets an instruction breakpoint.
    const target = page.locator(`${VIEW} .monaco-list-row`, { hasText: (first + 3).toString(16) }).first();
    await target.locator(".breakpoint, .codicon").first().click();
    await screen.scrollToEnd("debug-breakpoints");
    await screen.row("debug-breakpoints", new RegExp((first + 3).toString(16), "i"));
    await page.keyboard.press("F5");
    await screen.until(async () => (await arrow(screen, page)) === first + 3, "the breakpoint");
    await screen.picture("disassembly-breakpoint");
    await screen.stop();
  },
};
