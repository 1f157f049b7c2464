// Files that are long or invalid, have unusual names, or change during a session.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";

/** Returns a chain of `length` statements. */
function chain(length) {
  const lines = Array.from({ length }, (_, index) => `  %v${index + 1}: f32[4] = Neg(%v${index})`);
  return ["#nncdbg 1", "", `graph @main(%v0: f32[4]) -> (%v${length}) {`, ...lines, `  return %v${length}`, "}", ""].join("\n");
}

/** Returns `count` statements, each with an undefined operand. */
function wrong(count) {
  const lines = Array.from({ length: count }, (_, index) => `  %v${index + 1}: f32[4] = Neg(%nothing${index})`);
  return ["#nncdbg 1", "", `graph @main(%v0: f32[4]) -> (%v${count}) {`, ...lines, `  return %v${count}`, "}", ""].join("\n");
}

export const tests = {
  async "names with quotes, a line break and right-to-left text"({ screen, open }) {
    await open();
    await screen.openFile("nan_softmax.nnc");
    await screen.openModel("odd.onnx", "odd.nnc");
    await screen.debugLine("Neg(");
    await screen.line(/שלום.*\[/);
    await screen.row("debug-variables", /say \\"hi\\"|two\\nlines|שלום/);
    await screen.picture("odd-names");
    await screen.stop();
  },

  async "a text of 100,000 lines is debugged"({ page, screen, workspace, open }) {
    fs.writeFileSync(path.join(workspace, "long.nnc"), chain(100_000));
    await open();
    await screen.debug("long.nnc", "%v3:");
    await screen.stoppedAt("%v1:");
    await page.keyboard.press("F10");
    await screen.stoppedAt("%v2:");
    await screen.line(/%v1: .*\[/);
    await screen.picture("long");
    await screen.stop();
  },

  async "a text with 1,000 errors shows them, and no session starts"({ page, screen, workspace, open }) {
    fs.writeFileSync(path.join(workspace, "wrong.nnc"), wrong(1_000));
    await open();
    await screen.openFile("wrong.nnc");
    await screen.see(".squiggly-error");
    await page.keyboard.press("Control+Shift+M");
    await screen.row("markers-panel", /%nothing0/);
    await screen.picture("wrong");
    await screen.click("%v3:");
    const dialog = page.locator(".monaco-dialog-box");
    await screen.pressUntil("F5", ".monaco-dialog-box", "the errors before the session");
    assert.match(await dialog.innerText(), /%nothing0/);
    await screen.picture("wrong-debug");
  },

  async "a file that changes during a session is reported"({ screen, workspace, open }) {
    await open();
    await screen.debug("nan_softmax.nnc", "Softmax");
    const file = path.join(workspace, "nan_softmax.nnc");
    fs.writeFileSync(file, fs.readFileSync(file, "utf8").replace("200.0", "100.0"));
    const toast = await screen.holdToast("nan_softmax.nnc has changed");
    await screen.picture("changed");
    await toast.locator(".monaco-button", { hasText: "Restart" }).click();
    await screen.line(/%scale: f32\[\] = 100\.0/);
    await toast.waitFor({ state: "hidden" });
    await screen.stoppedAt("%sharp");
    await screen.stop();
  },
};
