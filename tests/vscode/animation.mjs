// Plays the first minutes with a NaN in VS Code, and saves frames; usage: animation.mjs PLAN.json
// `plan.result` gets the frames in order: [{ file, milliseconds }, ...].

import fs from "node:fs";
import path from "node:path";
import { withEditor } from "./editor.mjs";
import { Screen } from "./screen.mjs";

const plan = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const SIZE = { width: 1100, height: 700 };
const settings = {
  "nncdbg.python": plan.python,
  "workbench.colorTheme": "Default Dark Modern",
  "editor.minimap.enabled": false,
  "debug.internalConsoleOptions": "neverOpen",
};

await withEditor({ ...plan, settings }, async ({ page, open }) => {
  await page.setViewportSize(SIZE);
  const screen = new Screen(page, plan.scratch);
  const frames = [];
  const frame = async (milliseconds) => {
    const name = `frame-${frames.length}`;
    await screen.picture(name);
    frames.push({ file: path.join(plan.scratch, `${name}.png`), milliseconds });
  };
  await open(plan.workspace);
  await screen.openFile("nan_softmax.nnc");
  await frame(2000);
  await screen.command("nncdbg: Watch This Model");
  const message = page.locator(".test-error-content-widget", { hasText: "%logq" });
  await message.waitFor();
  await frame(3000);
  await message.click();
  const link = page.locator("a", { hasText: "Debug: stop at the origin" }).first();
  await link.waitFor();
  // Away from elements with a tooltip.
  await page.mouse.move(300, 650);
  await frame(3500);
  await page.keyboard.press("Escape");
  await link.waitFor({ state: "hidden" });
  await screen.start();
  await frame(1500);
  await screen.continueTo("Mul(%q, %logq)");
  await frame(3000);
  await page.keyboard.press("Alt+F10");
  await screen.until(async () => (await screen.currentLine())?.includes("(%q"), "the step back");
  await frame(3000);
  await screen.stop();
  fs.writeFileSync(plan.result, JSON.stringify(frames));
});
