// Durations in VS Code, measured on the screen; usage: figures.mjs PLAN.json
// Figures go to `plan.result`: { name: seconds or [seconds, ...] }.

import fs from "node:fs";
import path from "node:path";
import { withEditor } from "./editor.mjs";
import { STOPPED, Screen } from "./screen.mjs";
import { TensorView } from "./screen/tensor.mjs";
import { openAll, pageOf } from "./screen/views.mjs";

const plan = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const STARTS = 5;
const WINDOWS = 9;
/** ms that a new window needs to start. */
const STARTED = 4000;
const STEPS = 30;
const WARM = 3;
/** ms without a change after which the screen is settled. */
const QUIET = 700;

const TEXT = "text, arrow and values";

/** Selectors of the places that a step changes.  A page of an extension is a separate frame. */
const PLACES = {
  [TEXT]: ".editor-instance",
  "VS Code's own views": ".debug-variables, .debug-watch, .debug-call-stack, .debug-breakpoints",
};

/** Runs in each frame from its start: records the time of the last key, and of the last change of each place. */
function record(places) {
  const seen = (globalThis.nncdbgSeen = { key: 0, last: {} });
  // VS Code removes `parent` from its pages.
  const inPage = parent !== self;
  const now = () => performance.timeOrigin + performance.now();
  addEventListener("keydown", () => Object.assign(seen, { key: now(), last: {} }), true);
  const placeOf = (node) => {
    const element = node.nodeType === 1 ? node : node.parentElement;
    if (!element || element.closest(".cursors-layer, .monaco-progress-container")) {
      return undefined;
    }
    return Object.keys(places).find((place) => element.closest(places[place])) ?? "the rest of the window";
  };
  const mark = (place) => (seen.last[place] = now());
  const changed = (changes) => {
    const found = new Set(changes.map((each) => placeOf(each.target)));
    found.forEach((place) => place && mark(inPage ? "pages of the extension" : place));
  };
  const options = { subtree: true, childList: true, attributes: true, characterData: true };
  /** The extension writes a page into an existing frame, which must then be observed again. */
  seen.observe = () => new MutationObserver(changed).observe(document, options);
  seen.observe();
  // Drawing on a canvas does not change the document.
  for (const name of ["putImageData", "drawImage", "fillRect"]) {
    const draw = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...given) {
      if (inPage) {
        mark("pages of the extension");
      }
      return draw.apply(this, given);
    };
  }
}

/** Returns the ms from a key to the last change of each place. */
async function step(page, screen, key) {
  await page.keyboard.press(key);
  const collect = async () => {
    const frames = await Promise.all(page.frames().map((each) => each.evaluate(() => globalThis.nncdbgSeen).catch(() => undefined)));
    return { from: frames[0].key, last: Object.assign({}, ...frames.filter(Boolean).map((each) => each.last)) };
  };
  const { from, last } = await screen.until(async () => {
    const seen = await collect();
    return seen.last[TEXT] && Date.now() - Math.max(...Object.values(seen.last)) > QUIET && seen;
  }, "a settled screen");
  // A page that has not changed still has its old times.
  return Object.fromEntries(Object.entries(last).flatMap(([place, at]) => (at > from ? [[place, at - from]] : [])));
}

/** Presses F5 repeatedly, and returns the ms until the stopped line is shown. */
async function starts(page, screen) {
  const found = [];
  for (let count = 0; count < STARTS; count++) {
    const before = Date.now();
    await page.keyboard.press("F5");
    await screen.see(STOPPED);
    found.push(Date.now() - before);
    await screen.stop();
  }
  return found;
}

/** Presses F10 repeatedly, and returns the ms of each step after the first ones. */
async function steps(page, screen) {
  for (let count = 0; count < WARM; count++) {
    await step(page, screen, "F10");
  }
  const found = [];
  for (let count = 0; count < STEPS; count++) {
    found.push(await step(page, screen, "F10"));
  }
  return found;
}

/** Returns VS Code's activation times in ms, each in a new window that has finished its start. */
async function activations(page, screen, open) {
  const found = [];
  for (let count = 0; count < WINDOWS; count++) {
    await open();
    await page.waitForTimeout(STARTED);
    await screen.openFile("first_steps.nnc");
    await screen.command("Developer: Show Running Extensions");
    const row = page.locator(".runtime-extensions-editor .monaco-list-row", { hasText: /nncdbg/ }).first();
    const match = await screen.until(async () => /Activation: (\d+)ms/.exec(await row.innerText()), "the time of activation");
    found.push(Number(match[1]));
    await page.keyboard.press("Control+w");
    await page.locator(".runtime-extensions-editor").waitFor({ state: "detached" });
    await page.keyboard.press("Control+w");
  }
  return found;
}

/** Measures from the installation to the first stop in a user's model: clicks and keys, and ms. */
async function firstStop() {
  const began = Date.now();
  const settings = { "security.workspace.trust.enabled": true };
  const fresh = { vsix: plan.vsix, scratch: path.join(plan.scratch, "fresh"), settings, env: { PIP_NO_CACHE_DIR: "1" } };
  return withEditor(fresh, async ({ page, open }) => {
    const screen = new Screen(page, plan.scratch);
    const pressed = ["Install"];
    await open(plan.own);
    await page.locator(".monaco-dialog-box .monaco-button", { hasText: "Yes, I trust the authors" }).click();
    pressed.push("trust the folder");
    // A click before VS Code has registered the editor of models is lost, so the script repeats it.
    await screen.openModel("classifier.onnx", "classifier.nnc");
    pressed.push("the model");
    const listing = Date.now() - began;
    await page.keyboard.press("F5");
    pressed.push("F5");
    await screen.see(STOPPED);
    const milliseconds = Date.now() - began;
    await screen.stop();
    return { pressed, listing, milliseconds };
  });
}

const first = await firstStop();
await withEditor({ ...plan, settings: { "nncdbg.python": plan.python } }, async ({ page, open }) => {
  await page.addInitScript(record, PLACES);
  const screen = new Screen(page, plan.scratch);
  const figures = { first, activations: await activations(page, screen, () => open(plan.workspace)) };
  await screen.openModel("nodes.onnx", "nodes.nnc");
  await screen.click("graph @main");
  await screen.start();
  await screen.stop();
  figures.start = await starts(page, screen);
  await screen.start();
  figures.steps = await steps(page, screen);
  const view = new TensorView(page, screen);
  await view.open("%large");
  await view.expectText(".words", /block of \d+ × \d+ elements/);
  await openAll(page);
  await pageOf(page, screen, "li .go");
  await screen.command("nncdbg: Open the Graph in an Editor Tab");
  await pageOf(page, screen, "canvas[role=application]");
  await Promise.all(page.frames().slice(1).map((each) => each.evaluate(() => globalThis.nncdbgSeen?.observe())));
  await screen.click("Relu");
  figures.with_views = await steps(page, screen);
  await page.screenshot({ path: path.join(plan.scratch, "stepped.png") });
  await screen.stop();
  fs.writeFileSync(plan.result, JSON.stringify(figures, null, 1));
});
