// Run journals: the view of the runs, their curves, and the way from a point to its step.

import assert from "node:assert/strict";
import { execFile, execFileSync, spawn } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { promisify } from "node:util";
import { pageOf, pictures } from "./views.mjs";

const NNCDBG = ["-I", "-m", "nncdbg.terminal.main"];

/** Runs nncdbg in the workspace. */
function nncdbg(python, workspace, ...words) {
  return promisify(execFile)(python, [...NNCDBG, ...words], { cwd: workspace });
}

/** Writes a journal: a training of 60 steps, a fork of it that becomes NaN, and one with another rate. */
async function writeJournal(python, workspace) {
  await nncdbg(python, workspace, "run", "train_mlp.nnc", "--journal", "run.db", "--checkpoint-every", "20", "--steps", "60");
  await nncdbg(python, workspace, "run", "run.db#1@30", "--fork", "--set", "lr=1e30");
  await nncdbg(python, workspace, "run", "run.db#1@20", "--fork", "--set", "lr=0.5");
}

const rows = (page) => page.locator(".pane", { has: page.locator('.pane-header[aria-label^="Runs"]') }).first().locator(".monaco-list-row");
const row = (page, text) => rows(page).filter({ hasText: text }).first();

/** Opens the view, with the rows of the journal. */
async function openRuns(page, screen) {
  // The panel is closed, and the extension may not have found the journal yet.
  await screen.command("Focus on Runs View");
  await row(page, "#1 train_mlp").waitFor();
}

/** Opens the page with the curves. */
async function openCurves(page, screen) {
  await row(page, "#1 train_mlp").click();
  return pageOf(page, screen, 'section[data-name="l"] .u-over');
}

/** Returns the place in the window of a part of a chart, from 0 at the left and the top. */
async function placeOf(frame, across, down) {
  const { x, y, width, height } = await frame.locator('section[data-name="l"] .u-over').boundingBox();
  return [x + across * width, y + down * height];
}

const readout = (frame) => frame.locator('section[data-name="l"] output').innerText();

export const tests = {
  async "the view lists the runs, with forks, checkpoints and events"({ page, screen, open, settings, workspace, python }) {
    await writeJournal(python, workspace);
    fs.writeFileSync(path.join(workspace, "other.db"), "no journal");
    await open();
    await openRuns(page, screen);
    const texts = await screen.texts(rows(page));
    assert.match(texts[0], /^run\.db ?3 runs/);
    assert.ok(!texts.some((each) => each.includes("other.db")), "only journals");
    assert.match(texts.find((each) => /^#1 /.test(each)), /^#1 train_mlp\.nnc ?ended, 60 steps, l 0\.\d+$/);
    assert.match(texts.find((each) => /^#2 /.test(each)), /fork of #1 at step 30, 60 steps, l NaN$/);
    assert.ok(texts.some((each) => /^Inf at step 3\d/.test(each)), texts.join("\n"));
    await row(page, "Checkpoints").click();
    await row(page, "Step 20").waitFor();
    await pictures(page, screen, settings, "runs");
  },

  async "curves branch off at forks, mark NaN, and a click opens the step"({ page, screen, open, settings, workspace, python }) {
    await writeJournal(python, workspace);
    await open();
    await openRuns(page, screen);
    const frame = await openCurves(page, screen);
    assert.equal(await frame.locator("li input:checked").count(), 3);
    await frame.locator(".note", { hasText: /^#2 .*(NaN|Inf) at step 3\d$/ }).waitFor();
    await frame.locator("button", { hasText: "Logarithmic" }).click();
    await frame.locator('button[aria-pressed="true"]', { hasText: "Logarithmic" }).waitFor();
    await page.mouse.move(...(await placeOf(frame, 0.25, 0.6)));
    await screen.until(async () => /^#\d train_mlp\.nnc, step 1\d: 0\.\d+$/.test(await readout(frame)), "the value at the pointer");
    await pictures(page, screen, settings, "runs-curves");

    const [x, y] = await placeOf(frame, 0.2, 0.6);
    await page.mouse.move(x, y);
    const step = /step (\d+)/.exec(await screen.until(() => readout(frame), "a value"))[1];
    await page.mouse.click(x, y);
    await screen.row("debug-call-stack", new RegExp(`step ${step} of`));
    await screen.picture("runs-step");
    await screen.stop();
  },

  async "a dragged range is zoomed, and hidden runs have no curve"({ page, screen, open, workspace, python }) {
    await writeJournal(python, workspace);
    await open();
    await openRuns(page, screen);
    const frame = await openCurves(page, screen);
    await page.mouse.move(...(await placeOf(frame, 0.5, 0.5)));
    await page.mouse.down();
    await page.mouse.move(...(await placeOf(frame, 0.7, 0.5)), { steps: 5 });
    await page.mouse.up();
    await frame.locator("button:enabled", { hasText: "All Steps" }).waitFor();
    await page.mouse.move(...(await placeOf(frame, 0.02, 0.5)));
    await screen.until(async () => /step (29|3[0-2]):/.test(await readout(frame)), "a step of the range");
    await screen.picture("runs-zoomed");
    await frame.locator("button", { hasText: "All Steps" }).click();
    for (const number of [2, 3]) {
      await frame.locator(`input[data-run="${number}"]`).uncheck();
    }
    await frame.locator(".note").waitFor({ state: "hidden" });
    await frame.locator(".canvas").focus();
    await page.keyboard.press("ArrowLeft");
    await screen.until(async () => /^#1 train_mlp\.nnc, step 59: /.test(await readout(frame)), "the last step, by a key");
  },

  async "the curves follow a run that another process writes"({ page, screen, open, workspace, python }) {
    await writeJournal(python, workspace);
    await open();
    await openRuns(page, screen);
    const frame = await openCurves(page, screen);
    const running = spawn(python, [...NNCDBG, "train_mlp.nnc", "--journal", "run.db"], { cwd: workspace, stdio: ["pipe", "ignore", "ignore"] });
    // The run waits at step 100 until it is seen, however slow the editor is.
    running.stdin.write("break %l hits 100\ncontinue\n");
    try {
      await frame.locator("li", { hasText: /#4.*running/ }).waitFor();
      await screen.picture("runs-live");
      running.stdin.end("delete all\ncontinue\n");
      await frame.locator("li", { hasText: /#4.*ended, 300 steps/ }).waitFor();
    } finally {
      running.kill();
    }
    await row(page, /^#4 .*ended, 300 steps/).waitFor();
  },

  async "an event opens its step, and a fork runs as a task"({ page, screen, open, settings, workspace, python }) {
    await writeJournal(python, workspace);
    settings({ "terminal.integrated.gpuAcceleration": "off" });
    await open();
    await openRuns(page, screen);
    const event = row(page, "Inf at step");
    const step = /step (\d+)/.exec(await event.innerText())[1];
    await event.click({ button: "right" });
    const fork = page.locator(".context-view .action-label", { hasText: "Fork Run from Here" });
    // VS Code drops a click right after the menu has opened.
    await screen.again(async () => (await fork.count()) && fork.click(), ".quick-input-box input", "the changes of the fork");
    await page.keyboard.type("lr=0.125");
    await page.keyboard.press("Enter");
    const lines = page.locator(".terminal-wrapper.active .xterm-rows");
    const command = `run.db#2@${step}--fork--set=lr=0.125`;
    await screen.until(async () => (await lines.count()) && (await lines.innerText()).replace(/\s/g, "").includes(command), "the command");
    await screen.picture("runs-fork");
    await openRuns(page, screen);
    await event.hover();
    await event.locator('[aria-label^="Open Step"]').click();
    await screen.row("debug-call-stack", new RegExp(`step ${step} of`));
    await screen.stop();
  },

  async "a journal appears when its first run starts, and a damaged one shows the error"({ page, screen, open, workspace, python }) {
    await open();
    // The extension starts with the first graph text.
    await screen.openFile("first_steps.nnc");
    execFileSync(python, [...NNCDBG, "run", "train_mlp.nnc", "--journal", "late.db", "--steps", "20"], { cwd: workspace });
    await openRuns(page, screen);
    await screen.command("nncdbg: Show Run Curves");
    await pageOf(page, screen, 'section[data-name="l"] .u-over');
    await screen.picture("runs-late");
    const file = path.join(workspace, "late.db");
    fs.truncateSync(file, 8192);
    const frame = await pageOf(page, screen, ".error:not(:empty)");
    assert.match(await frame.locator(".error").innerText(), /late\.db/);
    assert.ok(await frame.locator("section").count(), "the curves stay");
    await screen.picture("runs-damaged");
  },
};
