// Streams of a schedule: threads in the call stack, their timeline in a tab, and an order that a seed draws.

import assert from "node:assert/strict";
import { launches, STARTING, STOPPED } from "../screen.mjs";
import { pageOf, pictures } from "./views.mjs";

const STEP_OVER = '.debug-toolbar [aria-label^="Step Over"]';

/** Expands the thread of a stream, and selects its frame: the next step is one of this stream. */
async function select(page, screen, name, frame) {
  await screen.rows("debug-call-stack", { hasText: name }).first().click();
  await screen.again(() => page.keyboard.press("ArrowRight"), screen.rows("debug-call-stack", { hasText: frame }), `the frame ${frame}`);
  await screen.rows("debug-call-stack", { hasText: frame }).first().click();
}

export const tests = {
  async "host and streams are threads with what they wait for, and a step moves one stream"({ page, screen, open, settings }) {
    await open();
    await screen.debug("two_streams.nnc", "= Relu");
    for (const thread of [/^host/, /^s0 \(cuda:0\)/, /^s1 \(cuda:0\)/]) {
      await screen.row("debug-call-stack", thread);
    }
    await select(page, screen, "s0 (cuda:0)", "Relu");
    await page.locator(STEP_OVER).click();
    await screen.row("debug-call-stack", /^Add, waits for e2 of line 9/);
    await pictures(page, screen, settings, "streams-threads");
    await select(page, screen, "s1 (cuda:0)", "Sigmoid");
    await page.locator(STEP_OVER).click();
    await screen.row("debug-call-stack", /^Mul/);
    await screen.stop();
  },

  async "the timeline has a lane per stream, marks the current statement, and opens lines"({ page, screen, open, settings }) {
    await open();
    await screen.debug("two_streams.nnc", "= Relu");
    await screen.command("Show Timeline of Streams");
    const frame = await pageOf(page, screen, ".statement.current");
    await frame.locator('.statement.current[aria-label^="%shift Relu, line 8, s0, record e1"]').waitFor();
    assert.equal(await frame.locator(".wait").count(), 2);
    assert.deepEqual((await screen.texts(frame.locator(".head b"))), ["host", "s0", "s1"]);
    await page.locator(STEP_OVER).click();
    await frame.locator('.statement.current[aria-label^="%scale Sigmoid, line 9, s1"]').waitFor();
    await frame.locator(".waits", { hasText: "waits for e2 of line 9" }).waitFor();
    await pictures(page, screen, settings, "streams");

    await frame.locator(".statement.current").focus();
    await page.keyboard.press("ArrowRight");
    await frame.locator('.statement[aria-label^="%scaled Mul"]:focus').waitFor();
    await page.keyboard.press("Enter");
    await page.locator('.statusbar-item:has-text("Ln 10,")').first().waitFor();
    await frame.locator('.statement[aria-label^="%y Softmax"]').click();
    await page.locator('.statusbar-item:has-text("Ln 12,")').first().waitFor();
    await screen.enter("set times on");
    await page.locator(STEP_OVER).click();
    await frame.locator('.statement[aria-label*="median"]').first().waitFor();
    await screen.picture("streams-times");
    await screen.stop();
  },

  async "without a session, the command starts one for the open text"({ page, screen, open }) {
    await open();
    await screen.openFile("two_streams.nnc");
    await screen.command("Show Timeline of Streams");
    const frame = await pageOf(page, screen, ".statement.current");
    await frame.locator('.statement.current[aria-label^="%shift Relu, line 8"]').waitFor();
    await screen.stoppedAt("= Relu");
    await screen.stop();
    await frame.locator(".message", { hasText: "No graph is being debugged" }).waitFor();
  },

  async "a launch plays the order that a seed draws"({ page, screen, open, workspace }) {
    launches(workspace, { request: "launch", program: "${workspaceFolder}/two_streams.nnc", order: 2, stopOnEntry: true });
    await open();
    await screen.breakIn("two_streams.nnc", "= Add");
    await screen.pressUntil("F5", STARTING, "the start of the session");
    await screen.see(STOPPED);
    await screen.continueTo("%scaled.stale");
    await page.locator(".exception-widget", { hasText: "uninitialized read" }).waitFor();
    await screen.picture("streams-order");
    await page.keyboard.press("F10");
    await screen.stoppedAt("Softmax");
    await screen.row("debug-call-stack", /^two_streams\.nnc:12/);
    await screen.stop();
  },
};
