// The form for inputs, sizes, backend and seed.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { STARTING } from "../screen.mjs";
import { pageOf, pictures } from "./views.mjs";

const SIZED = `#nncdbg 1
opset 18

graph @main(%x: f32[N,3], %scale: f32[]) -> (%y: f32[N,3]) {
  %a: f32[N,3] = Mul(%x, %scale)
  %y: f32[N,3] = Relu(%a)
  return %y
}
`;

const UNKNOWN = "#nncdbg 1\nopset 18\n\ngraph @main(%x) -> (%y) {\n  %y = Relu(%x)\n  return %y\n}\n";

async function openForm(page, screen) {
  await screen.command("nncdbg: Run with");
  return pageOf(page, screen, "form");
}

export const tests = {
  async "a model runs with the values of the form, and the form keeps them"({ page, screen, workspace, open, settings }) {
    fs.writeFileSync(path.join(workspace, "sized.nnc"), SIZED);
    await open();
    await screen.openFile("sized.nnc");
    const form = await openForm(page, screen);
    await form.getByLabel("Data for x").selectOption("ones");
    await form.getByLabel("Data for scale").selectOption("value");
    await form.getByLabel("Details for scale").fill("2.5");
    await form.getByLabel("Size N").fill("4");
    await form.getByLabel("Seed").fill("7");
    await pictures(page, screen, settings, "run-with");
    await form.getByRole("button", { name: "Start Debugging" }).click();
    await screen.see(".debug-top-stack-frame-line");
    await page.keyboard.press("F10");
    await screen.stoppedAt("%y");
    await screen.line(/%a.*2\.5/);
    await screen.stop();
    const again = await openForm(page, screen);
    assert.equal(await again.getByLabel("Size N").inputValue(), "4");
    assert.equal(await again.getByLabel("Details for scale").inputValue(), "2.5");
    assert.equal(await again.getByLabel("Data for x").inputValue(), "ones");
    await again.getByLabel("Allocator").selectOption("arena");
    await again.getByRole("button", { name: "Add this run to the launch.json" }).click();
    await screen.see('.tab[data-resource-name="launch.json"]');
    const { configurations } = JSON.parse(fs.readFileSync(path.join(workspace, ".vscode", "launch.json"), "utf8"));
    assert.deepEqual(configurations, [
      { type: "nncdbg", request: "launch", name: "Debug sized.nnc", program: "${workspaceFolder}/sized.nnc", stopOnEntry: true, inputs: { x: "ones", scale: "2.5" }, dims: { N: 4 }, allocator: "arena", seed: 7 },
    ]);
    await screen.picture("run-with-saved");
  },

  async "F5 repeats the last choices, which a lens shows"({ page, screen, workspace, open }) {
    fs.writeFileSync(path.join(workspace, "sized.nnc"), SIZED);
    await open();
    await screen.openFile("sized.nnc");
    const lens = page.locator(".codelens-decoration a", { hasText: "inputs: x = random, scale = random · change" });
    await lens.waitFor();
    await screen.picture("inputs-lens");
    await screen.again(() => lens.click({ timeout: 2_000 }).catch(() => undefined), '.tab:has-text("Run sized.nnc with")', "the form");
    const form = await pageOf(page, screen, "form");
    await form.getByLabel("Data for scale").selectOption("value");
    await form.getByLabel("Details for scale").fill("2.5");
    await form.getByLabel("Data for x").selectOption("ones");
    await form.getByRole("button", { name: "Start Debugging" }).click();
    await screen.see(".debug-top-stack-frame-line");
    await screen.stop();
    await page.locator(".codelens-decoration a", { hasText: "inputs: x = ones, scale = 2.5 · change" }).waitFor();
    await screen.click("Mul");
    await screen.start();
    await page.keyboard.press("F10");
    await screen.line(/%a.*2\.5/);
    await screen.picture("run-repeated");
    await screen.stop();
  },

  async "the form opens when an input cannot be chosen"({ page, screen, workspace, open }) {
    fs.writeFileSync(path.join(workspace, "unknown.nnc"), UNKNOWN);
    await open();
    await screen.openFile("unknown.nnc");
    await screen.click("Relu");
    await screen.pressUntil("F5", `${STARTING}, .tab:has-text("Run unknown.nnc with")`, "the start of a session");
    const form = await pageOf(page, screen, "form .words");
    assert.match(await form.locator(".words").innerText(), /input %x has no known type/);
    assert.equal(await page.locator(".monaco-dialog-box").count(), 0);
    assert.match(await form.locator(".words").innerText(), /Choose a file below, or generated values with sizes/);
    await screen.picture("run-with-refused");
    await form.getByLabel("Data for x").selectOption("normal");
    await form.getByLabel("Details for x").fill("2,3");
    await form.getByRole("button", { name: "Start Debugging" }).click();
    await screen.see(".debug-top-stack-frame-line");
    await screen.stop();
  },
};
