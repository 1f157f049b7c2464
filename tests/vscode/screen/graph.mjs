// The graph tab: the whole graph of a model in an editor.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { BREAKPOINT, launches } from "../screen.mjs";
import { pageOf, pictures, stepPastNaN } from "./views.mjs";

async function openGraph(page, screen) {
  await screen.command("nncdbg: Open the Graph in an Editor Tab");
  return pageOf(page, screen, "canvas[role=application]");
}

const description = (frame) => frame.locator(".said").innerText();

/** Selects the first result of a search. */
async function search(screen, frame, text, expected) {
  await frame.getByLabel("Search").fill(text);
  // The layers may still be opening.
  await frame.locator(".count", { hasText: /^[1-9]\d* found$/ }).waitFor();
  await frame.getByLabel("Search").press("Enter");
  await screen.until(async () => expected.test(await description(frame)), `${expected} is chosen`);
}

const DEEP = 5000;

/** Returns a chain of statements with residual connections, without layers. */
function deep() {
  const statements = Array.from({ length: DEEP - 1 }, (_, index) => `  %h${index + 1}: f32[4,8] = Add(%h${index}, %h${index % 20 === 19 ? index - 19 : index})`);
  return ["#nncdbg 1", "opset 18", "", "graph @main(%x: f32[4,8]) -> (%y: f32[4,8]) {", "  %h0: f32[4,8] = Relu(%x)", ...statements, `  %y: f32[4,8] = Neg(%h${DEEP - 1})`, "  return %y", "}", ""].join("\n");
}

export const tests = {
  async "the whole graph: search, layers that open, a breakpoint by click, colors, and the current statement"({ page, screen, open, settings }) {
    await open();
    await stepPastNaN(page, screen);
    const frame = await openGraph(page, screen);
    // A click before the graph has arrived opens nothing.
    await frame.getByLabel("Search").fill("f32");
    await frame.locator(".count", { hasText: /^[1-9]\d* found$/ }).waitFor();
    await frame.getByRole("button", { name: "Expand all visible layers" }).click();
    await search(screen, frame, "Softmax", /^line 16: Softmax +· +%p +· +f32\[3,4\]$/);
    await frame.locator(".count", { hasText: "1 of 1" }).waitFor();
    await search(screen, frame, "%terms", /%terms.*contains NaN/);
    await frame.getByLabel("Color by").selectOption("0");
    await frame.locator(".bar:visible").waitFor();
    await screen.until(async () => /largest absolute value 0\.\d+/.test(await description(frame)) || (await search(screen, frame, "%logq", /%logq/), /largest absolute value/.test(await description(frame))), "its statistic");
    await pictures(page, screen, settings, "graph");
    await frame.getByLabel("Search").fill("");
    await frame.locator("canvas[role=application]").focus();
    const before = await page.locator(BREAKPOINT).count();
    await page.keyboard.press("b");
    await screen.until(async () => (await page.locator(BREAKPOINT).count()) === before + 1, "a breakpoint in the margin");
    await page.keyboard.press("Enter");
    await page.locator(".statusbar-item", { hasText: /Ln 2[12], Col/ }).waitFor();
    await screen.stop();
  },

  async "the whole run at its end: colors of all layers, and states only on request"({ page, screen, open, workspace }) {
    launches(workspace, { request: "launch", program: "train_mlp.nnc", steps: 2, stopOnEntry: true, stopOnExit: true });
    await open();
    await screen.openFile("train_mlp.nnc");
    await screen.start();
    const frame = await openGraph(page, screen);
    await frame.locator('canvas[aria-busy="false"]').waitFor();
    const searched = async (text) => {
      await frame.getByLabel("Search").fill(text);
      return frame.locator(".count").innerText();
    };
    await screen.until(async () => (await searched("while")) === "1 found", "the loop");
    assert.equal(await searched("RandomNormal"), "0 found");
    await frame.getByRole("button", { name: "Show states and constants" }).click();
    assert.equal(await searched("RandomNormal"), "2 found");
    await screen.picture("graph-states");
    await frame.getByRole("button", { name: "Show states and constants" }).click();
    await page.locator('.debug-toolbar [aria-label^="Continue"]').click();
    await frame.locator(".bar:visible", { hasText: "NaN, Inf" }).waitFor();
    await screen.until(async () => {
      await frame.getByRole("button", { name: "Expand all visible layers" }).click();
      return /^\d+ found$/.test(await searched("MatMul")) && (await searched("MatMul")) !== "0 found";
    }, "the statements of layers that have returned");
    await frame.getByLabel("Search").press("Enter");
    await screen.until(async () => /largest absolute value \d/.test(await description(frame)), "the statistic of a statement of a layer that has returned");
    await screen.picture("graph-heat-map");
    await screen.stop();
  },

  async "when the session ends, the graph opens all layers with the colors of the run"({ page, screen, open, workspace }) {
    launches(workspace, { request: "launch", program: "train_mlp.nnc", steps: 2, stopOnEntry: true });
    await open();
    await screen.openFile("train_mlp.nnc");
    await screen.start();
    const frame = await openGraph(page, screen);
    await frame.locator('canvas[aria-busy="false"]').waitFor();
    await page.locator('.debug-toolbar [aria-label^="Continue"]').click();
    await screen.expectHidden(".debug-toolbar");
    await frame.locator(".bar:visible", { hasText: "NaN, Inf" }).waitFor();
    await search(screen, frame, "MatMul", /largest absolute value \d/);
    await screen.picture("graph-after-the-run");
  },

  async "5,000 statements are shown at once, and the view follows the program"({ page, screen, open, workspace }) {
    fs.writeFileSync(path.join(workspace, "deep.nnc"), deep());
    await open();
    await screen.debug("deep.nnc", "Relu");
    const frame = await openGraph(page, screen);
    await frame.locator("canvas[role=application]").focus();
    const began = Date.now();
    await search(screen, frame, "%h4990", /%h4990/);
    await frame.locator('canvas[aria-busy="false"]').waitFor();
    console.log(`a statement near the end of ${DEEP} is shown after ${Date.now() - began} ms`);
    await screen.picture("graph-deep");
    await frame.getByRole("button", { name: "Keep the current" }).click();
    await frame.getByRole("button", { name: "Keep the current" }).click();
    await frame.locator('canvas[aria-busy="false"]').waitFor();
    await page.keyboard.press("F10");
    await screen.stoppedAt("%h1: ");
    await screen.picture("graph-deep-current");
    await screen.stop();
  },
};
